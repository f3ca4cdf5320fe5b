//! Normalisation layers.

use std::sync::Arc;

use super::kept::Channels;
use super::misc::{Act, last};
use super::slot::{Group, Slot};
use crate::cpu::isa::isa;
use crate::cpu::math;
use crate::cpu::norm::{self, RowAffine, RowNorm};
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// Values of a layer, one per channel.
fn channels(stored: Option<&Stored>) -> Result<Option<Channels>> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    let values = stored.to_f32()?;
    if values.rank() != 1 {
        return Err(TensorError::rank("normalise", "1", values.shape()));
    }
    Ok(Some(Channels {
        stored: stored.clone(),
        values,
    }))
}

/// Bytes of weights in a file.
fn bytes_of<const N: usize>(parts: [Option<&Stored>; N]) -> u64 {
    let parts = parts.into_iter().flatten();
    parts.map(|part| part.bytes().len() as u64).sum()
}

fn check_width(
    op: &'static str,
    x: &Tensor,
    width: usize,
    channels: Option<&Channels>,
) -> Result<()> {
    match channels {
        Some(Channels { values, .. }) if values.len() != width => {
            Err(TensorError::mismatch(op, x.shape(), values.shape()))
        }
        _ => Ok(()),
    }
}

/// Normalises groups of channels over a whole picture.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    weight: Channels,
    bias: Channels,
    groups: usize,
    eps: f32,
    slot: Arc<Slot>,
}

impl GroupNorm {
    /// With a slot of its own, in main memory.
    pub fn new(weight: &Stored, bias: &Stored, groups: usize, eps: f32) -> Result<Self> {
        let bytes = bytes_of([Some(weight), Some(bias)]);
        Self::in_slot(weight, bias, groups, eps, Slot::new(bytes, &Group::new()))
    }

    /// The same with a slot that is there.
    pub fn in_slot(
        weight: &Stored,
        bias: &Stored,
        groups: usize,
        eps: f32,
        slot: Arc<Slot>,
    ) -> Result<Self> {
        debug_assert_eq!(slot.bytes(), bytes_of([Some(weight), Some(bias)]));
        let held = |stored: &Stored| -> Result<Channels> {
            Ok(Channels {
                stored: stored.clone(),
                values: stored.to_f32()?,
            })
        };
        let (weight, bias) = (held(weight)?, held(bias)?);
        let count = weight.values.len();
        if weight.values.rank() != 1 || weight.values.shape() != bias.values.shape() {
            return Err(TensorError::mismatch(
                "group norm",
                weight.values.shape(),
                bias.values.shape(),
            ));
        }
        if groups == 0 || !count.is_multiple_of(groups) {
            return Err(TensorError::invalid(
                "group norm",
                format!("{count} channels do not make {groups} groups"),
            ));
        }
        Ok(Self {
            weight,
            bias,
            groups,
            eps,
            slot,
        })
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// Weight and bias as they were given.
    pub fn stored(&self) -> (&Stored, &Stored) {
        (&self.weight.stored, &self.bias.stored)
    }

    /// (b, h, w, c) normalised, then activated.
    pub fn forward(&self, x: &Tensor, act: Act) -> Result<Tensor> {
        let [_, _, _, c] = x.dims4()?;
        check_width("group norm", x, c, Some(&self.weight))?;
        if x.is_empty() {
            return Ok(x.clone());
        }
        let run = match act {
            Act::None => norm::group_norm::<math::Identity>,
            Act::Silu => norm::group_norm::<math::Silu>,
            Act::Gelu => norm::group_norm::<math::Gelu>,
            Act::GeluTanh => norm::group_norm::<math::GeluTanh>,
            Act::QuickGelu => norm::group_norm::<math::QuickGelu>,
            Act::Relu => norm::group_norm::<math::Relu>,
        };
        let _here = self.slot.at(&x.device())?;
        let (weight, bias) = (self.weight.values.data(), self.bias.values.data());
        run(isa(), x, self.groups, weight, bias, self.eps)?.placed(x)
    }

    /// The same for a tensor that nobody needs afterwards: in its memory, where nobody else holds that.
    pub fn forward_owned(&self, mut x: Tensor, act: Act) -> Result<Tensor> {
        let [_, _, _, c] = x.dims4()?;
        check_width("group norm", &x, c, Some(&self.weight))?;
        if x.is_empty() {
            return Ok(x);
        }
        if !x.is_unique() {
            return self.forward(&x, act);
        }
        let run = match act {
            Act::None => norm::group_norm_in_place::<math::Identity>,
            Act::Silu => norm::group_norm_in_place::<math::Silu>,
            Act::Gelu => norm::group_norm_in_place::<math::Gelu>,
            Act::GeluTanh => norm::group_norm_in_place::<math::GeluTanh>,
            Act::QuickGelu => norm::group_norm_in_place::<math::QuickGelu>,
            Act::Relu => norm::group_norm_in_place::<math::Relu>,
        };
        let _here = self.slot.at(&x.device())?;
        let (weight, bias) = (self.weight.values.data(), self.bias.values.data());
        run(isa(), &mut x, self.groups, weight, bias, self.eps);
        Ok(x)
    }
}

/// Normalises the last dimension to mean 0 and variance 1.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Option<Channels>,
    bias: Option<Channels>,
    eps: f32,
    slot: Arc<Slot>,
}

