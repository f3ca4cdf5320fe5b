//! NVIDIA GPUs, with nothing but their driver: kernels of our own, as machine code in the program.
//!
//! `driver` has every call into the driver's library, `device` a GPU with its streams, `memory` what is taken there, `kernels`
//! the machine code, `launch` the way to start a kernel, `steps` repeats what was started before as one graph, and `ops` has
//! the operations. Nothing outside of this crate knows of it, except by the name `cuda:N` of a device.

mod device;
mod driver;
mod kernels;
mod launch;
mod memory;
pub(crate) mod ops;
mod profile;
mod ring;
mod staging;
mod steps;
mod weight;

pub use device::{CudaDevice, CudaState, DriverState, driver_state};
pub(crate) use device::{open, opened};
pub(crate) use driver::Shape;
pub(crate) use launch::{Args, Kernel, TensorMapSpec};
pub use memory::allow_pinned_memory;
pub(crate) use memory::{Block, CopyEnd, CudaBuffer, PinnedBytes, Scratch, Spread};
pub use profile::KernelTime;
pub(crate) use profile::work;
pub(crate) use steps::aside;
pub(crate) use weight::{Arrived, CudaValue, Folded, Form, LARGE, MatrixShape, SLACK, Transfer};

/// What a network is for, by which formats can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkPart {
    Diffusion,
    Autoencoder,
    Text,
}

/// Formats that were asked for, whatever the weights are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FormatChoices {
    pub diffusion: Option<Format>,
    pub autoencoder: Option<Format>,
    pub text: Option<Format>,
}

impl FormatChoices {
    pub(crate) fn of(self, part: NetworkPart) -> Option<Format> {
        match part {
            NetworkPart::Diffusion => self.diffusion,
            NetworkPart::Autoencoder => self.autoencoder,
            NetworkPart::Text => self.text,
        }
    }
}

/// How elements are kept on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Format {
    #[default]
    F32,
    F16,
    Bf16,
}

impl Format {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// As it stands in names of modules.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// For the processor's way through an operation that a GPU has left before.
pub(crate) fn has_its_own_way() -> ! {
    crate::buffer::raise(crate::error::TensorError::invalid(
        "cuda",
        "the processor was asked to compute on a GPU's tensor",
    ))
}
