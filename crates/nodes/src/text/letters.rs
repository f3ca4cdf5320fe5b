//! Upper, lower and title case as Python's `str` has them.

/// White space as `str.strip` sees it: Unicode's, and the four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// One of the few letters that are in title case themselves.
fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}'
        | '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// Title case of one letter, which the standard library lacks. It is the upper case except for the letters below.
fn push_title(out: &mut String, c: char) {
    match c {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        // Georgian has capitals, but only for whole words.
        '\u{10d0}'..='\u{10fa}' | '\u{10fd}'..='\u{10ff}' => out.push(c),
        'ŉ' => out.push_str("ʼN"),
        c if is_title(c) => out.push(c),
        // Greek with an iota below keeps it below.
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => {
            out.extend(char::from_u32(c as u32 + 8));
        }
        '\u{1fb3}' => out.push('\u{1fbc}'),
        '\u{1fc3}' => out.push('\u{1fcc}'),
        '\u{1ff3}' => out.push('\u{1ffc}'),
        '\u{1fb7}' => out.push_str("\u{1fbc}\u{342}"),
        '\u{1fc7}' => out.push_str("\u{1fcc}\u{342}"),
        '\u{1ff7}' => out.push_str("\u{1ffc}\u{342}"),
        '\u{1fb2}' | '\u{1fb4}' | '\u{1fc2}' | '\u{1fc4}' | '\u{1ff2}' | '\u{1ff4}' => {
            out.extend(c.to_uppercase().take(1));
            out.push('\u{345}');
        }
        // One letter that becomes several (sharp s, ligatures): only the first is a capital.
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
    }
}

/// Runs over letters with each one's lower case, which for sigma depends on its surroundings.
fn with_lower<'a>(text: &'a str, lower: &'a str) -> impl Iterator<Item = (char, &'a str)> {
    let mut at = 0;
    text.chars().map(move |c| {
        let len: usize = c.to_lowercase().map(char::len_utf8).sum();
        let part = &lower[at..at + len];
        at += len;
        (c, part)
    })
}

/// `str.title`: a capital wherever the letter before is none.
pub(super) fn title(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for (c, lower) in with_lower(text, &lower) {
        if inside {
            out.push_str(lower);
        } else {
            push_title(&mut out, c);
        }
        inside = is_cased(c);
    }
    out
}

/// `str.capitalize`: the first letter in title case, the others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let lower = text.to_lowercase();
    let mut out = String::with_capacity(text.len());
    for (i, (c, lower)) in with_lower(text, &lower).enumerate() {
        if i == 0 {
            push_title(&mut out, c);
        } else {
            out.push_str(lower);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_case_follows_python() {
        for (text, wanted) in [
            ("they're x2y 3d", "They'Re X2Y 3D"),
            ("ßa ﬃx ŉ ǆa", "Ssa Ffix ʼN ǅa"),
            ("ᾳ ᾲ ᾷ ᾀ", "ᾼ Ὰͅ ᾼ͂ ᾈ"),
            ("ΟΔΟΣ ΟΣΑ Σ", "Οδος Οσα Σ"),
            ("აბგ", "აბგ"),
            ("և", "Եւ"),
        ] {
            assert_eq!(title(text), wanted, "{text}");
        }
    }

    #[test]
    fn capitalize_touches_the_first_letter_only() {
        assert_eq!(capitalize("ΟΔΟΣ abC"), "Οδος abc");
        assert_eq!(capitalize("ǆABC"), "ǅabc");
        assert_eq!(capitalize("İA"), "İa");
        assert_eq!(capitalize(""), "");
    }

    #[test]
    fn separators_are_white_space() {
        assert!(is_space('\x1c') && is_space('\u{85}') && is_space('\u{3000}'));
        assert!(!is_space('\u{200b}'));
    }
}
