//! Hunyuan Video 1 and 1.5, and the refiner of HunyuanImage: the same blocks over the tokens of a video.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{BlockPass, DoubleBlock, EPS, Levels, SingleBlock};
use super::config::HunyuanConfig;
use super::model::joint_mask;
use super::refiner::{LAYERS, Letters, TokenRefiner, WAVES};
use super::video_conditions::{self, GUIDING, LETTERS, REFERENCE, VISION};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, HookPoints, OWN, OWN_INSIDE};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    CallConds, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk, WeightStore};
use crate::transformer::{
    Blocks, Embedder, PatchOrder, Rope, Shapes, TokenGrid, hide, sinusoid, thousandfold,
    video_from_tokens, video_to_tokens,
};

/// The shape of such a network.
#[derive(Clone, Debug, PartialEq)]
pub struct HunyuanVideoConfig {
    /// What the blocks are like.
    pub trunk: HunyuanConfig,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Cells along a side of a token.
    pub patch: usize,
    /// Width of the pooled prompt.
    pub pooled: Option<usize>,
    /// Width of what a vision network saw.
    pub vision: Option<usize>,
    /// Whether words, letters and pictures are told apart.
    pub kinds: bool,
}

impl HunyuanVideoConfig {
    /// From a store in which the first convolution is a matrix.
    pub fn detect(store: &WeightStore, patch: usize) -> Result<Self> {
        let shapes = Shapes(store);
        let trunk = HunyuanConfig::detect(store)?;
        let cells = patch.saturating_mul(patch);
        if cells == 0 {
            return Err(shapes.unsupported("its tokens have no cells"));
        }
        let into = match store.shape("img_in.proj.weight") {
            Some([_, values, ..]) => *values,
            _ => 0,
        };
        let (into, out) = (into / cells, trunk.channels / cells);
        if into < out || out == 0 {
            let reason = format!("it takes {into} channels and makes {out}");
            return Err(shapes.unsupported(reason));
        }
        let head = trunk.head();
        let side = head * 7 / 16 / 2 * 2;
        let width = |key: &str| -> Result<Option<usize>> {
            let there = shapes.has(key);
            Ok(there
                .then(|| shapes.matrix(key))
                .transpose()?
                .map(|(_, width)| width))
        };
        let vision = "vision_in.proj.0.weight";
        let vision = shapes.has(vision).then(|| shapes.vector(vision));
        Ok(Self {
            in_channels: into,
            out_channels: out,
            patch,
            pooled: width("vector_in.in_layer.weight")?,
            vision: vision.transpose()?,
            kinds: shapes.has("cond_type_embedding.weight"),
            trunk: HunyuanConfig {
                axes: vec![head - 2 * side, side, side],
                ..trunk
            },
        })
    }

    /// Whether it goes on from a smaller video: that and the picture it begins with go in, each with a mask.
    pub fn enlarges(&self) -> bool {
        self.in_channels == 3 * self.out_channels + 2
    }
}

impl HunyuanVideoConfig {
    /// Whether it goes over a picture of another network, which goes in beside the latent.
    pub fn refines(&self) -> bool {
        let plain = self.pooled.is_none() && self.vision.is_none();
        plain && self.in_channels == 2 * self.out_channels
    }
}

/// What a vision network saw, as tokens of the prompt.
struct Vision {
    norm: Arc<LayerNorm>,
    layers: [Arc<Linear>; 2],
    last: Arc<LayerNorm>,
}

