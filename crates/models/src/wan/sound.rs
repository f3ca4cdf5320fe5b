//! Videos that follow a sound: its features per frame, what tokens see of them, and earlier motion in coarser and coarser
//! cells.

use std::sync::Arc;

use fresco_tensor::nn::{Embedding, LayerNorm, Linear, Mask, Value, silu};
use fresco_tensor::{Device, Tensor};

use super::blocks::attention;
use super::causal_heads::{CausalHeads, FirstLayer, HeadsConfig};
use super::config::{CELLS, PATCH, WanConfig};
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::transformer::{Attention, Looks, Rotation, Shapes, TokenRows, chunks};

/// After which of forty blocks published networks listen.
const PUBLISHED: [usize; 12] = [0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39];
const NORM_EPS: f32 = 1e-5;
/// Earlier latent frames by the cells they are seen in: the last one, two before it, sixteen before those.
pub(super) const EARLIER: [usize; 3] = [1, 2, 16];
/// Frames, rows and columns of such a cell.
const EARLIER_CELLS: [[usize; 3]; 3] = [[1, 2, 2], [2, 4, 4], [4, 8, 8]];
/// Where in time those cells are.
const EARLIER_PLACES: [f64; 3] = [-1.0, -3.0, -19.0];

/// What a network that follows a sound has more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoundConfig {
    pub heads: HeadsConfig,
    /// Layers of the network that listened.
    pub layers: usize,
    /// The blocks after which tokens listen.
    pub after: Vec<usize>,
    /// Channels of the video that is followed.
    pub control: usize,
    /// Channels of earlier frames.
    pub earlier: usize,
}

impl SoundConfig {
    pub(super) fn detect(shapes: Shapes<'_>, blocks: usize) -> Result<Self> {
        let place = "casual_audio_encoder";
        let layers = shapes.0.shape(&format!("{place}.weights"));
        let injectors = shapes.count("audio_injector.injector");
        let after = if (injectors, blocks) == (PUBLISHED.len(), 40) {
            PUBLISHED.to_vec()
        } else {
            (0..injectors).map(|i| i * blocks / injectors).collect()
        };
        Ok(Self {
            heads: HeadsConfig::detect(shapes, &format!("{place}.encoder"))?,
            layers: layers.and_then(|shape| shape.get(1).copied()).unwrap_or(0),
            after,
            control: shapes.matrix("cond_encoder.weight")?.1 / CELLS,
            earlier: shapes.matrix("frame_packer.proj.weight")?.1 / CELLS,
        })
    }
}

/// One place where tokens listen.
struct Listener {
    looks: Attention,
    level: Arc<Linear>,
}

/// The sound that the tokens of a video look at: some tokens for each frame, and one vector.
pub(super) struct SoundContext {
    /// (b * t, tokens, dim).
    local: Tensor,
    /// (b * t, 2 * dim) by listener.
    levels: Vec<Tensor>,
    frames: usize,
}

pub(super) struct Sound {
    config: SoundConfig,
    shares: Arc<Value>,
    heads: CausalHeads,
    whole: FirstLayer,
    last: Arc<Linear>,
    listeners: Vec<Listener>,
    norm: LayerNorm,
    control: Arc<Linear>,
    earlier: [Arc<Linear>; 3],
    kinds: Arc<Embedding>,
}

impl Sound {
    pub(super) fn new(weights: &Walk<'_>, config: &WanConfig, sound: &SoundConfig) -> Result<Self> {
        let dim = config.dim;
        let place = weights.at("casual_audio_encoder");
        let inside = place.at("encoder");
        let injector = weights.at("audio_injector");
        let looks = injector.at("injector");
        let listener = |number: usize| -> Result<Listener> {
            let level = injector.at("injector_adain_layers").at(number);
            Ok(Listener {
                looks: attention(&looks.at(number), config.heads, dim, Looks::Beside(dim))?,
                level: level.linear("linear", 2 * dim, dim)?,
            })
        };
        let packer = weights.at("frame_packer");
        let cells = |number: usize, name: &str| {
            let values = sound.earlier * EARLIER_CELLS[number].iter().product::<usize>();
            packer.linear(name, dim, values)
        };
        Ok(Self {
            shares: place.value("weights", &[1, sound.layers, 1, 1])?,
            heads: CausalHeads::new(&inside, sound.heads, dim)?,
            whole: FirstLayer::new(&inside, "conv1_global", sound.heads)?,
            last: inside.linear("final_linear", dim, dim)?,
            listeners: (0..sound.after.len())
                .map(listener)
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(None, None, NORM_EPS)?,
            control: weights.linear("cond_encoder", dim, sound.control * CELLS)?,
            earlier: [
                cells(0, "proj")?,
                cells(1, "proj_2x")?,
                cells(2, "proj_4x")?,
            ],
            kinds: weights.embedding("trainable_cond_mask", 3, dim)?,
            config: sound.clone(),
        })
    }

    /// What is added to tokens of the video, of a reference, of earlier frames, by their number.
    pub(super) fn kind(&self, x: &Tensor, number: u32) -> Result<Tensor> {
        let row = self.kinds.lookup_on(&[number], &x.device())?;
        Ok(x.add(&row.reshape([1, 1, row.len()])?)?)
    }

    /// What the video that is followed adds to tokens.
    pub(super) fn control(&self, tokens: &Tensor) -> Result<Tensor> {
        Ok(self.control.forward(tokens)?)
    }

