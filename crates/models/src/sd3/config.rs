//! The shape of the network, read from its weights.

use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// Channels of a head of attention in all published models.
const HEAD: usize = 64;

/// Cells of the latent on a side of what becomes one token.
pub(super) const PATCH: usize = 2;

/// More blocks than any model has; a guard against names that were made up.
const MOST_BLOCKS: usize = 512;

/// See the [module](super).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sd3Config {
    pub width: usize,
    pub heads: usize,
    /// For each block, whether the picture's tokens have a second attention to themselves.
    pub dual: Vec<bool>,
    /// Whether queries and keys are normed.
    pub qk_norm: bool,
    /// Widths of the prompt's tokens and of its vector.
    pub context: usize,
    pub pooled: usize,
    /// Channels that go in, and channels that come out.
    pub in_channels: usize,
    pub out_channels: usize,
    /// Places on a side of the table of positions.
    pub positions: usize,
    /// Width of the first layer after an attention, in widths of the model.
    pub mlp: usize,
}

impl Sd3Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let unfit = |key: &str| {
            let reason = format!("{key} is not of a shape that this network can have");
            ModelError::unsupported(store.file(), reason)
        };
        let shape = |key: &str, rank: usize| -> Result<&[usize]> {
            let shape = store.shape(key).ok_or_else(|| ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            })?;
            let fits = shape.len() == rank && shape.iter().all(|&n| n > 0);
            fits.then_some(shape).ok_or_else(|| unfit(key))
        };
        let input = "x_embedder.proj.weight";
        let &[width, in_channels, rows, columns] = shape(input, 4)? else {
            return Err(unfit(input));
        };
        if !width.is_multiple_of(HEAD) || (rows, columns) != (PATCH, PATCH) {
            return Err(unfit(input));
        }
        let table = "pos_embed";
        let places = shape(table, 3)?[1];
        let positions = (places as f64).sqrt().round() as usize;
        if positions.checked_mul(positions) != Some(places) {
            return Err(unfit(table));
        }
        let last = "final_layer.linear.weight";
        let out = shape(last, 2)?[0];
        if !out.is_multiple_of(PATCH * PATCH) {
            return Err(unfit(last));
        }
        let inner = "joint_blocks.0.x_block.mlp.fc1.weight";
        let inner = shape(inner, 2)?[0];
        let blocks = (0..MOST_BLOCKS)
            .take_while(|i| store.has(&format!("joint_blocks.{i}.x_block.attn.qkv.weight")));
        let dual = |i| store.has(&format!("joint_blocks.{i}.x_block.attn2.qkv.weight"));
        Ok(Self {
            width,
            heads: width / HEAD,
            dual: blocks.map(dual).collect(),
            qk_norm: store.has("joint_blocks.0.context_block.attn.ln_q.weight"),
            context: shape("context_embedder.weight", 2)?[1],
            pooled: shape("y_embedder.mlp.0.weight", 2)?[1],
            in_channels,
            out_channels: out / (PATCH * PATCH),
            positions,
            mlp: (inner / width).max(1),
        })
    }
}
