//! Filters over pictures (b, c, h, w): padding, convolution, Gaussian blur.

use crate::cancel::Cancel;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// What lies outside a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Border {
    /// One value everywhere.
    Constant(f32),
    /// Mirrored without repeating the edge: c b | a b c. Needs a picture larger than the border.
    Reflect,
    /// The edge repeated: a a | a b c.
    Replicate,
}

/// Sizes of the strips added around a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Margins {
    pub left: usize,
    pub right: usize,
    pub top: usize,
    pub bottom: usize,
}

impl Margins {
    /// The same width on all four sides.
    pub fn all(size: usize) -> Self {
        Self {
            left: size,
            right: size,
            top: size,
            bottom: size,
        }
    }
}

/// Adds strips around the last two dimensions.
pub fn pad(x: &Tensor, margins: Margins, border: Border) -> Result<Tensor> {
    let [.., h, w] = *x.shape() else {
        return Err(TensorError::rank("pad", "2 or more", x.shape()));
    };
    let Margins {
        left,
        right,
        top,
        bottom,
    } = margins;
    let fits = match border {
        Border::Constant(_) => true,
        Border::Reflect => left.max(right) < w && top.max(bottom) < h,
        Border::Replicate => w > 0 && h > 0,
    };
    if !fits {
        return Err(TensorError::invalid(
            "pad",
            format!("a border of {margins:?} does not fit a picture of {w}x{h}"),
        ));
    }
    let grown = |before: usize, size: usize, after: usize| {
        before.saturating_add(size).saturating_add(after)
    };
    let rank = x.rank();
    let mut shape = x.shape().to_vec();
    shape[rank - 2] = grown(top, h, bottom);
    shape[rank - 1] = grown(left, w, right);
    if let Border::Constant(value) = border {
        let mut out = Tensor::full(shape, value)?;
        let mut start = vec![0; rank];
        start[rank - 2..].copy_from_slice(&[top, left]);
        out.paste(&start, x)?;
        return Ok(out);
    }
    crate::elements::element_count(&shape)?;
    let indices = |before: usize, size: usize, after: usize| -> Vec<usize> {
        let last = size as isize - 1;
        (-(before as isize)..(size + after) as isize)
            .map(|i| match border {
                Border::Reflect if i > last => 2 * last - i,
                Border::Reflect => i.abs(),
                _ => i.clamp(0, last),
            })
            .map(|i| i as usize)
            .collect()
    };
    x.index_select(rank - 2, &indices(top, h, bottom))?
        .index_select(rank - 1, &indices(left, w, right))
}

/// How a convolution walks over its input. Padding is with zeros; [`pad`] first for other borders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvOptions {
    /// Down, across.
    pub stride: [usize; 2],
    /// Rows above and below, columns left and right.
    pub padding: [usize; 2],
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        Self {
            stride: [1, 1],
            padding: [0, 0],
            groups: 1,
        }
    }
}

/// 2-D convolution (cross-correlation) of (b, c, h, w) with (o, c / groups, kh, kw) and an optional bias (o).
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions,
) -> Result<Tensor> {
    let ConvOptions {
        stride: [sy, sx],
        padding: [py, px],
        groups,
    } = options;
    let margins = Margins {
        left: px,
        right: px,
        top: py,
        bottom: py,
    };
    let padded = if (py, px) == (0, 0) {
        x.clone()
    } else {
        pad(x, margins, Border::Constant(0.0))?
    };
    let [b, c, h, w] = padded.dims4()?;
    let [o, per_group, kh, kw] = weight.dims4()?;
    let fits = groups > 0
        && c == per_group * groups
        && o % groups == 0
        && bias.is_none_or(|bias| bias.shape() == [o]);
    if !fits {
        return Err(TensorError::mismatch("conv2d", x.shape(), weight.shape()));
    }
    if sy == 0 || sx == 0 || kh == 0 || kw == 0 || kh > h || kw > w {
        return Err(TensorError::invalid(
            "conv2d",
            format!("a {kw}x{kh} kernel with stride {sx}x{sy} does not fit {w}x{h}"),
        ));
    }
    let (oh, ow) = ((h - kh) / sy + 1, (w - kw) / sx + 1);
    let shape = vec![b, o, oh, ow];
    let mut out = allocate(&shape, 0.0)?;
    let cancel = Cancel::current();
    for (n, plane) in out.chunks_exact_mut(oh * ow).enumerate() {
        let (item, channel) = (n / o, n % o);
        plane.fill(bias.map_or(0.0, |bias| bias.data()[channel]));
        let first = channel / (o / groups) * per_group;
        for k in 0..per_group {
            let source = &padded.data()[(item * c + first + k) * h * w..][..h * w];
            let taps = &weight.data()[(channel * per_group + k) * kh * kw..][..kh * kw];
            for (y, row) in plane.chunks_exact_mut(ow).enumerate() {
                cancel.check()?;
                for (ky, taps) in taps.chunks_exact(kw).enumerate() {
                    let from = &source[(y * sy + ky) * w..][..w];
                    for (kx, &tap) in taps.iter().enumerate() {
                        add_scaled(row, &from[kx..], tap, sx);
                    }
                }
            }
        }
    }
    Ok(Tensor::raw(shape, out))
}

