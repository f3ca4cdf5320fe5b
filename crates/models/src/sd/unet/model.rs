//! The whole network.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, GroupNorm, Linear, silu};
use fresco_tensor::{Device, Tensor};

use super::config::UNetConfig;
use super::context::{Cache, Keys};
use super::layers::{GROUPS, Pass, Residual, Transformer};
use super::levels::{KnownLevels, Levels};
use super::trunk::{Trunk, UNetLayer, level_layers};
use crate::denoise::hooks::{BlockFlow, BlockKind, ControlFeatures, Hooks, Moment};
use crate::epilogue::before_norm;
use crate::error::Result;
use crate::store::{Layout, Walk, WeightStore};

struct OutputBlock {
    steps: Vec<UNetLayer>,
    up: Option<Arc<Conv2d>>,
}

/// A UNet with its weights. Building one from a store that has its layers costs little.
pub struct UNet {
    trunk: Trunk,
    output: Vec<OutputBlock>,
    norm: Arc<GroupNorm>,
    conv: Arc<Conv2d>,
    cache: Cache,
    levels: KnownLevels,
}

impl UNetConfig {
    fn layout(&self) -> Result<Layout> {
        Layout::of(|weights| UNet::walk(weights, self))
    }

    /// Every weight with its shape, in the order the network uses them.
    pub fn weights(&self) -> Result<Vec<(String, Vec<usize>)>> {
        Ok(self.layout()?.items().to_vec())
    }

    /// Whether a store has all of them.
    pub fn verify(&self, store: &WeightStore) -> Result<()> {
        self.layout()?.verify(store, WHAT)
    }
}

/// The network in messages.
pub(crate) const WHAT: &str = "the UNet";

impl UNet {
    pub fn new(store: &WeightStore, config: &UNetConfig) -> Result<Self> {
        store.build(WHAT, |weights| Self::walk(weights, config))
    }

    pub(crate) fn walk(weights: &Walk<'_>, config: &UNetConfig) -> Result<Self> {
        let mut trunk = Trunk::new(weights, config.clone())?;
        let emb = 4 * config.model_channels;
        let mut skips = config.skips();
        let mut at = config.inner();
        let mut output = Vec::new();
        for (number, stage) in config.output.iter().enumerate() {
            let weights = weights.at("output_blocks").at(number);
            let input = at + skips.pop().unwrap_or(0);
            at = stage.channels;
            let first = Residual::new(&weights.at(0), (input, at), emb, config.timed)?;
            let mut steps = vec![UNetLayer::Residual(first)];
            if stage.depth > 0 {
                let shape = config.transformer(at, stage.depth);
                let block = Transformer::new(&weights.at(1), shape, &mut trunk.slots)?;
                steps.push(UNetLayer::Transformer(block));
            }
            let place = 1 + usize::from(stage.depth > 0);
            let up = stage
                .up
                .then(|| weights.at(place).conv("conv", at, at, 3, 1))
                .transpose()?;
            output.push(OutputBlock { steps, up });
        }
        Ok(Self {
            trunk,
            output,
            norm: weights.group_norm("out.0", at, GROUPS, 1e-5)?,
            conv: weights.conv("out.2", config.out_channels, at, 3, 1)?,
            cache: Cache::default(),
            levels: KnownLevels::default(),
        })
    }

    pub fn config(&self) -> &UNetConfig {
        self.trunk.config()
    }

    /// Drops what it remembers of prompts.
    pub fn rest(&self) {
        self.cache.clear();
    }

    /// Drops what it remembers of noise levels, which the next picture usually has again.
    pub fn forget_levels(&self) {
        self.levels.clear();
    }

    /// What the network says about a noisy latent `x` (b, c, h, w): one noise level per item, the prompt (b, n, c), and
    /// for some models a vector `y` (b, c).
    pub fn forward(
        &self,
        x: &Tensor,
        timesteps: &[f32],
        context: Option<&Tensor>,
        y: Option<&Tensor>,
        control: Option<&ControlFeatures>,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let frames = x.shape().first().copied().unwrap_or(0);
        self.forward_films(x, timesteps, context, y, control, (frames, hooks))
    }

