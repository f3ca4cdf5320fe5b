//! The network as the general path sees it.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::approximator::{Approximator, Rows};
use super::blocks::{
    BlockPass, DoubleBlock, EPS, LastLayer, Modulation, SingleBlock, activated, plain_norm,
};
use super::conditions;
use super::config::{FluxConfig, FluxKind, ModulationKind, WAVES};
use super::positions::Picture;
use crate::DiffusionNetwork;
use crate::denoise::hooks::{BlockFlow, BlockInfo, BlockKind, Moment};
use crate::denoise::{EncodeArgs, ModelConds, ModelFacts, NetworkInput};
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::ModelSampling;
use crate::store::Walk;
use crate::transformer::{Embedder, PatchOrder, Rope, from_tokens, sinusoid};

/// Feature maps that a pass holds at once, in widths of the network: what the widest layer makes, and what goes into it.
const HELD: u64 = 20;

/// The transformer.
pub struct FluxNetwork {
    device: Device,
    config: FluxConfig,
    image_in: Arc<Linear>,
    text_in: Arc<Linear>,
    text_norm: Option<Arc<RmsNorm>>,
    time_in: Option<Embedder>,
    vector_in: Option<Embedder>,
    guidance_in: Option<Embedder>,
    shared: Option<SharedModulation>,
    approximator: Option<Approximator>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    last: LastLayer,
    norm: LayerNorm,
}

/// Modulations that all blocks of a kind have.
struct SharedModulation {
    image: Arc<Linear>,
    text: Arc<Linear>,
    single: Arc<Linear>,
}

/// The modulations of one pass, for networks whose blocks have none of their own.
enum Given {
    Nothing,
    Shared {
        image: Vec<Modulation>,
        text: Vec<Modulation>,
        single: Vec<Modulation>,
    },
    Rows(Rows),
}

impl FluxNetwork {
    fn embedder(
        weights: &Walk<'_>,
        name: &str,
        input: usize,
        config: &FluxConfig,
    ) -> Result<Embedder> {
        let names = ["in_layer", "out_layer"];
        Embedder::new(&weights.at(name), names, input, config.hidden, config.bias)
    }

    /// Noise level, guidance and pooled prompt as one vector (b, c); none where a small network takes their place.
    fn vector(&self, input: &NetworkInput<'_>) -> Result<Option<Tensor>> {
        let Some(time_in) = &self.time_in else {
            return Ok(None);
        };
        let waves = |values: &[f32]| -> Result<Tensor> {
            let scaled: Vec<f32> = values.iter().map(|v| v * 1000.0).collect();
            Ok(sinusoid(&scaled, WAVES)?.to(&self.device)?)
        };
        let mut vector = time_in.forward(&waves(input.timesteps)?)?;
        if let (Some(layer), Some(guidance)) = (&self.guidance_in, input.conds.tensor("guidance")) {
            vector = vector.add(&layer.forward(&waves(guidance.data())?)?)?;
        }
        if let Some(layer) = &self.vector_in {
            let width = self.config.vector.unwrap_or(0);
            let pooled = match input.conds.tensor("y") {
                Some(y) => y.narrow(1, 0, width)?,
                None => Tensor::zeros([input.timesteps.len(), width])?,
            };
            vector = vector.add(&layer.forward(&pooled.to(&self.device)?)?)?;
        }
        Ok(Some(vector))
    }

    fn given(&self, input: &NetworkInput<'_>, vector: Option<&Tensor>) -> Result<Given> {
        if let (Some(shared), Some(vector)) = (&self.shared, vector) {
            return Ok(Given::Shared {
                image: Modulation::split(&shared.image.forward(vector)?, 2)?,
                text: Modulation::split(&shared.text.forward(vector)?, 2)?,
                single: Modulation::split(&shared.single.forward(vector)?, 1)?,
            });
        }
        let Some(approximator) = &self.approximator else {
            return Ok(Given::Nothing);
        };
        let guidance = input.conds.tensor("guidance");
        let guidance = guidance.ok_or_else(|| {
            let reason = "this network needs a guidance value, and the conditioning disables it";
            ModelError::invalid("guidance", reason)
        })?;
        let rows = approximator.rows(input.timesteps, guidance.data(), &self.device)?;
        Ok(Given::Rows(rows))
    }

