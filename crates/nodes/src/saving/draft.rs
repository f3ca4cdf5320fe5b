//! A weight file before it is written: names, formats and shapes, and where each value comes from. Values are made one
//! by one while the file is written.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use fresco_files::naming::{Batch, Saved};
use fresco_graph::{Cx, NodeError};
use fresco_models::{PatchSet, WeightStore};
use fresco_tensor::safetensors::{self, Entry};
use fresco_tensor::{Dtype, Stored};

use crate::lora::Weights;
use crate::save::save_error;

/// Where a value comes from.
enum DraftValue {
    Whole {
        store: Arc<WeightStore>,
        key: String,
    },
    /// A matrix the other way round.
    Turned {
        store: Arc<WeightStore>,
        key: String,
    },
    /// Several, one below the other.
    Joined {
        store: Arc<WeightStore>,
        keys: Vec<String>,
    },
    Made(Stored),
}

/// What a changed weight is stored in: formats that can be written stay, as they do in memory.
fn changed(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => dtype,
        _ => Dtype::F32,
    }
}

/// What a format is written as. Files of this kind have no blocks of quantised values.
fn writable(dtype: Dtype) -> Dtype {
    if dtype.is_block() { Dtype::F16 } else { dtype }
}

/// One network's weights with the changes that nodes made.
struct DraftSource<'a> {
    prefix: &'a str,
    base: &'a Arc<WeightStore>,
    patched: Arc<WeightStore>,
    patches: &'a PatchSet,
}

