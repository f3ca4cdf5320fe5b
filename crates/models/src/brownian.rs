//! Noise of one Brownian path: what is added between two noise levels does not depend on the levels sampled before, so
//! the picture stays the same when the number of steps changes.
//!
//! The path is a tree over halves of the range of levels. Every node has a seed of its own (NumPy's `SeedSequence` with
//! a pool of 24 words), so that any part of the path can be found without the rest. Bit-exact with the reference.

use std::collections::BTreeMap;

use fresco_tensor::{Generator, Tensor};

use crate::samplers::{Result, SampleError};

const POOL: usize = 24;
/// Halvings after which the parts of any range a schedule has are below the resolution of the path.
const MAX_DEPTH: u32 = 60;
/// Most bytes kept from one query for the next, which mostly goes the same way down the tree.
const KEPT_BYTES: usize = 256 << 20;

/// NumPy's `SeedSequence`, as far as it is used: words from an entropy and the place in the tree.
struct SeedSequence {
    pool: [u32; POOL],
}

/// A number as little-endian words, at least one.
fn words_of(number: u64, words: &mut Vec<u32>) {
    words.push(number as u32);
    if number >> 32 != 0 {
        words.push((number >> 32) as u32);
    }
}

impl SeedSequence {
    fn new(entropy: u64, spawn_key: &[u64]) -> Self {
        let mut words = Vec::with_capacity(POOL + 4);
        words_of(entropy, &mut words);
        if !spawn_key.is_empty() {
            words.resize(POOL, 0);
            for key in spawn_key {
                words_of(*key, &mut words);
            }
        }
        let mut constant = 0x43b0_d7e5_u32;
        let mut hash = |value: u32| {
            let value = value ^ constant;
            constant = constant.wrapping_mul(0x931e_8875);
            let value = value.wrapping_mul(constant);
            value ^ (value >> 16)
        };
        let mix = |x: u32, y: u32| {
            let mixed = 0xca01_f9dd_u32
                .wrapping_mul(x)
                .wrapping_sub(0x4973_f715_u32.wrapping_mul(y));
            mixed ^ (mixed >> 16)
        };
        let mut pool = [0; POOL];
        for (i, slot) in pool.iter_mut().enumerate() {
            *slot = hash(words.get(i).copied().unwrap_or(0));
        }
        for from in 0..POOL {
            for to in (0..POOL).filter(|to| *to != from) {
                pool[to] = mix(pool[to], hash(pool[from]));
            }
        }
        for word in words.iter().skip(POOL) {
            for slot in &mut pool {
                *slot = mix(*slot, hash(*word));
            }
        }
        Self { pool }
    }

    fn words(&self, count: usize) -> Vec<u32> {
        let mut constant = 0x8b51_f9dd_u32;
        self.pool
            .iter()
            .cycle()
            .take(count)
            .map(|word| {
                let value = word ^ constant;
                constant = constant.wrapping_mul(0x58f3_8ded);
                let value = value.wrapping_mul(constant);
                value ^ (value >> 16)
            })
            .collect()
    }

    fn first(&self) -> u64 {
        u64::from(self.words(1)[0])
    }
}

/// To six decimal places, correctly: the resolution of the path.
fn rounded(x: f64) -> f64 {
    // The formatter rounds the exact binary value, which multiplying by a million would not.
    format!("{x:.6}").parse().unwrap_or(x)
}

/// A part of the path.
#[derive(Clone, Copy)]
struct Node {
    start: f64,
    end: f64,
    key: u64,
    depth: u32,
}

impl Node {
    fn middle(self) -> f64 {
        rounded(0.5 * (self.start + self.end))
    }

    fn halves(self) -> (Self, Self) {
        let middle = self.middle();
        let (key, depth) = (self.key << 1, self.depth + 1);
        (
            Self {
                end: middle,
                key,
                depth,
                ..self
            },
            Self {
                start: middle,
                key: key | 1,
                depth,
                ..self
            },
        )
    }
}

/// A path through a tensor of noise.
pub struct BrownianNoise {
    seed: u64,
    shape: Vec<usize>,
    low: f32,
    high: f32,
    /// The left halves of nodes, by depth and key.
    kept: BTreeMap<(u32, u64), Tensor>,
    /// Those of the query now running, which is what the next one will want.
    touched: BTreeMap<(u32, u64), Tensor>,
}

impl BrownianNoise {
    /// A path over noise levels from `low` to `high`.
    pub fn new(seed: u64, shape: &[usize], low: f32, high: f32) -> Self {
        Self {
            seed,
            shape: shape.to_vec(),
            low,
            high,
            kept: BTreeMap::new(),
            touched: BTreeMap::new(),
        }
    }

    /// Noise of unit variance for going from one level to another.
    pub fn between(&mut self, from: f32, to: f32) -> Result<Tensor> {
        let sign = if from > to { -1.0 } else { 1.0 };
        let (low, high) = (from.min(to), from.max(to));
        let gap = (to - from).abs().sqrt();
        let mut noise = self.increment(f64::from(low), f64::from(high))?;
        if gap > 0.0 {
            noise.map_inplace(|v| v * sign / gap);
        }
        Ok(noise)
    }

