//! What came of a golden.

use anyhow::Result;
use fresco_tensor::{Device, Tensor};

use crate::golden::Golden;

/// The largest relative distance that two correct programs may have.
const TOLERANCE: f64 = 1e-4;

pub(crate) struct Report<'a> {
    golden: &'a Golden,
    /// What the device is off in any case.
    least: f64,
    compared: usize,
    worst: f64,
    failures: Vec<String>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(golden: &'a Golden, least: f64) -> Self {
        Self {
            golden,
            least,
            compared: 0,
            worst: 0.0,
            failures: Vec::new(),
        }
    }

    /// Compares a result with the tensor of this name, if the golden has it.
    pub(crate) fn check(&mut self, name: &str, found: &Tensor) -> Result<()> {
        let expected = self.golden.tensor(name)?;
        self.compare(name, found, &expected)
    }

    /// The same for results that depend so much on rounding that two correct programs are further apart.
    pub(crate) fn check_within(
        &mut self,
        name: &str,
        found: &Tensor,
        tolerance: f64,
    ) -> Result<()> {
        let expected = self.golden.tensor(name)?;
        self.compare_within(name, found, &expected, tolerance)
    }

    /// Compares a result with what is expected.
    pub(crate) fn compare(&mut self, name: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
        self.compare_within(name, found, expected, TOLERANCE)
    }

    fn compare_within(
        &mut self,
        name: &str,
        found: &Tensor,
        expected: &Tensor,
        tolerance: f64,
    ) -> Result<()> {
        self.compared += 1;
        if found.shape() != expected.shape() {
            self.fail(format!(
                "{name} has the shape {:?} and not {:?}",
                found.shape(),
                expected.shape()
            ));
            return Ok(());
        }
        let off = distance(&found.to(&Device::cpu())?, expected);
        self.worst = self.worst.max(off);
        // Not a number is too far too.
        if off.is_nan() || off > tolerance.max(self.least) {
            self.fail(format!("{name} is {off:.2e} off"));
        }
        Ok(())
    }

    /// Compares things that must be equal.
    pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        name: &str,
        found: &T,
        expected: &T,
    ) {
        self.compared += 1;
        if found != expected {
            self.fail(format!("{name} is {found:?} and not {expected:?}"));
        }
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.failures.push(why);
    }

    pub(crate) fn compared(&self) -> usize {
        self.compared
    }

    pub(crate) fn worst(&self) -> f64 {
        self.worst
    }

    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Tensors that were neither an input nor a result.
    pub(crate) fn unseen(&self) -> Vec<String> {
        self.golden.unseen()
    }
}

/// Relative L2 distance. Of two tensors that are all zero it is zero.
fn distance(found: &Tensor, expected: &Tensor) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for (&a, &b) in found.data().iter().zip(expected.data()) {
        off += (f64::from(a) - f64::from(b)).powi(2);
        size += f64::from(b).powi(2);
    }
    if off == 0.0 { 0.0 } else { (off / size).sqrt() }
}
