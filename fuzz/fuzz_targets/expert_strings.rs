//! The text that says which device gets how much of a model.
#![no_main]

use fresco_memory::{DeviceTotal, parse_expert};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u64, &str)| {
    let (count, total, text) = input;
    let names = ["cpu", "sim:0", "sim:1", "cuda:0", "cuda:10"];
    let devices: Vec<DeviceTotal> = names[..usize::from(count) % (names.len() + 1)]
        .iter()
        .map(|name| DeviceTotal {
            name: (*name).to_owned(),
            total,
        })
        .collect();
    match parse_expert(text, &devices) {
        Ok(None) => assert!(text.trim().is_empty()),
        Ok(Some(expert)) => {
            for (name, _) in &expert.items {
                assert!(devices.iter().any(|d| d.name == *name), "{name} is not there");
            }
            for warning in &expert.warnings {
                assert!(text.is_char_boundary(warning.position));
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(errors.is_sorted_by_key(|e| e.position), "in order of place");
            for error in &errors {
                assert!(text.is_char_boundary(error.position), "{}", error.position);
                assert!(!error.message.is_empty());
            }
        }
    }
});
