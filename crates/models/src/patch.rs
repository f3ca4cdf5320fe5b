//! Changes to the weights of a model: an ordered list per key, made by LoRA and merging nodes from loader to consumer.
//!
//! Keys are the reference's (`diffusion_model.input_blocks.0.0.weight`, `clip_l.transformer...`); a network's store knows
//! them without the prefix, so [`PatchSet::store`] takes it.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::nn::Growth;
use fresco_tensor::{Dtype, Stored, Tensor, claim_memory};

use crate::error::Result;
use crate::lora::{Adapter, How, Kind, padded, reordered};
use crate::store::{Keep, LooseStore, SideMatrices, Way, WeightPatches, WeightStore};

mod options;

pub use options::{LoraStorage, MergeDtype, OftStrength, PatchMode, PatchOptions};

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
    pub store: Arc<WeightStore>,
    /// As that store knows it.
    pub key: String,
    pub patches: Vec<Patch>,
}

impl OtherWeight {
    fn value(&self) -> Result<Tensor> {
        let own = self.store.tensor(&self.key)?;
        chain(&self.patches, own, MergeDtype::Fp32)
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
    pub mode: PatchMode,
    pub oft: OftStrength,
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
            mode: PatchMode::default(),
            oft: OftStrength::default(),
        }
    }

    fn hash(&self, into: &mut impl Hasher) {
        self.source.hash(into);
        self.strength.to_bits().hash(into);
        self.strength_model.to_bits().hash(into);
        (self.slice, self.reorder, self.mode, self.oft).hash(into);
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
    fn apply(&self, weight: Tensor, original: &Tensor, merge: MergeDtype) -> Result<Tensor> {
        let fits = self.changed_shape(weight.shape()).is_ok();
        let Some(slice) = self.slice else {
            return self.apply_part(weight, original, fits, merge);
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
        let part = self.apply_part(part, &base, fits, merge)?;
        let mut whole = weight;
        let mut start = vec![0; whole.rank()];
        start[slice.dim] = slice.start;
        whole.paste(&start, &part)?;
        Ok(whole)
    }

    fn apply_part(
        &self,
        mut weight: Tensor,
        original: &Tensor,
        fits: bool,
        merge: MergeDtype,
    ) -> Result<Tensor> {
        if self.strength_model != 1.0 {
            let by = self.strength_model as f32;
            weight.map_inplace(|v| v * by);
            weight = merge.rounded(weight)?;
        }
        if !fits {
            return Ok(weight);
        }
        let add = |weight: Tensor, value: Tensor| -> Result<Tensor> {
            let change = merge.rounded(value.mul_scalar(self.strength as f32))?;
            let sum = weight.add(&reordered(&change, self.reorder)?)?;
            Ok(merge.rounded(sum)?)
        };
        match &self.change {
            Change::Adapter(adapter) => {
                let how = How {
                    strength: self.strength,
                    reorder: self.reorder,
                    oft: self.oft,
                    merge,
                };
                Ok(adapter.apply(weight, &how)?)
            }
            Change::Set(value) => Ok(merge.rounded(value.to_f32()?)?),
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

impl Patch {
    /// Whether what it does depends on the weight as it is when its turn comes.
    fn needs_weight(&self) -> bool {
        let by_itself = match &self.change {
            Change::Adapter(adapter) => {
                adapter.dora_scale.is_none()
                    && match &adapter.kind {
                        Kind::Lora { reshape, .. } => reshape.is_none(),
                        Kind::Loha { .. } | Kind::Lokr { .. } => true,
                        Kind::Glora { .. } | Kind::Oft { .. } | Kind::Boft { .. } => false,
                    }
            }
            Change::Diff { pad, .. } => !pad,
            Change::Set(_) => false,
            Change::Weight(_) | Change::Difference(_) | Change::Nothing => true,
        };
        !by_itself || self.strength_model != 1.0
    }

    /// The matrices whose product a matrix of this shape grows by, where that is all.
    fn growth(&self, shape: &[usize]) -> Option<Growth> {
        let Change::Adapter(adapter) = &self.change else {
            return None;
        };
        let Kind::Lora {
            up,
            down,
            mid: None,
            ..
        } = &adapter.kind
        else {
            return None;
        };
        let first = match self.slice {
            None => 0,
            Some(Slice { dim: 0, start, .. }) => start,
            Some(_) => return None,
        };
        let plain = shape.len() == 2
            && self.reorder.is_none()
            && adapter.dora_scale.is_none()
            && self.strength_model == 1.0
            && self
                .changed_shape(shape)
                .is_ok_and(|changed| changed == shape);
        if !plain {
            return None;
        }
        let rank = *down.shape().first()?;
        let over_rank = adapter.alpha.map_or(1.0, |alpha| alpha / rank as f64);
        Some(Growth {
            up: up.clone(),
            down: down.clone(),
            scale: (self.strength * over_rank) as f32,
            first,
        })
    }

    /// The matrices that can stand beside a layer whose weight has this shape, where that is the same.
    fn beside(&self, shape: &[usize]) -> Option<SideMatrices> {
        let Change::Adapter(adapter) = &self.change else {
            return None;
        };
        let Kind::Lora { up, down, mid, .. } = &adapter.kind else {
            return None;
        };
        let plain = self.mode == PatchMode::Bypass
            && self.slice.is_none()
            && self.reorder.is_none()
            && !self.needs_weight()
            && self.changed_shape(shape).is_ok();
        if !plain {
            return None;
        }
        let rank = *down.shape().first()?;
        let down = match (shape, mid) {
            ([_, _], None) => down.clone(),
            ([_, input, height, width], None) => {
                down.reshape([rank, *input, *height, *width]).ok()?
            }
            // The kernels of the convolution are those of the matrix between.
            ([_, _, height, width], Some(mid)) if mid.shape()[2..] == [*height, *width] => {
                down.clone()
            }
            _ => return None,
        };
        let over_rank = adapter.alpha.map_or(1.0, |alpha| alpha / rank as f64);
        Some(SideMatrices {
            up: up.clone(),
            down,
            mid: mid.clone(),
            scale: self.strength * over_rank,
        })
    }
}

/// All patches of a key, one after the other.
fn chain<'a>(
    patches: impl IntoIterator<Item = &'a Patch>,
    weight: Tensor,
    merge: MergeDtype,
) -> Result<Tensor> {
    let original = weight.clone();
    let weight = merge.rounded(weight)?;
    patches.into_iter().try_fold(weight, |weight, patch| {
        patch.apply(weight, &original, merge)
    })
}

/// Which patches of a list change the weight, and what stands beside the layer in place of the others. Those that come
/// before one that needs the weight must be in it.
fn split<'a>(patches: &'a [Patch], shape: &[usize]) -> (Vec<&'a Patch>, Vec<SideMatrices>) {
    let last = patches.iter().rposition(Patch::needs_weight);
    let grows = patches.iter().any(|patch| {
        let changed = patch.changed_shape(shape);
        changed.is_ok_and(|changed| changed != shape)
    });
    let (mut kept, mut beside) = (Vec::new(), Vec::new());
    for (index, patch) in patches.iter().enumerate() {
        let after = last.is_none_or(|last| index > last);
        match patch.beside(shape).filter(|_| after && !grows) {
            Some(matrices) => beside.push(matrices),
            None => kept.push(patch),
        }
    }
    (kept, beside)
}

#[derive(Default)]
struct PatchLists {
    by_key: BTreeMap<String, Vec<Patch>>,
    identity: u64,
}

/// A store whose weights were changed by a set of patches.
struct BuiltStore<S> {
    base: usize,
    prefix: String,
    identity: u64,
    tight: bool,
    store: S,
}

/// Patched stores that are in use somewhere, so that equal sets share one.
static SHARED: Mutex<Vec<BuiltStore<LooseStore>>> = Mutex::new(Vec::new());

/// Patches by key, each list in the order of application. Sets are values: adding gives a new one.
#[derive(Default)]
pub struct PatchSet {
    lists: Arc<PatchLists>,
    options: PatchOptions,
    /// What was made from this set lives as long as the set.
    built: Mutex<Vec<BuiltStore<Arc<WeightStore>>>>,
}

impl PatchSet {
    fn of(by_key: BTreeMap<String, Vec<Patch>>, options: PatchOptions) -> Self {
        let mut hasher = DefaultHasher::new();
        for (key, patches) in &by_key {
            (key, patches.len()).hash(&mut hasher);
            for patch in patches {
                patch.hash(&mut hasher);
            }
        }
        Self {
            lists: Arc::new(PatchLists {
                by_key,
                identity: hasher.finish(),
            }),
            options,
            built: Mutex::default(),
        }
    }

    /// These patches after those that are there.
    #[must_use]
    pub fn with(&self, additions: impl IntoIterator<Item = (String, Patch)>) -> Self {
        let mut by_key = self.lists.by_key.clone();
        for (key, patch) in additions {
            by_key.entry(key).or_default().push(patch);
        }
        Self::of(by_key, self.options)
    }

    /// The same patches, all of them in one mode.
    #[must_use]
    pub fn with_mode(&self, mode: PatchMode) -> Self {
        let mut by_key = self.lists.by_key.clone();
        for patch in by_key.values_mut().flatten() {
            patch.mode = mode;
        }
        Self::of(by_key, self.options)
    }

    /// The same patches, merged and kept in another way.
    #[must_use]
    pub fn with_options(&self, options: PatchOptions) -> Self {
        Self {
            lists: Arc::clone(&self.lists),
            options,
            built: Mutex::default(),
        }
    }

    pub fn options(&self) -> PatchOptions {
        self.options
    }

    /// Of the patches' modes the one that is furthest from merging.
    pub fn mode(&self) -> PatchMode {
        let modes = self.lists.by_key.values().flatten().map(|patch| patch.mode);
        modes.max().unwrap_or_default()
    }

    /// Equal for sets that change weights in the same way, while both exist.
    pub fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.lists.identity, self.options).hash(&mut hasher);
        hasher.finish()
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
        chain(self.get(key), weight, self.options.merge)
    }

    /// The patches of the keys that start with a prefix, as a store without it knows them.
    pub fn scoped(&self, prefix: &str) -> Arc<dyn WeightPatches> {
        Arc::new(Scoped {
            lists: Arc::clone(&self.lists),
            options: self.options,
            prefix: prefix.to_owned(),
        })
    }

    /// Whether memory holds a second copy of the weights that are to be merged.
    fn has_room(&self, base: &WeightStore, prefix: &str) -> bool {
        let bytes = |key: &str| -> Option<usize> {
            let key = key.strip_prefix(prefix)?;
            let elements: usize = base.shape(key)?.iter().product();
            Some(elements * base.dtype(key)?.size().max(2))
        };
        let merged = self.lists.by_key.iter().filter(|(_, patches)| {
            let mut modes = patches.iter().map(|patch| patch.mode);
            modes.all(|mode| mode == PatchMode::Merged)
        });
        let total: usize = merged.filter_map(|(key, _)| bytes(key)).sum();
        claim_memory(total as u64).is_ok()
    }

    /// As [`PatchSet::store`], shared with nobody: for weights that are to be kept in another place than those of equal
    /// sets.
    pub fn own_store(&self, base: &Arc<WeightStore>, prefix: &str) -> Arc<WeightStore> {
        let tight = !self.has_room(base, prefix);
        base.patched_as(self.scoped(prefix), tight)
    }

    /// A network's weights with these patches: the same store for equal sets, for as long as one of the sets lives.
    pub fn store(&self, base: &Arc<WeightStore>, prefix: &str) -> Arc<WeightStore> {
        let tight = !self.has_room(base, prefix);
        let address = base.address();
        let identity = self.identity();
        let of = |base: usize, p: &str, i: u64, t: bool| {
            base == address && p == prefix && i == identity && t == tight
        };
        // Nothing is left half done under these locks.
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = built
            .iter()
            .find(|b| of(b.base, &b.prefix, b.identity, b.tight))
        {
            return found.store.on(base.device().clone());
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|b| b.store.is_alive());
        let found = shared
            .iter()
            .filter(|b| of(b.base, &b.prefix, b.identity, b.tight))
            .find_map(|b| b.store.on(base.device().clone()));
        let store = found.unwrap_or_else(|| {
            let store = base.patched_as(self.scoped(prefix), tight);
            shared.push(BuiltStore {
                base: address,
                prefix: prefix.to_owned(),
                identity,
                tight,
                store: store.loose(),
            });
            store
        });
        built.push(BuiltStore {
            base: address,
            prefix: prefix.to_owned(),
            identity,
            tight,
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
    lists: Arc<PatchLists>,
    options: PatchOptions,
    prefix: String,
}

impl Scoped {
    fn get(&self, key: &str) -> &[Patch] {
        let list = self.lists.by_key.get(&format!("{}{key}", self.prefix));
        list.map_or(&[], Vec::as_slice)
    }
}

impl WeightPatches for Scoped {
    fn keys(&self) -> Vec<String> {
        let all = self.lists.by_key.keys();
        all.filter_map(|key| key.strip_prefix(&self.prefix).map(str::to_owned))
            .collect()
    }

    fn apply(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        chain(self.get(key), weight, self.options.merge)
    }

    fn shape(&self, key: &str, shape: &[usize]) -> Vec<usize> {
        // One that does not fit changes nothing.
        self.get(key).iter().fold(shape.to_vec(), |shape, patch| {
            patch.changed_shape(&shape).unwrap_or(shape)
        })
    }

    fn way(&self, key: &str, shape: &[usize]) -> Way {
        let (kept, beside) = split(self.get(key), shape);
        let keep = if kept.is_empty() {
            Keep::Nothing
        } else if kept.iter().all(|patch| patch.mode == PatchMode::Merged) {
            Keep::Merged
        } else {
            Keep::Made
        };
        Way { keep, beside }
    }

    fn apply_kept(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        let (kept, _) = split(self.get(key), weight.shape());
        chain(kept, weight, self.options.merge)
    }

    fn make(&self, key: &str, weight: Tensor) -> Result<Tensor> {
        // What is never stored is not rounded on the way either.
        let (kept, _) = split(self.get(key), weight.shape());
        chain(kept, weight, MergeDtype::Fp32)
    }

    fn growths(&self, key: &str, shape: &[usize]) -> Option<Vec<Growth>> {
        if self.options.merge == MergeDtype::Fp16 {
            // Rounded on the way, which the processor does.
            return None;
        }
        let (kept, _) = split(self.get(key), shape);
        let growths = kept.iter().map(|patch| patch.growth(shape));
        growths.collect()
    }

    fn stored_as(&self, dtype: Dtype) -> Option<Dtype> {
        self.options.storage.format(dtype)
    }
}
