//! Text encoders: prompts to conditioning.
//!
//! A prompt is parsed into weighted segments ([`prompt`]), becomes tokens and runs through the networks of a
//! [`TextStack`], each a [`TextNetwork`] with its own tokenizer; [`TextEncoder`] puts their outputs together.

pub mod clip;
mod embedding;
mod encoder;
mod network;
pub mod prompt;
mod tokens;

pub use embedding::{read_embedding, unpickle_embedding};
pub use encoder::{Encoded, SavedAs, StackPart, TextEncoder, TextStack, join_widths};
pub use network::{FindText, LayerRule, TextKind, TextNetwork, TextOutput};
pub use tokens::{EmbeddingSource, NoEmbeddings, PromptTokens, Token, Tokens, Weighted};
