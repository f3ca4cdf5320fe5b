//! The network: tokens of the noisy picture, of references and of the prompt through the blocks, and back to a latent.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear};
use fresco_tensor::{Device, Tensor};

use super::blocks::{EPS, Trunk, TrunkPass};
use super::config::{QwenConfig, ReferenceMethod, THETA};
use super::encode;
use super::patch::{BlockControl, RunningPatch};
use super::tokens::{Placement, TokenGrid, latent, place, tokens};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN};
use crate::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use crate::denoise::{
    DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory, names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{Blocks, Rope};

/// What one pass looks at. Everything is in main memory.
pub struct Inputs<'a> {
    /// (b, c, t, h, w).
    pub x: &'a Tensor,
    pub timesteps: &'a [f32],
    /// (b, n, width).
    pub context: &'a Tensor,
    /// Latents (b, c, t, h, w) of any size.
    pub references: &'a [Tensor],
    /// None for the network's own.
    pub method: Option<ReferenceMethod>,
    /// Which of two kinds of picture is made, for networks that know them.
    pub kind: u32,
    pub control: Option<&'a ControlFeatures>,
    pub hooks: &'a Hooks,
}

/// Values per channel of a token that a pass holds at its fullest: the inner channels of the feed-forward part, and what
/// goes on beside it.
const HELD: usize = 16;

/// The transformer of Qwen-Image.
pub struct QwenNetwork {
    trunk: Trunk,
    norm_out: Arc<Linear>,
    norm: LayerNorm,
    proj_out: Arc<Linear>,
}

/// The positions of prompt and picture, for one pass.
pub(super) fn rope(
    config: &QwenConfig,
    grid: TokenGrid,
    prompt: usize,
    further: &[f64],
) -> Result<Rope> {
    let mut positions = Vec::with_capacity(3 * (prompt + grid.len()) + further.len());
    let start = grid.text_start();
    for at in start..start + prompt {
        positions.extend([at as f64; 3]);
    }
    place(&mut positions, grid, 0.0, (0, 0));
    positions.extend_from_slice(further);
    Rope::new(&positions, &config.axes, THETA)
}

impl QwenNetwork {
    pub fn config(&self) -> &QwenConfig {
        self.trunk.config()
    }

    /// One pass, in the shape of the latent.
    pub fn predict(&self, input: &Inputs<'_>) -> Result<Tensor> {
        let config = self.trunk.config();
        self.trunk.check(input.x, input.timesteps, input.context)?;
        let method = input.method.unwrap_or(config.method);
        let (own, grid) = tokens(input.x)?;
        let (all, further) = with_references(own, input.references, method)?;
        let clean = method == ReferenceMethod::IndexTimestepZero && all.dim(1)? > grid.len();
        if all.dim(2)? != config.input {
            let reason = format!(
                "it takes latents of {} channels, got shape {:?}",
                config.input / 4,
                input.x.shape()
            );
            return Err(ModelError::invalid("transformer", reason));
        }
        let device = self.trunk.device();
        let emb = self.trunk.embed(input.timesteps, input.kind, clean)?;
        let rope = rope(config, grid, input.context.dim(1)?, &further)?.to(device)?;
        let pass = TrunkPass {
            emb: &emb,
            rope: &rope,
            clean_from: clean.then_some(grid.len()),
        };
        let txt = self.trunk.prompt(&input.context.to(device)?)?;
        let img = self.trunk.picture(&all.to(device)?)?;
        drop(all);
        let patches = input.hooks.beside::<BlockControl>();
        let patches = patches
            .map(|patch| RunningPatch::new(patch, img.dim(0)?, config.width))
            .collect::<Result<Vec<_>>>()?;
        let size = [grid.frames, grid.rows, grid.columns];
        let (kind, at) = (BlockKind::DOUBLE, (input.hooks, input.x.shape()));
        let blocks = Blocks::of(kind, self.trunk.len(), config.heads(), size, at);
        let (img, _) = blocks.with_control(input.control, 0).run_pair_then(
            (img, txt),
            |number, img, txt| self.trunk.block(number, img, txt, &pass),
            |number, img| {
                let mut each = patches.iter();
                each.try_fold(img, |img, patch| patch.after(number, img))
            },
        )?;
        let img = img.narrow(1, 0, grid.len())?;
        let out = self.finish(&img, &emb.narrow(0, 0, img.dim(0)?)?)?;
        let out = out.to(&Device::cpu())?;
        let [.., h, w] = *input.x.shape() else {
            return Err(ModelError::invalid("transformer", "no latent"));
        };
        latent(&out, grid, (h, w))
    }

    /// The last norm and the way back to squares of the latent.
    fn finish(&self, img: &Tensor, emb: &Tensor) -> Result<Tensor> {
        let both = self.norm_out.forward(emb)?;
        let width = both.dim(1)? / 2;
        let (scale, shift) = (both.narrow(1, 0, width)?, both.narrow(1, width, width)?);
        let normed = self.norm.modulated(img, &shift, &scale)?;
        Ok(self.proj_out.forward(&normed)?)
    }
}

/// The tokens with those of references behind them, and the positions of those.
fn with_references(
    own: Tensor,
    references: &[Tensor],
    method: ReferenceMethod,
) -> Result<(Tensor, Vec<f64>)> {
    let mut further = Vec::new();
    let mut placement = Placement::default();
    let mut lists = vec![own];
    for reference in references {
        let (made, grid) = tokens(reference)?;
        let &[.., h, w] = reference.shape() else {
            return Err(ModelError::invalid("reference", "no latent"));
        };
        let (index, offset) = placement.next(method, (h, w));
        place(&mut further, grid, index, offset);
        lists.push(made);
    }
    let all = match lists.as_slice() {
        [own] => own.clone(),
        _ => Tensor::cat(&lists.iter().collect::<Vec<_>>(), 1)?,
    };
    Ok((all, further))
}

conds! {
    /// What the network is told besides the latent.
    struct QwenConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        references: &'a [Tensor] = names::REFERENCES,
        method: Option<&'a str> = names::REFERENCE_METHOD,
    }
}

impl DiffusionNetwork for QwenNetwork {
    type Config = QwenConfig;

    const HOOKS: HookPoints = HookPoints(&[(BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN])]);

    fn facts(config: &QwenConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::WAN21,
            latent_channels: config.channels(),
            in_channels: config.channels(),
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(4, config.width, HELD),
            sampling: ModelSampling::exponential_flow(1.15),
        }
    }

    fn new(weights: &Walk<'_>, config: &QwenConfig) -> Result<Self> {
        Ok(Self {
            trunk: Trunk::new(weights, config)?,
            norm_out: weights.linear("norm_out.linear", 2 * config.width, config.width)?,
            norm: LayerNorm::new(None, None, EPS)?,
            proj_out: weights.linear("proj_out", config.output, config.width)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = QwenConds::read(input.conds)?;
        self.predict(&Inputs {
            x: input.x,
            timesteps: input.timesteps,
            context: conds.prompt,
            references: conds.references,
            method: conds.method.map(ReferenceMethod::by_name),
            kind: 0,
            control: input.control,
            hooks: input.hooks,
        })
    }

    fn encode(config: &QwenConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        encode::conds(config, file, args)
    }
}
