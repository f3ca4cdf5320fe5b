//! MODEL: a network with the way it is sampled and what nodes patched onto it.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use fresco_graph::{Cx, FromValue, NodeError, Opaque, Pieces, Value, wrong_kind};
use fresco_memory::{Handle, Placement};
use fresco_models::preview::PreviewHints;
use fresco_models::{LatentFormat, LoraStorage, ModelError, ModelSampling, PatchOptions, PatchSet};
use fresco_tensor::{Result, Tensor};

use fresco_models::denoise::hooks::Hooks;
pub use fresco_models::denoise::{BaseModel, Patches};

use crate::resident::Hold;

/// What stands before the store's keys in patches and LoRA files.
pub const WEIGHT_PREFIX: &str = "diffusion_model.";

/// A network with all changes to its weights, and the hold on them.
#[derive(Clone)]
pub struct Ready {
    pub network: Arc<dyn BaseModel>,
    pub hold: Option<Arc<Hold>>,
}

/// The network of a set of weight changes, built when it is first needed.
type Built = Arc<Mutex<Option<Ready>>>;

/// Something beside a model's network that acts inside of it, from a file of its own.
pub trait ModelAddition: Send + Sync {
    /// Its weights' handle, where the memory room has them.
    fn handle(&self) -> Option<&Handle>;

    /// What stands beside the network in a run over latents of this shape. Asked before the model takes its place, so
    /// that other networks can run for it.
    fn for_run(
        &self,
        model: &Model,
        shape: &[usize],
        cx: &Cx,
    ) -> std::result::Result<Arc<dyn Any + Send + Sync>, NodeError>;
}

/// MODEL. Clones share the network; a patch node changes its own clone only.
#[derive(Clone)]
pub struct Model {
    pub base: Arc<dyn BaseModel>,
    pub sampling: Arc<ModelSampling>,
    /// In place of the network's own.
    pub latent_format: Option<LatentFormat>,
    pub patches: Patches,
    /// In the order they act.
    pub additions: Vec<Arc<dyn ModelAddition>>,
    /// What another process does around a whole run.
    pub(crate) around: Option<fresco_graph::Value>,
    /// How the file wants its latents shown.
    preview: Arc<PreviewHints>,
    weight_patches: Option<Arc<PatchSet>>,
    lora_storage: LoraStorage,
    /// What the last LoRA put onto it says about itself.
    lora_notes: Option<Arc<[(String, String)]>>,
    /// Of the weights without changes; none for networks that are not in the memory room.
    hold: Option<Arc<Hold>>,
    built: Built,
}

impl Model {
    pub fn new(base: Arc<dyn BaseModel>, sampling: ModelSampling) -> Self {
        Self {
            base,
            sampling: Arc::new(sampling),
            latent_format: None,
            patches: Patches::default(),
            additions: Vec::new(),
            around: None,
            preview: Arc::default(),
            weight_patches: None,
            lora_storage: LoraStorage::default(),
            lora_notes: None,
            hold: None,
            built: Built::default(),
        }
    }

    /// Says in the log what of a patch has no effect on this network: the reference would leave it out without a word.
    pub(crate) fn warn_of(&self, patch: &str, install: impl FnOnce(&mut Hooks)) {
        let mut hooks = Hooks::default();
        install(&mut hooks);
        for reason in self.base.hook_points().refusals(&hooks) {
            tracing::warn!("{patch} has no effect on {}: {reason}", self.base.name());
        }
    }

    /// The same model over weights that the memory room has.
    #[must_use]
    pub(crate) fn with_hold(mut self, hold: Arc<Hold>) -> Self {
        self.hold = Some(hold);
        self.built = Built::default();
        self
    }

    /// The same model with its weights placed in another way; as it is if they are not in the memory room.
    #[must_use]
    pub(crate) fn with_placement(self, cx: &Cx, placement: Placement) -> Self {
        match self.hold.as_ref().map(|hold| hold.placed(cx, placement)) {
            Some(hold) => self.with_hold(hold),
            None => self,
        }
    }

    /// The handle of its weights.
    pub fn handle(&self) -> Option<&Handle> {
        self.hold.as_deref().map(Hold::handle)
    }

