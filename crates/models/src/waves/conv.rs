//! Convolutions along time.

use std::sync::Arc;

use fresco_tensor::nn::{Conv2d, Value, matmul};
use fresco_tensor::{Axes, Device, Tensor};

use crate::error::Result;
use crate::store::{Bias, Walk};

/// Sizes of a convolution along time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSizes {
    pub out: usize,
    pub input: usize,
    pub taps: usize,
    pub bias: bool,
    /// Whether the file has length and direction of each kernel apart.
    pub normed: bool,
}

/// How a convolution goes along time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub stride: usize,
    pub dilation: usize,
    /// Zeros before and after.
    pub zeros: (usize, usize),
}

impl Line {
    /// That keeps the length.
    pub fn same(taps: usize, dilation: usize) -> Self {
        let reach = (taps - 1) * dilation;
        Self {
            stride: 1,
            dilation,
            zeros: (reach / 2, reach - reach / 2),
        }
    }
}

/// A kernel by its length and direction.
struct Normed {
    length: Arc<Value>,
    direction: Arc<Value>,
    bias: Option<Arc<Value>>,
}

impl Normed {
    fn new(weights: &Walk<'_>, name: &str, shape: [usize; 3], bias: Option<usize>) -> Result<Self> {
        let bias = bias.map(|out| weights.value(&format!("{name}.bias"), &[out]));
        Ok(Self {
            length: weights.value(&format!("{name}.weight_g"), &[shape[0], 1, 1])?,
            direction: weights.value(&format!("{name}.weight_v"), &shape)?,
            bias: bias.transpose()?,
        })
    }

    /// The kernel as it is used.
    fn kernel(&self, device: &Device) -> Result<Tensor> {
        let (length, direction) = (self.length.at(device)?, self.direction.at(device)?);
        let size = direction.norm(&[1, 2], Axes::Keep)?;
        Ok(direction.mul(&length.div(&size)?)?)
    }
}

enum Kernel {
    Plain(Arc<Conv2d>),
    Normed(Normed),
}

/// A convolution along time.
pub struct LineConv {
    kernel: Kernel,
    taps: usize,
    line: Line,
}

impl LineConv {
    pub fn new(weights: &Walk<'_>, name: &str, sizes: LineSizes, line: Line) -> Result<Self> {
        let LineSizes {
            out,
            input,
            taps,
            bias,
            normed,
        } = sizes;
        let kernel = if normed {
            let bias = bias.then_some(out);
            Kernel::Normed(Normed::new(weights, name, [out, input, taps], bias)?)
        } else {
            Kernel::Plain(weights.conv1d(name, [out, input, taps], line.stride, Bias::of(bias))?)
        };
        Ok(Self { kernel, taps, line })
    }

    /// (b, time, channels) to the same with other channels, fewer of them where the stride is more than one.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (before, after) = self.line.zeros;
        let x = zero_padded(x, before, after)?;
        self.inside(&x)
    }

    /// The same without anything around.
    pub fn inside(&self, x: &Tensor) -> Result<Tensor> {
        let [b, length, channels] = x.dims3()?;
        let Line {
            stride, dilation, ..
        } = self.line;
        let reach = (self.taps - 1) * dilation;
        if length <= reach {
            return Err(crate::error::ModelError::invalid(
                "sound",
                format!("{length} samples are fewer than a kernel sees"),
            ));
        }
        let count = length - reach;
        match &self.kernel {
            Kernel::Plain(conv) if dilation == 1 => {
                let out = conv.forward(&x.reshape([b, length, 1, channels])?)?;
                let [_, made, _, width] = out.dims4()?;
                Ok(out.reshape([b, made, width])?)
            }
            Kernel::Plain(conv) => {
                // Samples so far apart are one below the other.
                let rows = length.div_ceil(dilation);
                let x = zero_padded(x, 0, rows * dilation - length)?;
                let out = conv.forward(&x.reshape([b, rows, dilation, channels])?)?;
                let [_, made, _, width] = out.dims4()?;
                let out = out.reshape([b, made * dilation, width])?;
                Ok(out.narrow(1, 0, count)?)
            }
            Kernel::Normed(normed) => {
                let device = x.device();
                // (taps, in, out)
                let kernel = normed.kernel(&device)?.permute(&[2, 1, 0])?;
                let places: Vec<usize> = (0..count).step_by(stride).collect();
                let mut sum: Option<Tensor> = None;
                for tap in 0..self.taps {
                    let seen = x.narrow(1, tap * dilation, count)?;
                    let seen = match stride {
                        1 => seen,
                        _ => seen.index_select(1, &places)?,
                    };
                    let rows = seen.reshape([1, b * places.len(), channels])?;
                    let part = matmul(&rows, &kernel.narrow(0, tap, 1)?)?;
                    sum = Some(match sum {
                        Some(sum) => sum.add(&part)?,
                        None => part,
                    });
                }
                let sum = sum.unwrap_or_else(|| x.clone());
                let width = sum.dim(2)?;
                let mut out = sum.reshape([b, places.len(), width])?;
                if let Some(bias) = &normed.bias {
                    out = out.add(&bias.at(&device)?)?;
                }
                Ok(out)
            }
        }
    }
}

