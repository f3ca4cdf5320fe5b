//! Pair encoding: the neighbours that rank first become one token, again and again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What two neighbours become, and when: lower ranks first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Merge<R> {
    pub(crate) rank: R,
    pub(crate) token: u32,
}

/// Which pairs become one token.
pub(crate) trait Pairs {
    type Rank: Ord + Copy;

    fn merge(&self, left: u32, right: u32) -> Option<Merge<Self::Rank>>;
}

/// Merges neighbours, lowest rank first, leftmost first, until no pair is left.
pub(crate) fn merge_all<P: Pairs>(pairs: &P, mut tokens: Vec<u32>) -> Vec<u32> {
    let count = tokens.len();
    // A doubly linked list by index; merged positions are left behind.
    let mut next: Vec<usize> = (1..=count).collect();
    let mut previous: Vec<usize> = (0..count).map(|i| i.wrapping_sub(1)).collect();
    let mut gone = vec![false; count];
    let mut queue = BinaryHeap::new();
    let candidate = |tokens: &[u32], left: usize, right: usize| {
        let merge = pairs.merge(tokens[left], tokens[right])?;
        let pair = (tokens[left], tokens[right]);
        Some(Reverse((merge.rank, left, pair, merge.token)))
    };
    queue.extend((1..count).filter_map(|right| candidate(&tokens, right - 1, right)));

    while let Some(Reverse((_, left, pair, token))) = queue.pop() {
        let right = next[left];
        if gone[left] || right == count || (tokens[left], tokens[right]) != pair {
            continue;
        }
        tokens[left] = token;
        gone[right] = true;
        let after = next[right];
        next[left] = after;
        if after < count {
            previous[after] = left;
            queue.extend(candidate(&tokens, left, after));
        }
        if left > 0 {
            queue.extend(candidate(&tokens, previous[left], left));
        }
    }
    let mut at = 0;
    tokens.retain(|_| {
        at += 1;
        !gone[at - 1]
    });
    tokens
}

/// The order in which published tables number single bytes: printable ones of Latin-1 first, then the others.
pub(crate) const BYTE_ORDER: [u8; 256] = {
    let mut order = [0; 256];
    let mut next = 0_u8;
    let mut pass = 0;
    while pass < 2 {
        let mut byte = 0;
        while byte < 256 {
            let printable = matches!(byte, 33..=126 | 0xA1..=0xAC | 0xAE..=0xFF);
            if printable == (pass == 0) {
                order[byte] = next;
                next = next.wrapping_add(1);
            }
            byte += 1;
        }
        pass += 1;
    }
    order
};

/// The byte that a character of such a table stands for: printable bytes stand for themselves, the others for characters
/// from 256 on.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        33..=126 | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        256.. => {
            let number = u8::try_from(code - 256).ok()?.checked_add(188)?;
            let at = BYTE_ORDER.iter().position(|order| *order == number)?;
            u8::try_from(at).ok()
        }
        _ => None,
    }
}

/// The character that stands for the byte of this number in such a table; [`byte_of`] the other way round.
pub(crate) fn character_of(number: u8) -> char {
    let Some(other) = number.checked_sub(188) else {
        let byte = BYTE_ORDER.iter().position(|order| *order == number);
        return char::from(
            byte.and_then(|at| u8::try_from(at).ok())
                .unwrap_or_default(),
        );
    };
    char::from_u32(256 + u32::from(other)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Letters;

    impl Pairs for Letters {
        type Rank = u32;

        /// `ab` before `bc` before `aa`.
        fn merge(&self, left: u32, right: u32) -> Option<Merge<u32>> {
            let (rank, token) = match (left, right) {
                (1, 2) => (0, 12),
                (2, 3) => (1, 23),
                (1, 1) => (2, 11),
                (11, 12) => (3, 1112),
                _ => return None,
            };
            Some(Merge { rank, token })
        }
    }

    #[test]
    fn lower_ranks_go_first_then_the_leftmost() {
        let merged = |tokens: &[u32]| merge_all(&Letters, tokens.to_vec());
        assert_eq!(merged(&[1, 2, 3]), [12, 3]);
        assert_eq!(merged(&[1, 1, 1, 2]), [1112]);
        assert_eq!(merged(&[1, 1, 1]), [11, 1]);
        assert_eq!(merged(&[2, 3]), [23]);
        assert_eq!(merged(&[]), [] as [u32; 0]);
    }

    #[test]
    fn bytes_have_characters() {
        let space = char::from_u32(288).unwrap();
        assert_eq!((byte_of('!'), byte_of(space)), (Some(33), Some(32)));
        let all: Vec<u8> = (0..324)
            .filter_map(|code| byte_of(char::from_u32(code)?))
            .collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!((all.len(), sorted.len()), (256, 256));
        assert_eq!(byte_of(char::from_u32(324).unwrap()), None);
    }
}