    /// What a frame hears of features (b, layers, width, moments), four moments a frame: the vectors, then the tokens.
    pub(super) fn features(
        &self,
        features: &Tensor,
        frames: usize,
        device: &Device,
    ) -> Result<[Tensor; 2]> {
        let &[b, layers, width, moments] = features.shape() else {
            let reason = format!("{:?} is not the shape of a sound", features.shape());
            return Err(ModelError::invalid("audio_embed", reason));
        };
        let wanted = 4 * frames;
        if layers != self.config.layers || width != self.config.heads.input || moments < wanted {
            let reason = format!(
                "{layers} layers of width {width} at {moments} moments, {} of width {} at {wanted} are needed",
                self.config.layers, self.config.heads.input
            );
            return Err(ModelError::invalid("audio_embed", reason));
        }
        let shares = silu(&self.shares.at(&Device::cpu())?);
        let all: f32 = shares.data().iter().sum();
        let features = features.narrow(3, 0, wanted)?;
        let mut sum = Tensor::zeros([b, width, wanted])?;
        for (layer, share) in shares.data().iter().enumerate() {
            let part = features.select(1, layer)?;
            sum = sum.add(&part.mul_scalar(share / all))?;
        }
        let x = sum.permute(&[0, 2, 1])?.to(device)?;
        let local = self.heads.padded(&self.heads.local(&x)?)?;
        let whole = self.last.forward(&self.heads.through(&self.whole, &x)?)?;
        Ok([whole, local])
    }

    pub(super) fn hear(
        &self,
        features: &Tensor,
        frames: usize,
        device: &Device,
    ) -> Result<SoundContext> {
        let [whole, local] = self.features(features, frames, device)?;
        let &[b, t, tokens, dim] = local.shape() else {
            return Err(ModelError::invalid("audio_embed", "it has no frames"));
        };
        let vectors = silu(&whole.reshape([b * t, dim])?);
        let levels = self.listeners.iter();
        let levels = levels.map(|listener| Ok(listener.level.forward(&vectors)?));
        Ok(SoundContext {
            local: local.reshape([b * t, tokens, dim])?,
            levels: levels.collect::<Result<_>>()?,
            frames: t,
        })
    }

    /// The tokens of the video (b, n, dim) after a block, with what they hear; none where none listen.
    pub(super) fn after(
        &self,
        number: usize,
        x: &Tensor,
        heard: &SoundContext,
    ) -> Result<Option<Tensor>> {
        let Some(at) = self.config.after.iter().position(|n| *n == number) else {
            return Ok(None);
        };
        let Listener { looks, .. } = &self.listeners[at];
        let [b, n, dim] = x.dims3()?;
        let frames = x.reshape([b * heard.frames, n / heard.frames, dim])?;
        let [shift, scale] = chunks(&heard.levels[at])?;
        let input = TokenRows::modulated(&self.norm, &frames, &shift, &scale);
        let qkv = looks.qkv_to(&input.to_tensor()?, &heard.local)?;
        let made = looks.add(&qkv.attend(Rotation::NONE, Mask::None)?, &frames)?;
        Ok(Some(made.reshape([b, n, dim])?))
    }

    /// Tokens of earlier frames (b, c, t, h, w), the latest first, and where they are.
    pub(super) fn earlier(
        &self,
        motion: &Tensor,
        device: &Device,
    ) -> Result<(Tensor, Vec<[f64; 3]>)> {
        let &[b, c, have, h, w] = motion.shape() else {
            let reason = format!("{:?} is not the shape of a video", motion.shape());
            return Err(ModelError::invalid("reference_motion", reason));
        };
        let wanted: usize = EARLIER.iter().sum();
        let known = have.min(wanted);
        let known_part = motion.narrow(2, have - known, known)?;
        let nothing = Tensor::zeros([b, c, wanted - known, h, w])?;
        let all = if known < wanted {
            Tensor::cat(&[&nothing, &known_part], 2)?
        } else {
            known_part
        };
        let (mut tokens, mut places) = (Vec::new(), Vec::new());
        let mut end = wanted;
        for (number, layer) in self.earlier.iter().enumerate() {
            let frames = EARLIER[number];
            end -= frames;
            let [ct, ch, cw] = EARLIER_CELLS[number];
            let (t, rows, columns) = (frames / ct, h / ch, w / cw);
            let part = all.narrow(2, end, frames)?;
            let part = part.narrow(3, 0, rows * ch)?.narrow(4, 0, columns * cw)?;
            let cells = part.reshape([b, c, t, ct, rows, ch, columns, cw])?;
            let cells = cells.permute(&[0, 2, 4, 6, 1, 3, 5, 7])?;
            let cells = cells.reshape([b, t * rows * columns, c * ct * ch * cw])?;
            tokens.push(layer.forward(&cells.to(device)?)?);
            // They are spread over the whole frame.
            let spread = |at: usize, count: usize, size: usize| {
                let last = (size.div_ceil(PATCH) - 1) as f64;
                if count > 1 {
                    at as f64 * last / (count - 1) as f64
                } else {
                    0.0
                }
            };
            for frame in 0..t {
                for row in 0..rows {
                    for column in 0..columns {
                        places.push([
                            EARLIER_PLACES[number] + frame as f64,
                            spread(row, rows, h),
                            spread(column, columns, w),
                        ]);
                    }
                }
            }
        }
        Ok((Tensor::cat(&tokens.iter().collect::<Vec<_>>(), 1)?, places))
    }
}
