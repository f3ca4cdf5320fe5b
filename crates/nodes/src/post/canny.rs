//! Canny's edge detector (1986), with the constants of the library the reference uses.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Buffer, Tensor};

use crate::types::Image;

/// Draws the edges of a picture in white on black.
#[derive(Node)]
#[node(
    id = "Canny",
    v3,
    module = "comfy_extras.nodes_canny",
    category = "image/preprocessors",
    outputs("IMAGE")
)]
pub(crate) struct Canny {
    image: Image,
    /// Weaker edges than this are dropped; those in between stay if they touch a strong one.
    #[input(default = 0.4, min = 0.01, max = 0.99, step = 0.01)]
    low_threshold: f64,
    /// Edges above this are strong.
    #[input(default = 0.8, min = 0.01, max = 0.99, step = 0.01)]
    high_threshold: f64,
}

impl Node for Canny {
    fn run(self, cx: &Cx) -> NodeResult {
        let (low, high) = (self.low_threshold, self.high_threshold);
        if low > high {
            return Err(NodeError::value_error(format!(
                "low_threshold must not be above high_threshold, got {low} and {high}"
            )));
        }
        let [b, h, w, c] = self.image.0.dims4()?;
        if !matches!(c, 1 | 3) {
            return Err(NodeError::value_error(format!(
                "needs a picture of one or three channels, got {c}"
            )));
        }
        if h <= RADIUS || w <= RADIUS {
            return Err(NodeError::value_error(format!(
                "a picture of {w}x{h} is too small to look for edges"
            )));
        }
        let mut out = Buffer::with_room(b * h * w * 3)?;
        let cancel = Cancel::current();
        for picture in self.image.0.data().chunks_exact(h * w * c) {
            cx.check_interrupt()?;
            let mut grey = Buffer::with_room(h * w)?;
            for row in picture.chunks_exact(w * c) {
                cancel.stop();
                grey.extend(row.chunks_exact(c).map(|p| match *p {
                    [r, g, b] => fused(b, 0.114, fused(g, 0.587, r * 0.299)),
                    _ => p[0],
                }));
            }
            let plane = Plane { w, h, data: grey };
            for row in edges(&plane, low as f32, high as f32)?.chunks(w) {
                cancel.stop();
                out.extend(row.iter().flat_map(|edge| [f32::from(u8::from(*edge)); 3]));
            }
        }
        Ok(NodeOutput::one(Image(Tensor::from_buffer(
            [b, h, w, 3],
            out,
        )?)))
    }
}

/// `a * b + c` rounded once, as the reference's kernels do: across a symmetric step two magnitudes are equal or not by
/// the last bit, and that decides which pixel is the edge. Through f64 because it vectorises on every machine.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

struct Plane {
    w: usize,
    h: usize,
    data: Buffer<f32>,
}

/// Keeps the square root away from zero.
const EPSILON: f32 = 1e-6;
/// Reach of the smoothing window.
const RADIUS: usize = 2;

impl Plane {
    /// Gaussian, five taps, sigma one, mirrored at the borders.
    fn smoothed(&self) -> Result<Self, NodeError> {
        let raw = [-2.0f32, -1.0, 0.0, 1.0, 2.0].map(|x| (-(x * x) / 2.0).exp());
        let sum: f32 = raw.iter().sum();
        let taps = raw.map(|v| v / sum);
        let mirror = |i: usize, k: usize, size: usize| -> usize {
            // i + k - RADIUS without going below zero.
            let at = i + k;
            if at < RADIUS {
                RADIUS - at
            } else if at - RADIUS < size {
                at - RADIUS
            } else {
                2 * size - 2 - (at - RADIUS)
            }
        };
        let (w, h) = (self.w, self.h);
        let cancel = Cancel::current();
        let pass = |from: &[f32], across: bool| -> Result<Buffer<f32>, NodeError> {
            let mut out = Buffer::with_room(w * h)?;
            for y in 0..h {
                cancel.stop();
                for x in 0..w {
                    let mut sum = 0.0f32;
                    for (k, tap) in taps.iter().enumerate() {
                        let v = if across {
                            from[y * w + mirror(x, k, w)]
                        } else {
                            from[mirror(y, k, h) * w + x]
                        };
                        sum = fused(v, *tap, sum);
                    }
                    out.push(sum);
                }
            }
            Ok(out)
        };
        let data = pass(&pass(&self.data, true)?, false)?;
        Ok(Self { w, h, data })
    }