    fn run_double(
        &self,
        (mut image, mut text): (Tensor, Tensor),
        input: &NetworkInput<'_>,
        pass: &BlockPass<'_>,
        (given, size): (&Given, (usize, usize)),
    ) -> Result<(Tensor, Tensor)> {
        for (number, block) in self.double.iter().enumerate() {
            input.hooks.check()?;
            if !input.hooks.skips(BlockKind::DOUBLE, number) {
                let rows = match given {
                    Given::Rows(rows) => Some(rows.double(number)?),
                    _ => None,
                };
                let pair = match (given, &rows) {
                    (Given::Shared { image, text, .. }, _) => Some((&image[..], &text[..])),
                    (_, Some((image, text))) => Some((&image[..], &text[..])),
                    _ => None,
                };
                (image, text) = block.forward(image, text, pass, pair)?;
            }
            if input.hooks.any_on(BlockKind::DOUBLE) {
                let flow = BlockFlow {
                    h: image,
                    beside: Some(text.clone()),
                };
                let at = self.place(input, BlockKind::DOUBLE, number, size);
                let flow = input.hooks.at_block(Moment::After, flow, &at)?;
                image = flow.h;
                text = flow.beside.unwrap_or(text);
            }
            image = self.steered(image, input, BlockKind::DOUBLE, number, 0)?;
        }
        Ok((image, text))
    }

    fn run_single(
        &self,
        mut x: Tensor,
        input: &NetworkInput<'_>,
        pass: &BlockPass<'_>,
        (given, size, text): (&Given, (usize, usize), usize),
    ) -> Result<Tensor> {
        for (number, block) in self.single.iter().enumerate() {
            input.hooks.check()?;
            if !input.hooks.skips(BlockKind::SINGLE, number) {
                let row = match given {
                    Given::Rows(rows) => Some(rows.single(number)?),
                    _ => None,
                };
                let one = match given {
                    Given::Shared { single, .. } => single.first(),
                    _ => row.as_ref(),
                };
                x = block.forward(x, pass, one)?;
            }
            if input.hooks.any_on(BlockKind::SINGLE) {
                let flow = BlockFlow { h: x, beside: None };
                let at = self.place(input, BlockKind::SINGLE, number, size);
                x = input.hooks.at_block(Moment::After, flow, &at)?.h;
            }
            x = self.steered(x, input, BlockKind::SINGLE, number, text)?;
        }
        Ok(x)
    }

    fn place<'a>(
        &self,
        input: &'a NetworkInput<'_>,
        kind: BlockKind,
        number: usize,
        (rows, columns): (usize, usize),
    ) -> BlockInfo<'a> {
        let info = &input.hooks.info;
        BlockInfo {
            kind,
            number,
            index: 0,
            heads: self.config.heads,
            size: [1, rows, columns],
            original: input.x.shape(),
            sigma: info.sigma,
            cond_or_uncond: &info.cond_or_uncond,
        }
    }

    /// With what a control net adds to the first tokens of the picture, which begins at `start`.
    fn steered(
        &self,
        x: Tensor,
        input: &NetworkInput<'_>,
        kind: BlockKind,
        number: usize,
        start: usize,
    ) -> Result<Tensor> {
        let Some(control) = input.control else {
            return Ok(x);
        };
        let Some(Some(features)) = control.of(kind).get(number) else {
            return Ok(x);
        };
        let features = features.to(&self.device)?;
        let count = features.dim(1)?.min(x.dim(1)? - start);
        let features = features.narrow(1, 0, count)?;
        let part = x.narrow(1, start, count)?.add(&features)?;
        let mut x = x;
        x.paste(&[0, start, 0], &part)?;
        Ok(x)
    }
}

/// A mask (b, 1, n, n) that says nothing of the tokens after those it was made for.
fn whole_mask(mask: &Tensor, total: usize) -> Result<Tensor> {
    let [b, _, n, _] = mask.dims4()?;
    if n >= total {
        return Ok(mask.clone());
    }
    let mut whole = Tensor::zeros([b, 1, total, total])?;
    whole.paste(&[0, 0, 0, 0], mask)?;
    Ok(whole)
}

impl DiffusionNetwork for FluxNetwork {
    type Config = FluxConfig;

    const WHAT: &'static str = "the transformer";

    fn facts(config: &FluxConfig) -> ModelFacts {
        let (latent, sampling, memory_factor) = match config.kind {
            FluxKind::Flux2 => (
                latent_format::FLUX2,
                ModelSampling::flux(2.02),
                (29264, 1000),
            ),
            FluxKind::Chroma => (latent_format::FLUX, ModelSampling::flux(1.15), (32, 10)),
            FluxKind::Flux1 if config.guidance => {
                (latent_format::FLUX, ModelSampling::flux(1.15), (31, 10))
            }
            FluxKind::Flux1 | FluxKind::Ovis => {
                (latent_format::FLUX, ModelSampling::flow(1.0, 1.0), (31, 10))
            }
        };
        ModelFacts {
            latent,
            latent_channels: config.out_channels,
            in_channels: config.in_channels,
            context: Some(config.context),
            model_channels: None,
            architecture: match config.kind {
                FluxKind::Flux1 if config.guidance => Some("flux-1-dev"),
                FluxKind::Flux1 => Some("flux-1-schnell"),
                _ => None,
            },
            memory_factor,
            sampling,
        }
    }

    fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let (hidden, bias) = (config.hidden, config.bias);
        let tokens = config.in_channels * config.patch * config.patch;
        let embedder = |name: &str, input: usize| Self::embedder(weights, name, input, config);
        let distilled = match config.modulation {
            ModulationKind::Distilled { width, layers } => Some((width, layers)),
            _ => None,
        };
        let shared = (config.modulation == ModulationKind::Shared).then(|| -> Result<_> {
            let lin = |name: &str, count: usize| {
                weights.linear_with(&format!("{name}.lin"), count * hidden, hidden, bias)
            };
            Ok(SharedModulation {
                image: lin("double_stream_modulation_img", 6)?,
                text: lin("double_stream_modulation_txt", 6)?,
                single: lin("single_stream_modulation", 3)?,
            })
        });
        let double = weights.at("double_blocks");
        let single = weights.at("single_blocks");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            image_in: weights.linear_with("img_in", hidden, tokens, bias)?,
            time_in: (distilled.is_none())
                .then(|| embedder("time_in", WAVES))
                .transpose()?,
            vector_in: config
                .vector
                .map(|width| embedder("vector_in", width))
                .transpose()?,
            guidance_in: config
                .guidance
                .then(|| embedder("guidance_in", WAVES))
                .transpose()?,
            text_norm: config
                .text_norm
                .then(|| weights.rms_norm("txt_norm.scale", config.context, EPS))
                .transpose()?,
            text_in: weights.linear_with("txt_in", hidden, config.context, bias)?,
            shared: shared.transpose()?,
            approximator: distilled
                .map(|(width, layers)| {
                    let weights = weights.at("distilled_guidance_layer");
                    Approximator::new(&weights, config, width, layers)
                })
                .transpose()?,
            double: (0..config.double)
                .map(|n| DoubleBlock::new(&double.at(n), config))
                .collect::<Result<_>>()?,
            single: (0..config.single)
                .map(|n| SingleBlock::new(&single.at(n), config))
                .collect::<Result<_>>()?,
            last: LastLayer::new(&weights.at("final_layer"), config)?,
            norm: plain_norm()?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let config = &self.config;
        let [_, channels, h, w] = input.x.dims4()?;
        if channels != config.in_channels {
            let reason = format!(
                "the network takes {} channels, not {channels}",
                config.in_channels
            );
            return Err(ModelError::invalid("latent", reason));
        }
        let text = conditions::text_of(input.conds, config)?;
        let references = input.conds.list("ref_latents");
        let method = input.conds.word("ref_latents_method");
        let picture = Picture::new(input.x, references, method, config)?;
        let vector = self.vector(input)?;
        let vector = vector.as_ref().map(activated);
        let given = self.given(input, vector.as_ref())?;
        let count = text.dim(1)?;
        let positions = picture.positions(count, config);
        let rope = Rope::new(&positions, &config.axes, config.theta)?.to(&self.device)?;
        let mask = input.conds.tensor("attention_mask");
        let total = count + picture.tokens.dim(1)?;
        let mask = mask.map(|mask| whole_mask(mask, total)).transpose()?;
        let mask = mask.map(|mask| mask.to(&self.device)).transpose()?;
        let pass = BlockPass {
            vector: vector.as_ref(),
            rope: &rope,
            mask: mask.as_ref(),
            heads: config.heads,
            norm: &self.norm,
        };
        let image = self.image_in.forward(&picture.tokens.to(&self.device)?)?;
        let mut text = text.to(&self.device)?;
        if let Some(norm) = &self.text_norm {
            text = norm.forward(&text)?;
        }
        let text = self.text_in.forward(&text)?;
        let size = picture.size;
        let (image, text) = self.run_double((image, text), input, &pass, (&given, size))?;
        let x = Tensor::cat(&[&text, &image], 1)?;
        drop((image, text));
        let x = self.run_single(x, input, &pass, (&given, size, count))?;
        let own = x.narrow(1, count, picture.own)?;
        drop(x);
        let last = match &given {
            Given::Rows(rows) => Some(rows.last()?),
            _ => None,
        };
        let out = self.last.forward(&own, &pass, last)?.to(&Device::cpu())?;
        let out = from_tokens(&out, size, config.patch, PatchOrder::ChannelFirst)?;
        Ok(out.narrow(2, 0, h)?.narrow(3, 0, w)?)
    }

    fn memory_required(config: &FluxConfig, shape: &[usize]) -> u64 {
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let cells: u64 = shape.iter().skip(2).map(|n| *n as u64).product();
        let tokens = cells / (config.patch * config.patch) as u64 + conditions::USUAL_TEXT as u64;
        (batch * tokens * config.hidden as u64).saturating_mul(HELD * size_of::<f32>() as u64)
    }

    fn encode(config: &FluxConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        conditions::encode(config, file, args)
    }
}
