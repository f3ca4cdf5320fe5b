//! SentencePiece models as files of text encoders bring them: a unigram or a pair-encoding vocabulary with its rules for
//! white space, in one protocol buffer.

use std::sync::{Arc, LazyLock};

use super::charsmap::CharsMap;
use super::merge::{Merge, Pairs, merge_all};
use super::pieces::Pieces;
use super::unigram::{Cutter, SPACE};
use super::{Vocabulary, packed};
use crate::error::{ModelError, Result};

/// More pieces than any model has; a file that says otherwise is not one.
const MOST_PIECES: usize = 2_000_000;

/// What a piece is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceKind {
    Normal,
    Unknown,
    /// Start, end, padding: never found in a text.
    Control,
    /// Found whole, whatever its letters would merge to.
    Defined,
    Unused,
    /// Stands for a byte of a sign that nobody knows.
    Byte,
}

impl PieceKind {
    fn of(number: u64) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::Defined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

#[derive(Debug)]
enum Way {
    /// The most likely cut.
    Likely(Cutter),
    /// Neighbours with the best score become one.
    Pairs(ScoredPairs),
}

/// See the [module](self).
#[derive(Debug)]
pub struct SentencePiece {
    way: Way,
    charsmap: CharsMap,
    /// Pieces that are found whole.
    defined: Pieces,
    /// The pieces of single bytes, where signs that nobody knows become bytes.
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    /// Pieces that are no text, in their order.
    silent: Vec<u32>,
    start: Option<u32>,
    end: Option<u32>,
    /// A space before the first word.
    prefix: bool,
    /// Spaces at both ends go, and those next to each other become one.
    trimmed: bool,
}

impl SentencePiece {
    /// The model in the bytes of a file; `what` names it in messages.
    pub fn parse(bytes: &[u8], what: &str) -> Result<Self> {
        let wrong = |reason: &str| {
            let reason = format!("its SentencePiece model cannot be used: {reason}");
            ModelError::unsupported(what, reason)
        };
        let model = RawModel::read(bytes).ok_or_else(|| wrong("it is damaged"))?;
        if model.pieces.is_empty() || model.pieces.len() > MOST_PIECES {
            return Err(wrong("it has no pieces, or too many"));
        }
        let charsmap = CharsMap::parse(model.charsmap);
        let charsmap = charsmap.ok_or_else(|| wrong("its table of characters is damaged"))?;
        let unknown = model
            .pieces
            .iter()
            .position(|p| p.kind == PieceKind::Unknown);
        let unknown = unknown.ok_or_else(|| wrong("it has no piece for what is unknown"))?;
        match model.algorithm {
            1 | 2 => Ok(Self::of(&model, charsmap, unknown as u32)),
            _ => Err(wrong("it is neither a unigram model nor a pair encoding")),
        }
    }

    fn of(model: &RawModel<'_>, charsmap: CharsMap, unknown: u32) -> Self {
        let texts: Vec<&[u8]> = model.pieces.iter().map(|p| p.text).collect();
        let kind = |at: usize| model.pieces[at].kind;
        let found = |at: usize| matches!(kind(at), PieceKind::Normal | PieceKind::Defined);
        let pieces = Pieces::of(&texts, found);
        let defined = Pieces::of(&texts, |at| kind(at) == PieceKind::Defined);
        let mut scores: Vec<f32> = model.pieces.iter().map(|p| p.score).collect();
        let normal = || (0..texts.len()).filter(|at| kind(*at) == PieceKind::Normal);
        let least = normal().map(|at| scores[at]).fold(0.0, f32::min);
        let most = normal()
            .map(|at| scores[at])
            .fold(f32::NEG_INFINITY, f32::max);
        let way = if model.algorithm == 1 {
            for at in (0..texts.len()).filter(|at| kind(*at) == PieceKind::Defined) {
                // Longer ones before shorter ones, and before everything else.
                scores[at] = texts[at].len() as f32 * most.max(0.0) - 0.1;
            }
            Way::Likely(Cutter::new(pieces, scores, unknown, least))
        } else {
            Way::Pairs(ScoredPairs { pieces, scores })
        };
        let control = |number: Option<i64>, name: &str| {
            let at = number.and_then(|n| usize::try_from(n).ok());
            let at = at.or_else(|| texts.iter().position(|text| *text == name.as_bytes()));
            at.filter(|at| *at < texts.len() && number != Some(-1))
                .map(|at| at as u32)
        };
        Self {
            way,
            charsmap,
            bytes: byte_pieces(model),
            silent: (0..texts.len() as u32)
                .filter(|id| matches!(kind(*id as usize), PieceKind::Control | PieceKind::Unknown))
                .collect(),
            unknown,
            start: control(model.start, "<s>"),
            end: control(model.end, "</s>"),
            defined,
            prefix: model.prefix,
            trimmed: model.trimmed,
        }
    }