    /// Sobel differences to the right and down, borders repeated.
    fn gradient(&self, x: usize, y: usize) -> (f32, f32) {
        let (left, right) = (x.saturating_sub(1), (x + 1).min(self.w - 1));
        let (up, down) = (y.saturating_sub(1), (y + 1).min(self.h - 1));
        let at = |x: usize, y: usize| self.data[y * self.w + x];
        let gx = -at(left, up) + at(right, up) - 2.0 * at(left, y) + 2.0 * at(right, y)
            - at(left, down)
            + at(right, down);
        let gy = -at(left, up) - 2.0 * at(x, up) - at(right, up)
            + at(left, down)
            + 2.0 * at(x, down)
            + at(right, down);
        (gx, gy)
    }
}

/// Steps in the eight directions, by multiples of 45 degrees downwards from the right.
const DIRECTIONS: [(isize, isize); 8] = [
    (1, 0),
    (1, 1),
    (0, 1),
    (-1, 1),
    (-1, 0),
    (-1, -1),
    (0, -1),
    (1, -1),
];

fn edges(picture: &Plane, low: f32, high: f32) -> Result<Buffer<bool>, NodeError> {
    let (w, h) = (picture.w, picture.h);
    let smooth = picture.smoothed()?;
    let mut strength = Buffer::with_room(w * h)?;
    let mut direction = Buffer::with_room(w * h)?;
    let cancel = Cancel::current();
    for y in 0..h {
        cancel.stop();
        for x in 0..w {
            let (gx, gy) = smooth.gradient(x, y);
            strength.push((gx * gx + gy * gy + EPSILON).sqrt());
            let eighth = gy.atan2(gx) * (4.0 / std::f64::consts::PI) as f32;
            let eighth = eighth.round_ties_even() as i32;
            direction.push(eighth.rem_euclid(8) as u8);
        }
    }
    let neighbour = |i: usize, direction: usize| -> Option<usize> {
        let (dx, dy) = DIRECTIONS[direction];
        let x = (i % w).checked_add_signed(dx).filter(|x| *x < w)?;
        let y = (i / w).checked_add_signed(dy).filter(|y| *y < h)?;
        Some(y * w + x)
    };
    // Only ridges remain: stronger than both neighbours across the edge. Of two equal ones beside or above each other
    // the left or upper one stays. Outside the picture everything is as flat as can be.
    let flat = EPSILON.sqrt();
    let ridge = |i: usize| {
        let beats = |d: usize| {
            let other = neighbour(i, d).map_or(flat, |j| strength[j]);
            strength[i] > other || (strength[i] == other && matches!(d, 0 | 2))
        };
        strength[i] > flat && {
            let along = usize::from(direction[i]);
            beats(along) && beats((along + 4) % 8)
        }
    };
    let mut weak = Buffer::filled(w * h, false)?;
    let mut edge = Buffer::filled(w * h, false)?;
    // Each pixel is put there once at most.
    let mut open = Buffer::with_room(w * h)?;
    for i in 0..w * h {
        if i % w == 0 {
            cancel.stop();
        }
        if strength[i] > low && ridge(i) {
            weak[i] = true;
            if strength[i] > high {
                edge[i] = true;
                open.push(i);
            }
        }
    }
    // Weak ones that touch an edge become edges.
    while let Some(i) = open.pop() {
        for d in 0..8 {
            if let Some(j) = neighbour(i, d)
                && weak[j]
                && !edge[j]
            {
                edge[j] = true;
                open.push(j);
            }
        }
    }
    Ok(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weak_edge_survives_only_beside_a_strong_one() {
        // A step that fades from strong (top) to weak (bottom), and a weak one on its own.
        let (w, h) = (24, 12);
        let data = (0..w * h)
            .map(|i| {
                let (x, y) = (i % w, i / w);
                let fading = if x >= 8 { 0.5 - 0.02 * y as f32 } else { 0.0 };
                let lone = if x >= 16 { 0.25 } else { 0.0 };
                fading + lone
            })
            .collect::<Vec<_>>();
        let data = Buffer::copied(&data).unwrap();
        let found = edges(&Plane { w, h, data }, 0.2, 0.9).unwrap();
        let column = |x: usize| (0..h).filter(|y| found[y * w + x]).count();
        assert!(
            column(7) + column(8) >= h,
            "the fading step is an edge all the way"
        );
        assert_eq!(column(15) + column(16), 0, "the lone weak step is not");
    }
}
