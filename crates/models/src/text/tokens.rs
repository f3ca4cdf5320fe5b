//! Prompts as text networks take them.

use std::sync::Arc;

use fresco_tensor::Tensor;

/// What a place in a chunk holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    Id(u32),
    /// A row of a textual-inversion embedding.
    Vector(Arc<[f32]>),
    /// A picture `(b, h, w, 3)`, which becomes as many rows as its size needs.
    Picture(Arc<Tensor>),
    /// A sound `(b, channels, samples)`, which becomes as many rows as its length needs.
    Sound(Arc<Tensor>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    pub token: Token,
    pub weight: f64,
    /// Which group of the prompt it came from, counted from 1; 0 for start, end and padding.
    pub word: usize,
}

/// A prompt as one encoder sees it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tokens {
    pub chunks: Vec<Vec<Weighted>>,
    /// Embeddings the prompt names that could not be found or read.
    pub missing: Vec<String>,
}

/// Where embeddings come from. The models room opens no files.
pub trait EmbeddingSource {
    /// Whether there is a place for embeddings at all; without one, `embedding:` is plain text.
    fn exists(&self) -> bool {
        true
    }

    /// The rows of an embedding. `name` comes from the prompt; `key` and `width` say for which encoder.
    fn load(&self, name: &str, key: &str, width: usize) -> Option<Vec<Arc<[f32]>>>;
}

/// No place for embeddings.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEmbeddings;

impl EmbeddingSource for NoEmbeddings {
    fn exists(&self) -> bool {
        false
    }

    fn load(&self, _: &str, _: &str, _: usize) -> Option<Vec<Arc<[f32]>>> {
        None
    }
}

/// A prompt for every network of an encoder, by the networks' names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptTokens(pub Vec<(&'static str, Tokens)>);

impl PromptTokens {
    pub fn get(&self, network: &str) -> Option<&Tokens> {
        let found = self.0.iter().find(|(name, _)| *name == network);
        found.map(|(_, tokens)| tokens)
    }

    pub fn get_mut(&mut self, network: &str) -> Option<&mut Tokens> {
        let found = self.0.iter_mut().find(|(name, _)| *name == network);
        found.map(|(_, tokens)| tokens)
    }

    /// Embeddings that could not be found, each once.
    pub fn missing(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .0
            .iter()
            .flat_map(|(_, t)| t.missing.iter().map(String::as_str))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
