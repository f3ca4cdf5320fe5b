//! The linear layer: `y = x W^T + b` over the last dimension, with what follows it fused.

use std::sync::Arc;

use crate::cpu::finish::Finish;
use crate::cpu::packed::Weight;
use crate::cpu::product;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::nn::kept::{Channels, Kept, MakeWeight};
use crate::nn::side::{self, Side};
use crate::nn::slot::{Group, Slot};
use crate::nn::{Act, misc};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// What follows a layer: `act(y + per_item) + add`.
#[derive(Clone, Copy, Default)]
pub struct After<'a> {
    pub act: Act,
    /// Of the shape of the result, added last.
    pub add: Option<&'a Tensor>,
    /// (b, out), added to every position of an item before the activation.
    pub per_item: Option<&'a Tensor>,
}

/// A weight matrix in its storage format and a bias.
pub struct Linear {
    weight: Kept,
    bias: Option<Channels>,
    slot: Arc<Slot>,
    /// Added to the result before anything else.
    sides: Vec<Side>,
    /// The layer whose weight this is.
    _of: Option<Arc<Self>>,
}

impl Linear {
    /// `weight` is (out, in) or (out, in, 1, 1). The layer has a slot of its own, on the device.
    pub fn new(weight: &Stored, bias: Option<&Stored>, device: &Device) -> Result<Self> {
        let slot = Slot::on(bytes_of(weight, bias), &Group::new(), device)?;
        Self::in_slot(weight, bias, slot)
    }

    /// The same with a slot that is there.
    pub fn in_slot(weight: &Stored, bias: Option<&Stored>, slot: Arc<Slot>) -> Result<Self> {
        debug_assert_eq!(slot.bytes(), bytes_of(weight, bias));
        let (out, input) = matrix(weight.shape())?;
        let weight = Kept::Packed(Arc::new(Weight::new(weight, out, input, 1)?));
        Self::placed(weight, bias, slot)
    }

