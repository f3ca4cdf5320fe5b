//! Linear layers of rows that are normalised and modulated first: a GPU that multiplies bytes makes those while it normalises.

use super::{After, Linear, OP, check_after, check_devices, with_gpu_finish};
use crate::device::Device;
use crate::error::Result;
use crate::gpu::Finish;
use crate::nn::heads::MlpJoin;
use crate::nn::{Act, LayerNorm};
use crate::tensor::Tensor;

/// The rows of [`LayerNorm::modulated`], worked out where they are used.
#[derive(Clone, Copy)]
pub struct ModulatedRows<'a> {
    pub norm: &'a LayerNorm,
    pub x: &'a Tensor,
    pub shift: &'a Tensor,
    pub scale: &'a Tensor,
}

impl ModulatedRows<'_> {
    pub fn to_tensor(self) -> Result<Tensor> {
        self.norm.modulated(self.x, self.shift, self.scale)
    }
}

/// What a layer is given.
#[derive(Clone, Copy)]
pub enum LayerInput<'a> {
    Rows(&'a Tensor),
    Modulated(ModulatedRows<'a>),
}

impl<'a> LayerInput<'a> {
    /// The tensor whose rows they are, normalised or not.
    fn tensor(self) -> &'a Tensor {
        match self {
            Self::Rows(x) => x,
            Self::Modulated(rows) => rows.x,
        }
    }
}

impl Linear {
    /// [`Self::forward_with`] of such rows.
    pub fn forward_modulated(&self, rows: ModulatedRows<'_>, after: After<'_>) -> Result<Tensor> {
        if !self.finishes_on_gpu(rows.x) {
            return self.forward_with(&rows.to_tensor()?, after);
        }
        let x = rows.x;
        check_devices(OP, x, after)?;
        let shape = self.result_shape(x, self.out_features())?;
        let items = if shape.len() > 1 { shape[0] } else { 1 };
        check_after(OP, &shape, items, after)?;
        self.weights.with_gpu(&x.device(), |layer| {
            let treatment = self.treatment(layer.input_scale);
            let y = with_gpu_finish(OP, x, &shape, items, layer.bias, after, |_, finish| {
                let modulation = Some((rows.shift, rows.scale));
                rows.norm.with_gpu(x, modulation, |x, norm| {
                    let gpu = x.device();
                    gpu.fusions()
                        .offer_linear_of_norm(layer.weight, x, norm, treatment, finish)
                })
            })?;
            Ok(Tensor::from_gpu(&*shape, y))
        })
    }

    /// The result whose columns from `first` on stand beside those of attention, with what is left to do with them.
    pub fn forward_beside(
        &self,
        input: LayerInput<'_>,
        first: usize,
        kind: MlpJoin,
    ) -> Result<(Tensor, MlpJoin)> {
        let early = kind == MlpJoin::GeluTanh && first.is_multiple_of(256);
        let x = input.tensor();
        if !early || !self.finishes_on_gpu(x) {
            let all = match input {
                LayerInput::Rows(x) => self.forward(x)?,
                LayerInput::Modulated(rows) => self.forward_modulated(rows, After::default())?,
            };
            return Ok((all, kind));
        }
        let shape = self.result_shape(x, self.out_features())?;
        let all = self.weights.with_gpu(&x.device(), |layer| {
            let finish = Finish {
                bias: layer.bias,
                act: Act::GeluTanh,
                act_from: first,
                ..Finish::default()
            };
            let treatment = self.treatment(layer.input_scale);
            match input {
                LayerInput::Rows(x) => {
                    let count = x.len() / self.in_features();
                    let x = x.gpu_on(OP)?;
                    x.device().linear(layer.weight, x, count, treatment, finish)
                }
                LayerInput::Modulated(rows) => {
                    let modulation = Some((rows.shift, rows.scale));
                    rows.norm.with_gpu(x, modulation, |x, norm| {
                        let gpu = x.device();
                        gpu.fusions()
                            .offer_linear_of_norm(layer.weight, x, norm, treatment, finish)
                    })
                }
            }
        })?;
        Ok((Tensor::from_gpu(&*shape, all), MlpJoin::Done))
    }

    /// Whether one product of a GPU does all that there is to do.
    fn finishes_on_gpu(&self, x: &Tensor) -> bool {
        let on_gpu = matches!(x.device(), Device::Gpu(_));
        on_gpu && self.sides.is_empty() && !x.is_empty()
    }
}
