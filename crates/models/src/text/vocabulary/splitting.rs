//! How byte-level tokenizers cut a text into words before they merge bytes.
//!
//! The published pattern, for which a regular-expression engine with look-ahead would be needed, in plain code:
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
//! or the same with `[\p{L}\p{M}]` for letters that follow another sign.

use crate::text::unicode::{is_letter, is_mark, is_number};

/// What differs between tokenizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cuts {
    /// Signs of a number that stay together.
    pub digits: usize,
    /// Whether accents that stand by themselves are letters.
    pub accents: bool,
}

impl Cuts {
    fn is_letter(self, c: char) -> bool {
        is_letter(c) || (self.accents && is_mark(c))
    }
}

/// The next word of a text that is not empty.
pub fn next_word(text: &str, cuts: Cuts) -> &str {
    let len = contraction(text)
        .or_else(|| letters(text, cuts))
        .or_else(|| number(text, cuts.digits))
        .or_else(|| signs(text, cuts))
        .unwrap_or_else(|| spaces(text));
    &text[..len]
}

/// All words in order.
pub fn words(text: &str, cuts: Cuts) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = next_word(rest, cuts);
        rest = &rest[word.len()..];
        Some(word)
    })
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

/// Bytes at the start of a text for which something holds.
fn run(text: &str, holds: impl Fn(char) -> bool) -> usize {
    text.find(|c| !holds(c)).unwrap_or(text.len())
}

fn contraction(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    let mut chars = rest.char_indices();
    let folded = |c: char| match c {
        'ſ' => 's',
        c => c.to_ascii_lowercase(),
    };
    let (_, first) = chars.next()?;
    let second = chars.next();
    let after_first = 1 + second.map_or(rest.len(), |(at, _)| at);
    if matches!(folded(first), 's' | 't' | 'm' | 'd') {
        return Some(after_first);
    }
    let (_, second) = second?;
    let after = 1 + chars.next().map_or(rest.len(), |(at, _)| at);
    let pair = (folded(first), folded(second));
    matches!(pair, ('r' | 'v', 'e') | ('l', 'l')).then_some(after)
}

/// Letters, with one other sign before them.
fn letters(text: &str, cuts: Cuts) -> Option<usize> {
    let first = text.chars().next()?;
    let lead = if cuts.is_letter(first) {
        0
    } else if is_line_end(first) || is_number(first) {
        return None;
    } else {
        first.len_utf8()
    };
    let len = run(&text[lead..], |c| cuts.is_letter(c));
    (len > 0).then_some(lead + len)
}

fn number(text: &str, digits: usize) -> Option<usize> {
    let found = text.chars().take(digits).take_while(|c| is_number(*c));
    let len: usize = found.map(char::len_utf8).sum();
    (len > 0).then_some(len)
}

/// Other signs, with a space before and line ends after them.
fn signs(text: &str, cuts: Cuts) -> Option<usize> {
    let lead = usize::from(text.starts_with(' '));
    let sign = |c: char| !is_space(c) && !cuts.is_letter(c) && !is_number(c);
    let len = run(&text[lead..], sign);
    if len == 0 {
        return None;
    }
    let end = lead + len;
    Some(end + run(&text[end..], is_line_end))
}

/// White space up to its last line end; else all but the last of it, which belongs to the word that follows.
fn spaces(text: &str) -> usize {
    let all = run(text, is_space);
    if let Some(last) = text[..all].rfind(is_line_end) {
        return last + 1;
    }
    if all == text.len() {
        return all;
    }
    let last = text[..all].chars().next_back().map_or(0, char::len_utf8);
    if all > last {
        return all - last;
    }
    // A character that is none of all this cannot be: signs are whatever is left.
    all.max(text.chars().next().map_or(1, char::len_utf8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, digits: usize, expected: &[&str]) {
        let cuts = Cuts {
            digits,
            accents: false,
        };
        let found: Vec<&str> = words(text, cuts).collect();
        assert_eq!(found, expected, "{text:?}");
        assert_eq!(found.concat(), text);
    }

    #[test]
    fn words_are_cut_as_the_pattern_says() {
        check("a photo, of", 1, &["a", " photo", ",", " of"]);
        check("don't it'LL 'x", 1, &["don", "'t", " it", "'LL", " '", "x"]);
        check("12345 6", 1, &["1", "2", "3", "4", "5", " ", "6"]);
        check("12345 6", 3, &["123", "45", " ", "6"]);
        check(
            "a  b   \nc \t\n\n  d ",
            1,
            &["a", " ", " b", "   \n", "c", " \t\n\n", " ", " d", " "],
        );
        check("!!\r\nx", 1, &["!!\r\n", "x"]);
        check("hi\u{a0}\u{a0}du", 1, &["hi", "\u{a0}", "\u{a0}du"]);
        check("_x\u{301}", 1, &["_x", "\u{301}"]);
        check("", 1, &[]);
    }

    #[test]
    fn accents_stay_with_their_letters_where_the_pattern_says_so() {
        let cuts = Cuts {
            digits: 1,
            accents: true,
        };
        let cut = |text| words(text, cuts).collect::<Vec<_>>();
        assert_eq!(
            cut("_x\u{301}y \u{301}a!"),
            ["_x\u{301}y", " \u{301}a", "!"]
        );
        assert_eq!(cut("1\u{301}"), ["1", "\u{301}"]);
    }
}
