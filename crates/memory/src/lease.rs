//! What the rest of the program holds: handles on models, and leases while it computes with them.

use std::fmt;
use std::sync::Arc;

use fresco_tensor::Device;

use crate::{ModelId, ModelRegistry, Policy, PolicySource, Weights, WeightsId, Who};

/// A model as it flows between nodes: which weights, with which patches, for which devices. It holds no weights: those
/// may be released and are read again at the next use.
#[derive(Clone)]
pub struct Handle(Arc<LeaseState>);

struct LeaseState {
    registry: ModelRegistry,
    id: WeightsId,
    model: ModelId,
    compute: Device,
    /// What it was made from lives as long: units may be that one's own.
    _parent: Option<Handle>,
}

impl Drop for LeaseState {
    fn drop(&mut self) {
        self.registry.forget_handle(&self.id, self.model);
    }
}

impl Handle {
    pub(crate) fn new(
        registry: ModelRegistry,
        id: WeightsId,
        model: ModelId,
        compute: Device,
        parent: Option<Self>,
    ) -> Self {
        Self(Arc::new(LeaseState {
            registry,
            id,
            model,
            compute,
            _parent: parent,
        }))
    }

    pub fn id(&self) -> &WeightsId {
        &self.0.id
    }

    pub fn model(&self) -> ModelId {
        self.0.model
    }

    pub fn compute(&self) -> Device {
        self.0.compute.clone()
    }

    pub fn registry(&self) -> &ModelRegistry {
        &self.0.registry
    }

    /// A patched variant: it shares the weights and has units of its own, marked `own` among `weights.units()`.
    pub fn derive(&self, weights: Arc<dyn Weights>, patches: usize) -> Self {
        self.0.registry.derive(self, weights, patches)
    }

    /// The wish of a node that is not the loader.
    pub fn set_policy(&self, who: &Who, policy: Policy, source: PolicySource) {
        self.0.registry.claim_for(who, self, policy, source);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({} of {})", self.0.model, self.0.id)
    }
}

/// Models that are in place and stay so while something computes with them. Ends when dropped, also by a panic; the
/// prompt's hold on the weights lasts until the prompt ends.
pub struct Lease {
    pub(crate) registry: ModelRegistry,
    pub(crate) number: u64,
    pub(crate) handles: Vec<Handle>,
}

impl Lease {
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.registry.end_lease(self.number);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.handles).finish()
    }
}
