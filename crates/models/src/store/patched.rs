//! What a store changes of the weights of another.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::nn::{Growth, LowRank, MakeWeight};
use fresco_tensor::{Dtype, Stored, Tensor, TensorError};

use super::{WeightStore, units};
use crate::error::{ModelError, Result};
use crate::rounding::rounded;

/// Changes to weights: LoRA and its relatives, merges.
pub trait WeightPatches: Send + Sync {
    /// The keys that change, weights and biases, as the store knows them.
    fn keys(&self) -> Vec<String>;

    /// The changed value of one of them.
    fn apply(&self, key: &str, weight: Tensor) -> Result<Tensor>;

    /// The shape that one of them has afterwards.
    fn shape(&self, _key: &str, shape: &[usize]) -> Vec<usize> {
        shape.to_vec()
    }

    /// How the weight of a linear layer or a convolution gets its changes.
    fn way(&self, _key: &str, _shape: &[usize]) -> Way {
        Way::default()
    }

    /// The changed value without what stands beside the layer.
    fn apply_kept(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        self.apply(key, weight)
    }

    /// The same for a weight that is made at every use.
    fn make(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        self.apply_kept(key, weight)
    }

    /// What the weight of a linear layer grows by, where that is all that becomes of it: then a GPU can change it itself.
    fn growths(&self, _key: &str, _shape: &[usize]) -> Option<Vec<Growth>> {
        None
    }

    /// The format for changed weights of a format, where it is not their own.
    fn stored_as(&self, _dtype: Dtype) -> Option<Dtype> {
        None
    }
}

/// What is kept of a changed weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// All of it, in a layer of its own.
    #[default]
    Merged,
    /// Nothing, it is made at every use.
    Made,
    /// The same with the result of a merge, for want of memory.
    MadeRounded,
    /// The weight itself does not change.
    Nothing,
}

/// How a weight gets its changes.
#[derive(Clone, Debug, Default)]
pub struct Way {
    pub keep: Keep,
    /// What the layer adds beside its weight.
    pub beside: Vec<SideMatrices>,
}

/// The matrices of a LoRA beside a layer.
#[derive(Clone, Debug)]
pub struct SideMatrices {
    pub up: Stored,
    pub down: Stored,
    pub mid: Option<Stored>,
    pub scale: f64,
}

impl SideMatrices {
    pub(super) fn matrices(&self) -> LowRank<'_> {
        LowRank {
            down: &self.down,
            mid: self.mid.as_ref(),
            up: &self.up,
            scale: self.scale,
        }
    }
}

/// See the [module](self).
pub(super) struct Patched {
    pub(super) base: Arc<WeightStore>,
    patches: Arc<dyn WeightPatches>,
    /// Of the keys that both have.
    ways: BTreeMap<String, Way>,
}

/// The shape and format of a weight, and what makes it.
type Made = (Vec<usize>, Dtype, MakeWeight);

/// Formats that cannot be written (integers, some quantised ones) become f32. Blocks of GGUF files do too: their patches are
/// applied at every use.
fn writable(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => dtype,
        Dtype::Rows(_) if dtype.is_writable() => dtype,
        _ => Dtype::F32,
    }
}

/// The format for a changed weight of another shape.
fn reshaped(dtype: Dtype, columns: usize) -> Dtype {
    match dtype {
        Dtype::Rows(format) if format.columns() != columns => Dtype::F32,
        dtype => dtype,
    }
}

/// A value in f32, of a weight with what its layer's inputs are multiplied with.
fn whole(store: &WeightStore, key: &str) -> Result<Tensor> {
    let plain = store.tensor(key)?;
    let (unit, part) = units::unit_of(key);
    let scale = match part {
        "weight" => store.input_scale(unit)?,
        _ => None,
    };
    let Some(scale) = scale else {
        return Ok(plain);
    };
    let scaled = scale.to_f32().and_then(|scale| plain.mul(&scale));
    scaled.map_err(|e| store.unusable(key, e))
}

fn weight_of(unit: &str) -> String {
    format!("{unit}.weight")
}

impl Patched {
    pub(super) fn new(
        base: &Arc<WeightStore>,
        patches: Arc<dyn WeightPatches>,
        tight: bool,
    ) -> Self {
        let ways = patches.keys().into_iter().filter_map(|key| {
            let (shape, dtype) = (base.shape(&key)?, base.dtype(&key)?);
            let (unit, part) = units::unit_of(&key);
            let rank = shape.len();
            if part != "weight" || rank < 2 || units::is_embedding(unit, rank) {
                return Some((key, Way::default()));
            }
            let mut way = patches.way(&key, shape);
            if way.keep == Keep::Merged {
                // What cannot be written would take several times its memory as f32.
                let lost = dtype.is_block() && writable(dtype) == Dtype::F32;
                if lost && patches.stored_as(dtype).is_none() {
                    way.keep = Keep::Made;
                } else if tight {
                    way.keep = Keep::MadeRounded;
                }
            }
            Some((key, way))
        });
        Self {
            base: Arc::clone(base),
            ways: ways.collect(),
            patches,
        }
    }

    fn way(&self, unit: &str) -> Option<&Way> {
        self.ways.get(&weight_of(unit))
    }

    /// What stands beside a layer.
    pub(super) fn beside(&self, unit: &str) -> &[SideMatrices] {
        self.way(unit).map_or(&[], |way| &way.beside)
    }

