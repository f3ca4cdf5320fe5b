//! Random numbers as the reference's CPU generator draws them, bit for bit: same seed, same noise, same picture.
//!
//! mt19937 underneath; normal values of 16 or more elements go through single-precision polynomials (Cephes) with
//! fused multiply-add, because a plain libm differs in the last bits of about one value in six.

use crate::cancel::Cancel;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// Numbers drawn between two looks at the interrupt; a multiple of every block.
const CHUNK: usize = 1 << 16;

const WORDS: usize = 624;
const SHIFT: usize = 397;

/// A seeded generator. Draws advance it; one half of a pair of normal values may wait inside for the next call.
#[derive(Debug, Clone)]
pub struct Generator {
    state: [u32; WORDS],
    next: usize,
    waiting: Option<f64>,
}

impl Generator {
    /// Only the low 32 bits of the seed matter, as in the reference.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        state[0] = seed as u32;
        for i in 1..WORDS {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        Self {
            state,
            next: WORDS,
            waiting: None,
        }
    }

    fn refill(&mut self) {
        for i in 0..WORDS {
            let joined =
                (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7FFF_FFFF);
            let twist = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % WORDS] ^ (joined >> 1) ^ twist;
        }
        self.next = 0;
    }

    /// 32 random bits.
    pub fn random(&mut self) -> u32 {
        if self.next == WORDS {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    /// 64 random bits, the high half drawn first.
    pub fn random64(&mut self) -> u64 {
        let high = u64::from(self.random());
        high << 32 | u64::from(self.random())
    }

    /// Uniform in [0, 1), 24 bits.
    pub fn uniform_f32(&mut self) -> f32 {
        (self.random() & 0xFF_FFFF) as f32 * (1.0 / 16_777_216.0)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform_f64(&mut self) -> f64 {
        (self.random64() & ((1 << 53) - 1)) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// An integer in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        match n {
            0 => 0,
            // The reference's published builds change to 64 bits here, to keep the skew of the remainder small.
            1..0x1000_0000 => u64::from(self.random()) % n,
            _ => self.random64() % n,
        }
    }

    /// A random order of `0..n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in 0..n.saturating_sub(1) {
            order.swap(i, i + self.random() as usize % (n - i));
        }
        order
    }

    /// The generator behind NumPy's global state as dataset nodes seed it. Draw from it with the `numpy_` methods only:
    /// the words are the same, what is made of them is not.
    pub fn numpy(seed: u64) -> Self {
        Self::new(seed % 0xFFFF_FFFF)
    }

    /// An integer in `0..n` as NumPy's `randint` draws it; 0 (without a draw) when there is no choice.
    pub fn numpy_below(&mut self, n: u32) -> u32 {
        let Some(last) = n.checked_sub(1).filter(|&last| last > 0) else {
            return 0;
        };
        let mask = u32::MAX >> last.leading_zeros();
        loop {
            let value = self.random() & mask;
            if value <= last {
                return value;
            }
        }
    }

    /// A random order of `0..n` as NumPy's `permutation` makes it.
    pub fn numpy_permutation(&mut self, n: u32) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n as usize).collect();
        for i in (1..n).rev() {
            order.swap(i as usize, self.numpy_below(i + 1) as usize);
        }
        order
    }

    /// Uniform values in [0, 1).
    pub fn rand(&mut self, shape: &[usize]) -> Result<Tensor> {
        let mut data = allocate(shape, 0.0)?;
        let cancel = Cancel::current();
        for chunk in data.chunks_mut(CHUNK) {
            cancel.check()?;
            for v in chunk {
                *v = self.uniform_f32();
            }
        }
        Tensor::from_buffer(shape, data)
    }

    /// Integers in `low..high`, as f32.
    pub fn randint(&mut self, low: i64, high: i64, shape: &[usize]) -> Result<Tensor> {
        if low >= high {
            return Err(TensorError::invalid(
                "randint",
                format!("no integers in {low}..{high}"),
            ));
        }
        let range = high.wrapping_sub(low) as u64;
        let mut data = allocate(shape, 0.0)?;
        let cancel = Cancel::current();
        for chunk in data.chunks_mut(CHUNK) {
            cancel.check()?;
            for v in chunk {
                *v = low.wrapping_add(self.below(range) as i64) as f32;
            }
        }
        Tensor::from_buffer(shape, data)
    }

    /// Standard normal values.
    pub fn randn(&mut self, shape: &[usize]) -> Result<Tensor> {
        let mut data = allocate(shape, 0.0)?;
        self.fill_normal(&mut data);
        Tensor::from_buffer(shape, data)
    }

    fn fill_normal(&mut self, data: &mut [f32]) {
        const BLOCK: usize = 16;
        if data.len() < BLOCK {
            for v in data {
                *v = self.normal_f64() as f32;
            }
            return;
        }
        let cancel = Cancel::current();
        for chunk in data.chunks_mut(CHUNK) {
            cancel.stop();
            for v in chunk {
                *v = self.uniform_f32();
            }
        }
        for chunk in data.chunks_mut(CHUNK) {
            cancel.stop();
            for block in chunk.chunks_exact_mut(BLOCK) {
                box_muller_f32(block);
            }
        }
        if !data.len().is_multiple_of(BLOCK) {
            // The tail overlaps values already made; it is drawn afresh.
            let start = data.len() - BLOCK;
            let tail = &mut data[start..];
            for v in &mut *tail {
                *v = self.uniform_f32();
            }
            box_muller_f32(tail);
        }
    }

    /// One standard normal value by the serial method (draws of fewer than 16).
    pub fn normal_f64(&mut self) -> f64 {
        if let Some(value) = self.waiting.take() {
            return value;
        }
        let u1 = self.uniform_f64();
        let u2 = self.uniform_f64();
        let r = (-2.0 * (-u2).ln_1p()).sqrt();
        let theta = 2.0 * std::f64::consts::PI * u1;
        self.waiting = Some(r * theta.sin());
        r * theta.cos()
    }

    /// Standard normal values in f64, as a double-precision draw of that size makes them.
    pub fn randn_f64(&mut self, count: usize) -> Vec<f64> {
        const BLOCK: usize = 16;
        if count < BLOCK {
            return (0..count).map(|_| self.normal_f64()).collect();
        }
        let mut data: Vec<f64> = (0..count).map(|_| self.uniform_f64()).collect();
        for block in data.chunks_exact_mut(BLOCK) {
            box_muller_f64(block);
        }
        if !count.is_multiple_of(BLOCK) {
            let tail = &mut data[count - BLOCK..];
            for v in &mut *tail {
                *v = self.uniform_f64();
            }
            box_muller_f64(tail);
        }
        data
    }
}

