//! Conditions and guidance against the reference's recorded results.

#![allow(clippy::unwrap_used, reason = "helpers of tests may stop the test")]

mod conds;
mod guidance;
