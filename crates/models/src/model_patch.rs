//! Networks in files of their own that act inside a diffusion network. Which ones there are is said in
//! [`MODEL_PATCHES`](crate::detect::MODEL_PATCHES).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use crate::error::{ModelError, Result};
use crate::store::{Layout, Walk, WeightStore};

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
    /// Weights of which `network` makes what is called `what` in messages. Keys and shapes that it lacks are said now.
    pub(crate) fn new<C, N>(
        kind: &'static str,
        what: &'static str,
        store: Arc<WeightStore>,
        config: C,
        network: fn(&Walk<'_>, &C) -> Result<N>,
    ) -> Result<Self>
    where
        C: Send + Sync + 'static,
        N: Send + Sync + 'static,
    {
        Layout::of(|weights| network(weights, &config))?.verify(&store, what)?;
        let config = Arc::new(config);
        let own = Arc::clone(&config);
        let build = move |store: &WeightStore| {
            let network = store.build(what, |weights| network(weights, &own))?;
            Ok(PatchNetwork::new(network))
        };
        Ok(Self {
            kind,
            store,
            config,
            build: Arc::new(build),
        })
    }

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
