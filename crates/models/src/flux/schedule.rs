//! Noise levels of Flux 2.

use crate::schedules::{Result, exponential_flow};

/// Levels shifted by picture size and number of steps.
pub fn levels(steps: usize, width: f64, height: f64) -> Result<Vec<f32>> {
    let tokens = (width * height / 256.0).round_ties_even();
    let long = 0.000_169_27 * tokens + 0.456_666_66;
    let mu = if tokens > 4300.0 {
        long
    } else {
        let short = 8.738_095_24e-5 * tokens + 1.898_333_33;
        let slope = (long - short) / 190.0;
        slope * steps as f64 + long - 200.0 * slope
    };
    exponential_flow(steps, mu)
}
