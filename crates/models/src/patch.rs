//! Changes to the weights of a model: an ordered list per key, made by LoRA and merging nodes from loader to consumer.
//!
//! Keys are the reference's (`diffusion_model.input_blocks.0.0.weight`, `clip_l.transformer...`); a network's store knows
//! them without the prefix, so [`PatchSet::store`] takes it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::{Stored, Tensor, ensure_room};

use crate::error::Result;
use crate::lora::Adapter;
use crate::lora::{padded, reordered};
use crate::store::{LooseStore, Store, WeightPatches};

/// What in a weight a patch changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub key: String,
    pub slice: Option<Slice>,
    pub reorder: Option<Reorder>,
}

impl Target {
    /// All of a weight.
    pub fn whole(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            slice: None,
            reorder: None,
        }
    }

    /// The same part of the layer's bias.
    pub(crate) fn bias(&self) -> Option<Self> {
        let layer = self.key.strip_suffix(".weight")?;
        Some(Self {
            key: format!("{layer}.bias"),
            ..self.clone()
        })
    }
}

/// A part of a weight along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slice {
    pub dim: usize,
    pub start: usize,
    pub len: usize,
}

/// How the rows of a change are put in the order of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reorder {
    /// Scale and shift are the other way round.
    SwapHalves,
}

/// A weight of another model, with that model's own patches.
#[derive(Clone)]
pub struct OtherWeight {
    /// Without patches.
    pub store: Arc<Store>,
    /// As that store knows it.
    pub key: String,
    pub patches: Vec<Patch>,
}

impl OtherWeight {
    fn value(&self) -> Result<Tensor> {
        chain(&self.patches, self.store.tensor(&self.key)?)
    }

    fn shape(&self) -> Vec<usize> {
        let own = self.store.shape(&self.key).unwrap_or_default().to_vec();
        self.patches.iter().fold(own, |shape, patch| {
            patch.changed_shape(&shape).unwrap_or(shape)
        })
    }
}

/// The change itself.
#[derive(Clone)]
pub enum Change {
    Adapter(Arc<Adapter>),
    /// Is added.
    Diff {
        value: Stored,
        /// The weight may grow to the shape of the value.
        pad: bool,
    },
    /// Takes the place of the weight, whatever the strength.
    Set(Stored),
    /// Another model's weight is added.
    Weight(Arc<OtherWeight>),
    /// What another model's weight has more than this model's without patches is added.
    Difference(Arc<OtherWeight>),
    /// The weight is only multiplied by its own strength.
    Nothing,
}

/// One entry of a key's list.
#[derive(Clone)]
pub struct Patch {
    /// Multiplies the change.
    pub strength: f64,
    /// Multiplies the weight before the change.
    pub strength_model: f64,
    pub slice: Option<Slice>,
    pub reorder: Option<Reorder>,
    pub change: Change,
    /// Where the change comes from: equal for equal changes.
    pub source: u64,
}

impl Patch {
    /// Multiplies a weight.
    pub fn scaled(factor: f64) -> Self {
        Self {
            strength: 0.0,
            strength_model: factor,
            slice: None,
            reorder: None,
            change: Change::Nothing,
            source: 0,
        }
    }

    fn hash(&self, into: &mut impl Hasher) {
        self.source.hash(into);
        self.strength.to_bits().hash(into);
        self.strength_model.to_bits().hash(into);
        (self.slice, self.reorder).hash(into);
        if let Change::Weight(other) | Change::Difference(other) = &self.change {
            matches!(self.change, Change::Weight(_)).hash(into);
            other.store.address().hash(into);
            other.key.hash(into);
            for patch in &other.patches {
                patch.hash(into);
            }
        }
    }

    /// The shape that a weight has afterwards, or why it stays as it is.
    pub fn changed_shape(&self, weight: &[usize]) -> Result<Vec<usize>, String> {
        let mut part = weight.to_vec();
        if let Some(slice) = self.slice {
            let end = slice.start.checked_add(slice.len);
            match (part.get_mut(slice.dim), end) {
                (Some(size), Some(end)) if end <= *size => *size = slice.len,
                _ => {
                    return Err(format!(
                        "a weight of shape {weight:?} has no part {}..{} of dimension {}",
                        slice.start,
                        slice.start.saturating_add(slice.len),
                        slice.dim
                    ));
                }
            }
        }
        let wrong = |shape: &[usize]| {
            Err(format!(
                "a change of shape {shape:?} for a weight of shape {part:?}"
            ))
        };
        let changed = match &self.change {
            Change::Adapter(adapter) => adapter.changed_shape(&part)?,
            Change::Diff { value, pad } => {
                let shape = value.shape();
                let grows = *pad
                    && shape.len() == part.len()
                    && shape.iter().zip(&part).all(|(new, old)| new >= old);
                if shape != part && !grows {
                    return wrong(shape);
                }
                shape.to_vec()
            }
            Change::Set(value) => value.shape().to_vec(),
            Change::Nothing => part.clone(),
            Change::Weight(other) | Change::Difference(other) => {
                let shape = other.shape();
                if shape != part {
                    return wrong(&shape);
                }
                shape
            }
        };
        match self.slice {
            None => Ok(changed),
            Some(_) if changed == part => Ok(weight.to_vec()),
            Some(_) => Err("a part of a weight cannot grow".to_owned()),
        }
    }