impl LayerNorm {
    /// With a slot of its own, in main memory.
    pub fn new(weight: Option<&Stored>, bias: Option<&Stored>, eps: f32) -> Result<Self> {
        let slot = Slot::new(bytes_of([weight, bias]), &Group::new());
        Self::in_slot(weight, bias, eps, slot)
    }

    /// The same with a slot that is there.
    pub fn in_slot(
        weight: Option<&Stored>,
        bias: Option<&Stored>,
        eps: f32,
        slot: Arc<Slot>,
    ) -> Result<Self> {
        debug_assert_eq!(slot.bytes(), bytes_of([weight, bias]));
        Ok(Self {
            weight: channels(weight)?,
            bias: channels(bias)?,
            eps,
            slot,
        })
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// Weight and bias as they were given.
    pub fn stored(&self) -> (Option<&Stored>, Option<&Stored>) {
        let weight = self.weight.as_ref().map(|part| &part.stored);
        (weight, self.bias.as_ref().map(|part| &part.stored))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// The normalised values times `1 + scale` plus `shift`, both (b, c) or (b, 1, c) for `x` of (b, .., c).
    pub fn modulated(&self, x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
        let width = last(x, "layer norm")?;
        let items = x.shape()[0];
        for t in [shift, scale] {
            x.check_device("layer norm", t)?;
            let fits = t.len() == items * width
                && t.shape().first() == Some(&items)
                && t.shape().last() == Some(&width);
            if x.rank() < 2 || !fits {
                return Err(TensorError::mismatch("layer norm", x.shape(), t.shape()));
            }
        }
        self.run(x, Some((shift, scale)))
    }

    fn run(&self, x: &Tensor, modulation: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
        let width = last(x, "layer norm")?;
        check_width("layer norm", x, width, self.weight.as_ref())?;
        check_width("layer norm", x, width, self.bias.as_ref())?;
        if x.is_empty() {
            return Ok(x.clone());
        }
        let _here = self.slot.at(&x.device())?;
        let rows = x.len() / width;
        let weight = |i| self.weight.as_ref().map_or(1.0, |w| w.values.data()[i]);
        let bias = |i| self.bias.as_ref().map_or(0.0, |b| b.values.data()[i]);
        // Weight, bias and modulation are one factor and one offset per channel (and item).
        let (factors, offsets): (Vec<f32>, Vec<f32>) = match modulation {
            None => (0..width).map(|i| (weight(i), bias(i))).unzip(),
            Some((shift, scale)) => (0..shift.len())
                .map(|at| {
                    let scale = 1.0 + scale.data()[at];
                    let i = at % width;
                    (weight(i) * scale, bias(i) * scale + shift.data()[at])
                })
                .unzip(),
        };
        let affine = RowAffine {
            rows: rows * width / factors.len(),
            factors: &factors,
            offsets: &offsets,
        };
        let plain = modulation.is_none() && self.weight.is_none() && self.bias.is_none();
        let affine = (!plain).then_some(&affine);
        norm::row_norm(isa(), RowNorm::Layer, x, width, affine, self.eps)?.placed(x)
    }
}

/// Divides the last dimension by its root mean square.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Option<Channels>,
    eps: f32,
    slot: Arc<Slot>,
}

impl RmsNorm {
    /// With a slot of its own, in main memory.
    pub fn new(weight: Option<&Stored>, eps: f32) -> Result<Self> {
        let slot = Slot::new(bytes_of([weight]), &Group::new());
        Self::in_slot(weight, eps, slot)
    }

    /// The same with a slot that is there.
    pub fn in_slot(weight: Option<&Stored>, eps: f32, slot: Arc<Slot>) -> Result<Self> {
        debug_assert_eq!(slot.bytes(), bytes_of([weight]));
        Ok(Self {
            weight: channels(weight)?,
            eps,
            slot,
        })
    }

    /// Where the weight is.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The weight as it was given.
    pub fn stored(&self) -> Option<&Stored> {
        self.weight.as_ref().map(|part| &part.stored)
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let width = last(x, "rms norm")?;
        check_width("rms norm", x, width, self.weight.as_ref())?;
        if x.is_empty() {
            return Ok(x.clone());
        }
        let _here = self.slot.at(&x.device())?;
        let zeros = vec![0.0; width];
        let affine = self.weight.as_ref().map(|w| RowAffine {
            factors: w.values.data(),
            offsets: &zeros,
            rows: x.len() / width,
        });
        norm::row_norm(isa(), RowNorm::Rms, x, width, affine.as_ref(), self.eps)?.placed(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owned_tensor_is_normalised_in_its_memory() {
        let values = |n: usize, f: f32| {
            let t = Tensor::from_fn([n], |i| 1.0 + f * i as f32).unwrap();
            Stored::from(&t)
        };
        let norm = GroupNorm::new(&values(20, 0.1), &values(20, -0.2), 5, 1e-5).unwrap();
        let x = Tensor::from_fn([2, 9, 7, 20], |i| (i as f32 * 0.37).sin()).unwrap();
        let expected = norm.forward(&x, Act::Silu).unwrap();
        let before = x.clone();
        // Shared: the other holder keeps what it has.
        assert_eq!(norm.forward_owned(x, Act::Silu).unwrap(), expected);
        let copy = before.clone();
        assert_eq!(before, copy);
        drop(copy);
        let place = before.data().as_ptr();
        let made = norm.forward_owned(before, Act::Silu).unwrap();
        assert_eq!(made, expected);
        assert_eq!(made.data().as_ptr(), place);
    }
}
