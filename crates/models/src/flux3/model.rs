//! The network and what goes into it.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, add_gated, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::{Block, EPS};
use super::config::Flux3Config;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN_APART};
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
    AdaLn, Blocks, MlpLayers, PatchOrder, Rope, TimeEmbed, from_tokens, to_tokens,
};

/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 18;

/// Tokens of a prompt that memory is counted with.
const PROMPT: usize = 512;

/// What makes an embedding of a noise level.
fn times(weights: &Walk<'_>, config: &Flux3Config) -> Result<TimeEmbed> {
    let layers = MlpLayers::Plain(["in_layer", "out_layer"], Act::Silu);
    let sizes = [config.waves, config.dim, config.dim];
    TimeEmbed::between(weights, layers, sizes, Bias::Without)
}

/// Tokens of one kind: their blocks and how they are told the noise level.
struct Stream {
    into: Arc<Linear>,
    early: Vec<Block>,
    early_modulation: AdaLn<3>,
    single_modulation: AdaLn<3>,
}

impl Stream {
    fn new(
        weights: &Walk<'_>,
        config: &Flux3Config,
        (name, into, blocks): (&str, &str, &str),
        channels: usize,
    ) -> Result<Self> {
        let dim = config.dim;
        let modulation = |list: &str| {
            let name = format!("{list}.{name}.lin");
            AdaLn::new(weights, &name, dim, dim, Bias::Without)
        };
        let list = weights.at(blocks);
        let block = |number| Block::new(&list.at(number), config);
        Ok(Self {
            into: weights.matrix(into, dim, channels)?,
            early: (0..config.early).map(block).collect::<Result<_>>()?,
            early_modulation: modulation("early_stream_modulations")?,
            single_modulation: modulation("single_stream_modulations")?,
        })
    }
}

/// Shift, scale and gate of one stream: (b, c) each.
type Modulation = [Tensor; 3];

/// A stream during a pass.
struct Flow {
    x: Tensor,
    early: Modulation,
    single: Modulation,
}

pub struct Flux3Network {
    device: Device,
    config: Flux3Config,
    time: TimeEmbed,
    next_time: Option<TimeEmbed>,
    image: Stream,
    reference: Stream,
    text: Stream,
    single: Vec<Block>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
    last: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    struct Flux3Conds<'a> {
        prompt: &'a Tensor = names::PROMPT,
        references: &'a [Tensor] = names::REFERENCES,
    }
}

