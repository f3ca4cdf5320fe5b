//! Text cleaning before CLIP's byte-pair encoding: what counts as a control character, a letter or a number.

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization as _;

use crate::text::prompt::is_python_space;

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

pub(super) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_alphabetic()
    } else {
        LETTERS.has(c)
    }
}

pub(super) fn is_number(c: char) -> bool {
    if c.is_ascii() {
        c.is_ascii_digit()
    } else {
        NUMBERS.has(c)
    }
}

/// Control, format, private and unassigned characters, and the mark of broken text.
fn is_dropped(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\u{fffd}' => true,
        c if c.is_ascii() => c.is_ascii_control(),
        c => OTHERS.has(c),
    }
}

/// Han characters; kana and hangul are written with letters.
fn is_ideograph(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}' | '\u{2b820}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

/// Lower-case words with single spaces between them; accents stay, ideographs are words of their own.
pub(super) fn clean(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !is_dropped(*c)) {
        if is_ideograph(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    let composed: String = if spaced.is_ascii() {
        spaced
    } else {
        spaced.nfc().collect()
    };
    let words: Vec<String> = composed
        .split(is_python_space)
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cleaned() {
        assert_eq!(
            clean("  Tab\tAND\r\nline\u{a0}\u{2003}x "),
            "tab and line x"
        );
        assert_eq!(clean("a\0b zero\u{200b}width \u{fffd}"), "ab zerowidth");
        assert_eq!(clean("猫と犬"), "猫 と 犬");
        assert_eq!(clean("E\u{301} ΣΑΣ"), "\u{e9} σας");
    }

    #[test]
    fn categories() {
        assert!(is_letter('é') && is_letter('猫') && !is_letter('_') && !is_letter('½'));
        assert!(is_number('½') && is_number('①') && is_number('7') && !is_number('x'));
        assert!(!is_letter('\u{307}') && !is_number('\u{307}'));
    }
}
