//! Attention whose memory has one size, however much was read: the gated delta rule (Yang, Kautz, Hatamizadeh 2025).
//!
//! Each head keeps a matrix from keys to values. A token lets it fade, corrects what it holds for the token's key by a
//! share of the difference to the token's value, and reads it with the token's query.

use rayon::prelude::*;

use super::misc::{sigmoid, silu};
use crate::cancel::Cancel;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

const OP: &str = "gated delta rule";
/// Keeps lengths of keys and queries away from zero.
const EPS: f32 = 1e-6;

/// How many heads there are, and how wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Heads of queries and keys, each for several of values.
    pub key_heads: usize,
    pub value_heads: usize,
    /// Channels of a head of queries and keys.
    pub key: usize,
    pub value: usize,
}

impl DeltaSizes {
    /// Channels of queries, keys and values together.
    pub fn mixed(self) -> usize {
        2 * self.key_heads * self.key + self.value_heads * self.value
    }

    /// Channels of what is read.
    pub fn read(self) -> usize {
        self.value_heads * self.value
    }
}

/// What tokens bring, and the weights that are no matrices.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInput<'a> {
    /// Queries, keys and values of tokens, before the convolution: (b, n, [`DeltaSizes::mixed`]).
    pub mixed: &'a Tensor,
    /// How fast heads forget, before weights of their own: (b, n, value heads).
    pub fading: &'a Tensor,
    /// How much of a correction is made, before the sigmoid: (b, n, value heads).
    pub share: &'a Tensor,
    /// A kernel over time for each channel of `mixed`, the newest token last: (channels, 1, taps) or (channels, taps).
    pub taps: &'a Tensor,
    /// Logarithms of how fast heads forget: (value heads).
    pub rate: &'a Tensor,
    /// Added to `fading`: (value heads).
    pub offset: &'a Tensor,
    /// Which tokens are no padding, for each sequence.
    pub kept: Option<&'a [&'a [bool]]>,
}

/// What is remembered after a token: the last tokens that the convolution still needs, (b, taps - 1, channels), and the
/// matrices (b, value heads, key, value). In main memory.
#[derive(Debug, Clone)]
pub struct DeltaMemory {
    pub recent: Tensor,
    pub matrices: Tensor,
}

