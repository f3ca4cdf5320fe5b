//! `POST /fresco/workflow`: what is in a file somebody dropped, and what is missing here to run it. Nothing is stored.

use std::collections::BTreeMap;

use fresco_files::{annotated, image, metadata, read_metadata};
use fresco_graph::ui::{self, NodeDefs, Workflow};
use fresco_graph::{Missing, Value, file_name, json, map, missing, model_sources, object_info};

use crate::App;
use crate::http::error::{ApiError, Code, disk_error};
use crate::http::request::{JSON_GROWS, Request, too_many};
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::object_info::Pinned;
use crate::services::pictures::{self, Desk};

pub(crate) async fn inspect(mut request: Request) -> Answer {
    let body = request.body().await?;
    let app = request.app.clone();
    // As heavy as a picture: a large workflow takes many times its size while it is converted.
    let text = pictures::work(&request.app, move |desk| {
        let _file = desk.take(body.size())?;
        let bytes = body.whole().load();
        let bytes = bytes.map_err(|e| disk_error("read the request body back", &e))?;
        let found = understand(&app, &bytes, desk)?;
        Ok::<_, ApiError>(json::to_string(&describe(&app, found)))
    })
    .await?;
    Ok(response::json_text(text))
}

fn understand(app: &App, bytes: &[u8], desk: &Desk) -> Result<Workflow, ApiError> {
    let refused = |text: &str| ApiError::coded(Code::BadWorkflow, text);
    if bytes.is_empty() {
        return Err(refused("the file is empty"));
    }
    let options = ui::Options {
        name_unknown: true,
        ..ui::Options::default()
    };
    let defs = definitions(app);
    let texts = read_metadata(bytes);
    // The prompt that made a picture says more than the graph it came from: numbers drawn by chance are in it.
    if let Some(found) = ui::read_texts(&texts, false, &defs, &options) {
        return found.map_err(|_| refused("the workflow in the picture cannot be read"));
    }
    if image::Format::guess(bytes).is_some() {
        return Err(refused("the picture carries no workflow"));
    }
    if metadata::is_film_or_sound(bytes) {
        return Err(refused("the film or sound carries no workflow"));
    }
    let limit = app.config.limits.json_bytes;
    if bytes.len() as u64 > limit {
        let text = format!("{} bytes, the limit is {limit}", bytes.len());
        return Err(ApiError::coded(Code::JsonTooLarge, text));
    }
    let room = desk
        .share
        .take(bytes.len() as u64 * JSON_GROWS)
        .map_err(|short| short.for_request("reading so much JSON"))?;
    let parsed = json::parse_bytes_within(bytes, json::FOREIGN_BYTES);
    let value = too_many(parsed)?
        .map_err(|e| refused(&format!("this is neither JSON nor a picture: {e}")))?;
    drop(room);
    ui::read(&value, &defs, &options).map_err(|e| refused(&e.to_string()))
}

/// What the classes declare; each is asked when the workflow has one of it.
fn definitions(app: &App) -> NodeDefs {
    let (registry, listings) = (app.engine.registry(), Pinned::new(app.engine.listings()));
    NodeDefs::asking(move |class| {
        let schema = registry.get(class)?.schema();
        Some(object_info::node_info(&schema, &listings))
    })
}

fn describe(app: &App, found: Workflow) -> Value {
    let Workflow {
        prompt,
        editor,
        mut warnings,
    } = found;
    let exists = |name: &str| annotated::exists(&app.dirs, name);
    let listings = Pinned::new(app.engine.listings());
    let lacking = missing(&prompt, &app.engine.registry(), &listings, &exists);
    warnings.extend(lacking.warnings.iter().cloned());
    let warnings: Vec<Value> = warnings.into_iter().map(Value::from).collect();
    let sources = editor.as_ref().map(model_sources).unwrap_or_default();
    let kind = if editor.is_some() { "ui" } else { "api" };
    map! {
        "kind" => kind,
        "workflow" => editor.unwrap_or(Value::Null),
        "prompt" => prompt,
        "missing" => wire(&lacking, &sources),
        "warnings" => warnings,
    }
    .into()
}

fn wire(lacking: &Missing, sources: &BTreeMap<String, String>) -> Value {
    let nodes: Vec<Value> = lacking
        .nodes
        .iter()
        .map(|n| {
            map! {"id" => &n.id, "class_type" => n.class.as_str(), "title" => n.title.as_str()}
                .into()
        })
        .collect();
    let models: Vec<Value> = lacking
        .models
        .iter()
        .map(|m| {
            let choices: Vec<Value> = m.choices.iter().map(|c| Value::from(c.as_str())).collect();
            let closest = m.choices.first().filter(|_| m.plausible > 0);
            let url = sources.get(&file_name(&m.wanted));
            map! {
                "node_id" => &m.node,
                "class_type" => m.class.as_str(),
                "input" => &m.input,
                "wanted" => m.wanted.as_str(),
                "folder" => m.folder.as_str(),
                "choices" => choices,
                "closest" => closest.map(String::as_str),
                "url" => url.map(String::as_str),
            }
            .into()
        })
        .collect();
    let files: Vec<Value> = lacking
        .files
        .iter()
        .map(|f| {
            map! {"node_id" => &f.node, "input" => &f.input, "wanted" => f.wanted.as_str()}.into()
        })
        .collect();
    map! {"nodes" => nodes, "models" => models, "files" => files}.into()
}
