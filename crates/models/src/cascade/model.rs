//! The networks of both stages and what goes into them.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Conv2d, LayerNorm, Linear, Padding, silu};
use fresco_tensor::{Buffer, Device, Tensor};

use super::blocks::{BlockPass, EPS, Enlarge, Level, stretched};
use super::config::{CascadeConfig, CascadeStage};
use crate::conds;
use crate::denoise::hook_points::HookPoints;
use crate::denoise::{
    CondValue, DiffusionNetwork, EncodeArgs, ModelConds, ModelFacts, NetworkInput, PassMemory,
    names,
};
use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::latent_format;
use crate::model_sampling::{ModelSampling, Prediction};
use crate::store::{Kernel, Walk};
use crate::transformer::{PatchOrder, circular_pad, exponential, from_tokens, to_tokens};

/// Values of a cell that a pass holds at its fullest, in widths of the first level.
const HELD: usize = 24;

/// How much smaller the latent of stage C is than that of stage B, where there is none.
const USUAL_PRIOR: (usize, usize) = (4, 42);

/// A side of the picture that stage B could look at and never does.
const PIXELS: usize = 8;

/// From a level to the next one inwards.
enum Smaller {
    Layer(Arc<Linear>),
    Conv(Arc<Conv2d>),
}

/// And back.
enum Larger {
    Layer(Arc<Linear>),
    Cells(Enlarge),
}

/// Two layers with a norm behind them.
struct Mapper([Arc<Linear>; 2]);

impl Mapper {
    fn new(weights: &Walk<'_>, input: usize, inner: usize, out: usize) -> Result<Self> {
        Ok(Self([
            weights.linear("0", inner, input)?,
            weights.linear("2", out, inner)?,
        ]))
    }

    fn forward(&self, norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
        let inner = self.0[0].forward_with(x, then(Act::Gelu))?;
        Ok(norm.forward(&self.0[1].forward(&inner)?)?)
    }
}

/// What the two stages are told.
enum Prompt {
    B {
        pooled: Arc<Linear>,
        prior: Mapper,
        pixels: Mapper,
    },
    C {
        text: Arc<Linear>,
        pooled: Arc<Linear>,
        picture: Arc<Linear>,
    },
}

impl Prompt {
    fn new(weights: &Walk<'_>, config: &CascadeConfig) -> Result<Self> {
        let (cond, tokens) = (config.cond, config.tokens * config.cond);
        let outer = config.down[0].channels;
        Ok(match config.stage {
            CascadeStage::B {
                pooled,
                prior,
                prior_inner,
                pixels,
            } => Self::B {
                pooled: weights.linear("clip_mapper", tokens, pooled)?,
                prior: Mapper::new(&weights.at("effnet_mapper"), prior, prior_inner, outer)?,
                pixels: Mapper::new(&weights.at("pixels_mapper"), 3, pixels, outer)?,
            },
            CascadeStage::C {
                text,
                pooled,
                picture,
            } => Self::C {
                text: weights.linear("clip_txt_mapper", cond, text)?,
                pooled: weights.linear("clip_txt_pooled_mapper", tokens, pooled)?,
                picture: weights.linear("clip_img_mapper", tokens, picture)?,
            },
        })
    }
}

/// See the [module](super).
pub struct CascadeNetwork {
    device: Device,
    config: CascadeConfig,
    prompt: Prompt,
    first: Arc<Linear>,
    down: Vec<Level>,
    smaller: Vec<Smaller>,
    up: Vec<Level>,
    larger: Vec<Larger>,
    norm: LayerNorm,
    last: Arc<Linear>,
}

conds! {
    /// What the network is told besides the latent.
    struct CascadeConds<'a> {
        text: Option<&'a Tensor> = names::PROMPT,
        pooled_b: Option<&'a Tensor> = "clip",
        pooled_c: Option<&'a Tensor> = "clip_text_pooled",
        picture: Option<&'a Tensor> = "clip_img",
        prior: Option<&'a Tensor> = "effnet",
    }
}

impl DiffusionNetwork for CascadeNetwork {
    type Config = CascadeConfig;

    const WHAT: &'static str = "the network";

    const HOOKS: HookPoints = HookPoints::NONE;

    fn facts(config: &CascadeConfig) -> ModelFacts {
        let (latent, shift, context) = match config.stage {
            CascadeStage::B { .. } => (latent_format::CASCADE_B, 1.0, None),
            CascadeStage::C { text, .. } => (latent_format::CASCADE_C, 2.0, Some(text)),
        };
        let patch = config.stage.patch();
        let widest = config.down.iter().map(|level| level.channels).max();
        ModelFacts {
            latent,
            latent_channels: config.out_channels,
            in_channels: config.channels,
            context,
            model_channels: None,
            architecture: None,
            pass: PassMemory::of_cells(patch * patch, widest.unwrap_or(0), HELD),
            sampling: ModelSampling::cosine(Prediction::Eps, shift),
        }
    }