    /// A change that does not fit leaves the weight, multiplied by its own strength, as it is: so does the reference.
    fn apply(&self, weight: Tensor, original: &Tensor) -> Result<Tensor> {
        let fits = self.changed_shape(weight.shape()).is_ok();
        let Some(slice) = self.slice else {
            return self.apply_part(weight, original, fits);
        };
        if slice.dim >= weight.rank() || slice.start + slice.len > weight.shape()[slice.dim] {
            return Ok(weight);
        }
        let cut = |t: &Tensor| t.narrow(slice.dim, slice.start, slice.len);
        let part = cut(&weight)?;
        let base = if matches!(self.change, Change::Difference(_)) {
            cut(original)?
        } else {
            part.clone()
        };
        let part = self.apply_part(part, &base, fits)?;
        let mut whole = weight;
        let mut start = vec![0; whole.rank()];
        start[slice.dim] = slice.start;
        whole.paste(&start, &part)?;
        Ok(whole)
    }

    fn apply_part(&self, mut weight: Tensor, original: &Tensor, fits: bool) -> Result<Tensor> {
        if self.strength_model != 1.0 {
            let by = self.strength_model as f32;
            weight.map_inplace(|v| v * by);
        }
        if !fits {
            return Ok(weight);
        }
        let add = |weight: Tensor, value: Tensor| -> Result<Tensor> {
            let change = value.mul_scalar(self.strength as f32);
            Ok(weight.add(&reordered(&change, self.reorder)?)?)
        };
        match &self.change {
            Change::Adapter(adapter) => Ok(adapter.apply(weight, self.strength, self.reorder)?),
            Change::Set(value) => Ok(value.to_f32()?),
            Change::Nothing => Ok(weight),
            _ if self.strength == 0.0 => Ok(weight),
            Change::Diff { value, .. } => {
                let weight = padded(&weight, value.shape())?;
                add(weight, value.to_f32()?)
            }
            Change::Weight(other) => add(weight, other.value()?),
            Change::Difference(other) => add(weight, other.value()?.sub(original)?),
        }
    }
}

/// All patches of a key, one after the other.
fn chain(patches: &[Patch], weight: Tensor) -> Result<Tensor> {
    let original = weight.clone();
    patches
        .iter()
        .try_fold(weight, |weight, patch| patch.apply(weight, &original))
}

#[derive(Default)]
struct Lists {
    by_key: BTreeMap<String, Vec<Patch>>,
    identity: u64,
}

/// Where the changed weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PatchMode {
    /// In memory next to the model's own, made once.
    #[default]
    Merged,
    /// Nowhere: made again for every use.
    OnTheFly,
}

/// A store whose weights were changed by a set of patches.
struct Built<S> {
    base: usize,
    prefix: String,
    identity: u64,
    mode: PatchMode,
    store: S,
}

/// Patched stores that are in use somewhere, so that equal sets share one.
static SHARED: Mutex<Vec<Built<LooseStore>>> = Mutex::new(Vec::new());

/// Patches by key, each list in the order of application. Sets are values: adding gives a new one.
#[derive(Default)]
pub struct PatchSet {
    lists: Arc<Lists>,
    mode: PatchMode,
    /// What was made from this set lives as long as the set.
    built: Mutex<Vec<Built<Arc<Store>>>>,
}

impl PatchSet {
    /// These patches after those that are there.
    #[must_use]
    pub fn with(&self, additions: impl IntoIterator<Item = (String, Patch)>) -> Self {
        let mut by_key = self.lists.by_key.clone();
        for (key, patch) in additions {
            by_key.entry(key).or_default().push(patch);
        }
        let mut hasher = DefaultHasher::new();
        for (key, patches) in &by_key {
            (key, patches.len()).hash(&mut hasher);
            for patch in patches {
                patch.hash(&mut hasher);
            }
        }
        Self {
            lists: Arc::new(Lists {
                by_key,
                identity: hasher.finish(),
            }),
            mode: self.mode,
            built: Mutex::default(),
        }
    }

