//! What networks of sound share: convolutions over time, the periodic activation, spectrograms.

mod conv;
mod mel;
mod names;

pub use conv::{Conv1d, Depthwise1d, Edge, Grow1d, Snake, padded};
pub use mel::{Mel, MelBands, magnitudes, reflected, spectrogram};
pub use names::unnormed;
