//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

#[derive(Clone, Debug, PartialEq)]
pub struct Ace15Config {
    /// Channels of a latent, and of what goes in beside it.
    pub channels: usize,
    pub beside: usize,
    /// Frames of a token.
    pub patch: usize,
    /// Numbers that say a noise level.
    pub waves: usize,
    pub layers: usize,
    /// Width of the tokens beside.
    pub context: usize,
    pub block: LayerShape,
    /// What makes tokens of a prompt; none where they come made.
    pub condition: Option<ConditionConfig>,
    /// What makes latents of audio codes.
    pub codes: Option<CodesConfig>,
}

/// The sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerShape {
    pub dim: usize,
    pub head: usize,
    pub heads: usize,
    /// Heads of keys and values.
    pub shared: usize,
    pub inner: usize,
    pub theta: f64,
    /// How far every other layer looks.
    pub window: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConditionConfig {
    pub shape: LayerShape,
    /// Width of a text's states.
    pub text: usize,
    pub lyric_layers: usize,
    /// Channels of latents that tell a voice.
    pub timbre: usize,
    pub timbre_layers: usize,
    /// Frames of silence that the file has.
    pub silence: Option<usize>,
    /// Whether the file has the token that stands for no prompt.
    pub null: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CodesConfig {
    pub shape: LayerShape,
    pub layers: usize,
    /// Frames of a code.
    pub frames: usize,
    /// Channels of a frame.
    pub channels: usize,
}

const THETA: f64 = 1e6;
const WINDOW: usize = 128;

/// What the frames of a code differ by, and the matrix that codes go through first.
const SPECIAL_TOKENS: &str = "detokenizer.special_tokens";
const PROJECT_OUT: &str = "tokenizer.quantizer.project_out.weight";
/// More frames than a code can have: published models have five.
const MOST_FRAMES: usize = 1000;

/// The sizes of a layer under a name.
fn layer(shapes: Shapes<'_>, name: &str) -> Result<LayerShape> {
    let (width, dim) = shapes.matrix(&format!("{name}.self_attn.to_q.weight"))?;
    let (narrow, _) = shapes.matrix(&format!("{name}.self_attn.to_k.weight"))?;
    let head = shapes.vector(&format!("{name}.self_attn.norm_q.weight"))?;
    let (inner, _) = shapes.matrix(&format!("{name}.mlp.gate_proj.weight"))?;
    let (heads, shared) = (width / head, narrow / head);
    let whole = heads * head == width && shared * head == narrow && head.is_multiple_of(2);
    if !whole || shared == 0 || !heads.is_multiple_of(shared) {
        let reason = format!("{name} has {width} and {narrow} channels in heads of {head}");
        return Err(shapes.unsupported(reason));
    }
    Ok(LayerShape {
        dim,
        head,
        heads,
        shared,
        inner,
        theta: THETA,
        window: WINDOW,
    })
}

impl Ace15Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let kernel = |name: &str| match store.shape(&format!("{name}.weight")) {
            Some(&[a, b, c]) if a > 0 && b > 0 && c > 0 => Ok([a, b, c]),
            other => Err(shapes.unsupported(format!("{name} has shape {other:?}"))),
        };
        let [_, input, patch] = kernel("proj_in_conv")?;
        let [_, channels, _] = kernel("proj_out_conv")?;
        let (_, context) = shapes.matrix("condition_embedder.weight")?;
        let condition = store.has("encoder.text_projector.weight");
        let codes = store.has(SPECIAL_TOKENS) && store.has(PROJECT_OUT);
        let codes = codes.then(|| CodesConfig::detect(store)).transpose()?;
        if let Some(codes) = codes.as_ref().filter(|codes| codes.channels != channels) {
            let reason = format!(
                "its detokenizer makes latents of {} channels, its transformer of {channels}",
                codes.channels
            );
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            channels,
            beside: input.saturating_sub(channels),
            patch,
            waves: shapes.matrix("time_embed.linear_1.weight")?.1,
            layers: shapes.count("layers"),
            context,
            block: layer(shapes, "layers.0")?,
            condition: condition
                .then(|| ConditionConfig::detect(store))
                .transpose()?,
            codes,
        })
    }
}

impl ConditionConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let silence = store.shape("silence_latent");
        Ok(Self {
            shape: layer(shapes, "encoder.lyric_encoder.layers.0")?,
            text: shapes.matrix("encoder.text_projector.weight")?.1,
            lyric_layers: shapes.count("encoder.lyric_encoder.layers"),
            timbre: shapes
                .matrix("encoder.timbre_encoder.embed_tokens.weight")?
                .1,
            timbre_layers: shapes.count("encoder.timbre_encoder.layers"),
            silence: silence.and_then(|shape| match *shape {
                [1, frames, _] if frames > 0 => Some(frames),
                _ => None,
            }),
            null: store.has("null_condition_emb"),
        })
    }
}

impl CodesConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let shape = layer(shapes, "detokenizer.layers.0")?;
        let frames = match store.shape(SPECIAL_TOKENS) {
            Some(&[1, frames, dim]) if (1..=MOST_FRAMES).contains(&frames) && dim == shape.dim => {
                frames
            }
            other => {
                let reason = format!("{SPECIAL_TOKENS} has shape {other:?}");
                return Err(shapes.unsupported(reason));
            }
        };
        Ok(Self {
            shape,
            layers: shapes.count("detokenizer.layers"),
            frames,
            channels: shapes.matrix("detokenizer.proj_out.weight")?.0,
        })
    }
}
