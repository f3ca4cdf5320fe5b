//! The weights of one network by key, and the layers built from them.
//!
//! A layer is packed when it is first asked for and then shared, so building a network from a store that was used before
//! costs nothing, and a patched store holds only what its patches change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fresco_tensor::nn::{Conv2d, Embedding, GroupNorm, LayerNorm, Linear, MakeWeight, Padding};
use fresco_tensor::{Device, Dtype, Stored, Tensor, TensorError, WeightFile, WeightInfo};

use crate::error::{ModelError, Result};
use crate::patch::PatchMode;
use crate::rounding::rounded;

/// Changes to weights: LoRA and its relatives, merges.
pub trait WeightPatches: Send + Sync {
    /// The keys that change, weights and biases, as the store knows them.
    fn keys(&self) -> Vec<String>;

    /// The changed value of one of them.
    fn apply(&self, key: &str, weight: Tensor) -> Result<Tensor>;
}

/// Where the value of a key is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Whole(String),
    /// Some rows of a tensor: parts that other layouts keep in one.
    Rows {
        name: String,
        start: usize,
        count: usize,
    },
    /// A matrix the other way round.
    Transposed(String),
    /// The same values under another shape.
    Shaped {
        name: String,
        shape: Vec<usize>,
    },
}

impl Origin {
    fn name(&self) -> &str {
        match self {
            Self::Whole(name)
            | Self::Rows { name, .. }
            | Self::Transposed(name)
            | Self::Shaped { name, .. } => name,
        }
    }

    fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        match self {
            Self::Whole(_) => {}
            Self::Rows { count, .. } => {
                if let Some(first) = shape.first_mut() {
                    *first = *count;
                }
            }
            Self::Transposed(_) => shape.reverse(),
            Self::Shaped { shape, .. } => return shape.clone(),
        }
        shape
    }

    fn value(&self, whole: &Stored) -> Result<Stored, TensorError> {
        let dtype = whole.dtype();
        let bad = |reason: &str| TensorError::Invalid {
            op: "weight",
            reason: format!("{reason} of shape {:?}", whole.shape()),
        };
        match self {
            Self::Whole(_) => Ok(whole.clone()),
            Self::Shaped { shape, .. } => whole.reshape(shape.clone()),
            Self::Rows { start, count, .. } => {
                let rows = whole.shape().first().copied().unwrap_or(0);
                if rows == 0 || start + count > rows {
                    return Err(bad("no such rows in a tensor"));
                }
                let row = whole.bytes().len() / rows;
                let bytes = whole.bytes()[start * row..(start + count) * row].to_vec();
                Stored::new(dtype, self.shape(whole.shape()), bytes)
            }
            Self::Transposed(_) => {
                let &[rows, columns] = whole.shape() else {
                    return Err(bad("cannot turn a tensor"));
                };
                let size = dtype.size();
                let mut bytes = Vec::with_capacity(whole.bytes().len());
                for column in 0..columns {
                    for row in 0..rows {
                        let at = (row * columns + column) * size;
                        bytes.extend_from_slice(&whole.bytes()[at..at + size]);
                    }
                }
                Stored::new(dtype, [columns, rows], bytes)
            }
        }
    }
}

enum Source {
    File {
        file: Arc<dyn WeightFile>,
        keys: BTreeMap<String, (Origin, WeightInfo)>,
    },
    Memory(BTreeMap<String, Stored>),
    Patched {
        base: Arc<Store>,
        patches: Arc<dyn WeightPatches>,
        touched: BTreeSet<String>,
        mode: PatchMode,
    },
}

/// A patched value in the format that the value had.
fn patched_value(base: &Store, patches: &dyn WeightPatches, key: &str) -> Result<Stored> {
    let stored = base.raw(key)?;
    let plain = stored.to_f32().map_err(|e| base.unusable(key, e))?;
    let changed = patches.apply(key, plain)?;
    let dtype = patched_dtype(stored.dtype());
    rounded(&changed, dtype, key).map_err(|e| base.unusable(key, e))
}

/// Formats that cannot be written (blocks, integers) become f32.
fn patched_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F8E4M3 | Dtype::F8E5M2 => dtype,
        _ => Dtype::F32,
    }
}

#[derive(Clone)]
enum Layer {
    Linear(Arc<Linear>),
    Conv(Arc<Conv2d>),
    GroupNorm(Arc<GroupNorm>),
    RowNorm(Arc<LayerNorm>),
    Embedding(Arc<Embedding>),
}

impl Layer {
    fn bytes(&self) -> u64 {
        match self {
            Self::Linear(layer) => layer.bytes(),
            Self::Conv(layer) => layer.bytes(),
            Self::Embedding(layer) => layer.table().bytes().len() as u64,
            // A few values per channel.
            Self::GroupNorm(_) | Self::RowNorm(_) => 0,
        }
    }
}

/// See the [module](self).
pub struct Store {
    file: String,
    device: Device,
    source: Source,
    layers: Mutex<BTreeMap<String, Layer>>,
    /// Whether the network's result has eight bits.
    short: bool,
}