    /// The same, where the pictures of a batch are films of so many frames each.
    pub fn forward_films(
        &self,
        x: &Tensor,
        timesteps: &[f32],
        context: Option<&Tensor>,
        y: Option<&Tensor>,
        control: Option<&ControlFeatures>,
        (frames, hooks): (usize, &Hooks),
    ) -> Result<Tensor> {
        self.trunk.check(x, timesteps, context, y)?;
        let device = self.trunk.device();
        let here = context;
        let keys = self.cache.begin(here, self.trunk.slots);
        if matches!(keys, Keys::Collected(_)) {
            device.step_apart();
        }
        // What it was made into is there already.
        let unread =
            keys.are_known() && hooks.prompt_attention.input.is_empty() && !self.config().timed;
        let context = here.filter(|_| !unread);
        let context = context.map(|context| context.to(device)).transpose()?;
        let context = context.as_ref().or(here);
        // Items of one noise level share what is made of it.
        let alike = timesteps.windows(2).all(|pair| pair[0] == pair[1])
            && self.config().adm.is_none()
            && hooks.embedding.is_empty()
            && !self.config().timed;
        let layers = level_layers(self.layers());
        let told = if alike { &timesteps[..1] } else { timesteps };
        let make = || self.made_levels(told, y, hooks, &layers);
        let together = Linear::few_on_gpu(layers.iter().map(|layer| &***layer), device);
        let levels = if alike && together {
            self.levels.get(told[0], device, &layers, make)?
        } else {
            make()?
        };
        // Nothing tells items of one latent apart before a block looks at the prompt.
        let apart = if alike && control.is_none() && !change_beginning(hooks) {
            unlike_items(x)?
        } else {
            x.dim(0)?
        };
        // Last, so that a device makes of the noise level what it can while the latent is on its way.
        let first = &x.narrow(0, 0, apart)?.to(device)?;
        let pass = Pass {
            hooks,
            emb: &levels.emb,
            levels: &levels.of_blocks,
            context,
            keys: &keys,
            original: x.shape(),
            frames,
        };
        let out = self.run(first, &pass, control)?;
        self.cache.end(here, keys);
        Ok(out.to(&Device::cpu())?)
    }

    fn layers(&self) -> impl Iterator<Item = &UNetLayer> {
        let after = self.output.iter().flat_map(|block| &block.steps);
        self.trunk.layers().chain(after)
    }

