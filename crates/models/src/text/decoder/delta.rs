//! Layers that remember by the gated delta rule, as three of four in Qwen 3.5.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{DeltaInput, DeltaSizes, Linear, RmsNorm, Value, gated_delta, swiglu};

use super::config::{DecoderConfig, Remembering};
use crate::error::Result;
use crate::store::Walk;
use crate::text::Remembered;

/// Such a layer's part in the place of attention.
pub(super) struct DeltaNet {
    sizes: DeltaSizes,
    in_proj_qkv: Arc<Linear>,
    in_proj_z: Arc<Linear>,
    in_proj_a: Arc<Linear>,
    in_proj_b: Arc<Linear>,
    conv1d: Arc<Value>,
    a_log: Arc<Value>,
    dt_bias: Arc<Value>,
    norm: Arc<RmsNorm>,
    pub(super) out_proj: Arc<Linear>,
}

impl DeltaNet {
    pub(super) fn new(
        weights: &Walk<'_>,
        config: &DecoderConfig,
        rule: &Remembering,
    ) -> Result<Self> {
        let (hidden, sizes) = (config.hidden, rule.sizes);
        let (mixed, heads) = (sizes.mixed(), sizes.value_heads);
        Ok(Self {
            in_proj_qkv: weights.matrix("in_proj_qkv", mixed, hidden)?,
            in_proj_z: weights.matrix("in_proj_z", sizes.read(), hidden)?,
            in_proj_a: weights.matrix("in_proj_a", heads, hidden)?,
            in_proj_b: weights.matrix("in_proj_b", heads, hidden)?,
            conv1d: weights.value("conv1d.weight", &[mixed, 1, rule.taps])?,
            a_log: weights.value("A_log", &[heads])?,
            dt_bias: weights.value("dt_bias", &[heads])?,
            norm: weights.rms_norm("norm.weight", sizes.value, config.eps)?,
            out_proj: weights.matrix("out_proj", hidden, sizes.read())?,
            sizes,
        })
    }

    /// What goes into the last matrix, `(b, n, values)`. With a past, what was read before counts, and this joins it.
    pub(super) fn read(
        &self,
        x: &Tensor,
        kept: Option<&[&[bool]]>,
        past: Option<&mut Option<Remembered>>,
    ) -> Result<Tensor> {
        let [b, n, _] = x.dims3()?;
        // These few values say how fast a head forgets: they keep all their bits.
        let device = x.device().exact();
        let input = DeltaInput {
            mixed: &self.in_proj_qkv.forward(x)?,
            fading: &self.in_proj_a.forward(x)?,
            share: &self.in_proj_b.forward(x)?,
            taps: &self.conv1d.at(&device)?,
            rate: &self.a_log.at(&device)?,
            offset: &self.dt_bias.at(&device)?,
            kept,
        };
        let before = match &past {
            Some(Some(Remembered::Matrices(memory))) => Some(memory),
            _ => None,
        };
        let (read, memory) = gated_delta(input, self.sizes, before)?;
        if let Some(past) = past {
            *past = Some(Remembered::Matrices(memory));
        }
        let heads = [b, n, self.sizes.value_heads, self.sizes.value];
        let read = self.norm.forward(&read.reshape(heads)?)?;
        let read = read.reshape([b, n, self.sizes.read()])?;
        Ok(swiglu(&self.in_proj_z.forward(x)?, &read)?)
    }
}