impl Store {
    fn with_source(file: String, device: Device, source: Source) -> Arc<Self> {
        Arc::new(Self {
            file,
            device,
            source,
            layers: Mutex::default(),
            short: false,
        })
    }

    /// Lets convolutions keep sixteen bits of their inputs: for networks that make pictures of eight.
    #[must_use]
    pub fn shortened(self: Arc<Self>) -> Arc<Self> {
        // A store that others hold already keeps its layers as they are.
        match Arc::try_unwrap(self) {
            Ok(store) => Arc::new(Self {
                short: true,
                ..store
            }),
            Err(shared) => shared,
        }
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
        let keys = keys.into_iter().filter_map(|(key, origin)| {
            let info = file.info(origin.name())?;
            let info = WeightInfo {
                shape: origin.shape(&info.shape),
                ..info
            };
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
        self.patched_as(patches, PatchMode::Merged)
    }

    /// As [`Store::patched`]. On the fly, the large weights (of linear layers and convolutions) are changed at every use
    /// and never kept; results are the same.
    #[must_use]
    pub fn patched_as(
        self: &Arc<Self>,
        patches: Arc<dyn WeightPatches>,
        mode: PatchMode,
    ) -> Arc<Self> {
        let keys = patches.keys().into_iter();
        let touched = keys.filter(|key| self.has(key)).collect();
        Self::with_source(
            self.file.clone(),
            self.device.clone(),
            Source::Patched {
                base: Arc::clone(self),
                patches,
                touched,
                mode,
            },
        )
    }

    /// The file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// All keys in alphabetical order.
    pub fn keys(&self) -> Vec<&str> {
        match &self.source {
            Source::File { keys, .. } => keys.keys().map(String::as_str).collect(),
            Source::Memory(weights) => weights.keys().map(String::as_str).collect(),
            Source::Patched { base, .. } => base.keys(),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.shape(key).is_some()
    }

    pub fn shape(&self, key: &str) -> Option<&[usize]> {
        match &self.source {
            Source::File { keys, .. } => keys.get(key).map(|(_, info)| info.shape.as_slice()),
            Source::Memory(weights) => weights.get(key).map(Stored::shape),
            Source::Patched { base, .. } => base.shape(key),
        }
    }

    pub fn dtype(&self, key: &str) -> Option<Dtype> {
        match &self.source {
            Source::File { keys, .. } => keys.get(key).map(|(_, info)| info.dtype),
            Source::Memory(weights) => weights.get(key).map(Stored::dtype),
            Source::Patched { base, .. } => base.dtype(key),
        }
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::Missing {
            file: self.file.clone(),
            key: key.to_owned(),
        }
    }

    fn unusable(&self, key: &str, source: TensorError) -> ModelError {
        match source {
            // These say enough by themselves, and callers look for them.
            TensorError::NoMemory { .. }
            | TensorError::TooLarge { .. }
            | TensorError::DeviceFull { .. } => source.into(),
            source => ModelError::Layer {
                file: self.file.clone(),
                key: key.to_owned(),
                source,
            },
        }
    }

    /// A value in its storage format.
    pub fn raw(&self, key: &str) -> Result<Stored> {
        match &self.source {
            Source::File { file, keys } => {
                let (origin, _) = keys.get(key).ok_or_else(|| self.missing(key))?;
                let whole = file.read(origin.name())?;
                origin.value(&whole).map_err(|e| self.unusable(key, e))
            }
            Source::Memory(weights) => weights.get(key).cloned().ok_or_else(|| self.missing(key)),
            Source::Patched {
                base,
                patches,
                touched,
                ..
            } => {
                if touched.contains(key) {
                    patched_value(base, &**patches, key)
                } else {
                    base.raw(key)
                }
            }
        }
    }

    /// What makes the weight of a layer at every use, if that is how it is to be.
    fn on_the_fly(&self, key: &str) -> Option<(&[usize], Dtype, MakeWeight)> {
        let Source::Patched {
            base,
            patches,
            touched,
            mode: PatchMode::OnTheFly,
        } = &self.source
        else {
            return None;
        };
        let key = format!("{key}.weight");
        if !touched.contains(&key) {
            return None;
        }
        let (shape, dtype) = (base.shape(&key)?, patched_dtype(base.dtype(&key)?));
        let (base, patches) = (Arc::clone(base), Arc::clone(patches));
        let make: MakeWeight = Arc::new(move || {
            patched_value(&base, &*patches, &key).map_err(|error| match error {
                ModelError::Tensor(error) => error,
                other => TensorError::Invalid {
                    op: "patched weight",
                    reason: other.to_string(),
                },
            })
        });
        Some((shape, dtype, make))
    }

    fn bias(&self, key: &str) -> Result<Option<Stored>> {
        let bias = format!("{key}.bias");
        self.has(&bias).then(|| self.raw(&bias)).transpose()
    }

    /// A value as f32.
    pub fn tensor(&self, key: &str) -> Result<Tensor> {
        self.raw(key)?.to_f32().map_err(|e| self.unusable(key, e))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Layer>> {
        // Nothing is left half done under this lock.
        self.layers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The layer of a key: a built one, the one of the store below if no patch touches it, or a new one.
    fn layer(
        &self,
        key: &str,
        below: impl Fn(&Self) -> Result<Layer>,
        build: impl Fn(Stored, Option<Stored>) -> Result<Layer, TensorError>,
    ) -> Result<Layer> {
        if let Some(layer) = self.lock().get(key) {
            return Ok(layer.clone());
        }
        let (weight, bias) = (format!("{key}.weight"), format!("{key}.bias"));
        if let Source::Patched { base, touched, .. } = &self.source
            && !touched.contains(&weight)
            && !touched.contains(&bias)
        {
            return below(base);
        }
        let bias = self.bias(key)?;
        let layer = build(self.raw(&weight)?, bias).map_err(|e| self.unusable(key, e))?;
        Ok(self.lock().entry(key.to_owned()).or_insert(layer).clone())
    }

    fn mixed(&self, key: &str) -> ModelError {
        ModelError::unsupported(
            &*self.file,
            format!("{key:?} is used as two kinds of layer"),
        )
    }

    /// `key.weight` with `key.bias` if there is one, as a linear layer.
    pub fn linear(&self, key: &str) -> Result<Arc<Linear>> {
        if let Some(weight) = self.on_the_fly(key) {
            let bias = self.bias(key)?;
            let linear = Linear::made(weight, bias.as_ref(), &self.device);
            return Ok(Arc::new(linear.map_err(|e| self.unusable(key, e))?));
        }
        let layer = self.layer(
            key,
            |base| base.linear(key).map(Layer::Linear),
            |weight, bias| {
                let linear = Linear::new(&weight, bias.as_ref(), &self.device)?;
                Ok(Layer::Linear(Arc::new(linear)))
            },
        )?;
        match layer {
            Layer::Linear(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// The same as a convolution.
    pub fn conv(&self, key: &str, stride: usize, padding: Padding) -> Result<Arc<Conv2d>> {
        if let Some(weight) = self.on_the_fly(key) {
            let bias = self.bias(key)?;
            let conv = Conv2d::made(weight, bias.as_ref(), stride, padding, &self.device);
            return Ok(Arc::new(conv.map_err(|e| self.unusable(key, e))?));
        }
        let layer = self.layer(
            key,
            |base| base.conv(key, stride, padding).map(Layer::Conv),
            |weight, bias| {
                let mut conv = Conv2d::new(&weight, bias.as_ref(), stride, padding, &self.device)?;
                if self.short {
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

    /// The same as a group norm.
    pub fn group_norm(&self, key: &str, groups: usize, eps: f32) -> Result<Arc<GroupNorm>> {
        let layer = self.layer(
            key,
            |base| base.group_norm(key, groups, eps).map(Layer::GroupNorm),
            |weight, bias| {
                let bias = bias.ok_or_else(|| no_bias("group norm"))?;
                let norm = GroupNorm::new(&weight, &bias, groups, eps)?;
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
            |weight, bias| {
                let norm = LayerNorm::new(Some(&weight), bias.as_ref(), eps)?;
                Ok(Layer::RowNorm(Arc::new(norm)))
            },
        )?;
        match layer {
            Layer::RowNorm(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// `key.weight` as a table of rows.
    pub fn embedding(&self, key: &str) -> Result<Arc<Embedding>> {
        let layer = self.layer(
            key,
            |base| base.embedding(key).map(Layer::Embedding),
            |weight, _| Ok(Layer::Embedding(Arc::new(Embedding::new(&weight)?))),
        )?;
        match layer {
            Layer::Embedding(layer) => Ok(layer),
            _ => Err(self.mixed(key)),
        }
    }

    /// Memory held by the layers built so far, without those of the store below.
    pub fn bytes(&self) -> u64 {
        self.lock().values().map(Layer::bytes).sum()
    }
}

fn no_bias(op: &'static str) -> TensorError {
    TensorError::Invalid {
        op,
        reason: "the bias is missing".to_owned(),
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("file", &self.file)
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

    fn store() -> Arc<Store> {
        let weights = ["a.weight", "b.weight"].map(|key| (key.to_owned(), half([2, 4])));
        Store::from_stored("test", weights.into_iter().collect(), Device::cpu())
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

    #[test]
    fn origins_cut_and_turn() {
        let whole = half([3, 2]);
        let rows = Origin::Rows {
            name: "x".to_owned(),
            start: 1,
            count: 2,
        };
        let cut = rows.value(&whole).unwrap();
        assert_eq!(cut.shape(), [2, 2]);
        assert_eq!(cut.to_f32().unwrap().data(), [-1.0, 0.0, 1.0, 2.0]);
        let turned = Origin::Transposed("x".to_owned()).value(&whole).unwrap();
        assert_eq!(turned.shape(), [2, 3]);
        assert_eq!(
            turned.to_f32().unwrap().data(),
            [-3.0, -1.0, 1.0, -2.0, 0.0, 2.0]
        );
        let beyond = Origin::Rows {
            name: "x".to_owned(),
            start: 2,
            count: 2,
        };
        assert!(beyond.value(&whole).is_err());
    }
}
