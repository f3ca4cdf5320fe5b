//! The block of Lumina 2 and its relatives: attention and a gated product, each between two norms, with factors and gates that
//! say the noise level (Qin et al. 2025).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Mask, RmsNorm, add_gated, modulate, tanh};

use super::adaln::AdaLn;
use super::attention::{Attention, AttentionLayers};
use super::mlp::{Mlp, MlpLayers};
use super::rope::Rope;
use crate::error::Result;
use crate::store::{Bias, Walk};

/// The layers of a [`SandwichBlock`] as its family calls them.
#[derive(Clone, Copy, Debug)]
pub struct SandwichLayers<'a> {
    pub attention: AttentionLayers<'a>,
    /// Without a bias.
    pub mlp: MlpLayers<'a>,
    pub inner: usize,
    /// Before and behind the attention, before and behind what follows.
    pub norms: [&'a str; 4],
    pub eps: f32,
    /// The layer that makes factors and gates of a signal of so many channels; none for blocks that are not told the level.
    pub modulation: Option<(&'a str, usize)>,
}

/// A block with norms on both sides: see the head of this file.
pub struct SandwichBlock {
    attention: Attention,
    mlp: Mlp,
    norms: [Arc<RmsNorm>; 4],
    modulation: Option<AdaLn<4>>,
}

impl SandwichBlock {
    pub fn new(weights: &Walk<'_>, layers: &SandwichLayers<'_>) -> Result<Self> {
        let width = layers.attention.input;
        let norm = |name: &str| weights.rms_norm(&format!("{name}.weight"), width, layers.eps);
        let modulation = layers
            .modulation
            .map(|(name, signal)| AdaLn::new(weights, name, width, signal, Bias::With));
        let [before, behind, before_mlp, behind_mlp] = layers.norms;
        Ok(Self {
            attention: Attention::new(weights, &layers.attention)?,
            mlp: Mlp::new(weights, layers.mlp, (width, layers.inner), Bias::Without)?,
            norms: [
                norm(before)?,
                norm(behind)?,
                norm(before_mlp)?,
                norm(behind_mlp)?,
            ],
            modulation: modulation.transpose()?,
        })
    }

    /// `signal` is (b, c); blocks that take none do not look at it.
    pub fn forward(
        &self,
        x: Tensor,
        mask: Mask<'_>,
        rope: &Rope,
        signal: &Tensor,
    ) -> Result<Tensor> {
        let [before, behind, before_mlp, behind_mlp] = &self.norms;
        let attend = |x: &Tensor| -> Result<Tensor> {
            let seen = self.attention.qkv(x)?.attend(rope, mask)?;
            Ok(behind.forward(&self.attention.out(&seen)?)?)
        };
        let follow =
            |x: &Tensor| -> Result<Tensor> { Ok(behind_mlp.forward(&self.mlp.forward(x)?)?) };
        let Some(modulation) = &self.modulation else {
            let x = x.add(&attend(&before.forward(&x)?)?)?;
            return Ok(x.add(&follow(&before_mlp.forward(&x)?)?)?);
        };
        let [scale, gate, scale_mlp, gate_mlp] = modulation.forward(signal)?;
        let seen = attend(&modulate(before.forward(&x)?, &scale, None)?)?;
        let x = add_gated(x, &tanh(&gate), &seen)?;
        let made = follow(&modulate(before_mlp.forward(&x)?, &scale_mlp, None)?)?;
        Ok(add_gated(x, &tanh(&gate_mlp), &made)?)
    }
}
