//! Networks in files of their own that act inside a diffusion network. Which ones there are is said in
//! [`MODEL_PATCHES`](crate::detect::MODEL_PATCHES).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// A network of any kind; the family that it acts in knows its type.
pub struct PatchNetwork(Box<dyn Any + Send + Sync>);

impl PatchNetwork {
    pub fn new(network: impl Any + Send + Sync) -> Self {
        Self(Box::new(network))
    }

    /// As the type that it is.
    pub fn of<T: 'static>(&self) -> Result<&T> {
        let found = self.0.downcast_ref();
        found.ok_or_else(|| ModelError::invalid("model patch", "it is of another kind"))
    }
}

/// Recognises a kind of patch in a file by its names; none if it holds something else. An error says what is wrong with
/// one of this kind.
pub type FindPatch = fn(&Arc<dyn WeightFile>, &[String], &Device) -> Result<Option<PatchStore>>;

/// Builds the network from its weights.
pub type BuildPatch = Arc<dyn Fn(&WeightStore) -> Result<PatchNetwork> + Send + Sync>;

/// The weights of a patch file, with what kind of network they make.
#[derive(Clone)]
pub struct PatchStore {
    /// For people: "a control net of some family".
    pub kind: &'static str,
    pub store: Arc<WeightStore>,
    /// What detection found, for those who know the kind.
    pub config: Arc<dyn Any + Send + Sync>,
    pub build: BuildPatch,
}

impl PatchStore {
    /// The same weights, computed with on another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        Self {
            store: self.store.on(device),
            ..self.clone()
        }
    }

    pub fn build(&self) -> Result<PatchNetwork> {
        (self.build)(&self.store)
    }

    /// The config as the type that one kind has; none for other kinds.
    pub fn config<T: 'static>(&self) -> Option<&T> {
        self.config.downcast_ref()
    }
}

impl fmt::Debug for PatchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.kind, self.store.file())
    }
}
