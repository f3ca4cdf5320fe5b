//! How long each kernel takes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::device::CudaDevice;
use super::driver::Shared;
use super::launch::Kernel;
use crate::error::Result;
use crate::gpu::KernelTime;

struct Mark {
    kernel: String,
    begun: Shared,
    ended: Shared,
    work: (f64, f64),
}

thread_local! {
    /// What the next kernel has to do.
    static WORK: Cell<(f64, f64)> = const { Cell::new((0.0, 0.0)) };
    static MARKS: RefCell<Option<Vec<Mark>>> = const { RefCell::new(None) };
}

/// Says what the kernel that is started next has to do, for those who compare its time with the least that is possible.
pub(crate) fn work(operations: f64, bytes: f64) {
    WORK.set((operations, bytes));
}

/// Starts a kernel, with its time taken where somebody asked for that.
pub(super) fn timed(
    device: &CudaDevice,
    kernel: Kernel,
    start: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if MARKS.with_borrow(Option::is_none) {
        WORK.set((0.0, 0.0));
        return start();
    }
    let event = || device.checked(device.driver.event());
    let (begun, ended) = (event()?, event()?);
    device.checked(device.driver.record(begun, device.compute))?;
    start()?;
    device.checked(device.driver.record(ended, device.compute))?;
    let kernel = format!(
        "{}_{} {}",
        kernel.module,
        kernel.format.suffix(),
        kernel.name
    );
    MARKS.with_borrow_mut(|marks| {
        if let Some(marks) = marks {
            marks.push(Mark {
                kernel,
                begun,
                ended,
                work: WORK.take(),
            });
        }
    });
    Ok(())
}

impl CudaDevice {
    /// Runs something and says how long each kernel took, the longest first. Kernels are started one by one meanwhile.
    pub(super) fn profiled(&self, body: &mut dyn FnMut()) -> Result<Vec<KernelTime>> {
        MARKS.set(Some(Vec::new()));
        body();
        let marks = MARKS.take().unwrap_or_default();
        self.synchronize()?;
        let mut sums: BTreeMap<String, KernelTime> = BTreeMap::new();
        for mark in marks {
            let time = self.checked(self.driver.elapsed(mark.begun, mark.ended))?;
            self.driver.destroy_event(mark.begun);
            self.driver.destroy_event(mark.ended);
            let sum = sums.entry(mark.kernel.clone()).or_insert(KernelTime {
                kernel: mark.kernel,
                starts: 0,
                milliseconds: 0.0,
                operations: 0.0,
                bytes: 0.0,
            });
            sum.starts += 1;
            sum.milliseconds += f64::from(time);
            sum.operations += mark.work.0;
            sum.bytes += mark.work.1;
        }
        let mut times: Vec<KernelTime> = sums.into_values().collect();
        times.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
        Ok(times)
    }
}
