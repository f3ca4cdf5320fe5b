//! How long each kernel takes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::device::CudaDevice;
use super::driver::Shared;
use super::launch::Kernel;
use crate::error::Result;

/// Time of all starts of one kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Module and name.
    pub kernel: String,
    pub starts: usize,
    pub milliseconds: f64,
}

struct Mark {
    kernel: String,
    begun: Shared,
    ended: Shared,
}

thread_local! {
    static MARKS: RefCell<Option<Vec<Mark>>> = const { RefCell::new(None) };
}

/// Starts a kernel, with its time taken where somebody asked for that.
pub(super) fn timed(
    device: &CudaDevice,
    kernel: Kernel,
    start: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if MARKS.with_borrow(Option::is_none) {
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
            });
        }
    });
    Ok(())
}

impl CudaDevice {
    /// Runs something and says how long each kernel took, the longest first. Kernels are started one by one meanwhile.
    pub(crate) fn profiled<R>(&self, body: impl FnOnce() -> R) -> Result<(R, Vec<KernelTime>)> {
        MARKS.set(Some(Vec::new()));
        let result = body();
        let marks = MARKS.take().unwrap_or_default();
        self.synchronize()?;
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for mark in marks {
            let time = self.checked(self.driver.elapsed(mark.begun, mark.ended))?;
            self.driver.destroy_event(mark.begun);
            self.driver.destroy_event(mark.ended);
            let sum = sums.entry(mark.kernel).or_default();
            sum.0 += 1;
            sum.1 += f64::from(time);
        }
        let mut times: Vec<KernelTime> = sums
            .into_iter()
            .map(|(kernel, (starts, milliseconds))| KernelTime {
                kernel,
                starts,
                milliseconds,
            })
            .collect();
        times.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
        Ok((result, times))
    }
}
