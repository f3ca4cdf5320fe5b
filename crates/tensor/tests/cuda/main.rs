//! Operations on a GPU against those of the processor. Where there is no GPU, nothing is compared, and a line says so.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an error fails the test; what was measured is printed"
)]

mod attention;
mod compare;
mod norm;