    /// A pair encoding from its words by number, with their scores. Those that `defined` names are found whole.
    pub(super) fn of_pairs(
        texts: &[&str],
        scores: Vec<f32>,
        unknown: u32,
        defined: impl Fn(&str) -> bool,
        prefix: bool,
    ) -> Self {
        let pieces = texts
            .iter()
            .zip(&scores)
            .zip(0..)
            .map(|((text, score), id)| {
                let kind = match text {
                    _ if id == unknown => PieceKind::Unknown,
                    text if byte_named(text.as_bytes()).is_some() => PieceKind::Byte,
                    text if defined(text) => PieceKind::Defined,
                    _ => PieceKind::Normal,
                };
                RawPiece {
                    text: text.as_bytes(),
                    score: *score,
                    kind,
                }
            });
        let model = RawModel {
            pieces: pieces.collect(),
            algorithm: 2,
            prefix,
            trimmed: false,
            ..RawModel::default()
        };
        Self::of(&model, CharsMap::default(), unknown)
    }

    /// The multilingual T5's, which lies in the program for files that do not bring it.
    pub fn umt5() -> Arc<Self> {
        static SHARED: LazyLock<Arc<SentencePiece>> = LazyLock::new(|| Arc::new(umt5()));
        Arc::clone(&SHARED)
    }

    /// The token that starts a text, if the model has one.
    pub fn start(&self) -> Option<u32> {
        self.start
    }

    fn normalise(&self, text: &str) -> String {
        let defined = |text: &[u8]| {
            let mut longest = 0;
            self.defined.prefixes(text, |len, _| longest = len);
            longest
        };
        let text = self.charsmap.by_prefixes(text, defined);
        let mut text = &*text;
        if self.trimmed {
            text = text.trim_matches(' ');
        }
        let mut spaced = String::with_capacity(text.len() + SPACE.len_utf8());
        if self.prefix && !text.is_empty() {
            spaced.push(SPACE);
        }
        let mut gap = false;
        for c in text.chars() {
            match c {
                ' ' if gap && self.trimmed => {}
                ' ' => spaced.push(SPACE),
                c => spaced.push(c),
            }
            gap = c == ' ';
        }
        spaced
    }

    fn unknown(&self, text: &[u8], ids: &mut Vec<u32>) {
        match &self.bytes {
            Some(bytes) => ids.extend(text.iter().map(|b| bytes[usize::from(*b)])),
            None => ids.push(self.unknown),
        }
    }

    fn pairs(&self, pairs: &ScoredPairs, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text;
        while !rest.is_empty() {
            // Up to the next piece that is found whole.
            let mut whole = None;
            let plain = rest.char_indices().find_map(|(at, _)| {
                self.defined
                    .prefixes(&rest.as_bytes()[at..], |len, id| whole = Some((len, id)));
                whole.is_some().then_some(at)
            });
            let end = plain.unwrap_or(rest.len());
            self.stretch(pairs, &rest[..end], ids);
            rest = &rest[end..];
            if let Some((len, id)) = whole {
                ids.push(id);
                rest = &rest[len..];
            }
        }
    }

