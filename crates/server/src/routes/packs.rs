//! What packs bring for the front-end: scripts, example workflows, translations, sub-graphs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_graph::{Map, Value, json, map};
use sha2::{Digest, Sha256};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::http::uri_text::encode_segment;
use crate::routes::static_files::EXAMPLE_FOLDERS;
use crate::services::tree;

/// Every pack directory with its name, root by root, sorted.
fn packs(app: &App) -> Vec<(String, PathBuf)> {
    let roots = app.folders.roots("custom_nodes").unwrap_or_default();
    let below = |root: &PathBuf| {
        tree::folders(root)
            .into_iter()
            .map(|n| (n.clone(), root.join(n)))
            .collect::<Vec<_>>()
    };
    roots.iter().flat_map(below).collect()
}

/// `GET /extensions`.
pub(crate) async fn extensions(request: Request) -> Answer {
    let app = request.app.clone();
    let list = blocking(move || {
        let mut out = Vec::new();
        if let Some(root) = app.config.front_end.folder() {
            let files = tree::files_ending(&root.join("extensions"), ".js");
            out.extend(
                files
                    .into_iter()
                    .map(|f| Value::from(format!("/extensions/{f}"))),
            );
        }
        let mounts = app.packs.mounts();
        for (name, root) in app.config.extensions.iter().chain(&mounts) {
            let name = encode_segment(name);
            let files = tree::files_ending(root, ".js");
            out.extend(
                files
                    .into_iter()
                    .map(|f| Value::from(format!("/extensions/{name}/{f}"))),
            );
        }
        out
    })
    .await?;
    Ok(response::json(&list.into()))
}

/// JSON files directly in a folder: stem and path.
fn json_files(folder: &Path) -> Vec<(String, PathBuf)> {
    let items = tree::list(folder, folder, false, false).unwrap_or_default();
    let stem = |name: &str| name.strip_suffix(".json").map(str::to_owned);
    items
        .into_iter()
        .filter(|i| !i.is_dir)
        .filter_map(|i| Some((stem(&i.name)?, i.path)))
        .collect()
}

/// `GET /workflow_templates`.
pub(crate) async fn workflow_templates(request: Request) -> Answer {
    let app = request.app.clone();
    let found = blocking(move || {
        let mut out = Map::new();
        for (name, path) in packs(&app) {
            let names: Vec<Value> = EXAMPLE_FOLDERS
                .iter()
                .flat_map(|folder| json_files(&path.join(folder)))
                .map(|(stem, _)| Value::from(stem))
                .collect();
            if !names.is_empty() {
                out.insert(name.into(), names.into());
            }
        }
        out
    })
    .await?;
    Ok(response::json(&found.into()))
}

/// `GET /i18n`: read once, then kept.
pub(crate) async fn i18n(request: Request) -> Answer {
    let app = request.app.clone();
    let text = blocking(move || {
        let build = || Arc::<str>::from(json::to_string(&translations(&packs(&app)).into()));
        app.i18n.get_or_init(build).clone()
    })
    .await?;
    Ok(response::json_text(text.as_bytes().to_vec()))
}

fn translations(packs: &[(String, PathBuf)]) -> Map {
    let mut all = Map::new();
    for (_, path) in packs {
        let locales = path.join("locales");
        for language in tree::folders(&locales) {
            let folder = locales.join(&language);
            let mut merged = read_object(&folder.join("main.json"));
            for part in ["nodeDefs", "commands", "settings"] {
                let content = read_object(&folder.join(format!("{part}.json")));
                if !content.is_empty() {
                    merged.insert(part.into(), content.into());
                }
            }
            let known = all
                .shift_remove(language.as_str())
                .unwrap_or_else(|| Map::new().into());
            all.insert(language.into(), merge(known, merged.into()));
        }
    }
    all
}

/// Objects merge, arrays join, anything else is replaced by what comes later.
fn merge(old: Value, new: Value) -> Value {
    match (old, new) {
        (Value::Map(old), Value::Map(new)) => {
            let mut old = Arc::unwrap_or_clone(old);
            for (key, value) in Arc::unwrap_or_clone(new) {
                let value = match old.get_mut(&key) {
                    Some(known) => merge(std::mem::take(known), value),
                    None => value,
                };
                old.insert(key, value);
            }
            old.into()
        }
        (Value::List(old), Value::List(new)) => {
            let mut old = Arc::unwrap_or_clone(old);
            old.extend(new.iter().cloned());
            Value::List(Arc::new(old))
        }
        (_, new) => new,
    }
}

fn read_object(path: &Path) -> Map {
    let Ok(bytes) = std::fs::read(path) else {
        return Map::new();
    };
    match json::parse_bytes(&bytes) {
        Ok(Value::Map(map)) => Arc::unwrap_or_clone(map),
        Ok(_) => Map::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read translations");
            Map::new()
        }
    }
}

/// A sub-graph found in a pack.
pub(crate) struct Subgraph {
    name: String,
    pack: String,
    path: PathBuf,
}

pub(crate) type Subgraphs = indexmap::IndexMap<String, Subgraph>;

impl Subgraph {
    fn describe(&self) -> Map {
        map! {
            "source" => "custom_node",
            "name" => &self.name,
            "info" => map! {"node_pack" => format!("custom_nodes.{}", self.pack)},
        }
    }
}

fn find_subgraphs(app: &App) -> Subgraphs {
    let mut out = Subgraphs::new();
    for (pack, path) in packs(app) {
        for (name, path) in json_files(&path.join("subgraphs")) {
            let absolute = fresco_files::contain::absolute(&path)
                .to_string_lossy()
                .replace('\\', "/");
            let digest = Sha256::new()
                .chain_update("custom_node")
                .chain_update(absolute.as_bytes())
                .finalize();
            out.insert(
                hex::encode(digest),
                Subgraph {
                    name,
                    pack: pack.clone(),
                    path,
                },
            );
        }
    }
    out
}

/// `GET /global_subgraphs`: looked for once.
pub(crate) async fn subgraphs(request: Request) -> Answer {
    let app = request.app.clone();
    let all = blocking(move || {
        let found = app.subgraphs.get_or_init(|| find_subgraphs(&app));
        found
            .iter()
            .map(|(id, s)| (Arc::from(id.as_str()), s.describe().into()))
            .collect::<Map>()
    })
    .await?;
    Ok(response::json(&all.into()))
}

/// `GET /global_subgraphs/{id}`.
pub(crate) async fn subgraph(request: Request) -> Answer {
    let app = request.app.clone();
    let id = request.param(0).to_owned();
    let found = blocking(move || {
        let found = app
            .subgraphs
            .get_or_init(|| find_subgraphs(&app))
            .get(&id)?;
        let mut object = found.describe();
        object.insert(
            "data".into(),
            std::fs::read_to_string(&found.path).ok()?.into(),
        );
        Some(Value::from(object))
    })
    .await?;
    Ok(response::json(&found.unwrap_or(Value::Null)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging() {
        let parse = |t: &str| json::parse(t).unwrap();
        let merged = merge(
            parse(r#"{"a":{"x":1,"l":[1]},"b":1,"c":{"y":1}}"#),
            parse(r#"{"a":{"l":[2],"z":3},"b":{"q":1},"c":2}"#),
        );
        assert_eq!(
            json::to_string(&merged),
            r#"{"a":{"x":1,"l":[1,2],"z":3},"b":{"q":1},"c":2}"#
        );
    }
}