/// Turns 16 uniform values into 16 normal ones: the first eight are radii, the last eight angles.
fn box_muller_f32(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(8);
    for (a, b) in first.iter_mut().zip(second) {
        let r = (-2.0 * log(1.0 - *a)).sqrt();
        let (sin, cos) = sin_cos(std::f32::consts::TAU * *b);
        *a = r * cos;
        *b = r * sin;
    }
}

fn box_muller_f64(block: &mut [f64]) {
    let (first, second) = block.split_at_mut(8);
    for (a, b) in first.iter_mut().zip(second) {
        let r = (-2.0 * (1.0 - *a).ln()).sqrt();
        let theta = 2.0 * std::f64::consts::PI * *b;
        *a = r * theta.cos();
        *b = r * theta.sin();
    }
}

/// Natural logarithm of a positive normal number, Cephes `logf` with fused steps.
#[expect(clippy::excessive_precision, reason = "the coefficients as published")]
fn log(x: f32) -> f32 {
    const P: [f32; 9] = [
        7.037_683_629_2E-2,
        -1.151_461_031_0E-1,
        1.167_699_874_0E-1,
        -1.242_014_084_6E-1,
        1.424_932_278_7E-1,
        -1.666_805_766_5E-1,
        2.000_071_476_5E-1,
        -2.499_999_399_3E-1,
        3.333_333_117_4E-1,
    ];
    const Q1: f32 = -2.121_944_40E-4;
    const Q2: f32 = 0.693_359_375;
    let x = x.max(f32::MIN_POSITIVE);
    let bits = x.to_bits();
    // x = mantissa * 2^e with the mantissa in [0.5, 1), then moved to [sqrt(0.5), sqrt(2)) - 1.
    let mut e = ((bits >> 23) as i32 - 0x7F) as f32 + 1.0;
    let mantissa = f32::from_bits((bits & 0x007F_FFFF) | 0.5f32.to_bits());
    let x = if mantissa < std::f32::consts::FRAC_1_SQRT_2 {
        e -= 1.0;
        (mantissa - 1.0) + mantissa
    } else {
        mantissa - 1.0
    };
    let z = x * x;
    let y = P[1..].iter().fold(P[0], |y, &p| y.mul_add(x, p)) * x;
    let y = y.mul_add(z, e * Q1);
    let y = z.mul_add(-0.5, y);
    e.mul_add(Q2, x + y)
}

