//! The processor's results as the measure of a GPU's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use fresco_tensor::gpu::{NetworkPart, with_composed_fusions};
use fresco_tensor::{Device, Dtype, Tensor, TensorError};

/// A GPU that computes in one format.
pub(crate) struct Gpu {
    pub(crate) format: &'static str,
    pub(crate) device: Device,
    /// The largest difference that rounding may make, relative to the largest value.
    pub(crate) tolerance: f32,
}

/// The first GPU in every format; empty where there is none.
pub(crate) fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| match fresco_tensor::gpu::open_first() {
        Ok(device) => {
            let formats = [
                ("f32", Dtype::F32, 1e-5),
                ("f16", Dtype::F16, 2e-3),
                ("bf16", Dtype::Bf16, 1.6e-2),
            ];
            let formats = formats.map(|(format, dtype, tolerance)| Gpu {
                format,
                device: device.computing_in(dtype, NetworkPart::Diffusion),
                tolerance,
            });
            formats.into()
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            Vec::new()
        }
    })
}

/// How many times as far from the processor's results compositions may be.
const COMPOSED: f32 = 3.0;

/// Numbers that are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Between -1 and 1.
    pub(crate) fn number(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// A tensor of such numbers in main memory.
    pub(crate) fn tensor(&mut self, shape: &[usize]) -> Tensor {
        Tensor::from_fn(shape, |_| self.number()).unwrap()
    }

    /// The same times a factor.
    pub(crate) fn scaled(&mut self, shape: &[usize], factor: f32) -> Tensor {
        Tensor::from_fn(shape, |_| factor * self.number()).unwrap()
    }
}

/// Compares many cases and fails at the end, so that one run shows all that is wrong.
#[derive(Default)]
pub(crate) struct Checks {
    failures: Vec<String>,
}

impl Checks {
    /// Runs an operation on the processor and on every GPU, with the same inputs, and compares the results: as the back end does it, and
    /// with fusions composed of what every back end has. Inputs are first rounded to the format of the GPU, so that only the
    /// operation itself is measured.
    pub(crate) fn run(
        &mut self,
        case: &str,
        inputs: &[Tensor],
        op: impl Fn(&[Tensor]) -> Result<Tensor, TensorError>,
    ) {
        self.run_within(case, 1.0, inputs, op);
    }

    /// The same where so many times the usual error (0 for none) is allowed.
    pub(crate) fn run_within(
        &mut self,
        case: &str,
        factor: f32,
        inputs: &[Tensor],
        op: impl Fn(&[Tensor]) -> Result<Tensor, TensorError>,
    ) {
        for gpu in gpus() {
            let attempt = || -> Result<[Tensor; 3], TensorError> {
                let there = inputs.iter().map(|x| x.to(&gpu.device));
                let there = there.collect::<Result<Vec<_>, _>>()?;
                let here = there.iter().map(|x| x.to(&Device::cpu()));
                let here = here.collect::<Result<Vec<_>, _>>()?;
                let found = op(&there)?;
                assert_eq!(found.device(), gpu.device, "the result is elsewhere");
                let found = found.to(&Device::cpu())?;
                let composed = with_composed_fusions(|| op(&there)?.to(&Device::cpu()))?;
                Ok([op(&here)?, found, composed])
            };
            let case = format!("{case} {}", gpu.format);
            match catch_unwind(AssertUnwindSafe(attempt)) {
                Ok(Ok([expected, found, composed])) => {
                    self.compare(&case, factor * gpu.tolerance, &expected, &found);
                    // Every part of a composition is rounded to the format.
                    let allowed = factor * COMPOSED * gpu.tolerance;
                    self.compare(&format!("{case} composed"), allowed, &expected, &composed);
                }
                Ok(Err(error)) => self.fail(format!("{case}: {error}")),
                Err(_) => self.fail(format!("{case}: it panicked")),
            }
        }
    }

    /// Two tensors in main memory, with the largest difference relative to the largest value that is allowed.
    pub(crate) fn compare(&mut self, case: &str, allowed: f32, expected: &Tensor, found: &Tensor) {
        if expected.shape() != found.shape() {
            let (expected, found) = (expected.shape(), found.shape());
            return self.fail(format!("{case}: shape {found:?} instead of {expected:?}"));
        }
        let finite = |v: &&f32| v.is_finite();
        let values = expected.data().iter().filter(finite);
        let largest = values.fold(0.0f32, |most, v| most.max(v.abs()));
        let mut worst = (0.0f32, 0);
        for (at, (e, f)) in expected.data().iter().zip(found.data()).enumerate() {
            let same = e.to_bits() == f.to_bits() || (e.is_nan() && f.is_nan()) || e == f;
            let error = (e - f).abs() / largest.max(1e-30);
            let error = if error.is_nan() { f32::INFINITY } else { error };
            if !same && error > worst.0 {
                worst = (error, at);
            }
        }
        eprintln!("{case} {:?}: error {:.1e}", expected.shape(), worst.0);
        if worst.0 > allowed {
            let (error, at) = worst;
            let (e, f) = (expected.data()[at], found.data()[at]);
            self.fail(format!(
                "{case} {:?}: error {error:.1e}, {allowed:.1e} allowed; element {at} is {f}, not {e}",
                expected.shape()
            ));
        }
    }

    fn fail(&mut self, text: String) {
        eprintln!("FAILED {text}");
        self.failures.push(text);
    }

    /// Fails if any case has failed.
    pub(crate) fn finish(self) {
        let count = self.failures.len();
        assert!(
            count == 0,
            "{count} failures:\n{}",
            self.failures.join("\n")
        );
    }
}