/// A convolution the other way round, which makes a sound longer.
pub struct LineUp {
    kernel: UpKernel,
    out: usize,
    taps: usize,
    stride: usize,
    /// Cut off at both ends.
    cut: usize,
}

enum UpKernel {
    /// (in, out, taps), and a bias.
    Plain(Arc<Value>, Option<Arc<Value>>),
    Normed(Normed),
}

impl LineUp {
    pub fn new(
        weights: &Walk<'_>,
        name: &str,
        sizes: LineSizes,
        (stride, cut): (usize, usize),
    ) -> Result<Self> {
        let shape = [sizes.input, sizes.out, sizes.taps];
        let bias = sizes.bias.then_some(sizes.out);
        let kernel = if sizes.normed {
            UpKernel::Normed(Normed::new(weights, name, shape, bias)?)
        } else {
            let bias = bias.map(|out| weights.value(&format!("{name}.bias"), &[out]));
            let weight = weights.value(&format!("{name}.weight"), &shape)?;
            UpKernel::Plain(weight, bias.transpose()?)
        };
        Ok(Self {
            kernel,
            out: sizes.out,
            taps: sizes.taps,
            stride,
            cut,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, length, channels] = x.dims3()?;
        let device = x.device();
        let (kernel, bias) = match &self.kernel {
            UpKernel::Plain(weight, bias) => (weight.at(&device)?, bias.as_ref()),
            UpKernel::Normed(normed) => (normed.kernel(&device)?, normed.bias.as_ref()),
        };
        // (1, in, taps * out)
        let kernel = kernel.permute(&[0, 2, 1])?;
        let kernel = kernel.reshape([1, channels, self.taps * self.out])?;
        let made = matmul(&x.reshape([1, b * length, channels])?, &kernel)?;
        let made = made.reshape([b, length, self.taps * self.out])?;
        // Taps of one group follow each other without a gap; each group is one stride later than the one before.
        let groups = self.taps.div_ceil(self.stride);
        let total = (length + groups - 1) * self.stride;
        let mut sum: Option<Tensor> = None;
        for group in 0..groups {
            let first = group * self.stride;
            let count = self.stride.min(self.taps - first);
            let part = made.narrow(2, first * self.out, count * self.out)?;
            let mut part = part.reshape([b, length, count, self.out])?;
            if count < self.stride {
                let zeros = [b, length, self.stride - count, self.out];
                part = Tensor::cat(&[&part, &Tensor::zeros_on(&device, zeros)?], 2)?;
            }
            let part = part.reshape([b, length * self.stride, self.out])?;
            let part = zero_padded(&part, first, total - first - length * self.stride)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
        let sum = sum.unwrap_or_else(|| x.clone());
        let whole = (length - 1) * self.stride + self.taps;
        let Some(kept) = whole.checked_sub(2 * self.cut).filter(|kept| *kept > 0) else {
            return Err(crate::error::ModelError::invalid(
                "sound",
                format!("{length} frames are too few"),
            ));
        };
        let out = sum.narrow(1, self.cut, kept)?;
        match bias {
            Some(bias) => Ok(out.add(&bias.at(&device)?)?),
            None => Ok(out),
        }
    }
}

/// With zeros before and after.
pub fn zero_padded(x: &Tensor, before: usize, after: usize) -> Result<Tensor> {
    let [b, _, channels] = x.dims3()?;
    let device = x.device();
    let zeros = |count: usize| Tensor::zeros_on(&device, [b, count, channels]);
    Ok(match (before, after) {
        (0, 0) => x.clone(),
        (0, _) => Tensor::cat(&[x, &zeros(after)?], 1)?,
        (_, 0) => Tensor::cat(&[&zeros(before)?, x], 1)?,
        _ => Tensor::cat(&[&zeros(before)?, x, &zeros(after)?], 1)?,
    })
}

/// With the first sample again before, and the last one after.
pub fn replicated(x: &Tensor, before: usize, after: usize) -> Result<Tensor> {
    let length = x.dim(1)?;
    let first = x.narrow(1, 0, 1)?.repeat(&[1, before, 1])?;
    let last = x.narrow(1, length - 1, 1)?.repeat(&[1, after, 1])?;
    Ok(match (before, after) {
        (0, 0) => x.clone(),
        (0, _) => Tensor::cat(&[x, &last], 1)?,
        (_, 0) => Tensor::cat(&[&first, x], 1)?,
        _ => Tensor::cat(&[&first, x, &last], 1)?,
    })
}

#[cfg(test)]
mod tests {
    use fresco_tensor::Stored;

    use super::*;
    use crate::store::WeightStore;

    fn store(list: &[(&str, &[usize], Vec<f32>)]) -> Arc<WeightStore> {
        let weights = list.iter().map(|(key, shape, values)| {
            let tensor = Tensor::from_vec(*shape, values.clone()).unwrap();
            ((*key).to_owned(), Stored::from(&tensor))
        });
        WeightStore::from_stored("test", weights.collect(), Device::cpu())
    }

    #[test]
    fn dilated_and_normed_kernels_agree_with_sums() {
        let kernel = vec![1.0, 2.0, -1.0];
        let length = 6.0f32.sqrt();
        let store = store(&[
            ("a.weight", &[1, 1, 3], kernel.clone()),
            ("b.weight_v", &[1, 1, 3], kernel.clone()),
            ("b.weight_g", &[1, 1, 1], vec![length]),
        ]);
        let x = Tensor::from_fn([1, 7, 1], |i| (i * i) as f32).unwrap();
        for (name, normed) in [("a", false), ("b", true)] {
            let sizes = LineSizes {
                out: 1,
                input: 1,
                taps: 3,
                bias: false,
                normed,
            };
            let line = Line::same(3, 2);
            let made = store
                .build("it", |w| LineConv::new(w, name, sizes, line))
                .unwrap();
            let out = made.forward(&x).unwrap();
            let at = |i: i64| {
                if (0..7).contains(&i) {
                    (i * i) as f32
                } else {
                    0.0
                }
            };
            for i in 0..7 {
                let wanted = at(i - 2) + 2.0 * at(i) - at(i + 2);
                assert!((out.data()[i as usize] - wanted).abs() < 1e-4, "{name} {i}");
            }
        }
    }

    #[test]
    fn what_grows_adds_where_kernels_overlap() {
        let store = store(&[("a.weight", &[1, 1, 3], vec![1.0, 10.0, 100.0])]);
        let sizes = LineSizes {
            out: 1,
            input: 1,
            taps: 3,
            bias: false,
            normed: false,
        };
        let up = store
            .build("it", |w| LineUp::new(w, "a", sizes, (2, 0)))
            .unwrap();
        let x = Tensor::from_vec([1, 2, 1], vec![1.0, 2.0]).unwrap();
        assert_eq!(
            up.forward(&x).unwrap().data(),
            [1.0, 10.0, 102.0, 20.0, 200.0]
        );
    }
}
