//! One golden: what is said of it, its tensors, and the weights that follow from its keys.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fresco_models::WeightStore;
use fresco_models::detect::Claim;
use fresco_models::vae::{VaeConfig, names as vae_names};
use fresco_tensor::{
    Device, Dtype, SafeTensors, Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic,
};
use serde_json::Value;

pub(crate) struct Golden {
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) folder: std::path::PathBuf,
    pub(crate) about: Value,
    file: Option<SafeTensors>,
    /// Tensors that were asked for.
    seen: RefCell<BTreeSet<String>>,
    claim: OnceCell<Option<Claim>>,
    autoencoder: OnceCell<Option<VaeConfig>>,
}

/// A list of sizes.
pub(crate) fn sizes(value: &Value) -> Option<Vec<usize>> {
    let list = value.as_array()?.iter();
    list.map(|n| n.as_u64().map(|n| n as usize)).collect()
}

impl Golden {
    pub(crate) fn open(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        // Written by Python, which has names for what JSON has not.
        let text = text.replace("-Infinity", "null");
        let text = text.replace("Infinity", "null").replace("NaN", "null");
        let about = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        let tensors = folder.join(format!("{name}.safetensors"));
        let file = tensors
            .is_file()
            .then(|| SafeTensors::open(&tensors))
            .transpose()
            .with_context(|| format!("cannot open {}", tensors.display()))?;
        Ok(Self {
            name: name.to_owned(),
            folder: folder.to_path_buf(),
            about,
            file,
            seen: RefCell::default(),
            claim: OnceCell::new(),
            autoencoder: OnceCell::new(),
        })
    }

    pub(crate) fn config(&self) -> &Value {
        &self.about["config"]
    }

    /// A number of the config.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.config()[name].as_u64().map(|n| n as usize)
    }

    pub(crate) fn need(&self, name: &str) -> Result<usize> {
        self.number(name)
            .ok_or_else(|| anyhow!("the config has no {name}"))
    }

    pub(crate) fn float(&self, name: &str) -> Option<f64> {
        self.config()[name].as_f64()
    }

    /// A list of numbers of the config.
    pub(crate) fn numbers(&self, name: &str) -> Option<Vec<usize>> {
        sizes(&self.config()[name])
    }

    /// Whose the keys are, as the program's own detection tells it.
    pub(crate) fn claim(&self) -> Option<Claim> {
        *self.claim.get_or_init(|| Claim::of(&self.names_only()?))
    }

    /// The autoencoder that the keys make, as the program's own detection tells it.
    pub(crate) fn autoencoder(&self) -> Option<&VaeConfig> {
        let found = || {
            let file = self.names_only()?;
            let store = vae_names::store(&file, "", Device::cpu());
            VaeConfig::detect_in(&file, &store).ok()
        };
        self.autoencoder.get_or_init(found).as_ref()
    }

    /// Names and shapes as a file whose weights are made when they are read.
    fn names_only(&self) -> Option<Arc<dyn WeightFile>> {
        let shapes = self.keys().ok()?.into_iter().collect();
        let name = self.name.clone();
        Some(Arc::new(NamesOnly { name, shapes }))
    }

    /// Whether the network has a weight of this name.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.about["keys"].get(key).is_some()
    }

    /// Whether keys of the network begin like this.
    pub(crate) fn any_key(&self, start: &str) -> bool {
        let keys = self.about["keys"].as_object();
        keys.is_some_and(|keys| keys.keys().any(|key| key.starts_with(start)))
    }

    /// Whether this stands in any key of the network.
    pub(crate) fn any_part(&self, part: &str) -> bool {
        let keys = self.about["keys"].as_object();
        keys.is_some_and(|keys| keys.keys().any(|key| key.contains(part)))
    }

    /// The names of the tensors.
    pub(crate) fn tensors(&self) -> Vec<String> {
        self.file.as_ref().map_or_else(Vec::new, |file| {
            file.names().map(ToOwned::to_owned).collect()
        })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().iter().any(|n| n == name)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        self.seen.borrow_mut().insert(name.to_owned());
        let file = self.file.as_ref();
        let file = file.ok_or_else(|| anyhow!("there are no tensors beside {}", self.name))?;
        file.tensor(name).with_context(|| format!("tensor {name}"))
    }

    /// A tensor in the format of the file.
    pub(crate) fn stored(&self, name: &str) -> Result<Stored> {
        self.seen.borrow_mut().insert(name.to_owned());
        let file = self.file.as_ref();
        let file = file.ok_or_else(|| anyhow!("there are no tensors beside {}", self.name))?;
        Ok(WeightFile::read(file, name)?)
    }

    /// A tensor that not all goldens have.
    pub(crate) fn maybe(&self, name: &str) -> Result<Option<Tensor>> {
        self.has(name).then(|| self.tensor(name)).transpose()
    }

    /// The numbers of a tensor.
    pub(crate) fn values(&self, name: &str) -> Result<Vec<f32>> {
        Ok(self.tensor(name)?.into_vec())
    }

    /// Which tensors nobody asked for.
    pub(crate) fn unseen(&self) -> Vec<String> {
        let seen = self.seen.borrow();
        let all = self.tensors().into_iter();
        // What a layer inside gave is for finding mistakes.
        all.filter(|name| !seen.contains(name) && !name.starts_with("act/"))
            .collect()
    }

    /// Names and shapes of the weights.
    pub(crate) fn keys(&self) -> Result<Vec<(String, Vec<usize>)>> {
        keys(&self.about["keys"])
    }

    /// The weights, made from their names.
    pub(crate) fn weights(&self) -> Result<BTreeMap<String, Stored>> {
        weights(&self.keys()?)
    }

    /// The weights as a file.
    pub(crate) fn weight_file(&self) -> Result<Arc<dyn WeightFile>> {
        Ok(Arc::new(GoldenFile {
            name: self.name.clone(),
            weights: self.weights()?,
        }))
    }

    pub(crate) fn store(&self, device: &Device) -> Result<Arc<WeightStore>> {
        Ok(store(&self.name, self.weights()?, device))
    }
}