    fn draw(&self, sequence: &SeedSequence) -> Result<Tensor> {
        Ok(Generator::new(sequence.first()).randn(&self.shape)?)
    }

    /// How far the path goes between two levels.
    fn increment(&mut self, from: f64, to: f64) -> Result<Tensor> {
        let (low, high) = (f64::from(self.low), f64::from(self.high));
        let (start, end) = (rounded(low), rounded(high));
        let inside = |t: f64| rounded(t.max(start).min(end));
        let (from, to) = (inside(from), inside(to));
        if from >= to {
            return Ok(Tensor::zeros(self.shape.as_slice())?);
        }
        let whole = if let Some(whole) = self.kept.remove(&TOP) {
            whole
        } else {
            let scale = (high - low).sqrt() as f32;
            self.draw(&SeedSequence::new(self.seed, &[]))?
                .mul_scalar(scale)
        };
        self.touched.insert(TOP, whole.clone());
        let mut sum = None;
        let top = Node {
            start,
            end,
            key: 0,
            depth: 0,
        };
        self.add(top, whole, (from, to), &mut sum)?;
        self.kept = std::mem::take(&mut self.touched);
        let bytes = self.kept.len() * self.shape.iter().product::<usize>() * size_of::<f32>();
        if bytes > KEPT_BYTES {
            self.kept.clear();
        }
        match sum {
            Some(sum) => Ok(sum),
            None => Ok(Tensor::zeros(self.shape.as_slice())?),
        }
    }

    /// Adds the parts of `node` (which goes as far as `whole`) that make up the wanted range, in the order of time.
    fn add(
        &mut self,
        node: Node,
        whole: Tensor,
        (from, to): (f64, f64),
        sum: &mut Option<Tensor>,
    ) -> Result<()> {
        if from == node.start && to == node.end {
            match sum {
                None => *sum = Some(whole),
                Some(sum) => {
                    for (s, w) in sum.data_mut().iter_mut().zip(whole.data()) {
                        *s += w;
                    }
                }
            }
            return Ok(());
        }
        if node.depth >= MAX_DEPTH {
            return Err(SampleError::BrownianRange {
                from: self.low,
                to: self.high,
            });
        }
        let (left, right) = node.halves();
        let first = self.left_half(node, &whole)?;
        let middle = left.end;
        if from < middle {
            self.add(left, first.clone(), (from, to.min(middle)), sum)?;
        }
        if to > middle {
            let mut second = whole;
            for (w, f) in second.data_mut().iter_mut().zip(first.data()) {
                *w -= f;
            }
            drop(first);
            self.add(right, second, (from.max(middle), to), sum)?;
        }
        Ok(())
    }

    /// How far the path goes in the first half of a node.
    fn left_half(&mut self, node: Node, whole: &Tensor) -> Result<Tensor> {
        let place = (node.depth + 1, node.key << 1);
        let known = self.kept.remove(&place);
        let half = if let Some(half) = known {
            half
        } else {
            let key = [node.key, u64::from(node.depth)];
            let mut half = self.draw(&SeedSequence::new(self.seed, &key))?;
            let middle = node.middle();
            let (left, right) = (middle - node.start, node.end - middle);
            let inverse = 1.0 / (node.end - node.start);
            let spread = (left * right * inverse).sqrt() as f32;
            let (left, inverse) = (left as f32, inverse as f32);
            for (h, w) in half.data_mut().iter_mut().zip(whole.data()) {
                *h = left * w * inverse + spread * *h;
            }
            half
        };
        self.touched.insert(place, half.clone());
        Ok(half)
    }
}

/// Where the whole path is kept.
const TOP: (u32, u64) = (0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_the_reference() {
        let words = |entropy, key: &[u64]| SeedSequence::new(entropy, key).words(4);
        assert_eq!(
            words(42, &[])[..3],
            [387_750_627, 2_536_650_517, 4_078_839_648]
        );
        assert_eq!(
            words(42, &[0, 0]),
            [2_102_017_995, 2_891_809_698, 2_144_110_403, 379_559_146]
        );
        assert_eq!(
            words(42, &[1, 1]),
            [1_058_881_542, 1_039_740_124, 2_218_853_409, 2_234_354_429]
        );
        assert_eq!(
            words(1_099_511_627_783, &[5, 3]),
            [274_823_170, 1_995_610_858, 3_082_670_851, 2_858_707_861]
        );
        assert_eq!(
            words(1_099_511_627_783, &[]),
            [3_531_690_330, 3_002_667_236, 1_514_406_079, 2_664_012_699]
        );
    }

    #[test]
    fn rounding_is_of_the_exact_value() {
        assert_eq!(rounded(0.029_167_158_5), 0.029_167);
        // Times a million, both are a half exactly; in truth one is above it and one below.
        assert_eq!(rounded(2.000_000_5), 2.000_001);
        assert_eq!(rounded(2.675_000_5), 2.675);
    }
}