    /// A layer that keeps no weight but has it made for every use: slow, for where there is no room.
    pub fn made(
        weight: (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        device: &Device,
    ) -> Result<Self> {
        let bytes = bias.map_or(0, |b| b.bytes().len() as u64);
        let slot = Slot::on(bytes, &Group::new(), device)?;
        Self::made_of(weight, bias, slot, false)
    }

    /// The same, made from weights that a slot holds: those are where the layer computes at every use, too.
    pub fn made_in_slot(
        weight: (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        slot: Arc<Slot>,
    ) -> Result<Self> {
        Self::made_of(weight, bias, slot, true)
    }

    fn made_of(
        (shape, dtype, make): (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        slot: Arc<Slot>,
        there: bool,
    ) -> Result<Self> {
        let (out, channels) = matrix(shape)?;
        let weight = Kept::Made {
            out,
            channels,
            taps: 1,
            dtype,
            make,
            there,
        };
        Self::placed(weight, bias, slot)
    }

    fn placed(weight: Kept, bias: Option<&Stored>, slot: Arc<Slot>) -> Result<Self> {
        Ok(Self {
            bias: bias_of("linear", bias, weight.out())?,
            weight,
            slot,
            sides: Vec::new(),
            _of: None,
        })
    }

    /// The same weight, shared, with another bias and with additions beside it.
    pub fn beside(self: &Arc<Self>, bias: Option<&Stored>, sides: Vec<Side>) -> Result<Self> {
        let same = Self::placed(self.weight.clone(), bias, Arc::clone(&self.slot))?;
        Ok(Self {
            sides,
            _of: Some(Arc::clone(self)),
            ..same
        })
    }

    pub fn in_features(&self) -> usize {
        self.weight.channels()
    }

    pub fn out_features(&self) -> usize {
        self.weight.out()
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The format the weight is kept in.
    pub fn dtype(&self) -> Dtype {
        self.weight.dtype()
    }

    /// The weight as it was given, (out, in).
    pub fn weight(&self) -> Result<Stored> {
        self.weight
            .unpack()?
            .reshape([self.out_features(), self.in_features()])
    }

    pub fn bias(&self) -> Option<Tensor> {
        self.bias.as_ref().map(|bias| bias.values.clone())
    }

    /// The bias as it was given.
    pub fn stored_bias(&self) -> Option<&Stored> {
        self.bias.as_ref().map(|bias| &bias.stored)
    }

    /// What the layer keeps, by its size in a file.
    pub fn bytes(&self) -> u64 {
        self.weight.bytes() + bias_bytes(self.bias.as_ref())
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, After::default())
    }

    pub fn forward_with(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        check_devices("linear", x, after)?;
        if !self.sides.is_empty() {
            return with_sides(&self.sides, x, None, after, |after| self.plain(x, after));
        }
        self.plain(x, after)
    }

    /// What the weight alone gives.
    fn plain(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        let shape = self.result_shape(x, self.out_features())?;
        let rows = x.len() / self.in_features();
        let items = if shape.len() > 1 { shape[0] } else { 1 };
        let finish = finish("linear", &shape, items, self.bias.as_ref(), after)?;
        self.weight.with(&self.slot, &x.device(), |weight| {
            product::linear(weight, x.data(), rows, &shape, &finish)?.placed(x)
        })
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
        let bias = self.bias.as_ref().map(|bias| bias.values.data());
        self.weight.with(&self.slot, &x.device(), |weight| {
            product::geglu(weight, x.data(), rows, &shape, bias)?.placed(x)
        })
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

/// Sizes of a matrix that may be written as a 1x1 convolution.
fn matrix(shape: &[usize]) -> Result<(usize, usize)> {
    let ([out, input] | [out, input, 1] | [out, input, 1, 1]) = *shape else {
        return Err(TensorError::rank("linear", "2", shape));
    };
    if out == 0 || input == 0 {
        return Err(TensorError::invalid("linear", "an empty weight"));
    }
    Ok((out, input))
}

/// Bytes of a weight and its bias in a file.
pub(super) fn bytes_of(weight: &Stored, bias: Option<&Stored>) -> u64 {
    (weight.bytes().len() + bias.map_or(0, |b| b.bytes().len())) as u64
}

pub(super) fn bias_bytes(bias: Option<&Channels>) -> u64 {
    bias.map_or(0, |bias| bias.stored.bytes().len() as u64)
}

/// Refuses inputs that are not where the first is.
pub(super) fn check_devices(op: &'static str, x: &Tensor, after: After<'_>) -> Result<()> {
    let mut others = [after.add, after.per_item].into_iter().flatten();
    others.try_for_each(|t| x.check_device(op, t))
}

/// The bias of a layer, one value per output.
pub(super) fn bias_of(
    op: &'static str,
    bias: Option<&Stored>,
    out: usize,
) -> Result<Option<Channels>> {
    let Some(stored) = bias else { return Ok(None) };
    let values = stored.to_f32()?;
    if values.len() != out {
        return Err(TensorError::mismatch(op, values.shape(), &[out]));
    }
    Ok(Some(Channels {
        stored: stored.clone(),
        values,
    }))
}

/// Checks what follows a layer against the shape of its result.
pub(super) fn finish<'a>(
    op: &'static str,
    shape: &[usize],
    items: usize,
    bias: Option<&'a Channels>,
    after: After<'a>,
) -> Result<Finish<'a>> {
    let out = shape.last().copied().unwrap_or(0);
    if let Some(add) = after.add
        && add.shape() != shape
    {
        return Err(TensorError::mismatch(op, shape, add.shape()));
    }
    if let Some(per_item) = after.per_item
        && per_item.shape() != [items, out]
    {
        return Err(TensorError::mismatch(op, &[items, out], per_item.shape()));
    }
    Ok(Finish {
        bias: bias.map(|bias| bias.values.data()),
        per_item: after.per_item.map(Tensor::data),
        rows_per_item: (shape.iter().product::<usize>() / out.max(1))
            .checked_div(items)
            .unwrap_or(0),
        act: after.act,
        add: after.add.map(Tensor::data),
    })
}