/// Names and shapes, from a list in JSON.
pub(crate) fn keys(list: &Value) -> Result<Vec<(String, Vec<usize>)>> {
    let Some(list) = list.as_object() else {
        bail!("there is no list of keys");
    };
    list.iter()
        .map(|(key, shape)| {
            let shape = sizes(shape).ok_or_else(|| anyhow!("{key} has no shape"))?;
            Ok((key.clone(), shape))
        })
        .collect()
}

/// Weights, made from their names.
pub(crate) fn weights(keys: &[(String, Vec<usize>)]) -> Result<BTreeMap<String, Stored>> {
    keys.iter()
        .map(|(key, shape)| Ok((key.clone(), Stored::from(&synthetic::weight(key, shape)?))))
        .collect()
}

pub(crate) fn store(
    name: &str,
    weights: BTreeMap<String, Stored>,
    device: &Device,
) -> Arc<WeightStore> {
    WeightStore::from_stored(name, weights, device.clone())
}

/// A golden's weights as a file.
pub(crate) struct GoldenFile {
    pub(crate) name: String,
    pub(crate) weights: BTreeMap<String, Stored>,
}

impl WeightFile for GoldenFile {
    fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    fn names(&self) -> Vec<String> {
        self.weights.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.weights.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> std::result::Result<Stored, WeightError> {
        let found = self.weights.get(name).cloned();
        found.ok_or_else(|| WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// A golden's list of keys as a file.
struct NamesOnly {
    name: String,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl WeightFile for NamesOnly {
    fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    fn names(&self) -> Vec<String> {
        self.shapes.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.shapes.get(name).map(|shape| WeightInfo {
            dtype: Dtype::F32,
            shape: shape.clone(),
        })
    }

    fn read(&self, name: &str) -> std::result::Result<Stored, WeightError> {
        let made = self.shapes.get(name);
        let made = made.and_then(|shape| synthetic::weight(name, shape).ok());
        let made = made.ok_or_else(|| WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })?;
        Ok(Stored::from(&made))
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}
