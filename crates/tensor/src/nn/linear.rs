//! The linear layer: `y = x W^T + b` over the last dimension, with what follows it fused.

use std::sync::Arc;

use super::contents::MatrixSize;
use super::layer_weights::{LayerValues, LayerWeights, MakeWeight};
use super::modulate::{add_gated, rows_per_gate};
use super::side::{self, Side};
use super::slot::{SlotGroup, WeightSlot};
use super::{Act, misc};
use crate::cpu::finish::Finish;
use crate::cpu::product;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::gpu::{self, Format, Fusion, GpuBuffer, GpuSlice, TrailingColumns, Treatment};
use crate::stored::Stored;
use crate::tensor::Tensor;

mod modulated;

pub use modulated::{LayerInput, ModulatedRows};

/// What follows a layer: `act(y + per_item) + add`.
#[derive(Clone, Copy, Default)]
pub struct After<'a> {
    pub act: Act,
    /// Of the shape of the result, added last.
    pub add: Option<&'a Tensor>,
    /// (b, out), added to every position of an item before the activation, or (1, out) for all items.
    pub per_item: Option<&'a Tensor>,
    /// Whether a group norm of the result follows: a GPU can leave what it needs with the result.
    pub for_norm: bool,
}

/// A weight matrix in its storage format and a bias.
pub struct Linear {
    weights: LayerWeights,
    /// Added to the result before anything else.
    sides: Vec<Side>,
    /// The layer whose weight this is.
    _of: Option<Arc<Self>>,
}

const OP: &str = "linear";

/// Most rows that many layers take at once.
const MOST_ROWS: usize = 8;

impl Linear {
    /// `weight` is (out, in) or (out, in, 1, 1). The layer has a slot of its own, on the device.
    pub fn new(weight: &Stored, bias: Option<&Stored>, device: &Device) -> Result<Self> {
        let size = matrix(weight.shape())?;
        let values = LayerValues {
            weight,
            bias,
            input_scale: None,
        };
        Ok(Self::of(LayerWeights::on(OP, values, size, device)?))
    }

    /// The same in main memory, used together with other layers.
    pub fn in_group(weight: &Stored, bias: Option<&Stored>, group: &SlotGroup) -> Result<Self> {
        Self::with_input_scale(weight, bias, None, group)
    }

    /// The same for inputs whose channels are multiplied with `input_scale` first.
    pub fn with_input_scale(
        weight: &Stored,
        bias: Option<&Stored>,
        input_scale: Option<&Stored>,
        group: &SlotGroup,
    ) -> Result<Self> {
        let size = matrix(weight.shape())?;
        let values = LayerValues {
            weight,
            bias,
            input_scale,
        };
        Ok(Self::of(LayerWeights::in_group(OP, values, size, group)?))
    }

    /// A layer that keeps no weight but has it made for every use: slow, for where there is no room.
    pub fn made(
        (shape, dtype, make): (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        device: &Device,
    ) -> Result<Self> {
        let size = matrix(shape)?;
        let weights = LayerWeights::made_on(OP, (dtype, make), bias, size, device)?;
        Ok(Self::of(weights))
    }

    /// The same, made from weights that a slot holds: those are where the layer computes at every use, too.
    pub fn made_in_slot(
        (shape, dtype, make): (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        slot: Arc<WeightSlot>,
    ) -> Result<Self> {
        let size = matrix(shape)?;
        let weights = LayerWeights::made_from(OP, (dtype, make), bias, size, slot)?;
        Ok(Self::of(weights))
    }

    /// The slot and the sizes of a weight without anything beside it.
    pub(super) fn plain_weights(&self) -> Option<(&Arc<WeightSlot>, MatrixSize)> {
        let slot = self.weights.plain().filter(|_| self.sides.is_empty())?;
        Some((slot, self.weights.size()))
    }

    pub(super) fn of(weights: LayerWeights) -> Self {
        Self {
            weights,
            sides: Vec::new(),
            _of: None,
        }
    }

    /// Multiplies with whole inputs, also where the format of the weight would have them rounded. For a layer that has just
    /// been made.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.weights.set_exact();
        self
    }

    /// Copied to a device once for all passes, not for each. For a layer that has just been made.
    #[must_use]
    pub(super) fn keeping_copies(mut self) -> Self {
        self.weights.keep_copies();
        self
    }

    /// The same weight, shared, with another bias and with additions beside it.
    pub fn beside(self: &Arc<Self>, bias: Option<&Stored>, sides: Vec<Side>) -> Result<Self> {
        Ok(Self {
            weights: self.weights.with_bias(OP, bias)?,
            sides,
            _of: Some(Arc::clone(self)),
        })
    }

    pub fn in_features(&self) -> usize {
        self.weights.size().channels
    }

    pub fn out_features(&self) -> usize {
        self.weights.size().out
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        self.weights.slot()
    }

    /// The format the weight is kept in.
    pub fn dtype(&self) -> Dtype {
        self.weights.dtype()
    }

    /// The weight as it was given, (out, in).
    pub fn weight(&self) -> Result<Stored> {
        let weight = self.weights.weight()?;
        weight.reshape([self.out_features(), self.in_features()])
    }

    /// The bias as it was given.
    pub fn bias(&self) -> Result<Option<Stored>> {
        self.weights.bias()
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.weights.bytes()
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, After::default())
    }

