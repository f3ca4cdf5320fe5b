//! Golden tests of LoRA: name maps and merge results of the reference, and files that are not as they should be.

#![expect(
    clippy::unwrap_used,
    reason = "a golden file without the expected part is a failed test"
)]

mod files;
mod formulas;
mod merge;
mod names;

use std::path::PathBuf;

/// A file of the golden numbers.
fn gold(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

fn gold_json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(gold(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}
