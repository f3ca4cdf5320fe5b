//! Rounding of changed weights to eight bits and less.
//!
//! The steps between such numbers are larger than most changes that a LoRA makes, and rounding to the nearest would
//! undo them. So a value goes up or down by chance, the nearer neighbour the more likely, and on average nothing is lost.
//! The chance comes from the weight's key: the same file and the same LoRA give the same bytes every time.

use fresco_tensor::{Dtype, Result, Stored, Tensor, synthetic};

/// A changed weight in a format: by chance where its numbers are coarse, to the nearest for all others.
pub(crate) fn rounded(value: &Tensor, dtype: Dtype, key: &str) -> Result<Stored> {
    Stored::by_chance(value, dtype, synthetic::fnv1a64(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_average_nothing_is_lost() {
        for dtype in [Dtype::F8E4M3, Dtype::F8E5M2] {
            // A little above one; the next 8-bit number is 1.125 or 1.25.
            let value = Tensor::full([10_000], 1.02).unwrap();
            let back = rounded(&value, dtype, "a").unwrap().to_f32().unwrap();
            let mean = back.data().iter().sum::<f32>() / 10_000.0;
            assert!((mean - 1.02).abs() < 0.005, "{mean}");
            assert!(back.data().iter().all(|v| *v == 1.0 || *v > 1.1));
            assert_eq!(
                rounded(&value, dtype, "a").unwrap(),
                rounded(&value, dtype, "a").unwrap()
            );
            assert_ne!(
                rounded(&value, dtype, "a").unwrap(),
                rounded(&value, dtype, "b").unwrap()
            );
        }
    }

    #[test]
    fn what_can_be_written_stays_and_what_is_too_large_is_the_largest() {
        let value = Tensor::from_slice(&[0.0, -0.5, 448.0, 1e9, -1e9, f32::INFINITY, f32::NAN]);
        let back = rounded(&value, Dtype::F8E4M3, "k")
            .unwrap()
            .to_f32()
            .unwrap();
        assert_eq!(back.data()[..6], [0.0, -0.5, 448.0, 448.0, -448.0, 448.0]);
        assert!(back.data()[6].is_nan());
        let half = rounded(&value, Dtype::F16, "k").unwrap();
        assert_eq!(half, Stored::from_f32(&value, Dtype::F16).unwrap());
    }
}
