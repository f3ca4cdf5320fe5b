//! Normalisation layers.

use std::sync::Arc;

use super::contents::Content;
use super::misc::{Act, last};
use super::slot::{SlotGroup, WeightSlot};
use crate::buffer::Buffer;
use crate::cpu::isa::isa;
use crate::cpu::math;
use crate::cpu::norm::{self, RowAffine, RowNorm};
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::gpu::{self, Fusion, GpuBuffer, GpuSlice, GroupNormSpec, RowNormEnd, RowNormKind};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// Refuses values that are not one per channel. Some files write further dimensions of one.
fn check_values(stored: &Stored) -> Result<()> {
    if stored.shape().first() == Some(&stored.len()) {
        return Ok(());
    }
    Err(TensorError::rank("normalise", "1", stored.shape()))
}

fn check_width(op: &'static str, x: &Tensor, width: usize, channels: Option<usize>) -> Result<()> {
    match channels {
        Some(channels) if channels != width => {
            Err(TensorError::mismatch(op, x.shape(), &[channels]))
        }
        _ => Ok(()),
    }
}

/// Normalises groups of channels over a whole picture.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    channels: usize,
    groups: usize,
    eps: f32,
    slot: Arc<WeightSlot>,
}

impl GroupNorm {
    /// In main memory.
    pub fn new(weight: &Stored, bias: &Stored, groups: usize, eps: f32) -> Result<Self> {
        Self::in_group(weight, bias, groups, eps, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(
        weight: &Stored,
        bias: &Stored,
        groups: usize,
        eps: f32,
        group: &SlotGroup,
    ) -> Result<Self> {
        let (&[channels], &[also]) = (weight.shape(), bias.shape()) else {
            return Err(TensorError::mismatch(
                "group norm",
                weight.shape(),
                bias.shape(),
            ));
        };
        if channels != also {
            return Err(TensorError::mismatch("group norm", &[channels], &[also]));
        }
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(TensorError::invalid(
                "group norm",
                format!("{channels} channels do not make {groups} groups"),
            ));
        }
        let values = vec![Content::channels(weight), Content::channels(bias)];
        Ok(Self {
            channels,
            groups,
            eps,
            slot: WeightSlot::new(values, group)?,
        })
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// Weight and bias as they were given.
    pub fn stored(&self) -> Result<(Stored, Stored)> {
        Ok((self.slot.stored(0)?, self.slot.stored(1)?))
    }

    /// (b, h, w, c) normalised, then activated.
    pub fn forward(&self, x: &Tensor, act: Act) -> Result<Tensor> {
        let [_, _, _, c] = x.dims4()?;
        check_width("group norm", x, c, Some(self.channels))?;
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
            Act::Leaky => norm::group_norm::<math::Leaky>,
        };
        match x.device() {
            Device::Gpu(_) => self.run_gpu(x.clone(), act),
            Device::Cpu | Device::Sim(_) => {
                let here = self.slot.at(&x.device())?;
                let room = x.room_for(x.shape())?;
                let (weight, bias) = (here.channels(0)?, here.channels(1)?);
                let out = run(isa(), x, self.groups, weight, bias, self.eps)?;
                Ok(Tensor::kept(x.shape(), room, out))
            }
        }
    }

    fn run_gpu(&self, x: Tensor, act: Act) -> Result<Tensor> {
        let here = self.slot.at(&x.device())?;
        let spec = self.spec(&x, (here.gpu(0)?.floats()?, here.gpu(1)?.floats()?), act)?;
        x.gpu_replaced("group norm", |x, out| x.device().group_norm(x, out, spec))
    }

    fn spec<'a>(
        &self,
        x: &Tensor,
        (weight, bias): (GpuSlice<'a>, GpuSlice<'a>),
        act: Act,
    ) -> Result<GroupNormSpec<'a>> {
        let [items, height, width, _] = x.dims4()?;
        Ok(GroupNormSpec {
            items,
            pixels: height * width,
            channels: self.channels,
            groups: self.groups,
            weight,
            bias,
            eps: self.eps,
            act,
        })
    }

    /// [`Self::forward`] of the channels of `x` and of those of `behind` after them, without a copy of both. None where that is not possible.
    pub fn forward_of_two(&self, x: &Tensor, behind: &Tensor, act: Act) -> Result<Option<Tensor>> {
        let ([items, height, width, early], [.., late]) = (x.dims4()?, behind.dims4()?);
        if x.shape()[..3] != behind.shape()[..3] || early + late != self.channels {
            return Err(TensorError::mismatch(
                "group norm",
                x.shape(),
                behind.shape(),
            ));
        }
        x.check_device("group norm", behind)?;
        let Some(first) = x.gpu().filter(|_| !x.is_empty() && !behind.is_empty()) else {
            return Ok(None);
        };
        let gpu = first.device();
        if !gpu.fusions().fuses(Fusion::GroupNormOfTwo, first.format()) {
            return Ok(None);
        }
        let here = self.slot.at(&x.device())?;
        let spec = self.spec(x, (here.gpu(0)?.floats()?, here.gpu(1)?.floats()?), act)?;
        let behind = behind.gpu_in("group norm", first.format())?;
        let shape = [items, height, width, self.channels];
        let made = gpu
            .fusions()
            .offer_group_norm_of_two(first, &behind, spec)?;
        Ok(Some(Tensor::from_gpu(shape, made)))
    }

    /// The same for a tensor that nobody needs afterwards: in its memory, where nobody else holds that.
    pub fn forward_owned(&self, mut x: Tensor, act: Act) -> Result<Tensor> {
        let [_, _, _, c] = x.dims4()?;
        check_width("group norm", &x, c, Some(self.channels))?;
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
            Act::Leaky => norm::group_norm_in_place::<math::Leaky>,
        };
        match x.device() {
            Device::Gpu(_) => return self.run_gpu(x, act),
            Device::Cpu | Device::Sim(_) => {
                let here = self.slot.at(&x.device())?;
                let (weight, bias) = (here.channels(0)?, here.channels(1)?);
                run(isa(), &mut x, self.groups, weight, bias, self.eps)?;
            }
        }
        Ok(x)
    }
}

