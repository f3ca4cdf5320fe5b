//! Tokenizers: text to the numbers that networks were trained with.
//!
//! They are few and small, so they are written here: byte-level pair encoding ([`byte_pairs`], [`tekken`]), unigram models
//! ([`unigram`], [`sentencepiece`]) and plain bytes. What may be shipped lies in `data`; the rest is read from the
//! model's file or from a `tokenizer.json` beside it ([`json`]).

pub mod byte_pairs;
mod charsmap;
pub mod json;
mod marks;
pub(crate) mod merge;
mod packed;
mod pieces;
pub mod sentencepiece;
pub mod splitting;
pub mod tekken;
pub mod unigram;
mod word_pieces;

pub use byte_pairs::BytePairs;
pub use marks::Marks;
pub use sentencepiece::SentencePiece;
pub use tekken::Tekken;
pub use unigram::Unigram;

/// From text to numbers. Start, end and padding are not its business.
pub trait Vocabulary: Send + Sync {
    fn encode(&self, text: &str) -> Vec<u32>;

    /// And back; none where that is not known. Bytes that make no letter become a sign for that.
    fn decode(&self, ids: &[u32]) -> Option<String> {
        let _ = ids;
        None
    }

    /// All tokens by their numbers, spelled as published tables have them; nothing where that is not known.
    fn spellings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The token that ends a text, where the vocabulary says so.
    fn end(&self) -> Option<u32> {
        None
    }
}

/// Every byte is a token; a few numbers before them have a meaning of their own (ByT5).
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    pub first: u32,
}

impl Vocabulary for Bytes {
    fn encode(&self, text: &str) -> Vec<u32> {
        text.bytes().map(|b| self.first + u32::from(b)).collect()
    }
}