/// What tokens read, (b, n, value heads * value) where they are, and what is remembered after them.
///
/// One token after the other decides how long this takes, not arithmetic, so it is done by the processor for every
/// device.
pub fn gated_delta(
    input: DeltaInput<'_>,
    sizes: DeltaSizes,
    past: Option<&DeltaMemory>,
) -> Result<(Tensor, DeltaMemory)> {
    let device = input.mixed.device();
    let [b, n, channels] = input.mixed.dims3()?;
    let heads = sizes.value_heads;
    let grouped = sizes.key_heads > 0 && heads.is_multiple_of(sizes.key_heads);
    if channels != sizes.mixed() || !grouped || n == 0 || sizes.key * sizes.value == 0 {
        let reason = format!("{channels} channels of {n} tokens do not make {sizes:?}");
        return Err(TensorError::invalid(OP, reason));
    }
    for (tensor, shape) in [(input.fading, [b, n, heads]), (input.share, [b, n, heads])] {
        if tensor.shape() != shape {
            return Err(TensorError::mismatch(OP, tensor.shape(), &shape));
        }
    }
    let &[rows, .., taps] = input.taps.shape() else {
        return Err(TensorError::rank(OP, "2 or 3", input.taps.shape()));
    };
    let right = rows == channels && taps > 0 && input.taps.len() == rows * taps;
    let each = input.rate.len() == heads && input.offset.len() == heads;
    let masked = input
        .kept
        .is_none_or(|kept| kept.len() == b && kept.iter().all(|kept| kept.len() == n));
    if !right || !each || !masked {
        return Err(TensorError::mismatch(
            OP,
            input.mixed.shape(),
            input.taps.shape(),
        ));
    }
    let mut before = match past {
        Some(past) => past.recent.clone(),
        None => Tensor::zeros([b, taps - 1, channels])?,
    };
    if before.shape() != [b, taps - 1, channels] {
        return Err(TensorError::mismatch(
            OP,
            before.shape(),
            input.mixed.shape(),
        ));
    }
    let host = Device::cpu();
    let mut mixed = input.mixed.to(&host)?;
    let mut fading = input.fading.to(&host)?;
    let mut share = input.share.to(&host)?;
    for (item, kept) in input.kept.into_iter().flatten().enumerate() {
        for at in kept
            .iter()
            .zip(0..)
            .filter(|(kept, _)| !**kept)
            .map(|(_, at)| at)
        {
            let row = item * n + at;
            mixed.data_mut()[row * channels..][..channels].fill(0.0);
            fading.data_mut()[row * heads..][..heads].fill(0.0);
            share.data_mut()[row * heads..][..heads].fill(0.0);
        }
    }
    before = Tensor::cat(&[&before, &mixed], 1)?;
    drop(mixed);
    let seen = convolved(&before, &input.taps.to(&host)?, [b, n, channels, taps])?;
    let recent = before.narrow(1, n, taps - 1)?;
    drop(before);
    let (rate, offset) = (input.rate.to(&host)?, input.offset.to(&host)?);
    let (rate, offset) = (rate.data(), offset.data());
    let decay = fading.map_indexed(|at, x| {
        let head = at % heads;
        (-rate[head].exp() * softplus(x + offset[head])).exp()
    });
    let mut matrices = match past {
        Some(past) => past.matrices.clone(),
        None => Tensor::zeros([b, heads, sizes.key, sizes.value])?,
    };
    if matrices.shape() != [b, heads, sizes.key, sizes.value] {
        return Err(TensorError::mismatch(
            OP,
            matrices.shape(),
            input.mixed.shape(),
        ));
    }
    let tokens = Tokens {
        seen: seen.data(),
        decay: decay.data(),
        share: &sigmoid(&share).into_vec(),
        sizes,
        count: n,
    };
    let mut read = Tensor::zeros([b, heads, n, sizes.value])?;
    let cancel = Cancel::current();
    let outputs = read.data_mut().par_chunks_mut(n * sizes.value);
    let states = matrices.data_mut().par_chunks_mut(sizes.key * sizes.value);
    outputs
        .zip(states)
        .enumerate()
        .for_each(|(at, (out, state))| {
            tokens.read(at / heads, at % heads, state, out, &cancel);
        });
    cancel.check()?;
    let read = read.transpose(1, 2)?.reshape([b, n, sizes.read()])?;
    Ok((read.to(&device)?, DeltaMemory { recent, matrices }))
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The convolution over time with its activation; `x` begins with the tokens before.
fn convolved(x: &Tensor, taps: &Tensor, [b, n, c, count]: [usize; 4]) -> Result<Tensor> {
    let mut out = Tensor::zeros([b, n, c])?;
    let (values, taps) = (x.data(), taps.data());
    out.data_mut()
        .par_chunks_mut(c)
        .enumerate()
        .for_each(|(row, out)| {
            let (item, at) = (row / n, row % n);
            let from = &values[(item * (n + count - 1) + at) * c..][..count * c];
            for (channel, out) in out.iter_mut().enumerate() {
                let tap = &taps[channel * count..][..count];
                *out = (0..count).map(|j| tap[j] * from[j * c + channel]).sum();
            }
        });
    Ok(silu(&out))
}

/// What all heads look at.
struct Tokens<'a> {
    /// (b, n, channels): queries, keys, values.
    seen: &'a [f32],
    decay: &'a [f32],
    share: &'a [f32],
    sizes: DeltaSizes,
    count: usize,
}

impl Tokens<'_> {
    /// One head of one sequence: `state` is (key, value), `out` (n, value).
    fn read(&self, item: usize, head: usize, state: &mut [f32], out: &mut [f32], cancel: &Cancel) {
        let DeltaSizes {
            key_heads,
            value_heads,
            key: width,
            value: depth,
        } = self.sizes;
        let keys = key_heads * width;
        let own = head / (value_heads / key_heads) * width;
        let scale = (width as f32).sqrt().recip();
        let (mut query, mut key) = (vec![0.0; width], vec![0.0; width]);
        let mut change = vec![0.0; depth];
        for (at, out) in out.chunks_exact_mut(depth).enumerate() {
            if cancel.is_raised() {
                return;
            }
            let row = item * self.count + at;
            let seen = &self.seen[row * self.sizes.mixed()..][..self.sizes.mixed()];
            unit(&seen[own..][..width], scale, &mut query);
            unit(&seen[keys + own..][..width], 1.0, &mut key);
            let value = &seen[2 * keys + head * depth..][..depth];
            let decay = self.decay[row * value_heads + head];
            let share = self.share[row * value_heads + head];
            change.copy_from_slice(value);
            for (line, key) in state.chunks_exact_mut(depth).zip(&key) {
                for (held, change) in line.iter_mut().zip(&mut change) {
                    *held *= decay;
                    *change -= *held * key;
                }
            }
            for change in &mut change {
                *change *= share;
            }
            for ((line, key), query) in state.chunks_exact_mut(depth).zip(&key).zip(&query) {
                for ((held, change), out) in line.iter_mut().zip(&change).zip(&mut *out) {
                    *held += key * change;
                    *out += *held * query;
                }
            }
        }
    }
}

