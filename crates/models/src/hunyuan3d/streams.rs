//! Version 2: two streams that look at each other, then one, without positions.

use std::sync::Arc;

use fresco_tensor::nn::{Act, LayerNorm, Linear, Mask, MlpJoin, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::config::Hunyuan3dConfig;
use crate::conds;
use crate::denoise::hook_points::{BLOCKS, CONTROL, HookPoints, OWN, OWN_INSIDE};
use crate::denoise::hooks::BlockKind;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::error::Result;
use crate::latent_format::{self, LatentFormat};
use crate::model_sampling::ModelSampling;
use crate::store::{Bias, Walk};
use crate::transformer::{
    AdaLn, Attention, AttentionLayers, Blocks, Embedder, HeadNorm, Heads, Mlp, MlpLayers,
    ParallelBlock, Qkv, QkvLayers, Rotation, TokenRows,
};

pub(super) const EPS: f32 = 1e-6;
const WAVES: usize = 256;
/// What a time is multiplied with, and the slowest of its waves.
const SCALE: f32 = 1000.0;
const PERIOD: f32 = 1000.0;
/// How strongly the network is told to follow the picture, unless a node says.
const GUIDANCE: f64 = 5.0;
/// Values of a token that a pass holds at its fullest, in widths of the network.
const HELD: usize = 16;

/// Cosines and sines of numbers: (values, WAVES).
fn waves(values: &[f32]) -> Result<Tensor> {
    let half = WAVES / 2;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| (-PERIOD.ln() * i as f32 / half as f32).exp())
        .collect();
    let mut out = Buffer::with_room(values.len() * WAVES)?;
    for value in values {
        let angles = frequencies.iter().map(|f| SCALE * value * f);
        out.extend(angles.clone().map(f32::cos));
        out.extend(angles.map(f32::sin));
    }
    Ok(Tensor::from_buffer([values.len(), WAVES], out)?)
}

/// Heads whose queries and keys are normalised by weights of these names.
fn heads<'a>(config: &Hunyuan3dConfig, norms: [&'a str; 2]) -> Heads<'a> {
    let width = config.dim / config.heads;
    Heads::new(config.heads, width, HeadNorm::Rms(norms, EPS))
}

/// One of the two streams of a block.
struct Stream {
    modulation: AdaLn<6>,
    attention: Attention,
    mlp: Mlp,
}

impl Stream {
    fn new(weights: &Walk<'_>, name: &str, config: &Hunyuan3dConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let heads = heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]);
        let layers = AttentionLayers::new(QkvLayers::Joined("qkv"), "proj", dim, heads);
        let mlp = MlpLayers::Plain(["0", "2"], Act::GeluTanh);
        let level = format!("{name}_mod.lin");
        Ok(Self {
            modulation: AdaLn::new(weights, &level, dim, dim, Bias::With)?,
            attention: Attention::new(&weights.at(format!("{name}_attn")), &layers)?,
            mlp: Mlp::new(
                &weights.at(format!("{name}_mlp")),
                mlp,
                (dim, inner),
                Bias::With,
            )?,
        })
    }

    fn finish(
        &self,
        norm: &LayerNorm,
        x: Tensor,
        seen: &Tensor,
        [_, _, gate, shift, scale, last_gate]: &[Tensor; 6],
    ) -> Result<Tensor> {
        let x = self.attention.add_gated(seen, x, gate)?;
        let inner = self
            .mlp
            .inner(TokenRows::modulated(norm, &x, shift, scale))?;
        self.mlp.add_gated(&inner, x, last_gate)
    }
}

struct Double {
    latent: Stream,
    prompt: Stream,
}

struct Single {
    modulation: AdaLn<3>,
    layers: ParallelBlock,
}

pub struct Hunyuan3dNetwork {
    device: Device,
    config: Hunyuan3dConfig,
    latent: Arc<Linear>,
    time: Embedder,
    guidance: Option<Embedder>,
    prompt: Arc<Linear>,
    doubles: Vec<Double>,
    singles: Vec<Single>,
    norm: LayerNorm,
    last_modulation: AdaLn<2>,
    last: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    pub(super) struct PictureConds<'a> {
        picture: &'a Tensor = names::PROMPT,
        guidance: Option<f64> = names::GUIDANCE,
    }
}

impl DiffusionNetwork for Hunyuan3dNetwork {
    type Config = Hunyuan3dConfig;

    const HOOKS: HookPoints = HookPoints(&[
        (BlockKind::DOUBLE, &[BLOCKS, CONTROL, OWN]),
        (BlockKind::SINGLE, &[BLOCKS, CONTROL, OWN_INSIDE]),
    ]);

    fn facts(config: &Hunyuan3dConfig) -> ModelFacts {
        let latent = if config.is_mini() {
            latent_format::HUNYUAN_3D_2_MINI
        } else {
            latent_format::HUNYUAN_3D_2
        };
        solid_facts(latent, [config.channels, config.context, config.dim])
    }

