//! The acceptance cases of the execution spec, on fixture nodes: a picture is one number, 0 (black) to 255 (white).

#![expect(unreachable_pub, reason = "a test binary has no outside")]

mod caching;
mod engine;
mod execution;
mod fixtures;
mod harness;
mod validation;
