//! Colours of one picture for another.
//!
//! Reinhard et al. 2001 (mean and spread of each channel), Pitié and Kokaram 2007 (the linear map of Monge and Kantorovich
//! between the covariances), both in CIE L*a*b*; or the histogram of each channel.

use std::sync::Arc;

use fresco_graph::{Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::Tensor;
use fresco_tensor::cancel::Cancel;

use crate::types::Image;

fn statistics() -> Input {
    let index = Input::new("target_index", "INT")
        .option("default", 0)
        .option("min", 0)
        .option("max", 10000)
        .tooltip("Number of that picture, from 0.");
    Input::dynamic_combo(
        "source_stats",
        vec![
            ("per_frame", Vec::new()),
            ("uniform", Vec::new()),
            ("target_frame", vec![index]),
        ],
    )
}

/// Gives pictures the colours of another.
#[derive(Node)]
#[node(
    id = "ColorTransfer",
    v3,
    module = "comfy_extras.nodes_color_transfer",
    display = "Transfer Color",
    category = "image/postprocessing",
    outputs(Output::new("IMAGE").named("image"))
)]
pub(crate) struct ColorTransfer {
    /// The pictures whose colours change.
    image_target: Image,
    /// The picture whose colours are taken.
    image_ref: Image,
    /// What of the colours is matched: mean and spread, also how channels go together, or their whole distribution.
    #[input(choices = ["reinhard_lab", "mkl_lab", "histogram"])]
    method: String,
    /// From which pictures the present colours are measured: each from itself, all together, or one.
    #[input(spec = statistics())]
    source_stats: Arc<Map>,
    #[input(default = 1.0, min = 0.0, max = 10.0)]
    strength: f64,
}

