//! What a family of models writes about its network, and how that becomes a model that everything else can use.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use fresco_tensor::Tensor;

use super::base_model::{BaseModel, prompt_conds};
use super::call::{Call, CallConds, ModelConds};
use super::conds::{ReadCond, names};
use super::hook_points::{HookPoint, HookPoints};
use super::hooks::{ControlFeatures, Hooks};
use super::parts::BesideLatent;
use super::pass_memory::PassMemory;
use super::prepare::EncodeArgs;
use crate::error::{ModelError, Result};
use crate::latent_format::LatentFormat;
use crate::model_sampling::ModelSampling;
use crate::network::{Lazy, Network};
use crate::store::{Layout, Walk, WeightStore};

/// What the general path must know of a network before it is built.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    pub latent: LatentFormat,
    /// Channels of the latents it makes, and of what goes in.
    pub latent_channels: usize,
    pub in_channels: usize,
    /// Width of the prompt's vectors; none if the network looks at no prompt.
    pub context: Option<usize>,
    /// Channels of the first level of networks that have levels.
    pub model_channels: Option<usize>,
    /// What the standard header of weight files calls the architecture, for those that have a name there.
    pub architecture: Option<&'static str>,
    /// What a pass takes beside the weights. All who ask for memory ask this.
    pub pass: PassMemory,
    /// How it is sampled unless a node says otherwise.
    pub sampling: ModelSampling,
}

/// The inputs of one pass of a network.
pub struct NetworkInput<'a> {
    /// (b, c, ...) as the network wants it, with what goes in on further channels.
    pub x: &'a Tensor,
    /// What the network is told of the noise level, for each item.
    pub timesteps: &'a [f32],
    pub conds: &'a CallConds,
    pub control: Option<&'a ControlFeatures>,
    pub hooks: &'a Hooks,
}

/// A family's network: all that is written for it. [`Diffusion`] makes a [`BaseModel`] of it.
pub trait DiffusionNetwork: Sized + Send + Sync + 'static {
    /// The shape of the network, read from keys and shapes.
    type Config: Clone + fmt::Debug + Send + Sync + 'static;

    /// The network in messages.
    const WHAT: &'static str = "the transformer";

    /// In which of its blocks what can act.
    const HOOKS: HookPoints;

    fn facts(config: &Self::Config) -> ModelFacts;

    /// Builds the layers. The only place that says the keys and shapes of the weights.
    fn new(weights: &Walk<'_>, config: &Self::Config) -> Result<Self>;

    /// One pass. Inputs are in main memory, and so is the result, in the shape of the latent.
    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor>;

    /// What of a condition goes into the network; `file` is for messages.
    fn encode(config: &Self::Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let _ = (config, file);
        Ok(prompt_conds(args))
    }

    /// Drops what it remembers of prompts.
    fn rest(&self) {}

    /// Drops what else it keeps to be faster.
    fn shed(&self) {}

    /// Whether the known part of a latent goes in as it is, without the noise of the step.
    fn sees_known_clean(config: &Self::Config) -> bool {
        let _ = config;
        false
    }

    /// What the known part is multiplied with where it goes in without noise.
    fn known_scale(config: &Self::Config, sigma: f32) -> f32 {
        let _ = (config, sigma);
        1.0
    }

    /// The second latent that it samples together with the first, if there is one.
    fn beside(config: &Self::Config) -> Option<BesideLatent> {
        let _ = config;
        None
    }
}

/// A network of a family with the weights of a store. The layers are packed when it first runs.
pub struct Diffusion<N: DiffusionNetwork> {
    store: Arc<WeightStore>,
    config: N::Config,
    facts: ModelFacts,
    network: Lazy<N>,
}

impl<N: DiffusionNetwork> Diffusion<N> {
    /// Says what is missing in the store, or has another shape; reads nothing.
    pub fn open(store: Arc<WeightStore>, config: N::Config) -> Result<Self> {
        Layout::of(|weights| N::new(weights, &config))?.verify(&store, N::WHAT)?;
        let (weights, shape) = (Arc::clone(&store), config.clone());
        let build = move || weights.build(N::WHAT, |weights| N::new(weights, &shape));
        let network = Lazy::new(vec![Arc::clone(&store)], Box::new(build))
            .resting(N::rest)
            .shedding(N::shed);
        Ok(Self {
            facts: N::facts(&config),
            store,
            config,
            network,
        })
    }

    pub fn config(&self) -> &N::Config {
        &self.config
    }

    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    pub fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }

    /// The network, built at the first call.
    pub fn network(&self) -> Result<Arc<N>> {
        self.network.get()
    }

    /// What of a condition goes into the network.
    pub fn encode(&self, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        N::encode(&self.config, self.store.file(), args)
    }
}

impl<N: DiffusionNetwork> BaseModel for Diffusion<N> {
    fn name(&self) -> String {
        self.store.file().to_owned()
    }

    fn process_latent_in(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        self.facts.latent.process_in(latent)
    }

    fn process_latent_out(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        self.facts.latent.process_out(latent)
    }

    fn latent_format(&self) -> Option<LatentFormat> {
        Some(self.facts.latent)
    }

