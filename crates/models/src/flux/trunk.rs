//! All of the network but what goes in first and comes out last, which control nets have too.

use std::sync::Arc;

use fresco_tensor::nn::{LayerNorm, Linear, RmsNorm};
use fresco_tensor::{Device, Tensor};

use super::approximator::{Approximator, Rows};
use super::blocks::{BlockPass, DoubleBlock, EPS, Modulation, SingleBlock, activated, plain_norm};
use super::conditions::{self, FluxConds};
use super::config::{FluxConfig, ModulationKind, WAVES};
use super::positions::Picture;
use crate::denoise::NetworkInput;
use crate::denoise::hooks::BlockKind;
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{Blocks, Embedder, Rope, sinusoid, thousandfold};

/// See the [module](self).
pub(super) struct Trunk {
    pub(super) device: Device,
    config: FluxConfig,
    text_in: Arc<Linear>,
    text_norm: Option<Arc<RmsNorm>>,
    time_in: Option<Embedder>,
    vector_in: Option<Embedder>,
    guidance_in: Option<Embedder>,
    shared: Option<SharedModulation>,
    approximator: Option<Approximator>,
    double: Vec<DoubleBlock>,
    single: Vec<SingleBlock>,
    norm: LayerNorm,
}

/// Modulations that all blocks of a kind have.
struct SharedModulation {
    image: Arc<Linear>,
    text: Arc<Linear>,
    single: Arc<Linear>,
}

/// The modulations of one pass, for networks whose blocks have none of their own.
enum PassModulations {
    Nothing,
    Shared {
        image: Vec<Modulation>,
        text: Vec<Modulation>,
        single: Vec<Modulation>,
    },
    Rows(Rows),
}

/// Sees the picture's tokens after every block.
pub(super) type Observer<'a> = &'a mut dyn FnMut(BlockKind, usize, &Tensor) -> Result<()>;

/// What comes out.
pub(super) struct TrunkOutput {
    /// The tokens of the picture itself.
    pub(super) image: Tensor,
    /// What the last layer is modulated by: a vector after SiLU, or shift and scale.
    pub(super) vector: Option<Tensor>,
    pub(super) last: Option<(Tensor, Tensor)>,
}

fn embedder(weights: &Walk<'_>, name: &str, input: usize, config: &FluxConfig) -> Result<Embedder> {
    let names = ["in_layer", "out_layer"];
    Embedder::new(&weights.at(name), names, input, config.hidden, config.bias)
}