impl Node for ColorTransfer {
    fn run(self, cx: &Cx) -> NodeResult {
        let (target, reference) = (&self.image_target.0, &self.image_ref.0);
        let [count, h, w, channels] = target.dims4()?;
        let [ref_count, rh, rw, ref_channels] = reference.dims4()?;
        if self.strength == 0.0 {
            return Ok(NodeOutput::one(self.image_target));
        }
        if channels < 3 || ref_channels < 3 || count * h * w == 0 || ref_count * rh * rw == 0 {
            return Err(NodeError::value_error(
                "colours are taken from pictures with red, green and blue",
            ));
        }
        let word = |key: &str| self.source_stats.get(key).and_then(Value::as_str);
        let index = self.source_stats.get("target_index");
        let index = index.and_then(Value::as_int).unwrap_or(0);
        let source = match word("source_stats") {
            Some("per_frame") => Source::Each,
            Some("uniform") => Source::All,
            Some("target_frame") => {
                Source::Frame(usize::try_from(index).unwrap_or(0).min(count - 1))
            }
            _ => return Err(NodeError::value_error("unknown source_stats")),
        };
        let transfer = Transfer {
            method: Method::parse(&self.method)?,
            strength: self.strength as f32,
        };
        let mut out = target.clone();
        let frame = h * w * channels;
        let mut maps: Option<ColorMap> = None;
        for (i, pixels) in out.data_mut().chunks_exact_mut(frame).enumerate() {
            cx.check_interrupt()?;
            let map = if let (Some(map), Source::All | Source::Frame(_)) = (&maps, source) {
                map.clone()
            } else {
                let from = match source {
                    Source::Each => i..i + 1,
                    Source::All => 0..count,
                    Source::Frame(n) => n..n + 1,
                };
                // Histograms of frames are matched to frames where there is more than one.
                let one = transfer.method == Method::Histogram
                    && matches!(source, Source::Each)
                    && ref_count > 1;
                let to = if one {
                    let at = i.min(ref_count - 1);
                    at..at + 1
                } else {
                    0..ref_count
                };
                let part = |t: &Tensor, range: &std::ops::Range<usize>| {
                    t.narrow(0, range.start, range.len())
                };
                transfer.map(&part(target, &from)?, &part(reference, &to)?)?
            };
            let cancel = Cancel::current();
            for row in pixels.chunks_exact_mut(w * channels) {
                cancel.check()?;
                for pixel in row.chunks_exact_mut(channels) {
                    map.apply(&mut pixel[..3], transfer.strength);
                }
            }
            maps = Some(map);
        }
        Ok(NodeOutput::one(Image(out)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Each,
    All,
    Frame(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Reinhard,
    Kantorovich,
    Histogram,
}

impl Method {
    fn parse(name: &str) -> Result<Self, NodeError> {
        match name {
            "reinhard_lab" => Ok(Self::Reinhard),
            "mkl_lab" => Ok(Self::Kantorovich),
            "histogram" => Ok(Self::Histogram),
            _ => Err(NodeError::value_error(format!(
                "unknown way to transfer colours {name:?}"
            ))),
        }
    }
}

struct Transfer {
    method: Method,
    strength: f32,
}

/// What is done to each colour.
#[derive(Clone)]
enum ColorMap {
    /// In L*a*b*: `matrix * (colour - from) + to`.
    Linear {
        matrix: [[f64; 3]; 3],
        from: [f64; 3],
        to: [f64; 3],
    },
    /// A curve for each channel.
    Curves(Arc<[[f32; 256]; 3]>),
}

impl Transfer {
    fn map(&self, source: &Tensor, reference: &Tensor) -> Result<ColorMap, NodeError> {
        if self.method == Method::Histogram {
            let (from, to) = (Shares::of(source)?, Shares::of(reference)?);
            let curve = |c: usize| from.curve(&to, c);
            return Ok(ColorMap::Curves(Arc::new([curve(0), curve(1), curve(2)])));
        }
        let (from, to) = (Moments::of(source)?, Moments::of(reference)?);
        let matrix = if self.method == Method::Reinhard {
            let mut matrix = [[0.0; 3]; 3];
            for (c, row) in matrix.iter_mut().enumerate() {
                let (a, b) = (from.covariance[c][c].sqrt(), to.covariance[c][c].sqrt());
                row[c] = if a > 1e-6 { b / a } else { 1.0 };
            }
            matrix
        } else {
            kantorovich(&from.covariance, &to.covariance)
        };
        Ok(ColorMap::Linear {
            matrix,
            from: from.mean,
            to: to.mean,
        })
    }
}

impl ColorMap {
    fn apply(&self, pixel: &mut [f32], strength: f32) {
        let before = [pixel[0], pixel[1], pixel[2]];
        let after = match self {
            Self::Linear { matrix, from, to } => {
                let lab = to_lab(before);
                let mut moved = *to;
                for (row, value) in matrix.iter().zip(&mut moved) {
                    for c in 0..3 {
                        *value += row[c] * (lab[c] - from[c]);
                    }
                }
                from_lab(moved)
            }
            Self::Curves(curves) => std::array::from_fn(|c| {
                let at = before[c].clamp(0.0, 1.0) * 255.0;
                let low = at.floor() as usize;
                let (a, b) = (curves[c][low], curves[c][(low + 1).min(255)]);
                a + (b - a) * (at - low as f32)
            }),
        };
        for c in 0..3 {
            pixel[c] = (before[c] + (after[c] - before[c]) * strength).clamp(0.0, 1.0);
        }
    }
}

/// White of daylight, as sRGB has it.
const WHITE: [f64; 3] = [0.950_47, 1.0, 1.088_83];
const TO_XYZ: [[f64; 3]; 3] = [
    [0.412_456_4, 0.357_576_1, 0.180_437_5],
    [0.212_672_9, 0.715_152_2, 0.072_175_0],
    [0.019_333_9, 0.119_192_0, 0.950_304_1],
];
const FROM_XYZ: [[f64; 3]; 3] = [
    [3.240_454_2, -1.537_138_5, -0.498_531_4],
    [-0.969_266_0, 1.876_010_8, 0.041_556_0],
    [0.055_643_4, -0.204_025_9, 1.057_225_2],
];

fn times(matrix: &[[f64; 3]; 3], v: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| row[0] * v[0] + row[1] * v[1] + row[2] * v[2])
}

fn to_lab(rgb: [f32; 3]) -> [f64; 3] {
    let linear = rgb.map(|v| {
        let v = f64::from(v.clamp(0.0, 1.0));
        if v <= 0.04045 {
            v / 12.92
        } else {
            ((v + 0.055) / 1.055).powf(2.4)
        }
    });
    let xyz = times(&TO_XYZ, linear);
    let f: [f64; 3] = std::array::from_fn(|i| {
        let t = xyz[i] / WHITE[i];
        if t > 216.0 / 24389.0 {
            t.cbrt()
        } else {
            (24389.0 / 27.0 * t + 16.0) / 116.0
        }
    });
    [
        116.0 * f[1] - 16.0,
        500.0 * (f[0] - f[1]),
        200.0 * (f[1] - f[2]),
    ]
}

fn from_lab(lab: [f64; 3]) -> [f32; 3] {
    let y = (lab[0] + 16.0) / 116.0;
    let f = [y + lab[1] / 500.0, y, y - lab[2] / 200.0];
    let xyz: [f64; 3] = std::array::from_fn(|i| {
        let t = f[i];
        let cubed = t * t * t;
        WHITE[i]
            * if cubed > 216.0 / 24389.0 {
                cubed
            } else {
                (116.0 * t - 16.0) * 27.0 / 24389.0
            }
    });
    times(&FROM_XYZ, xyz).map(|v| {
        let v = v.clamp(0.0, 1.0);
        let v = if v <= 0.003_130_8 {
            v * 12.92
        } else {
            1.055 * v.powf(1.0 / 2.4) - 0.055
        };
        v as f32
    })
}

/// Mean and covariance of colours in L*a*b*.
struct Moments {
    mean: [f64; 3],
    covariance: [[f64; 3]; 3],
}

impl Moments {
    fn of(pictures: &Tensor) -> Result<Self, NodeError> {
        let [_, _, w, channels] = pictures.dims4()?;
        let cancel = Cancel::current();
        let mut sum = [0.0; 3];
        let mut products = [[0.0; 3]; 3];
        let mut count = 0.0;
        for row in pictures.data().chunks_exact(w * channels) {
            cancel.check()?;
            for pixel in row.chunks_exact(channels) {
                let lab = to_lab([pixel[0], pixel[1], pixel[2]]);
                count += 1.0;
                for i in 0..3 {
                    sum[i] += lab[i];
                    for j in 0..=i {
                        products[i][j] += lab[i] * lab[j];
                    }
                }
            }
        }
        let mean = sum.map(|s| s / count);
        let mut covariance = [[0.0; 3]; 3];
        for i in 0..3 {
            for j in 0..=i {
                let value = products[i][j] / count - mean[i] * mean[j];
                covariance[i][j] = if i == j { value.max(0.0) } else { value };
                covariance[j][i] = covariance[i][j];
            }
        }
        Ok(Self { mean, covariance })
    }
}

type Matrix = [[f64; 3]; 3];

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..3).map(|k| a[i][k] * b[k][j]).sum()))
}

