//! The weights of one network by key, and the layers built from them.
//!
//! A layer is packed when it is first asked for and then shared, so building a network from a store that was used before
//! costs nothing, and a patched store holds only what its patches change.

mod layers;
mod origin;
mod patched;
mod placing;
mod units;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use fresco_tensor::gpu::NetworkPart;
use fresco_tensor::nn::{
    Conv2d, Conv3d, Embedding, GroupNorm, LayerNorm, Linear, MakeWeight, MergedAs, Padding,
    RmsNorm, Side, SlotGroup, Value,
};
use fresco_tensor::{Device, Dtype, Stored, Tensor, TensorError, WeightFile, WeightInfo};

use crate::error::{ModelError, Result};

use layers::{Built, Layer};
pub use origin::Origin;
use origin::OriginError;
pub(crate) use origin::flat_length;
use patched::Patched;
pub use patched::{Keep, SideMatrices, Way, WeightPatches};
pub use units::{Blocks, UnitInfo, UnitOrder};
pub use walk::{Bias, Kernel, Layout, Walk};

enum Source {
    File {
        file: Arc<dyn WeightFile>,
        keys: BTreeMap<String, (Origin, WeightInfo)>,
    },
    Memory(BTreeMap<String, Stored>),
    Patched(Patched),
}

/// See the [module](self).
///
/// New layers are in main memory; [`WeightStore::move_unit`] puts them elsewhere. The device of a store is the one that its
/// networks compute on.
pub struct WeightStore {
    device: Device,
    weights: Arc<Weights>,
}

/// A store that others hold.
pub(crate) struct LooseStore(Weak<Weights>);

impl LooseStore {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// A view of the store, if anybody still has one.
    pub(crate) fn on(&self, device: Device) -> Option<Arc<WeightStore>> {
        let weights = self.0.upgrade()?;
        Some(Arc::new(WeightStore { device, weights }))
    }
}

/// What the views of one store share.
struct Weights {
    file: String,
    source: Source,
    layers: Mutex<BTreeMap<String, Built>>,
    group: SlotGroup,
    /// Bytes read from the file.
    read: AtomicU64,
    units: OnceLock<Vec<UnitInfo>>,
    /// Where layers compute that are built next; none: where the view that builds them says.
    builds_for: Mutex<Option<Device>>,
    order: &'static UnitOrder,
    /// Keys of values that are units.
    values: BTreeSet<String>,
    main_dtype: OnceLock<Dtype>,
    /// Whether the network's result has eight bits.
    short: bool,
    /// Whether inputs of layers must not be rounded, also where the format of their weights would have it.
    exact: bool,
}

impl WeightStore {
    fn with_source(file: String, device: Device, source: Source) -> Arc<Self> {
        let (group, short, exact) = match &source {
            Source::Patched(Patched { base, .. }) => {
                let base = &base.weights;
                (base.group.clone(), base.short, base.exact)
            }
            _ => (SlotGroup::new(), false, false),
        };
        Arc::new(Self {
            device,
            weights: Arc::new(Weights {
                file,
                source,
                layers: Mutex::default(),
                group,
                read: AtomicU64::new(0),
                units: OnceLock::new(),
                builds_for: Mutex::default(),
                order: &UnitOrder::PLAIN,
                values: BTreeSet::new(),
                main_dtype: OnceLock::new(),
                short,
                exact,
            }),
        })
    }

    /// The same weights and layers for networks that compute on another device.
    #[must_use]
    pub fn on(self: &Arc<Self>, device: Device) -> Arc<Self> {
        if self.device == device {
            return Arc::clone(self);
        }
        Arc::new(Self {
            device,
            weights: Arc::clone(&self.weights),
        })
    }

