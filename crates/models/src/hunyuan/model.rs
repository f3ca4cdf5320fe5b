//! The network and what goes into it.

use fresco_tensor::nn::{LayerNorm, Mask, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{BlockPass, DoubleBlock, EPS, SingleBlock};
use super::config::HunyuanConfig;
use super::refiner::{LAYERS, Letters, TokenRefiner, WAVES};
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, OWN_INSIDE};
use crate::denoise::hooks::{BlockKind, Hooks};
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Blocks, Embedder, PatchOrder, PictureTokens, Rope, hide, hides, sinusoid, thousandfold,
};

/// The guidance of a prompt that says none.
const GUIDANCE: f64 = 6.0;

/// What a conditioning calls the vectors of letters.
const LETTERS: &str = "conditioning_byt5small";

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 512;

pub struct HunyuanNetwork {
    device: Device,
    config: HunyuanConfig,
    cells: PictureTokens,
    time: Embedder,
    next_time: Option<Embedder>,
    guidance: Option<Embedder>,
    text: TokenRefiner,
    letters: Option<Letters>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
}

conds! {
    /// What the network is told besides the latent.
    struct HunyuanConds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        mask: Option<&'a Tensor> = names::MASK,
        guidance: Option<f64> = names::GUIDANCE,
        letters: Option<&'a Tensor> = "txt_byt5",
    }
}

