//! The shape of a network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

#[derive(Clone, Debug, PartialEq)]
pub struct StableAudioConfig {
    pub channels: usize,
    pub dim: usize,
    pub layers: usize,
    /// Width of the prompt, and of what all of it is said in.
    pub context: usize,
    pub global: usize,
    /// Width that the prompt has inside.
    pub inner_context: usize,
    pub inner: usize,
    /// Numbers that say a noise level, half of them.
    pub waves: usize,
    /// Pairs of a head's channels that are turned.
    pub turned: usize,
    /// Half of the waves that say seconds; none where the file has no layers for them.
    pub seconds: Option<usize>,
}

/// Channels of a head.
pub(super) const HEAD: usize = 64;

impl StableAudioConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, channels) = shapes.matrix("transformer.project_in.weight")?;
        let (inner_context, context) = shapes.matrix("to_cond_embed.0.weight")?;
        let turned = shapes.vector("transformer.rotary_pos_emb.inv_freq")?;
        let even = dim.is_multiple_of(HEAD) && inner_context.is_multiple_of(HEAD);
        if !even || !dim.is_multiple_of(inner_context) || 2 * turned > HEAD {
            let reason = format!("widths of {dim} and {inner_context} in heads of {HEAD}");
            return Err(shapes.unsupported(reason));
        }
        let seconds = store.shape("seconds_total.0.weights");
        let both = seconds.filter(|_| store.has("seconds_start.0.weights"));
        Ok(Self {
            channels,
            dim,
            layers: shapes.count("transformer.layers"),
            context,
            global: shapes.matrix("to_global_embed.0.weight")?.1,
            inner_context,
            inner: shapes.matrix("transformer.layers.0.ff.ff.2.weight")?.1,
            waves: shapes.matrix("timestep_features.weight")?.0,
            turned,
            seconds: both.and_then(|shape| shape.first()).copied(),
        })
    }
}
