//! NVIDIA GPUs, with nothing but their driver: kernels of our own, as machine code in the program.
//!
//! `gpu_device` and `gpu_ops` are this back end as the rest of the crate sees it (`crate::gpu`). `driver` has every call into the driver's library, `device` a GPU with
//! its streams, `memory` what is taken there, `kernels` the machine code, `launch` the way to start a kernel and `launches` what each takes, `tuned` what was measured, `steps` repeats what
//! was started before as one graph, and `ops` has the operations. Nothing outside of this folder knows of it, except by the name
//! `cuda:N` of a device.

mod assemble;
mod device;
mod driver;
mod gpu_device;
mod gpu_ops;
mod kernels;
mod launch;
mod launches;
mod memory;
mod ops;
mod place;
mod profile;
mod ring;
mod rounded;
mod staging;
mod steps;
mod tuned;
mod weight;

pub(crate) use crate::gpu::{
    CopyEnd, Format, GpuBuffer, GpuMemory, GpuMemory as Scratch, LARGE, MatrixShape, SideResult,
    Transfer,
};
pub(crate) use device::CudaDevice;
pub use device::{DriverState, driver_state};
pub(crate) use driver::Shape;
pub(crate) use gpu_device::BACKEND;
pub(crate) use launch::{Pointer, TensorMapSpec};
pub(crate) use place::{Address, OnCard};
pub(crate) use profile::work;
pub(crate) use weight::{Arrived, CudaValue, Folded, Form, SLACK, cuda_value};
