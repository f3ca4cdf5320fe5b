//! Convolution over pictures of shape (b, h, w, c), with what follows it fused.

use std::sync::Arc;

use super::contents::MatrixSize;
use super::layer_weights::{LayerValues, LayerWeights, MakeWeight};
use super::linear::{
    After, Linear, check_after, check_devices, finish, with_gpu_finish, with_sides,
};
use super::side::Side;
use super::slot::{SlotGroup, WeightSlot};
use crate::cpu::picture::Picture;
use crate::cpu::product;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::gpu::{Fusion, SkipLayer, Treatment, Window};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// Zeros around the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// As many on all sides.
    Same(usize),
    /// One column at the right and one row at the bottom.
    RightBottom,
}

impl Padding {
    /// Before (top and left) and after (bottom and right).
    fn sizes(self) -> (usize, usize) {
        match self {
            Self::Same(n) => (n, n),
            Self::RightBottom => (0, 1),
        }
    }
}

/// Kernels in their storage format and a bias.
pub struct Conv2d {
    weights: LayerWeights,
    kernel: (usize, usize),
    stride: usize,
    padding: Padding,
    /// Added to the result before anything else.
    sides: Vec<Side>,
    /// The layer whose weight this is.
    _of: Option<Arc<Self>>,
}

const OP: &str = "conv2d";

impl Conv2d {
    /// `weight` is (out, in, kernel height, kernel width). The layer has a slot of its own, on the device.
    pub fn new(
        weight: &Stored,
        bias: Option<&Stored>,
        stride: usize,
        padding: Padding,
        device: &Device,
    ) -> Result<Self> {
        let (size, kernel) = kernels(weight.shape(), stride)?;
        let weights = LayerWeights::on(OP, plain(weight, bias), size, device)?;
        Ok(Self::of(weights, kernel, stride, padding))
    }

    /// The same in main memory, used together with other layers.
    pub fn in_group(
        weight: &Stored,
        bias: Option<&Stored>,
        stride: usize,
        padding: Padding,
        group: &SlotGroup,
    ) -> Result<Self> {
        let (size, kernel) = kernels(weight.shape(), stride)?;
        let weights = LayerWeights::in_group(OP, plain(weight, bias), size, group)?;
        Ok(Self::of(weights, kernel, stride, padding))
    }

