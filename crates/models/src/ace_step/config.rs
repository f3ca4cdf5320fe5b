//! The shape of the first version's network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

#[derive(Clone, Debug, PartialEq)]
pub struct AceConfig {
    pub channels: usize,
    /// Rows of a latent, all of which are one token.
    pub height: usize,
    /// Channels of the first layer.
    pub early: usize,
    pub dim: usize,
    pub heads: usize,
    pub layers: usize,
    /// Half of what the feed-forward is wide inside.
    pub inner: usize,
    pub text: usize,
    pub speaker: usize,
    pub theta: f64,
    pub lyrics: LyricConfig,
}

/// What reads lyrics.
#[derive(Clone, Debug, PartialEq)]
pub struct LyricConfig {
    pub vocabulary: usize,
    pub width: usize,
    pub heads: usize,
    pub inner: usize,
    pub layers: usize,
}

/// Channels of a head of the published network.
const HEAD: usize = 128;
/// Groups of the norm in the first layers.
pub(super) const GROUPS: usize = 32;

impl AceConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, text) = shapes.matrix("genre_embedder.weight")?;
        let early = "proj_in.early_conv_layers.0.weight";
        let Some(&[early, channels, height, 1]) = store.shape(early) else {
            return Err(shapes.unsupported(format!("{early} is not a kernel over a column")));
        };
        let first = "transformer_blocks.0";
        let wide = store.shape(&format!("{first}.ff.inverted_conv.conv.weight"));
        let inner = wide.and_then(|shape| shape.first()).map_or(0, |n| n / 2);
        let (vocabulary, width) = shapes.matrix("lyric_embs.weight")?;
        let bias = format!("{LYRICS}.encoders.0.self_attn.pos_bias_u");
        let heads = shapes.matrix(&bias)?.0;
        let config = Self {
            channels,
            height,
            early,
            dim,
            heads: (dim / HEAD).max(1),
            layers: shapes.count("transformer_blocks"),
            inner,
            text,
            speaker: shapes.matrix("speaker_embedder.weight")?.1,
            theta: 1e6,
            lyrics: LyricConfig {
                vocabulary,
                width,
                heads,
                inner: shapes
                    .matrix(&format!("{LYRICS}.encoders.0.feed_forward.w_1.weight"))?
                    .0,
                layers: shapes.count(&format!("{LYRICS}.encoders")),
            },
        };
        let even =
            config.dim.is_multiple_of(config.heads) && (dim / config.heads).is_multiple_of(4);
        if !even || !early.is_multiple_of(GROUPS) || !width.is_multiple_of(heads) {
            let reason = format!("a width of {dim}, and of {width} for lyrics, is not known");
            return Err(shapes.unsupported(reason));
        }
        Ok(config)
    }

    pub fn head(&self) -> usize {
        self.dim / self.heads
    }
}

pub(super) const LYRICS: &str = "lyric_encoder";
