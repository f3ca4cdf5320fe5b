//! Layers of networks: they hold weights in their storage format and compute in f32.
//!
//! Pictures are (b, h, w, c) here and sequences (b, n, c), so that channels are next to each other.

mod misc;

pub use misc::Act;