    /// Whether a part of a key's changes is not in the weight of the layer.
    pub(super) fn is_beside(&self, key: &str) -> bool {
        self.ways.get(key).is_some_and(|way| !way.beside.is_empty())
    }

    /// Whether layers of the unit are other than those below.
    pub(super) fn changes(&self, unit: &str) -> bool {
        let bias = || self.ways.contains_key(&format!("{unit}.bias"));
        match self.way(unit) {
            // The bias is then that of the layer around.
            Some(way) if way.keep == Keep::Nothing => way.beside.is_empty() && bias(),
            Some(_) => true,
            None => bias() || self.ways.contains_key(unit),
        }
    }

    /// Whether the weight of a layer of the unit is another than the one below.
    pub(super) fn changes_weight(&self, unit: &str) -> bool {
        self.way(unit).is_some_and(|way| way.keep != Keep::Nothing)
    }

    /// Whether the unit takes memory of its own.
    pub(super) fn owns(&self, unit: &str) -> bool {
        let made = self
            .way(unit)
            .is_some_and(|way| matches!(way.keep, Keep::Made | Keep::MadeRounded));
        !made && self.changes(unit)
    }

    fn count(&self, is: impl Fn(&Way) -> bool) -> usize {
        self.ways.values().filter(|way| is(way)).count()
    }

    pub(super) fn made_units(&self) -> usize {
        self.count(|way| matches!(way.keep, Keep::Made | Keep::MadeRounded))
    }

    pub(super) fn beside_units(&self) -> usize {
        self.count(|way| !way.beside.is_empty())
    }

    /// The shape of a key that changes.
    pub(super) fn shape(&self, key: &str, shape: &[usize]) -> Option<Vec<usize>> {
        let changed = self.ways.contains_key(key);
        changed.then(|| self.patches.shape(key, shape))
    }

    /// The format of a key in a layer of its own.
    pub(super) fn dtype(&self, key: &str) -> Option<Dtype> {
        let own = self.base.dtype(key)?;
        let wanted = self.patches.stored_as(own);
        Some(if self.ways.contains_key(key) {
            let shape = self.patches.shape(key, self.base.shape(key)?);
            let columns = shape.iter().skip(1).product();
            wanted.unwrap_or_else(|| reshaped(writable(own), columns))
        } else {
            // Of a layer in eight bits everything is.
            wanted.filter(|w| *w == Dtype::F8E4M3).unwrap_or(own)
        })
    }

    fn changed(
        &self,
        key: &str,
        apply: impl FnOnce(Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Dtype)> {
        let plain = whole(&self.base, key)?;
        let dtype = self.dtype(key).unwrap_or(Dtype::F32);
        Ok((apply(plain)?, dtype))
    }

    /// A value with all its changes.
    pub(super) fn value(&self, key: &str) -> Result<Stored> {
        if !self.ways.contains_key(key) {
            return self.base.raw(key);
        }
        let (changed, dtype) = self.changed(key, |plain| self.patches.apply(key, plain))?;
        rounded(&changed, dtype, key).map_err(|e| self.base.unusable(key, e))
    }

    /// What the weight of a linear layer grows by, where that is all and the layer keeps it.
    pub(super) fn growths(&self, unit: &str) -> Option<Vec<Growth>> {
        if self.way(unit)?.keep != Keep::Merged {
            return None;
        }
        let key = weight_of(unit);
        let shape = self.base.shape(&key)?;
        let growths = self.patches.growths(&key, shape)?;
        // Another shape, or inputs that are scaled first, are for main memory.
        let same = self.patches.shape(&key, shape) == shape;
        let plain = !self.base.has(&format!("{unit}{}", super::INPUT_SCALE));
        (same && plain).then_some(growths)
    }

    /// A value as a layer of its own keeps it.
    pub(super) fn kept(&self, key: &str) -> Result<Stored> {
        if !self.ways.contains_key(key) && self.dtype(key) == self.base.dtype(key) {
            return self.base.raw(key);
        }
        let (changed, dtype) = self.changed(key, |plain| {
            if self.ways.contains_key(key) {
                self.patches.apply_kept(key, plain)
            } else {
                Ok(plain)
            }
        })?;
        rounded(&changed, dtype, key).map_err(|e| self.base.unusable(key, e))
    }

    /// What makes the weight of a layer at every use, if that is how it is to be.
    pub(super) fn made(&self, unit: &str) -> Option<(&Arc<WeightStore>, Made)> {
        let rounds = match self.way(unit)?.keep {
            Keep::Made => false,
            Keep::MadeRounded => true,
            Keep::Merged | Keep::Nothing => return None,
        };
        let key = weight_of(unit);
        let shape = self.shape(&key, self.base.shape(&key)?)?;
        let dtype = if rounds {
            self.dtype(&key)?
        } else {
            Dtype::F32
        };
        let (from, patches) = (Arc::clone(&self.base), Arc::clone(&self.patches));
        let make = move || -> Result<Stored> {
            let plain = whole(&from, &key)?;
            let changed = if rounds {
                patches.apply_kept(&key, plain)?
            } else {
                patches.make(&key, plain)?
            };
            rounded(&changed, dtype, &key).map_err(|e| from.unusable(&key, e))
        };
        let make: MakeWeight = Arc::new(move || {
            make().map_err(|error| match error {
                ModelError::Tensor(error) => error,
                other => TensorError::Invalid {
                    op: "patched weight",
                    reason: other.to_string(),
                },
            })
        });
        Some((&self.base, (shape, dtype, make)))
    }
}
