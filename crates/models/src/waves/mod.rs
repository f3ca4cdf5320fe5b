//! Networks over sound: convolutions along time, and generators that make waves of a spectrogram's frames, as HiFi-GAN (Kong
//! et al. 2020) and BigVGAN (Lee et al. 2022) do. Sound is (b, time, channels) inside.

mod conv;
mod filter;
mod generator;
mod mel;
mod model;
mod snake;

pub use conv::{Line, LineConv, LineSizes, LineUp, replicated, zero_padded};
pub use filter::{Smoothed, hann_filter, kaiser_filter, lowered, raised};
pub use generator::{Generator, GeneratorConfig, GeneratorNames};
pub use mel::{MelRule, mel_spectrogram};
pub use model::{FindSound, SoundFacts, SoundNetwork, SoundRows, SoundStore};
pub use snake::{Snake, SnakeKind};