    pub fn forward_with(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        check_devices(OP, x, after)?;
        if !self.sides.is_empty() {
            return with_sides(&self.sides, x, None, after, |after| self.plain(x, after));
        }
        self.plain(x, after)
    }

    /// `to + gate * y` of the result, with gates as [`add_gated`](super::add_gated) takes them: in one pass where that is possible.
    pub fn forward_gated(&self, x: &Tensor, to: Tensor, gate: &Tensor) -> Result<Tensor> {
        let device = x.device();
        if !matches!(device, Device::Gpu(_)) || !self.sides.is_empty() {
            return add_gated(to, gate, &self.forward(x)?);
        }
        let shape = self.result_shape(x, self.out_features())?;
        if to.shape() != shape {
            return Err(TensorError::mismatch(OP, to.shape(), &shape));
        }
        x.check_device(OP, &to)?;
        x.check_device(OP, gate)?;
        let rows = x.len() / self.in_features();
        let each = rows_per_gate(OP, &to, gate)?;
        self.weights.with_gpu(&device, |layer| {
            let x = x.gpu_on(OP)?;
            let (residual, gate) = (to.gpu_in(OP, x.format())?, gate.gpu_in(OP, x.format())?);
            let finish = gpu::Finish {
                bias: layer.bias,
                gate: Some(&gate),
                residual: Some(&residual),
                rows_per_item: each,
                ..gpu::Finish::default()
            };
            let treatment = self.treatment(layer.input_scale);
            let y = x
                .device()
                .linear(layer.weight, x, rows, treatment, finish)?;
            Ok(Tensor::from_gpu(&*shape, y))
        })
    }

    /// What each of several layers makes of the same input: in one pass where that is possible.
    pub fn forward_each<const N: usize>(layers: [&Self; N], x: &Tensor) -> Result<[Tensor; N]> {
        if let Some(found) = Self::each_on_gpu(layers, x)? {
            return Ok(found);
        }
        let found: Vec<Tensor> = layers
            .iter()
            .map(|layer| layer.forward(x))
            .collect::<Result<_>>()?;
        let lost = || TensorError::invalid(OP, "a result is missing");
        found.try_into().map_err(|_| lost())
    }

    fn each_on_gpu<const N: usize>(layers: [&Self; N], x: &Tensor) -> Result<Option<[Tensor; N]>> {
        let device = x.device();
        let (Some(elements), [first, ..]) = (x.gpu(), &layers[..]) else {
            return Ok(None);
        };
        let size = (first.in_features(), first.out_features());
        let plain = |layer: &&Self| {
            let same = (layer.in_features(), layer.out_features()) == size;
            same && layer.sides.is_empty() && layer.weights.is_plain(elements.format())
        };
        let gpu = elements.device();
        let fuses = gpu.fusions().fuses(Fusion::LinearEach, elements.format());
        if !fuses || !layers.iter().all(plain) {
            return Ok(None);
        }
        let shape = first.result_shape(x, size.1)?;
        let rows = x.len() / size.0;
        let weights = layers.map(|layer| &layer.weights);
        let found = LayerWeights::with_list_on_gpu(&weights, &device, |layers| {
            gpu.fusions().offer_linear_each(layers, elements, rows)
        })?;
        let found: Option<[GpuBuffer; N]> = found.try_into().ok();
        Ok(found.map(|all| all.map(|y| Tensor::from_gpu(&*shape, y))))
    }

