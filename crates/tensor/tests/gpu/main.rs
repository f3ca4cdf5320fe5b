//! A GPU against the processor: every operation in every format, over usual, odd and empty shapes. Where there is no GPU the
//! tests say so and pass. All results with their errors: `cargo test -p fresco-tensor --test gpu -- --nocapture`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test that cannot go on should fail, and says what it measured"
)]

mod against;
mod arrange;
mod attention;
mod bytes;
mod compare;
mod composed;
mod elementwise;
mod heads;
mod misc;
mod norm;
mod picture;
mod product;
#[path = "../common/quantised.rs"]
mod quantised_layers;
mod reduce;
mod rounded;
mod rows;
mod streams;
