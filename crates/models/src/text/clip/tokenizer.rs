//! Prompts to chunks of tokens: the form CLIP text encoders take.

use std::sync::Arc;

use super::{ClipKind, bpe};
use crate::error::{ModelError, Result};
use crate::text::prompt::{self, Segment, is_python_space};
use crate::text::{EmbeddingSource, Token, Tokens, Weighted};

/// A group of fewer tokens is not torn apart at the end of a chunk.
const LARGE_GROUP: usize = 8;
const MARK: &str = "embedding:";

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
        let mut missing = Vec::new();
        let mut groups = Vec::new();
        for segment in prompt::parse(text)? {
            self.segment(&segment, embeddings, &mut groups, &mut missing);
        }
        Ok(Tokens {
            chunks: self.chunks(groups),
            missing,
        })
    }

    fn segment(
        &self,
        segment: &Segment,
        embeddings: &dyn EmbeddingSource,
        groups: &mut Vec<(Vec<Token>, f64)>,
        missing: &mut Vec<String>,
    ) {
        for part in parts(&segment.text) {
            let named = part.strip_prefix(MARK).filter(|_| embeddings.exists());
            let Some(named) = named else {
                groups.push((ids(part), segment.weight));
                continue;
            };
            let (rows, leftover) = self.embedding(named, embeddings, missing);
            if let Some(rows) = rows {
                let tokens = rows.into_iter().map(Token::Vector).collect();
                groups.push((tokens, segment.weight));
            }
            if !leftover.is_empty() {
                groups.push((ids(&leftover), segment.weight));
            }
        }
    }

    /// The embedding that `named` begins with, and the text that follows its name.
    fn embedding(
        &self,
        named: &str,
        embeddings: &dyn EmbeddingSource,
        missing: &mut Vec<String>,
    ) -> (Option<Vec<Arc<[f32]>>>, String) {
        let mut words = named.split(is_python_space).filter(|w| !w.is_empty());
        let name = words.next().unwrap_or_default();
        let leftover = words.collect::<Vec<_>>().join(" ");
        let load = |name: &str| {
            let named = !name.is_empty();
            named.then(|| embeddings.load(name, self.key, self.width))?
        };
        let mut found = (load(name), leftover);
        let stripped = name.trim_matches(',');
        if found.0.is_none() && stripped.len() < name.len() {
            // The rest of the name is counted from its front, also when a comma was there.
            let rest = name.get(stripped.len()..).unwrap_or_default();
            found = (load(stripped), format!("{rest} {}", found.1));
        }
        if found.0.is_none() {
            missing.push(name.to_owned());
        }
        found
    }

    fn chunks(&self, groups: Vec<(Vec<Token>, f64)>) -> Vec<Vec<Weighted>> {
        let plain = |id| Weighted {
            token: Token::Id(id),
            weight: 1.0,
            word: 0,
        };
        let close = |chunk: &mut Vec<Weighted>| {
            chunk.push(plain(bpe::END));
            while chunk.len() < self.max_length {
                chunk.push(plain(self.pad));
            }
        };
        let room = self.max_length - 1; // the last place is for the end
        let mut done = Vec::new();
        let mut chunk = vec![plain(bpe::START)];
        for (index, (tokens, weight)) in groups.into_iter().enumerate() {
            let large = tokens.len() >= LARGE_GROUP;
            let mut tokens = tokens.into_iter().map(|token| Weighted {
                token,
                weight,
                word: index + 1,
            });
            while tokens.len() > 0 {
                let free = room - chunk.len();
                if tokens.len() <= free {
                    chunk.extend(tokens.by_ref());
                    break;
                }
                // A short group goes whole into the next chunk, unless it would not fit there either.
                if large || chunk.len() == 1 {
                    chunk.extend(tokens.by_ref().take(free));
                }
                close(&mut chunk);
                done.push(std::mem::replace(&mut chunk, vec![plain(bpe::START)]));
            }
        }
        close(&mut chunk);
        done.push(chunk);
        done
    }
}

fn ids(text: &str) -> Vec<Token> {
    bpe::encode(text).into_iter().map(Token::Id).collect()
}

/// The stretches of a segment that begin with an embedding, and what is before the first. The space or line end before an
/// embedding belongs to neither.
fn parts(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(MARK) {
        let separated = at > start && matches!(text.as_bytes()[at - 1], b' ' | b'\n');
        if separated {
            found.push(&text[start..at - 1]);
            start = at;
        }
    }
    found.push(&text[start..]);
    found.retain(|part| !part.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::NoEmbeddings;

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
