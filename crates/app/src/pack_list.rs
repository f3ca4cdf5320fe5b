//! What `fresco packs list` and `check` print of each pack.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fresco_graph::Value;
use fresco_python::{PackReport, State, Wanted, candidates};

use crate::cli::PackServerArgs;
use crate::http_client::Server;
use crate::pack_tools::{OFF, reach};
use crate::settings::token;

/// The server of this machine, if there is one.
const HERE: &str = "http://127.0.0.1:8188";

/// One pack, as it is shown.
pub(crate) struct Row {
    state: &'static str,
    name: String,
    path: PathBuf,
    error: Option<String>,
    ignored: Vec<String>,
    /// Its nodes and the seconds of its import; none where it is not loaded.
    loaded: Option<(usize, f64)>,
    /// Classes that could not say what they declare, with the reason.
    left_out: Vec<(String, String)>,
}

impl Row {
    fn new(state: &'static str, name: String, path: PathBuf) -> Self {
        Self {
            state,
            name,
            path,
            error: None,
            ignored: Vec::new(),
            loaded: None,
            left_out: Vec::new(),
        }
    }
}

/// Packs that were imported just now.
pub(crate) fn rows_of(packs: &[PackReport]) -> Vec<Row> {
    let row = |pack: &PackReport| Row {
        error: pack.error.clone(),
        ignored: pack.ignored.clone(),
        loaded: (pack.state == State::Loaded).then_some((pack.classes.len(), pack.seconds)),
        left_out: pack.undescribed.clone(),
        ..Row::new(
            pack.state.name(),
            pack.name.clone(),
            PathBuf::from(&pack.path),
        )
    };
    packs.iter().map(row).collect()
}

/// Packs of the folders, also those that are switched off, with what the server says of them.
pub(crate) fn list(roots: &[PathBuf], server: &PackServerArgs) -> anyhow::Result<Vec<Row>> {
    let answer = ask(server)?;
    let nothing = Vec::new();
    let said = answer
        .as_ref()
        .and_then(|answer| answer.get("packs")?.as_list())
        .unwrap_or(&nothing);
    let mut rows: Vec<Row> = candidates(roots, &Wanted::default())
        .into_iter()
        .map(|pack| {
            let same = |said: &&Value| {
                let path = said.get("path").and_then(Value::as_str);
                path.is_some_and(|path| same_place(Path::new(path), &pack.path))
            };
            let mut row = Row::new("not started", pack.name, pack.path.clone());
            if let Some(said) = said.iter().find(same) {
                read(&mut row, said);
            }
            row
        })
        .collect();
    rows.extend(switched_off(roots));
    Ok(rows)
}

/// What a server has of packs; nothing if none was named and none is there.
fn ask(args: &PackServerArgs) -> anyhow::Result<Option<Value>> {
    let token = token(args.token.clone(), args.token_file.as_deref())?;
    let server = Server::new(args.url.as_deref().unwrap_or(HERE), token, None)?;
    match server.json("GET", "/api/packs", "", false) {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if args.url.is_some() => Err(error),
        Err(_) => Ok(None),
    }
}

fn read(row: &mut Row, said: &Value) {
    let text = |key: &str| said.get(key).and_then(Value::as_str);
    let texts = |key: &str| -> Vec<String> {
        let list = said.get(key).and_then(Value::as_list).unwrap_or_default();
        let texts = list.iter().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    row.state = match text("state") {
        Some("loaded") => "running",
        Some("failed") => "failed",
        Some(_) => "starting",
        None => return,
    };
    row.error = text("error").map(str::to_owned);
    row.ignored = texts("ignored");
    if row.state == "running" {
        let seconds = said.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
        row.loaded = Some((texts("nodes").len(), seconds));
    }
    let left_out = said.get("left_out").and_then(Value::as_map);
    for (class, why) in left_out.into_iter().flatten() {
        let why = why.as_str().unwrap_or_default().to_owned();
        row.left_out.push((class.to_string(), why));
    }
}

fn same_place(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    a == b || real(a) == real(b)
}

fn switched_off(roots: &[PathBuf]) -> Vec<Row> {
    let mut rows = Vec::new();
    for entry in roots
        .iter()
        .filter_map(|root| std::fs::read_dir(root).ok())
        .flatten()
        .flatten()
    {
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let Some(name) = name.strip_suffix(OFF).filter(|n| !n.starts_with('.')) else {
            continue;
        };
        let module = name.strip_suffix(".py");
        if path.is_file() && module.is_none() {
            continue;
        }
        let name = module.unwrap_or(name).to_owned();
        rows.push(Row::new("disabled", name, path));
    }
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    rows
}

pub(crate) fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no packs\n".to_owned();
    }
    let mut text = String::new();
    for row in rows {
        let place = row.path.display();
        let _ = write!(text, "{:<12} {:<32} {place}", row.state, row.name);
        if let Some((nodes, seconds)) = row.loaded {
            let _ = write!(text, "  {nodes} nodes in {seconds:.1} s");
        }
        text.push('\n');
        let mut note = |line: String| {
            let _ = writeln!(text, "             {line}");
        };
        if let Some(error) = &row.error {
            note(error.lines().next().unwrap_or_default().to_owned());
        }
        for (class, why) in &row.left_out {
            let why = why.lines().next().unwrap_or_default();
            note(format!("the node {class} is left out: {why}"));
        }
        if !row.ignored.is_empty() {
            note(format!("built-in nodes stay: {}", row.ignored.join(", ")));
        }
        if row.state == "disabled" {
            continue;
        }
        let missing = requirements(&row.path);
        if !missing.is_empty() {
            note(format!("it asks for: {}", missing.join(", ")));
        }
        if row.loaded.is_none() && row.error.is_none() {
            continue;
        }
        let reach = reach(&row.path);
        note(format!("level: {}", reach.level));
        if !reach.inside.is_empty() {
            note(format!(
                "parts of it will not work, because networks run in Fresco and not in torch: {}",
                reach.inside.join(", ")
            ));
        }
    }
    text
}

/// What a pack's requirements.txt asks for; nothing of it is installed by itself.
fn requirements(pack: &Path) -> Vec<String> {
    let Ok(content) = std::fs::read_to_string(pack.join("requirements.txt")) else {
        return Vec::new();
    };
    let lines = content.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.starts_with('-'))
        .map(str::to_owned)
        .collect()
}