/// A function of a symmetric matrix: of its eigenvalues, found by Jacobi's turns.
fn of_symmetric(matrix: &Matrix, f: impl Fn(f64) -> f64) -> Matrix {
    let mut a = *matrix;
    let mut v: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(i == j)));
    for _ in 0..50 {
        let off: f64 = [(0, 1), (0, 2), (1, 2)]
            .iter()
            .map(|(i, j)| a[*i][*j].abs())
            .sum();
        if off < 1e-15 {
            break;
        }
        for (p, q) in [(0, 1), (0, 2), (1, 2)] {
            if a[p][q].abs() < 1e-300 {
                continue;
            }
            let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
            let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
            let c = 1.0 / (t * t + 1.0).sqrt();
            let s = t * c;
            let mut turn: Matrix =
                std::array::from_fn(|i| std::array::from_fn(|j| f64::from(i == j)));
            (turn[p][p], turn[p][q], turn[q][p], turn[q][q]) = (c, s, -s, c);
            let back: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| turn[j][i]));
            a = product(&back, &product(&a, &turn));
            v = product(&v, &turn);
        }
    }
    let values = [f(a[0][0]), f(a[1][1]), f(a[2][2])];
    std::array::from_fn(|i| {
        std::array::from_fn(|j| (0..3).map(|k| v[i][k] * values[k] * v[j][k]).sum())
    })
}

/// The symmetric map that turns one covariance into the other with the least change.
fn kantorovich(from: &Matrix, to: &Matrix) -> Matrix {
    const LEAST: f64 = 1e-6;
    let root = of_symmetric(from, |x| x.max(LEAST).sqrt());
    let inverse = of_symmetric(from, |x| 1.0 / x.max(LEAST).sqrt());
    let middle = of_symmetric(&product(&root, &product(to, &root)), |x| x.max(0.0).sqrt());
    product(&inverse, &product(&middle, &inverse))
}

/// For each channel and each of 256 levels, the share of pixels that are not brighter.
struct Shares([[f64; 256]; 3]);

impl Shares {
    fn of(pictures: &Tensor) -> Result<Self, NodeError> {
        let [_, _, w, channels] = pictures.dims4()?;
        let cancel = Cancel::current();
        let mut counts = [[0.0; 256]; 3];
        let mut total = 0.0;
        for row in pictures.data().chunks_exact(w * channels) {
            cancel.check()?;
            for pixel in row.chunks_exact(channels) {
                total += 1.0;
                for (c, counts) in counts.iter_mut().enumerate() {
                    counts[(pixel[c].clamp(0.0, 1.0) * 255.0).round() as usize] += 1.0;
                }
            }
        }
        for counts in &mut counts {
            let mut sum = 0.0;
            for count in counts.iter_mut() {
                sum += *count;
                *count = sum / total;
            }
        }
        Ok(Self(counts))
    }

