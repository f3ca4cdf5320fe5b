//! The block of encoders: attention and a feed-forward part, each added to what went in, with norms behind what was added
//! (Vaswani et al. 2017) or before each part (Xiong et al. 2020).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{LayerNorm, Mask, Value};

use super::attention::{Attention, AttentionLayers, Rotation};
use super::mlp::{Mlp, MlpLayers};
use crate::error::Result;
use crate::store::{Bias, Walk};

/// Where norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    Before,
    Behind,
}

/// The layers of an [`EncoderBlock`] as its family calls them: the attention's part first.
#[derive(Clone, Copy, Debug)]
pub struct EncoderLayers<'a> {
    pub attention: AttentionLayers<'a>,
    /// With a bias in both layers.
    pub mlp: MlpLayers<'a>,
    pub inner: usize,
    pub norms: [&'a str; 2],
    pub place: NormPlace,
    pub eps: f32,
    /// What each part is multiplied with, channel by channel, before it is added.
    pub scales: Option<[&'a str; 2]>,
}

/// A block of an encoder: see the head of this file.
pub struct EncoderBlock {
    attention: Attention,
    mlp: Mlp,
    norms: [Arc<LayerNorm>; 2],
    place: NormPlace,
    scales: Option<[Arc<Value>; 2]>,
}

impl EncoderBlock {
    pub fn new(weights: &Walk<'_>, layers: &EncoderLayers<'_>) -> Result<Self> {
        let width = layers.attention.input;
        let norm = |name: &str| weights.layer_norm(name, width, layers.eps);
        let [first, second] = layers.norms;
        let scales = layers.scales.map(|[first, second]| -> Result<_> {
            let scale = |name: &str| weights.value(name, &[width]);
            Ok([scale(first)?, scale(second)?])
        });
        Ok(Self {
            attention: Attention::new(weights, &layers.attention)?,
            mlp: Mlp::new(weights, layers.mlp, (width, layers.inner), Bias::With)?,
            norms: [norm(first)?, norm(second)?],
            place: layers.place,
            scales: scales.transpose()?,
        })
    }

    /// (b, n, c) to the same.
    pub fn forward<'r>(
        &self,
        x: &Tensor,
        rotation: impl Into<Rotation<'r>>,
        mask: Mask<'_>,
    ) -> Result<Tensor> {
        let (attention, mlp, [first, second]) = (&self.attention, &self.mlp, &self.norms);
        let attend = |x: &Tensor| attention.qkv(x)?.attend(rotation, mask);
        if self.place == NormPlace::Behind {
            let x = first.forward(&attention.add(&attend(x)?, x)?)?;
            return Ok(second.forward(&mlp.add(&mlp.inner(&x)?, &x)?)?);
        }
        let seen = attend(&first.forward(x)?)?;
        let Some([of_attention, of_mlp]) = &self.scales else {
            let x = attention.add(&seen, x)?;
            return mlp.add(&mlp.inner(&second.forward(&x)?)?, &x);
        };
        let device = x.device();
        let x = attention.add_gated(&seen, x.clone(), &of_attention.at(&device)?)?;
        let inner = mlp.inner(&second.forward(&x)?)?;
        mlp.add_gated(&inner, x, &of_mlp.at(&device)?)
    }
}
