//! What each layer of the smaller Gemma 4 is told of every token by itself: a row of a second table, and what a matrix makes
//! of the token's own row.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, Embedding, Linear};

use super::attention::Norm;
use super::config::{DecoderConfig, PerLayer};
use crate::epilogue::then;
use crate::error::Result;
use crate::store::Walk;

/// What makes the inputs of all layers.
pub(super) struct LayerInputs {
    sizes: PerLayer,
    layers: usize,
    embed_tokens_per_layer: Arc<Embedding>,
    per_layer_model_projection: Arc<Linear>,
    per_layer_projection_norm: Norm,
}

impl LayerInputs {
    pub(super) fn new(model: &Walk<'_>, config: &DecoderConfig, sizes: &PerLayer) -> Result<Self> {
        let all = sizes.all;
        let table = model.embedding("embed_tokens_per_layer", sizes.vocabulary, all)?;
        Ok(Self {
            embed_tokens_per_layer: table,
            per_layer_model_projection: model.matrix(
                "per_layer_model_projection",
                all,
                config.hidden,
            )?,
            per_layer_projection_norm: Norm::new(
                model,
                "per_layer_projection_norm",
                sizes.width,
                config,
            )?,
            layers: config.layers,
            sizes: *sizes,
        })
    }

    /// `(b, n, layers, width)` for tokens and their rows `(b, n, c)`.
    pub(super) fn of(&self, ids: &[&[u32]], x: &Tensor) -> Result<Tensor> {
        let [b, n, hidden] = x.dims3()?;
        let shape = [b, n, self.layers, self.sizes.width];
        let ids = ids.concat();
        let own = self
            .embed_tokens_per_layer
            .lookup_on(&ids, &x.device())?
            .reshape(shape)?
            .mul_scalar((self.sizes.width as f32).sqrt());
        let made = self.per_layer_model_projection.forward(x)?;
        let made = made.mul_scalar((hidden as f32).sqrt().recip());
        let made = self
            .per_layer_projection_norm
            .forward(&made.reshape(shape)?)?;
        Ok(made.add(&own)?.mul_scalar(std::f32::consts::FRAC_1_SQRT_2))
    }
}

/// What a layer does with its input.
pub(super) struct InputGate {
    gate: Arc<Linear>,
    projection: Arc<Linear>,
    norm: Norm,
}

impl InputGate {
    pub(super) fn new(weights: &Walk<'_>, config: &DecoderConfig, width: usize) -> Result<Self> {
        let hidden = config.hidden;
        Ok(Self {
            gate: weights.matrix("per_layer_input_gate", width, hidden)?,
            projection: weights.matrix("per_layer_projection", hidden, width)?,
            norm: Norm::new(weights, "post_per_layer_input_norm", hidden, config)?,
        })
    }

    /// Rows `(b, n, c)` with the layer's part of `(b, n, layers, width)` added.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        inputs: &Tensor,
        at: usize,
        act: Act,
    ) -> Result<Tensor> {
        let [b, n, _, width] = inputs.dims4()?;
        let own = inputs.narrow(2, at, 1)?.reshape([b, n, width])?;
        let h = self.gate.forward_with(x, then(act))?;
        let h = self.projection.forward(&h.mul(&own)?)?;
        Ok(x.add(&self.norm.forward(&h)?)?)
    }
}
