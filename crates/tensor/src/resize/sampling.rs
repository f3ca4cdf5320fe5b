//! Nearest, bilinear, bicubic and area sampling with half-pixel centres, two passes: rows first, then columns.

use super::ResizeMethod;
use crate::cancel::Cancel;
use crate::device::Device;
use crate::elements::{allocate, element_count};
use crate::error::{Result, TensorError};
use crate::gpu::AxisTaps;
use crate::tensor::Tensor;

/// Refuses empty pictures and results before any loop divides by their sizes.
pub(super) fn check_sizes(x: &Tensor, width: usize, height: usize) -> Result<()> {
    let [b, c, h, w] = x.dims4()?;
    if h == 0 || w == 0 || width == 0 || height == 0 {
        return Err(TensorError::invalid(
            "resize",
            format!("cannot resize {w}x{h} to {width}x{height}"),
        ));
    }
    element_count(&[b, c, height, width])?;
    element_count(&[b, c, h.max(height), w.max(width)])?;
    Ok(())
}

/// Resizes (b, c, h, w) by sampling, without smoothing. `Lanczos` and `Bislerp` are not sampling methods.
pub fn interpolate(
    x: &Tensor,
    width: usize,
    height: usize,
    method: ResizeMethod,
) -> Result<Tensor> {
    let [b, c, h, w] = x.dims4()?;
    check_sizes(x, width, height)?;
    let axes = |taps: fn(usize, usize) -> Taps| (taps(w, width), taps(h, height));
    let (across, down) = match method {
        ResizeMethod::NearestExact => axes(|n, m| {
            Taps::nearest(n, m, |i, scale| {
                ((i as f64 + 0.5) * f64::from(scale)) as f32
            })
        }),
        ResizeMethod::Nearest => axes(|n, m| Taps::nearest(n, m, |i, scale| i as f32 * scale)),
        ResizeMethod::Bilinear => axes(Taps::linear),
        ResizeMethod::Bicubic => axes(Taps::cubic),
        ResizeMethod::Area => return adaptive_avg_pool(x, width, height),
        ResizeMethod::Lanczos | ResizeMethod::Bislerp => {
            return Err(TensorError::invalid(
                "interpolate",
                format!("{method:?} is not a sampling method"),
            ));
        }
    };
    let shape = vec![b, c, height, width];
    let (room, values) = match x.device() {
        Device::Gpu(_) => {
            let (across, down) = (across.on_gpu(), down.on_gpu());
            let elements = x.on_gpu()?;
            let gpu = elements.device();
            let found = gpu.resample(elements, [b * c, h, w], across, down)?;
            return Ok(Tensor::from_gpu(shape, found));
        }
        Device::Cpu | Device::Sim(_) => (x.room_for(&shape)?, x.values()),
    };
    let mut out = allocate(&shape, 0.0)?;
    let mut rows = allocate(&[h, width], 0.0)?;
    let cancel = Cancel::current();
    for (source, target) in values
        .chunks_exact(h * w)
        .zip(out.chunks_exact_mut(height * width))
    {
        for (from, to) in source.chunks_exact(w).zip(rows.chunks_exact_mut(width)) {
            cancel.check()?;
            across.gather(from, to);
        }
        for (y, to) in target.chunks_exact_mut(width).enumerate() {
            cancel.check()?;
            down.blend(y, &rows, to);
        }
    }
    Ok(Tensor::kept(shape, room, out))
}

/// For every new position along one axis: which old positions count, and how much.
struct Taps {
    per_output: usize,
    index: Vec<usize>,
    weight: Vec<f32>,
}

impl Taps {
    /// `position` maps a new index to an old coordinate, which is cut to an index.
    fn nearest(old: usize, new: usize, position: impl Fn(usize, f32) -> f32) -> Self {
        let scale = old as f32 / new as f32;
        Self {
            per_output: 1,
            index: (0..new)
                .map(|i| (position(i, scale) as usize).min(old - 1))
                .collect(),
            weight: vec![1.0; new],
        }
    }

    fn linear(old: usize, new: usize) -> Self {
        let (mut index, mut weight) = (Vec::new(), Vec::new());
        for i in 0..new {
            let (first, second, part) = linear_position(i, old, new);
            index.extend([first, second]);
            weight.extend([1.0 - part, part]);
        }
        Self {
            per_output: 2,
            index,
            weight,
        }
    }

