//! Evenly spaced numbers and the beta distribution, as torch, NumPy and SciPy have them.

/// The value below which a normally distributed one stays with this probability; infinite at 0 and 1.
pub(crate) fn normal_ppf(share: f64) -> f64 {
    if share.is_nan() {
        return share;
    }
    if share <= 0.0 || share >= 1.0 {
        return if share <= 0.0 {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        };
    }
    // The lower half, mirrored: a start that is good to three digits (Abramowitz and Stegun, 26.2.23), then Newton's steps.
    let tail = share.min(1.0 - share);
    let t = (-2.0 * tail.ln()).sqrt();
    let over = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let under = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut z = over / under - t;
    for _ in 0..4 {
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        if density == 0.0 {
            break;
        }
        z -= (0.5 + density * normal_series(z) - tail) / density;
    }
    if share < 0.5 { z } else { -z }
}

/// What the area from 0 to `z` under the normal distribution is, divided by its density at `z`.
fn normal_series(z: f64) -> f64 {
    let (mut term, mut sum, mut n) = (z, z, 1.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 2.0;
        term *= z * z / n;
        sum += term;
    }
    sum
}

/// `torch.linspace` in f32: counted up from the start in the first half and down from the end in the second, each value
/// rounded once (torch's builds fuse the multiplication and the addition).
pub(crate) fn linspace(start: f32, end: f32, count: usize) -> Vec<f32> {
    if count == 1 {
        return vec![start];
    }
    let step = (end - start) / count.saturating_sub(1) as f32;
    (0..count)
        .map(|i| {
            if i < count / 2 {
                step.mul_add(i as f32, start)
            } else {
                (-step).mul_add((count - 1 - i) as f32, end)
            }
        })
        .collect()
}

/// `numpy.interp` over an even grid on `[0, 1]`.
fn interpolate(ys: &[f64], x: f64) -> f64 {
    let last = ys.len() - 1;
    let at = x * last as f64;
    let low = (at.floor() as usize).min(last.saturating_sub(1));
    let part = at - low as f64;
    ys[low] + (ys[(low + 1).min(last)] - ys[low]) * part
}

/// Falling positive values resampled to `count`, evenly in their logarithm.
pub(crate) fn log_resampled(values: &[f64], count: usize) -> Vec<f64> {
    let rising: Vec<f64> = values.iter().rev().map(|v| v.ln()).collect();
    let mut out: Vec<f64> = (0..count)
        .map(|i| {
            let x = if count == 1 {
                0.0
            } else {
                i as f64 / (count - 1) as f64
            };
            interpolate(&rising, x).exp()
        })
        .collect();
    out.reverse();
    out
}

/// ln of the gamma function for positive numbers (Lanczos, g = 7).
fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = C[1..]
        .iter()
        .enumerate()
        .fold(C[0], |sum, (i, c)| sum + c / (x + i as f64 + 1.0));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularised incomplete beta function, by its continued fraction (Lentz).
fn beta_cdf(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast on this side only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_cdf(1.0 - x, b, a);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp();
    let safe = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / safe(1.0 - (a + b) * x / (a + 1.0));
    let mut f = d;
    for m in 1..500 {
        let m = f64::from(m);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / safe(1.0 + term * d);
            c = safe(1.0 + term / c);
            f *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    front * f / a
}

/// The value below which a part `p` of the beta distribution lies.
pub(crate) fn beta_ppf(p: f64, a: f64, b: f64) -> f64 {
    if p.is_nan() || a <= 0.0 || b <= 0.0 {
        return f64::NAN;
    }
    if p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if beta_cdf(middle, a, b) < p {
            low = middle;
        } else {
            high = middle;
        }
        // Table indices need no more than this.
        if high - low < 1e-14 {
            break;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_normal_distribution() {
        // To sixteen digits, as Python's statistics.NormalDist().inv_cdf gives them.
        for (share, wanted) in [
            (0.5, 0.0),
            (0.05, -1.644_853_626_951_472_7),
            (0.95, 1.644_853_626_951_472_7),
            (0.3, -0.524_400_512_708_041),
            (1e-6, -4.753_424_308_822_899),
        ] {
            assert!((normal_ppf(share) - wanted).abs() < 1e-9, "{share}");
        }
        assert_eq!(normal_ppf(0.0), f64::NEG_INFINITY);
        assert_eq!(normal_ppf(1.0), f64::INFINITY);
    }

    #[test]
    fn beta_quantiles() {
        // Known closed forms: Beta(1,1) is uniform, Beta(1,2) has 1-(1-x)^2, Beta(1/2,1/2) the arcsine law.
        for p in [0.01, 0.2, 0.5, 0.77, 0.99] {
            assert!((beta_ppf(p, 1.0, 1.0) - p).abs() < 1e-12);
            assert!((beta_ppf(p, 1.0, 2.0) - (1.0 - (1.0 - p).sqrt())).abs() < 1e-12);
            let arcsine = (std::f64::consts::FRAC_PI_2 * p).sin().powi(2);
            assert!((beta_ppf(p, 0.5, 0.5) - arcsine).abs() < 1e-12);
        }
        assert_eq!(beta_ppf(1.0, 0.6, 0.6), 1.0);
        assert!(beta_ppf(0.5, 0.0, 1.0).is_nan());
    }

    #[test]
    fn resampling_keeps_the_ends() {
        let out = log_resampled(&[10.0, 1.0, 0.1], 5);
        assert_eq!(out.len(), 5);
        assert!((out[0] - 10.0).abs() < 1e-12 && (out[4] - 0.1).abs() < 1e-12);
        assert!((out[1] - 10f64.sqrt()).abs() < 1e-12);
    }
}
