//! Golden input descriptions made into values.

use fresco_graph::mapping::InputLists;
use fresco_graph::{Map, NodeRegistry, Value};
use fresco_nodes::types::tensor;
use fresco_tensor::Tensor;
use fresco_tensor::synthetic::{self, Mapping};

use crate::{objects, store::Case};

/// Input lists as links would bring them: `$list` is several values, anything else one.
pub(crate) fn lists(case: &Case, registry: &NodeRegistry) -> InputLists {
    case.inputs
        .iter()
        .map(|(name, value)| {
            let values = match value.get("$list").and_then(Value::as_list) {
                Some(items) => items.iter().map(|v| build(v, registry)).collect(),
                None => vec![build(value, registry)],
            };
            (name.clone(), values)
        })
        .collect()
}

/// One value: `$tensor` and `$object` wherever they stand, everything else as it is.
pub(crate) fn build(value: &Value, registry: &NodeRegistry) -> Value {
    match value {
        Value::Map(m) => {
            if let Some(spec) = m.get("$tensor") {
                return tensor(synthetic_tensor(spec));
            }
            if let Some(spec) = m.get("$object") {
                let spec = spec.as_map().expect("$object holds a map");
                return objects::build(spec, registry);
            }
            let built: Map = m
                .iter()
                .map(|(k, v)| (k.clone(), build(v, registry)))
                .collect();
            built.into()
        }
        Value::List(l) => l
            .iter()
            .map(|v| build(v, registry))
            .collect::<Vec<_>>()
            .into(),
        other => other.clone(),
    }
}

pub(crate) fn synthetic_tensor(spec: &Value) -> Tensor {
    let shape: Vec<usize> = spec
        .get("shape")
        .and_then(Value::as_list)
        .expect("shape")
        .iter()
        .map(|v| v.as_int().expect("a size") as usize)
        .collect();
    let map = spec.get("map").and_then(Value::as_str).expect("map");
    let scale = spec.get("scale").and_then(Value::as_f64).map(|s| s as f32);
    let stream = spec
        .get("stream")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mapping = Mapping::parse(map, scale).expect("a known map");
    synthetic::input(stream, &shape, mapping).expect("golden shapes fit")
}
