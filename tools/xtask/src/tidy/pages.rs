//! Pages may only show commands that exist, and link to files that exist.

use std::path::Path;

use super::complain;
use crate::{commands::COMMANDS, tree::Source};

pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let subcommands = program_commands(sources);
    let mut complaints = Vec::new();
    for page in sources.iter().filter(|source| source.has_extension("md")) {
        for (index, line) in page.text.lines().enumerate() {
            for problem in commands(line, &subcommands) {
                complaints.push(complain(page, index + 1, &problem));
            }
            for link in links(line) {
                if !resolves(&page.path, link, sources) {
                    let text = format!("link to {link}, which is not there");
                    complaints.push(complain(page, index + 1, &text));
                }
            }
        }
    }
    complaints
}

/// Sub-commands of the program: variants of the enum that derives them, in kebab case.
fn program_commands(sources: &[Source]) -> Vec<String> {
    let mut names = Vec::new();
    for source in sources {
        if !source.path.starts_with("crates/app/src/") {
            continue;
        }
        let Some(start) = source.text.find("derive(Subcommand") else {
            continue;
        };
        let body = source.text[start..].split("\n}").next().unwrap_or_default();
        for line in body.lines().filter(|line| line.starts_with("    ")) {
            let name: String = line[4..]
                .chars()
                .take_while(char::is_ascii_alphanumeric)
                .collect();
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                names.push(name.to_ascii_lowercase());
            }
        }
    }
    names
}

fn commands(line: &str, subcommands: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, call) in line.match_indices("cargo xtask ") {
        let name = first_word(&line[at + call.len()..]);
        if !name.is_empty() && !COMMANDS.iter().any(|command| command.name == name) {
            problems.push(format!("there is no `cargo xtask {name}`"));
        }
    }
    // Only lines that are a call of the program; the word itself is all over the prose.
    let shown = line.trim_start().trim_start_matches("$ ");
    for prefix in ["fresco ", "./fresco ", "target/release/fresco "] {
        if let Some(rest) = shown.strip_prefix(prefix) {
            let name = first_word(rest);
            let call = rest == name || rest.contains(" -") || rest.contains('.');
            if call && !name.is_empty() && !subcommands.iter().any(|known| known == name) {
                problems.push(format!("there is no `fresco {name}`"));
            }
        }
    }
    problems
}

fn first_word(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_ascii_lowercase() && c != '-')
        .unwrap_or(text.len());
    // A flag is no name.
    if text.starts_with('-') {
        ""
    } else {
        &text[..end]
    }
}

/// Targets of `[text](target)` that point into the tree.
fn links(line: &str) -> Vec<&str> {
    line.match_indices("](")
        .filter_map(|(at, _)| line[at + 2..].split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

fn resolves(page: &str, link: &str, sources: &[Source]) -> bool {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    // Pictures are not text and so not among the sources.
    sources
        .iter()
        .any(|source| source.path == path || source.path.starts_with(&format!("{path}/")))
        || crate::tree::root().join(Path::new(&path)).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn commands_in_pages_must_exist() {
        let app = source(
            "crates/app/src/cli.rs",
            "#[derive(Subcommand)]\nenum Command {\n    Serve(Serve),\n    /// x\n    Run { file: PathBuf },\n}\n",
        );
        let page = source(
            "README.md",
            "cargo xtask ci\n`cargo xtask paint`\nfresco run a.json\nfresco dance --fast\nfresco is a word\n",
        );
        assert_eq!(
            check(&[app, page]),
            [
                "README.md:2: there is no `cargo xtask paint`",
                "README.md:4: there is no `fresco dance`",
            ]
        );
    }

    #[test]
    fn links_must_resolve() {
        let page = source(
            "docs/a.md",
            "[b](b.md) [up](../nowhere.md) [web](https://x.invalid/)\n",
        );
        let other = source("docs/b.md", "");
        assert_eq!(
            check(&[page, other]),
            ["docs/a.md:1: link to ../nowhere.md, which is not there"]
        );
    }
}
