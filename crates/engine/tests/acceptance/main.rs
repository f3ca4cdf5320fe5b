//! The acceptance cases of the execution spec, on fixture nodes: a picture is one number, 0 (black) to 255 (white).

#![expect(unreachable_pub, reason = "a test binary has no outside")]
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a surprise is a failed test; some nodes take time on purpose, and no outcome depends on how long"
)]

mod caching;
mod engine;
mod execution;
mod fixtures;
mod foreign;
mod harness;
mod memory;
mod validation;
mod workers;
