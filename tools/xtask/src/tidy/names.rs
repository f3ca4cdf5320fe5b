//! No type and no function has a participle or another word for a name that says what happened instead of what the thing is or
//! what the function does: a reader searches for the noun.

use super::{code::without_prose, complain};
use crate::tree::Source;

/// Words that no type is called.
const TYPES: &[&str] = &[
    "Answered", "Around", "Asked", "Asking", "Beside", "Came", "Given", "Gone", "Got", "Handed",
    "Heard", "Here", "Kept", "Lent", "Looked", "Meant", "More", "Said", "Steered", "Told",
    "Waiting",
];

/// Words that no function is called.
const FUNCTIONS: &[&str] = &[
    "asked", "given", "gone", "heard", "hooked", "looked", "meant", "said", "steered", "told",
    "wanted",
];

/// What stands before a name that is defined.
const TYPE_WORDS: &[&str] = &["struct", "enum", "trait", "type", "interface", "class"];
const FUNCTION_WORDS: &[&str] = &["fn", "function"];

/// File, name and the reason why no other word would be clearer.
const ALLOWED: &[(&str, &str, &str)] = &[];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let code = sources.iter().filter(|source| {
        ["rs", "ts", "tsx"]
            .iter()
            .any(|extension| source.has_extension(extension))
    });
    let mut complaints = Vec::new();
    for source in code {
        for (index, line) in without_prose(&source.text).lines().enumerate() {
            for name in defined(line) {
                let allowed = ALLOWED
                    .iter()
                    .any(|(file, known, _)| *file == source.path && *known == name);
                if !allowed {
                    let text = format!(
                        "{name} says what happened: name the thing or the work (table in tools/xtask/src/tidy/names.rs)"
                    );
                    complaints.push(complain(source, index + 1, &text));
                }
            }
        }
    }
    complaints
}

/// Names in the lists that a line of code defines.
fn defined(line: &str) -> Vec<&str> {
    let words: Vec<&str> = line
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let pairs = words.windows(2).filter(|pair| {
        (TYPE_WORDS.contains(&pair[0]) && TYPES.contains(&pair[1]))
            || (FUNCTION_WORDS.contains(&pair[0]) && FUNCTIONS.contains(&pair[1]))
    });
    pairs.map(|pair| pair[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        check(&[Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }])
    }

    #[test]
    fn definitions_count_and_uses_do_not() {
        assert_eq!(
            complaints(
                "a.rs",
                "// fn told()\npub struct Told<'a> {\n}\nasync fn told<T>() { said(Heard) }\n"
            )
            .len(),
            2
        );
        assert!(complaints("a.rs", "struct ToldEvent;\nfn told_clients() {}\n").is_empty());
        assert!(complaints("a.py", "class Told:\n").is_empty());
    }

    #[test]
    fn the_page_is_read_too() {
        let found = complaints(
            "web/src/a.ts",
            "export type Told = string;\nfunction said() {}\n",
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("web/src/a.ts:1: Told"), "{found:?}");
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(ALLOWED.iter().all(|(_, _, reason)| reason.len() > 10));
    }
}
