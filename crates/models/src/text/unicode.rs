//! What counts as a letter, a number, a mark or white space: the categories that tokenizers split words by.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// A set of characters, as sorted ranges.
struct Set(Vec<RangeInclusive<char>>);

impl Set {
    /// The set a general category stands for. The tables are those of the regular expressions the program has anyway.
    fn category(pattern: &str) -> Self {
        let hir = regex_syntax::parse(pattern).expect("a pattern of ours");
        match hir.into_kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Self(class.iter().map(|r| r.start()..=r.end()).collect())
            }
            other => unreachable!("a category is a class of characters, not {other:?}"),
        }
    }

    fn has(&self, c: char) -> bool {
        let after = self.0.partition_point(|range| *range.start() <= c);
        after > 0 && self.0[after - 1].contains(&c)
    }
}

static LETTERS: LazyLock<Set> = LazyLock::new(|| Set::category(r"\p{L}"));
static NUMBERS: LazyLock<Set> = LazyLock::new(|| Set::category(r"\p{N}"));
static OTHERS: LazyLock<Set> = LazyLock::new(|| Set::category(r"\p{C}"));
static MARKS: LazyLock<Set> = LazyLock::new(|| Set::category(r"\p{M}"));

pub(crate) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_alphabetic()
    } else {
        LETTERS.has(c)
    }
}

pub(crate) fn is_number(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_digit()
    } else {
        NUMBERS.has(c)
    }
}

/// Control, format, private and unassigned characters.
pub(crate) fn is_other(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_control()
    } else {
        OTHERS.has(c)
    }
}

/// Whether a character is drawn over the one before it, so that both are one sign to the reader.
pub(crate) fn is_mark(c: char) -> bool {
    match c {
        c if c.is_ascii() => false,
        // Joiners, the voiced marks of half-width kana, skin colours and tags.
        '\u{200c}'
        | '\u{200d}'
        | '\u{ff9e}'
        | '\u{ff9f}'
        | '\u{1f3fb}'..='\u{1f3ff}'
        | '\u{e0020}'..='\u{e007f}' => true,
        c => MARKS.has(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories() {
        assert!(is_letter('é') && is_letter('猫') && !is_letter('_') && !is_letter('½'));
        assert!(is_number('½') && is_number('①') && is_number('7') && !is_number('x'));
        assert!(!is_letter('\u{307}') && !is_number('\u{307}') && is_mark('\u{307}'));
        assert!(is_other('\u{200b}') && is_other('\t') && !is_other('a') && !is_mark('a'));
    }
}
