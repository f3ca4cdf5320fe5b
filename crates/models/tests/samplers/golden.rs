//! Golden files and how to compare with them.

use std::path::{Path, PathBuf};

use fresco_tensor::SafeTensors;
use serde_json::Value;

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

pub(crate) fn tensors(name: &str) -> SafeTensors {
    SafeTensors::open(path(&format!("{name}.safetensors"))).unwrap()
}

pub(crate) fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(path(&format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Size of the difference relative to the size of what is wanted.
pub(crate) fn relative_error(given: &[f32], wanted: &[f32]) -> f64 {
    assert_eq!(given.len(), wanted.len());
    let square = |v: f64| v * v;
    let pairs = given.iter().zip(wanted);
    let gap: f64 = pairs
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    let size: f64 = wanted.iter().map(|b| square(f64::from(*b))).sum();
    (gap / size.max(1e-30)).sqrt()
}
