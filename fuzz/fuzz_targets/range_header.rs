//! A `Range` header against a file of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use range::{Range, parse};

// The file itself: the crate would bring the database and the sockets into the sanitizer build.
#[path = "../../crates/server/src/http/range.rs"]
mod range;

fuzz_target!(|input: (u64, &str)| {
    let (size, value) = input;
    if let Range::Part { start, length } = parse(value, size) {
        assert!(length > 0);
        let end = start.checked_add(length).expect("the end is a number");
        assert!(end <= size, "{start}+{length} of {size}");
    }
});
