//! LoRA nodes, and what all nodes that change weights share: which weights a value has and how patches are added.

mod extract;
mod loader;

use std::sync::Arc;

use fresco_graph::{Cx, NodeEntry, NodeError, entry};
use fresco_models::lora::{Loaded, LoraFile, NameMap, load};
use fresco_models::patch::Patch;
use fresco_models::{PatchSet, Store};

pub use fresco_models::PatchMode;

use crate::clip::Clip;
use crate::sampling::Model;
use crate::sampling::model::WEIGHT_PREFIX;
use crate::vae::Vae;

pub static NODES: &[NodeEntry] = &[
    entry::<loader::LoraLoader>(),
    entry::<loader::LoraLoaderModelOnly>(),
    entry::<extract::LoraSave>(),
];

/// Settings of the program that LoRA nodes obey; a resource of the assembly, defaults when absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoraOptions {
    /// Whether changed weights are kept or made for every use.
    pub mode: PatchMode,
}

/// The number format in which patches are merged into weights; a resource of the assembly, automatic when absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeDtype {
    /// Single precision, whatever the weights are stored in.
    #[default]
    Auto,
    /// Rounded to half precision on the way.
    Fp16,
    Fp32,
}

/// A value on a link whose weights can be changed.
pub(crate) trait Weights: Sized {
    /// The stores without any patch, each with what stands before its keys in patches.
    fn stores(&self) -> Result<Vec<(String, Arc<Store>)>, NodeError>;

    fn weight_patches(&self) -> Option<&Arc<PatchSet>>;

    /// The same value with these patches in place of those it had.
    fn with_patch_set(self, set: Arc<PatchSet>) -> Result<Self, NodeError>;

    /// The names that LoRA files have for these weights.
    fn lora_names(&self) -> Result<NameMap, NodeError>;
}

impl Weights for Model {
    fn stores(&self) -> Result<Vec<(String, Arc<Store>)>, NodeError> {
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
}

impl Weights for Clip {
    fn stores(&self) -> Result<Vec<(String, Arc<Store>)>, NodeError> {
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
        Ok(NameMap::for_clip(&keys))
    }
}

impl Weights for Vae {
    fn stores(&self) -> Result<Vec<(String, Arc<Store>)>, NodeError> {
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
fn shape_of(stores: &[(String, Arc<Store>)], key: &str) -> Option<Vec<usize>> {
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
    let mode = cx.resources.get::<LoraOptions>().map(|o| o.mode);
    add_patches(value, patches, what, mode)
}

/// Patches of keys that the value lacks are left out; those that do not fit are reported, and do nothing.
pub(crate) fn add_patches<T: Weights>(
    value: T,
    patches: Vec<(String, Patch)>,
    what: &str,
    mode: Option<PatchMode>,
) -> Result<T, NodeError> {
    let stores = value.stores()?;
    let old = value.weight_patches().cloned().unwrap_or_default();
    let mut ours = Vec::new();
    let mut odd = Vec::new();
    for (key, patch) in patches {
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
        ours.push((key, patch));
    }
    if let Some(first) = odd.first() {
        tracing::warn!(
            "{what}: {} of {} changes do not fit and are skipped, the first is {first}",
            odd.len(),
            ours.len()
        );
    }
    if ours.is_empty() {
        return Ok(value);
    }
    let mut set = old.with(ours);
    if let Some(mode) = mode {
        set = set.with_mode(mode);
    }
    value.with_patch_set(Arc::new(set))
}

/// Opens a LoRA of the user's folders.
pub(crate) fn open_lora(cx: &Cx, name: &str) -> Result<LoraFile, NodeError> {
    let folders = cx.resource::<fresco_files::folders::Folders>()?;
    let path = folders
        .require("loras", name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))?;
    Ok(LoraFile::open(&path)?)
}

/// How many names a report lists.
const NAMED: usize = 5;

/// Everything in a file that the names lead to; says what is not used.
pub(crate) fn load_lora(file: &LoraFile, names: &NameMap, cx: &Cx) -> Result<Loaded, NodeError> {
    let loaded = load(file, names)?;
    let total = loaded.used + loaded.unused.len();
    if !loaded.unused.is_empty() {
        let shown: Vec<&str> = loaded
            .unused
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect();
        let more = loaded.unused.len() - shown.len();
        let path = file.path().display();
        let text = format!("{} of {total} LoRA keys match the model", loaded.used);
        tracing::warn!(
            "{path}: {text}; not loaded: {}{}",
            shown.join(", "),
            if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            }
        );
        if loaded.used == 0 {
            cx.services.text(&cx.node_id, &text);
        }
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests;
