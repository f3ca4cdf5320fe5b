//! Random tensors, and the differences between a GPU's results and the processor's.

use fresco_tensor::gpu::Format;
use fresco_tensor::{Device, Tensor};

pub(crate) const FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// The first GPU. `None`, and a line that says why, where there is none.
pub(crate) fn gpu() -> Option<Device> {
    match fresco_tensor::gpu::open_first() {
        Ok(device) => Some(device),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Whether a product of so many multiplications is tried: large ones not on an emulated card, which would take minutes.
pub(crate) fn is_tried(gpu: &Device, multiplications: usize) -> bool {
    const MOST: usize = 100 << 20;
    let emulated = gpu
        .gpu()
        .is_some_and(|gpu| gpu.name.starts_with("Emulated"));
    !emulated || multiplications <= MOST
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// About normal: a sum of four even ones.
    pub(crate) fn number(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 1.732
    }

    pub(crate) fn tensor(&mut self, shape: &[usize]) -> Tensor {
        Tensor::from_fn(shape, |_| self.number()).unwrap()
    }

    /// A tensor in a format on a device, and the same values in main memory.
    pub(crate) fn pair(&mut self, shape: &[usize], device: &Device) -> (Tensor, Tensor) {
        on_both(&self.tensor(shape), device)
    }
}

/// A tensor rounded to the format of a device: there, and in main memory.
pub(crate) fn on_both(t: &Tensor, device: &Device) -> (Tensor, Tensor) {
    let there = t.to(device).unwrap();
    let here = there.to(&Device::Cpu).unwrap();
    (there, here)
}

/// How far a result may be from the processor's, relative to the largest value.
pub(crate) fn tolerance(format: Format) -> f32 {
    match format {
        Format::F32 => 1e-4,
        Format::F16 => 2e-3,
        Format::Bf16 => 1e-2,
    }
}

/// What was compared, and what differed.
#[derive(Default)]
pub(crate) struct Report {
    cases: usize,
    worst: [(f32, String); 3],
    failed: Vec<String>,
}

impl Report {
    /// Compares a result on a device with that of the processor.
    pub(crate) fn check(
        &mut self,
        format: Format,
        case: &str,
        found: fresco_tensor::Result<Tensor>,
        expected: &Tensor,
    ) {
        self.cases += 1;
        let found = match found.and_then(|t| t.to(&Device::Cpu)) {
            Ok(found) => found,
            Err(error) => {
                self.failed.push(format!("{format:?} {case}: {error}"));
                return;
            }
        };
        if found.shape() != expected.shape() {
            let shapes = (found.shape(), expected.shape());
            self.failed.push(format!("{format:?} {case}: {shapes:?}"));
            return;
        }
        let largest = expected
            .data()
            .iter()
            .filter(|v| v.is_finite())
            .fold(1e-20f32, |m, v| m.max(v.abs()));
        let mut error = 0.0f32;
        let mut wrong = None;
        for (i, (a, b)) in found.data().iter().zip(expected.data()).enumerate() {
            let e = match (a.is_nan(), b.is_nan()) {
                (true, true) => 0.0,
                _ if a == b => 0.0,
                _ => (a - b).abs() / largest,
            };
            let bad = e.is_nan() || e > tolerance(format);
            if bad && wrong.is_none() {
                wrong = Some(format!("at {i} {a} and not {b}"));
            }
            error = if e.is_nan() {
                f32::INFINITY
            } else {
                error.max(e)
            };
        }
        let worst = &mut self.worst[format as usize];
        if error > worst.0 {
            *worst = (error, case.to_owned());
        }
        if let Some(wrong) = wrong {
            self.failed
                .push(format!("{format:?} {case}: error {error:.1e}, {wrong}"));
        }
    }

    /// Prints the worst, and fails if something was wrong.
    pub(crate) fn end(self, what: &str) {
        println!("{what}: {} cases", self.cases);
        for (format, (error, case)) in FORMATS.iter().zip(&self.worst) {
            println!("  worst {format:?} {error:.1e}: {case}");
        }
        for failed in self.failed.iter().take(60) {
            println!("  FAILED {failed}");
        }
        assert!(
            self.failed.is_empty(),
            "{what}: {} of {} differ",
            self.failed.len(),
            self.cases
        );
    }
}

/// Milliseconds of all kernels of one call, after some to warm up.
pub(crate) fn milliseconds(
    device: &Device,
    call: impl Fn() -> fresco_tensor::Result<Tensor>,
) -> (f64, String) {
    const TIMES: usize = 20;
    for _ in 0..3 {
        call().unwrap();
    }
    device.synchronize().unwrap();
    let run = || (0..TIMES).for_each(|_| drop(call().unwrap()));
    let ((), kernels) = device.profiled(run).unwrap();
    let names: Vec<&str> = kernels.iter().map(|k| k.kernel.as_str()).collect();
    let sum: f64 = kernels.iter().map(|k| k.milliseconds).sum();
    (sum / TIMES as f64, names.join(", "))
}
