//! `POST /fresco/workflow`: what is in a file somebody dropped, and what is missing here to run it. Nothing is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_files::{annotated, image, metadata, read_metadata};
use fresco_graph::ui::{self, NodeDefs, Workflow};
use fresco_graph::{Map, Missing, Value, file_name, json, missing, model_sources, object_info};
use serde::Serialize;

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
        Ok::<_, ApiError>(response::wire_text(&describe(&app, found)))
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

fn describe(app: &App, found: Workflow) -> WorkflowAnswer {
    let Workflow {
        prompt,
        editor,
        mut warnings,
    } = found;
    let exists = |name: &str| annotated::exists(&app.dirs, name);
    let listings = Pinned::new(app.engine.listings());
    let lacking = missing(&prompt, &app.engine.registry(), &listings, &exists);
    warnings.extend(lacking.warnings.iter().cloned());
    let sources = editor.as_ref().map(model_sources).unwrap_or_default();
    WorkflowAnswer {
        kind: if editor.is_some() { "ui" } else { "api" },
        workflow: editor,
        prompt,
        missing: MissingParts::new(lacking, &sources),
        warnings,
    }
}

/// What is in a file, and what is missing here to run it.
#[derive(Serialize)]
struct WorkflowAnswer {
    kind: &'static str,
    workflow: Option<Value>,
    prompt: Map,
    missing: MissingParts,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct MissingParts {
    nodes: Vec<MissingNode>,
    models: Vec<MissingModel>,
    files: Vec<MissingFile>,
}

#[derive(Serialize)]
struct MissingNode {
    id: Arc<str>,
    class_type: String,
    title: String,
}

#[derive(Serialize)]
struct MissingModel {
    node_id: Arc<str>,
    class_type: String,
    input: Arc<str>,
    wanted: String,
    folder: String,
    choices: Arc<Vec<String>>,
    /// Which of the choices may be meant.
    closest: Option<String>,
    /// Where the workflow says that it comes from.
    url: Option<String>,
}

#[derive(Serialize)]
struct MissingFile {
    node_id: Arc<str>,
    input: Arc<str>,
    wanted: String,
}

impl MissingParts {
    fn new(lacking: Missing, sources: &BTreeMap<String, String>) -> Self {
        let nodes = lacking.nodes.into_iter().map(|node| MissingNode {
            id: node.id,
            class_type: node.class,
            title: node.title,
        });
        let models = lacking.models.into_iter().map(|model| MissingModel {
            closest: model
                .choices
                .first()
                .filter(|_| model.plausible > 0)
                .cloned(),
            url: sources.get(&file_name(&model.wanted)).cloned(),
            node_id: model.node,
            class_type: model.class,
            input: model.input,
            wanted: model.wanted,
            folder: model.folder,
            choices: model.choices,
        });
        let files = lacking.files.into_iter().map(|file| MissingFile {
            node_id: file.node,
            input: file.input,
            wanted: file.wanted,
        });
        Self {
            nodes: nodes.collect(),
            models: models.collect(),
            files: files.collect(),
        }
    }
}