impl DraftSource<'_> {
    fn entry(&self, name: String, key: &str) -> Result<Entry, NodeError> {
        let (Some(shape), Some(dtype)) = (self.base.shape(key), self.base.dtype(key)) else {
            return Err(NodeError::runtime(format!(
                "{}: {key} is gone",
                self.base.file()
            )));
        };
        let patches = self.patches.get(&format!("{}{key}", self.prefix));
        let dtype = if patches.is_empty() {
            dtype
        } else {
            changed(dtype)
        };
        let shape = patches.iter().fold(shape.to_vec(), |shape, patch| {
            patch.changed_shape(&shape).unwrap_or(shape)
        });
        Ok(Entry {
            name,
            dtype: writable(dtype),
            shape,
        })
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Draft(BTreeMap<String, (Entry, DraftValue)>);

impl Draft {
    fn insert(&mut self, entry: Entry, part: DraftValue) {
        self.0.insert(entry.name.clone(), (entry, part));
    }

    /// A value that is at hand.
    pub(crate) fn add_made(&mut self, name: &str, value: Stored) {
        let entry = Entry {
            name: name.to_owned(),
            dtype: value.dtype(),
            shape: value.shape().to_vec(),
        };
        self.insert(entry, DraftValue::Made(value));
    }

    /// All weights of a value. `name` gets what stands before a key in patches and the key, and says what it is called
    /// in the file; nothing leaves it out.
    pub(crate) fn add<T: Weights>(
        &mut self,
        value: &T,
        name: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<(), NodeError> {
        self.add_part(value, "", name)
    }

    /// The weights whose keys start with a prefix.
    pub(crate) fn add_part<T: Weights>(
        &mut self,
        value: &T,
        part: &str,
        name: impl Fn(&str, &str) -> Option<String>,
    ) -> Result<(), NodeError> {
        each(value, part, |source| {
            for key in source.base.keys() {
                if let Some(name) = name(source.prefix, key) {
                    let entry = source.entry(name, key)?;
                    let part = DraftValue::Whole {
                        store: Arc::clone(&source.patched),
                        key: key.to_owned(),
                    };
                    self.insert(entry, part);
                }
            }
            Ok(())
        })
    }

    /// The weights of a CLIP text encoder in the layout of OpenCLIP, which checkpoints of some families have.
    pub(crate) fn add_open_clip<T: Weights>(
        &mut self,
        value: &T,
        part: &str,
        place: &str,
    ) -> Result<(), NodeError> {
        each(value, part, |source| {
            for key in source.base.keys() {
                let store = Arc::clone(&source.patched);
                if key == "text_projection.weight" {
                    let mut entry = source.entry(format!("{place}text_projection"), key)?;
                    entry.shape.reverse();
                    let key = key.to_owned();
                    self.insert(entry, DraftValue::Turned { store, key });
                } else if let Some((layer, kind)) = key.split_once(".self_attn.q_proj.") {
                    let Some(number) = layer.strip_prefix("text_model.encoder.layers.") else {
                        continue;
                    };
                    let name = format!("{place}transformer.resblocks.{number}.attn.in_proj_{kind}");
                    let mut entry = source.entry(name, key)?;
                    if let Some(rows) = entry.shape.first_mut() {
                        *rows *= 3;
                    }
                    let keys = ["q_proj", "k_proj", "v_proj"]
                        .map(|p| format!("{layer}.self_attn.{p}.{kind}"));
                    let keys = keys.into();
                    self.insert(entry, DraftValue::Joined { store, keys });
                } else if let Some(name) = open_clip_name(key) {
                    let entry = source.entry(format!("{place}{name}"), key)?;
                    let key = key.to_owned();
                    self.insert(entry, DraftValue::Whole { store, key });
                }
            }
            Ok(())
        })
    }

    fn value(part: &DraftValue, entry: &Entry) -> Result<Stored, NodeError> {
        let value = match part {
            DraftValue::Made(value) => value.clone(),
            DraftValue::Whole { store, key } => store.raw(key)?,
            DraftValue::Turned { store, key } => {
                let turned = store.tensor(key)?.transpose(0, 1)?;
                Stored::from_f32(&turned, entry.dtype)?
            }
            DraftValue::Joined { store, keys } => {
                let mut bytes = Vec::new();
                for key in keys {
                    let value = in_format(store.raw(key)?, entry.dtype)?;
                    bytes.extend_from_slice(value.bytes());
                }
                Stored::new(entry.dtype, entry.shape.clone(), bytes)?
            }
        };
        in_format(value, entry.dtype)
    }

    /// Writes the file. It gets its name when it is whole.
    pub(crate) fn save(
        self,
        batch: &mut Batch,
        metadata: &[(String, String)],
        cx: &Cx,
    ) -> Result<Saved, NodeError> {
        // What goes wrong while a value is made is reported as it is, and not as a failure to write.
        let mut cause = None;
        let entries = self.0.values().map(|(entry, _)| entry.clone()).collect();
        let total = self.0.len();
        let mut done = 0;
        let saved = batch.save_with("safetensors", |file| {
            let mut out = io::BufWriter::with_capacity(1 << 16, file);
            safetensors::write_streamed_to(&mut out, entries, metadata, |entry| {
                done += 1;
                let made = cx.progress(done as f64, total as f64, None).and_then(|()| {
                    match self.0.get(&entry.name) {
                        Some((_, part)) => Self::value(part, entry),
                        None => Err(NodeError::runtime(format!("{} is gone", entry.name))),
                    }
                });
                made.map_err(|error| {
                    let text = error.message().to_owned();
                    cause = Some(error);
                    io::Error::other(text)
                })
            })?;
            io::Write::flush(&mut out)
        });
        saved.map_err(|error| cause.unwrap_or_else(|| save_error(error)))
    }
}

/// Calls for every network of a value whose prefix begins so.
fn each<T: Weights>(
    value: &T,
    part: &str,
    mut body: impl FnMut(&DraftSource<'_>) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    let none = Arc::new(PatchSet::default());
    let patches = value.weight_patches().unwrap_or(&none);
    for (prefix, base) in value.stores()? {
        if prefix.starts_with(part) {
            body(&DraftSource {
                prefix: &prefix,
                base: &base,
                patched: base.patched(patches.scoped(&prefix)),
                patches,
            })?;
        }
    }
    Ok(())
}

fn in_format(value: Stored, dtype: Dtype) -> Result<Stored, NodeError> {
    if value.dtype() == dtype {
        return Ok(value);
    }
    Ok(Stored::from_f32(&value.to_f32()?, dtype)?)
}

/// OpenCLIP's name of a weight that both layouts have alike; none for the three that are one there.
fn open_clip_name(key: &str) -> Option<String> {
    const WHOLE: [(&str, &str); 4] = [
        (
            "text_model.embeddings.position_embedding.weight",
            "positional_embedding",
        ),
        (
            "text_model.embeddings.token_embedding.weight",
            "token_embedding.weight",
        ),
        ("text_model.final_layer_norm.weight", "ln_final.weight"),
        ("text_model.final_layer_norm.bias", "ln_final.bias"),
    ];
    const IN_BLOCK: [(&str, &str); 5] = [
        ("layer_norm1.", "ln_1."),
        ("layer_norm2.", "ln_2."),
        ("mlp.fc1.", "mlp.c_fc."),
        ("mlp.fc2.", "mlp.c_proj."),
        ("self_attn.out_proj.", "attn.out_proj."),
    ];
    if let Some((_, name)) = WHOLE.iter().find(|(own, _)| *own == key) {
        return Some((*name).to_owned());
    }
    let (number, rest) = key
        .strip_prefix("text_model.encoder.layers.")?
        .split_once('.')?;
    IN_BLOCK.iter().find_map(|(own, theirs)| {
        let part = rest.strip_prefix(own)?;
        Some(format!("transformer.resblocks.{number}.{theirs}{part}"))
    })
}
