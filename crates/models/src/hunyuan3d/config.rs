//! The shapes of the two networks, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Version 2, and its small form.
#[derive(Clone, Debug, PartialEq)]
pub struct Hunyuan3dConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub context: usize,
    pub inner: usize,
    pub doubles: usize,
    pub singles: usize,
    pub guided: bool,
}

/// Heads of all published networks.
const HEADS: usize = 16;
/// Pairs of streams that the small one has.
const MINI: usize = 8;

impl Hunyuan3dConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, channels) = shapes.matrix("latent_in.weight")?;
        if !dim.is_multiple_of(HEADS) {
            return Err(shapes.unsupported(format!("{dim} channels are not {HEADS} equal heads")));
        }
        Ok(Self {
            channels,
            dim,
            heads: HEADS,
            context: shapes.matrix("cond_in.weight")?.1,
            inner: shapes.matrix("double_blocks.0.img_mlp.0.weight")?.0,
            doubles: shapes.count("double_blocks"),
            singles: shapes.count("single_blocks"),
            guided: store.has("guidance_in.in_layer.weight"),
        })
    }

    pub fn is_mini(&self) -> bool {
        self.doubles == MINI
    }
}

/// Version 2.1.
#[derive(Clone, Debug, PartialEq)]
pub struct Hunyuan3d21Config {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub context: usize,
    pub depth: usize,
    pub time_inner: usize,
    pub inner: usize,
    /// The first block whose rows choose among experts, how many of those there are, and how many a row asks.
    pub first_experts: usize,
    pub experts: usize,
    pub asked: usize,
}

impl Hunyuan3d21Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, channels) = shapes.matrix("x_embedder.weight")?;
        if !dim.is_multiple_of(HEADS) {
            return Err(shapes.unsupported(format!("{dim} channels are not {HEADS} equal heads")));
        }
        let depth = shapes.count("blocks");
        let gate = |block: usize| format!("blocks.{block}.moe.gate.weight");
        let first_experts = (0..depth)
            .find(|block| store.has(&gate(*block)))
            .unwrap_or(depth);
        Ok(Self {
            channels,
            dim,
            heads: HEADS,
            context: shapes.matrix("blocks.0.attn2.to_k.weight")?.1,
            depth,
            time_inner: shapes.matrix("t_embedder.mlp.0.weight")?.0,
            inner: shapes.matrix("blocks.0.mlp.fc1.weight")?.0,
            first_experts,
            experts: if first_experts < depth {
                shapes.matrix(&gate(first_experts))?.0
            } else {
                0
            },
            asked: 2,
        })
    }
}
