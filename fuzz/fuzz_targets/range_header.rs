//! A `Range` header against a file of any size.
#![no_main]

use fresco_server::range::{Range, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &str)| {
    let (size, value) = input;
    if let Range::Part { start, length } = parse(value, size) {
        assert!(length > 0);
        let end = start.checked_add(length).expect("the end is a number");
        assert!(end <= size, "{start}+{length} of {size}");
    }
});