    fn new(weights: &Walk<'_>, config: &Hunyuan3dConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.inner);
        let names = ["in_layer", "out_layer"];
        let end = weights.at("final_layer");
        let embedder = |name: &str| Embedder::new(&weights.at(name), names, WAVES, dim, Bias::With);
        let double = |number: usize| -> Result<Double> {
            let at = weights.at("double_blocks").at(number);
            Ok(Double {
                latent: Stream::new(&at, "img", config)?,
                prompt: Stream::new(&at, "txt", config)?,
            })
        };
        let single = |number: usize| -> Result<Single> {
            let at = weights.at("single_blocks").at(number);
            Ok(Single {
                modulation: AdaLn::new(&at, "modulation.lin", dim, dim, Bias::With)?,
                layers: ParallelBlock::new(
                    &at,
                    ["linear1", "linear2"],
                    (dim, inner),
                    heads(config, ["norm.query_norm.scale", "norm.key_norm.scale"]),
                    MlpJoin::GeluTanh,
                    Bias::With,
                )?,
            })
        };
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            latent: weights.linear("latent_in", dim, config.channels)?,
            time: embedder("time_in")?,
            guidance: config.guided.then(|| embedder("guidance_in")).transpose()?,
            prompt: weights.linear("cond_in", dim, config.context)?,
            doubles: (0..config.doubles).map(double).collect::<Result<_>>()?,
            singles: (0..config.singles).map(single).collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, EPS)?,
            last_modulation: AdaLn::new(&end, "adaLN_modulation.1", dim, dim, Bias::With)?,
            last: end.linear("linear", config.channels, dim)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = PictureConds::read(input.conds)?;
        let device = &self.device;
        let [_, _, count] = input.x.dims3()?;
        let context = conds.picture;
        // This family counts time from noise on.
        let times: Vec<f32> = input.timesteps.iter().map(|t| 1.0 - t).collect();
        let mut signal = self.time.forward(&waves(&times)?.to(device)?)?;
        if let (Some(embedder), Some(guidance)) = (&self.guidance, conds.guidance) {
            let guidance = waves(&vec![guidance as f32; times.len()])?.to(device)?;
            signal = signal.add(&embedder.forward(&guidance)?)?;
        }
        let signal = silu(&signal);
        let x = self
            .latent
            .forward(&input.x.permute(&[0, 2, 1])?.to(device)?)?;
        let prompt = self.prompt.forward(&context.to(device)?)?;
        let blocks = |kind, blocks: usize| {
            Blocks::new(kind, blocks, self.config.heads, [1, 1, count], input)
        };
        let doubles = blocks(BlockKind::DOUBLE, self.doubles.len());
        let (x, prompt) = doubles.run_pair((x, prompt), |number, x, prompt| {
            self.double(&self.doubles[number], (x, prompt), &signal)
        })?;
        let first = prompt.dim(1)?;
        let all = Tensor::cat(&[&prompt, &x], 1)?;
        drop((prompt, x));
        let singles = blocks(BlockKind::SINGLE, self.singles.len());
        let singles = singles.with_control(input.control, first);
        let all = singles.run(all, |number, all| {
            self.single(&self.singles[number], all, &signal)
        })?;
        let x = all.narrow(1, first, count)?;
        let [shift, scale] = self.last_modulation.forward(&signal)?;
        let out = self
            .last
            .forward(&self.norm.modulated(&x, &shift, &scale)?)?;
        let out = out.to(&Device::cpu())?.permute(&[0, 2, 1])?;
        Ok(out.mul_scalar(-1.0))
    }

    fn encode(config: &Hunyuan3dConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = picture_conds(config.context, file, args)?;
        let guidance = args.cond.numbers.get("guidance").copied();
        let guidance = CondValue::Constant(guidance.unwrap_or(GUIDANCE));
        conds.insert(names::GUIDANCE, guidance);
        Ok(conds)
    }
}

impl Hunyuan3dNetwork {
    fn double(
        &self,
        block: &Double,
        (x, prompt): (Tensor, Tensor),
        signal: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (of_prompt, of_latent) = (&block.prompt, &block.latent);
        let prompt_parts = of_prompt.modulation.forward(signal)?;
        let parts = of_latent.modulation.forward(signal)?;
        let (first, [shift, scale, ..]) = (&prompt_parts, &parts);
        let words = TokenRows::modulated(&self.norm, &prompt, &first[0], &first[1]);
        let cells = TokenRows::modulated(&self.norm, &x, shift, scale);
        let streams = [
            of_prompt.attention.qkv(words)?,
            of_latent.attention.qkv(cells)?,
        ];
        let [words, cells] = Qkv::attend_joint(streams, Rotation::NONE, Mask::None)?;
        Ok((
            of_latent.finish(&self.norm, x, &cells, &parts)?,
            of_prompt.finish(&self.norm, prompt, &words, &prompt_parts)?,
        ))
    }

    fn single(&self, block: &Single, x: Tensor, signal: &Tensor) -> Result<Tensor> {
        let [shift, scale, gate] = block.modulation.forward(signal)?;
        let rows = TokenRows::modulated(&self.norm, &x, &shift, &scale);
        let seen = block.layers.attend(rows, Rotation::NONE, Mask::None)?;
        seen.add_gated(x, &gate)
    }
}

/// What both versions are to the general path.
pub(super) fn solid_facts(
    latent: LatentFormat,
    [channels, context, dim]: [usize; 3],
) -> ModelFacts {
    ModelFacts {
        latent,
        latent_channels: channels,
        in_channels: channels,
        context: Some(context),
        model_channels: None,
        architecture: None,
        pass: PassMemory::of_places(1, dim, HELD),
        sampling: ModelSampling::flow(1.0, 1.0),
    }
}

/// The states of a picture.
pub(super) fn picture_conds(width: usize, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    let states = args.prompt_of_width(width, file)?;
    conds.insert(names::PROMPT, CondValue::Regular(states.clone()));
    Ok(conds)
}
