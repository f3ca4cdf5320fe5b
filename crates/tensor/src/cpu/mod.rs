//! Kernels for the CPU, chosen at run time by what the machine can do.

pub(crate) mod attention;
pub mod isa;
pub(crate) mod math;
mod math_lanes;
pub(crate) mod norm;
mod output;
pub(crate) mod product;

#[cfg(test)]
mod attention_tests;
#[cfg(test)]
mod math_tests;
#[cfg(test)]
mod norm_tests;