/// A row of length one, times a number.
fn unit(row: &[f32], scale: f32, to: &mut [f32]) {
    let squares: f32 = row.iter().map(|v| v * v).sum();
    let share = scale / (squares + EPS).sqrt();
    for (to, from) in to.iter_mut().zip(row) {
        *to = from * share;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    const SIZES: DeltaSizes = DeltaSizes {
        key_heads: 2,
        value_heads: 4,
        key: 3,
        value: 5,
    };

    struct Made {
        mixed: Tensor,
        fading: Tensor,
        share: Tensor,
        taps: Tensor,
        rate: Tensor,
        offset: Tensor,
    }

    fn made(n: usize) -> Made {
        let value = |name: &str, shape: &[usize]| synthetic::value(name, shape, 1.0).unwrap();
        Made {
            mixed: value("mixed", &[1, n, SIZES.mixed()]),
            fading: value("fading", &[1, n, 4]),
            share: value("share", &[1, n, 4]),
            taps: value("taps", &[SIZES.mixed(), 1, 4]),
            rate: value("rate", &[4]),
            offset: value("offset", &[4]),
        }
    }

    fn run(
        made: &Made,
        from: usize,
        len: usize,
        kept: Option<&[&[bool]]>,
        past: Option<&DeltaMemory>,
    ) -> (Tensor, DeltaMemory) {
        let some = |x: &Tensor| x.narrow(1, from, len).unwrap();
        let input = DeltaInput {
            mixed: &some(&made.mixed),
            fading: &some(&made.fading),
            share: &some(&made.share),
            taps: &made.taps,
            rate: &made.rate,
            offset: &made.offset,
            kept,
        };
        gated_delta(input, SIZES, past).unwrap()
    }

    /// The rule as it is written down, in f64 and for one head.
    fn by_formula(made: &Made, n: usize, head: usize) -> Vec<f64> {
        let at = |x: &Tensor, index: &[usize]| f64::from(x.at(index).unwrap());
        let seen = |t: usize, c: usize| -> f64 {
            let from = (0..4).filter(|j| t + j >= 3);
            let sum: f64 = from
                .map(|j| at(&made.taps, &[c, 0, j]) * at(&made.mixed, &[0, t + j - 3, c]))
                .sum();
            sum / (1.0 + (-sum).exp())
        };
        let unit = |t: usize, start: usize| -> Vec<f64> {
            let row: Vec<f64> = (0..3).map(|c| seen(t, start + c)).collect();
            let length = (row.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
            row.iter().map(|v| v / length).collect()
        };
        // A line of the memory for each channel of a value.
        let mut state = [[0.0; 3]; 5];
        let mut out = Vec::new();
        for t in 0..n {
            let (query, key) = (unit(t, head / 2 * 3), unit(t, 6 + head / 2 * 3));
            let fading = at(&made.fading, &[0, t, head]) + at(&made.offset, &[head]);
            let decay = (-at(&made.rate, &[head]).exp() * fading.exp().ln_1p()).exp();
            let share = 1.0 / (1.0 + (-at(&made.share, &[0, t, head])).exp());
            for (channel, line) in state.iter_mut().enumerate() {
                *line = line.map(|held| held * decay);
                let held: f64 = line.iter().zip(&key).map(|(held, key)| held * key).sum();
                let change = (seen(t, 12 + head * 5 + channel) - held) * share;
                for (held, key) in line.iter_mut().zip(&key) {
                    *held += key * change;
                }
                let read: f64 = line.iter().zip(&query).map(|(held, q)| held * q).sum();
                out.push(read / 3f64.sqrt());
            }
        }
        out
    }

    #[test]
    fn as_the_formula_says() {
        let made = made(7);
        let (out, _) = run(&made, 0, 7, None, None);
        for head in 0..4 {
            let own = out.narrow(2, head * 5, 5).unwrap();
            for (a, b) in own.data().iter().zip(by_formula(&made, 7, head)) {
                assert!((f64::from(*a) - b).abs() < 1e-5, "{head}: {a} {b}");
            }
        }
    }

    #[test]
    fn in_pieces_as_at_once() {
        let made = made(9);
        let (whole, _) = run(&made, 0, 9, None, None);
        let (first, memory) = run(&made, 0, 2, None, None);
        let (second, memory) = run(&made, 2, 6, None, Some(&memory));
        let (third, _) = run(&made, 8, 1, None, Some(&memory));
        let joined = Tensor::cat(&[&first, &second, &third], 1).unwrap();
        assert_eq!(joined.data(), whole.data());
    }

    #[test]
    fn padding_at_the_end_changes_nothing_before_it() {
        let made = made(6);
        let kept = [true, true, true, true, false, false];
        let (padded, _) = run(&made, 0, 6, Some(&[&kept]), None);
        let (plain, _) = run(&made, 0, 4, None, None);
        assert_eq!(padded.narrow(1, 0, 4).unwrap().data(), plain.data());
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let made = made(3);
        let input = DeltaInput {
            mixed: &made.mixed,
            fading: &made.fading,
            share: &made.share,
            taps: &made.taps.narrow(0, 0, 5).unwrap(),
            rate: &made.rate,
            offset: &made.offset,
            kept: None,
        };
        assert!(gated_delta(input, SIZES, None).is_err());
        let sizes = DeltaSizes {
            key_heads: 3,
            ..SIZES
        };
        assert!(gated_delta(input, sizes, None).is_err());
    }
}
