//! `cargo xtask docgen`: pages the program writes about itself, kept in the tree so that they can be read on the web.

use std::{fmt::Write as _, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{ci, steps, tree};

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
    steps::run(&mut steps::cargo(&[
        "build",
        "--package",
        "fresco",
        "--locked",
    ]))?;
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

/// Every node, by category, from the description that clients read.
fn nodes() -> Result<String> {
    let text = output(&["nodes", "--json"])?;
    let nodes: serde_json::Value =
        serde_json::from_str(&text).context("`fresco nodes --json` did not print JSON")?;
    let nodes = nodes
        .as_object()
        .context("the list of nodes is no object")?;
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
            let row = format!("| `{name}` | {shown} | {about} |");
            (category, row.replace("|  |", "| |"))
        })
        .collect();
    rows.sort();
    let mut page = format!("{HEAD}# Nodes\n\n{} nodes, by category.\n", rows.len());
    let mut current = None;
    for (category, row) in rows {
        if current.as_ref() != Some(&category) {
            write!(
                page,
                "\n## {category}\n\n| class | name | what it does |\n|---|---|---|\n"
            )?;
            current = Some(category);
        }
        writeln!(page, "{row}")?;
    }
    Ok(page)
}
