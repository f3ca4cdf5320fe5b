//! Changes of weights that packs make: tensors in the reference's forms, and LoRA files wherever they are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use fresco_graph::{Args, Cx, NodeError, Value, wrong_kind};
use fresco_models::lora::{Adapter, Factor, Kind, NameMap};
use fresco_models::patch::{Change, OtherWeight, Patch, Slice};
use fresco_tensor::{Dtype, Stored};

use super::{model_failure, stores_of};
use crate::clip::Clip;
use crate::lora::{Application, Weights, apply_lora, open_lora_at, with_patches};
use crate::sampling::Model;
use crate::types::{as_tensor, tensor};

/// Names and shapes of all weights.
pub(super) fn keys(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let mut out: Vec<Value> = Vec::new();
    for (prefix, store) in stores_of(args.take("value")?)? {
        for key in store.keys() {
            let shape: Vec<Value> = store
                .shape(key)
                .unwrap_or_default()
                .iter()
                .map(|side| (*side).into())
                .collect();
            out.push(vec![Value::from(format!("{prefix}{key}")), shape.into()].into());
        }
    }
    Ok(out.into())
}

/// One weight as it was loaded.
pub(super) fn get(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let stores = stores_of(args.take("value")?)?;
    let wanted: String = args.take("key")?;
    for (prefix, store) in stores {
        let Some(key) = wanted.strip_prefix(prefix.as_str()) else {
            continue;
        };
        if store.shape(key).is_some() {
            return Ok(tensor(store.tensor(key).map_err(model_failure)?));
        }
    }
    Err(NodeError::failed("KeyError", format!("'{wanted}'")))
}

/// The names that LoRA files have for the weights: `[name, key, dimension, start, length]`.
pub(super) fn names(mut args: Args, _: &Cx) -> Result<Value, NodeError> {
    let value: Value = args.take("value")?;
    let names = match (value.downcast::<Model>(), value.downcast::<Clip>()) {
        (Some(model), _) => model.lora_names()?,
        (_, Some(clip)) => clip.lora_names()?,
        _ => NameMap::default(),
    };
    let rows: Vec<Value> = names
        .iter()
        .map(|(name, target)| {
            let mut row = vec![Value::from(name), Value::from(target.key.as_str())];
            if let Some(Slice { dim, start, len }) = target.slice {
                row.extend([dim.into(), start.into(), len.into()]);
            }
            row.into()
        })
        .collect();
    Ok(rows.into())
}

/// Model and text encoder with the LoRA of a file.
pub(super) fn file(mut args: Args, cx: &Cx) -> Result<Value, NodeError> {
    let model: Option<Model> = args.take("model")?;
    let clip: Option<Clip> = args.take("clip")?;
    let path = PathBuf::from(args.take::<String>("path")?);
    let strengths = (args.take("strength_model")?, args.take("strength_clip")?);
    let lora = open_lora_at(cx, &path)?;
    let how = Application::usual(cx);
    let name = path.display().to_string();
    let (model, clip) = apply_lora((model, clip), (&lora, &name), strengths, how, cx)?;
    let both: Vec<Value> = vec![
        model.map_or(Value::Null, Value::from),
        clip.map_or(Value::Null, Value::from),
    ];
    Ok(both.into())
}

/// A value with changes in the reference's forms: `[key, slice or null, kind, parts, strength, strength of the weight]`.
pub(super) fn add<T: Weights>(value: T, given: Vec<Value>, cx: &Cx) -> Result<T, NodeError> {
    if given.is_empty() {
        return Ok(value);
    }
    let patches: Result<Vec<(String, Patch)>, NodeError> = given.iter().map(read).collect();
    with_patches(value, patches?, "a change by a Python pack", cx)
}

fn read(row: &Value) -> Result<(String, Patch), NodeError> {
    let wrong = || NodeError::type_error(wrong_kind("a change of a weight", row));
    let [
        Value::Str(key),
        slice,
        Value::Str(kind),
        parts,
        strength,
        strength_model,
    ] = row.as_list().ok_or_else(wrong)?
    else {
        return Err(wrong());
    };
    let parts = parts.as_list().ok_or_else(wrong)?;
    let slice = match slice.as_list() {
        Some([dim, start, len]) => {
            let whole = |v: &Value| v.as_int().and_then(|n| usize::try_from(n).ok());
            Some(Slice {
                dim: whole(dim).ok_or_else(wrong)?,
                start: whole(start).ok_or_else(wrong)?,
                len: whole(len).ok_or_else(wrong)?,
            })
        }
        _ => None,
    };
    let mut reader = Reader {
        key,
        parts,
        hash: DefaultHasher::new(),
    };
    kind.hash(&mut reader.hash);
    let change = reader.change(kind)?;
    let patch = Patch {
        strength: strength.as_f64().ok_or_else(wrong)?,
        strength_model: strength_model.as_f64().ok_or_else(wrong)?,
        slice,
        change,
        source: reader.hash.finish(),
        ..Patch::scaled(1.0)
    };
    Ok((key.to_string(), patch))
}