/// `row[i] += from[i * step] * factor`.
fn add_scaled(row: &mut [f32], from: &[f32], factor: f32, step: usize) {
    if step == 1 {
        for (v, &x) in row.iter_mut().zip(from) {
            *v += x * factor;
        }
    } else {
        for (v, &x) in row.iter_mut().zip(from.iter().step_by(step)) {
            *v += x * factor;
        }
    }
}

/// One kernel (kh, kw) over every channel of (b, c, h, w), without padding.
pub fn depthwise(x: &Tensor, kernel: &Tensor) -> Result<Tensor> {
    let [b, c, h, w] = x.dims4()?;
    let [kh, kw] = *kernel.shape() else {
        return Err(TensorError::rank("depthwise", "2", kernel.shape()));
    };
    let flat = x.reshape([b * c, 1, h, w])?;
    let out = conv2d(
        &flat,
        &kernel.reshape([1, 1, kh, kw])?,
        None,
        ConvOptions::default(),
    )?;
    let [_, _, oh, ow] = out.dims4()?;
    out.reshape([b, c, oh, ow])
}

/// The profile of the reference's Gaussian kernel: `size` points from -1 to 1, so that sigma is in units of the radius.
/// The sum is 1.
pub fn gaussian_profile(size: usize, sigma: f32) -> Vec<f32> {
    let last = size.saturating_sub(1);
    let sigma = f64::from(sigma);
    let raw: Vec<f64> = (0..size)
        .map(|i| {
            // A single point lies at -1, where an even spacing starts.
            let x = if last == 0 {
                -1.0
            } else {
                -1.0 + 2.0 * i as f64 / last as f64
            };
            (-x * x / (2.0 * sigma * sigma)).exp()
        })
        .collect();
    let sum: f64 = raw.iter().sum();
    raw.iter().map(|v| (v / sum) as f32).collect()
}

/// The Gaussian kernel (size, size), with sum 1.
pub fn gaussian_kernel(size: usize, sigma: f32) -> Result<Tensor> {
    let profile = gaussian_profile(size, sigma);
    Tensor::from_fn([size, size], |i| profile[i / size] * profile[i % size])
}