/// Normalises the last dimension to mean 0 and variance 1.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Option<usize>,
    bias: Option<usize>,
    eps: f32,
    slot: Arc<WeightSlot>,
}

impl LayerNorm {
    /// In main memory.
    pub fn new(weight: Option<&Stored>, bias: Option<&Stored>, eps: f32) -> Result<Self> {
        Self::in_group(weight, bias, eps, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(
        weight: Option<&Stored>,
        bias: Option<&Stored>,
        eps: f32,
        group: &SlotGroup,
    ) -> Result<Self> {
        let given = weight.into_iter().chain(bias);
        given.clone().try_for_each(check_values)?;
        let values = given.map(Content::channels).collect();
        Ok(Self {
            weight: weight.map(Stored::len),
            bias: bias.map(Stored::len),
            eps,
            slot: WeightSlot::new(values, group)?,
        })
    }

    /// The place of the bias in the slot.
    fn bias_at(&self) -> usize {
        usize::from(self.weight.is_some())
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// Weight and bias as they were given.
    pub fn stored(&self) -> Result<(Option<Stored>, Option<Stored>)> {
        let weight = self.weight.map(|_| self.slot.stored(0));
        let bias = self.bias.map(|_| self.slot.stored(self.bias_at()));
        Ok((weight.transpose()?, bias.transpose()?))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// The normalised values times `1 + scale` plus `shift`, both (b, c) or (b, 1, c) for `x` of (b, .., c).
    pub fn modulated(&self, x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
        check_modulation(x, shift, scale)?;
        self.run(x, Some((shift, scale)))
    }

    /// What a GPU is told of the norm of rows that are there, modulated or not.
    pub(super) fn with_gpu<R>(
        &self,
        x: &Tensor,
        modulation: Option<(&Tensor, &Tensor)>,
        run: impl FnOnce(&GpuBuffer, gpu::RowNorm<'_>) -> Result<R>,
    ) -> Result<R> {
        const OP: &str = "layer norm";
        let width = self.checked_width(x)?;
        if let Some((shift, scale)) = modulation {
            check_modulation(x, shift, scale)?;
        }
        let here = self.slot.at(&x.device())?;
        let elements = x.gpu_on(OP)?;
        let floats = |at: usize| here.gpu(at)?.floats();
        let format = elements.format();
        let modulation = match modulation {
            None => None,
            Some((shift, scale)) => Some((shift.gpu_in(OP, format)?, scale.gpu_in(OP, format)?)),
        };
        let end = RowNormEnd {
            weight: self.weight.map(|_| floats(0)).transpose()?,
            bias: self.bias.map(|_| floats(self.bias_at())).transpose()?,
            modulation: modulation
                .as_ref()
                .map(|(shift, scale)| (&**shift, &**scale)),
        };
        let norm = gpu::RowNorm {
            width,
            kind: RowNormKind::Layer,
            end,
            eps: self.eps,
        };
        run(elements, norm)
    }

    fn checked_width(&self, x: &Tensor) -> Result<usize> {
        let width = last(x, "layer norm")?;
        check_width("layer norm", x, width, self.weight)?;
        check_width("layer norm", x, width, self.bias)?;
        Ok(width)
    }

    fn run(&self, x: &Tensor, modulation: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
        let width = self.checked_width(x)?;
        if x.is_empty() {
            return Ok(x.clone());
        }
        match x.device() {
            Device::Gpu(_) => {
                let norm = |x: &GpuBuffer, norm: gpu::RowNorm<'_>| x.device().row_norm(x, norm);
                let out = self.with_gpu(x, modulation, norm)?;
                Ok(Tensor::from_gpu(x.shape(), out))
            }
            Device::Cpu | Device::Sim(_) => {
                let here = self.slot.at(&x.device())?;
                let room = x.room_for(x.shape())?;
                let weight = self.weight.map(|_| here.channels(0)).transpose()?;
                let bias = self.bias.map(|_| here.channels(self.bias_at()));
                let modulation = modulation.map(|(shift, scale)| (shift.values(), scale.values()));
                let bias = bias.transpose()?;
                let out = layer_norm(x, width, weight, bias, modulation, self.eps)?;
                Ok(Tensor::kept(x.shape(), room, out))
            }
        }
    }
}

/// Shift and scale have a row for each item.
fn check_modulation(x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<()> {
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
    Ok(())
}

/// With kernels of the processor. Weight, bias and modulation become one factor and one offset per channel (and item).
fn layer_norm(
    x: &Tensor,
    width: usize,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    modulation: Option<(&[f32], &[f32])>,
    eps: f32,
) -> Result<Buffer<f32>> {
    let plain = modulation.is_none() && weight.is_none() && bias.is_none();
    let weight = |i: usize| weight.map_or(1.0, |w| w[i]);
    let bias = |i: usize| bias.map_or(0.0, |b| b[i]);
    let (factors, offsets): (Vec<f32>, Vec<f32>) = match modulation {
        None => (0..width).map(|i| (weight(i), bias(i))).unzip(),
        Some((shift, scale)) => (0..shift.len())
            .map(|at| {
                let scale = 1.0 + scale[at];
                let i = at % width;
                (weight(i) * scale, bias(i) * scale + shift[at])
            })
            .unzip(),
    };
    let affine = RowAffine {
        rows: x.len() / factors.len(),
        factors: &factors,
        offsets: &offsets,
    };
    let affine = (!plain).then_some(&affine);
    norm::row_norm(isa(), RowNorm::Layer, x, width, affine, eps)
}

/// Divides the last dimension by its root mean square.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Option<usize>,
    eps: f32,
    slot: Arc<WeightSlot>,
}

impl RmsNorm {
    /// In main memory.
    pub fn new(weight: Option<&Stored>, eps: f32) -> Result<Self> {
        Self::in_group(weight, eps, &SlotGroup::new())
    }

    /// The same, used together with other layers.
    pub fn in_group(weight: Option<&Stored>, eps: f32, group: &SlotGroup) -> Result<Self> {
        weight.into_iter().try_for_each(check_values)?;
        let values = weight.into_iter().map(Content::channels).collect();
        Ok(Self {
            weight: weight.map(Stored::len),
            eps,
            slot: WeightSlot::new(values, group)?,
        })
    }

    /// Where the weight is.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        &self.slot
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.slot.bytes()
    }

    /// The weight as it was given.
    pub fn stored(&self) -> Result<Option<Stored>> {
        self.weight.map(|_| self.slot.stored(0)).transpose()
    }

    /// Channels that the weight has; none where there is no weight.
    pub(super) fn width(&self) -> Option<usize> {
        self.weight
    }

    pub(super) fn eps(&self) -> f32 {
        self.eps
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let width = last(x, "rms norm")?;
        check_width("rms norm", x, width, self.weight)?;
        if x.is_empty() {
            return Ok(x.clone());
        }
        let here = self.slot.at(&x.device())?;
        match x.device() {
            Device::Gpu(_) => {
                let weight = self.weight.map(|_| here.gpu(0)?.floats());
                let end = RowNormEnd {
                    weight: weight.transpose()?,
                    ..RowNormEnd::default()
                };
                let elements = x.gpu_on("rms norm")?;
                let norm = gpu::RowNorm {
                    width,
                    kind: RowNormKind::Rms,
                    end,
                    eps: self.eps,
                };
                let out = elements.device().row_norm(elements, norm)?;
                Ok(Tensor::from_gpu(x.shape(), out))
            }
            Device::Cpu | Device::Sim(_) => {
                let room = x.room_for(x.shape())?;
                let zeros = vec![0.0; width];
                let factors = self.weight.map(|_| here.channels(0)).transpose()?;
                let affine = factors.map(|factors| RowAffine {
                    factors,
                    offsets: &zeros,
                    rows: x.len() / width,
                });
                let kind = RowNorm::Rms;
                let out = norm::row_norm(isa(), kind, x, width, affine.as_ref(), self.eps)?;
                Ok(Tensor::kept(x.shape(), room, out))
            }
        }
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
