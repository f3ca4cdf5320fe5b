//! Resizing pictures and latents, (b, c, h, w), the way the reference's frameworks do it.

mod bislerp;
pub mod pillow;
mod sampling;

use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

pub use sampling::{adaptive_avg_pool, interpolate};

/// How new pixels are made from old ones. None of them smooths before shrinking, except `Area` and `Lanczos`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeMethod {
    NearestExact,
    /// The older nearest rule, without the half-pixel shift.
    Nearest,
    Bilinear,
    Bicubic,
    /// Mean over the window that a new pixel covers.
    Area,
    /// Pillow's 8-bit Lanczos; two to four channels.
    Lanczos,
    /// Channel vectors turned rather than mixed: keeps the length of latents.
    Bislerp,
}

impl ResizeMethod {
    /// The method a workflow names.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "nearest-exact" => Self::NearestExact,
            "nearest" => Self::Nearest,
            "bilinear" => Self::Bilinear,
            "bicubic" => Self::Bicubic,
            "area" => Self::Area,
            "lanczos" => Self::Lanczos,
            "bislerp" => Self::Bislerp,
            _ => return None,
        })
    }
}

/// What happens when the aspect ratio changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crop {
    /// Stretch.
    Disabled,
    /// Cut equal strips off both sides first.
    Center,
}

impl Crop {
    /// The choice a workflow names; everything but "center" stretches, as in the reference.
    pub fn parse(name: &str) -> Self {
        if name == "center" {
            Self::Center
        } else {
            Self::Disabled
        }
    }
}

/// Resizes (b, c, h, w), or every frame of (b, c, t.., h, w), to the given width and height.
pub fn common_upscale(
    x: &Tensor,
    width: usize,
    height: usize,
    method: ResizeMethod,
    crop: Crop,
) -> Result<Tensor> {
    if x.rank() > 4 {
        let (b, c) = (x.shape()[0], x.shape()[1]);
        let (h, w) = (x.shape()[x.rank() - 2], x.shape()[x.rank() - 1]);
        let frames: usize = x.shape()[2..x.rank() - 2].iter().product();
        let folded = x
            .reshape([b, c, frames, h * w])?
            .transpose(1, 2)?
            .reshape([b * frames, c, h, w])?;
        let out = common_upscale(&folded, width, height, method, crop)?;
        let mut shape = x.shape().to_vec();
        let rank = shape.len();
        shape[rank - 2..].copy_from_slice(&[height, width]);
        return out
            .reshape([b, frames, c, height * width])?
            .transpose(1, 2)?
            .reshape(shape);
    }
    let [_, _, h, w] = x
        .dims4()
        .map_err(|_| TensorError::rank("resize", "4 or more", x.shape()))?;
    sampling::check_sizes(x, width, height)?;
    let x = match crop {
        Crop::Disabled => x.clone(),
        Crop::Center => {
            let (left, top) = center_crop(w, h, width, height);
            x.narrow(2, top, h.saturating_sub(2 * top))?.narrow(
                3,
                left,
                w.saturating_sub(2 * left),
            )?
        }
    };
    match method {
        ResizeMethod::Lanczos => lanczos(&x, width, height),
        ResizeMethod::Bislerp => bislerp::bislerp(&x, width, height),
        _ => interpolate(&x, width, height, method),
    }
}

/// Strips to cut off left and right, top and bottom, so that the rest has the new aspect ratio.
fn center_crop(w: usize, h: usize, width: usize, height: usize) -> (usize, usize) {
    let old = w as f64 / h as f64;
    let new = width as f64 / height as f64;
    let strip = |size: usize, part: f64| {
        let size = size as f64;
        ((size - size * part) / 2.0).round_ties_even() as usize
    };
    if old > new {
        (strip(w, new / old), 0)
    } else if old < new {
        (0, strip(h, old / new))
    } else {
        (0, 0)
    }
}

/// Through 8-bit pictures, each item of the batch by itself.
fn lanczos(x: &Tensor, width: usize, height: usize) -> Result<Tensor> {
    let [b, c, h, w] = x.dims4()?;
    if !(2..=4).contains(&c) {
        return Err(TensorError::invalid(
            "lanczos",
            format!("needs pictures of 2, 3 or 4 channels, got {c}"),
        ));
    }
    sampling::check_sizes(x, width, height)?;
    let shape = vec![b, c, height, width];
    let mut out = allocate(&shape, 0.0)?;
    let (area, new_area) = (h * w, height * width);
    let cancel = Cancel::current();
    for (source, target) in x
        .data()
        .chunks_exact(c * area)
        .zip(out.chunks_exact_mut(c * new_area))
    {
        cancel.check()?;
        let mut pixels = Buffer::filled(c * area, 0u8)?;
        for (channel, plane) in source.chunks_exact(area).enumerate() {
            for (i, &v) in plane.iter().enumerate() {
                pixels[i * c + channel] = to_u8(v);
            }
        }
        let picture = pillow::Picture {
            pixels: &pixels,
            width: w,
            height: h,
            channels: c,
        };
        let resized = pillow::resize(picture, width, height, pillow::Filter::Lanczos)?;
        for (channel, plane) in target.chunks_exact_mut(new_area).enumerate() {
            for (i, v) in plane.iter_mut().enumerate() {
                *v = f32::from(resized[i * c + channel]) / 255.0;
            }
        }
    }
    Ok(Tensor::raw(shape, out))
}

