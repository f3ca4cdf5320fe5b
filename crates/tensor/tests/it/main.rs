//! Tests of this crate against the golden files of the reference.

#![expect(
    clippy::unwrap_used,
    reason = "a golden file that does not have its documented form should fail the test"
)]

mod changed;
mod devices;
mod filters;
mod gguf;
mod golden;
mod layers;
mod noise;
mod pickles;
mod products;
mod quantised;
#[path = "../common/quantised.rs"]
mod quantised_layers;
mod resize;
mod rows;
mod slots;