/// Gaussian blur of (b, c, h, w) with mirrored borders. Two passes: the kernel is a product of profiles.
pub fn gaussian_blur(x: &Tensor, radius: usize, sigma: f32) -> Result<Tensor> {
    let size = radius.saturating_mul(2).saturating_add(1);
    let padded = pad(x, Margins::all(radius), Border::Reflect)?;
    let profile = Tensor::from_slice(&gaussian_profile(size, sigma));
    let across = depthwise(&padded, &profile.reshape([1, size])?)?;
    depthwise(&across, &profile.reshape([size, 1])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axes;

    fn ramp(shape: &[usize]) -> Tensor {
        Tensor::from_fn(shape, |i| i as f32).unwrap()
    }

    #[test]
    fn borders() {
        let margins = Margins {
            left: 2,
            right: 1,
            top: 0,
            bottom: 0,
        };
        let row = ramp(&[1, 3]);
        let padded = |border| pad(&row, margins, border).unwrap().into_vec();
        assert_eq!(padded(Border::Constant(9.0)), [9., 9., 0., 1., 2., 9.]);
        assert_eq!(padded(Border::Reflect), [2., 1., 0., 1., 2., 1.]);
        assert_eq!(padded(Border::Replicate), [0., 0., 0., 1., 2., 2.]);
        assert!(pad(&row, Margins::all(1), Border::Reflect).is_err());
        assert!(pad(&row, Margins::all(usize::MAX), Border::Constant(0.0)).is_err());
        assert!(pad(&row, Margins::all(usize::MAX / 4), Border::Replicate).is_err());
        assert!(
            pad(
                &Tensor::zeros([0, 3]).unwrap(),
                Margins::all(1),
                Border::Replicate
            )
            .is_err()
        );
    }

    /// The definition, in f64.
    fn slow(x: &Tensor, weight: &Tensor, bias: &Tensor, options: ConvOptions) -> Vec<f32> {
        let [b, _, h, w] = x.dims4().unwrap();
        let [o, per_group, kh, kw] = weight.dims4().unwrap();
        let ([sy, sx], [py, px]) = (options.stride, options.padding);
        let (oh, ow) = ((h + 2 * py - kh) / sy + 1, (w + 2 * px - kw) / sx + 1);
        let mut out = Vec::new();
        for n in 0..b * o * oh * ow {
            let (item, channel, y, c) = (n / ow / oh / o, n / ow / oh % o, n / ow % oh, n % ow);
            let first = channel / (o / options.groups) * per_group;
            let mut sum = f64::from(bias.data()[channel]);
            for k in 0..per_group * kh * kw {
                let (input, ky, kx) = (k / kw / kh, k / kw % kh, k % kw);
                let (iy, ix) = (
                    (y * sy + ky).wrapping_sub(py),
                    (c * sx + kx).wrapping_sub(px),
                );
                let value = x.at(&[item, first + input, iy, ix]).unwrap_or(0.0);
                sum += f64::from(value) * f64::from(weight.at(&[channel, input, ky, kx]).unwrap());
            }
            out.push(sum as f32);
        }
        out
    }

    #[test]
    fn convolution_matches_its_definition() {
        for (groups, stride, padding) in [
            (1, [1, 1], [1, 1]),
            (2, [2, 1], [0, 2]),
            (4, [3, 2], [1, 0]),
        ] {
            let options = ConvOptions {
                stride,
                padding,
                groups,
            };
            let x = crate::synthetic::value("x", &[2, 4, 7, 6], 1.0).unwrap();
            let weight = crate::synthetic::value("w", &[8, 4 / groups, 3, 2], 1.0).unwrap();
            let bias = crate::synthetic::value("b", &[8], 1.0).unwrap();
            let out = conv2d(&x, &weight, Some(&bias), options).unwrap();
            let expect = slow(&x, &weight, &bias, options);
            assert_eq!(out.len(), expect.len());
            for (a, b) in out.data().iter().zip(&expect) {
                assert!((a - b).abs() < 1e-5, "{options:?}: {a} {b}");
            }
        }
        let x = ramp(&[1, 2, 3, 3]);
        let run = |shape: &[usize], options| conv2d(&x, &ramp(shape), None, options);
        assert!(run(&[1, 3, 1, 1], ConvOptions::default()).is_err());
        assert!(run(&[1, 2, 4, 1], ConvOptions::default()).is_err());
        let still = ConvOptions {
            stride: [0, 1],
            ..ConvOptions::default()
        };
        assert!(run(&[1, 2, 1, 1], still).is_err());
        let none = ConvOptions {
            groups: 0,
            ..ConvOptions::default()
        };
        assert!(run(&[1, 2, 1, 1], none).is_err());
    }

    #[test]
    fn gaussians() {
        let kernel = gaussian_kernel(3, 1.0).unwrap();
        assert!((kernel.sum(&[], Axes::Drop).unwrap().item().unwrap() - 1.0).abs() < 1e-6);
        let ratio = kernel.data()[4] / kernel.data()[0];
        assert!((ratio - std::f32::consts::E).abs() < 1e-5, "{ratio}");
        assert_eq!(gaussian_profile(1, 0.5), [1.0]);
        let x = crate::synthetic::value("x", &[1, 2, 9, 8], 1.0).unwrap();
        let two_pass = gaussian_blur(&x, 2, 0.7).unwrap();
        let padded = pad(&x, Margins::all(2), Border::Reflect).unwrap();
        let direct = depthwise(&padded, &gaussian_kernel(5, 0.7).unwrap()).unwrap();
        assert_eq!(two_pass.shape(), x.shape());
        for (a, b) in two_pass.data().iter().zip(direct.data()) {
            assert!((a - b).abs() < 1e-6);
        }
        assert!(gaussian_blur(&x, 8, 1.0).is_err());
        assert!(gaussian_blur(&x, usize::MAX, 1.0).is_err());
    }
}
