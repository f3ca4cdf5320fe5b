//! Conditionings in files, so that a text encoder need not be there.
//!
//! A safetensors file has the tokens as `conditioning`, every other tensor under the name of its option (a list as `name.0`,
//! `name.1`, ...), and numbers and words as JSON in the text `conditioning_options`.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, json, map};
use fresco_tensor::{Tensor, safetensors, with_memory};

use crate::loaders::open_model;
use crate::save::{begin, entry_of, save_error};
use crate::types::{Cond, Conditioning, as_tensor, tensor};

const TOKENS: &str = "conditioning";
const OPTIONS: &str = "conditioning_options";

/// Loads a conditioning that was saved before, from the embeddings folder.
#[derive(Node)]
#[node(
    id = "ConditioningLoader",
    v3,
    module = "comfy_extras.nodes_cond",
    display = "Load Conditioning",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningLoader {
    /// The file of the conditioning.
    #[input(listed = "models/embeddings")]
    conditioning_name: String,
}

impl Node for ConditioningLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let file = open_model(cx, "embeddings", &self.conditioning_name)?;
        let path = file.path();
        if file.info(TOKENS).is_none() {
            return Err(NodeError::value_error(format!(
                "{} holds no tensor '{TOKENS}': it is not a conditioning that the node Save Conditioning wrote",
                path.display()
            )));
        }
        let read = |name: &str| -> Result<Tensor, NodeError> {
            let size = file.info(name).map_or(0, |info| {
                info.shape
                    .iter()
                    .fold(4u64, |n, s| n.saturating_mul(*s as u64))
            });
            let stored = with_memory(size, || file.read(name))??;
            Ok(stored.to_f32()?)
        };
        let mut options = Map::new();
        let text = file.metadata().iter().find(|(key, _)| key == OPTIONS);
        if let Some((_, text)) = text {
            let found = json::parse(text).map_err(|e| {
                NodeError::value_error(format!("{}: {OPTIONS}: {e}", path.display()))
            })?;
            options.extend(found.as_map().cloned().unwrap_or_default());
        }
        let mut lists: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
        for name in file.names().iter().filter(|name| *name != TOKENS) {
            let numbered = name
                .rsplit_once('.')
                .and_then(|(list, number)| Some((list, number.parse::<usize>().ok()?)));
            match numbered {
                Some((list, number)) => {
                    let list = lists.entry(list.to_owned()).or_default();
                    list.insert(number, read(name)?);
                }
                None => {
                    options.insert(name.as_str().into(), tensor(read(name)?));
                }
            }
        }
        for (name, list) in lists {
            let list: Vec<Value> = list.into_values().map(tensor).collect();
            options.insert(name.into(), list.into());
        }
        let tokens = tensor(read(TOKENS)?);
        Ok(NodeOutput::one(Conditioning(vec![Cond {
            tokens,
            options,
        }])))
    }
}

/// The form in which a file holds an option of a conditioning.
enum StoredOption {
    One(Tensor),
    List(Vec<Tensor>),
    Plain(Value),
    Nothing,
}

