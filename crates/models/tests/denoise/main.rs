//! Conditions and guidance against the reference's recorded results.

mod conds;
mod guidance;