    fn cubic(old: usize, new: usize) -> Self {
        const A: f32 = -0.75;
        // Fused, as the reference's builds are: the far polynomial cancels, so rounding shows there.
        let near = |x: f32| ((A + 2.0).mul_add(x, -(A + 3.0)) * x).mul_add(x, 1.0);
        let far = |x: f32| {
            let inner = A.mul_add(x, -5.0 * A).mul_add(x, 8.0 * A);
            inner.mul_add(x, -4.0 * A)
        };
        let scale = old as f32 / new as f32;
        let (mut index, mut weight) = (Vec::new(), Vec::new());
        for i in 0..new {
            let position = scale.mul_add(i as f32 + 0.5, -0.5);
            let floor = position.floor();
            let t = position - floor;
            let last = old as isize - 1;
            index.extend((-1..3).map(|k| (floor as isize + k).clamp(0, last) as usize));
            weight.extend([far(t + 1.0), near(t), near(1.0 - t), far(1.0 - t + 1.0)]);
        }
        Self {
            per_output: 4,
            index,
            weight,
        }
    }

    fn on_gpu(&self) -> AxisTaps<'_> {
        AxisTaps {
            per_output: self.per_output,
            index: &self.index,
            weight: &self.weight,
        }
    }

    /// One row, along the row.
    fn gather(&self, from: &[f32], to: &mut [f32]) {
        match self.per_output {
            1 => {
                for (v, &i) in to.iter_mut().zip(&self.index) {
                    *v = from[i];
                }
            }
            n => {
                let taps = self.index.chunks_exact(n).zip(self.weight.chunks_exact(n));
                for (v, (index, weight)) in to.iter_mut().zip(taps) {
                    let mut sum = from[index[0]] * weight[0];
                    for k in 1..n {
                        sum += from[index[k]] * weight[k];
                    }
                    *v = sum;
                }
            }
        }
    }

    /// Row `y` of the result, from whole rows.
    fn blend(&self, y: usize, rows: &[f32], to: &mut [f32]) {
        let width = to.len();
        let row = |k: usize| &rows[self.index[y * self.per_output + k] * width..][..width];
        if self.per_output == 1 {
            to.copy_from_slice(row(0));
            return;
        }
        for k in 0..self.per_output {
            let weight = self.weight[y * self.per_output + k];
            for (v, &from) in to.iter_mut().zip(row(k)) {
                *v += from * weight;
            }
        }
    }
}

/// Neighbours and the share of the second one, for a bilinear sample; the edge is repeated.
pub(super) fn linear_position(i: usize, old: usize, new: usize) -> (usize, usize, f32) {
    let scale = old as f32 / new as f32;
    // Fused, as the reference's builds are: the last bit of the position shows in the picture.
    let position = scale.mul_add(i as f32 + 0.5, -0.5).max(0.0);
    let first = (position as usize).min(old - 1);
    let second = (first + 1).min(old - 1);
    (first, second, (position - first as f32).clamp(0.0, 1.0))
}

/// Means over windows that cover (b, c, h, w): window i of n is `floor(i * size / n)..ceil((i + 1) * size / n)`.
pub fn adaptive_avg_pool(x: &Tensor, width: usize, height: usize) -> Result<Tensor> {
    let [b, c, h, w] = x.dims4()?;
    check_sizes(x, width, height)?;
    let window = |i: usize, old: usize, new: usize| (i * old / new)..((i + 1) * old).div_ceil(new);
    let shape = vec![b, c, height, width];
    let (room, values) = match x.device() {
        Device::Gpu(_) => {
            let elements = x.on_gpu()?;
            let gpu = elements.device();
            let found = gpu.window_means(elements, [b * c, h, w], [height, width])?;
            return Ok(Tensor::from_gpu(shape, found));
        }
        Device::Cpu | Device::Sim(_) => (x.room_for(&shape)?, x.values()),
    };
    let mut out = allocate(&shape, 0.0)?;
    let mut sums = vec![0.0f32; w];
    let cancel = Cancel::current();
    for (source, target) in values
        .chunks_exact(h * w)
        .zip(out.chunks_exact_mut(height * width))
    {
        for (i, row) in target.chunks_exact_mut(width).enumerate() {
            cancel.check()?;
            let down = window(i, h, height);
            sums.fill(0.0);
            for y in down.clone() {
                for (sum, &v) in sums.iter_mut().zip(&source[y * w..][..w]) {
                    *sum += v;
                }
            }
            for (j, v) in row.iter_mut().enumerate() {
                let across = window(j, w, width);
                let count = down.len() * across.len();
                *v = sums[across].iter().sum::<f32>() / count as f32;
            }
        }
    }
    Ok(Tensor::kept(shape, room, out))
}
