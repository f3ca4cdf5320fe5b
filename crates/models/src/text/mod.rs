//! Text encoders: prompts to conditioning.
//!
//! A prompt is parsed into weighted segments ([`prompt`]), cut into chunks of tokens ([`tokenizer`]), run through one or two
//! CLIP text networks ([`clip`]) and put together ([`encoder`]).

use fresco_tensor::nn::Act;

pub mod bpe;
pub mod clip;
mod embedding;
pub mod encoder;
mod layout;
pub mod prompt;
pub mod tokenizer;
mod unicode;

pub use clip::{ClipConfig, ClipLayer, ClipOutput};
pub use embedding::{read_embedding, unpickle_embedding};
pub use encoder::{ClipEncoder, Encoded, PromptTokens, Stack, TextEncoder};

pub use tokenizer::{ClipTokenizer, EmbeddingSource, NoEmbeddings, Token, Tokens, Weighted};

/// The CLIP text encoders that models use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipKind {
    /// ViT-L/14 of OpenAI: SD1, and one half of SDXL.
    L,
    /// ViT-H/14 of OpenCLIP: SD2.
    H,
    /// ViT-bigG/14 of OpenCLIP: the other half of SDXL.
    G,
}

impl ClipKind {
    /// Its name in keys of models and embeddings.
    pub fn name(self) -> &'static str {
        match self {
            Self::L => "clip_l",
            Self::H => "clip_h",
            Self::G => "clip_g",
        }
    }

    /// Numbers in a token of the full-size encoder.
    pub fn width(self) -> usize {
        match self {
            Self::L => 768,
            Self::H => 1024,
            Self::G => 1280,
        }
    }

    /// The token after the end.
    pub fn pad(self) -> u32 {
        match self {
            Self::L => bpe::END,
            Self::H | Self::G => 0,
        }
    }

    fn act(self) -> Act {
        match self {
            Self::L => Act::QuickGelu,
            Self::H | Self::G => Act::Gelu,
        }
    }
}