    fn new(weights: &Walk<'_>, config: &CascadeConfig) -> Result<Self> {
        let square = config.stage.patch() * config.stage.patch();
        let flat = matches!(config.stage, CascadeStage::C { .. });
        let (mut down, mut smaller) = (Vec::new(), Vec::new());
        for (number, level) in config.down.iter().enumerate() {
            if let Some(outer) = number.checked_sub(1).map(|at| config.down[at].channels) {
                let name = format!("down_downscalers.{number}.1");
                smaller.push(if flat {
                    let name = format!("{name}.blocks.0");
                    Smaller::Layer(weights.linear(&name, level.channels, outer)?)
                } else {
                    let kernel = Kernel {
                        out: level.channels,
                        input: outer,
                        side: 2,
                        bias: true,
                    };
                    Smaller::Conv(weights.conv_with(&name, kernel, 2, Padding::Same(0))?)
                });
            }
            down.push(Level::new(weights, ("down", number), config, level, 0)?);
        }
        let (mut up, mut larger) = (Vec::new(), Vec::new());
        for (number, level) in config.up.iter().enumerate() {
            // The innermost level has nothing to come back to.
            let skip = if number == 0 { 0 } else { level.channels };
            up.push(Level::new(weights, ("up", number), config, level, skip)?);
            if let Some(outer) = config.up.get(number + 1).map(|level| level.channels) {
                let name = format!("up_upscalers.{number}.1");
                larger.push(if flat {
                    let name = format!("{name}.blocks.1");
                    Larger::Layer(weights.linear(&name, outer, level.channels)?)
                } else {
                    Larger::Cells(Enlarge::new(&weights.at(name), level.channels, outer)?)
                });
            }
        }
        let outer = config.down[0].channels;
        Ok(Self {
            device: weights.device(),
            config: config.clone(),
            prompt: Prompt::new(weights, config)?,
            first: weights.linear("embedding.1", outer, config.channels * square)?,
            down,
            smaller,
            up,
            larger,
            norm: LayerNorm::new(None, None, EPS)?,
            last: weights.linear("clf.1", config.out_channels * square, outer)?,
        })
    }

    fn forward(&self, input: &NetworkInput<'_>) -> Result<Tensor> {
        let conds = CascadeConds::read(input.conds)?;
        let (hooks, device, norm) = (input.hooks, &self.device, &self.norm);
        let patch = self.config.stage.patch();
        let [items, _, height, width] = input.x.dims4()?;
        let padded = circular_pad(input.x, patch)?;
        let [_, _, h, w] = padded.dims4()?;
        let grid = (h / patch, w / patch);
        let tokens = to_tokens(&padded, patch, PatchOrder::ChannelFirst)?;
        let tokens = self.first.forward(&tokens.to(device)?)?;
        let outer = tokens.dim(2)?;
        let mut x = norm.forward(&tokens.reshape([items, grid.0, grid.1, outer])?)?;
        let prompt = self.seen(&conds, items)?;
        x = self.with_prior(x, input.x, conds.prior)?;
        let waves = self.waves(input.timesteps)?.to(device)?;
        let zeros = self.waves(&vec![0.0; items])?.to(device)?;
        let mut told = vec![waves];
        told.resize(1 + self.config.stage.numbers().len(), zeros);
        let check = || hooks.check();
        let pass = BlockPass {
            norm,
            told: &told,
            prompt: &prompt,
            check: &check,
        };
        let mut kept: Vec<Tensor> = Vec::new();
        for (number, level) in self.down.iter().enumerate() {
            if let Some(layer) = number.checked_sub(1).and_then(|at| self.smaller.get(at)) {
                let h = norm.forward(&x)?;
                x = match layer {
                    Smaller::Layer(layer) => layer.forward(&h)?,
                    Smaller::Conv(layer) => layer.forward(&h)?,
                };
            }
            x = level.forward(x, None, &pass)?;
            kept.push(x.clone());
        }
        // The innermost is where the way up begins.
        kept.pop();
        for (number, level) in self.up.iter().enumerate() {
            let skip = if number == 0 { None } else { kept.pop() };
            x = level.forward(x, skip.as_ref(), &pass)?;
            if let Some(layer) = self.larger.get(number) {
                let h = norm.forward(&x)?;
                x = match layer {
                    Larger::Layer(layer) => layer.forward(&h)?,
                    Larger::Cells(layer) => layer.forward(&h)?,
                };
            }
        }
        let [_, rows, columns, channels] = x.dims4()?;
        let x = norm
            .forward(&x)?
            .reshape([items, rows * columns, channels])?;
        let out = self.last.forward(&x)?.to(&Device::cpu())?;
        let out = from_tokens(&out, (rows, columns), patch, PatchOrder::ChannelFirst)?;
        Ok(out.narrow(2, 0, height)?.narrow(3, 0, width)?)
    }

