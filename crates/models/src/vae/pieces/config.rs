//! The shape of a network, read from keys and shapes.

use super::model::PieceVae;
use crate::error::{ModelError, Result};
use crate::store::{Layout, WeightStore};
use crate::transformer::Shapes;
use crate::vae::Vae;
use crate::vae::autoencoder::{AutoencoderConfig, Tiling, VaeFacts};

/// More levels, and more layers in one, than any of these has.
const MOST: usize = 64;
/// Groups of the norms of published ones.
const GROUPS: usize = 32;
/// Channels of a head of published ones; weights do not say.
const HEAD: usize = 64;
/// Frames that a latent frame stands for.
pub(super) const SPAN: usize = 4;

/// One level on the way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    pub width: usize,
    pub layers: usize,
    /// By what frames, and rows and columns, are divided.
    pub steps: Option<(usize, usize)>,
}

/// What it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceConfig {
    pub levels: Vec<LevelConfig>,
    /// Channels after the first convolution.
    pub first: usize,
    pub encoder: bool,
    pub groups: usize,
    pub latent: usize,
    pub dim: usize,
    pub heads: usize,
    pub blocks: usize,
    pub registers: usize,
    pub ffn: usize,
    /// Pixels along a side for one latent cell.
    pub patch: usize,
    /// Whether queries, keys and values of a head follow each other in one matrix, and gates come first.
    pub joined: bool,
    pub measured: bool,
    /// Frames of a piece, and latent frames at the end of a video that are left out.
    pub piece: usize,
    pub dropped: usize,
}

const SIGN: &str = "decoder.register_tokens";

impl PieceConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has(SIGN)
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let unsupported = |reason: String| ModelError::unsupported(store.file(), reason);
        let block = "decoder.transformer_blocks";
        let joined = store.has(&format!("{block}.0.attn.to_qkv.weight"));
        let input = if joined {
            "decoder.x_embedder.weight"
        } else {
            "decoder.proj_in.weight"
        };
        let (dim, latent) = shapes.matrix(input)?;
        let registers = match store.shape(SIGN) {
            Some(&[.., count, width]) if width == dim => count,
            found => return Err(unsupported(format!("{SIGN} of shape {found:?}"))),
        };
        let (values, _) = shapes.matrix("decoder.proj_out.weight")?;
        let patch = (values / (3 * SPAN)).isqrt();
        if patch == 0 || patch * patch * 3 * SPAN != values {
            return Err(unsupported(format!(
                "{values} values are no squares of pixels"
            )));
        }
        let ff = if joined { "ff.w1" } else { "ff.net.0.proj" };
        let width = |key: &str| match store.shape(&format!("{key}.weight")) {
            Some(&[out, _, _, _, _]) => Some(out),
            _ => None,
        };
        let layer = |level: usize, n: usize| format!("encoder.down.{level}.block.{n}.conv1");
        let has = |key: &str| width(key).is_some();
        let count = (0..MOST).take_while(|n| has(&layer(*n, 0))).count();
        let resized = |level: usize| has(&format!("encoder.down.{level}.downsample.conv"));
        let halved = (0..count).filter(|level| resized(*level)).count();
        // Frames are halved twice, in the middle of the levels that halve rows and columns.
        let times = halved.saturating_sub(2) / 2;
        let mut levels = Vec::new();
        let mut seen = 0;
        for level in 0..count {
            let steps = resized(level).then(|| {
                let time = (times..times + 2).contains(&seen);
                seen += 1;
                (1 + usize::from(time), 2)
            });
            levels.push(LevelConfig {
                width: width(&layer(level, 0)).unwrap_or(0),
                layers: (0..MOST).take_while(|n| has(&layer(level, *n))).count(),
                steps,
            });
        }
        let first = width("encoder.conv_in").unwrap_or(0);
        let groups = if first.is_multiple_of(GROUPS) {
            GROUPS
        } else {
            1
        };
        Ok(Self {
            encoder: has("encoder.conv_in") && !levels.is_empty(),
            levels,
            first,
            groups,
            latent,
            dim,
            heads: if dim.is_multiple_of(HEAD) {
                dim / HEAD
            } else {
                1
            },
            blocks: shapes.count(block),
            registers,
            ffn: shapes.matrix(&format!("{block}.0.{ff}.weight"))?.0 / 2,
            patch,
            joined,
            measured: store.has("latents_mean") && store.has("latents_std"),
            piece: 17,
            dropped: 3,
        })
    }

    /// Latent frames of a whole piece.
    pub(super) fn piece_latents(&self) -> usize {
        self.piece.div_ceil(SPAN)
    }

    /// Latent frames of so many frames.
    pub fn latents(&self, frames: usize) -> usize {
        let (whole, rest) = (frames / self.piece, frames % self.piece);
        whole * self.piece_latents() + rest.div_ceil(SPAN)
    }

    /// Frames of so many latent frames.
    pub fn frames(&self, latents: usize) -> usize {
        let each = self.piece_latents();
        let (whole, rest) = (latents / each, latents % each);
        whole * self.piece + (rest * SPAN).saturating_sub(if rest > 0 { SPAN - 1 } else { 0 })
    }
}

impl AutoencoderConfig for PieceConfig {
    fn facts(&self) -> VaeFacts {
        VaeFacts {
            tiling: Tiling::ByNetwork,
            ..VaeFacts::film(self.latent, self.patch, SPAN)
        }
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        let layout = Layout::of(|weights| super::model::PieceVae::walk(weights, self))?;
        layout.verify(store, super::model::WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(PieceVae::with(store, self)?.into())
    }
}
