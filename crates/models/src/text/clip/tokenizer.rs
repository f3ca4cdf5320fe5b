//! Prompts to chunks of tokens: the form CLIP text encoders take.

use super::{ClipKind, bpe};
use crate::error::{ModelError, Result};
use crate::text::chunks::{ChunkRule, Prompt, PromptRule, Tokenizer};
use crate::text::vocabulary::Vocabulary;
use crate::text::{EmbeddingSource, Tokens};

/// The tokenizer of one CLIP encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipTokenizer {
    /// Tokens in a chunk, start and end included.
    max_length: usize,
    pad: u32,
    key: &'static str,
    width: usize,
}

/// Start, end, and room for something between them.
pub(super) const MIN_LENGTH: usize = 3;

impl ClipTokenizer {
    pub fn new(kind: ClipKind) -> Self {
        Self {
            max_length: 77,
            pad: kind.pad(),
            key: kind.name(),
            width: kind.width(),
        }
    }

    /// As [`Self::new`] with chunks of another length, for encoders with more or fewer positions than usual.
    pub fn with_length(kind: ClipKind, max_length: usize) -> Result<Self> {
        if max_length < MIN_LENGTH {
            let reason = format!("{max_length} positions leave no room for a prompt");
            return Err(ModelError::invalid("text encoder", reason));
        }
        Ok(Self {
            max_length,
            ..Self::new(kind)
        })
    }

    pub fn max_length(&self) -> usize {
        self.max_length
    }

    pub fn tokenize(&self, text: &str, embeddings: &dyn EmbeddingSource) -> Result<Tokens> {
        let tokenizer = Tokenizer {
            vocabulary: &Words,
            name: self.key,
            width: self.width,
        };
        let rule = PromptRule::plain(ChunkRule {
            most: Some(self.max_length),
            ..chunks(self.pad)
        });
        tokenizer.tokenize(&Prompt::new(text), &rule, embeddings)
    }
}

/// Chunks of 77 tokens, filled up with this one.
pub const fn chunks(pad: u32) -> ChunkRule {
    ChunkRule {
        start: Some(bpe::START),
        end: Some(bpe::END),
        pad,
        most: Some(77),
        fill: true,
        least: 0,
        multiple: 1,
        pad_left: false,
    }
}

/// The words of all of these encoders.
#[derive(Debug, Clone, Copy)]
pub struct Words;

impl Vocabulary for Words {
    fn encode(&self, text: &str) -> Vec<u32> {
        bpe::encode(text)
    }

    fn spellings(&self) -> Vec<String> {
        bpe::spellings()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::text::{NoEmbeddings, Token};

    struct Known;

    impl EmbeddingSource for Known {
        fn load(&self, name: &str, key: &str, width: usize) -> Option<Vec<Arc<[f32]>>> {
            assert_eq!((key, width), ("clip_l", 768));
            (name == "two").then(|| vec![[1.0].into(), [2.0].into()])
        }
    }

    /// Ids, `v1` for a vector, and the weight where it is not 1; without start, end and padding.
    fn shown(text: &str) -> (String, Vec<String>) {
        let tokens = ClipTokenizer::new(ClipKind::L)
            .tokenize(text, &Known)
            .unwrap();
        let line: Vec<String> = tokens
            .chunks
            .iter()
            .flatten()
            .filter(|t| t.word > 0)
            .map(|t| {
                let token = match &t.token {
                    Token::Id(id) => id.to_string(),
                    Token::Vector(v) => format!("v{}", v[0]),
                    Token::Picture(_) | Token::Sound(_) => unreachable!("there are no pictures"),
                };
                match t.weight {
                    1.0 => token,
                    w => format!("{token}@{w}"),
                }
            })
            .collect();
        (line.join(" "), tokens.missing)
    }

    #[track_caller]
    fn check(text: &str, expected: &str, missing: &[&str]) {
        assert_eq!(
            shown(text),
            (
                expected.to_owned(),
                missing.iter().map(|m| (*m).to_owned()).collect()
            )
        );
    }

    #[test]
    fn embeddings_are_found_by_name() {
        check("cat embedding:two dog", "2368 v1 v2 1929", &[]);
        check("(embedding:two:1.5), cat", "v1@1.5 v2@1.5 267 2368", &[]);
        check("embedding:two,, cat", "v1 v2 8844 2368", &[]);
        check("a\nembedding:two\nembedding:two", "320 v1 v2 v1 v2", &[]);
        check("embedding:none, cat", "267 2368", &["none,"]);
        check("embedding: cat", "", &["cat"]);
        check("embedding:", "", &[""]);
        // Only a space or a line end before it makes an embedding of it.
        check("xembedding:two", "87 19703 796 281 1237", &[]);
    }

    #[test]
    fn chunks_are_full_and_short_groups_stay_whole() {
        let tokenizer = ClipTokenizer::new(ClipKind::G);
        let prompt = format!("{}(a b c:1.2)", "cat ".repeat(73));
        let tokens = tokenizer.tokenize(&prompt, &NoEmbeddings).unwrap();
        assert_eq!(tokens.chunks.len(), 2);
        assert!(tokens.chunks.iter().all(|c| c.len() == 77));
        let ids = |chunk: usize, range: std::ops::Range<usize>| -> Vec<Token> {
            tokens.chunks[chunk][range]
                .iter()
                .map(|t| t.token.clone())
                .collect()
        };
        assert_eq!(ids(0, 73..77), [2368, bpe::END, 0, 0].map(Token::Id));
        assert_eq!(ids(1, 1..6), [320, 321, 322, bpe::END, 0].map(Token::Id));
        assert_eq!(tokens.chunks[1][1].weight, 1.2);
    }

    #[test]
    fn a_short_encoder_ends() {
        let tokenizer = ClipTokenizer::with_length(ClipKind::L, 4).unwrap();
        let tokens = tokenizer.tokenize("a b c d e", &NoEmbeddings).unwrap();
        assert_eq!(tokens.chunks.len(), 3);
        assert!(tokens.chunks.iter().all(|c| c.len() == 4));
        assert!(ClipTokenizer::with_length(ClipKind::L, 2).is_err());
        let long = ClipTokenizer::with_length(ClipKind::L, 248).unwrap();
        assert_eq!(
            long.tokenize("a", &NoEmbeddings).unwrap().chunks[0].len(),
            248
        );
    }
}