    /// The same patches, with the changed weights kept or made as needed.
    #[must_use]
    pub fn with_mode(&self, mode: PatchMode) -> Self {
        Self {
            lists: Arc::clone(&self.lists),
            mode,
            built: Mutex::default(),
        }
    }

    pub fn mode(&self) -> PatchMode {
        self.mode
    }

    /// Equal for sets that change weights in the same way, while both exist.
    pub fn identity(&self) -> u64 {
        self.lists.identity
    }

    pub fn is_empty(&self) -> bool {
        self.lists.by_key.is_empty()
    }

    /// The keys that change, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.lists.by_key.keys().map(String::as_str)
    }

    /// The list of one key.
    pub fn get(&self, key: &str) -> &[Patch] {
        self.lists.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// The changed value of a key.
    pub fn apply(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        chain(self.get(key), weight)
    }

    /// The patches of the keys that start with a prefix, as a store without it knows them.
    pub fn scoped(&self, prefix: &str) -> Arc<dyn WeightPatches> {
        Arc::new(Scoped {
            lists: Arc::clone(&self.lists),
            prefix: prefix.to_owned(),
        })
    }

    /// Whether memory holds a second copy of the weights that change.
    fn has_room(&self, base: &Store, prefix: &str) -> bool {
        let bytes = |key: &str| -> Option<usize> {
            let key = key.strip_prefix(prefix)?;
            let elements: usize = base.shape(key)?.iter().product();
            Some(elements * base.dtype(key)?.size().max(2))
        };
        let total: usize = self.keys().filter_map(bytes).sum();
        ensure_room(&[total / size_of::<f32>()]).is_ok()
    }

    /// The mode there is memory for.
    fn mode_for(&self, base: &Store, prefix: &str) -> PatchMode {
        if self.mode == PatchMode::Merged && !self.has_room(base, prefix) {
            PatchMode::OnTheFly
        } else {
            self.mode
        }
    }

    /// As [`PatchSet::store`], shared with nobody: for weights that are to be kept in another place than those of equal
    /// sets.
    pub fn own_store(&self, base: &Arc<Store>, prefix: &str) -> Arc<Store> {
        base.patched_as(self.scoped(prefix), self.mode_for(base, prefix))
    }

    /// A network's weights with these patches: the same store for equal sets, for as long as one of the sets lives.
    pub fn store(&self, base: &Arc<Store>, prefix: &str) -> Arc<Store> {
        let mode = self.mode_for(base, prefix);
        let address = base.address();
        let identity = self.identity();
        let of = |base: usize, p: &str, i: u64, m: PatchMode| {
            base == address && p == prefix && i == identity && m == mode
        };
        // Nothing is left half done under these locks.
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = built
            .iter()
            .find(|b| of(b.base, &b.prefix, b.identity, b.mode))
        {
            return found.store.on(base.device().clone());
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|b| b.store.is_alive());
        let found = shared
            .iter()
            .filter(|b| of(b.base, &b.prefix, b.identity, b.mode))
            .find_map(|b| b.store.on(base.device().clone()));
        let store = found.unwrap_or_else(|| {
            let store = base.patched_as(self.scoped(prefix), mode);
            shared.push(Built {
                base: address,
                prefix: prefix.to_owned(),
                identity,
                mode,
                store: store.loose(),
            });
            store
        });
        built.push(Built {
            base: address,
            prefix: prefix.to_owned(),
            identity,
            mode,
            store: Arc::clone(&store),
        });
        store
    }
}

impl fmt::Debug for PatchSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "patches of {} weights", self.lists.by_key.len())
    }
}

/// See [`PatchSet::scoped`]. Holds the lists and not the set, which may own the store that owns this.
struct Scoped {
    lists: Arc<Lists>,
    prefix: String,
}

impl WeightPatches for Scoped {
    fn keys(&self) -> Vec<String> {
        let all = self.lists.by_key.keys();
        all.filter_map(|key| key.strip_prefix(&self.prefix).map(str::to_owned))
            .collect()
    }

    fn apply(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        match self.lists.by_key.get(&format!("{}{key}", self.prefix)) {
            Some(patches) => chain(patches, weight),
            None => Ok(weight),
        }
    }

    fn shape(&self, key: &str, shape: &[usize]) -> Vec<usize> {
        let patches = self.lists.by_key.get(&format!("{}{key}", self.prefix));
        let patches = patches.map_or(&[][..], Vec::as_slice);
        // One that does not fit changes nothing.
        patches.iter().fold(shape.to_vec(), |shape, patch| {
            patch.changed_shape(&shape).unwrap_or(shape)
        })
    }
}