    /// For each level here the level there that as many pixels reach.
    fn curve(&self, to: &Self, channel: usize) -> [f32; 256] {
        let there = &to.0[channel];
        std::array::from_fn(|level| {
            let share = self.0[channel][level];
            let high = there.partition_point(|s| *s < share).min(255);
            if high == 0 {
                return 0.0;
            }
            let (below, above) = (there[high - 1], there[high]);
            let part = if above > below {
                ((share - below) / (above - below)).clamp(0.0, 1.0)
            } else {
                1.0
            };
            ((high as f64 - 1.0 + part) / 255.0) as f32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Resources, Slots, map};

    fn noise(seed: u64, scale: f32, offset: f32) -> Tensor {
        let mut state = seed;
        Tensor::from_fn([2, 24, 24, 3], |i| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let value = (state >> 40) as f32 / (1u64 << 24) as f32;
            offset + scale * value * (1.0 + (i % 3) as f32 / 4.0)
        })
        .unwrap()
    }

    fn transfer(method: &str, stats: &str, strength: f64) -> (Tensor, Tensor, Tensor) {
        let (target, reference) = (noise(1, 0.3, 0.1), noise(2, 0.2, 0.45));
        let node = ColorTransfer {
            image_target: Image(target.clone()),
            image_ref: Image(reference.clone()),
            method: method.into(),
            source_stats: Arc::new(map! {"source_stats" => stats}),
            strength,
        };
        let cx = Cx::detached(Arc::new(Resources::default()));
        let Slots::Values(out) = node.run(&cx).unwrap().slots else {
            panic!("no value");
        };
        let out = crate::types::as_tensor(&out[0]).unwrap().clone();
        (target, reference, out)
    }

    #[test]
    fn lab_goes_there_and_back() {
        for rgb in [[0.0, 0.5, 1.0], [1.0, 1.0, 1.0], [0.02, 0.03, 0.9]] {
            let back = from_lab(to_lab(rgb));
            for c in 0..3 {
                assert!((rgb[c] - back[c]).abs() < 1e-4, "{rgb:?} {back:?}");
            }
        }
        let white = to_lab([1.0; 3]);
        assert!(
            (white[0] - 100.0).abs() < 1e-3 && white[1].abs() < 0.01,
            "{white:?}"
        );
    }

    #[test]
    fn the_result_has_the_statistics_of_the_reference() {
        for method in ["reinhard_lab", "mkl_lab"] {
            let (_, reference, out) = transfer(method, "uniform", 1.0);
            let (a, b) = (Moments::of(&out).unwrap(), Moments::of(&reference).unwrap());
            for c in 0..3 {
                assert!((a.mean[c] - b.mean[c]).abs() < 0.5, "{method}");
                let (x, y) = (a.covariance[c][c].sqrt(), b.covariance[c][c].sqrt());
                assert!((x - y).abs() < 0.05 * y + 0.2, "{method} {x} {y}");
            }
            if method == "mkl_lab" {
                let off = (a.covariance[0][2] - b.covariance[0][2]).abs();
                assert!(off < 0.1 * b.covariance[0][0].max(b.covariance[2][2]));
            }
        }
        let (_, reference, out) = transfer("histogram", "uniform", 1.0);
        let (a, b) = (Shares::of(&out).unwrap(), Shares::of(&reference).unwrap());
        for level in 0..256 {
            assert!((a.0[1][level] - b.0[1][level]).abs() < 0.05, "{level}");
        }
    }

    #[test]
    fn without_strength_nothing_changes() {
        let (target, _, out) = transfer("mkl_lab", "per_frame", 0.0);
        assert_eq!(target.data(), out.data());
        let (target, _, out) = transfer("histogram", "target_frame", 0.5);
        assert_ne!(target.data(), out.data());
    }

    #[test]
    fn plain_pictures_do_not_divide_by_zero() {
        let plain = Tensor::full([1, 4, 4, 3], 0.5).unwrap();
        for method in ["reinhard_lab", "mkl_lab", "histogram"] {
            let node = ColorTransfer {
                image_target: Image(plain.clone()),
                image_ref: Image(noise(3, 0.5, 0.2)),
                method: method.into(),
                source_stats: Arc::new(map! {"source_stats" => "per_frame"}),
                strength: 1.0,
            };
            let cx = Cx::detached(Arc::new(Resources::default()));
            let Slots::Values(out) = node.run(&cx).unwrap().slots else {
                panic!("no value");
            };
            let out = crate::types::as_tensor(&out[0]).unwrap();
            assert!(
                out.data().iter().all(|v| (0.0..=1.0).contains(v)),
                "{method}"
            );
        }
    }
}
