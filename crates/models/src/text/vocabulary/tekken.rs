//! Mistral's tokenizer, which its text encoders bring as JSON in a tensor: bytes merge to whichever known piece has the
//! lowest rank.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::merge::{Merge, Pairs, merge_all};
use super::splitting::{Cuts, words};
use super::{Marks, Vocabulary};
use crate::error::{ModelError, Result};

const CUTS: Cuts = Cuts {
    digits: 3,
    accents: false,
};
/// More pieces than any model has.
const MOST_PIECES: usize = 4_000_000;

/// See the [module](self).
#[derive(Debug)]
pub struct Tekken {
    pieces: Vec<Box<[u8]>>,
    ids: HashMap<Box<[u8]>, u32>,
    bytes: [u32; 256],
    marks: Marks,
    /// Number of the first piece.
    first: u32,
}

impl Tekken {
    /// The tokenizer in the bytes of a file; `what` names it in messages.
    pub fn parse(json: &[u8], what: &str) -> Result<Self> {
        let wrong = |reason: &str| {
            let reason = format!("its tokenizer cannot be used: {reason}");
            ModelError::unsupported(what, reason)
        };
        let value: Value = serde_json::from_slice(json).map_err(|e| wrong(&e.to_string()))?;
        let list = |name: &str| value[name].as_array().map(Vec::as_slice);
        let marks = list("special_tokens").unwrap_or_default();
        let vocabulary = list("vocab").ok_or_else(|| wrong("it has no words"))?;
        let first = marks.len();
        let size = value["config"]["default_vocab_size"].as_u64();
        let most = size.map_or(MOST_PIECES, |n| (n as usize).saturating_sub(first));
        let mut pieces: Vec<Box<[u8]>> = Vec::new();
        let mut ids = HashMap::new();
        for entry in vocabulary {
            if entry["rank"]
                .as_u64()
                .is_some_and(|rank| rank as usize >= most)
            {
                continue;
            }
            let bytes = entry["token_bytes"].as_str();
            let bytes = bytes.and_then(|text| STANDARD.decode(text).ok());
            let bytes = bytes.ok_or_else(|| wrong("a word of it has no bytes"))?;
            let bytes = bytes.into_boxed_slice();
            ids.entry(bytes.clone()).or_insert(pieces.len() as u32);
            pieces.push(bytes);
        }
        let mut bytes = [0; 256];
        for (byte, slot) in (0..=u8::MAX).zip(&mut bytes) {
            let id = ids.get(&[byte][..]);
            *slot = *id.ok_or_else(|| wrong("it does not know every byte"))?;
        }
        let named = marks.iter().zip(0..).filter_map(|(entry, id)| {
            let text = entry["token_str"].as_str().map(str::to_owned);
            let text = text.or_else(|| {
                let bytes = STANDARD.decode(entry["token_bytes"].as_str()?).ok()?;
                String::from_utf8(bytes).ok()
            });
            Some((text?, id))
        });
        Ok(Self {
            marks: Marks::new(named),
            pieces,
            ids,
            bytes,
            first: first as u32,
        })
    }
}

impl Pairs for Tekken {
    /// Of the piece that two make, then of the two.
    type Rank = (u32, u32, u32);

    fn merge(&self, left: u32, right: u32) -> Option<Merge<Self::Rank>> {
        let piece = |id: u32| &*self.pieces[id as usize];
        let both = [piece(left), piece(right)].concat();
        let token = *self.ids.get(&*both)?;
        let rank = (token, left, right);
        Some(Merge { rank, token })
    }
}

impl Vocabulary for Tekken {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.marks.encode(text, |text, ids| {
            for word in words(text, CUTS) {
                if let Some(id) = self.ids.get(word.as_bytes()) {
                    ids.push(self.first + id);
                    continue;
                }
                let tokens = word.bytes().map(|b| self.bytes[usize::from(b)]);
                let merged = merge_all(self, tokens.collect());
                ids.extend(merged.into_iter().map(|id| self.first + id));
            }
        })
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        let mut bytes = Vec::new();
        for id in ids {
            let piece = id.checked_sub(self.first);
            match piece.and_then(|at| self.pieces.get(at as usize)) {
                Some(piece) => bytes.extend_from_slice(piece),
                None => bytes.extend(self.marks.text(*id).unwrap_or_default().as_bytes()),
            }
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_text_again() {
        let mut vocabulary: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        vocabulary.push(b"ab".to_vec());
        let words = vocabulary.iter().enumerate().map(|(rank, bytes)| {
            let bytes = STANDARD.encode(bytes);
            format!(r#"{{"rank": {rank}, "token_bytes": "{bytes}"}}"#)
        });
        let words: Vec<String> = words.collect();
        let marks = r#"[{"token_str": "<s>"}, {"token_str": "[INST]"}]"#;
        let json = format!(
            r#"{{"special_tokens": {marks}, "vocab": [{}]}}"#,
            words.join(",")
        );
        let tekken = Tekken::parse(json.as_bytes(), "x").expect("a small tokenizer");
        let text = "[INST]ab é";
        assert_eq!(tekken.decode(&tekken.encode(text)).as_deref(), Some(text));
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        for (json, part) in [
            ("", "EOF"),
            ("{}", "no words"),
            (
                r#"{"vocab": [{"rank": 0, "token_bytes": "AA=="}]}"#,
                "every byte",
            ),
            (
                r#"{"vocab": [{"rank": 0, "token_bytes": "?"}]}"#,
                "no bytes",
            ),
        ] {
            let error = Tekken::parse(json.as_bytes(), "x").unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