    /// Signs that are no pieces keep a number of their own while neighbours merge.
    fn stretch(&self, pairs: &ScoredPairs, text: &str, ids: &mut Vec<u32>) {
        let mut unknown = Vec::new();
        let count = pairs.pieces.len() as u32;
        let mut buffer = [0; 4];
        let signs = text.chars().map(|c| {
            let piece = pairs.pieces.id(c.encode_utf8(&mut buffer).as_bytes());
            piece.unwrap_or_else(|| {
                unknown.push(c);
                count + unknown.len() as u32 - 1
            })
        });
        let mut run = String::new();
        for token in merge_all(pairs, signs.collect()) {
            if let Some(c) = token.checked_sub(count).map(|at| unknown[at as usize]) {
                run.push(c);
                continue;
            }
            if !run.is_empty() {
                self.unknown(run.as_bytes(), ids);
                run.clear();
            }
            ids.push(token);
        }
        if !run.is_empty() {
            self.unknown(run.as_bytes(), ids);
        }
    }
}

impl Vocabulary for SentencePiece {
    fn encode(&self, text: &str) -> Vec<u32> {
        let text = self.normalise(text);
        let mut ids = Vec::new();
        match &self.way {
            Way::Likely(cutter) => cutter.cut(&text, |piece, id| {
                if id == self.unknown {
                    self.unknown(piece, &mut ids);
                } else {
                    ids.push(id);
                }
            }),
            Way::Pairs(pairs) => self.pairs(pairs, &text, &mut ids),
        }
        ids
    }

    fn decode(&self, ids: &[u32]) -> Option<String> {
        let pieces = match &self.way {
            Way::Likely(cutter) => cutter.pieces(),
            Way::Pairs(pairs) => &pairs.pieces,
        };
        let mut bytes = Vec::new();
        for id in ids {
            if *id as usize >= pieces.len() || self.silent.binary_search(id).is_ok() {
                continue;
            }
            let piece = pieces.piece(*id);
            match byte_named(piece).filter(|_| self.bytes.is_some()) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(piece),
            }
        }
        let text = String::from_utf8_lossy(&bytes).replace(SPACE, " ");
        match text.strip_prefix(' ').filter(|_| self.prefix) {
            Some(rest) => Some(rest.to_owned()),
            None => Some(text),
        }
    }

    fn end(&self) -> Option<u32> {
        self.end
    }
}

/// Pieces by score: two neighbours become the piece that both make together.
#[derive(Debug)]
struct ScoredPairs {
    pieces: Pieces,
    scores: Vec<f32>,
}

/// A score, the highest first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Falling(f32);

impl Eq for Falling {}

impl PartialOrd for Falling {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Falling {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl Pairs for ScoredPairs {
    type Rank = Falling;

    fn merge(&self, left: u32, right: u32) -> Option<Merge<Falling>> {
        let known = |id: u32| (id < self.pieces.len() as u32).then(|| self.pieces.piece(id));
        let both = [known(left)?, known(right)?].concat();
        let token = self.pieces.id(&both)?;
        let rank = Falling(self.scores[token as usize]);
        Some(Merge { rank, token })
    }
}

/// The pieces `<0x00>` to `<0xFF>`, if the model has them all.
fn byte_pieces(model: &RawModel<'_>) -> Option<Box<[u32; 256]>> {
    let mut found = Box::new([0; 256]);
    let mut count = 0;
    for (id, piece) in model.pieces.iter().enumerate() {
        if piece.kind == PieceKind::Byte
            && let Some(byte) = byte_named(piece.text)
        {
            found[usize::from(byte)] = id as u32;
            count += 1;
        }
    }
    (count == 256).then_some(found)
}

/// The byte in `<0x41>`.
fn byte_named(piece: &[u8]) -> Option<u8> {
    let hex = std::str::from_utf8(piece).ok()?;
    let hex = hex.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok()
}

/// Numbers of the pieces that are no words in the table: start and end, tasks, bytes.
fn umt5() -> SentencePiece {
    let packed = packed::pieces(include_bytes!("data/umt5.pieces.z"));
    let kind = |id: u32, text: &[u8]| match (id, text) {
        (id, _) if id == packed.unknown => PieceKind::Unknown,
        (_, text) if byte_named(text).is_some() => PieceKind::Byte,
        (_, text) if packed.scores[id as usize] == 0.0 && text.starts_with(b"<") => {
            PieceKind::Control
        }
        (_, text) if packed.scores[id as usize] == 0.0 && text.starts_with(b"[") => {
            PieceKind::Control
        }
        _ => PieceKind::Normal,
    };
    let pieces = (0..packed.pieces.len() as u32).map(|id| {
        let text = packed.pieces.piece(id);
        RawPiece {
            text,
            score: packed.scores[id as usize],
            kind: kind(id, text),
        }
    });
    let model = RawModel {
        pieces: pieces.collect(),
        algorithm: 1,
        prefix: true,
        trimmed: true,
        ..RawModel::default()
    };
    SentencePiece::of(&model, CharsMap::default(), packed.unknown)
}

struct RawPiece<'a> {
    text: &'a [u8],
    score: f32,
    kind: PieceKind,
}

/// A model as it lies in its bytes.
struct RawModel<'a> {
    pieces: Vec<RawPiece<'a>>,
    /// 1 unigram, 2 pairs, 3 words, 4 letters.
    algorithm: u64,
    start: Option<i64>,
    end: Option<i64>,
    charsmap: &'a [u8],
    prefix: bool,
    trimmed: bool,
}