    fn of(weights: LayerWeights, kernel: (usize, usize), stride: usize, padding: Padding) -> Self {
        Self {
            weights,
            kernel,
            stride,
            padding,
            sides: Vec::new(),
            _of: None,
        }
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
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
            sides,
            _of: Some(Arc::clone(self)),
        })
    }

    /// Lets the kernels keep sixteen bits of an input instead of all, where that is faster: enough for networks whose
    /// result has eight.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.weights.shorten();
        self
    }

    /// A layer that keeps no weight but has it made for every use, from weights that a slot holds: slow, for where there
    /// is no room.
    pub fn made_in_slot(
        (shape, dtype, make): (&[usize], Dtype, MakeWeight),
        bias: Option<&Stored>,
        stride: usize,
        padding: Padding,
        slot: Arc<WeightSlot>,
    ) -> Result<Self> {
        let (size, kernel) = kernels(shape, stride)?;
        let weights = LayerWeights::made_from(OP, (dtype, make), bias, size, slot)?;
        Ok(Self::of(weights, kernel, stride, padding))
    }

    pub fn in_channels(&self) -> usize {
        self.weights.size().channels
    }

    pub fn out_channels(&self) -> usize {
        self.weights.size().out
    }

    /// Height and width of the kernels.
    pub fn kernel(&self) -> (usize, usize) {
        self.kernel
    }

    /// Where the weights are.
    pub fn slot(&self) -> &Arc<WeightSlot> {
        self.weights.slot()
    }

    /// The format the weight is kept in.
    pub fn dtype(&self) -> Dtype {
        self.weights.dtype()
    }

    /// The weight as it was given, (out, in, kernel height, kernel width).
    pub fn weight(&self) -> Result<Stored> {
        let (kh, kw) = self.kernel;
        let weight = self.weights.weight()?;
        weight.reshape([self.out_channels(), self.in_channels(), kh, kw])
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
        let [_, h, w, _] = x.dims4()?;
        self.run(x, (h, w), after)
    }

    /// The convolution of `x` enlarged to (height, width) by repeating pixels, without the enlarged picture in memory.
    pub fn upsampled(&self, x: &Tensor, size: (usize, usize), after: After<'_>) -> Result<Tensor> {
        self.run(x, size, after)
    }

    /// Whether [`Self::forward_and`] may take a layer and such an input together with this convolution.
    pub fn joins(&self, layer: &Linear, x: &Tensor) -> bool {
        let Some(elements) = x.gpu() else {
            return false;
        };
        let (format, device) = (elements.format(), x.device());
        let odd = self.kernel.0 == self.kernel.1 && self.kernel.0 % 2 == 1;
        odd && (self.stride, self.padding) == (1, Padding::Same(self.kernel.0 / 2))
            && layer.out_features() == self.out_channels()
            && elements
                .device()
                .fusions()
                .fuses(Fusion::ConvAndLinear, format)
            && self.sides.is_empty()
            && self.weights.is_there(format, &device)
            && layer.there(format, &device).is_some()
    }

    /// [`Self::forward_with`] plus what a layer makes of the channels of `x`, and of those of `behind` after them, in one pass and rounded once: before an
    /// activation. None where that is not possible.
    pub fn forward_and(
        &self,
        h: &Tensor,
        layer: &Linear,
        (x, behind): (&Tensor, Option<&Tensor>),
        after: After<'_>,
    ) -> Result<Option<Tensor>> {
        let [b, height, width, c] = h.dims4()?;
        let shape = [b, height, width, self.out_channels()];
        check_devices(OP, h, after)?;
        check_after(OP, &shape, b, after)?;
        let beside = [Some(x), behind].into_iter().flatten();
        let mut channels = 0;
        for input in beside {
            h.check_device(OP, input)?;
            let [.., more] = input.dims4()?;
            channels += more;
            if input.shape()[..3] != shape[..3] {
                return Err(TensorError::mismatch(OP, h.shape(), input.shape()));
            }
        }
        if c != self.in_channels() || channels != layer.in_features() {
            return Err(TensorError::mismatch(OP, h.shape(), x.shape()));
        }
        let Some(elements) = h.gpu().filter(|_| self.joins(layer, h) && !h.is_empty()) else {
            return Ok(None);
        };
        let (format, device) = (elements.format(), h.device());
        let Some(beside) = layer.there(format, &device) else {
            return Ok(None);
        };
        let (above, _) = self.padding.sizes();
        let window = Window {
            frames: b,
            size: (height, width),
            enlarged: (height, width),
            channels: c,
            out: [b, height, width],
            kernel: [1, self.kernel.0, self.kernel.1],
            time_stride: 1,
            stride: 1,
            time_before: 0,
            above,
            left: above,
        };
        let x = x.gpu_in(OP, format)?;
        let behind = behind.map(|t| t.gpu_in(OP, format)).transpose()?;
        LayerWeights::with_list_on_gpu(&[&self.weights, beside], &device, |layers| {
            let &[(weight, bias), (more, more_bias)] = layers else {
                return Ok(None);
            };
            let skip = SkipLayer {
                weight: more,
                bias: more_bias,
                x: &x,
                behind: behind.as_deref(),
            };
            let y = with_gpu_finish(OP, h, &shape, b, bias, after, |h, finish| {
                h.device()
                    .fusions()
                    .offer_conv_with_skip(weight, h, window, finish, skip)
            })?;
            Ok(Some(Tensor::from_gpu(shape, y)))
        })
    }

    fn run(&self, x: &Tensor, size: (usize, usize), after: After<'_>) -> Result<Tensor> {
        check_devices(OP, x, after)?;
        if !self.sides.is_empty() {
            let enlarged = Some(size);
            return with_sides(&self.sides, x, enlarged, after, |after| {
                self.plain(x, size, after)
            });
        }
        self.plain(x, size, after)
    }

    /// What the weight alone gives.
    fn plain(&self, x: &Tensor, size: (usize, usize), after: After<'_>) -> Result<Tensor> {
        let [b, h, w, c] = x.dims4()?;
        if c != self.in_channels() {
            return Err(TensorError::mismatch(
                "conv2d",
                x.shape(),
                &[self.out_channels(), c, self.kernel.0, self.kernel.1],
            ));
        }
        if (h == 0 || w == 0) && size != (h, w) {
            return Err(TensorError::invalid(
                "conv2d",
                "an empty picture has no pixels to repeat",
            ));
        }
        let (before, behind) = self.padding.sizes();
        let length = |n: usize, k: usize| {
            let padded = n + before + behind;
            (n > 0 && padded >= k)
                .then(|| (padded - k) / self.stride + 1)
                .ok_or_else(|| {
                    TensorError::invalid(
                        "conv2d",
                        format!("a size of {n} is smaller than the kernel of {k}"),
                    )
                })
        };
        let shape = [
            b,
            length(size.0, self.kernel.0)?,
            length(size.1, self.kernel.1)?,
            self.out_channels(),
        ];
        check_after(OP, &shape, b, after)?;
        let picture = |data| Picture {
            data,
            batch: b,
            size: (h, w),
            channels: c,
            enlarged: size,
            kernel: self.kernel,
            stride: self.stride,
            before: (before, before),
            behind: (behind, behind),
        };
        let device = x.device();
        match &device {
            Device::Gpu(_) => self.weights.with_gpu(&device, |layer| {
                let window = Window {
                    frames: b,
                    size: (h, w),
                    enlarged: size,
                    channels: c,
                    out: [b, shape[1], shape[2]],
                    kernel: [1, self.kernel.0, self.kernel.1],
                    time_stride: 1,
                    stride: self.stride,
                    time_before: 0,
                    above: before,
                    left: before,
                };
                let y = with_gpu_finish(OP, x, &shape, b, layer.bias, after, |x, finish| {
                    let treatment = Treatment {
                        scale: None,
                        exact: self.weights.size().exact,
                        stays: self.weights.is_there(x.format(), &device),
                    };
                    let gpu = x.device();
                    gpu.conv(&[layer.weight], x, window, treatment, finish)
                })?;
                Ok(Tensor::from_gpu(shape, y))
            }),
            Device::Cpu | Device::Sim(_) => self.weights.with_packed(&device, |layer| {
                let room = x.room_for(&shape)?;
                let finish = finish(&shape, b, layer.bias, after);
                let picture = picture(x.values());
                let out = product::conv(layer.weight, &picture, &shape, &finish)?;
                Ok(Tensor::kept(shape, room, out))
            }),
        }
    }
}

fn plain<'a>(weight: &'a Stored, bias: Option<&'a Stored>) -> LayerValues<'a> {
    LayerValues {
        weight,
        bias,
        input_scale: None,
    }
}

/// Sizes of kernels that can be used.
fn kernels(shape: &[usize], stride: usize) -> Result<(MatrixSize, (usize, usize))> {
    let [out, channels, kh, kw] =
        <[usize; 4]>::try_from(shape).map_err(|_| TensorError::rank("conv2d", "4", shape))?;
    if stride == 0 || shape.contains(&0) {
        return Err(TensorError::invalid(
            "conv2d",
            format!("a weight of shape {shape:?} with stride {stride}"),
        ));
    }
    Ok((MatrixSize::new(out, channels, kh * kw), (kh, kw)))
}
