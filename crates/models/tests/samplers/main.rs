//! Samplers, their noise and their levels against numbers of the reference.

#![expect(
    clippy::unwrap_used,
    reason = "a golden file that does not have its documented form should fail the test"
)]

mod golden;
mod hostile;
mod levels;
mod noise;
mod options;
mod properties;
mod reference;
mod support;
