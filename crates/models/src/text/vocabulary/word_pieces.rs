//! BERT's tokenizer (Devlin et al. 2019): words at white space and signs, each cut into the longest pieces that are known.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization as _;

use super::{Marks, Vocabulary};
use crate::text::unicode::{is_letter, is_mark, is_number, is_other};

/// Longer words are not cut.
const LONGEST_WORD: usize = 100;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct WordPieces {
    ids: HashMap<String, u32>,
    unknown: u32,
    /// Stands before pieces inside a word.
    prefix: String,
    /// Whether letters are small and without accents.
    lower: bool,
    marks: Marks,
}

impl WordPieces {
    pub(super) fn new(
        ids: HashMap<String, u32>,
        unknown: u32,
        prefix: String,
        lower: bool,
        marks: Marks,
    ) -> Self {
        Self {
            ids,
            unknown,
            prefix,
            lower,
            marks,
        }
    }

    fn stretch(&self, text: &str, ids: &mut Vec<u32>) {
        let kept = text.chars().filter(|c| !is_other(*c) || c.is_whitespace());
        let text: String = if self.lower {
            let lower = kept.flat_map(char::to_lowercase).collect::<String>();
            lower.nfd().filter(|c| !is_mark(*c)).collect()
        } else {
            kept.collect()
        };
        let mut word = String::new();
        for c in text.chars() {
            // Signs and ideographs are words of their own.
            let single = is_sign(c)
                || matches!(c, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}');
            if single || c.is_whitespace() {
                self.word(&word, ids);
                word.clear();
            }
            if single {
                self.word(c.encode_utf8(&mut [0; 4]), ids);
            } else if !c.is_whitespace() {
                word.push(c);
            }
        }
        self.word(&word, ids);
    }

    fn word(&self, word: &str, ids: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let pieces = self.pieces(word);
        match pieces {
            Some(pieces) => ids.extend(pieces),
            None => ids.push(self.unknown),
        }
    }

    /// The longest known pieces from the front; none if some part is not known.
    fn pieces(&self, word: &str) -> Option<Vec<u32>> {
        if word.chars().count() > LONGEST_WORD {
            return None;
        }
        let mut found = Vec::new();
        let mut start = 0;
        while start < word.len() {
            let rest = &word[start..];
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
            let ends: Vec<usize> = ends.collect();
            let longest = ends.into_iter().rev().find_map(|end| {
                let id = if start == 0 {
                    self.ids.get(&rest[..end])
                } else {
                    self.ids.get(&format!("{}{}", self.prefix, &rest[..end]))
                };
                id.map(|id| (end, *id))
            });
            let (end, id) = longest?;
            found.push(id);
            start += end;
        }
        Some(found)
    }
}

/// Punctuation: all signs of ASCII, and what is neither letter, number, mark nor space elsewhere.
fn is_sign(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_punctuation();
    }
    matches!(c, '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff40}' | '\u{ff5b}'..='\u{ff65}' | '\u{a1}' | '\u{a7}' | '\u{ab}' | '\u{b6}' | '\u{b7}' | '\u{bb}' | '\u{bf}')
        && !is_letter(c)
        && !is_number(c)
}

impl Vocabulary for WordPieces {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.marks.encode(text, |text, ids| self.stretch(text, ids))
    }
}
