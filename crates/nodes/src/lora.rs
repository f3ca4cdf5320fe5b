//! LoRA nodes, and what all nodes that change weights share: which weights a value has and how patches are added.

mod extract;
mod kept;
mod loader;
mod tuned;

use std::sync::Arc;

use fresco_graph::{Cx, NodeEntry, NodeError, entry};
use fresco_models::lora::{Loaded, NameMap, load};
use fresco_models::patch::Patch;
use fresco_models::{LoraStorage, OftStrength, PatchOptions, PatchSet, WeightStore};

pub use fresco_models::{MergeDtype, PatchMode};
pub(crate) use kept::{Lora, open_lora, open_lora_at};
pub(crate) use loader::apply_lora;

use crate::clip::Clip;
use crate::sampling::Model;
use crate::sampling::model::WEIGHT_PREFIX;
use crate::vae::Vae;

pub static NODES: &[NodeEntry] = &[
    entry::<loader::LoraLoader>(),
    entry::<loader::LoraLoaderModelOnly>(),
    entry::<extract::LoraSave>(),
    entry::<tuned::FrescoLoraLoader>(),
];

/// Settings of the program that LoRA nodes obey; a resource of the assembly, defaults when absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoraOptions {
    /// Whether changed weights are kept or made for every use.
    pub mode: PatchMode,
}

/// How the patches of one node are to be applied.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Application {
    pub(crate) mode: PatchMode,
    pub(crate) oft: OftStrength,
    pub(crate) merge: MergeDtype,
    /// In place of what the value's loader was told.
    pub(crate) storage: Option<LoraStorage>,
}

impl Application {
    /// As the program was told to.
    pub(crate) fn usual(cx: &Cx) -> Self {
        let resources = &cx.resources;
        Self {
            mode: resources
                .get::<LoraOptions>()
                .map_or_else(PatchMode::default, |o| o.mode),
            merge: resources
                .get::<MergeDtype>()
                .map_or_else(MergeDtype::default, |m| *m),
            ..Self::default()
        }
    }
}

/// A value on a link whose weights can be changed.
pub(crate) trait Weights: Sized {
    /// The stores without any patch, each with what stands before its keys in patches.
    fn stores(&self) -> Result<Vec<(String, Arc<WeightStore>)>, NodeError>;

    fn weight_patches(&self) -> Option<&Arc<PatchSet>>;

    /// The same value with these patches in place of those it had.
    fn with_patch_set(self, set: Arc<PatchSet>) -> Result<Self, NodeError>;

    /// The names that LoRA files have for these weights.
    fn lora_names(&self) -> Result<NameMap, NodeError>;

    /// What the loader of the value said that changed weights are kept as.
    fn lora_storage(&self) -> LoraStorage {
        LoraStorage::default()
    }
}

impl Weights for Model {
    fn stores(&self) -> Result<Vec<(String, Arc<WeightStore>)>, NodeError> {
        let store = self.base.store().ok_or_else(|| {
            NodeError::runtime(format!(
                "the weights of {} cannot be changed or saved",
                self.base.name()
            ))
        })?;
        Ok(vec![(WEIGHT_PREFIX.to_owned(), Arc::clone(store))])
    }

    fn weight_patches(&self) -> Option<&Arc<PatchSet>> {
        Self::weight_patches(self)
    }

    fn with_patch_set(self, set: Arc<PatchSet>) -> Result<Self, NodeError> {
        Ok(self.with_weight_patches(set))
    }

    fn lora_names(&self) -> Result<NameMap, NodeError> {
        let stores = self.stores()?;
        let mut names = NameMap::default();
        for (_, store) in &stores {
            let keys = store.keys();
            let keys: Vec<(&str, &[usize])> = keys
                .into_iter()
                .filter_map(|key| Some((key, store.shape(key)?)))
                .collect();
            names = names.and(NameMap::for_model(&keys));
        }
        Ok(names)
    }

    fn lora_storage(&self) -> LoraStorage {
        Self::lora_storage(self)
    }
}

impl Weights for Clip {
    fn stores(&self) -> Result<Vec<(String, Arc<WeightStore>)>, NodeError> {
        Ok(Self::stores(self))
    }

    fn weight_patches(&self) -> Option<&Arc<PatchSet>> {
        Self::weight_patches(self)
    }

    fn with_patch_set(self, set: Arc<PatchSet>) -> Result<Self, NodeError> {
        self.with_weight_patches(set)
    }

    fn lora_names(&self) -> Result<NameMap, NodeError> {
        let keys = self.loaded().keys();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        Ok(NameMap::for_text(&keys))
    }
}

