//! The shape of a network of this family, read from its weights.

use crate::error::{ModelError, Result};
use crate::store::{Bias, WeightStore};

/// Which of the family it is: what shapes do not say follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FluxKind {
    Flux1,
    Flux2,
    Chroma,
    Ovis,
}

/// Where blocks have their shifts, scales and gates from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModulationKind {
    /// Each block makes its own.
    Own,
    /// One for all blocks of a kind.
    Shared,
    /// A small network beside the blocks makes a row for each.
    Distilled { width: usize, layers: usize },
}

/// What follows the attention of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    Gelu,
    /// One layer makes gate and value.
    Gated,
    /// Two layers make them.
    Split,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FluxConfig {
    pub kind: FluxKind,
    /// Channels of the latent, and of all that goes in.
    pub out_channels: usize,
    pub in_channels: usize,
    /// Cells along a side of a token.
    pub patch: usize,
    pub hidden: usize,
    pub heads: usize,
    /// Channels of a head for each axis of a position.
    pub axes: Vec<usize>,
    pub theta: f64,
    pub context: usize,
    /// Width of the pooled prompt.
    pub vector: Option<usize>,
    pub guidance: bool,
    pub double: usize,
    pub single: usize,
    /// Width inside of the layers after an attention.
    pub mlp: usize,
    pub mlp_kind: MlpKind,
    pub modulation: ModulationKind,
    /// Whether layers have biases.
    pub bias: Bias,
    /// Whether the prompt is normalised first.
    pub text_norm: bool,
    /// Axes on which the prompt's tokens are counted.
    pub text_axes: Vec<usize>,
    /// For networks that work on pixels.
    pub pixels: Option<PixelConfig>,
    /// How much further each reference picture is on the first axis.
    pub reference_step: f64,
}

/// The head of a network that works on pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PixelConfig {
    pub width: usize,
    /// How many times wider it is inside.
    pub ratio: usize,
    pub blocks: usize,
    /// Whether a convolution comes last, and not a linear layer.
    pub conv: bool,
    /// Whether the result is the clean picture.
    pub clean: bool,
}

impl PixelConfig {
    fn detect(store: &WeightStore) -> Result<Option<Self>> {
        let Some(width) = store.shape("nerf_blocks.0.norm.scale") else {
            return Ok(None);
        };
        let width = width.first().copied().unwrap_or(0);
        let [rows, _] = matrix(store, "nerf_blocks.0.param_generator.weight")?;
        Ok(Some(Self {
            width,
            ratio: (rows / 3).checked_div(width * width).unwrap_or(0),
            blocks: count(store, "nerf_blocks")?,
            conv: store.has("nerf_final_layer_conv.norm.scale"),
            clean: store.has("__x0__"),
        }))
    }
}

/// Frequencies of the noise level and of guidance.
pub(super) const WAVES: usize = 256;

/// Blocks of one list.
const MOST: usize = 1024;