/// Sine and cosine of a non-negative angle of a few turns, Cephes `sinf`/`cosf` with fused steps.
#[expect(clippy::excessive_precision, reason = "the coefficients as published")]
fn sin_cos(x: f32) -> (f32, f32) {
    // pi / 4 in three parts, so that the reduction keeps its low bits.
    const PARTS: [f32; 3] = [
        -0.785_156_25,
        -2.418_756_484_985_351_562_5E-4,
        -3.774_894_977_445_941_08E-8,
    ];
    const S: [f32; 3] = [-1.951_529_589_1E-4, 8.332_160_873_6E-3, -1.666_665_461_1E-1];
    const C: [f32; 3] = [
        2.443_315_711_809_948E-5,
        -1.388_731_625_493_765E-3,
        4.166_664_568_298_827E-2,
    ];
    let octant = ((x * 1.273_239_544_735_16) as i32 + 1) & !1;
    let y = octant as f32;
    let x = PARTS.iter().fold(x, |x, &part| y.mul_add(part, x));
    let z = x * x;
    let c = C[0].mul_add(z, C[1]).mul_add(z, C[2]) * z;
    let c = c.mul_add(z, -(z * 0.5)) + 1.0;
    let s = S[0].mul_add(z, S[1]).mul_add(z, S[2]) * z;
    let s = s.mul_add(x, x);
    let (sin, cos) = if octant & 2 == 0 { (s, c) } else { (c, s) };
    (
        if octant & 4 == 0 { sin } else { -sin },
        if (octant - 2) & 4 == 0 { -cos } else { cos },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mt19937_reference_values() {
        // The 10000th draw for the default seed is fixed by the C++ standard.
        let mut g = Generator::new(5489);
        let last = (0..10_000).map(|_| g.random()).last();
        assert_eq!(last, Some(4_123_659_995));
        assert_eq!(Generator::new(1 << 32).random(), Generator::new(0).random());
    }

    #[test]
    fn integers_and_orders() {
        let mut g = Generator::new(3);
        let order = g.permutation(50);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        assert_ne!(order, sorted);
        assert_eq!(g.below(0), 0);
        assert!(g.below(1 << 40) < 1 << 40);
        assert!(g.randint(3, 3, &[1]).is_err());
        let t = g.randint(-2, 3, &[100]).unwrap();
        assert!(t.data().iter().all(|v| (-2.0..3.0).contains(v)));
    }

    #[test]
    fn numpy_draws() {
        // From the goldens of RandomCropImages (53x37 to 20x16) and ShuffleImageTextDataset.
        for (seed, left, top) in [
            (0, 0, 3),
            (42, 28, 14),
            (4_294_967_295, 0, 3),
            (1_099_511_627_779, 19, 20),
        ] {
            let mut g = Generator::numpy(seed);
            assert_eq!((g.numpy_below(34), g.numpy_below(22)), (left, top));
        }
        assert_eq!(Generator::numpy(0).numpy_permutation(5), [2, 0, 1, 3, 4]);
        assert_eq!(
            Generator::numpy(42).numpy_permutation(7),
            [0, 1, 5, 2, 4, 3, 6]
        );
        assert_eq!(Generator::numpy(3).numpy_permutation(1), [0]);
        assert_eq!(
            Generator::numpy(1_099_511_627_779).numpy_permutation(8),
            [2, 4, 6, 7, 5, 3, 1, 0]
        );
    }
}