impl Default for RawModel<'_> {
    fn default() -> Self {
        Self {
            pieces: Vec::new(),
            algorithm: 1,
            start: None,
            end: None,
            charsmap: &[],
            prefix: true,
            trimmed: true,
        }
    }
}

impl<'a> RawModel<'a> {
    /// None if the bytes are no protocol buffer. Fields that are not known here are passed over.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut model = Self::default();
        let mut fields = Fields(bytes);
        while let Some(field) = fields.next()? {
            match field {
                (1, Field::Bytes(piece)) => {
                    if model.pieces.len() > MOST_PIECES {
                        return None;
                    }
                    model.pieces.push(read_piece(piece)?);
                }
                (2, Field::Bytes(trainer)) => model.read_trainer(trainer)?,
                (3, Field::Bytes(rules)) => model.read_rules(rules)?,
                _ => {}
            }
        }
        Some(model)
    }

    fn read_trainer(&mut self, bytes: &'a [u8]) -> Option<()> {
        let mut fields = Fields(bytes);
        while let Some(field) = fields.next()? {
            match field {
                (3, Field::Number(algorithm)) => self.algorithm = algorithm,
                (41, Field::Number(id)) => self.start = Some(id as i64 as i32 as i64),
                (42, Field::Number(id)) => self.end = Some(id as i64 as i32 as i64),
                _ => {}
            }
        }
        Some(())
    }

    fn read_rules(&mut self, bytes: &'a [u8]) -> Option<()> {
        let mut fields = Fields(bytes);
        while let Some(field) = fields.next()? {
            match field {
                (2, Field::Bytes(charsmap)) => self.charsmap = charsmap,
                (3, Field::Number(prefix)) => self.prefix = prefix != 0,
                (4, Field::Number(trimmed)) => self.trimmed = trimmed != 0,
                _ => {}
            }
        }
        Some(())
    }
}

fn read_piece(bytes: &[u8]) -> Option<RawPiece<'_>> {
    let mut piece = RawPiece {
        text: &[],
        score: 0.0,
        kind: PieceKind::Normal,
    };
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (1, Field::Bytes(text)) => piece.text = text,
            (2, Field::Four(bits)) => piece.score = f32::from_le_bytes(bits),
            (3, Field::Number(kind)) => piece.kind = PieceKind::of(kind),
            _ => {}
        }
    }
    std::str::from_utf8(piece.text).ok()?;
    piece.score.is_finite().then_some(piece)
}

/// A value of a protocol buffer.
enum Field<'a> {
    Number(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'a [u8]),
}