/// The weight of this key, as a change of another model.
fn other_weight<T: Weights>(value: &T, wanted: &str) -> Result<Option<OtherWeight>, NodeError> {
    let patches = value.weight_patches();
    for (prefix, store) in value.stores()? {
        let Some(key) = wanted.strip_prefix(prefix.as_str()) else {
            continue;
        };
        if store.shape(key).is_some() {
            return Ok(Some(OtherWeight {
                key: key.to_owned(),
                patches: patches.map_or(Vec::new(), |set| set.get(wanted).to_vec()),
                store,
            }));
        }
    }
    Ok(None)
}

/// The parts of one change.
struct Reader<'a> {
    key: &'a str,
    parts: &'a [Value],
    hash: DefaultHasher,
}

impl Reader<'_> {
    fn optional(&mut self, at: usize) -> Result<Option<Stored>, NodeError> {
        let Some(value) = self.parts.get(at).filter(|v| !v.is_null()) else {
            return Ok(None);
        };
        let tensor = as_tensor(value).ok_or_else(|| {
            NodeError::type_error(format!("{}: {}", self.key, wrong_kind("a tensor", value)))
        })?;
        let stored = Stored::from_f32(tensor, Dtype::F32)?;
        // Equal numbers are one change, whoever made them.
        (at, stored.shape(), stored.bytes()).hash(&mut self.hash);
        Ok(Some(stored))
    }

    fn tensor(&mut self, at: usize) -> Result<Stored, NodeError> {
        let missing = format!("{}: part {at} of its change is missing", self.key);
        self.optional(at)?
            .ok_or_else(|| NodeError::value_error(missing))
    }

    /// A weight of another model, with that model's own patches: the model, and the key there.
    fn weight(&mut self) -> Result<Change, NodeError> {
        let wrong =
            || NodeError::type_error(format!("{}: of which model is its change?", self.key));
        let model = self.parts.first().ok_or_else(wrong)?;
        let key = self
            .parts
            .get(1)
            .and_then(Value::as_str)
            .ok_or_else(wrong)?;
        let other = match (model.downcast::<Model>(), model.downcast::<Clip>()) {
            (Some(model), _) => other_weight(model, key)?,
            (_, Some(clip)) => other_weight(clip, key)?,
            _ => None,
        };
        let other = other.ok_or_else(|| NodeError::failed("KeyError", format!("'{key}'")))?;
        (other.store.file(), &other.key, other.patches.len()).hash(&mut self.hash);
        Ok(Change::Weight(Arc::new(other)))
    }

    fn alpha(&mut self, at: usize) -> Option<f64> {
        let alpha = self.parts.get(at).and_then(Value::as_f64);
        alpha.map(f64::to_bits).hash(&mut self.hash);
        alpha
    }

    fn factor(&mut self, whole: usize, a: usize, core: Option<usize>) -> Result<Factor, NodeError> {
        if let Some(matrix) = self.optional(whole)? {
            return Ok(Factor::Whole(matrix));
        }
        Ok(Factor::Product {
            a: self.tensor(a)?,
            b: self.tensor(a + 1)?,
            core: match core {
                Some(at) => self.optional(at)?,
                None => None,
            },
        })
    }

    fn change(&mut self, kind: &str) -> Result<Change, NodeError> {
        let (kind, alpha, dora) = match kind {
            "diff" => {
                return Ok(Change::Diff {
                    value: self.tensor(0)?,
                    pad: self.parts.get(1).is_some_and(Value::truthy),
                });
            }
            "set" => return Ok(Change::Set(self.tensor(0)?)),
            "weight" => return self.weight(),
            "lora" => {
                let reshape = self.parts.get(5).and_then(Value::as_list).map(|sides| {
                    sides
                        .iter()
                        .filter_map(|s| usize::try_from(s.as_int()?).ok())
                        .collect()
                });
                let kind = Kind::Lora {
                    up: self.tensor(0)?,
                    down: self.tensor(1)?,
                    mid: self.optional(3)?,
                    reshape,
                };
                (kind, 2, 4)
            }
            "loha" => {
                let cores = match (self.optional(5)?, self.optional(6)?) {
                    (Some(first), Some(second)) => Some((first, second)),
                    _ => None,
                };
                let kind = Kind::Loha {
                    w1_a: self.tensor(0)?,
                    w1_b: self.tensor(1)?,
                    w2_a: self.tensor(3)?,
                    w2_b: self.tensor(4)?,
                    cores,
                };
                (kind, 2, 7)
            }
            "lokr" => {
                let kind = Kind::Lokr {
                    w1: self.factor(0, 3, None)?,
                    w2: self.factor(1, 5, Some(7))?,
                };
                (kind, 2, 8)
            }
            "glora" => {
                let kind = Kind::Glora {
                    a1: self.tensor(0)?,
                    a2: self.tensor(1)?,
                    b1: self.tensor(2)?,
                    b2: self.tensor(3)?,
                };
                (kind, 4, 5)
            }
            other => {
                return Err(NodeError::value_error(format!(
                    "{}: changes of the kind {other:?} are not known",
                    self.key
                )));
            }
        };
        let adapter = Adapter {
            kind,
            alpha: self.alpha(alpha),
            dora_scale: self.optional(dora)?,
        };
        Ok(Change::Adapter(Arc::new(adapter)))
    }
}
