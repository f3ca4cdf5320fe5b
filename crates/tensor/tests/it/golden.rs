//! Reading golden cases of nodes; the format is in `tests/gold/nodes/README.md`.

use std::path::{Path, PathBuf};

use fresco_tensor::synthetic::{Mapping, input};
use fresco_tensor::{SafeTensors, Tensor};
use serde_json::Value;

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

/// The cases and the tensors of one area.
pub(crate) fn area(name: &str) -> (Vec<Value>, SafeTensors) {
    let text = std::fs::read_to_string(path(&format!("nodes/{name}.json"))).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(cases) = json["cases"].take() else {
        panic!("no cases")
    };
    let tensors = SafeTensors::open(path(&format!("nodes/{name}.safetensors"))).unwrap();
    (cases, tensors)
}

pub(crate) fn size(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn shape(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(size).collect()
}

/// An input tensor, made from its stream.
pub(crate) fn stream(value: &Value) -> Tensor {
    let t = &value["$tensor"];
    let scale = t["scale"].as_f64().map(|s| s as f32);
    let map = Mapping::parse(t["map"].as_str().unwrap(), scale).unwrap();
    input(t["stream"].as_str().unwrap_or(""), &shape(&t["shape"]), map).unwrap()
}

/// Compares with an output, up to `bound` absolute or relative.
#[track_caller]
pub(crate) fn check(id: &str, bound: f32, out: &Tensor, expect: &Value, gold: &SafeTensors) {
    assert_eq!(out.shape(), shape(&expect["shape"]), "{id}");
    let expected = match expect["$ref"].as_str() {
        Some(key) => gold.tensor(key).unwrap(),
        None => Tensor::full(out.shape(), expect["$const"].as_f64().unwrap() as f32).unwrap(),
    };
    for (i, (a, b)) in out.data().iter().zip(expected.data()).enumerate() {
        let bound = bound * b.abs().max(1.0);
        assert!(
            (a - b).abs() <= bound,
            "{id} element {i}: {a}, expected {b}"
        );
    }
}
