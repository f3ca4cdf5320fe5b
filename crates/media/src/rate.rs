//! Frame rates as fractions.

/// Frames a second, in lowest terms; both parts are positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub num: u32,
    pub den: u32,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Rate {
    /// In lowest terms; none where a part is zero or too large.
    pub fn new(num: u64, den: u64) -> Option<Self> {
        if num == 0 || den == 0 {
            return None;
        }
        let common = gcd(num, den);
        Some(Self {
            num: u32::try_from(num / common).ok()?,
            den: u32::try_from(den / common).ok()?,
        })
    }

    /// Rounded to thousandths of a frame, as files are written.
    pub fn from_fps(fps: f64) -> Option<Self> {
        let thousandths = (fps * 1000.0).round_ties_even();
        if !(1.0..=1e9).contains(&thousandths) {
            return None;
        }
        Self::new(thousandths as u64, 1000)
    }

    pub fn fps(self) -> f64 {
        f64::from(self.num) / f64::from(self.den)
    }

    /// When a frame is shown, in seconds.
    pub fn time_of(self, frame: u64) -> f64 {
        frame as f64 * f64::from(self.den) / f64::from(self.num)
    }

    /// Ticks a second and ticks a frame, with at least 10,000 ticks.
    pub(crate) fn ticks(self) -> (u32, u32) {
        let (mut scale, mut step) = (self.num, self.den);
        while scale < 10_000 && step < u32::MAX / 2 {
            scale *= 2;
            step *= 2;
        }
        (scale, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_ticks_that_other_writers_choose() {
        for (fps, rate, ticks) in [
            (24.0, (24, 1), (12288, 512)),
            (30.0, (30, 1), (15360, 512)),
            (23.976, (2997, 125), (11988, 500)),
        ] {
            let found = Rate::from_fps(fps).unwrap();
            assert_eq!((found.num, found.den), rate);
            assert_eq!(found.ticks(), ticks);
        }
        assert_eq!(Rate::from_fps(0.0), None);
        assert_eq!(Rate::from_fps(f64::NAN), None);
        assert_eq!(Rate::from_fps(1e300), None);
    }
}
