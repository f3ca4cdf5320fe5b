//! The golden files: cases and their tensors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fresco_graph::{Map, Value, json};
use fresco_tensor::Tensor;

/// `tests/gold` of the repository.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold")
}

pub(crate) fn read_json(name: &str) -> Value {
    let path = folder().join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    json::parse_bytes(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One recorded run of one node.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) class: String,
    pub(crate) inputs: Map,
    /// One list per output slot; absent when the node failed.
    pub(crate) outputs: Option<Value>,
    pub(crate) error: Option<Value>,
    pub(crate) ui: Option<Value>,
    pub(crate) hidden: Option<Value>,
}

/// All cases of an area, with the tensors they refer to.
pub(crate) struct Area {
    pub(crate) name: String,
    pub(crate) cases: Vec<Case>,
    pub(crate) tensors: Tensors,
}

impl Area {
    pub(crate) fn load(name: &str) -> Self {
        let file = read_json(&format!("nodes/{name}.json"));
        let cases = file.get("cases").and_then(Value::as_list).expect("cases");
        let text = |c: &Value, key: &str| c.get(key).and_then(Value::as_str).expect(key).to_owned();
        let cases = cases
            .iter()
            .map(|c| Case {
                id: text(c, "id"),
                class: text(c, "class"),
                inputs: c
                    .get("inputs")
                    .and_then(Value::as_map)
                    .expect("inputs")
                    .clone(),
                outputs: c.get("outputs").cloned(),
                error: c.get("error").cloned(),
                ui: c.get("ui").cloned(),
                hidden: c.get("hidden").cloned(),
            })
            .collect();
        Self {
            name: name.to_owned(),
            cases,
            tensors: Tensors::load(&format!("nodes/{name}.safetensors")),
        }
    }
}

/// Tensors of one safetensors file as plain numbers; areas without tensors have no file.
#[derive(Default)]
pub(crate) struct Tensors(BTreeMap<String, (Vec<usize>, Vec<f64>)>);

impl Tensors {
    pub(crate) fn load(name: &str) -> Self {
        let Ok(bytes) = std::fs::read(folder().join(name)) else {
            return Self::default();
        };
        let length =
            u64::from_le_bytes(bytes[..8].try_into().expect("as many bytes as asked for")) as usize;
        let header = json::parse_bytes(&bytes[8..8 + length]).expect("safetensors header");
        let body = &bytes[8 + length..];
        let mut all = BTreeMap::new();
        for (key, entry) in header.as_map().expect("a header object") {
            if &**key == "__metadata__" {
                continue;
            }
            let numbers = |name: &str| -> Vec<usize> {
                let list = entry.get(name).and_then(Value::as_list).expect(name);
                list.iter()
                    .map(|v| v.as_int().expect("an integer") as usize)
                    .collect()
            };
            let range = numbers("data_offsets");
            let dtype = entry.get("dtype").and_then(Value::as_str).expect("dtype");
            let values = decode(dtype, &body[range[0]..range[1]]);
            all.insert(key.to_string(), (numbers("shape"), values));
        }
        Self(all)
    }

    pub(crate) fn get(&self, key: &str) -> &(Vec<usize>, Vec<f64>) {
        self.0
            .get(key)
            .unwrap_or_else(|| panic!("no golden tensor {key}"))
    }

    /// A golden tensor as one of ours.
    #[allow(
        dead_code,
        clippy::allow_attributes,
        reason = "for the areas' own files"
    )]
    pub(crate) fn tensor(&self, key: &str) -> Tensor {
        let (shape, values) = self.get(key);
        let values = values.iter().map(|v| *v as f32).collect();
        Tensor::from_vec(shape.clone(), values).expect("golden shapes fit")
    }
}

fn decode(dtype: &str, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        "F32" => bytes
            .chunks_exact(4)
            .map(|b| {
                f64::from(f32::from_le_bytes(
                    b.try_into().expect("as many bytes as asked for"),
                ))
            })
            .collect(),
        "F64" => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().expect("as many bytes as asked for")))
            .collect(),
        "I64" => bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().expect("as many bytes as asked for")) as f64)
            .collect(),
        "U8" | "BOOL" => bytes.iter().map(|b| f64::from(*b)).collect(),
        other => panic!("golden dtype {other}"),
    }
}

/// The text of an error entry's field.
pub(crate) fn field(value: &Value, key: &str) -> Arc<str> {
    value
        .get(key)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .into()
}
