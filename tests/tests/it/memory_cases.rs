//! All 73 acceptance cases of the memory specification are in the tables at the heads of the files here, and the tests
//! that the tables name exist.

use std::{collections::BTreeSet, fs, path::Path};

const TABLES: [&str; 4] = [
    include_str!("memory_free.rs"),
    include_str!("memory_retention.rs"),
    include_str!("memory_placement.rs"),
    include_str!("memory_patches.rs"),
];

/// Folders with tests that the tables may name, from the root of the repository.
const FOLDERS: [&str; 4] = [
    "tests/tests/it",
    "crates/memory/tests/registry",
    "crates/models/tests/lora",
    "crates/engine/tests/acceptance",
];

/// The rows of a file's table: what is in its two columns.
fn rows(file: &str) -> impl Iterator<Item = (&str, &str)> {
    file.lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .filter_map(|line| line.strip_suffix(" |")?.split_once("| "))
        .filter(|(case, _)| !case.starts_with("case"))
}

/// The names in backticks: `a::b` is `b`, `a::{b, c}` is both.
fn names(cell: &str) -> Vec<&str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| !text.contains('/'))
        .flat_map(|text| {
            let last = text.rsplit_once("::").map_or(text, |(_, last)| last);
            last.trim_matches(['{', '}']).split(", ")
        })
        .collect()
}

#[test]
fn every_case_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = String::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                sources.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut found = BTreeSet::new();
    for (cases, tests) in TABLES.into_iter().flat_map(rows) {
        let tests = names(tests);
        for case in cases.split(',').map(str::trim).filter(|c| !c.is_empty()) {
            assert!(!tests.is_empty(), "{case} names no test");
            found.insert(case);
        }
        for test in tests {
            let there = sources.contains(&format!("fn {test}()"));
            assert!(there, "{cases} names {test}, which is not there");
        }
    }
    let all: Vec<String> = [("F", 9), ("R", 40), ("M", 14), ("L", 10)]
        .into_iter()
        .flat_map(|(letter, last)| (1..=last).map(move |n| format!("{letter}-{n}")))
        .collect();
    assert_eq!(all.len(), 73);
    for case in &all {
        assert!(found.contains(case.as_str()), "{case} is in no table");
    }
    assert_eq!(found.len(), 73, "{found:?}");
}
