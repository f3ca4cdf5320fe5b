//! A device without fusions of its own, and the switch by which tests take it for any.

use std::cell::Cell;

use super::{Format, Fusion, GpuFusions};
use crate::cpu::attention::Sizes;

thread_local! {
    /// Whether this thread wants compositions where there are kernels, too.
    static COMPOSES: Cell<bool> = const { Cell::new(false) };
}

/// Runs something with every fusion computed as a composition of the operations that all back ends have, so that those can be
/// tested on a back end that has kernels of its own.
pub fn with_composed_fusions<R>(body: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            COMPOSES.set(self.0);
        }
    }
    let _restore = Restore(COMPOSES.replace(true));
    body()
}

/// Whether compositions are asked for where there are kernels.
pub(crate) fn composes() -> bool {
    COMPOSES.get()
}

/// No fusion but as a composition.
pub(crate) struct Compositions {
    /// Whether layers order their work as if each were a kernel, so that each is tested.
    asked_for: bool,
}

pub(crate) static COMPOSITIONS: Compositions = Compositions { asked_for: false };
pub(crate) static TESTED_COMPOSITIONS: Compositions = Compositions { asked_for: true };

impl GpuFusions for Compositions {
    fn fuses(&self, _fusion: Fusion, _format: Format) -> bool {
        self.asked_for
    }

    fn joins_heads(&self, _format: Format, _d: usize, _apart: bool, _row: usize) -> bool {
        self.asked_for
    }

    fn reads_values_in_rows(&self, _sizes: Sizes, _format: Format, _row: usize) -> bool {
        self.asked_for
    }
}
