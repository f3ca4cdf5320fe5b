//! The whole network.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Conv2d, GroupNorm, Padding, concat_channels, silu};
use fresco_tensor::{Device, Tensor};

use super::config::UNetConfig;
use super::context::Cache;
use super::hooks::{ControlFeatures, Part, UNetHooks};
use super::layers::{GROUPS, Pass, Residual, Transformer};
use super::trunk::{Step, Trunk};
use crate::error::Result;
use crate::layout::Layout;
use crate::store::Store;

struct OutputBlock {
    steps: Vec<Step>,
    up: Option<Arc<Conv2d>>,
}

/// A UNet with its weights. Building one from a store that has its layers costs little.
pub struct UNet {
    trunk: Trunk,
    output: Vec<OutputBlock>,
    norm: Arc<GroupNorm>,
    conv: Arc<Conv2d>,
    cache: Cache,
}

impl UNetConfig {
    fn layout(&self) -> Layout {
        let mut to = Layout::default();
        self.trunk_layout(&mut to);
        let emb = 4 * self.model_channels;
        let mut skips = self.skips();
        let mut at = self.inner();
        for (number, stage) in self.output.iter().enumerate() {
            let key = format!("output_blocks.{number}");
            let input = at + skips.pop().unwrap_or(0);
            Residual::layout(&mut to, &format!("{key}.0"), input, stage.channels, emb);
            at = stage.channels;
            if stage.depth > 0 {
                let shape = self.transformer(at, stage.depth);
                Transformer::layout(&mut to, &format!("{key}.1"), shape);
            }
            if stage.up {
                let slot = 1 + usize::from(stage.depth > 0);
                to.conv(&format!("{key}.{slot}.conv"), at, at, 3);
            }
        }
        to.norm("out.0", at);
        to.conv("out.2", self.out_channels, at, 3);
        to
    }

    /// Every weight with its shape, in the order the network uses them.
    pub fn weights(&self) -> Vec<(String, Vec<usize>)> {
        self.layout().items().to_vec()
    }

    /// Whether a store has all of them.
    pub fn verify(&self, store: &Store) -> Result<()> {
        self.layout().verify(store, "the UNet")
    }
}

impl UNet {
    pub fn new(store: &Arc<Store>, config: UNetConfig) -> Result<Self> {
        config.verify(store)?;
        let mut trunk = Trunk::new(store, config.clone())?;
        let mut skips = config.skips();
        let mut at = config.inner();
        let mut output = Vec::new();
        for (number, stage) in config.output.iter().enumerate() {
            let key = format!("output_blocks.{number}");
            let input = at + skips.pop().unwrap_or(0);
            at = stage.channels;
            let first = Residual::new(store, &format!("{key}.0"), input, at)?;
            let mut steps = vec![Step::Residual(first)];
            if stage.depth > 0 {
                let shape = config.transformer(at, stage.depth);
                let block = Transformer::new(store, &format!("{key}.1"), shape, &mut trunk.slots)?;
                steps.push(Step::Transformer(block));
            }
            let slot = 1 + usize::from(stage.depth > 0);
            let up = format!("{key}.{slot}.conv");
            let up = stage
                .up
                .then(|| store.conv(&up, 1, Padding::Same(1)))
                .transpose()?;
            output.push(OutputBlock { steps, up });
        }
        Ok(Self {
            trunk,
            output,
            norm: store.group_norm("out.0", GROUPS, 1e-5)?,
            conv: store.conv("out.2", 1, Padding::Same(1))?,
            cache: Cache::default(),
        })
    }

    pub fn config(&self) -> &UNetConfig {
        self.trunk.config()
    }

    /// Drops the keys and values of prompts that it remembers.
    pub fn rest(&self) {
        self.cache.clear();
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
        hooks: &UNetHooks,
    ) -> Result<Tensor> {
        self.trunk.check(x, timesteps, context, y)?;
        let device = self.trunk.device();
        let x = &x.to(device)?;
        let here = context;
        let context = here.map(|context| context.to(device)).transpose()?;
        let context = context.as_ref();
        let mut emb = self.trunk.embed(timesteps, y)?;
        for hook in &hooks.emb {
            emb = hook.apply(emb, self.config().model_channels)?;
        }
        let emb = silu(&emb);
        let keys = self.cache.begin(here, self.trunk.slots);
        let pass = Pass {
            hooks,
            emb: &emb,
            context,
            keys: &keys,
            original: x.dims4()?,
        };
        let out = self.run(x, &pass, control)?;
        self.cache.end(here, keys);
        Ok(out.to(&Device::cpu())?)
    }

    fn run(
        &self,
        x: &Tensor,
        pass: &Pass<'_>,
        control: Option<&ControlFeatures>,
    ) -> Result<Tensor> {
        let device = self.trunk.device();
        let none: &[Option<Tensor>] = &[];
        let lists = control.map_or((none, none, none), |c| (&c.input, &c.middle, &c.output));
        let mut controls = lists.0.iter().rev();
        let mut h = x.nchw_to_nhwc()?;
        let mut skips: Vec<Tensor> = Vec::with_capacity(self.output.len());
        for number in 0..self.config().input.len() {
            h = self.trunk.input(number, h, pass)?;
            h = steered(h, controls.next())?;
            if pass.hooks.on_input() {
                let [_, rows, columns, _] = h.dims4()?;
                let at = pass.at(Part::Input, number, (rows, columns));
                let (skip, on) = pass.hooks.input(h.nhwc_to_nchw()?, &at)?;
                // Hooks may compute elsewhere.
                skips.push(skip.nchw_to_nhwc()?.to(device)?);
                h = on.nchw_to_nhwc()?.to(device)?;
            } else {
                skips.push(h.clone());
            }
        }
        h = self.trunk.middle(h, pass)?;
        h = steered(h, lists.1.last())?;
        let mut controls = lists.2.iter().rev();
        for (number, block) in self.output.iter().enumerate() {
            pass.hooks.check()?;
            let mut skip = skips.pop().expect("as many skips as output blocks");
            skip = steered(skip, controls.next())?;
            if pass.hooks.on_output() {
                let [_, rows, columns, _] = h.dims4()?;
                let at = pass.at(Part::Output, number, (rows, columns));
                let both = (h.nhwc_to_nchw()?, skip.nhwc_to_nchw()?);
                let (on, with) = pass.hooks.output(both.0, both.1, &at)?;
                h = on.nchw_to_nhwc()?.to(device)?;
                skip = with.nchw_to_nhwc()?.to(device)?;
            }
            h = concat_channels(&[&h, &skip])?;
            drop(skip);
            for step in &block.steps {
                h = step.forward(h, pass, Part::Output, number)?;
            }
            if let Some(up) = &block.up {
                let [_, rows, columns, _] = h.dims4()?;
                // The next skip says the size: halving an odd one rounded up.
                let size = match skips.last() {
                    Some(next) => (next.dim(1)?, next.dim(2)?),
                    None => (2 * rows, 2 * columns),
                };
                h = up.upsampled(&h, size, After::default())?;
            }
        }
        let h = self.norm.forward_owned(h, Act::Silu)?;
        Ok(self.conv.forward(&h)?.nhwc_to_nchw()?)
    }
}

/// With what a control net adds. Features of another size are left out, as the reference does: deep shrink changes sizes
/// behind a control net's back.
fn steered(h: Tensor, control: Option<&Option<Tensor>>) -> Result<Tensor> {
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
