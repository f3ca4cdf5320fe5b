//! `cargo xtask docgen`: pages the program writes about itself, kept in the tree so that they can be read on the web.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{ci, tree};

struct Page {
    path: &'static str,
    write: fn() -> Result<String>,
}

const PAGES: &[Page] = &[
    Page {
        path: "docs/command-line.md",
        write: command_line,
    },
    Page {
        path: "docs/nodes.md",
        write: nodes,
    },
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let check = arguments.iter().any(|argument| argument == "--check");
    ci::build()?;
    let mut stale = Vec::new();
    for page in PAGES {
        let text = (page.write)()?;
        let path = tree::root().join(page.path);
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        if check {
            stale.push(page.path);
        } else {
            write(&path, &text)?;
        }
    }
    if !stale.is_empty() {
        bail!(
            "out of date: {}; run `cargo xtask docgen`",
            stale.join(", ")
        );
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("docgen: wrote {}", path.display());
    Ok(())
}

/// What the program prints, with a fixed width and away from the settings of whoever runs this.
fn output(arguments: &[&str]) -> Result<String> {
    let program = ci::program();
    let output = Command::new(&program)
        .args(arguments)
        .current_dir("/")
        .env_clear()
        .env("COLUMNS", "110")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "{} {}: {}\n{}",
            program.display(),
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

const HEAD: &str = "<!-- Written by `cargo xtask docgen`; change the program, not this page. -->\n";

fn command_line() -> Result<String> {
    let mut page = format!("{HEAD}# Commands and flags\n");
    for command in [
        "", "run", "convert", "quantize", "nodes", "doctor", "memory",
    ] {
        let arguments: Vec<&str> = [command, "-h"]
            .into_iter()
            .filter(|argument| !argument.is_empty())
            .collect();
        let help = output(&arguments)?;
        let call = format!("fresco {command}");
        write!(page, "\n## {}\n\n```text\n", call.trim())?;
        for line in help.trim_end().lines() {
            writeln!(page, "{}", line.trim_end())?;
        }
        page.push_str("```\n");
    }
    Ok(page)
}

/// Classes of the reference, and newer ones of the ecosystem: name, kind, category.
const REFERENCE: &str = include_str!("../data/reference-nodes.tsv");

/// What a class of the list is.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    Core,
    /// Calls a service that is paid for.
    Cloud,
    /// Not in the version that the reference is.
    Newer,
}

fn reference() -> Result<BTreeMap<&'static str, (Known, &'static str)>> {
    let mut found = BTreeMap::new();
    for line in REFERENCE.lines() {
        let mut parts = line.split('\t');
        let (Some(name), Some(kind)) = (parts.next(), parts.next()) else {
            bail!("the list of the reference's nodes has a line {line:?}");
        };
        let kind = match kind {
            "core" => Known::Core,
            "cloud" => Known::Cloud,
            "newer" => Known::Newer,
            other => bail!("{name} is {other:?} in the list of the reference's nodes"),
        };
        found.insert(name, (kind, parts.next().unwrap_or_default()));
    }
    Ok(found)
}

/// How many of each kind there are, in words.
fn summary(known: &BTreeMap<&str, (Known, &str)>, has: impl Fn(&str) -> bool) -> String {
    let count = |kind: Known, here: bool| {
        let of = known.iter().filter(|(_, (k, _))| *k == kind);
        of.filter(|(name, _)| has(name) == here).count()
    };
    let (here, lacking) = (count(Known::Core, true), count(Known::Core, false));
    let cloud = count(Known::Cloud, true) + count(Known::Cloud, false);
    let newer = count(Known::Newer, true);
    format!(
        "Of the reference's {} classes {here} are supported and {lacking} not yet; {cloud} call services that are paid for \
         and are not planned.\nOf {} newer classes that its workflows use {newer} are supported.\n",
        here + lacking + cloud,
        newer + count(Known::Newer, false),
    )
}

/// Every node, by category, from the description that clients read, and those of the reference that are not there.
fn nodes() -> Result<String> {
    let text = output(&["nodes", "--json"])?;
    let nodes: serde_json::Value =
        serde_json::from_str(&text).context("`fresco nodes --json` did not print JSON")?;
    let nodes = nodes
        .as_object()
        .context("the list of nodes is not an object")?;
    let field = |node: &serde_json::Value, key: &str| {
        node[key].as_str().unwrap_or_default().replace('|', "\\|")
    };
    let mut rows: Vec<(String, String)> = nodes
        .iter()
        .map(|(name, node)| {
            let category = field(node, "category");
            let about = field(node, "description");
            let about = about.lines().next().unwrap_or_default().to_owned();
            let shown = field(node, "display_name");
            let row = format!("| `{name}` | supported | {shown} | {about} |");
            (category, row.replace("|  |", "| |"))
        })
        .collect();
    let count = rows.len();
    let known = reference()?;
    let mut newer = String::new();
    for (name, (kind, category)) in &known {
        if nodes.contains_key(*name) {
            continue;
        }
        match kind {
            Known::Core => rows.push((
                (*category).to_owned(),
                format!("| `{name}` | not yet | | |"),
            )),
            Known::Cloud => rows.push((
                (*category).to_owned(),
                format!("| `{name}` | not planned | | |"),
            )),
            Known::Newer => writeln!(newer, "| `{name}` | not yet |")?,
        }
    }
    rows.sort();
    let mut page = format!("{HEAD}# Nodes\n\n{count} nodes are supported, by category.\n\n");
    page.push_str(&summary(&known, |name| nodes.contains_key(name)));
    let mut current = None;
    for (category, row) in rows {
        if current.as_ref() != Some(&category) {
            write!(
                page,
                "\n## {}\n\n| class | state | name | what it does |\n|---|---|---|---|\n",
                if category.is_empty() {
                    "(without a category)"
                } else {
                    &category
                }
            )?;
            current = Some(category);
        }
        writeln!(page, "{row}")?;
    }
    write!(
        page,
        "\n## Newer than the reference, and not here\n\n| class | state |\n|---|---|\n{newer}"
    )?;
    Ok(page)
}
