//! Kernels for the CPU, chosen at run time by what the machine can do.

pub mod isa;
pub(crate) mod math;
pub(crate) mod product;