    /// Whether [`Self::forward_few`] is for these layers on a device.
    pub fn few_on_gpu<'a>(layers: impl IntoIterator<Item = &'a Self>, device: &Device) -> bool {
        let Device::Gpu(handle) = device else {
            return false;
        };
        let mut layers = layers.into_iter();
        let there = |layer: &Self| {
            layer.in_features().is_multiple_of(8) && layer.there(handle.format, device).is_some()
        };
        handle
            .device
            .fusions()
            .fuses(Fusion::FewRows, handle.format)
            && layers.all(there)
    }

    /// What many layers make of the same few rows, in one pass; none where it would take as long as one after the other, or where their
    /// weights are not all on the device.
    pub fn forward_few(layers: &[&Self], x: &Tensor) -> Result<Option<Vec<Tensor>>> {
        let (device, Some(elements)) = (x.device(), x.gpu()) else {
            return Ok(None);
        };
        let Some(&channels) = x.shape().last() else {
            return Ok(None);
        };
        let rows = x.len().checked_div(channels).unwrap_or(0);
        let few = (1..=MOST_ROWS).contains(&rows)
            && layers.iter().all(|layer| layer.in_features() == channels);
        if !few || !Self::few_on_gpu(layers.iter().copied(), &device) {
            return Ok(None);
        }
        let weights: Vec<&LayerWeights> = layers.iter().map(|layer| &layer.weights).collect();
        let found = LayerWeights::with_list_on_gpu(&weights, &device, |layers| {
            elements
                .device()
                .fusions()
                .offer_few_rows(layers, elements, rows)
        })?;
        let shapes = layers
            .iter()
            .map(|layer| layer.result_shape(x, layer.out_features()));
        let found = found
            .into_iter()
            .zip(shapes)
            .map(|(y, shape)| Ok(Tensor::from_gpu(shape?, y)));
        found.collect::<Result<_>>().map(Some)
    }

    /// The weights, where a GPU keeps them in this format and nothing is beside them.
    pub(super) fn there(&self, format: Format, device: &Device) -> Option<&LayerWeights> {
        let weights = Some(&self.weights).filter(|_| self.sides.is_empty())?;
        weights.is_there(format, device).then_some(weights)
    }

    /// [`Self::forward`] of the columns of `x` and of those of `behind` after them, without a copy of both. None where that is not possible.
    pub fn forward_of_two(&self, x: &Tensor, behind: &Tensor) -> Result<Option<Tensor>> {
        let (left, columns) = (misc::last(x, OP)?, misc::last(behind, OP)?);
        let outer = &x.shape()[..x.rank() - 1];
        if behind.shape()[..behind.rank() - 1] != *outer || left + columns != self.in_features() {
            return Err(TensorError::mismatch(OP, x.shape(), behind.shape()));
        }
        x.check_device(OP, behind)?;
        let Some(elements) = x.gpu().filter(|_| !x.is_empty() && !behind.is_empty()) else {
            return Ok(None);
        };
        let gpu = elements.device();
        let fuses = gpu.fusions().fuses(Fusion::LinearOfTwo, elements.format());
        if !fuses || !self.sides.is_empty() {
            return Ok(None);
        }
        let rows = x.len() / left;
        let mut shape = outer.to_vec();
        shape.push(self.out_features());
        self.weights.with_gpu(&x.device(), |layer| {
            let wide = behind.gpu_in(OP, elements.format())?;
            let behind = TrailingColumns {
                wide: &wide,
                row: columns,
                first: 0,
                columns,
            };
            let finish = gpu::Finish {
                bias: layer.bias,
                ..gpu::Finish::default()
            };
            let treatment = self.treatment(layer.input_scale);
            let input = (elements, behind);
            let y =
                gpu.fusions()
                    .offer_linear_of_two(layer.weight, input, rows, treatment, finish)?;
            Ok(Some(Tensor::from_gpu(&*shape, y)))
        })
    }

    /// [`Self::forward_gated`] of the columns of `x` and of those of `wide` from `first` on behind them, without a copy of both. None where
    /// that is not possible.
    pub(super) fn gated_of_two(
        &self,
        (x, wide, first): (&Tensor, &Tensor, usize),
        to: &Tensor,
        gate: &Tensor,
    ) -> Result<Option<Tensor>> {
        let ([b, n, left], [.., row]) = (x.dims3()?, wide.dims3()?);
        let columns = row - first;
        if !self.sides.is_empty() || left + columns != self.in_features() {
            return Ok(None);
        }
        let shape = [b, n, self.out_features()];
        if to.shape() != shape {
            return Err(TensorError::mismatch(OP, to.shape(), &shape));
        }
        [wide, to, gate]
            .iter()
            .try_for_each(|other| x.check_device(OP, other))?;
        let each = rows_per_gate(OP, to, gate)?;
        self.weights.with_gpu(&x.device(), |layer| {
            let x = x.gpu_on(OP)?;
            let format = x.format();
            let (residual, gate) = (to.gpu_in(OP, format)?, gate.gpu_in(OP, format)?);
            let wide = wide.gpu_in(OP, format)?;
            let behind = TrailingColumns {
                wide: &wide,
                row,
                first,
                columns,
            };
            let finish = gpu::Finish {
                bias: layer.bias,
                gate: Some(&gate),
                residual: Some(&residual),
                rows_per_item: each,
                ..gpu::Finish::default()
            };
            let treatment = self.treatment(layer.input_scale);
            let (gpu, input) = (x.device(), (x, behind));
            let y =
                gpu.fusions()
                    .offer_linear_of_two(layer.weight, input, b * n, treatment, finish)?;
            Ok(Some(Tensor::from_gpu(shape, y)))
        })
    }

    /// What the weight alone gives.
    fn plain(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        let shape = self.result_shape(x, self.out_features())?;
        let rows = x.len() / self.in_features();
        let items = if shape.len() > 1 { shape[0] } else { 1 };
        check_after(OP, &shape, items, after)?;
        let device = x.device();
        match &device {
            Device::Gpu(_) => self.weights.with_gpu(&device, |layer| {
                let y = with_gpu_finish(OP, x, &shape, items, layer.bias, after, |x, finish| {
                    let treatment = self.treatment(layer.input_scale);
                    x.device().linear(layer.weight, x, rows, treatment, finish)
                })?;
                Ok(Tensor::from_gpu(&*shape, y))
            }),
            Device::Cpu | Device::Sim(_) => self.weights.with_packed(&device, |layer| {
                let room = x.room_for(&shape)?;
                let finish = finish(&shape, items, layer.bias, after);
                let scaled = layer.scaled(x.values())?;
                let x = scaled.as_deref().unwrap_or(x.values());
                let out = product::linear(layer.weight, x, rows, &shape, &finish)?;
                Ok(Tensor::kept(&*shape, room, out))
            }),
        }
    }

    /// `a * gelu(g)` where `a` and `g` are the halves of the result.
    pub fn geglu(&self, x: &Tensor) -> Result<Tensor> {
        let out = self.out_features();
        if !out.is_multiple_of(2) {
            return Err(TensorError::invalid(
                "geglu",
                format!("{out} outputs have no halves"),
            ));
        }
        if !self.sides.is_empty() {
            return misc::geglu(&self.forward(x)?);
        }
        let shape = self.result_shape(x, out / 2)?;
        let rows = x.len() / self.in_features();
        let device = x.device();
        match &device {
            Device::Gpu(_) => self.weights.with_gpu(&device, |layer| {
                let (x, weight) = (x.gpu_on(OP)?, (layer.weight, out));
                let treatment = self.treatment(layer.input_scale);
                let gpu = x.device();
                let y = gpu
                    .fusions()
                    .offer_linear_geglu(weight, x, rows, treatment, layer.bias)?;
                Ok(Tensor::from_gpu(&*shape, y))
            }),
            Device::Cpu | Device::Sim(_) => self.weights.with_packed(&device, |layer| {
                let room = x.room_for(&shape)?;
                let scaled = layer.scaled(x.values())?;
                let x = scaled.as_deref().unwrap_or(x.values());
                let out = product::geglu(layer.weight, x, rows, &shape, layer.bias)?;
                Ok(Tensor::kept(&*shape, room, out))
            }),
        }
    }

    /// What a GPU does with inputs first.
    fn treatment<'a>(&self, scale: Option<GpuSlice<'a>>) -> Treatment<'a> {
        let exact = self.weights.size().exact;
        Treatment {
            scale,
            exact,
            stays: false,
        }
    }

    fn result_shape(&self, x: &Tensor, out: usize) -> Result<Vec<usize>> {
        let mut shape = x.shape().to_vec();
        match shape.last_mut() {
            Some(last) if *last == self.in_features() => *last = out,
            _ => {
                return Err(TensorError::mismatch(
                    "linear",
                    x.shape(),
                    &[self.out_features(), self.in_features()],
                ));
            }
        }
        Ok(shape)
    }
}

