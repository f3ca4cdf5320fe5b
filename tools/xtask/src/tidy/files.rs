//! Rules about single source files: length, left-overs, unsafe, lints.

use super::{
    code::{has_word, without_prose},
    complain,
};
use crate::tree::Source;

const LINES: usize = 1000;

/// Written in halves so that this file passes its own rule.
const LEFT_OVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
];
const MACROS: &[&str] = &[concat!("unimple", "mented"), concat!("to", "do")];

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        if is_prose_or_code(source) {
            left_overs(source, &mut complaints);
        }
        if source.has_extension("rs") {
            length(source, &mut complaints);
            rust(source, &mut complaints);
        }
        if source.path.ends_with("Cargo.toml") {
            manifest(source, &mut complaints);
        }
    }
    complaints.extend(python_unsafe(sources));
    complaints
}

fn is_prose_or_code(source: &Source) -> bool {
    [
        "rs", "py", "mjs", "js", "ts", "tsx", "css", "md", "toml", "sh",
    ]
    .iter()
    .any(|extension| source.has_extension(extension))
}

fn left_overs(source: &Source, complaints: &mut Vec<String>) {
    for (index, line) in source.text.lines().enumerate() {
        for word in LEFT_OVERS {
            if line.contains(word) {
                complaints.push(complain(source, index + 1, &format!("{word} left in")));
            }
        }
    }
}

fn length(source: &Source, complaints: &mut Vec<String>) {
    let lines = source.text.lines().count();
    let reason = source
        .text
        .lines()
        .take(20)
        .filter(|line| line.trim_start().starts_with("//"))
        .any(|line| line.contains("long: "));
    if lines > LINES && !reason {
        let text = format!("{lines} lines; split it or say `// long: reason` at the top");
        complaints.push(complain(source, 1, &text));
    }
}

fn rust(source: &Source, complaints: &mut Vec<String>) {
    let code = without_prose(&source.text);
    let unsafe_room =
        source.path.starts_with("crates/tensor/") || source.path.starts_with("crates/python/");
    for (index, line) in code.lines().enumerate() {
        if has_word(line, "unsafe") && !unsafe_room {
            let text = "unsafe outside the tensor room";
            complaints.push(complain(source, index + 1, text));
        }
        for name in MACROS {
            if has_word(line, name) && line.contains(&format!("{name}!")) {
                complaints.push(complain(source, index + 1, &format!("{name}! left in")));
            }
        }
        if line.contains("#[ignore") {
            let text = "an ignored test is no test";
            complaints.push(complain(source, index + 1, text));
        }
    }
}

/// Unsafe in the python room is one file: the one that maps shared memory.
fn python_unsafe(sources: &[Source]) -> Option<String> {
    let files: Vec<&str> = sources
        .iter()
        .filter(|source| source.path.starts_with("crates/python/") && source.has_extension("rs"))
        .filter(|source| {
            without_prose(&source.text)
                .lines()
                .any(|line| has_word(line, "unsafe"))
        })
        .map(|source| source.path.as_str())
        .collect();
    (files.len() > 1).then(|| format!("unsafe in more than one file of python: {files:?}"))
}

/// A member that forgets the workspace lints silently loses all of them.
fn manifest(source: &Source, complaints: &mut Vec<String>) {
    let member = source.text.contains("[package]") && !source.path.starts_with("fuzz/");
    let inherits = source
        .text
        .split("[lints]")
        .nth(1)
        .is_some_and(|rest| rest.trim_start().starts_with("workspace = true"));
    if member && !inherits {
        complaints.push(complain(source, 1, "does not inherit the workspace lints"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_one(path: &str, text: &str, expected: &[&str]) {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(check(&[source]), expected);
    }

    #[test]
    fn a_long_file_needs_a_reason() {
        let long = "fn f() {}\n".repeat(1001);
        check_one(
            "crates/graph/src/a.rs",
            &long,
            &["crates/graph/src/a.rs:1: 1001 lines; split it or say `// long: reason` at the top"],
        );
        check_one("a.rs", &format!("// long: a table\n{long}"), &[]);
        check_one("a.rs", &"fn f() {}\n".repeat(1000), &[]);
    }

    #[test]
    fn left_overs_are_found_in_comments_and_macros_in_code() {
        let word = LEFT_OVERS[0];
        check_one(
            "a.rs",
            &format!("// {word}\n"),
            &[&format!("a.rs:1: {word} left in")],
        );
        let name = MACROS[1];
        check_one(
            "a.rs",
            &format!("fn f() {{\n    {name}!()\n}}\n"),
            &[&format!("a.rs:2: {name}! left in")],
        );
        check_one(
            "a.rs",
            "#[ignore]\nfn f() {}\n",
            &["a.rs:1: an ignored test is no test"],
        );
    }

    #[test]
    fn unsafe_has_its_rooms() {
        let text = "fn f() { unsafe { g() } }\n";
        check_one("crates/tensor/src/a.rs", text, &[]);
        check_one("crates/python/src/a.rs", text, &[]);
        check_one(
            "crates/engine/src/a.rs",
            text,
            &["crates/engine/src/a.rs:1: unsafe outside the tensor room"],
        );
        check_one("a.rs", "// unsafe is a word\n#![deny(unsafe_code)]\n", &[]);
    }

    #[test]
    fn python_gets_one_file() {
        let source = |path: &str| Source {
            path: path.to_owned(),
            text: "fn f() { unsafe { g() } }\n".to_owned(),
        };
        let two = [
            source("crates/python/src/a.rs"),
            source("crates/python/src/b.rs"),
        ];
        assert_eq!(check(&two).len(), 1);
    }

    #[test]
    fn members_inherit_lints() {
        check_one(
            "a/Cargo.toml",
            "[package]\n\n[lints]\nworkspace = true\n",
            &[],
        );
        check_one(
            "a/Cargo.toml",
            "[package]\n",
            &["a/Cargo.toml:1: does not inherit the workspace lints"],
        );
    }
}
