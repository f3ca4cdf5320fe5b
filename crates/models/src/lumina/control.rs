//! Control nets of Z-Image: blocks like its own that see a picture's latent, and whose results are added to the picture's
//! tokens after some of its blocks.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, Mask};
use fresco_tensor::{
    Crop, Device, ResizeMethod, Tensor, WeightFile, common_upscale, repeat_to_batch,
};

use super::blocks;
use super::config::{BlockConfig, PATCH};
use super::names::{CONTROL, is_own};
use crate::denoise::hooks::Hooks;
use crate::detect::FileKeys;
use crate::error::{ModelError, Result};
use crate::model_patch::{PatchNetwork, PatchStore};
use crate::network::Lazy;
use crate::store::{Walk, WeightStore};
use crate::transformer::{PatchOrder, Rope, SandwichBlock, Shapes, circular_pad, to_tokens};

/// The network in messages.
pub const WHAT: &str = "the control net";

/// What files of this kind are.
pub const KIND: &str = "a control net for Z-Image";

/// The key that only these files have.
const MARK: &str = "control_all_x_embedder.2-1.weight";

/// Blocks of the network that is steered, in the rule that says where control layers act.
const STEERED: usize = 30;

/// Recognises files of this kind.
pub fn find(
    file: &Arc<dyn WeightFile>,
    names: &[String],
    device: &Device,
) -> Result<Option<PatchStore>> {
    if !names.iter().any(|name| name == MARK) {
        return Ok(None);
    }
    let mut origins = FileKeys::whole(file, names).origins_by(&CONTROL);
    origins.retain(|key, _| is_own(key) || key.starts_with("control_"));
    let store = WeightStore::mapped(Arc::clone(file), origins, device.clone());
    let config = ControlConfig::detect(&store)?;
    PatchStore::new(KIND, WHAT, store, config, FunControlNet::new).map(Some)
}

/// Whether a network is one that these control nets act in.
pub fn steers(store: &WeightStore) -> bool {
    store.has("layers.0.adaLN_modulation.0.weight")
        && store.has("noise_refiner.0.attention.qkv.weight")
}

/// What the blocks do that are run before prompt and picture are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refiners {
    /// Refine the control picture, and add nothing.
    Plain,
    /// Are control layers of their own.
    Control,
    /// Were never trained: the first control layers stand in for them.
    Untrained,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ControlConfig {
    pub block: BlockConfig,
    /// Channels of the control latent.
    pub channels: usize,
    pub layers: usize,
    /// How many layers the rule counts with that says where they act.
    pub rule_layers: usize,
    pub refiners: Refiners,
    pub refiner_count: usize,
}

impl ControlConfig {
    /// From the keys of a store, and the values of one that says whether a part was trained.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (_, values) = shapes.matrix(MARK)?;
        let layers = shapes.count("control_layers");
        let first = "control_noise_refiner.0.after_proj.weight";
        let refiners = if !shapes.has(first) {
            Refiners::Plain
        } else if store.tensor(first)?.data().iter().all(|v| *v == 0.0) {
            Refiners::Untrained
        } else {
            Refiners::Control
        };
        if layers == 0 || !values.is_multiple_of(PATCH * PATCH) {
            let reason = format!("a control net of {layers} layers over {values} values");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            block: BlockConfig::detect(shapes, "control_layers.0")?,
            channels: values / PATCH / PATCH,
            layers,
            rule_layers: layers,
            refiners,
            refiner_count: shapes.count("control_noise_refiner"),
        })
    }

    /// Whether it sees more than a control picture: a mask, and the picture that is painted in.
    pub fn inpaints(&self, latent_channels: usize) -> bool {
        self.channels == 2 * latent_channels + 1
    }

    /// Blocks of the steered network for each layer.
    fn step(&self) -> usize {
        let step = (STEERED as f64 / self.rule_layers.max(1) as f64).round_ties_even();
        (step as usize).max(1)
    }
}

struct ControlBlock {
    before: Option<Arc<Linear>>,
    block: SandwichBlock,
    after: Option<Arc<Linear>>,
}

impl ControlBlock {
    fn new(weights: &Walk<'_>, config: &BlockConfig, number: usize, acts: bool) -> Result<Self> {
        let dim = config.dim;
        let weights = weights.at(number);
        let linear = |name: &str, there: bool| -> Result<Option<Arc<Linear>>> {
            there.then(|| weights.linear(name, dim, dim)).transpose()
        };
        Ok(Self {
            block: blocks::block(&weights, config, true)?,
            before: linear("before_proj", acts && number == 0)?,
            after: linear("after_proj", acts)?,
        })
    }
}

/// The network of a control file.
pub struct FunControlNet {
    device: Device,
    config: ControlConfig,
    embed: Arc<Linear>,
    refiners: Vec<ControlBlock>,
    layers: Vec<ControlBlock>,
}

impl FunControlNet {
    pub fn new(weights: &Walk<'_>, config: &ControlConfig) -> Result<Self> {
        let block = &config.block;
        let blocks = |name: &str, count: usize, acts: bool| -> Result<Vec<ControlBlock>> {
            let list = weights.at(name);
            let block = |number| ControlBlock::new(&list, block, number, acts);
            (0..count).map(block).collect()
        };
        let refiners = match config.refiners {
            Refiners::Plain => blocks("control_noise_refiner", config.refiner_count, false)?,
            Refiners::Control => blocks("control_noise_refiner", config.refiner_count, true)?,
            Refiners::Untrained => Vec::new(),
        };
        let values = config.channels * PATCH * PATCH;
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            embed: weights.linear("control_all_x_embedder.2-1", block.dim, values)?,
            refiners,
            layers: blocks("control_layers", config.layers, true)?,
        })
    }

    pub fn config(&self) -> &ControlConfig {
        &self.config
    }
}

