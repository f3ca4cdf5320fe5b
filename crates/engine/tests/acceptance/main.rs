//! The acceptance cases of the execution spec, on fixture nodes: a picture is one number, 0 (black) to 255 (white).

mod caching;
mod engine;
mod execution;
mod fixtures;
mod harness;
mod validation;