/// A layer's result with additions: `plain` gives what follows from its weight.
pub(super) fn with_sides(
    sides: &[Side],
    x: &Tensor,
    size: Option<(usize, usize)>,
    after: After<'_>,
    plain: impl FnOnce(After<'_>) -> Result<Tensor>,
) -> Result<Tensor> {
    let early = matches!(after.act, Act::None);
    // Without an activation, what comes after it can be added before.
    let first = if early { after.add } else { None };
    let sum = side::sum(sides, x, size, first)?;
    let result = plain(After {
        act: Act::None,
        add: sum.as_ref().or(first),
        per_item: after.per_item,
        for_norm: early && after.for_norm,
    })?;
    if early {
        return Ok(result);
    }
    let result = misc::activate(result, after.act);
    match after.add {
        Some(add) => result.add(add),
        None => Ok(result),
    }
}

/// Sizes of a matrix that may be written as a convolution over single points.
fn matrix(shape: &[usize]) -> Result<MatrixSize> {
    let ([out, input] | [out, input, 1] | [out, input, 1, 1] | [out, input, 1, 1, 1]) = *shape
    else {
        return Err(TensorError::rank("linear", "2", shape));
    };
    if out == 0 || input == 0 {
        return Err(TensorError::invalid("linear", "an empty weight"));
    }
    Ok(MatrixSize::new(out, input, 1))
}

/// Refuses inputs that are not where the first is.
pub(super) fn check_devices(op: &'static str, x: &Tensor, after: After<'_>) -> Result<()> {
    let mut others = [after.add, after.per_item].into_iter().flatten();
    others.try_for_each(|t| x.check_device(op, t))
}

/// Checks what follows a layer against the shape of its result.
pub(super) fn check_after(
    op: &'static str,
    shape: &[usize],
    items: usize,
    after: After<'_>,
) -> Result<()> {
    let out = shape.last().copied().unwrap_or(0);
    if let Some(add) = after.add
        && add.shape() != shape
    {
        return Err(TensorError::mismatch(op, shape, add.shape()));
    }
    if let Some(per_item) = after.per_item
        && per_item.shape() != [items, out]
        && per_item.shape() != [1, out]
    {
        return Err(TensorError::mismatch(op, &[items, out], per_item.shape()));
    }
    Ok(())
}

/// Rows of a result that share a row of what is added to items: all of them where there is one for all.
fn rows_of_item(shape: &[usize], items: usize, after: After<'_>) -> usize {
    let out = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().product::<usize>() / out.max(1);
    let items = match after.per_item {
        Some(per_item) if per_item.shape() == [1, out] => 1,
        _ => items,
    };
    rows.checked_div(items).unwrap_or(0)
}

/// What follows a layer, for kernels of the processor.
pub(super) fn finish<'a>(
    shape: &[usize],
    items: usize,
    bias: Option<&'a [f32]>,
    after: After<'a>,
) -> Finish<'a> {
    Finish {
        bias,
        per_item: after.per_item.map(Tensor::values),
        rows_per_item: rows_of_item(shape, items, after),
        act: after.act,
        add: after.add.map(Tensor::values),
        onto: false,
    }
}

/// Calls with an input on a GPU and what follows a layer, all in the format of the input.
pub(super) fn with_gpu_finish<R>(
    op: &'static str,
    x: &Tensor,
    shape: &[usize],
    items: usize,
    bias: Option<GpuSlice<'_>>,
    after: After<'_>,
    body: impl FnOnce(&GpuBuffer, gpu::Finish<'_>) -> Result<R>,
) -> Result<R> {
    let x = x.gpu_on(op)?;
    let format = x.format();
    let add = after.add.map(|t| t.gpu_in(op, format)).transpose()?;
    let per_item = after.per_item.map(|t| t.gpu_in(op, format)).transpose()?;
    let finish = gpu::Finish {
        bias,
        per_item: per_item.as_deref(),
        gate: None,
        residual: add.as_deref(),
        act: after.act,
        act_from: 0,
        rows_per_item: rows_of_item(shape, items, after),
        for_norm: after.for_norm,
    };
    body(x, finish)
}