/// A control net with the latent it sees. Stands beside a network in [`Hooks::beside`].
pub struct FunControl {
    pub network: Arc<Lazy<PatchNetwork>>,
    /// (b, c, h, w), as the network sees latents: the control picture, and for nets that paint in a mask and a picture.
    pub latent: Tensor,
    pub strength: f32,
}

/// A control net during one pass.
pub(super) struct Running<'a> {
    control: &'a FunControl,
    network: Arc<PatchNetwork>,
    /// Where the network computes that is steered.
    home: Device,
    rope: Rope,
    signal: Tensor,
    /// What flows through its blocks.
    c: Tensor,
    /// The picture's tokens where the blocks begin that it acts on.
    entered: Tensor,
    /// Layers that have run.
    done: usize,
}

impl<'a> Running<'a> {
    pub(super) fn new(
        control: &'a FunControl,
        device: &Device,
        (steered, shape): (&BlockConfig, [usize; 4]),
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Self> {
        let built = control.network.get()?;
        let network = built.of::<FunControlNet>()?;
        let config = &network.config;
        if config.block.dim != steered.dim || config.block.signal != steered.signal {
            return Err(ModelError::invalid(
                "control net",
                format!(
                    "it is for models of width {}, and this one is {} wide",
                    config.block.dim, steered.dim
                ),
            ));
        }
        let [batch, _, h, w] = shape;
        let mut latent = control.latent.clone();
        if latent.dim(1)? != config.channels {
            let found = latent.dim(1)?;
            let reason = format!("it sees {} channels and not {found}", config.channels);
            return Err(ModelError::invalid("control net", reason));
        }
        if latent.shape()[2..] != [h, w] {
            latent = common_upscale(&latent, w, h, ResizeMethod::Bilinear, Crop::Center)?;
        }
        let latent = circular_pad(&repeat_to_batch(&latent, batch)?, PATCH)?;
        let tokens = to_tokens(&latent, PATCH, PatchOrder::ChannelLast)?.to(&network.device)?;
        let (rope, signal) = (rope.to(&network.device)?, signal.to(&network.device)?);
        let mut c = network.embed.forward(&tokens)?;
        if config.refiners == Refiners::Plain {
            for refiner in &network.refiners {
                c = refiner.block.forward(c, Mask::None, &rope, &signal)?;
            }
        }
        Ok(Self {
            control,
            home: device.clone(),
            rope,
            signal,
            entered: c.clone(),
            c,
            done: 0,
            network: built,
        })
    }

    /// The picture's tokens before the blocks that follow: those that see it alone, then those that see the prompt too.
    pub(super) fn enters(&mut self, picture: &Tensor) -> Result<()> {
        let own = picture.narrow(1, 0, self.c.dim(1)?)?;
        self.entered = own.to(&self.c.device())?;
        Ok(())
    }

    /// Runs a block on what flows here; what is to be added to the picture.
    fn step(&mut self, block: &ControlBlock) -> Result<Option<Tensor>> {
        let mut c = self.c.clone();
        if let Some(before) = &block.before {
            c = before.forward_with(&c, crate::epilogue::plus(&self.entered))?;
        }
        self.c = block
            .block
            .forward(c, Mask::None, &self.rope, &self.signal)?;
        let after = block.after.as_ref();
        let added = after.map(|after| after.forward(&self.c)).transpose()?;
        let Some(added) = added else {
            return Ok(None);
        };
        let added = added.mul_scalar(self.control.strength);
        Ok(Some(added.to(&self.home)?))
    }

    pub(super) fn after_refiner(
        &mut self,
        number: usize,
        picture: Tensor,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let built = Arc::clone(&self.network);
        let network = built.of::<FunControlNet>()?;
        let blocks = match (network.config.refiners, number) {
            (Refiners::Control, number) => network.refiners.get(number..=number).unwrap_or(&[]),
            (Refiners::Untrained, 0) => &network.layers[..1],
            (Refiners::Untrained, 1) => &network.layers[1..],
            (Refiners::Plain | Refiners::Untrained, _) => &[],
        };
        let mut added = None;
        for block in blocks {
            hooks.check()?;
            let made = self.step(block)?;
            added = added.or(made);
        }
        add(picture, added.as_ref(), 0)
    }

    /// `x` are the tokens of the prompt and of the picture, which starts at `start`.
    pub(super) fn after_layer(
        &mut self,
        number: usize,
        x: Tensor,
        start: usize,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let built = Arc::clone(&self.network);
        let network = built.of::<FunControlNet>()?;
        let step = network.config.step();
        // A layer acts after the first of the blocks it is for.
        if !number.is_multiple_of(step) {
            return Ok(x);
        }
        let wanted = number / step;
        if wanted >= network.config.rule_layers {
            return Ok(x);
        }
        let mut added = None;
        while self.done <= wanted {
            hooks.check()?;
            let Some(block) = network.layers.get(self.done) else {
                return Ok(x);
            };
            added = self.step(block)?;
            self.done += 1;
        }
        add(x, added.as_ref(), start)
    }
}

/// Adds to some of the tokens.
fn add(mut x: Tensor, added: Option<&Tensor>, start: usize) -> Result<Tensor> {
    let Some(added) = added else {
        return Ok(x);
    };
    let sum = x.narrow(1, start, added.dim(1)?)?.add(added)?;
    x.paste(&[0, start, 0], &sum)?;
    Ok(x)
}