    /// What the network makes of noise levels, with the vector beside them.
    fn made_levels<'a>(
        &self,
        timesteps: &[f32],
        y: Option<&Tensor>,
        hooks: &Hooks,
        layers: &[&'a Arc<Linear>],
    ) -> Result<Levels<'a>> {
        let mut emb = self.trunk.embed(timesteps, y)?;
        for hook in &hooks.embedding {
            emb = hook.apply(emb, self.config().model_channels)?;
        }
        let emb = silu(&emb);
        let list: Vec<&Linear> = layers.iter().map(|layer| &***layer).collect();
        let found = Linear::forward_few(&list, &emb)?.unwrap_or_default();
        let of_blocks = layers.iter().copied().zip(found).collect();
        Ok(Levels { emb, of_blocks })
    }

    /// `x` are the first items of the latent, of which the others are copies.
    fn run(
        &self,
        x: &Tensor,
        pass: &Pass<'_>,
        control: Option<&ControlFeatures>,
    ) -> Result<Tensor> {
        let device = self.trunk.device();
        let controls_of = |kind| control.map_or(&[][..], |control| control.of(kind));
        let hooks = pass.hooks;
        let mut controls = controls_of(BlockKind::INPUT).iter().rev();
        let mut h = x.nchw_to_nhwc()?;
        let mut skips: Vec<Tensor> = Vec::with_capacity(self.output.len());
        for number in 0..self.config().input.len() {
            h = self.trunk.input(number, h, pass)?;
            h = add_control(h, controls.next())?;
            if hooks.any_on(BlockKind::INPUT) {
                let [_, rows, columns, _] = h.dims4()?;
                let at = pass.at(BlockKind::INPUT, number, (rows, columns));
                let flow = |h| BlockFlow { h, beside: None };
                let skip = hooks
                    .at_block(Moment::After, flow(h.nhwc_to_nchw()?), &at)?
                    .h;
                let on = hooks
                    .at_block(Moment::AfterSkip, flow(skip.clone()), &at)?
                    .h;
                // Hooks may compute elsewhere.
                skips.push(skip.nchw_to_nhwc()?.to(device)?);
                h = on.nchw_to_nhwc()?.to(device)?;
            } else {
                skips.push(h.clone());
            }
        }
        h = pass.of_all(self.trunk.middle(h, pass)?)?;
        h = add_control(h, controls_of(BlockKind::MIDDLE).last())?;
        let mut controls = controls_of(BlockKind::OUTPUT).iter().rev();
        for (number, block) in self.output.iter().enumerate() {
            hooks.check()?;
            let mut skip = skips.pop().expect("as many skips as output blocks");
            skip = add_control(pass.of_all(skip)?, controls.next())?;
            if hooks.any_on(BlockKind::OUTPUT) {
                let [_, rows, columns, _] = h.dims4()?;
                let at = pass.at(BlockKind::OUTPUT, number, (rows, columns));
                let flow = BlockFlow {
                    h: h.nhwc_to_nchw()?,
                    beside: Some(skip.nhwc_to_nchw()?),
                };
                let flow = hooks.at_block(Moment::Before, flow, &at)?;
                h = flow.h.nchw_to_nhwc()?.to(device)?;
                if let Some(changed) = flow.beside {
                    skip = changed.nchw_to_nhwc()?.to(device)?;
                }
            }
            let mut steps = block.steps.iter();
            if let Some(first) = steps.next() {
                h = first.forward((h, skip), pass, BlockKind::OUTPUT, number)?;
            }
            for step in steps {
                h = step.forward(h, pass, BlockKind::OUTPUT, number)?;
            }
            if let Some(up) = &block.up {
                let [_, rows, columns, _] = h.dims4()?;
                // The next skip says the size: halving an odd one rounded up.
                let size = match skips.last() {
                    Some(next) => (next.dim(1)?, next.dim(2)?),
                    None => (2 * rows, 2 * columns),
                };
                h = up.upsampled(&h, size, before_norm(After::default()))?;
            }
        }
        let h = self.norm.forward_owned(h, Act::Silu)?;
        Ok(self.conv.forward(&h)?.nhwc_to_nchw()?)
    }
}

/// Whether hooks act before a block looks at the prompt, where they may tell apart items of one latent.
fn change_beginning(hooks: &Hooks) -> bool {
    hooks.any_on(BlockKind::INPUT) || !hooks.self_attention.is_empty()
}

/// After how many items a batch repeats itself, as that of a prompt and its negative does.
fn unlike_items(x: &Tensor) -> Result<usize> {
    let items = x.dim(0)?;
    if !x.device().is_cpu() {
        return Ok(items);
    }
    let each = x.len() / items.max(1);
    let repeats = |count: &usize| items.is_multiple_of(*count) && x.repeats_after(count * each);
    Ok((1..items).find(repeats).unwrap_or(items))
}

/// Adds the features of a control net. Features of another size are left out, as the reference does: deep shrink changes sizes
/// behind a control net's back.
fn add_control(h: Tensor, control: Option<&Option<Tensor>>) -> Result<Tensor> {
    let Some(Some(control)) = control else {
        return Ok(h);
    };
    let control = control.nchw_to_nhwc()?.to(&h.device())?;
    if control.shape() == h.shape() {
        return Ok(h.add(&control)?);
    }
    let one_for_all =
        control.rank() == 4 && control.shape()[0] == 1 && control.shape()[1..] == h.shape()[1..];
    if one_for_all {
        Ok(h.add(&control)?)
    } else {
        Ok(h)
    }
}