    fn latent_channels(&self) -> usize {
        self.facts.latent_channels
    }

    fn latent_dimensions(&self) -> usize {
        self.facts.latent.dimensions
    }

    fn model_channels(&self) -> Option<usize> {
        self.facts.model_channels
    }

    fn in_channels(&self) -> Option<usize> {
        Some(self.facts.in_channels)
    }

    fn architecture(&self) -> Option<&'static str> {
        self.facts.architecture
    }

    fn hook_points(&self) -> HookPoints {
        N::HOOKS
    }

    fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    fn apply(&self, sampling: &ModelSampling, call: &Call<'_>) -> Result<Tensor> {
        let unknown = call.control.and_then(|control| {
            let mut kinds = control.kinds();
            kinds.find(|kind| !N::HOOKS.has(*kind, HookPoint::Control))
        });
        if let Some(kind) = unknown {
            let kind = kind.name();
            let reason = format!(
                "the control net adds to blocks of the kind {kind}, which this model does not take: choose a control net \
                 that was made for the model"
            );
            return Err(ModelError::unsupported(self.name(), reason));
        }
        let plain = sampling.input(call.sigma, call.x);
        let pass = || {
            let x = match Option::<&Tensor>::read(call.conds, names::BESIDE)? {
                Some(concat) => Tensor::cat(&[&plain, concat], 1)?,
                None => plain.clone(),
            };
            let network = self.network()?;
            let timesteps = vec![sampling.timestep(call.sigma); call.x.dim(0)?];
            let forward = || {
                network.forward(&NetworkInput {
                    x: &x,
                    timesteps: &timesteps,
                    conds: call.conds,
                    control: call.control,
                    hooks: call.hooks,
                })
            };
            if call.hooks.block_cache.is_some() {
                // A pass that may end after its first block is like no other.
                return forward();
            }
            // Steps over latents of one shape mostly do the same; a device that can repeat them finds out.
            let mut key = std::hash::DefaultHasher::new();
            (self.store.address(), x.shape()).hash(&mut key);
            self.store.device().repeated(key.finish(), forward)
        };
        let out = match &call.hooks.reused_passes {
            Some(reuse) => reuse.around(&plain, call.sigma, &call.hooks.info.cond_ids, pass)?,
            None => pass()?,
        };
        Ok(sampling.denoised(call.sigma, &out, call.x)?)
    }

    fn extra_conds(&self, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        self.encode(args)
    }

    fn pass_bytes(&self, shape: &[usize]) -> u64 {
        self.facts.pass.bytes(shape)
    }

    fn sees_known_clean(&self) -> bool {
        N::sees_known_clean(&self.config)
    }

    fn known_scale(&self, sigma: f32) -> f32 {
        N::known_scale(&self.config, sigma)
    }

    fn beside_latent(&self) -> Option<BesideLatent> {
        N::beside(&self.config)
    }

    fn store(&self) -> Option<&Arc<WeightStore>> {
        Some(&self.store)
    }

    fn as_network(self: Arc<Self>) -> Option<Arc<dyn Network>> {
        Some(self)
    }

    fn with_store(&self, store: Arc<WeightStore>) -> Result<Arc<dyn BaseModel>> {
        Ok(Arc::new(Self::open(store, self.config.clone())?))
    }
}

impl<N: DiffusionNetwork> Network for Diffusion<N> {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        self.network.stores()
    }

    fn build(&self) -> Result<()> {
        self.network.build()
    }

    fn is_built(&self) -> bool {
        self.network.is_built()
    }

    fn forget(&self) {
        self.network.forget();
    }

    fn rest(&self) {
        self.network.rest();
    }

    fn shed(&self) {
        self.network.shed();
    }
}

/// A network that was found in a file, whichever family it is of.
pub trait FoundNetwork: fmt::Debug + Send + Sync {
    fn facts(&self) -> ModelFacts;

    /// Where it can be acted on.
    fn hook_points(&self) -> HookPoints;

    /// Every weight with its shape.
    fn layout(&self) -> Result<Layout>;

    /// The network over its weights.
    fn open(&self, store: Arc<WeightStore>) -> Result<Arc<dyn BaseModel>>;

    /// The config, for those who know the family.
    fn config(&self) -> &dyn Any;
}

/// The config of a family's network, as detection finds it.
pub struct Found<N: DiffusionNetwork>(pub N::Config);

impl<N: DiffusionNetwork> fmt::Debug for Found<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<N: DiffusionNetwork> FoundNetwork for Found<N> {
    fn facts(&self) -> ModelFacts {
        N::facts(&self.0)
    }

    fn hook_points(&self) -> HookPoints {
        N::HOOKS
    }

    fn layout(&self) -> Result<Layout> {
        Layout::of(|weights| N::new(weights, &self.0))
    }

    fn open(&self, store: Arc<WeightStore>) -> Result<Arc<dyn BaseModel>> {
        Ok(Arc::new(Diffusion::<N>::open(store, self.0.clone())?))
    }

    fn config(&self) -> &dyn Any {
        &self.0
    }
}
