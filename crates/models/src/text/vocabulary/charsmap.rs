//! The table by which SentencePiece models replace characters before they look words up: a double-array trie over
//! bytes (Darts) whose leaves say where the replacement stands.

use crate::text::unicode::is_mark;

/// Longer groups of a letter and its marks are not looked up as a whole.
const LONGEST_GROUP: usize = 6;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    /// Replacements, each ended by a zero.
    replacements: Vec<u8>,
}

impl CharsMap {
    /// From the bytes in a model: the size of the trie, the trie, the replacements. None if they are not that.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (size, rest) = bytes.split_first_chunk()?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, replacements) = rest.split_at_checked(size)?;
        let (units, odd) = trie.as_chunks();
        if !odd.is_empty() || std::str::from_utf8(replacements).is_err() {
            return None;
        }
        Some(Self {
            units: units.iter().map(|u| u32::from_le_bytes(*u)).collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// Prefixes of a text that have a replacement: their lengths and where it stands, the shortest first.
    fn prefixes(&self, text: &[u8], mut each: impl FnMut(usize, usize)) {
        let unit = |at: usize| self.units.get(at).copied();
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let Some(root) = unit(0) else { return };
        let mut at = offset(root);
        for (depth, byte) in text.iter().enumerate() {
            if *byte == 0 {
                return;
            }
            at ^= usize::from(*byte);
            let Some(found) = unit(at) else { return };
            if found & ((1 << 31) | 0xFF) != u32::from(*byte) {
                return;
            }
            at ^= offset(found);
            if (found >> 8) & 1 == 1
                && let Some(leaf) = unit(at)
            {
                each(depth + 1, (leaf & ((1 << 31) - 1)) as usize);
            }
        }
    }

    fn replacement(&self, at: usize) -> &str {
        let rest = self.replacements.get(at..).unwrap_or_default();
        let end = rest.iter().position(|b| *b == 0).unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).unwrap_or_default()
    }

    /// The shortest prefix decides for all of the text, as in the tokenizers library.
    fn whole(&self, text: &str) -> Option<&str> {
        let mut first = None;
        self.prefixes(text.as_bytes(), |_, at| first = first.or(Some(at)));
        first.map(|at| self.replacement(at))
    }

    /// As the tokenizers library does it: signs with their marks, then single characters.
    pub(super) fn by_signs(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let mut end = first.len_utf8();
            if rest.starts_with("\r\n") {
                end = 2;
            } else {
                end += rest[end..]
                    .find(|c| !is_mark(c))
                    .unwrap_or(rest.len() - end);
            }
            let (sign, tail) = rest.split_at(end);
            rest = tail;
            let short = sign.len() < LONGEST_GROUP;
            if let Some(replaced) = short.then(|| self.whole(sign)).flatten() {
                out.push_str(replaced);
                continue;
            }
            let mut buffer = [0; 4];
            for c in sign.chars() {
                match self.whole(c.encode_utf8(&mut buffer)) {
                    Some(replaced) => out.push_str(replaced),
                    None => out.push(c),
                }
            }
        }
        out
    }

    /// As SentencePiece itself does it: the longest prefix at each place. Stretches that `keep` measures stay as they are.
    pub(super) fn by_prefixes(&self, text: &str, keep: impl Fn(&[u8]) -> usize) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let kept = keep(rest.as_bytes());
            if kept > 0 && rest.is_char_boundary(kept) {
                out.push_str(&rest[..kept]);
                rest = &rest[kept..];
                continue;
            }
            let mut longest = None;
            self.prefixes(rest.as_bytes(), |len, at| longest = Some((len, at)));
            let end = match longest {
                Some((len, at)) if rest.is_char_boundary(len) => {
                    out.push_str(self.replacement(at));
                    len
                }
                _ => {
                    out.push(first);
                    first.len_utf8()
                }
            };
            rest = &rest[end..];
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_table_is_refused_and_none_changes_nothing() {
        let none = CharsMap::parse(&[]).unwrap();
        assert_eq!(none.by_signs("ﬁ e\u{301}"), "ﬁ e\u{301}");
        assert_eq!(none.by_prefixes("ﬁ", |_| 0), "ﬁ");
        assert!(CharsMap::parse(&[1, 0]).is_none());
        assert!(CharsMap::parse(&[9, 0, 0, 0, 1]).is_none());
        // A trie that leads nowhere.
        let wild = CharsMap::parse(&[4, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F]).unwrap();
        assert_eq!(wild.by_signs("abc"), "abc");
    }
}