    /// The same model sampled in another way.
    #[must_use]
    pub fn with_sampling(mut self, sampling: ModelSampling) -> Self {
        self.sampling = Arc::new(sampling);
        self
    }

    /// The same model with other latents.
    #[must_use]
    pub fn with_latent_format(mut self, format: LatentFormat) -> Self {
        self.latent_format = Some(format);
        self
    }

    /// The same model with what its file says about pictures of its latents.
    #[must_use]
    pub fn with_preview(mut self, hints: PreviewHints) -> Self {
        self.preview = Arc::new(hints);
        self
    }

    /// What the file says about pictures of its latents. Of other latents than the file's it says nothing.
    pub fn preview(&self) -> Option<&PreviewHints> {
        self.latent_format.is_none().then_some(&*self.preview)
    }

    /// What is changed about the weights.
    pub fn weight_patches(&self) -> Option<&Arc<PatchSet>> {
        self.weight_patches.as_ref()
    }

    /// What changed weights are kept as.
    pub fn lora_storage(&self) -> LoraStorage {
        self.lora_storage
    }

    /// The same model with what a LoRA that was put onto it says about itself.
    #[must_use]
    pub(crate) fn with_lora_notes(mut self, notes: &[(String, String)]) -> Self {
        self.lora_notes = Some(notes.into());
        self
    }

    /// What the last LoRA says under this name; none without a LoRA, and of one that says nothing there.
    pub(crate) fn lora_note(&self, name: &str) -> Option<&str> {
        let notes = self.lora_notes.as_deref()?;
        let found = notes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The same model with changed weights kept in another format, those it has and those that come.
    #[must_use]
    pub fn with_lora_storage(mut self, storage: LoraStorage) -> Self {
        self.lora_storage = storage;
        let Some(set) = &self.weight_patches else {
            return self;
        };
        let options = PatchOptions {
            storage,
            ..set.options()
        };
        let set = set.with_options(options);
        self.with_weight_patches(Arc::new(set))
    }

    /// The same model with these changes to its weights, in place of those it had. Clones of the result share the
    /// changed network.
    #[must_use]
    pub fn with_weight_patches(mut self, patches: Arc<PatchSet>) -> Self {
        self.weight_patches = Some(patches);
        self.built = Built::default();
        self
    }

    /// The network with its changed weights.
    pub fn ready(&self) -> Result<Ready, ModelError> {
        let Some(patches) = &self.weight_patches else {
            return Ok(Ready {
                network: self.base.clone(),
                hold: self.hold.clone(),
            });
        };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = &*built {
            return Ok(ready.clone());
        }
        let store = self.base.store().ok_or_else(|| {
            ModelError::unsupported(
                self.base.name(),
                "the weights of this model cannot be changed",
            )
        })?;
        let store = match &self.hold {
            Some(hold) => hold.patched(patches, store, WEIGHT_PREFIX),
            None => patches.store(store, WEIGHT_PREFIX),
        };
        let network = self.base.with_store(store)?;
        let hold = self.hold.as_ref().and_then(|hold| {
            let network = network.clone().as_network()?;
            Some(hold.derive(&network, patches.keys().count()))
        });
        let ready = Ready { network, hold };
        *built = Some(ready.clone());
        Ok(ready)
    }

    /// From the latents of nodes to those the network works on.
    pub fn process_latent_in(&self, latent: &Tensor) -> Result<Tensor> {
        match &self.latent_format {
            Some(format) => format.process_in(latent),
            None => self.base.process_latent_in(latent),
        }
    }

    /// And back.
    pub fn process_latent_out(&self, latent: &Tensor) -> Result<Tensor> {
        match &self.latent_format {
            Some(format) => format.process_out(latent),
            None => self.base.process_latent_out(latent),
        }
    }
}

impl Opaque for Model {
    fn describe(&self) -> String {
        format!("model {}", self.base.name())
    }

    fn bytes(&self) -> u64 {
        self.base.bytes()
    }

    // The memory room counts the weights.
    fn pieces(&self, _: &mut Pieces) {}
}

impl FromValue for Model {
    const IO: &'static str = "MODEL";
    fn from_value(value: Value) -> std::result::Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<Model> for Value {
    fn from(v: Model) -> Self {
        Self::object(v)
    }
}