impl DiffusionNetwork for HunyuanNetwork {
    type Config = HunyuanConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN_INSIDE]),
    ]);

    fn facts(config: &HunyuanConfig) -> ModelFacts {
        ModelFacts {
            latent: latent_format::HUNYUAN_IMAGE,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(1, config.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(5.0, 1000.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &HunyuanConfig) -> Result<Self> {
        let dim = config.dim;
        let numbers = |name: &str, there: bool| -> Result<Option<Embedder>> {
            let make = || Embedder::new(&weights.at(name), LAYERS, WAVES, dim, Bias::With);
            there.then(make).transpose()
        };
        let letters = config.letters;
        let letters = letters.map(|sizes| Letters::new(&weights.at("byt5_in"), sizes, dim));
        let (double, single) = (weights.at("double_blocks"), weights.at("single_blocks"));
        let end = weights.at("final_layer");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            cells: PictureTokens::new(
                weights.linear("img_in.proj", dim, config.channels)?,
                end.linear("linear", config.channels, dim)?,
                1,
                [PatchOrder::ChannelFirst; 2],
            ),
            time: Embedder::new(&weights.at("time_in"), LAYERS, WAVES, dim, Bias::With)?,
            next_time: numbers("time_r_in", config.looks_ahead)?,
            guidance: numbers("guidance_in", config.guidance)?,
            text: TokenRefiner::new(&weights.at("txt_in"), config)?,
            letters: letters.transpose()?,
            double: double.each(config.double, |weights| DoubleBlock::new(weights, config))?,
            single: single.each(config.single, |weights| SingleBlock::new(weights, config))?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "adaLN_modulation.1", dim, dim, Bias::With)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = HunyuanConds::read(input.conds)?;
        let (hooks, device) = (input.hooks, &self.device);
        let prompt = conds.prompt;
        let waves = sinusoid(input.timesteps, WAVES)?.to(device)?;
        let guidance = conds.guidance;
        let signal = silu(&self.signal(&waves, guidance, hooks, input.timesteps.len())?);
        let hidden = conds.mask.map(|mask| hide(mask, 0));
        let hidden = hidden.transpose()?;
        let text_mask = hidden.as_ref().map(|hidden| -> Result<Tensor> {
            // A hidden token sees all others alike.
            let [b, _, _, n] = hidden.dims4()?;
            let queries = hidden.reshape([b, 1, n, 1])?;
            Ok(hidden.add(&queries)?.to(device)?)
        });
        let text_mask = text_mask.transpose()?;
        let own_mask = text_mask.as_ref().map_or(Mask::None, Mask::Add);
        let mut text = self.text.forward(prompt, &waves, own_mask)?;
        if let (Some(layer), Some(letters)) = (&self.letters, conds.letters) {
            let letters = layer.forward(&letters.to(device)?)?;
            text = Tensor::cat(&[&text, &letters], 1)?;
        }
        let (image, places) = self.cells.enter(input.x, device)?;
        let (cells, words) = (image.dim(1)?, text.dim(1)?);
        let mask = hidden.map(|hidden| {
            joint_mask(&hidden, cells, words)?
                .to(device)
                .map_err(ModelError::from)
        });
        let mask: Option<Tensor> = mask.transpose()?;
        let [_, rows, columns] = places.grid;
        let rope = self.rope((rows, columns), words)?;
        let pass = BlockPass {
            signal: &signal,
            first: None,
            rope: &rope,
            mask: mask.as_ref().map_or(Mask::None, Mask::Add),
            norm: &self.norm,
        };
        let heads = self.config.heads;
        let blocks = |kind, count: usize| Blocks::new(kind, count, heads, places.grid, input);
        let double = blocks(BlockKind::DOUBLE, self.double.len());
        let (image, text) = double.run_pair((image, text), |number, image, text| {
            self.double[number].forward(image, text, &pass)
        })?;
        let x = Tensor::cat(&[&image, &text], 1)?;
        drop((image, text));
        let single = blocks(BlockKind::SINGLE, self.single.len());
        let x = single.run(x, |number, x| self.single[number].forward(x, &pass))?;
        let x = x.narrow(1, 0, cells)?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let x = self.norm.modulated(&x, &shift, &scale)?;
        self.cells.leave(&x, &places)
    }

    fn encode(config: &HunyuanConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tensors = &args.cond.tensors;
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(mask) = tensors.get("attention_mask").filter(|mask| hides(mask)) {
            conds.insert(names::MASK, CondValue::Regular(mask.clone()));
        }
        if let (Some((width, _)), Some(letters)) = (config.letters, tensors.get(LETTERS)) {
            if letters.rank() != 3 || letters.dim(2)? != width {
                let shape = letters.shape();
                let reason = format!("letters of width {width} are needed, not of shape {shape:?}");
                return Err(ModelError::unsupported(file, reason));
            }
            conds.insert("txt_byt5", CondValue::Regular(letters.clone()));
        }
        if config.guidance {
            let guidance = args.cond.numbers.get("guidance").copied();
            let guidance = guidance.unwrap_or(GUIDANCE);
            conds.insert(names::GUIDANCE, CondValue::Constant(guidance));
        }
        Ok(conds)
    }
}

/// What is added where all tokens look at each other: only words can be hidden.
pub(super) fn joint_mask(hidden: &Tensor, cells: usize, words: usize) -> Result<Tensor> {
    let [b, _, _, n] = hidden.dims4()?;
    let mut mask = Tensor::zeros([b, 1, 1, cells + words])?;
    mask.paste(&[0, 0, 0, cells], &hidden.narrow(3, 0, n.min(words))?)?;
    Ok(mask)
}

impl HunyuanNetwork {
    /// The vector of noise level and guidance, and of the next level for those that look ahead.
    fn signal(
        &self,
        waves: &Tensor,
        guidance: Option<f64>,
        hooks: &Hooks,
        count: usize,
    ) -> Result<Tensor> {
        let mut signal = self.time.forward(waves)?;
        let numbers = |layer: &Embedder, value: f32| -> Result<Tensor> {
            let waves = sinusoid(&vec![value; count], WAVES)?;
            layer.forward(&waves.to(&self.device)?)
        };
        // Only where the level is one of the run's; between them nobody knows where it goes.
        if let (Some(layer), Some(next)) = (&self.next_time, hooks.level_after_exactly()) {
            signal = signal.add(&numbers(layer, 1000.0 * next)?)?.mul_scalar(0.5);
        }
        if let (Some(layer), Some(guidance)) = (&self.guidance, guidance) {
            signal = signal.add(&numbers(
                layer,
                thousandfold(guidance as f32, &self.device),
            )?)?;
        }
        Ok(signal)
    }

    fn rope(&self, (rows, columns): (usize, usize), words: usize) -> Result<Rope> {
        let cell = |i: usize| [(i / columns) as f64, (i % columns) as f64];
        let mut positions: Vec<[f64; 2]> = (0..rows * columns).map(cell).collect();
        positions.resize(positions.len() + words, [0.0; 2]);
        let config = &self.config;
        Rope::new(positions.as_flattened(), &config.axes, config.theta)?.to(&self.device)
    }
}
