//! LoRA files in memory: read once, whatever the strengths they are used with, and counted by the memory room.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{Cx, NodeError};
use fresco_memory::{
    BoxError, EjectOthers, Handle, HandleOptions, Need, Policy, PolicySource, Unit, Weights,
};
use fresco_models::lora::LoraFile;
use fresco_tensor::{Device, TensorError};

use crate::loaders::find_model;
use crate::resident::{Component, InUse, content, registry, who};

/// A LoRA file in the memory room.
pub(crate) struct LoraEntry {
    file: LoraFile,
    /// What was reported about it.
    reported: Mutex<BTreeSet<u64>>,
}

/// A file as the memory room sees it: one piece in main memory.
struct FileWeights {
    file: LoraFile,
    units: Arc<[Unit]>,
}

impl FileWeights {
    fn new(file: LoraFile) -> Self {
        let bytes = file.bytes();
        let unit = Unit {
            name: "lora".into(),
            bytes,
            cost: bytes,
            embedding: false,
            biased: false,
            castable: false,
            own: false,
            block: None,
        };
        Self {
            file,
            units: [unit].into(),
        }
    }
}

impl Weights for FileWeights {
    fn units(&self) -> Arc<[Unit]> {
        Arc::clone(&self.units)
    }

    fn home(&self, _: usize) -> Option<Device> {
        self.file.is_kept().then(Device::cpu)
    }

    fn load(&self, _: &Device) -> Result<u64, BoxError> {
        Ok(self.file.keep()?)
    }

    /// Patches are made from it in main memory.
    fn move_to(&self, _: usize, _: &Device) -> Result<(), TensorError> {
        Ok(())
    }

    fn release(&self) -> Result<(), BoxError> {
        self.file.forget();
        Ok(())
    }

    fn set_ahead(&self, _: usize) {}

    fn drop_ahead(&self) {}
}

/// A file in use.
pub(crate) struct Lora {
    kept: Arc<LoraEntry>,
    _in_use: InUse,
    _handle: Handle,
}

impl Lora {
    pub(crate) fn file(&self) -> &LoraFile {
        &self.kept.file
    }

    /// Whether this was not said about the file before.
    pub(crate) fn is_news(&self, names: &[String]) -> bool {
        let mut hasher = DefaultHasher::new();
        names.hash(&mut hasher);
        // Nothing is left half done under this lock.
        let reported = self.kept.reported.lock();
        let mut reported = reported.unwrap_or_else(PoisonError::into_inner);
        reported.insert(hasher.finish())
    }
}

/// A LoRA of the user's folders, in memory: by its path, size and time, so that a file that changed is read again.
pub(crate) fn open_lora(cx: &Cx, name: &str) -> Result<Lora, NodeError> {
    open_lora_at(cx, &find_model(cx, "loras", name)?)
}

/// The same for a file anywhere.
pub(crate) fn open_lora_at(cx: &Cx, path: &Path) -> Result<Lora, NodeError> {
    let key = content(&[path], Component::Lora, "")?;
    let (registry, who) = (registry(cx), who(cx));
    let opened = registry.open(&who, &key, "LoraFile", || {
        let file = LoraFile::open(path)?;
        let kept = LoraEntry {
            file: file.clone(),
            reported: Mutex::default(),
        };
        let weights: Arc<dyn Weights> = Arc::new(FileWeights::new(file));
        Ok::<_, NodeError>((Arc::new(kept), weights))
    })?;
    let options = HandleOptions {
        compute: Device::cpu(),
        offload: Device::cpu(),
        placement: None,
        eject_others: EjectOthers::None,
        policy: Policy::Auto,
        source: PolicySource::Default,
        text_encoder: false,
        full: true,
    };
    let handle = registry.handle(&who, &opened.id, options);
    Ok(Lora {
        kept: opened.shared,
        _in_use: InUse::of(cx, &[&handle], Need::default())?,
        _handle: handle,
    })
}
