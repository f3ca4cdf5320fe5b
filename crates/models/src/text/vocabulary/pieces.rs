//! The pieces of a vocabulary by their letters.

/// Pieces one after the other in one buffer, and their order by bytes, in which prefixes are found.
#[derive(Debug)]
pub(super) struct Pieces {
    text: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<u32>,
    /// Numbers of pieces in the order of their bytes; without those that are no text.
    order: Vec<u32>,
}

impl Pieces {
    /// All pieces are found, but for empty ones.
    pub(super) fn new(pieces: &[&[u8]]) -> Self {
        Self::of(pieces, |_| true)
    }

    /// Only those that `found` names are found in a text.
    pub(super) fn of(pieces: &[&[u8]], found: impl Fn(usize) -> bool) -> Self {
        let mut text = Vec::with_capacity(pieces.iter().map(|p| p.len()).sum());
        let mut ends = Vec::with_capacity(pieces.len());
        for piece in pieces {
            text.extend_from_slice(piece);
            ends.push(text.len() as u32);
        }
        let kept = (0..pieces.len()).filter(|at| !pieces[*at].is_empty() && found(*at));
        let mut order: Vec<u32> = kept.map(|at| at as u32).collect();
        // The first of equal pieces counts.
        order.sort_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            pieces[a].cmp(pieces[b]).then(a.cmp(&b))
        });
        order.dedup_by(|a, b| pieces[*a as usize] == pieces[*b as usize]);
        Self { text, ends, order }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn piece(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }

    /// The number of a piece.
    pub(super) fn id(&self, piece: &[u8]) -> Option<u32> {
        let found = self.order.binary_search_by(|id| self.piece(*id).cmp(piece));
        found.ok().map(|at| self.order[at])
    }

    /// All pieces that a text begins with, the shortest first, with their lengths.
    pub(super) fn prefixes(&self, text: &[u8], mut each: impl FnMut(usize, u32)) {
        let mut range = &self.order[..];
        for (depth, byte) in text.iter().enumerate() {
            // Among pieces with the same start, those that end here come first.
            let key = |id: &u32| self.piece(*id).get(depth).copied();
            let from = range.partition_point(|id| key(id) < Some(*byte));
            let to = range.partition_point(|id| key(id) <= Some(*byte));
            range = &range[from..to];
            let Some(first) = range.first() else { return };
            if self.piece(*first).len() == depth + 1 {
                each(depth + 1, *first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_shortest_first() {
        let pieces = Pieces::new(&[b"b", b"ab", b"a", b"", b"abc", b"ab"]);
        let found = |text: &[u8]| {
            let mut found = Vec::new();
            pieces.prefixes(text, |len, id| found.push((len, id)));
            found
        };
        assert_eq!(found(b"abx"), [(1, 2), (2, 1)]);
        assert_eq!(found(b"abcd"), [(1, 2), (2, 1), (3, 4)]);
        assert!(found(b"x").is_empty() && found(b"").is_empty());
        assert_eq!((pieces.id(b"abc"), pieces.id(b"c")), (Some(4), None));
        assert_eq!((pieces.piece(4), pieces.len()), (&b"abc"[..], 6));
    }
}
