//! CLIP's byte-pair encoding.
//!
//! The merge table (see `README.md` here) lies in the program and is turned into a lookup at the first prompt.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::unicode::clean;
use crate::text::unicode::{is_letter, is_number};
use crate::text::vocabulary::merge::{BYTE_ORDER, Merge, Pairs, character_of, merge_all};

pub const START: u32 = 49406;
pub const END: u32 = 49407;
/// Number of tokens.
pub const VOCABULARY: usize = 49408;

/// Token of the first merge; before it are the bytes, inside a word and at its end.
const FIRST_MERGE: u32 = 512;
const AT_END: u32 = 256;

static TABLE: &[u8] = include_bytes!("clip_merges.bin");

/// Which token a pair becomes.
static MERGES: LazyLock<HashMap<(u16, u16), u16>> = LazyLock::new(|| {
    let (pairs, rest) = TABLE.as_chunks::<4>();
    assert!(rest.is_empty(), "the table consists of pairs");
    pairs
        .iter()
        .zip(FIRST_MERGE as u16..)
        .map(|(&[a, b, c, d], token)| {
            let pair = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
            (pair, token)
        })
        .collect()
});

/// The token ids of a text, without start and end.
pub fn encode(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text;
    // Written exactly so, the two marks are cut out before anything else happens to the text.
    loop {
        let mark = [("<|startoftext|>", START), ("<|endoftext|>", END)]
            .into_iter()
            .filter_map(|(mark, id)| rest.find(mark).map(|at| (at, mark, id)))
            .min();
        let Some((at, mark, id)) = mark else { break };
        stretch(&rest[..at], &mut ids);
        ids.push(id);
        rest = &rest[at + mark.len()..];
    }
    stretch(rest, &mut ids);
    ids
}

/// All tokens by their numbers, with the mark of a word's end.
pub(super) fn spellings() -> Vec<String> {
    let bytes = || (0..=u8::MAX).map(character_of);
    let mut tokens: Vec<String> = bytes().map(String::from).collect();
    tokens.extend(bytes().map(|c| format!("{c}</w>")));
    let (pairs, _) = TABLE.as_chunks::<4>();
    for &[a, b, c, d] in pairs {
        let part = |low, high| tokens[usize::from(u16::from_le_bytes([low, high]))].as_str();
        tokens.push([part(a, b), part(c, d)].concat());
    }
    tokens.extend(["<|startoftext|>", "<|endoftext|>"].map(str::to_owned));
    tokens
}

fn stretch(text: &str, ids: &mut Vec<u32>) {
    let text = clean(text);
    for word in text.split(' ') {
        let mut rest = word;
        while !rest.is_empty() {
            let (len, special) = piece(rest);
            let (head, tail) = rest.split_at(len);
            match special {
                Some(id) => ids.push(id),
                None => merge(head.as_bytes(), ids),
            }
            rest = tail;
        }
    }
}

/// Length of the next piece of a word, and its token if it is a mark.
fn piece(word: &str) -> (usize, Option<u32>) {
    const MARKS: [(&str, Option<u32>); 9] = [
        ("<|startoftext|>", Some(START)),
        ("<|endoftext|>", Some(END)),
        ("'s", None),
        ("'t", None),
        ("'re", None),
        ("'ve", None),
        ("'m", None),
        ("'ll", None),
        ("'d", None),
    ];
    for (mark, id) in MARKS {
        if let Some(len) = starts_with_folded(word, mark) {
            // The long s counts as an s when comparing, but is not the mark's letter.
            return (len, id.filter(|_| word.starts_with(mark)));
        }
    }
    let first = word.chars().next().expect("the word is not empty");
    let run = |holds: fn(char) -> bool| word.find(|c| !holds(c)).unwrap_or(word.len());
    let len = if is_letter(first) {
        run(is_letter)
    } else if is_number(first) {
        first.len_utf8()
    } else {
        run(|c| !is_letter(c) && !is_number(c))
    };
    (len, None)
}

/// The bytes of `word` that equal `start` when case is ignored. The word is lower-case; the one other letter that folds to
/// one of these is the long s.
fn starts_with_folded(word: &str, start: &str) -> Option<usize> {
    let mut chars = word.char_indices();
    for expected in start.chars() {
        let (_, c) = chars.next()?;
        if c != expected && !(expected == 's' && c == 'ſ') {
            return None;
        }
    }
    Some(chars.next().map_or(word.len(), |(at, _)| at))
}

/// Merges the bytes of one piece. Every pair that contains a merged token stands later in the table than the token itself, so
/// lowest token first, leftmost first, is the same as merging all occurrences of the lowest pair at a time.
fn merge(bytes: &[u8], ids: &mut Vec<u32>) {
    let tokens = bytes.iter().map(|b| u32::from(BYTE_ORDER[usize::from(*b)]));
    let mut tokens: Vec<u32> = tokens.collect();
    if let Some(last) = tokens.last_mut() {
        *last += AT_END;
    }
    ids.extend(merge_all(&Table, tokens));
}

/// The table as pairs.
struct Table;

impl Pairs for Table {
    type Rank = u32;

    fn merge(&self, left: u32, right: u32) -> Option<Merge<u32>> {
        let pair = (u16::try_from(left).ok()?, u16::try_from(right).ok()?);
        let token = u32::from(*MERGES.get(&pair)?);
        Some(Merge { rank: token, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[u32]) {
        assert_eq!(encode(text), expected, "{text}");
    }

    #[test]
    fn published_examples() {
        check("a photo of a cat", &[320, 1125, 539, 320, 2368]);
        check("Hello, WORLD!!", &[3306, 267, 1002, 748]);
        check("don't it's", &[847, 713, 585, 568]);
        check("1234 12.5", &[272, 273, 274, 275, 272, 273, 269, 276]);
        check("café naïve ﬁ", &[15304, 1097, 35689, 563, 171, 105, 479]);
        check(
            "日本語 テスト",
            &[37156, 19277, 361, 34002, 508, 2429, 228, 32421, 486],
        );
        check("emoji 😀", &[16327, 7334]);
        check("x_y-z", &[343, 318, 344, 268, 345]);
        check("cat:dog (a)", &[2368, 281, 1929, 263, 320, 264]);
    }

    #[test]
    fn tokens_are_spelled_as_in_the_published_table() {
        let tokens = spellings();
        assert_eq!(tokens.len(), VOCABULARY);
        let of = |text: &str| -> Vec<&str> {
            let ids = encode(text).into_iter();
            ids.map(|id| tokens[id as usize].as_str()).collect()
        };
        assert_eq!(of("a photo"), ["a</w>", "photo</w>"]);
        assert_eq!(of("x_y"), ["x</w>", "_</w>", "y</w>"]);
        assert_eq!(tokens[END as usize], "<|endoftext|>");
    }

    #[test]
    fn marks_inside_a_word() {
        check("!!<|endoftext|>a", &[748, END, 320]);
        // Not written exactly, a mark is only seen at the start of a piece.
        check("A<|EndOfText|>", &[320, END]);
        assert!(!encode("!<|EndOfText|>").contains(&END));
    }

    #[test]
    fn every_merge_uses_earlier_tokens() {
        assert!(MERGES.iter().all(|((a, b), token)| a < token && b < token));
        assert_eq!(MERGES.len() + FIRST_MERGE as usize + 2, VOCABULARY);
    }

    #[test]
    fn a_huge_word_takes_no_square_time() {
        let ids = encode(&"x".repeat(400_000));
        assert_eq!(ids.len(), 100_000);
    }
}
