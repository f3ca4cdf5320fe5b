//! Byte-level pair encoding with a table of merges, as GPT-2 has it; the table of Qwen 2 lies in the program.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use unicode_normalization::{UnicodeNormalization as _, is_nfc};

use super::merge::{BYTE_ORDER, Merge, Pairs, merge_all};
use super::packed;
use super::splitting::{Cuts, words};
use super::{Marks, Vocabulary};

/// See the [module](self).
#[derive(Debug)]
pub struct BytePairs {
    /// The token of each byte.
    bytes: [u32; 256],
    merges: HashMap<(u32, u32), Merge<u32>>,
    /// Words that are tokens however their bytes would merge; empty where merges decide alone.
    whole: HashMap<Vec<u8>, u32>,
    marks: Marks,
    cuts: Cuts,
    /// Whether accents join their letters first.
    composed: bool,
    /// What tokens are made of, once somebody asks.
    parts: OnceLock<HashMap<u32, TokenPart>>,
}

/// What makes a tokenizer of this kind.
pub(super) struct Parts {
    pub(super) bytes: [u32; 256],
    pub(super) merges: HashMap<(u32, u32), Merge<u32>>,
    pub(super) whole: HashMap<Vec<u8>, u32>,
    pub(super) marks: Marks,
    pub(super) cuts: Cuts,
    pub(super) composed: bool,
}

impl BytePairs {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            bytes: parts.bytes,
            merges: parts.merges,
            whole: parts.whole,
            marks: parts.marks,
            cuts: parts.cuts,
            composed: parts.composed,
            parts: OnceLock::new(),
        }
    }

    /// The tokenizer of Qwen 2, 2.5 and 3, which all have the same words.
    pub fn qwen2() -> Arc<Self> {
        static SHARED: LazyLock<Arc<BytePairs>> = LazyLock::new(|| Arc::new(qwen2()));
        Arc::clone(&SHARED)
    }

    fn stretch(&self, text: &str, ids: &mut Vec<u32>) {
        for word in words(text, self.cuts) {
            if let Some(id) = self.whole.get(word.as_bytes()) {
                ids.push(*id);
                continue;
            }
            let tokens = word.bytes().map(|b| self.bytes[usize::from(b)]);
            ids.extend(merge_all(self, tokens.collect()));
        }
    }
}

impl Pairs for BytePairs {
    type Rank = u32;

    fn merge(&self, left: u32, right: u32) -> Option<Merge<u32>> {
        self.merges.get(&(left, right)).copied()
    }
}

impl Vocabulary for BytePairs {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.marks.encode(text, |text, ids| {
            if self.composed && !is_nfc(text) {
                self.stretch(&text.nfc().collect::<String>(), ids);
            } else {
                self.stretch(text, ids);
            }
        })
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        let parts = self.parts.get_or_init(|| self.parts());
        let mut bytes = Vec::new();
        for id in ids {
            match (self.marks.text(*id), parts.get(id)) {
                (Some(mark), _) => bytes.extend(mark.as_bytes()),
                (None, Some(part)) => Self::spell(part, parts, &mut bytes),
                (None, None) => {}
            }
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What a token is made of.
#[derive(Debug, Clone)]
enum TokenPart {
    Byte(u8),
    Pair(u32, u32),
    Word(Vec<u8>),
}

impl BytePairs {
    /// What each token is made of.
    fn parts(&self) -> HashMap<u32, TokenPart> {
        let words = self.whole.iter();
        let mut parts: HashMap<u32, TokenPart> = words
            .map(|(word, id)| (*id, TokenPart::Word(word.clone())))
            .collect();
        let merges = self.merges.iter();
        parts.extend(merges.map(|((a, b), merge)| (merge.token, TokenPart::Pair(*a, *b))));
        let bytes = self.bytes.iter().zip(0..=u8::MAX);
        parts.extend(bytes.map(|(id, byte)| (*id, TokenPart::Byte(byte))));
        parts
    }

    /// The bytes of a token, from the left.
    fn spell(part: &TokenPart, parts: &HashMap<u32, TokenPart>, bytes: &mut Vec<u8>) {
        let mut left = vec![part];
        // A table that goes in circles has no end; no word has so many parts.
        let mut steps = 0;
        while let Some(part) = left.pop() {
            steps += 1;
            if steps > 10_000 {
                return;
            }
            match part {
                TokenPart::Byte(byte) => bytes.push(*byte),
                TokenPart::Word(word) => bytes.extend(word),
                TokenPart::Pair(a, b) => {
                    left.extend(parts.get(b));
                    left.extend(parts.get(a));
                }
            }
        }
    }
}

/// The marks of Qwen 2 and its successors in the order of their numbers, which follow those of the words.
const QWEN_MARKS: [&str; 26] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];

fn qwen2() -> BytePairs {
    let merges = packed::merges(include_bytes!("data/qwen2.merges.z"));
    let first = 256 + merges.len() as u32;
    let ranked = merges.into_iter().zip(0..).map(|(pair, rank)| {
        let token = 256 + rank;
        (pair, Merge { rank, token })
    });
    let marks = QWEN_MARKS.iter().zip(first..);
    BytePairs::new(Parts {
        bytes: BYTE_ORDER.map(u32::from),
        merges: ranked.collect(),
        whole: HashMap::new(),
        marks: Marks::new(marks.map(|(mark, id)| ((*mark).to_owned(), id))),
        cuts: Cuts {
            digits: 1,
            accents: false,
        },
        composed: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[u32]) {
        assert_eq!(BytePairs::qwen2().encode(text), expected, "{text}");
    }

    #[test]
    fn published_examples() {
        check("a photo of a cat", &[64, 6548, 315, 264, 8251]);
        check("123 45", &[16, 17, 18, 220, 19, 20]);
        check(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
            &[151644, 872, 198, 6023, 151645, 198, 151644, 77091, 198],
        );
        check("<think></think><|image_pad|>", &[151667, 151668, 151655]);
        // An accent of its own joins its letter first.
        let composed = BytePairs::qwen2().encode("caf\u{e9}");
        let words = BytePairs::qwen2();
        for text in [
            "a photo of a cat\n",
            "caf\u{e9} 日本 123",
            "<|im_start|>user<think>",
        ] {
            assert_eq!(words.decode(&words.encode(text)).as_deref(), Some(text));
        }
        assert_eq!(words.decode(&[u32::MAX]).as_deref(), Some(""));
        check("cafe\u{301}", &composed);
    }
}