/// The fields of a message that are still to come.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next field with its number; none within at the end, none at all if the bytes make no sense.
    #[expect(clippy::option_option, reason = "damaged bytes are not the end")]
    fn next(&mut self) -> Option<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.take(8)?;
                Field::Eight
            }
            2 => {
                let len = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.take(len)?)
            }
            5 => Field::Four(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some(Some((tag >> 3, value)))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let &[byte] = self.take(1)?.first_chunk()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push((value as u8) | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint(field << 3 | 2, &mut out);
        varint(value.len() as u64, &mut out);
        out.extend_from_slice(value);
        out
    }

    fn number(field: u64, value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        varint(field << 3, &mut out);
        varint(value, &mut out);
        out
    }

    fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
        let mut inner = bytes(1, text.as_bytes());
        inner.push(2 << 3 | 5);
        inner.extend_from_slice(&score.to_le_bytes());
        inner.extend(number(3, kind));
        bytes(1, &inner)
    }

    fn model(pieces: &[(&str, f32, u64)], algorithm: u64, prefix: bool) -> Vec<u8> {
        let mut out: Vec<u8> = pieces
            .iter()
            .flat_map(|(t, s, k)| piece(t, *s, *k))
            .collect();
        out.extend(bytes(2, &number(3, algorithm)));
        let rules = [number(3, prefix.into()), number(4, prefix.into())].concat();
        out.extend(bytes(3, &rules));
        out
    }

    #[test]
    fn unigram_models_take_the_likeliest_pieces() {
        let pieces = [
            ("<unk>", 0.0, 2),
            ("<s>", 0.0, 3),
            ("▁a", -2.0, 1),
            ("b", -3.0, 1),
            ("▁ab", -4.0, 1),
            ("▁", -5.0, 1),
            ("a", -3.0, 1),
        ];
        let model = SentencePiece::parse(&model(&pieces, 1, true), "test").unwrap();
        assert_eq!(model.encode("  ab  a <s>"), [4, 2, 5, 0]);
        assert_eq!(model.encode("xyb"), [5, 0, 3]);
        assert_eq!((model.start(), model.end()), (Some(1), None));
    }

    #[test]
    fn pair_models_merge_the_best_score_first() {
        let pieces = [
            ("<unk>", 0.0, 2),
            ("a", -9.0, 1),
            ("b", -9.0, 1),
            ("c", -9.0, 1),
            ("bc", -1.0, 1),
            ("ab", -2.0, 1),
            ("<x>", 0.0, 4),
            ("▁", -9.0, 1),
        ];
        let model = SentencePiece::parse(&model(&pieces, 2, false), "test").unwrap();
        assert_eq!(model.encode("abc"), [1, 4]);
        assert_eq!(model.encode("ab <x>éüab"), [5, 7, 6, 0, 5]);
        assert_eq!(model.encode("  "), [7, 7]);
        let text = model.decode(&[5, 7, 6, 0, 4, 99]);
        assert_eq!(text.as_deref(), Some("ab <x>bc"));
    }

    #[test]
    fn unknown_signs_become_bytes_where_a_model_has_them() {
        let ids = SentencePiece::umt5().encode("a photo of a cat \u{10FFFF}");
        let tail: Vec<u32> = "\u{10FFFF}".bytes().map(|b| 17 + u32::from(b)).collect();
        assert!(ids.ends_with(&tail), "{ids:?}");
        assert!(ids.len() > 8 && ids[0] > 272, "{ids:?}");
        let text = SentencePiece::umt5().decode(&ids);
        assert_eq!(text.as_deref(), Some("a photo of a cat \u{10FFFF}"));
    }

    #[test]
    fn damaged_models_are_refused() {
        let good = model(&[("<unk>", 0.0, 2), ("a", -1.0, 1)], 1, true);
        assert!(SentencePiece::parse(&good, "test").is_ok());
        for end in 1..good.len() {
            // Some cuts leave a model that is merely shorter; none may be read beyond its end.
            drop(SentencePiece::parse(&good[..end], "test"));
        }
        let errors = [
            (&[0xFF; 12][..], "damaged"),
            (&[], "no pieces"),
            (&model(&[("a", 0.0, 1)], 1, true), "unknown"),
            (&model(&[("<unk>", 0.0, 2)], 3, true), "neither"),
        ];
        for (bytes, part) in errors {
            let error = SentencePiece::parse(bytes, "x.safetensors").unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