impl FluxConfig {
    /// From the shapes of the weights, with the numbers of the published networks for what they do not say.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let pixels = PixelConfig::detect(store)?;
        let ([hidden, columns], rows, side) = match store.shape("img_in_patch.weight") {
            Some(&[hidden, channels, side, _]) if pixels.is_some() => {
                let columns = channels * side * side;
                ([hidden, columns], columns, Some(side))
            }
            _ => {
                // Control nets have no last layer.
                let last = store.shape("final_layer.linear.weight");
                let rows = last.and_then(|shape| shape.first().copied());
                let first = matrix(store, "img_in.weight")?;
                (first, rows.unwrap_or(first[1]), None)
            }
        };
        let [_, context] = matrix(store, "txt_in.weight")?;
        let (double, single) = (
            count(store, "double_blocks")?,
            count(store, "single_blocks")?,
        );
        let shared = store.has("double_stream_modulation_img.lin.weight");
        let distilled = store.shape("distilled_guidance_layer.in_proj.weight");
        let kind = if shared {
            FluxKind::Flux2
        } else if distilled.is_some() {
            FluxKind::Chroma
        } else if store.has("txt_norm.scale") {
            FluxKind::Ovis
        } else {
            FluxKind::Flux1
        };
        let head = store.shape("double_blocks.0.img_attn.norm.key_norm.scale");
        let head = head.and_then(|shape| shape.first().copied()).unwrap_or(128);
        if head == 0 || hidden == 0 || !hidden.is_multiple_of(head) {
            let reason = format!("heads of {head} channels do not make a width of {hidden}");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let patch = side.unwrap_or(if kind == FluxKind::Flux2 { 1 } else { 2 });
        if patch == 0 {
            return Err(ModelError::unsupported(
                store.file(),
                "its tokens have no cells",
            ));
        }
        let (mlp_kind, mlp) = if store.has("double_blocks.0.img_mlp.gate_proj.weight") {
            (MlpKind::Split, "double_blocks.0.img_mlp.down_proj.weight")
        } else if shared {
            (MlpKind::Gated, "double_blocks.0.img_mlp.2.weight")
        } else {
            (MlpKind::Gelu, "double_blocks.0.img_mlp.2.weight")
        };
        let [_, mlp] = matrix(store, mlp)?;
        let vector = store.shape("vector_in.in_layer.weight");
        Ok(Self {
            kind,
            out_channels: rows / (patch * patch),
            in_channels: columns / (patch * patch),
            patch,
            hidden,
            heads: hidden / head,
            axes: match kind {
                FluxKind::Flux2 => vec![head / 4; 4],
                // Of a head of 128: 16, 56, 56.
                _ => vec![head / 8, head * 7 / 16, head * 7 / 16],
            },
            theta: if kind == FluxKind::Flux2 {
                2000.0
            } else {
                10000.0
            },
            context,
            vector: vector.and_then(|shape| shape.get(1).copied()),
            guidance: store.has("guidance_in.in_layer.weight"),
            double,
            single,
            mlp,
            mlp_kind,
            modulation: match distilled {
                _ if shared => ModulationKind::Shared,
                Some(shape) => ModulationKind::Distilled {
                    width: shape.first().copied().unwrap_or(0),
                    layers: count(store, "distilled_guidance_layer.layers")?,
                },
                None => ModulationKind::Own,
            },
            bias: Bias::of(store.has("txt_in.bias")),
            text_norm: kind == FluxKind::Ovis,
            text_axes: match kind {
                FluxKind::Flux2 => vec![3],
                FluxKind::Ovis => vec![1, 2],
                FluxKind::Flux1 | FluxKind::Chroma => Vec::new(),
            },
            pixels,
            reference_step: if kind == FluxKind::Flux2 { 10.0 } else { 1.0 },
        })
    }

    /// The method for reference pictures where a condition names none.
    pub(super) fn reference_method(&self) -> &'static str {
        match self.kind {
            FluxKind::Flux2 => "index",
            _ => "offset",
        }
    }
}

fn matrix(store: &WeightStore, key: &str) -> Result<[usize; 2]> {
    match store.shape(key) {
        Some(&[rows, columns]) => Ok([rows, columns]),
        Some(shape) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key: key.to_owned(),
            expected: "a matrix".to_owned(),
            found: shape.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key: key.to_owned(),
        }),
    }
}

/// How many numbered parts there are under a name.
fn count(store: &WeightStore, list: &str) -> Result<usize> {
    let numbers = store.keys().into_iter().filter_map(|key| {
        let rest = key.strip_prefix(list)?.strip_prefix('.')?;
        rest.split('.').next()?.parse::<usize>().ok()
    });
    let count = numbers.max().map_or(0, |last| last.saturating_add(1));
    if count > MOST {
        let reason = format!("{list} counts up to {count}");
        return Err(ModelError::unsupported(store.file(), reason));
    }
    Ok(count)
}