fn kept(key: &str, value: &Value) -> Result<StoredOption, NodeError> {
    let refused = || {
        NodeError::value_error(format!(
            "the option '{key}' of the conditioning cannot be saved: {}",
            fresco_graph::wrong_kind("a tensor, tensors, a number or a text", value)
        ))
    };
    if let Some(one) = as_tensor(value) {
        return Ok(StoredOption::One(one.clone()));
    }
    match value {
        Value::Null => Ok(StoredOption::Nothing),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => {
            Ok(StoredOption::Plain(value.clone()))
        }
        Value::List(list) => {
            let all: Option<Vec<Tensor>> = list.iter().map(|v| as_tensor(v).cloned()).collect();
            all.map(StoredOption::List).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

/// Saves a conditioning in the output folder, and passes it on. In the embeddings folder it can be loaded again.
#[derive(Node)]
#[node(
    id = "SaveConditioning",
    v3,
    module = "comfy_extras.nodes_cond",
    display = "Save Conditioning",
    category = "conditioning",
    outputs(Output::new("CONDITIONING").named("conditioning")),
    output_node
)]
pub struct SaveConditioning {
    conditioning: Conditioning,
    #[input(default = "conditioning/ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveConditioning {
    fn run(self, cx: &Cx) -> NodeResult {
        let [cond] = self.conditioning.0.as_slice() else {
            return Err(NodeError::value_error(format!(
                "a file holds one conditioning, and this is {}: save before combining",
                self.conditioning.0.len()
            )));
        };
        let mut tensors: Vec<(String, Tensor)> = vec![(TOKENS.to_owned(), cond.tensor()?.clone())];
        let mut plain = Map::new();
        for (key, value) in &cond.options {
            match kept(key, value)? {
                StoredOption::One(one) => tensors.push((key.to_string(), one)),
                StoredOption::List(list) => tensors.extend(
                    list.into_iter()
                        .enumerate()
                        .map(|(i, one)| (format!("{key}.{i}"), one)),
                ),
                StoredOption::Plain(value) => {
                    plain.insert(Arc::clone(key), value);
                }
                StoredOption::Nothing => {}
            }
        }
        let mut text = Vec::new();
        if !plain.is_empty() {
            text.push((OPTIONS.to_owned(), json::to_python(&plain.into())));
        }
        let entries: Vec<(&str, &Tensor)> = tensors
            .iter()
            .map(|(name, one)| (name.as_str(), one))
            .collect();
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, 0, 0)?;
        let saved = batch
            .save_with("safetensors", |file| {
                safetensors::write_to(&mut std::io::BufWriter::new(file), &entries, &text)
            })
            .map_err(save_error)?;
        let entry = entry_of(&saved, DirType::Output);
        Ok(NodeOutput::one(self.conditioning).with_ui(map! {"files" => vec![entry]}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_files::naming::Saver;
    use fresco_files::{Dirs, Folders};
    use fresco_graph::{Args, NodeSchema, Resources, Slots};

    #[test]
    fn a_saved_conditioning_comes_back() {
        let base = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(base.path());
        let mut resources = Resources::default();
        let folders = Folders::new(&dirs);
        let root = base.path().join("output/conditioning");
        folders.add("embeddings", &root, true);
        resources.insert(dirs);
        resources.insert(Saver::new());
        resources.insert(folders);
        let cx = Cx::detached(Arc::new(resources));
        let one = |n: usize| tensor(Tensor::from_fn([1, n, 4], |i| i as f32).unwrap());
        let options = map! {
            "pooled_output" => one(1),
            "guidance" => 3.5,
            "word" => "x",
            "nothing" => Value::Null,
            "reference_latents" => vec![one(2), one(3)],
        };
        let cond = Conditioning(vec![Cond {
            tokens: one(7),
            options,
        }]);
        let save = |conditioning: Conditioning| {
            let args = map! {"conditioning" => conditioning, "filename_prefix" => "conditioning/a"};
            SaveConditioning::from_args(Args(args)).unwrap().run(&cx)
        };
        save(cond.clone()).unwrap();
        let args = map! {"conditioning_name" => "a_00001_.safetensors"};
        let out = ConditioningLoader::from_args(Args(args)).unwrap().run(&cx);
        let Slots::Values(values) = out.unwrap().slots else {
            panic!("no value");
        };
        let back =
            <Conditioning as fresco_graph::FromValue>::from_value(values[0].clone()).unwrap();
        let [back] = back.0.as_slice() else {
            panic!("one entry");
        };
        assert_eq!(back.tensor().unwrap().shape(), [1, 7, 4]);
        assert_eq!(
            back.tensor().unwrap().data(),
            cond.0[0].tensor().unwrap().data()
        );
        assert_eq!(back.options.get("guidance"), Some(&Value::from(3.5)));
        assert_eq!(back.options.get("word"), Some(&Value::from("x")));
        assert_eq!(back.options.get("nothing"), None);
        let list = back
            .options
            .get("reference_latents")
            .and_then(Value::as_list)
            .unwrap();
        let sizes: Vec<usize> = list
            .iter()
            .map(|v| as_tensor(v).unwrap().shape()[1])
            .collect();
        assert_eq!(sizes, [2, 3]);
        // Two entries, or what is no tensor, do not fit into a file.
        let mut two = cond.clone();
        two.0.extend(cond.0.clone());
        assert!(save(two).is_err());
        let odd = cond.set("control", Value::from(map! {"a" => 1}));
        assert!(save(odd).unwrap_err().message().contains("control"));
    }
}