impl DiffusionNetwork for Flux3Network {
    type Config = Flux3Config;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN_APART]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN_APART]),
    ]);

    fn facts(config: &Flux3Config) -> ModelFacts {
        ModelFacts {
            latent: latent_format::FLUX2,
            latent_channels: config.channels,
            in_channels: config.channels,
            context: Some(config.context),
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(1, config.dim, HELD).with_prompt(PROMPT),
            sampling: ModelSampling::flow(6.93, 1.0),
        }
    }

    fn new(weights: &Walk<'_>, config: &Flux3Config) -> Result<Self> {
        let dim = config.dim;
        let ahead = config.looks_ahead;
        let next_time = ahead.then(|| times(&weights.at("ref_time_in"), config));
        let image = ("image", "emb_in.image", "content_mode_blocks.image");
        let reference = (
            "image_cond",
            "emb_in.image_cond",
            "content_mode_blocks.image_cond",
        );
        let text = ("txt", "txt_in", "txt_mode_blocks");
        let single = weights.at("single_blocks");
        let block = |number| Block::new(&single.at(number), config);
        let end = weights.at("final_layer").at("image");
        Ok(Self {
            device: weights.device().clone(),
            config: config.clone(),
            time: times(&weights.at("time_in"), config)?,
            next_time: next_time.transpose()?,
            image: Stream::new(weights, config, image, config.channels)?,
            reference: Stream::new(weights, config, reference, config.reference_channels)?,
            text: Stream::new(weights, config, text, config.context)?,
            single: (0..config.single).map(block).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "adaLN_modulation.1", dim, dim, Bias::Without)?,
            last: end.matrix("linear", config.channels, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = Flux3Conds::read(input.conds)?;
        let hooks = input.hooks;
        let [batch, _, rows, columns] = input.x.dims4()?;
        let prompt = conds.prompt;
        let references = conds.references;
        let mut positions: Vec<[f64; 4]> = Vec::new();
        let text_count = prompt.dim(1)?;
        positions.extend((0..text_count).map(|l| [0.0, 0.0, 0.0, l as f64]));
        positions.extend(picture_positions((rows, columns), 0.0));
        let mut cells = Vec::with_capacity(references.len());
        for (number, reference) in references.iter().enumerate() {
            let [_, _, h, w] = reference.dims4()?;
            positions.extend(picture_positions((h, w), -(number as f64 + 1.0)));
            cells.push(to_tokens(reference, 1, PatchOrder::ChannelFirst)?);
        }
        let config = &self.config;
        let rope = Rope::new(positions.as_flattened(), &config.axes, config.theta)?;
        let rope = rope.to(&self.device)?;

        let time = self.times(input.timesteps, hooks)?;
        let still = self.times_at(&vec![0.0; batch], input.timesteps, hooks)?;
        let (active, active_still) = (silu(&time), silu(&still));
        let tokens = to_tokens(input.x, 1, PatchOrder::ChannelFirst)?;
        let mut flows = vec![
            self.flow(&self.text, prompt, &active_still)?,
            self.flow(&self.image, &tokens, &active)?,
        ];
        if !cells.is_empty() {
            let all = Tensor::cat(&cells.iter().collect::<Vec<_>>(), 1)?;
            flows.push(self.flow(&self.reference, &all, &active_still)?);
        }
        let size = [1, rows, columns];
        let blocks = |kind, count: usize| Blocks::new(kind, count, config.heads, size, input);
        let mut start = 0;
        let streams = [&self.text, &self.image, &self.reference];
        for (number, (flow, stream)) in flows.iter_mut().zip(streams).enumerate() {
            let own = rope.narrow(start, flow.x.dim(1)?)?;
            start += flow.x.dim(1)?;
            let [shift, scale, gate] = &flow.early;
            let early = blocks(BlockKind::DOUBLE, stream.early.len()).of_stream(number);
            let control = input.control.filter(|_| number == 1);
            let early = early.with_control(control, 0);
            flow.x = early.run(flow.x.clone(), |number, x| {
                let input = self.norm.modulated(&x, shift, scale)?;
                Ok(add_gated(
                    x,
                    gate,
                    &stream.early[number].forward(&input, &own)?,
                )?)
            })?;
        }
        let single = blocks(BlockKind::SINGLE, self.single.len());
        let x = single.run(flows[1].x.clone(), |number, x| {
            flows[1].x = x;
            self.together(&self.single[number], &mut flows, &rope)?;
            Ok(flows[1].x.clone())
        })?;
        let [shift, scale] = self.last_modulation.forward(&active)?;
        let out = self
            .last
            .forward(&self.norm.modulated(&x, &shift, &scale)?)?;
        let out = out.to(&Device::cpu())?;
        from_tokens(&out, (rows, columns), 1, PatchOrder::ChannelFirst)
    }

    fn encode(config: &Flux3Config, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        let tokens = args.prompt_of_width(config.context, file)?;
        conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
        if let Some(list) = args.cond.lists.get("reference_latents") {
            let format = latent_format::FLUX2;
            let mut latents = Vec::with_capacity(list.len());
            for latent in list {
                if latent.rank() != 4 || latent.dim(1)? != config.reference_channels {
                    let reason = format!(
                        "a reference picture has a latent of shape {:?}, but this model takes {} channels: it was encoded \
                         with the VAE of another family of models. Load the one that belongs to this model",
                        latent.shape(),
                        config.reference_channels
                    );
                    return Err(ModelError::unsupported(file, reason));
                }
                latents.push(format.process_in(latent)?);
            }
            conds.insert(names::REFERENCES, CondValue::List(latents));
        }
        Ok(conds)
    }
}

/// Positions of a picture's tokens: two of them are as far apart as one in training.
fn picture_positions(
    (rows, columns): (usize, usize),
    number: f64,
) -> impl Iterator<Item = [f64; 4]> {
    (0..rows).flat_map(move |row| {
        (0..columns).map(move |column| [0.0, 0.5 * row as f64, 0.5 * column as f64, number])
    })
}

impl Flux3Network {
    fn flow(&self, stream: &Stream, tokens: &Tensor, active: &Tensor) -> Result<Flow> {
        Ok(Flow {
            x: stream.into.forward(&tokens.to(&self.device)?)?,
            early: stream.early_modulation.forward(active)?,
            single: stream.single_modulation.forward(active)?,
        })
    }

    fn times(&self, levels: &[f32], hooks: &Hooks) -> Result<Tensor> {
        self.times_at(levels, levels, hooks)
    }

    /// The embedding of some levels, in a pass at `now`.
    fn times_at(&self, levels: &[f32], now: &[f32], hooks: &Hooks) -> Result<Tensor> {
        let time = self.time.forward(levels, 1000.0, &self.device)?;
        let Some(next) = &self.next_time else {
            return Ok(time);
        };
        let following: Vec<f32> = now.iter().map(|level| hooks.level_after(*level)).collect();
        Ok(time.add(&next.forward(&following, 1000.0, &self.device)?)?)
    }

    /// A block that sees all streams.
    fn together(&self, block: &Block, flows: &mut [Flow], rope: &Rope) -> Result<()> {
        let mut inputs = Vec::with_capacity(flows.len());
        for flow in flows.iter() {
            let [shift, scale, _] = &flow.single;
            inputs.push(self.norm.modulated(&flow.x, shift, scale)?);
        }
        let all = Tensor::cat(&inputs.iter().collect::<Vec<_>>(), 1)?;
        drop(inputs);
        let made = block.forward(&all, rope)?;
        let mut start = 0;
        for flow in flows {
            let count = flow.x.dim(1)?;
            let own = made.narrow(1, start, count)?;
            start += count;
            flow.x = add_gated(flow.x.clone(), &flow.single[2], &own)?;
        }
        Ok(())
    }
}