impl Vision {
    fn new(weights: &Walk<'_>, width: usize, dim: usize) -> Result<Self> {
        const NORM_EPS: f32 = 1e-5;
        Ok(Self {
            norm: weights.layer_norm("0", width, NORM_EPS)?,
            layers: [
                weights.linear("1", width, width)?,
                weights.linear("3", dim, width)?,
            ],
            last: weights.layer_norm("4", dim, NORM_EPS)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(x)?;
        let x = self.layers[0].forward_with(&x, then(Act::Gelu))?;
        Ok(self.last.forward(&self.layers[1].forward(&x)?)?)
    }
}

pub struct HunyuanVideoNetwork {
    device: Device,
    config: HunyuanVideoConfig,
    cells: Arc<Linear>,
    time: Embedder,
    next_time: Option<Embedder>,
    pooled: Option<Embedder>,
    guidance: Option<Embedder>,
    text: TokenRefiner,
    letters: Option<Letters>,
    vision: Option<Vision>,
    kinds: Option<Arc<Embedding>>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    norm: LayerNorm,
    last_modulation: Arc<Linear>,
    last: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    struct HunyuanVideoConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        pooled: Option<&'a Tensor> = names::POOLED,
        guidance: Option<f64> = names::GUIDANCE,
        guiding: Option<f64> = GUIDING,
        reference: Option<&'a Tensor> = REFERENCE,
        letters: Option<&'a Tensor> = LETTERS,
        vision: Option<&'a Tensor> = VISION,
    }
}

impl DiffusionNetwork for HunyuanVideoNetwork {
    type Config = HunyuanVideoConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, OWN_INSIDE]),
    ]);

    fn facts(config: &HunyuanVideoConfig) -> ModelFacts {
        /// Values of a token that a pass holds at its fullest, in widths of the network, and tokens of a prompt.
        const HELD: usize = 16;
        const PROMPT: usize = 512;
        let cells = config.patch * config.patch;
        let pass = PassMemory::of_cells(cells, config.trunk.dim, HELD).with_prompt(PROMPT);
        if config.refines() {
            return ModelFacts {
                latent: latent_format::HUNYUAN_IMAGE_REFINER,
                latent_channels: config.out_channels,
                in_channels: config.in_channels,
                context: Some(config.trunk.context),
                model_channels: None,
                architecture: None,
                pass,
                sampling: ModelSampling::flow(4.0, 1000.0),
            };
        }
        let newer = config.out_channels == 32;
        ModelFacts {
            latent: if newer {
                latent_format::HUNYUAN_VIDEO_1_5
            } else {
                latent_format::HUNYUAN_VIDEO
            },
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.trunk.context),
            model_channels: None,
            architecture: None,
            pass,
            sampling: ModelSampling::flow(if config.enlarges() { 2.0 } else { 7.0 }, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &HunyuanVideoConfig) -> Result<Self> {
        let trunk = &config.trunk;
        let (dim, cells) = (trunk.dim, config.patch * config.patch);
        let numbers = |name: &str, width: Option<usize>| -> Result<Option<Embedder>> {
            let make = |width| Embedder::new(&weights.at(name), LAYERS, width, dim, Bias::With);
            width.map(make).transpose()
        };
        let letters = trunk.letters;
        let letters = letters.map(|sizes| Letters::new(&weights.at("byt5_in"), sizes, dim));
        let vision = config.vision;
        let vision = vision.map(|width| Vision::new(&weights.at("vision_in.proj"), width, dim));
        let kinds = || weights.embedding("cond_type_embedding", 3, dim);
        let (double, single) = (weights.at("double_blocks"), weights.at("single_blocks"));
        let end = weights.at("final_layer");
        Ok(Self {
            device: weights.device().clone(),
            cells: weights.linear("img_in.proj", dim, config.in_channels * cells)?,
            time: Embedder::new(&weights.at("time_in"), LAYERS, WAVES, dim, Bias::With)?,
            next_time: numbers("time_r_in", trunk.looks_ahead.then_some(WAVES))?,
            pooled: numbers("vector_in", config.pooled)?,
            guidance: numbers("guidance_in", trunk.guidance.then_some(WAVES))?,
            text: TokenRefiner::new(&weights.at("txt_in"), trunk)?,
            letters: letters.transpose()?,
            vision: vision.transpose()?,
            kinds: config.kinds.then(kinds).transpose()?,
            double: double.each(trunk.double, |weights| DoubleBlock::new(weights, trunk))?,
            single: single.each(trunk.single, |weights| SingleBlock::new(weights, trunk))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: end.linear("adaLN_modulation.1", 2 * dim, dim)?,
            last: end.linear("linear", config.out_channels * cells, dim)?,
            config: config.clone(),
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        self.pass(input.x, input.timesteps, input.conds, input.hooks)
    }

    fn encode(
        config: &HunyuanVideoConfig,
        file: &str,
        args: &EncodeArgs<'_>,
    ) -> Result<ModelConds> {
        video_conditions::encode(config, file, args)
    }

    fn sees_known_clean(_: &HunyuanVideoConfig) -> bool {
        true
    }
}

/// The prompt as blocks take it, and which of its tokens can be hidden.
struct Words {
    tokens: Tensor,
    /// Tokens before those that the mask is about.
    before: usize,
    hidden: Option<Tensor>,
}

/// What all tokens are told, and the first ones where that is something else.
struct Signals {
    all: Tensor,
    first: Option<Tensor>,
}

impl HunyuanVideoNetwork {
    /// One pass over (b, c, t, h, w). The result is in main memory.
    pub fn pass(
        &self,
        x: &Tensor,
        timesteps: &[f32],
        conds: &CallConds,
        hooks: &Hooks,
    ) -> Result<Tensor> {
        let conds = &HunyuanVideoConds::read(conds)?;
        let original = x.shape();
        let &[_, _, _, h, w] = original else {
            let reason = format!("{original:?} is not the shape of a video");
            return Err(ModelError::invalid("latent", reason));
        };
        let (device, trunk) = (&self.device, &self.config.trunk);
        let signals = self.signals(timesteps, conds, hooks)?;
        let words = self.words(timesteps, conds)?;
        let patch = self.config.patch;
        let embed = |x: &Tensor| -> Result<(Tensor, TokenGrid)> {
            let (tokens, grid) = video_to_tokens(x, patch, PatchOrder::ChannelFirst)?;
            Ok((self.cells.forward(&tokens.to(device)?)?, grid))
        };
        let (mut image, grid) = embed(x)?;
        let own = image.dim(1)?;
        let mut before = 0;
        if let Some(reference) = conds.reference {
            let (tokens, found) = embed(reference)?;
            if found[1..] != grid[1..] {
                let reason = "a reference must have the size of the video's frames";
                return Err(ModelError::invalid(REFERENCE, reason));
            }
            before = tokens.dim(1)?;
            image = Tensor::cat(&[&tokens, &image], 1)?;
        }
        let (cells, count) = (image.dim(1)?, words.tokens.dim(1)?);
        let mask = words.hidden.as_ref().map(|hidden| -> Result<Tensor> {
            let seen = cells + words.before;
            Ok(joint_mask(hidden, seen, count - words.before)?.to(device)?)
        });
        let mask = mask.transpose()?;
        let rope = self.rope(grid, before, count)?;
        let frame = grid[1] * grid[2];
        let pass = BlockPass {
            signal: &signals.all,
            first: signals.first.as_ref().map(|signal| (frame, signal)),
            rope: &rope,
            mask: mask.as_ref().map_or(Mask::None, Mask::Add),
            norm: &self.norm,
        };
        let at = (hooks, original);
        let blocks = |kind, count: usize| Blocks::of(kind, count, trunk.heads, grid, at);
        let double = blocks(BlockKind::DOUBLE, self.double.len());
        let (mut x, text) = double.run_pair((image, words.tokens), |number, image, text| {
            self.double[number].forward(image, text, &pass)
        })?;
        if !self.single.is_empty() {
            x = Tensor::cat(&[&x, &text], 1)?;
            drop(text);
            let single = blocks(BlockKind::SINGLE, self.single.len());
            x = single.run(x, |number, x| self.single[number].forward(x, &pass))?;
        }
        let x = x.narrow(1, before, own)?;
        let level = Levels::<2>::new(&self.last_modulation, &pass, true)?;
        let out = self
            .last
            .forward(&level.modulated(&self.norm, &x, (0, 1))?)?;
        let out = out.to(&Device::cpu())?;
        video_from_tokens(&out, grid, patch, PatchOrder::ChannelFirst, (h, w))
    }

    /// Noise level, pooled prompt and guidance as vectors, activated.
    fn signals(
        &self,
        timesteps: &[f32],
        conds: &HunyuanVideoConds<'_>,
        hooks: &Hooks,
    ) -> Result<Signals> {
        let count = timesteps.len();
        let numbers = |layer: &Embedder, value: f32| -> Result<Tensor> {
            let waves = sinusoid(&vec![value; count], WAVES)?;
            layer.forward(&waves.to(&self.device)?)
        };
        let waves = sinusoid(timesteps, WAVES)?.to(&self.device)?;
        let mut all = self.time.forward(&waves)?;
        // Only where the level is one of the run's; between them nobody knows where it goes.
        if let (Some(layer), Some(next)) = (&self.next_time, hooks.level_after_exactly()) {
            all = all.add(&numbers(layer, 1000.0 * next)?)?;
            if self.config.vision.is_none() {
                all = all.mul_scalar(0.5);
            }
        }
        let first = conds.guiding;
        let mut first = first.map(|at| numbers(&self.time, at as f32)).transpose()?;
        let mut add = |vector: &Tensor| -> Result<()> {
            all = all.add(vector)?;
            if let Some(first) = &mut first {
                *first = first.add(vector)?;
            }
            Ok(())
        };
        if let (Some(layer), Some(pooled)) = (&self.pooled, conds.pooled) {
            add(&layer.forward(&pooled.to(&self.device)?)?)?;
        }
        if let (Some(layer), Some(guidance)) = (&self.guidance, conds.guidance) {
            add(&numbers(
                layer,
                thousandfold(guidance as f32, &self.device),
            )?)?;
        }
        Ok(Signals {
            all: silu(&all),
            first: first.map(|first| silu(&first)),
        })
    }

    /// The prompt's tokens without a mask, for tests.
    pub fn refined(&self, prompt: &Tensor, timesteps: &[f32]) -> Result<Tensor> {
        let waves = sinusoid(timesteps, WAVES)?.to(&self.device)?;
        self.text.forward(prompt, &waves, Mask::None)
    }

    fn words(&self, timesteps: &[f32], conds: &HunyuanVideoConds<'_>) -> Result<Words> {
        let device = &self.device;
        let prompt = conds.prompt;
        let hidden = conds.mask.map(|mask| hide(mask, 0));
        let hidden = hidden.transpose()?;
        let own_mask = hidden.as_ref().map(|hidden| -> Result<Tensor> {
            // A hidden token sees all others alike.
            let [b, _, _, n] = hidden.dims4()?;
            Ok(hidden.add(&hidden.reshape([b, 1, n, 1])?)?.to(device)?)
        });
        let own_mask = own_mask.transpose()?;
        let waves = sinusoid(timesteps, WAVES)?.to(device)?;
        let mask = own_mask.as_ref().map_or(Mask::None, Mask::Add);
        let text = self.text.forward(prompt, &waves, mask)?;
        let letters = match (&self.letters, conds.letters) {
            (Some(layer), Some(letters)) => Some(layer.forward(&letters.to(device)?)?),
            _ => None,
        };
        let pictures = match (&self.vision, conds.vision) {
            (Some(layer), Some(states)) => Some(layer.forward(&states.to(device)?)?),
            _ => None,
        };
        let Some(kinds) = &self.kinds else {
            let mut all = vec![&text];
            all.extend(&letters);
            return Ok(Words {
                tokens: Tensor::cat(&all, 1)?,
                before: 0,
                hidden,
            });
        };
        let kind = |x: Tensor, number: u32| -> Result<Tensor> {
            let row = kinds.lookup_on(&[number], device)?;
            Ok(x.add(&row.reshape([1, 1, row.len()])?)?)
        };
        let mut all = Vec::new();
        if let Some(pictures) = pictures {
            all.push(kind(pictures, 2)?);
        }
        if let Some(letters) = letters {
            all.push(kind(letters, 1)?);
        }
        let before = all.iter().map(|part| part.shape()[1]).sum();
        all.push(kind(text, 0)?);
        Ok(Words {
            tokens: Tensor::cat(&all.iter().collect::<Vec<_>>(), 1)?,
            before,
            hidden,
        })
    }

    /// Reference, video, words. A reference is before the video and to the right of it.
    fn rope(
        &self,
        [frames, rows, columns]: TokenGrid,
        before: usize,
        words: usize,
    ) -> Result<Rope> {
        let frame = rows * columns;
        let place = |at: usize, right: usize| {
            let (row, column) = (at % frame / columns, at % columns);
            [(at / frame) as f64, row as f64, (column + right) as f64]
        };
        let mut positions: Vec<[f64; 3]> = (0..before)
            .map(|at| {
                let [_, row, column] = place(at, columns);
                [-1.0, row, column]
            })
            .collect();
        positions.extend((0..frames * frame).map(|at| place(at, 0)));
        positions.resize(positions.len() + words, [0.0; 3]);
        let trunk = &self.config.trunk;
        Rope::new(positions.as_flattened(), &trunk.axes, trunk.theta)?.to(&self.device)
    }
}
