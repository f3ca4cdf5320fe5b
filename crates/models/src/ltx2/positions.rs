//! Where tokens are: pictures in seconds and pixels, sound in seconds, words in a row.

use std::f64::consts::FRAC_PI_2;

use fresco_tensor::{Buffer, Device, Tensor};

use crate::error::{ModelError, Result};
use crate::transformer::{Pairs, Rope, TokenGrid};

/// Frames and pixels that a token of pictures stands for.
const FRAMES: f32 = 8.0;
const PIXELS: f32 = 32.0;
/// Slices of a spectrogram that a token of sound stands for, and how many of them are a second.
const SLICES: f32 = 4.0;
const SLICE_RATE: f32 = 16_000.0 / 160.0;
/// The row and column of a guide's cell that is no token: guides that are smaller than the video leave most cells of their
/// frames empty.
pub const NO_TOKEN: f32 = -1.0e6;
/// Frequencies rise from 1 to this.
const THETA: f64 = 10_000.0;

/// How far all heads are turned at places of tokens, each a share of its axis from 0 to 1. Pairs beyond what axes share stay,
/// in front. With `split`, pairs are half a head apart, and each head has angles of its own.
pub(super) fn turns(
    shares: &[f32],
    axes: usize,
    (dim, heads): (usize, usize),
    split: bool,
    device: &Device,
) -> Result<Rope> {
    let each = dim / (2 * axes.max(1));
    let frequency = |k: usize| {
        let exponent = k as f64 / (each.max(2) - 1) as f64;
        (THETA.powf(exponent) * FRAC_PI_2) as f32
    };
    let frequencies: Vec<f32> = (0..each).map(frequency).collect();
    let half = dim / 2;
    let still = half - axes * each;
    let count = shares.len() / axes.max(1);
    let mut cos = Buffer::with_room(count * half)?;
    let mut sin = Buffer::with_room(count * half)?;
    for place in shares.chunks_exact(axes.max(1)) {
        cos.extend(std::iter::repeat_n(1.0, still));
        sin.extend(std::iter::repeat_n(0.0, still));
        for frequency in &frequencies {
            for share in place {
                let angle = f64::from((share * 2.0 - 1.0) * frequency);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
    }
    let (shape, pairs) = if split {
        let rows = [count * heads, half / heads.max(1)];
        (rows, Pairs::HalvesByHead)
    } else {
        ([count, half], Pairs::NeighboursByHead)
    };
    let table = |values| Tensor::from_buffer(shape, values);
    let rope = Rope::from_tables(table(cos)?, table(sin)?);
    rope.pairing(pairs).to(device)
}

/// The middle of what stands for frame, slice or pixel number `at`, of which each has `size`. The first frame stands for one
/// picture only.
fn middle(at: f32, size: f32) -> f32 {
    let edge = |at: f32| (at * size + 1.0 - size).max(0.0);
    f32::midpoint(edge(at), edge(at + 1.0))
}

/// Places of pictures: seconds, rows and columns, as shares of how far they reach. `keys` are places of the last tokens, in
/// frames and pixels, (b, 3, count).
pub(super) fn of_pictures(
    [frames, rows, columns]: TokenGrid,
    rate: f32,
    reach: [f32; 3],
    keys: Option<&Tensor>,
) -> Result<Vec<f32>> {
    let mut places = Vec::with_capacity(frames * rows * columns * 3);
    for frame in 0..frames {
        let at = middle(frame as f32, FRAMES);
        for row in 0..rows {
            for column in 0..columns {
                let inside = |at: usize| (at as f32 + 0.5) * PIXELS;
                places.extend([at, inside(row), inside(column)]);
            }
        }
    }
    if let Some(keys) = keys {
        let [_, axes, count] = keys.dims3()?;
        let first = places.len().checked_sub(3 * count);
        let Some(first) = first.filter(|_| axes == 3) else {
            let reason = format!("{:?} are no places of the last tokens", keys.shape());
            return Err(ModelError::invalid("keyframe_idxs", reason));
        };
        let keys = &keys.data()[..3 * count];
        for (at, place) in places[first..].chunks_exact_mut(3).enumerate() {
            for (axis, (value, size)) in place.iter_mut().zip([1.0, PIXELS, PIXELS]).enumerate() {
                // They are given as where a token begins.
                *value = keys[axis * count + at] + size / 2.0;
            }
        }
    }
    for place in places.chunks_exact_mut(3) {
        place[0] /= rate;
        for (value, reach) in place.iter_mut().zip(reach) {
            *value /= reach;
        }
    }
    Ok(places)
}

/// Which of so many tokens are there, where some of those that guides would have are not.
pub(super) fn kept_tokens(count: usize, keys: Option<&Tensor>) -> Result<Option<Vec<usize>>> {
    let Some(keys) = keys else { return Ok(None) };
    let [_, axes, guides] = keys.dims3()?;
    let rows = keys.data().get(guides..2 * guides);
    let (Some(rows), Some(first), 3) = (rows, count.checked_sub(guides), axes) else {
        return Ok(None);
    };
    if !rows.contains(&NO_TOKEN) {
        return Ok(None);
    }
    let there = rows.iter().enumerate().filter(|(_, row)| **row != NO_TOKEN);
    Ok(Some(
        (0..first).chain(there.map(|(at, _)| first + at)).collect(),
    ))
}

/// Places of sound, in seconds as shares of how far they reach. The first `before` tokens are a sound that was over when this
/// one begins.
pub(super) fn of_sound(before: usize, count: usize, reach: f32) -> Vec<f32> {
    let seconds = |at: f32| (at * SLICES + 1.0 - SLICES).max(0.0) / SLICE_RATE;
    let place = |at: usize| f32::midpoint(seconds(at as f32), seconds(at as f32 + 1.0));
    let over = seconds(before as f32) + SLICES / SLICE_RATE;
    let earlier = (0..before).map(|at| place(at) - over);
    let all = earlier.chain((0..count).map(place));
    all.map(|at| at / reach).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_is_one_picture() {
        assert_eq!(middle(0.0, FRAMES), 0.5);
        assert_eq!(middle(1.0, FRAMES), 5.0);
        let places = of_pictures([2, 1, 1], 25.0, [20.0, 2048.0, 2048.0], None).unwrap();
        assert_eq!(places[3], 5.0 / 25.0 / 20.0);
        assert_eq!(places[1], 16.0 / 2048.0);
        let sound = of_sound(0, 2, 20.0);
        assert!((sound[0] - 0.005 / 20.0).abs() < 1e-9 && (sound[1] - 0.03 / 20.0).abs() < 1e-8);
    }

    #[test]
    fn an_earlier_sound_is_over_before_this_one_begins() {
        let both = of_sound(3, 2, 1.0);
        // Three tokens end after 0.09 seconds; the last of them, one token's 0.04 before nothing.
        let wanted = [0.005 - 0.13, 0.03 - 0.13, 0.07 - 0.13, 0.005, 0.03];
        for (place, wanted) in both.iter().zip(wanted) {
            assert!((place - wanted).abs() < 1e-6, "{both:?}");
        }
    }

    #[test]
    fn empty_cells_of_guides_are_no_tokens() {
        let mut keys = Tensor::zeros([1, 3, 4]).unwrap();
        assert_eq!(kept_tokens(6, Some(&keys)).unwrap(), None);
        for at in [5, 7, 9, 11] {
            keys.data_mut()[at] = NO_TOKEN;
        }
        let kept = kept_tokens(6, Some(&keys)).unwrap();
        assert_eq!(kept, Some(vec![0, 1, 2, 4]));
        assert_eq!(kept_tokens(2, Some(&keys)).unwrap(), None);
        assert_eq!(kept_tokens(6, None).unwrap(), None);
    }

    #[test]
    fn places_of_keyframes_must_fit() {
        let keys = Tensor::zeros([1, 3, 9]).unwrap();
        assert!(of_pictures([2, 2, 2], 25.0, [1.0; 3], Some(&keys)).is_err());
        let keys = Tensor::full([1, 3, 1], 16.0).unwrap();
        let places = of_pictures([2, 1, 1], 1.0, [1.0; 3], Some(&keys)).unwrap();
        assert_eq!(places[3..], [16.5, 32.0, 32.0]);
    }
}
