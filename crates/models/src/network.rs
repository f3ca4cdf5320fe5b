//! Networks whose layers are built when they are first needed, and can be given up in between.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::store::WeightStore;

/// A network as the memory manager sees it: weights in stores, and perhaps layers built from them.
///
/// The stores hold the layers, so memory comes back when the network and its stores have been told to forget.
pub trait Network: Send + Sync {
    /// Where the weights are.
    fn stores(&self) -> Vec<Arc<WeightStore>>;

    /// Builds all layers, if that has not been done. A use does the same.
    fn build(&self) -> Result<()>;

    fn is_built(&self) -> bool;

    /// Drops the network; the next use builds it again.
    fn forget(&self);

    /// Drops what the network remembers of the prompts that it computed with.
    fn rest(&self) {}

    /// Drops all that the network only keeps to be faster.
    fn shed(&self) {
        self.rest();
    }
}

/// A network that is built at its first use.
pub struct Lazy<N> {
    stores: Vec<Arc<WeightStore>>,
    build: Box<dyn Fn() -> Result<N> + Send + Sync>,
    rest: Option<fn(&N)>,
    shed: Option<fn(&N)>,
    /// Held while it is built, which may wait for a file.
    building: Mutex<()>,
    /// Held for a moment.
    built: Mutex<Option<Arc<N>>>,
}

impl<N> Lazy<N> {
    /// `build` makes the network from the stores.
    pub fn new(
        stores: Vec<Arc<WeightStore>>,
        build: Box<dyn Fn() -> Result<N> + Send + Sync>,
    ) -> Self {
        Self {
            stores,
            build,
            rest: None,
            shed: None,
            building: Mutex::new(()),
            built: Mutex::new(None),
        }
    }

    /// With what the network drops when it rests.
    #[must_use]
    pub fn resting(mut self, rest: fn(&N)) -> Self {
        self.rest = Some(rest);
        self
    }

    /// With what the network drops where memory is short, beyond what it drops when it rests.
    #[must_use]
    pub fn shedding(mut self, shed: fn(&N)) -> Self {
        self.shed = Some(shed);
        self
    }

    /// The network, built if need be. Others wait while one builds, as long as their work is wanted.
    pub fn get(&self) -> Result<Arc<N>> {
        if let Some(network) = self.built() {
            return Ok(network);
        }
        let _building = fresco_tensor::cancel::lock(&self.building)?;
        if let Some(network) = self.built() {
            return Ok(network);
        }
        let network = Arc::new((self.build)()?);
        *self.lock() = Some(Arc::clone(&network));
        Ok(network)
    }

    /// The network if it is built.
    pub fn built(&self) -> Option<Arc<N>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<N>>> {
        // Set only when all is done.
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<N: Send + Sync> Network for Lazy<N> {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        self.stores.clone()
    }

    fn build(&self) -> Result<()> {
        self.get().map(drop)
    }

    fn is_built(&self) -> bool {
        self.lock().is_some()
    }

    fn forget(&self) {
        let network = self.lock().take();
        // Freed outside the lock.
        drop(network);
    }

    fn rest(&self) {
        if let (Some(rest), Some(network)) = (self.rest, self.built()) {
            rest(&network);
        }
    }

    fn shed(&self) {
        self.rest();
        if let (Some(shed), Some(network)) = (self.shed, self.built()) {
            shed(&network);
        }
    }
}

impl<N> std::fmt::Debug for Lazy<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lazy")
            .field("stores", &self.stores)
            .field("built", &self.lock().is_some())
            .finish_non_exhaustive()
    }
}