impl Trunk {
    pub(super) fn new(weights: &Walk<'_>, config: &FluxConfig) -> Result<Self> {
        let (hidden, bias) = (config.hidden, config.bias);
        let embedder = |name: &str, input: usize| embedder(weights, name, input, config);
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
            norm: plain_norm()?,
        })
    }

    /// The norm without weights that all blocks use.
    pub(super) fn norm(&self) -> &LayerNorm {
        &self.norm
    }

    /// Noise level, guidance and pooled prompt as one vector (b, c); none where a small network takes their place.
    fn vector(&self, timesteps: &[f32], conds: &FluxConds<'_>) -> Result<Option<Tensor>> {
        let Some(time_in) = &self.time_in else {
            return Ok(None);
        };
        let waves =
            |values: &[f32]| Ok::<_, ModelError>(sinusoid(values, WAVES)?.to(&self.device)?);
        let levels: Vec<f32> = timesteps.iter().map(|v| v * 1000.0).collect();
        let mut vector = time_in.forward(&waves(&levels)?)?;
        if let (Some(layer), Some(guidance)) = (&self.guidance_in, conds.guidance) {
            let guidance = guidance.data().iter();
            let guidance: Vec<f32> = guidance.map(|v| thousandfold(*v, &self.device)).collect();
            vector = vector.add(&layer.forward(&waves(&guidance)?)?)?;
        }
        if let Some(layer) = &self.vector_in {
            let width = self.config.vector.unwrap_or(0);
            let pooled = match conds.pooled {
                Some(y) => y.narrow(1, 0, width)?,
                None => Tensor::zeros([timesteps.len(), width])?,
            };
            vector = vector.add(&layer.forward(&pooled.to(&self.device)?)?)?;
        }
        Ok(Some(vector))
    }

    fn pass_modulations(
        &self,
        timesteps: &[f32],
        guidance: Option<&Tensor>,
        vector: Option<&Tensor>,
    ) -> Result<PassModulations> {
        if let (Some(shared), Some(vector)) = (&self.shared, vector) {
            return Ok(PassModulations::Shared {
                image: Modulation::split(&shared.image.forward(vector)?, 2)?,
                text: Modulation::split(&shared.text.forward(vector)?, 2)?,
                single: Modulation::split(&shared.single.forward(vector)?, 1)?,
            });
        }
        let Some(approximator) = &self.approximator else {
            return Ok(PassModulations::Nothing);
        };
        let guidance = guidance.ok_or_else(|| {
            let reason = "this network needs a guidance value, and the conditioning disables it";
            ModelError::invalid("guidance", reason)
        })?;
        let rows = approximator.rows(timesteps, guidance.data(), &self.device)?;
        Ok(PassModulations::Rows(rows))
    }

    fn run_double(
        &self,
        pair: (Tensor, Tensor),
        blocks: Blocks<'_>,
        pass: &BlockPass<'_>,
        given: &PassModulations,
        observer: Observer<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let block = |number: usize, image: Tensor, text: Tensor| {
            let rows = match given {
                PassModulations::Rows(rows) => Some(rows.double(number)?),
                _ => None,
            };
            let pair = match (given, &rows) {
                (PassModulations::Shared { image, text, .. }, _) | (_, Some((image, text))) => {
                    Some((&image[..], &text[..]))
                }
                _ => None,
            };
            self.double[number].forward(image, text, pass, pair)
        };
        blocks.run_pair_then(pair, block, |number, image| {
            observer(BlockKind::DOUBLE, number, &image)?;
            Ok(image)
        })
    }

    fn run_single(
        &self,
        x: Tensor,
        blocks: Blocks<'_>,
        pass: &BlockPass<'_>,
        given: &PassModulations,
        observer: Observer<'_>,
    ) -> Result<Tensor> {
        let block = |number: usize, x: Tensor| {
            let row = match given {
                PassModulations::Rows(rows) => Some(rows.single(number)?),
                _ => None,
            };
            let one = match given {
                PassModulations::Shared { single, .. } => single.first(),
                _ => row.as_ref(),
            };
            self.single[number].forward(x, pass, one)
        };
        blocks.run_then(x, block, |number, x| {
            observer(BlockKind::SINGLE, number, &x)?;
            Ok(x)
        })
    }

    /// Runs all blocks. `image` are the picture's tokens in the width of the network; `front` are tokens to put before those
    /// of the prompt, in that width too.
    pub(super) fn forward(
        &self,
        input: &NetworkInput<'_>,
        conds: &FluxConds<'_>,
        picture: &Picture,
        (image, front): (Tensor, Option<&Tensor>),
        observer: Observer<'_>,
    ) -> Result<TrunkOutput> {
        let config = &self.config;
        let mut text = conditions::text_of(conds, config)?.to(&self.device)?;
        let vector = self.vector(input.timesteps, conds)?;
        let vector = vector.as_ref().map(activated);
        let given = self.pass_modulations(input.timesteps, conds.guidance, vector.as_ref())?;
        if let Some(norm) = &self.text_norm {
            text = norm.forward(&text)?;
        }
        let mut text = self.text_in.forward(&text)?;
        let before = front.map_or(Ok(0), |front| front.dim(1))?;
        if let Some(front) = front {
            text = Tensor::cat(&[front, &text], 1)?;
        }
        let count = text.dim(1)?;
        let positions = picture.positions((before, count), config);
        let rope = Rope::new(&positions, &config.axes, config.theta)?.to(&self.device)?;
        let mask = conds.mask;
        let total = count + image.dim(1)?;
        let mask = mask.map(|mask| whole_mask(mask, total)).transpose()?;
        let mask = mask.map(|mask| mask.to(&self.device)).transpose()?;
        let pass = BlockPass {
            vector: vector.as_ref(),
            rope: &rope,
            mask: mask.as_ref(),
            norm: &self.norm,
        };
        let size = [1, picture.size.0, picture.size.1];
        let blocks = |kind, blocks: usize, start: usize| {
            let blocks = Blocks::new(kind, blocks, config.heads, size, input);
            blocks.with_control(input.control, start)
        };
        let double = blocks(BlockKind::DOUBLE, self.double.len(), 0);
        let both = (image, text);
        let (image, text) = self.run_double(both, double, &pass, &given, observer)?;
        let image = if self.single.is_empty() {
            image
        } else {
            let x = Tensor::cat(&[&text, &image], 1)?;
            drop((image, text));
            let mut own = |kind: BlockKind, number: usize, x: &Tensor| -> Result<()> {
                observer(kind, number, &x.narrow(1, count, x.dim(1)? - count)?)
            };
            let single = blocks(BlockKind::SINGLE, self.single.len(), count);
            let x = self.run_single(x, single, &pass, &given, &mut own)?;
            x.narrow(1, count, x.dim(1)? - count)?
        };
        Ok(TrunkOutput {
            image: image.narrow(1, 0, picture.own)?,
            last: match &given {
                PassModulations::Rows(rows) => Some(rows.last()?),
                _ => None,
            },
            vector,
        })
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