    /// Whether both have the same layers, wherever their networks compute.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.weights, &other.weights)
    }

    pub(crate) fn loose(&self) -> LooseStore {
        LooseStore(Arc::downgrade(&self.weights))
    }

    /// Equal for views of the same layers, while they exist.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.weights) as usize
    }

    /// The store whose weights this one changes.
    pub fn base(&self) -> Option<&Arc<Self>> {
        match &self.weights.source {
            Source::Patched(Patched { base, .. }) => Some(base),
            _ => None,
        }
    }

    /// Lets convolutions keep sixteen bits of their inputs: for networks that make pictures of eight.
    #[must_use]
    pub fn shortened(self: Arc<Self>) -> Arc<Self> {
        self.settled(|weights| weights.short = true)
    }

    /// Keeps layers from rounding their inputs where the format of their weights would have it: for networks that need
    /// all of them, as text encoders do.
    #[must_use]
    pub fn full_precision(self: Arc<Self>) -> Arc<Self> {
        self.settled(|weights| weights.exact = true)
    }

    /// The same with its units in the order that its network says.
    #[must_use]
    pub fn with_units(self: Arc<Self>, order: &'static UnitOrder) -> Arc<Self> {
        self.settled(|weights| weights.order = order)
    }

    /// With the values that a walk takes as they are as units.
    #[must_use]
    pub fn with_values_of(self: Arc<Self>, layout: &Layout) -> Arc<Self> {
        let keys = layout.items().iter().map(|(key, _)| key);
        let values = keys.filter(|key| units::unit_of(key).1.is_empty());
        self.settled(|weights| weights.values = values.cloned().collect())
    }

    /// With a setting changed. A store that others hold already stays as it is.
    fn settled(self: Arc<Self>, change: impl FnOnce(&mut Weights)) -> Arc<Self> {
        let mut store = match Arc::try_unwrap(self) {
            Ok(store) => store,
            Err(shared) => return shared,
        };
        if let Some(weights) = Arc::get_mut(&mut store.weights) {
            change(weights);
        }
        Arc::new(store)
    }

    /// The tensors of a file whose names start with the prefix, under what follows it.
    pub fn open(file: Arc<dyn WeightFile>, prefix: &str, device: Device) -> Arc<Self> {
        let names = file.names().into_iter();
        let keys = names.filter_map(|name| {
            let key = name.strip_prefix(prefix)?.to_owned();
            Some((key, Origin::Whole(name)))
        });
        let keys: BTreeMap<_, _> = keys.collect();
        Self::mapped(file, keys, device)
    }

    /// Chosen tensors of a file under other names. Names that the file does not have are left out.
    pub fn mapped(
        file: Arc<dyn WeightFile>,
        keys: BTreeMap<String, Origin>,
        device: Device,
    ) -> Arc<Self> {
        let scales = input_scales(&*file, &keys);
        let keys = keys.into_iter().chain(scales).filter_map(|(key, origin)| {
            let info = origin.info(&*file)?;
            Some((key, (origin, info)))
        });
        let keys = keys.collect();
        let name = file.path().display().to_string();
        Self::with_source(name, device, Source::File { file, keys })
    }

    /// Weights that are in memory already; `name` is for messages.
    pub fn from_stored(name: &str, weights: BTreeMap<String, Stored>, device: Device) -> Arc<Self> {
        Self::with_source(name.to_owned(), device, Source::Memory(weights))
    }

    /// The same weights with some of them changed. Layers that no patch touches are shared.
    #[must_use]
    pub fn patched(self: &Arc<Self>, patches: Arc<dyn WeightPatches>) -> Arc<Self> {
        self.patched_as(patches, false)
    }

    /// As [`WeightStore::patched`]. If memory is tight, the large weights (of linear layers and convolutions) are changed at
    /// every use and never kept; results are the same.
    #[must_use]
    pub fn patched_as(self: &Arc<Self>, patches: Arc<dyn WeightPatches>, tight: bool) -> Arc<Self> {
        let file = self.weights.file.clone();
        let source = Source::Patched(Patched::new(self, patches, tight));
        Self::with_source(file, self.device.clone(), source)
    }

    /// The file, for messages.
    pub fn file(&self) -> &str {
        &self.weights.file
    }

    /// Where networks of this store compute.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The format of most of the weights, by their number.
    pub fn main_dtype(&self) -> Dtype {
        *self.weights.main_dtype.get_or_init(|| {
            let mut counts: BTreeMap<Dtype, usize> = BTreeMap::new();
            for key in self.keys() {
                if let (Some(dtype), Some(shape)) = (self.dtype(key), self.shape(key)) {
                    *counts.entry(dtype).or_default() += shape.iter().product::<usize>();
                }
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            most.map_or(Dtype::F32, |(dtype, _)| dtype)
        })
    }

    /// The device with the numbers in which networks of this store compute there.
    pub fn network_device(&self) -> Device {
        let part = match (self.weights.short, self.weights.exact) {
            (true, _) => NetworkPart::Autoencoder,
            (false, true) => NetworkPart::Text,
            (false, false) => NetworkPart::Diffusion,
        };
        self.device.computing_in(self.main_dtype(), part)
    }

    /// All keys in alphabetical order.
    pub fn keys(&self) -> Vec<&str> {
        match &self.weights.source {
            Source::File { keys, .. } => keys.keys().map(String::as_str).collect(),
            Source::Memory(weights) => weights.keys().map(String::as_str).collect(),
            Source::Patched(Patched { base, .. }) => base.keys(),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.shape(key).is_some()
    }

    pub fn shape(&self, key: &str) -> Option<&[usize]> {
        match &self.weights.source {
            Source::File { keys, .. } => keys.get(key).map(|(_, info)| info.shape.as_slice()),
            Source::Memory(weights) => weights.get(key).map(Stored::shape),
            Source::Patched(Patched { base, .. }) => base.shape(key),
        }
    }

    pub fn dtype(&self, key: &str) -> Option<Dtype> {
        match &self.weights.source {
            Source::File { keys, .. } => keys.get(key).map(|(_, info)| info.dtype),
            Source::Memory(weights) => weights.get(key).map(Stored::dtype),
            Source::Patched(Patched { base, .. }) => base.dtype(key),
        }
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::Missing {
            file: self.weights.file.clone(),
            key: key.to_owned(),
        }
    }

    fn unusable(&self, key: &str, source: TensorError) -> ModelError {
        match source {
            // These say enough by themselves, and callers look for them.
            TensorError::Cancelled
            | TensorError::NoMemory { .. }
            | TensorError::TooLarge { .. }
            | TensorError::DeviceFull { .. } => source.into(),
            source => ModelError::Layer {
                file: self.weights.file.clone(),
                key: key.to_owned(),
                source,
            },
        }
    }

    /// A value that a layer in memory has.
    fn built_value(&self, key: &str) -> Result<Option<Stored>> {
        if self.change().is_some_and(|change| change.is_beside(key)) {
            // The layer's weight is not all of it.
            return Ok(None);
        }
        let (unit, part) = units::unit_of(key);
        let Some(layer) = self.built(unit) else {
            return Ok(None);
        };
        let value = layer.part(part).map_err(|e| self.unusable(key, e))?;
        let shape = self.changed_shape(key);
        let shaped = value.zip(shape).map(|(value, shape)| value.reshape(shape));
        shaped.transpose().map_err(|e| self.unusable(key, e))
    }

    /// What a patched store changes.
    fn change(&self) -> Option<&Patched> {
        match &self.weights.source {
            Source::Patched(change) => Some(change),
            _ => None,
        }
    }

    /// The shape of a key with its patches.
    fn changed_shape(&self, key: &str) -> Option<Vec<usize>> {
        let shape = self.shape(key)?;
        let changed = self.change().and_then(|change| change.shape(key, shape));
        Some(changed.unwrap_or_else(|| shape.to_vec()))
    }

    /// A value in its storage format: that of a layer in memory, or read from the file.
    pub fn raw(&self, key: &str) -> Result<Stored> {
        if let Some(value) = self.built_value(key)? {
            return Ok(value);
        }
        match &self.weights.source {
            Source::File { file, keys } => {
                let (origin, _) = keys.get(key).ok_or_else(|| self.missing(key))?;
                let (value, bytes) = origin.read(&**file).map_err(|error| match error {
                    OriginError::File(error) => error.into(),
                    OriginError::Value(error) => self.unusable(key, error),
                })?;
                self.weights.read.fetch_add(bytes, Ordering::Relaxed);
                Ok(value)
            }
            Source::Memory(weights) => weights.get(key).cloned().ok_or_else(|| self.missing(key)),
            Source::Patched(change) => change.value(key),
        }
    }

    /// What is in a small file beside that of the weights: see [`WeightFile::beside`].
    pub fn beside(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match &self.weights.source {
            Source::File { file, .. } => Ok(file.beside(name)?),
            Source::Memory(_) => Ok(None),
            Source::Patched(Patched { base, .. }) => base.beside(name),
        }
    }

    /// What the file says of itself under a name, in its header.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        match &self.weights.source {
            Source::File { file, .. } => {
                let found = file.metadata().iter().find(|(key, _)| key == name);
                found.map(|(_, text)| text.as_str())
            }
            Source::Memory(_) => None,
            Source::Patched(Patched { base, .. }) => base.metadata(name),
        }
    }

    fn bias(&self, key: &str) -> Result<Option<Stored>> {
        let bias = format!("{key}.bias");
        self.has(&bias).then(|| self.raw(&bias)).transpose()
    }

    /// A value as f32.
    pub fn tensor(&self, key: &str) -> Result<Tensor> {
        self.raw(key)?.to_f32().map_err(|e| self.unusable(key, e))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Built>> {
        // Nothing is left half done under this lock.
        let layers = self.weights.layers.lock();
        layers.unwrap_or_else(PoisonError::into_inner)
    }

    /// A layer of this store that is in memory.
    fn built(&self, unit: &str) -> Option<Layer> {
        self.lock().get(unit).and_then(Built::layer)
    }

    /// Whether the unit has a layer of its own here.
    fn changes(&self, unit: &str) -> bool {
        self.change().is_none_or(|change| change.changes(unit))
    }

    /// The layer of a key: a built one, the one of the store below if no patch touches it, or a new one.
    fn layer(
        &self,
        key: &str,
        below: impl Fn(&Self) -> Result<Layer>,
        build: impl Fn() -> Result<Layer>,
    ) -> Result<Layer> {
        if let Some(layer) = self.kept(key) {
            return Ok(layer);
        }
        if let Source::Patched(Patched { base, .. }) = &self.weights.source
            && !self.changes(key)
        {
            return below(base);
        }
        let layer = build()?;
        if self.computes_on().is_cpu() {
            // Now, while what was read is still in the cache; its memory then serves for the next layer.
            let prepared = layer.slot().prepare();
            prepared.map_err(|e| self.unusable(key, e))?;
        }
        // Another thread may have been faster.
        if let Some(layer) = self.kept(key) {
            return Ok(layer);
        }
        let built = Built::new(layer.clone());
        self.lock().insert(key.to_owned(), built);
        Ok(layer)
    }

    /// A layer in memory, which the store holds from now on.
    fn kept(&self, key: &str) -> Option<Layer> {
        let mut layers = self.lock();
        let built = layers.get_mut(key)?;
        let layer = built.layer()?;
        *built = Built::new(layer.clone());
        Some(layer)
    }

    /// A value as a layer of this store keeps it.
    fn part(&self, key: &str) -> Result<Stored> {
        match self.change() {
            Some(change) => change.kept(key),
            None => self.later(key).map_or_else(|| self.raw(key), Ok),
        }
    }

    /// Weight and bias of a layer.
    fn parts(&self, key: &str) -> Result<(Stored, Option<Stored>)> {
        let bias = format!("{key}.bias");
        let bias = self.has(&bias).then(|| self.part(&bias)).transpose()?;
        Ok((self.part(&format!("{key}.weight"))?, bias))
    }

    /// What the inputs of a layer are multiplied with before its weight is used, where its format has that. A changed weight
    /// has it inside.
    fn kept_input_scale(&self, key: &str) -> Result<Option<Stored>> {
        if self
            .change()
            .is_some_and(|change| change.changes_weight(key))
        {
            return Ok(None);
        }
        self.input_scale(key)
    }

    /// The same of the weight as it is in the file.
    fn input_scale(&self, key: &str) -> Result<Option<Stored>> {
        let scale = format!("{key}{INPUT_SCALE}");
        self.has(&scale).then(|| self.raw(&scale)).transpose()
    }

    /// What stands beside a layer, each made by `make`.
    fn sides(
        &self,
        key: &str,
        make: impl Fn(&SideMatrices, &SlotGroup) -> Result<Side, TensorError>,
    ) -> Result<Vec<Side>> {
        let beside = self.change().map_or(&[][..], |change| change.beside(key));
        let sides = beside.iter().map(|one| make(one, &self.weights.group));
        let sides: Result<Vec<_>, _> = sides.collect();
        sides.map_err(|e| self.unusable(key, e))
    }

    fn mixed(&self, key: &str) -> ModelError {
        ModelError::unsupported(
            self.file(),
            format!("{key:?} is used as two kinds of layer"),
        )
    }

    /// `key.weight` with `key.bias` if there is one, as a linear layer.
    pub fn linear(&self, key: &str) -> Result<Arc<Linear>> {
        let plain = self.plain_linear(key)?;
        let sides = self.sides(key, |one, group| Side::linear(one.matrices(), group))?;
        if sides.is_empty() {
            return Ok(plain);
        }
        let layer = plain.beside(self.bias(key)?.as_ref(), sides);
        Ok(Arc::new(layer.map_err(|e| self.unusable(key, e))?))
    }

    fn plain_linear(&self, key: &str) -> Result<Arc<Linear>> {
        if let Some((base, (shape, dtype, make))) = self.change().and_then(|c| c.made(key)) {
            let below = base.linear(key)?;
            let (bias, slot) = (self.bias(key)?, Arc::clone(below.slot()));
            let weight = (&*shape, dtype, holding(make, below));
            let linear = Linear::made_in_slot(weight, bias.as_ref(), slot);
            return Ok(Arc::new(linear.map_err(|e| self.unusable(key, e))?));
        }
        let layer = self.layer(
            key,
            |base| base.linear(key).map(Layer::Linear),
            || {
                if let Some(linear) = self.merged_there(key)? {
                    return Ok(Layer::Linear(Arc::new(linear)));
                }
                let (weight, bias) = self.parts(key)?;
                let scale = self.kept_input_scale(key)?;
                let (bias, scale) = (bias.as_ref(), scale.as_ref());
                let linear = Linear::with_input_scale(&weight, bias, scale, self.group());
                let mut linear = linear.map_err(|e| self.unusable(key, e))?;
                if self.weights.exact {
                    linear = linear.exact();
                }
                Ok(Layer::Linear(Arc::new(linear)))
            },
        )?;
        match layer {
            Layer::Linear(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// A changed layer that was changed on the GPU where it computes; none where that is done in main memory.
    fn merged_there(&self, key: &str) -> Result<Option<Linear>> {
        let Some(change) = self.change().filter(|_| self.device.is_gpu()) else {
            return Ok(None);
        };
        let weight = format!("{key}.weight");
        let (Some(growths), Some(dtype)) = (change.growths(key), change.dtype(&weight)) else {
            return Ok(None);
        };
        let below = change.base.linear(key)?;
        let bias = format!("{key}.bias");
        let bias = self.has(&bias).then(|| self.part(&bias)).transpose()?;
        let how = MergedAs {
            dtype,
            seed: fresco_tensor::synthetic::fnv1a64(weight.as_bytes()),
            bias: bias.as_ref(),
            group: self.group(),
        };
        let merged = below.merged(&growths, how, &self.device);
        let merged = merged.map_err(|e| self.unusable(key, e))?;
        Ok(merged.map(|linear| {
            if self.weights.exact {
                linear.exact()
            } else {
                linear
            }
        }))
    }

    /// The same as a convolution.
    pub fn conv(&self, key: &str, stride: usize, padding: Padding) -> Result<Arc<Conv2d>> {
        let plain = self.plain_conv(key, stride, padding)?;
        let sides = self.sides(key, |one, group| {
            Side::conv(one.matrices(), stride, padding, group)
        })?;
        if sides.is_empty() {
            return Ok(plain);
        }
        let layer = plain.beside(self.bias(key)?.as_ref(), sides);
        Ok(Arc::new(layer.map_err(|e| self.unusable(key, e))?))
    }

    fn plain_conv(&self, key: &str, stride: usize, padding: Padding) -> Result<Arc<Conv2d>> {
        if let Some((base, (shape, dtype, make))) = self.change().and_then(|c| c.made(key)) {
            let below = base.conv(key, stride, padding)?;
            let (bias, slot) = (self.bias(key)?, Arc::clone(below.slot()));
            let weight = (&*shape, dtype, holding(make, below));
            let conv = Conv2d::made_in_slot(weight, bias.as_ref(), stride, padding, slot);
            return Ok(Arc::new(conv.map_err(|e| self.unusable(key, e))?));
        }
        let layer = self.layer(
            key,
            |base| base.conv(key, stride, padding).map(Layer::Conv),
            || {
                let (mut weight, bias) = self.parts(key)?;
                if let &[out, input, taps] = weight.shape() {
                    // Along one dimension.
                    let shaped = weight.reshape([out, input, taps, 1]);
                    weight = shaped.map_err(|e| self.unusable(key, e))?;
                }
                let group = self.group();
                let conv = Conv2d::in_group(&weight, bias.as_ref(), stride, padding, group);
                let mut conv = conv.map_err(|e| self.unusable(key, e))?;
                if self.weights.short {
                    conv = conv.shortened();
                }
                Ok(Layer::Conv(Arc::new(conv)))
            },
        )?;
        match layer {
            Layer::Conv(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// `key.weight` (out, ...) as a linear layer over all that follows `out`: a convolution whose kernels are whole patches.
    /// Its patches are always merged.
    pub fn flat_linear(&self, key: &str) -> Result<Arc<Linear>> {
        let layer = self.layer(
            key,
            |base| base.flat_linear(key).map(Layer::Linear),
            || {
                let (weight, bias) = self.parts(key)?;
                let out = weight.shape().first().copied().unwrap_or(1).max(1);
                let linear = weight
                    .reshape([out, weight.len() / out])
                    .and_then(|weight| Linear::in_group(&weight, bias.as_ref(), self.group()));
                let linear = linear.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::Linear(Arc::new(linear)))
            },
        )?;
        match layer {
            Layer::Linear(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// The same as a convolution over frames. Its patches are always merged.
    pub fn conv3d(&self, key: &str) -> Result<Arc<Conv3d>> {
        let layer = self.layer(
            key,
            |base| base.conv3d(key).map(Layer::Conv3d),
            || {
                let (weight, bias) = self.parts(key)?;
                let conv = Conv3d::in_group(&weight, bias.as_ref(), self.group());
                let mut conv = conv.map_err(|e| self.unusable(key, e))?;
                if self.weights.short {
                    conv = conv.shortened();
                }
                Ok(Layer::Conv3d(Arc::new(conv)))
            },
        )?;
        match layer {
            Layer::Conv3d(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// The same as a group norm.
    pub fn group_norm(&self, key: &str, groups: usize, eps: f32) -> Result<Arc<GroupNorm>> {
        let layer = self.layer(
            key,
            |base| base.group_norm(key, groups, eps).map(Layer::GroupNorm),
            || {
                let (weight, bias) = self.parts(key)?;
                let bias = bias.ok_or_else(|| self.unusable(key, no_bias("group norm")))?;
                let norm = GroupNorm::in_group(&weight, &bias, groups, eps, self.group());
                let norm = norm.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::GroupNorm(Arc::new(norm)))
            },
        )?;
        match layer {
            Layer::GroupNorm(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// The same as a layer norm.
    pub fn layer_norm(&self, key: &str, eps: f32) -> Result<Arc<LayerNorm>> {
        let layer = self.layer(
            key,
            |base| base.layer_norm(key, eps).map(Layer::RowNorm),
            || {
                let (weight, bias) = self.parts(key)?;
                let group = self.group();
                let norm = LayerNorm::in_group(Some(&weight), bias.as_ref(), eps, group);
                let norm = norm.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::RowNorm(Arc::new(norm)))
            },
        )?;
        match layer {
            Layer::RowNorm(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// A root mean square norm by the whole key of its weight, which goes by many names.
    pub fn rms_norm(&self, key: &str, eps: f32) -> Result<Arc<RmsNorm>> {
        let (unit, _) = units::unit_of(key);
        let layer = self.layer(
            unit,
            |base| base.rms_norm(key, eps).map(Layer::Rms),
            || {
                let weight = self.part(key)?;
                let norm = RmsNorm::in_group(Some(&weight), eps, self.group());
                let norm = norm.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::Rms(Arc::new(norm)))
            },
        )?;
        match layer {
            Layer::Rms(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// `key.weight` as a table of rows.
    pub fn embedding(&self, key: &str) -> Result<Arc<Embedding>> {
        self.rows(&format!("{key}.weight"))
    }

    /// A table of rows by its whole key. Sizes before that of a row count rows.
    pub fn rows(&self, key: &str) -> Result<Arc<Embedding>> {
        let (unit, _) = units::unit_of(key);
        let layer = self.layer(
            unit,
            |base| base.rows(key).map(Layer::Embedding),
            || {
                let weight = self.part(key)?;
                let width = weight.shape().last().copied().unwrap_or(0);
                let rows = weight.len().checked_div(width).unwrap_or(0);
                let table = weight
                    .reshape([rows, width])
                    .and_then(|table| Embedding::in_group(&table, self.group()));
                let table = table.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::Embedding(Arc::new(table)))
            },
        )?;
        match layer {
            Layer::Embedding(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// A value that a network takes as it is; the key is that of the unit, too.
    pub fn value(&self, key: &str) -> Result<Arc<Value>> {
        // Some are called like a part of a layer that has no other. Two of one layer go by their own keys.
        let unit = match units::unit_of(key) {
            (unit, "weight") if !self.has(&format!("{unit}.bias")) => unit,
            (unit, "bias") if !self.has(&format!("{unit}.weight")) => unit,
            _ => key,
        };
        let layer = self.layer(
            unit,
            |base| base.value(key).map(Layer::Value),
            || {
                let stored = self.part(key)?;
                let value = Value::in_group(&stored, self.group());
                let value = value.map_err(|e| self.unusable(key, e))?;
                Ok(Layer::Value(Arc::new(value)))
            },
        )?;
        match layer {
            Layer::Value(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// What the layers in memory take, without those of the store below.
    pub fn bytes(&self) -> u64 {
        let layers = self.lock();
        let layers = layers.values().filter_map(Built::layer);
        layers.map(|layer| layer.slot().bytes()).sum()
    }

    /// The things that can be placed, in the order in which the network defines them. Known without reading weights.
    pub fn units(&self) -> Vec<UnitInfo> {
        self.unit_list().to_vec()
    }

    fn unit_list(&self) -> &[UnitInfo] {
        self.weights.units.get_or_init(|| {
            let Source::Patched(Patched { base, .. }) = &self.weights.source else {
                return units::units(self, self.weights.order);
            };
            let mut units = base.units();
            for unit in &mut units {
                unit.own = self.owns(&unit.name);
                if unit.own {
                    unit.bytes = self.changed_bytes(&unit.name);
                }
            }
            units
        })
    }

    /// Whether this store has a layer of its own for a unit.
    fn owns(&self, unit: &str) -> bool {
        self.change().is_none_or(|change| change.owns(unit))
    }

    /// Bytes of a unit with its patches.
    fn changed_bytes(&self, unit: &str) -> u64 {
        let part = |key: String| {
            let dtype = match self.change() {
                Some(change) => change.dtype(&key)?,
                None => self.dtype(&key)?,
            };
            units::bytes(&self.changed_shape(&key)?, dtype)
        };
        let keys = [
            format!("{unit}.weight"),
            format!("{unit}.bias"),
            unit.to_owned(),
        ];
        keys.into_iter().filter_map(part).sum()
    }

    /// Units whose patches are applied at every use.
    pub fn on_the_fly_units(&self) -> usize {
        self.change().map_or(0, Patched::made_units)
    }

    /// Units that have patches beside them.
    pub fn bypassed_units(&self) -> usize {
        self.change().map_or(0, Patched::beside_units)
    }

    /// Bytes of all units.
    pub fn total_bytes(&self) -> u64 {
        self.unit_list().iter().map(|unit| unit.bytes).sum()
    }

    /// Bytes read from the file so far.
    pub fn read_bytes(&self) -> u64 {
        let below = self.base().map_or(0, |base| base.read_bytes());
        self.weights.read.load(Ordering::Relaxed) + below
    }

    /// What the layers of this store, and of the stores above and below it, are used together as.
    pub fn group(&self) -> &SlotGroup {
        &self.weights.group
    }

    /// The layer of a unit, of this store or the one below.
    fn unit(&self, unit: &str) -> Option<Layer> {
        match self.base() {
            Some(base) if !self.owns(unit) => base.unit(unit),
            _ => self.built(unit),
        }
    }

    /// Where a unit is kept; none if it is not in memory.
    pub fn home(&self, unit: &str) -> Option<Device> {
        self.unit(unit).map(|layer| layer.slot().home())
    }

    /// Bytes of a unit that is kept in main memory and still in its file, where it takes none.
    pub fn unread_bytes(&self, unit: &str) -> u64 {
        self.unit(unit)
            .map_or(0, |layer| layer.slot().unread_bytes())
    }

    /// Keeps a unit on another device: a counted copy. A unit that is not in memory has nothing to move. If there is no
    /// room it stays where it is.
    pub fn move_unit(&self, unit: &str, to: &Device) -> Result<(), TensorError> {
        match self.unit(unit) {
            Some(layer) => layer.slot().move_to(to),
            None => Ok(()),
        }
    }

    /// Makes the copies that moves have left to be made. Takes as long as the bus needs, and nobody else waits for it.
    pub fn finish_moves(&self) -> Result<(), TensorError> {
        let layers: Vec<Layer> = self.lock().values().filter_map(Built::layer).collect();
        // What stays in main memory is read when it is first used.
        for layer in &layers {
            fresco_tensor::cancel::check()?;
            layer.slot().finish_move()?;
        }
        Ok(())
    }

    /// Drops the layers, those of a patched store only that it changed. What networks still hold goes with them; until
    /// then it is found again.
    pub fn forget(&self) {
        self.weights.group.drop_ahead();
        let mut layers = self.lock();
        layers.retain(|_, built| built.forget());
    }
}

/// What the inputs of a layer are multiplied with, by its last name.
const INPUT_SCALE: &str = ".pre_quant_scale";

/// Where the input scales of quantised layers are, for the keys of their weights.
fn input_scales(file: &dyn WeightFile, keys: &BTreeMap<String, Origin>) -> Vec<(String, Origin)> {
    let scale = |(key, origin): (&String, &Origin)| {
        let key = key.strip_suffix(".weight")?;
        let name = origin.names().first()?.strip_suffix(".weight")?.to_owned();
        let name = format!("{name}{INPUT_SCALE}");
        file.info(&name)?;
        Some((format!("{key}{INPUT_SCALE}"), Origin::Whole(name)))
    };
    keys.iter().filter_map(scale).collect()
}

/// What makes a weight, with the layer whose weight it is made from.
fn holding<L: Send + Sync + 'static>(make: MakeWeight, layer: Arc<L>) -> MakeWeight {
    Arc::new(move || {
        let _held = &layer;
        make()
    })
}

fn no_bias(op: &'static str) -> TensorError {
    TensorError::Invalid {
        op,
        reason: "the bias is missing".to_owned(),
    }
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore")
            .field("file", &self.weights.file)
            .field("keys", &self.keys().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Doubled;

    impl WeightPatches for Doubled {
        fn keys(&self) -> Vec<String> {
            vec!["a.weight".to_owned(), "absent.weight".to_owned()]
        }

        fn apply(&self, _: &str, weight: Tensor) -> Result<Tensor> {
            Ok(weight.mul_scalar(2.0))
        }
    }

    fn half(shape: [usize; 2]) -> Stored {
        let t = Tensor::from_fn(shape, |i| i as f32 - 3.0).unwrap();
        Stored::from_f32(&t, Dtype::F16).unwrap()
    }

    fn store() -> Arc<WeightStore> {
        let weights = ["a.weight", "b.weight"].map(|key| (key.to_owned(), half([2, 4])));
        WeightStore::from_stored("test", weights.into_iter().collect(), Device::cpu())
    }

    #[test]
    fn patched_stores_share_what_is_not_patched() {
        let base = store();
        let patched = base.patched(Arc::new(Doubled));
        assert!(Arc::ptr_eq(
            &base.linear("b").unwrap(),
            &patched.linear("b").unwrap()
        ));
        assert!(Arc::ptr_eq(
            &base.linear("b").unwrap(),
            &base.linear("b").unwrap()
        ));
        let (a, b) = (base.linear("a").unwrap(), patched.linear("a").unwrap());
        let doubled = a.weight().unwrap().to_f32().unwrap().mul_scalar(2.0);
        assert_eq!(b.weight().unwrap().to_f32().unwrap(), doubled);
        assert_eq!(b.weight().unwrap().dtype(), Dtype::F16);
        assert_eq!(patched.raw("a.weight").unwrap(), b.weight().unwrap());
        assert!(!patched.has("absent.weight"));
        assert!(matches!(
            patched.linear("c"),
            Err(ModelError::Missing { .. })
        ));
        assert!(base.conv("b", 1, Padding::Same(1)).is_err());
    }
}
