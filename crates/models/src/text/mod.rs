//! Text encoders: prompts to conditioning.
//!
//! A prompt is parsed into weighted segments ([`prompt`]), becomes tokens ([`vocabulary`]) in chunks and runs through the
//! networks of a [`TextStack`], each a [`TextNetwork`]; [`TextEncoder`] puts their outputs together. Networks that are plain
//! transformers over rows of numbers share one way to run prompts ([`sequence`]).

mod chunks;
pub mod clip;
pub mod decoder;
mod embedding;
mod encoder;
mod network;
pub mod post_norm;
pub mod prompt;
pub mod qwen_vision;
pub mod sequence;
pub mod t5;
mod tokens;
mod unicode;
pub mod vocabulary;
mod writing;

pub use chunks::{ChunkRule, Prompt, PromptRule, PromptWeights, tokenize};
pub use embedding::{read_embedding, unpickle_embedding};
pub use encoder::{
    Encoded, PartOutput, PartOutputs, QuestionMedia, SavedAs, StackPart, TextEncoder, TextStack,
    WordsPart, join_widths,
};
pub use network::{
    EncodeRule, FindText, KeptIn, LayerRule, Specials, States, TextKind, TextNetwork, TextOutput,
};
pub use tokens::{EmbeddingSource, NoEmbeddings, PromptTokens, Token, Tokens, Weighted};
use writing::Remembered;
pub use writing::{Draw, Memory, WritingGuidance, WritingRule};