/// A value in 0..1 as 8 bits: times 255, limited, cut off (not rounded), as the reference saves pictures.
#[inline]
pub fn to_u8(value: f32) -> u8 {
    /// Numbers of this size have no digits after the point.
    const WHOLE: f32 = 8_388_608.0;
    // A cast asks every value whether it fits, one after the other. Comparisons and sums are made of many at once, three times as
    // fast: the sum is rounded, its last bits are the number, and where it was rounded up that is one too many.
    let scaled = value * 255.0;
    let at_least = if scaled > 0.0 { scaled } else { 0.0 };
    let limited = if at_least < 255.0 { at_least } else { 255.0 };
    let rounded = limited + WHOLE;
    (rounded.to_bits() as u8).wrapping_sub(u8::from(rounded - WHOLE > limited))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_cut_off_and_limited() {
        let some = (0..u32::MAX).step_by(997).map(f32::from_bits);
        let edges = (0..=256 * 16).map(|i| i as f32 / 255.0 / 16.0);
        let around = edges.flat_map(|v| [v.next_down(), v, v.next_up(), -v]);
        for value in some.chain(around).chain([f32::NAN, f32::INFINITY]) {
            let wanted = (value * 255.0).clamp(0.0, 255.0) as u8;
            assert_eq!(to_u8(value), wanted, "{value}");
        }
    }

    fn ramp() -> Tensor {
        Tensor::from_fn([1, 1, 4, 4], |i| i as f32).unwrap()
    }

    #[track_caller]
    fn check(method: ResizeMethod, expect: &[f32]) {
        let out = common_upscale(&ramp(), 6, 3, method, Crop::Disabled).unwrap();
        assert_eq!(out.shape(), [1, 1, 3, 6]);
        for (i, (a, b)) in out.data().iter().zip(expect).enumerate() {
            assert!((a - b).abs() < 2e-6 * b.abs().max(1.0), "{i}: {a} {b}");
        }
    }

    #[test]
    fn ramp_goldens() {
        check(
            ResizeMethod::NearestExact,
            &[
                0., 1., 1., 2., 3., 3., 8., 9., 9., 10., 11., 11., 12., 13., 13., 14., 15., 15.,
            ],
        );
        check(
            ResizeMethod::Bilinear,
            &[
                0.666667, 1.166667, 1.833333, 2.5, 3.166667, 3.666667, 6.0, 6.5, 7.166667,
            ],
        );
        check(ResizeMethod::Area, &[2., 2.5, 3., 4., 4.5, 5., 6.]);
        check(
            ResizeMethod::Bicubic,
            &[
                0.417824, 0.910879, 1.717592, 2.291667, 3.09838, 3.591436, 5.913196,
            ],
        );
        let area = common_upscale(&ramp(), 6, 3, ResizeMethod::Area, Crop::Disabled).unwrap();
        assert_eq!(area.data()[17], 13.0);
    }

    #[test]
    fn lanczos_golden() {
        let x = Tensor::from_fn([1, 3, 4, 4], |i| i as f32 / 48.0).unwrap();
        let out = common_upscale(&x, 6, 3, ResizeMethod::Lanczos, Crop::Disabled).unwrap();
        let expect = [3u8, 5, 9, 12, 17, 19, 32].map(|v| f32::from(v) / 255.0);
        assert_eq!(out.data()[..7], expect);
        let mask = common_upscale(&ramp(), 6, 3, ResizeMethod::Lanczos, Crop::Disabled);
        assert!(mask.is_err());
    }

    #[test]
    fn cropping_keeps_the_middle() {
        let x = Tensor::from_fn([1, 1, 2, 5], |i| i as f32).unwrap();
        let out = common_upscale(&x, 2, 2, ResizeMethod::NearestExact, Crop::Center).unwrap();
        // (5 - 2) / 2 = 1.5 rounds to the even 2: one column is left and doubled.
        assert_eq!(out.data(), [2., 2., 7., 7.]);
        assert_eq!(center_crop(4, 10, 4, 4), (0, 3));
    }

    #[test]
    fn frames_are_resized_one_by_one() {
        let x = Tensor::from_fn([2, 3, 2, 4, 4], |i| (i as f32).sin()).unwrap();
        let out = common_upscale(&x, 3, 5, ResizeMethod::Bilinear, Crop::Disabled).unwrap();
        assert_eq!(out.shape(), [2, 3, 2, 5, 3]);
        let frame = x.select(2, 1).unwrap();
        let one = common_upscale(&frame, 3, 5, ResizeMethod::Bilinear, Crop::Disabled).unwrap();
        assert_eq!(out.select(2, 1).unwrap(), one);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for method in [
            ResizeMethod::NearestExact,
            ResizeMethod::Area,
            ResizeMethod::Bislerp,
            ResizeMethod::Bicubic,
        ] {
            let up = |w, h, crop| common_upscale(&ramp(), w, h, method, crop);
            assert!(up(0, 3, Crop::Disabled).is_err());
            assert!(up(0, 3, Crop::Center).is_err());
            assert!(up(usize::MAX, usize::MAX, Crop::Disabled).is_err());
            assert!(common_upscale(&Tensor::scalar(1.0), 1, 1, method, Crop::Disabled).is_err());
        }
        let thin = Tensor::zeros([1, 3, 1, 1000]).unwrap();
        // A crop that leaves nothing is refused by the resize, not a panic.
        let _ = common_upscale(&thin, 1, 1000, ResizeMethod::Lanczos, Crop::Center);
    }
}
