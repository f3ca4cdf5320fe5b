//! Kernels for the CPU, chosen at run time by what the machine can do.

#![expect(
    clippy::inline_always,
    clippy::needless_range_loop,
    reason = "code is compiled for an instruction set only where it is inlined; vectors in arrays are counted, not listed"
)]

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod attention_tiles;
mod decode;
pub(crate) mod finish;
mod integer;
mod integer_kernel;
pub mod isa;
mod kernel;
pub(crate) mod lines;
pub(crate) mod math;
mod math_lanes;
pub(crate) mod math_transpose;
pub(crate) mod norm;
mod output;
mod pack;
pub(crate) mod packed;
pub mod peak;
pub(crate) mod picture;
mod plan;
pub(crate) mod product;
mod turn;
pub(crate) mod walk;

#[cfg(test)]
mod attention_tests;
#[cfg(test)]
mod math_tests;
#[cfg(test)]
mod norm_tests;
