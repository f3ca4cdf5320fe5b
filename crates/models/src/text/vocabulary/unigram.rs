//! Unigram tokenizers (Kudo 2018): of all ways to cut a word into known pieces the most likely one.

use std::sync::{Arc, LazyLock};

use super::charsmap::CharsMap;
use super::pieces::Pieces;
use super::{Marks, Vocabulary, packed};

/// How much less likely than the least likely piece an unknown sign is.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Takes the place of a space.
pub(super) const SPACE: char = '▁';

/// The most likely pieces of words.
#[derive(Debug)]
pub(super) struct Cutter {
    pub(super) pieces: Pieces,
    pub(super) scores: Vec<f32>,
    unknown: u32,
    unknown_score: f64,
}

/// One place of a word while the best way to it is searched.
#[derive(Clone, Copy)]
struct Node {
    score: f64,
    start: usize,
    id: u32,
}

impl Cutter {
    /// `least` is the lowest score of a usual piece.
    pub(super) fn new(pieces: Pieces, scores: Vec<f32>, unknown: u32, least: f32) -> Self {
        Self {
            pieces,
            scores,
            unknown,
            unknown_score: f64::from(least) - UNKNOWN_PENALTY,
        }
    }

    pub(super) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Cuts a word. `each` gets the bytes of every piece and its number; unknown signs next to each other are one.
    pub(super) fn cut<'a>(&self, word: &'a str, mut each: impl FnMut(&'a [u8], u32)) {
        let bytes = word.as_bytes();
        let mut best: Vec<Option<Node>> = vec![None; bytes.len() + 1];
        for (start, sign) in word.char_indices() {
            let so_far = match best[start] {
                Some(node) => node.score,
                None if start == 0 => 0.0,
                // No way leads here: a piece spans this place.
                None => continue,
            };
            let mut single = false;
            let mut offer = |end: usize, id: u32, score: f64| {
                let node = &mut best[end];
                let score = so_far + score;
                if node.is_none_or(|node| score > node.score) {
                    *node = Some(Node { score, start, id });
                }
            };
            self.pieces.prefixes(&bytes[start..], |len, id| {
                single |= len == sign.len_utf8();
                offer(start + len, id, f64::from(self.scores[id as usize]));
            });
            if !single {
                offer(start + sign.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let mut found = Vec::new();
        let mut end = bytes.len();
        while let Some(node) = best[end].filter(|_| end > 0) {
            found.push((node.start, end, node.id));
            end = node.start;
        }
        found.reverse();
        let mut found = found.into_iter().peekable();
        while let Some((start, mut end, id)) = found.next() {
            while id == self.unknown
                && let Some((_, further, _)) = found.next_if(|(_, _, next)| *next == id)
            {
                end = further;
            }
            each(&bytes[start..end], id);
        }
    }
}

/// A unigram model as the tokenizers library runs it.
#[derive(Debug)]
pub struct Unigram {
    cutter: Cutter,
    charsmap: CharsMap,
    marks: Marks,
}

impl Unigram {
    /// The tokenizer of T5 1.1.
    pub fn t5() -> Arc<Self> {
        static SHARED: LazyLock<Arc<Unigram>> = LazyLock::new(|| Arc::new(t5()));
        Arc::clone(&SHARED)
    }

    pub(super) fn new(
        pieces: Pieces,
        scores: Vec<f32>,
        unknown: u32,
        charsmap: CharsMap,
        marks: Marks,
    ) -> Self {
        let least = scores.iter().copied().fold(f32::INFINITY, f32::min);
        Self {
            cutter: Cutter::new(pieces, scores, unknown, least),
            charsmap,
            marks,
        }
    }

    fn stretch(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.charsmap.by_signs(text);
        let text = text.trim_end();
        let mut spaced = String::with_capacity(text.len() + SPACE.len_utf8());
        if !text.is_empty() && !text.starts_with([' ', SPACE]) {
            spaced.push(SPACE);
        }
        let mut gap = false;
        for c in text.chars() {
            match c {
                // Spaces next to each other are one.
                ' ' if gap => {}
                ' ' => spaced.push(SPACE),
                c => spaced.push(c),
            }
            gap = c == ' ';
        }
        for word in words(&spaced) {
            self.cutter.cut(word, |_, id| ids.push(id));
        }
    }
}

/// Words, each with the mark of the space before it.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?.len_utf8();
        let end = rest[first..]
            .find(SPACE)
            .map_or(rest.len(), |at| first + at);
        let (word, tail) = rest.split_at(end);
        rest = tail;
        Some(word)
    })
}

impl Vocabulary for Unigram {
    fn encode(&self, text: &str) -> Vec<u32> {
        self.marks.encode(text, |text, ids| self.stretch(text, ids))
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        let pieces = self.cutter.pieces();
        let mut bytes = Vec::new();
        for id in ids {
            match self.marks.text(*id) {
                Some(mark) => bytes.extend(mark.as_bytes()),
                None if (*id as usize) < pieces.len() => bytes.extend_from_slice(pieces.piece(*id)),
                None => {}
            }
        }
        let text = String::from_utf8_lossy(&bytes).replace(SPACE, " ");
        Some(text.strip_prefix(' ').unwrap_or(&text).to_owned())
    }

    fn spellings(&self) -> Vec<String> {
        let pieces = self.cutter.pieces();
        (0..pieces.len() as u32)
            .map(|id| match self.marks.text(id) {
                Some(mark) => mark.to_owned(),
                None => String::from_utf8_lossy(pieces.piece(id)).into_owned(),
            })
            .collect()
    }
}

/// Pieces of T5 that are marks for other uses: padding, end, unknown, and a hundred places to fill.
fn t5() -> Unigram {
    let packed = packed::pieces(include_bytes!("data/t5.pieces.z"));
    let named = |id: u32| {
        let piece = std::str::from_utf8(packed.pieces.piece(id)).ok()?;
        let mark = id <= packed.unknown || piece.starts_with("<extra_id_");
        mark.then(|| (piece.to_owned(), id))
    };
    let marks = Marks::new((0..packed.pieces.len() as u32).filter_map(named));
    let charsmap = CharsMap::parse(&packed.charsmap).expect("the program has its tables whole");
    Unigram::new(
        packed.pieces,
        packed.scores,
        packed.unknown,
        charsmap,
        marks,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[u32]) {
        assert_eq!(Unigram::t5().encode(text), expected, "{text:?}");
    }

    #[test]
    fn published_examples() {
        check("a photo of a cat", &[3, 9, 1202, 13, 3, 9, 1712]);
        check("", &[]);
        check("  two  spaces ", &[192, 4856]);
        check("line\nbreak", &[689, 1733]);
        check("</s> x", &[1, 3, 226]);
        check("日本", &[3, 2]);
    }

    #[test]
    fn numbers_become_text_again() {
        let text = Unigram::t5().decode(&[3, 9, 1202, 13, 3, 9, 1712, 1, 99_999]);
        assert_eq!(text.as_deref(), Some("a photo of a cat</s>"));
    }

    #[test]
    fn a_long_text_takes_no_square_time() {
        let ids = Unigram::t5().encode(&"x".repeat(200_000));
        assert!(ids.len() > 50_000);
    }
}