    fn encode(config: &CascadeConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
        let mut conds = ModelConds::new();
        match config.stage {
            CascadeStage::B { pooled, prior, .. } => {
                let vector = args.pooled_of_width(pooled, file)?;
                conds.insert("clip", CondValue::Regular(vector.clone()));
                if let Some(latent) = args.cond.tensors.get("stable_cascade_prior") {
                    if latent.rank() != 4 || latent.dim(1)? != prior {
                        let shape = latent.shape();
                        let reason = format!(
                            "stage B is led by a latent of stage C with {prior} channels, not by one of shape {shape:?}"
                        );
                        return Err(ModelError::unsupported(file, reason));
                    }
                    conds.insert("effnet", CondValue::Regular(latent.clone()));
                }
            }
            CascadeStage::C {
                text,
                pooled,
                picture,
            } => {
                let tokens = args.prompt_of_width(text, file)?;
                conds.insert(names::PROMPT, CondValue::Regular(tokens.clone()));
                let vector = args.pooled_of_width(pooled, file)?;
                conds.insert("clip_text_pooled", CondValue::Regular(vector.clone()));
                let mut vectors = Vec::new();
                for one in &args.cond.seen {
                    let strong = one.embeds.mul_scalar(one.strength as f32);
                    if strong.is_empty() || strong.shape().last() != Some(&picture) {
                        let shape = strong.shape();
                        let reason = format!(
                            "this model takes vectors of {picture} numbers from a vision network, not of shape {shape:?}"
                        );
                        return Err(ModelError::unsupported(file, reason));
                    }
                    vectors.push(strong.reshape([1, strong.len() / picture, picture])?);
                }
                if !vectors.is_empty() {
                    let all = Tensor::cat(&vectors.iter().collect::<Vec<_>>(), 1)?;
                    conds.insert("clip_img", CondValue::Regular(all));
                }
            }
        }
        Ok(conds)
    }
}

impl CascadeNetwork {
    /// What attention looks at beside the cells: tokens (b, n, c), activated.
    fn seen(&self, conds: &CascadeConds<'_>, items: usize) -> Result<Tensor> {
        let (device, cond) = (&self.device, self.config.cond);
        let tensor = |found: Option<&Tensor>| -> Result<Tensor> {
            let found = found.ok_or_else(|| ModelError::invalid("prompt", "this model needs one"));
            Ok(found?.to(device)?)
        };
        let tokens = |layer: &Linear, vectors: &Tensor| -> Result<Tensor> {
            let made = layer.forward(vectors)?;
            Ok(made.reshape([items, made.len() / items.max(1) / cond, cond])?)
        };
        let all = match &self.prompt {
            Prompt::B { pooled, .. } => tokens(pooled, &tensor(conds.pooled_b)?)?,
            Prompt::C {
                text,
                pooled,
                picture,
            } => {
                let text = text.forward(&tensor(conds.text)?)?;
                let pooled = tokens(pooled, &tensor(conds.pooled_c)?)?;
                let vectors = match conds.picture {
                    Some(vectors) => vectors.to(device)?,
                    None => Tensor::zeros_on(device, [items, 1, picture.in_features()])?,
                };
                let picture = tokens(picture, &vectors)?;
                Tensor::cat(&[&text, &pooled, &picture], 1)?
            }
        };
        Ok(silu(&self.norm.forward(&all)?))
    }

    /// Stage B adds what stage C has made.
    fn with_prior(&self, x: Tensor, latent: &Tensor, given: Option<&Tensor>) -> Result<Tensor> {
        let Prompt::B { prior, pixels, .. } = &self.prompt else {
            return Ok(x);
        };
        let (device, norm) = (&self.device, &self.norm);
        let [_, rows, columns, _] = x.dims4()?;
        let prior_latent = if let Some(given) = given {
            given.nchw_to_nhwc()?.to(device)?
        } else {
            let [items, _, h, w] = latent.dims4()?;
            let (times, part) = USUAL_PRIOR;
            let side = |n: usize| (n * times / part).max(1);
            let channels = prior.0[0].in_features();
            Tensor::zeros_on(device, [items, side(h), side(w), channels])?
        };
        let prior_latent = stretched(&prior_latent, rows, columns)?;
        let x = x.add(&prior.forward(norm, &prior_latent)?)?;
        let black = Tensor::zeros_on(device, [1, PIXELS, PIXELS, 3])?;
        let seen = pixels.forward(norm, &black)?;
        Ok(x.add(&stretched(&seen, rows, columns)?)?)
    }

    /// Sines and cosines of a number, (values, waves). A place among ten thousand is so far out that the last bit of a
    /// frequency shows.
    fn waves(&self, values: &[f32]) -> Result<Tensor> {
        const PLACES: f32 = 10000.0;
        let half = self.config.waves / 2;
        let fall = -(10000.0_f64.ln() / (half as f64 - 1.0)) as f32;
        let frequencies: Vec<f32> = (0..half).map(|i| exponential(i as f32 * fall)).collect();
        let mut out = Buffer::with_room(values.len() * self.config.waves)?;
        for value in values {
            let at = value * PLACES;
            out.extend(frequencies.iter().map(|f| (at * f).sin()));
            out.extend(frequencies.iter().map(|f| (at * f).cos()));
            out.extend(std::iter::repeat_n(0.0, self.config.waves % 2));
        }
        Ok(Tensor::from_buffer([values.len(), self.config.waves], out)?)
    }
}
