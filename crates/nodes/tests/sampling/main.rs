//! Sampling through the node interface, with small networks of made-up weights.

#![allow(clippy::unwrap_used, reason = "helpers of tests may stop the test")]

mod av;
mod bad_input;
mod custom;
mod end_to_end;
mod harness;
mod hooks;
mod patches;
mod progress;
mod qwen;
mod storage;
mod variants;
