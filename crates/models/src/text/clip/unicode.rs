//! Text cleaning before CLIP's byte-pair encoding.

use unicode_normalization::UnicodeNormalization as _;

use crate::text::prompt::is_python_space;
use crate::text::unicode::is_other;

/// Control, format, private and unassigned characters, and the mark of broken text.
fn is_dropped(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => false,
        '\u{fffd}' => true,
        c => is_other(c),
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
}