impl Weights for Vae {
    fn stores(&self) -> Result<Vec<(String, Arc<WeightStore>)>, NodeError> {
        let store = self.0.store().ok_or_else(|| {
            NodeError::runtime("the weights of this VAE cannot be saved".to_owned())
        })?;
        Ok(vec![(String::new(), Arc::clone(store))])
    }

    fn weight_patches(&self) -> Option<&Arc<PatchSet>> {
        None
    }

    fn with_patch_set(self, _: Arc<PatchSet>) -> Result<Self, NodeError> {
        Err(NodeError::runtime("the weights of a VAE cannot be changed"))
    }

    fn lora_names(&self) -> Result<NameMap, NodeError> {
        Ok(NameMap::default())
    }
}

/// The shape of a weight as its store has it.
fn shape_of(stores: &[(String, Arc<WeightStore>)], key: &str) -> Option<Vec<usize>> {
    stores
        .iter()
        .find_map(|(prefix, store)| store.shape(key.strip_prefix(prefix.as_str())?))
        .map(<[usize]>::to_vec)
}

/// A value with more patches, after those it has, and kept as the program was told to. See [`add_patches`].
pub(crate) fn with_patches<T: Weights>(
    value: T,
    patches: Vec<(String, Patch)>,
    what: &str,
    cx: &Cx,
) -> Result<T, NodeError> {
    let (value, _) = add_patches(value, patches, what, Some(Application::usual(cx)))?;
    Ok(value)
}

/// What became of the patches that were to be added to a value.
#[derive(Debug, Default)]
pub(crate) struct Fit {
    /// How many change something.
    pub(crate) fitting: usize,
    /// Those of another shape, each with the reason.
    pub(crate) odd: Vec<String>,
}

/// Patches of keys that the value lacks are left out; those that do not fit are reported, and do nothing. Without an
/// application they are merged as the value's other patches are.
pub(crate) fn add_patches<T: Weights>(
    value: T,
    patches: Vec<(String, Patch)>,
    what: &str,
    application: Option<Application>,
) -> Result<(T, Fit), NodeError> {
    let stores = value.stores()?;
    let old = value.weight_patches().cloned();
    let fresh = old.is_none();
    let old = old.unwrap_or_default();
    let mut ours = Vec::new();
    let mut odd = Vec::new();
    for (key, mut patch) in patches {
        let Some(shape) = shape_of(&stores, &key) else {
            continue;
        };
        // As it is when this patch's turn comes.
        let shape = old.get(&key).iter().fold(shape, |shape, earlier| {
            earlier.changed_shape(&shape).unwrap_or(shape)
        });
        if let Err(reason) = patch.changed_shape(&shape) {
            odd.push(format!("{key}: {reason}"));
        }
        if let Some(application) = application {
            patch.mode = application.mode;
            patch.oft = application.oft;
        }
        ours.push((key, patch));
    }
    if !odd.is_empty() {
        let shown = &odd[..odd.len().min(NAMED)];
        let more = match odd.len() - shown.len() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        tracing::warn!(
            "{what}: {} of {} changes do not fit and are skipped: {}{more}",
            odd.len(),
            ours.len(),
            shown.join("; ")
        );
    }
    let fit = Fit {
        fitting: ours.len() - odd.len(),
        odd,
    };
    if ours.is_empty() {
        return Ok((value, fit));
    }
    let mut options = old.options();
    if fresh {
        options.storage = value.lora_storage();
    }
    if let Some(application) = application {
        options = PatchOptions {
            merge: application.merge,
            storage: application.storage.unwrap_or(options.storage),
        };
    }
    let set = old.with(ours).with_options(options);
    Ok((value.with_patch_set(Arc::new(set))?, fit))
}

/// How many names a report lists.
const NAMED: usize = 5;

/// Everything in a file that the names lead to; says what is not used, in the log once per file.
pub(crate) fn load_lora(lora: &kept::Lora, names: &NameMap) -> Result<Loaded, NodeError> {
    let file = lora.file();
    let loaded = load(file, names)?;
    let total = loaded.used + loaded.unused.len();
    if loaded.unused.is_empty() {
        return Ok(loaded);
    }
    let text = format!("{} of {total} LoRA keys match the model", loaded.used);
    if lora.is_news(&loaded.unused) {
        let shown = loaded.unused.iter().take(NAMED).map(String::as_str);
        let shown: Vec<&str> = shown.collect();
        let more = match loaded.unused.len() - shown.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let path = file.path().display();
        tracing::warn!("{path}: {text}; not loaded: {}{more}", shown.join(", "));
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests;
