//! Rust source with comments and literals blanked out, so that a rule about code does not trip over a sentence.

/// Same lines, same length of lines, but only code is left.
pub(super) fn without_prose(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => line_end(&chars, at),
            '/' if chars.get(at + 1) == Some(&'*') => comment_end(&chars, at),
            '"' => string_end(&chars, at),
            'r' if !joins_word(&chars, at) => match raw_string_end(&chars, at) {
                Some(end) => end,
                None => at,
            },
            '\'' => char_end(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            for c in &chars[at..end] {
                out.push(if *c == '\n' { '\n' } else { ' ' });
            }
            at = end;
        }
    }
    out
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..]
        .iter()
        .position(|c| *c == '\n')
        .map_or(chars.len(), |n| at + n)
}

fn comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    let open = start + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut at = open + 1;
    while at < chars.len() {
        if chars[at] == '"'
            && chars[at + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes
        {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

/// A quote opens a character only if it is closed again soon; otherwise it is a lifetime.
fn char_end(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => chars[start + 3..]
            .iter()
            .take(12)
            .position(|c| *c == '\'')
            .map_or(start, |n| start + 4 + n),
        (Some(_), Some('\'')) => start + 3,
        _ => start,
    }
}

fn joins_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

/// Whether `word` stands in `line` with no identifier character on either side.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_blanked_and_code_is_kept() {
        let text = "a // b\n\"c\" d /* e /* f */ g */ h 'i' 'j: r#\"k\"# '\\'' l";
        let left = without_prose(text);
        let words: Vec<&str> = left.split_whitespace().collect();
        assert_eq!(words, ["a", "d", "h", "'j:", "l"]);
        assert_eq!(left.lines().count(), 2);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("  unsafe {", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("deny(my_unsafe)", "unsafe"));
    }
}
