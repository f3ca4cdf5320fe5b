//! The linear layer: `y = x W^T + b` over the last dimension, with what follows it fused.

use crate::cpu::finish::Finish;
use crate::cpu::packed::Weight;
use crate::cpu::product;
use crate::device::{Allocation, Device};
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::nn::Act;
use crate::nn::kept::{Kept, MakeWeight};
use crate::stored::Stored;
use crate::tensor::{Tensor, same_device};

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
    bias: Option<Tensor>,
    /// What weight and bias take on the device of the layer.
    memory: Allocation,
}

impl Linear {
    /// `weight` is (out, in) or (out, in, 1, 1).
    pub fn new(weight: &Stored, bias: Option<&Stored>, device: &Device) -> Result<Self> {
        let (out, input) = matrix(weight.shape())?;
        let weight = Kept::Packed(Weight::new(weight, out, input, 1)?);
        Self::placed(weight, bias, device)
    }

    /// A layer that keeps no weight but has it made for every use: slow, for where there is no room.
    pub fn made(
        (shape, dtype, make): (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        device: &Device,
    ) -> Result<Self> {
        let (out, channels) = matrix(shape)?;
        let weight = Kept::Made {
            out,
            channels,
            taps: 1,
            dtype,
            make,
        };
        Self::placed(weight, bias, device)
    }

    fn placed(weight: Kept, bias: Option<&Stored>, device: &Device) -> Result<Self> {
        let bias = bias_of("linear", bias, weight.out())?;
        Ok(Self {
            memory: hold(&weight, bias.as_ref(), device)?,
            weight,
            bias,
        })
    }

    pub fn in_features(&self) -> usize {
        self.weight.channels()
    }

    pub fn out_features(&self) -> usize {
        self.weight.out()
    }

    pub fn device(&self) -> &Device {
        self.memory.device()
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
        self.bias.clone()
    }

    /// Memory of weight and bias.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, After::default())
    }

    pub fn forward_with(&self, x: &Tensor, after: After<'_>) -> Result<Tensor> {
        check_devices("linear", self.device(), x, after)?;
        let shape = self.result_shape(x, self.out_features())?;
        let rows = x.len() / self.in_features();
        let items = if shape.len() > 1 { shape[0] } else { 1 };
        let finish = finish("linear", &shape, items, self.bias.as_ref(), after)?;
        self.weight.with(self.device(), |weight| {
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
        same_device("geglu", self.device(), &x.device())?;
        let shape = self.result_shape(x, out / 2)?;
        let rows = x.len() / self.in_features();
        let bias = self.bias.as_ref().map(Tensor::data);
        self.weight.with(self.device(), |weight| {
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

/// Memory of a device for a weight and its bias.
pub(super) fn hold(weight: &Kept, bias: Option<&Tensor>, device: &Device) -> Result<Allocation> {
    device.upload(weight.bytes() + bias.map_or(0, |b| 4 * b.len() as u64))
}

/// Refuses inputs that are not where the layer is.
pub(super) fn check_devices(
    op: &'static str,
    device: &Device,
    x: &Tensor,
    after: After<'_>,
) -> Result<()> {
    let inputs = [Some(x), after.add, after.per_item];
    let mut inputs = inputs.into_iter().flatten();
    inputs.try_for_each(|t| same_device(op, device, &t.device()))
}

/// The bias of a layer as f32, one value per output.
pub(super) fn bias_of(
    op: &'static str,
    bias: Option<&Stored>,
    out: usize,
) -> Result<Option<Tensor>> {
    let Some(bias) = bias else { return Ok(None) };
    let bias = bias.to_f32()?;
    if bias.len() != out {
        return Err(TensorError::mismatch(op, bias.shape(), &[out]));
    }
    Ok(Some(bias))
}

/// Checks what follows a layer against the shape of its result.
pub(super) fn finish<'a>(
    op: &'static str,
    shape: &[usize],
    items: usize,
    bias: Option<&'a Tensor>,
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
        bias: bias.map(Tensor::data),
        per_item: after.per_item.map(Tensor::data),
        rows_per_item: (shape.iter().product::<usize>() / out.max(1))
            .checked_div(items)
            .unwrap_or(0),
        act: after.act,
        add: after.add.map(Tensor::data),
    })
}
