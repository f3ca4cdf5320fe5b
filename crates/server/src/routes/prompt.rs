//! `/prompt`: take a graph into the queue.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use fresco_engine::placement::JobNeeds;
use fresco_engine::{Engine, Submission, Ticket, new_prompt_id};
use fresco_graph::{Map, Problem, ProblemsByNode, PromptError, ValidPrompt, Value, json, map};
use http_body::{Frame, SizeHint};
use serde::Serialize;

use crate::http::blocking::blocking;
use crate::http::error::{ApiError, Code, error_object, store_error};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::pack_host;
use crate::services::hub::PendingAnswer;

/// Graphs from this size on are checked off the network threads; those that name files or have nodes of other processes always.
const LARGE: usize = 200;
/// Bytes of a prompt id that a client chose.
const MAX_ID: usize = 512;

/// `GET /prompt`.
pub(crate) async fn get(request: Request) -> Answer {
    let remaining = request.app.engine.remaining();
    let exec_info = ExecInfo {
        queue_remaining: remaining,
    };
    Ok(response::typed(&QueueAnswer { exec_info }))
}

#[derive(Serialize)]
struct QueueAnswer {
    exec_info: ExecInfo,
}

#[derive(Serialize)]
struct ExecInfo {
    queue_remaining: usize,
}

/// What the submitter of a prompt hears of it.
#[derive(Serialize)]
struct AcceptanceAnswer<'a> {
    prompt_id: &'a str,
    number: &'a Value,
    node_errors: Map,
}

/// `POST /prompt`.
pub(crate) async fn post(mut request: Request) -> Answer {
    let app = request.app.clone();
    let body = match request.try_json().await? {
        Ok(Value::Map(map)) => Arc::unwrap_or_clone(map),
        Ok(_) => {
            return Err(refused(
                &app,
                Code::InvalidPrompt,
                "the request body is not a JSON object",
            ));
        }
        Err(e) => {
            return Err(refused(
                &app,
                Code::InvalidPrompt,
                &format!("the request body is not JSON: {e}"),
            ));
        }
    };
    if let Some(Value::Map(prompt)) = body.get("prompt") {
        pack_host::wait_for_classes(&app, prompt).await;
    }
    let body = if app.packs.sees_prompts() {
        let packs = app.packs.clone();
        blocking(move || packs.on_prompt(&body).unwrap_or(body)).await?
    } else {
        body
    };
    let order = PromptRequest::read(body)
        .map_err(|details| refused(&app, Code::InvalidPrompt, &details))?;
    // Drawn for every request without a number of its own, whatever becomes of it.
    let drawn = order
        .number
        .is_none()
        .then(|| app.engine.next_number(order.front));
    let Some(prompt) = order.prompt else {
        return Err(refused(&app, Code::NoPrompt, Code::NoPrompt.message()));
    };
    let Value::Map(prompt) = prompt else {
        let details = "'prompt' is not an object of nodes";
        return Err(refused(&app, Code::InvalidPrompt, details));
    };
    let prompt = Arc::unwrap_or_clone(prompt);
    let targets = order.targets;
    let checked = if prompt.len() < LARGE && !app.engine.checks_wait(&prompt) {
        check(&app.engine, prompt, targets.as_deref())
    } else {
        let engine = app.engine.clone();
        tokio::task::spawn_blocking(move || check(&engine, prompt, targets.as_deref()))
            .await
            .map_err(|e| ApiError::trouble(format!("checking the prompt failed: {e}")))?
    };
    let (valid, needs) = checked.map_err(|mut error| {
        app.metrics.prompt(false);
        if let (Some(class), Some(why)) = (&error.unknown_class, app.packs.problem()) {
            error.problem.message = format!(
                "Cannot execute because node {class} is not known. Python packs are not running: {why}"
            );
        }
        tracing::info!(%error, "invalid prompt");
        invalid(&error)
    })?;
    let client = order.extra_data.get("client_id").and_then(Value::as_str);
    let answer = client.map(|client| {
        let fetch = request.head.headers.contains_key("sec-fetch-mode");
        app.hub.expect_answer(&order.prompt_id, client, fetch)
    });
    let submission = Submission {
        prompt_id: Some(order.prompt_id),
        number: order.number,
        drawn,
        front: order.front,
        extra_data: order.extra_data,
        needs,
    };
    let ticket = app
        .engine
        .submit(valid, submission)
        .await
        .map_err(|error| {
            app.metrics.prompt(false);
            store_error(&error)
        })?;
    app.metrics.prompt(true);
    Ok(accepted(ticket, answer))
}

/// Checks a prompt, and says what it needs of a worker.
fn check(
    engine: &Engine,
    prompt: Map,
    targets: Option<&[Arc<str>]>,
) -> Result<(ValidPrompt, Option<JobNeeds>), Box<PromptError>> {
    let valid = engine.validate(prompt, targets)?;
    let needs = engine.needs(&valid);
    Ok((valid, needs))
}

fn refused(app: &crate::App, code: Code, details: &str) -> ApiError {
    app.metrics.prompt(false);
    ApiError::coded(code, details)
}

/// The request's fields, as far as this server uses them.
struct PromptRequest {
    prompt: Option<Value>,
    prompt_id: Arc<str>,
    number: Option<f64>,
    front: bool,
    extra_data: Map,
    targets: Option<Vec<Arc<str>>>,
}

impl PromptRequest {
    fn read(mut body: Map) -> Result<Self, String> {
        let mut take = |key: &str| body.swap_remove(key).filter(|v| !v.is_null());
        let number = match take("number") {
            None => None,
            Some(value) => Some(float(&value).ok_or("'number' is not a finite number")?),
        };
        let mut extra_data = match take("extra_data") {
            None => Map::new(),
            Some(Value::Map(map)) => Arc::unwrap_or_clone(map),
            Some(_) => return Err("'extra_data' is not an object".into()),
        };
        if let Some(client) = take("client_id") {
            extra_data.insert("client_id".into(), client);
        }
        let targets = match take("partial_execution_targets") {
            None => None,
            Some(Value::List(list)) => {
                Some(list.iter().map(|v| json::python_text(v).into()).collect())
            }
            Some(_) => return Err("'partial_execution_targets' is not an array".into()),
        };
        let prompt_id: Arc<str> = match take("prompt_id").map(|id| json::python_text(&id)) {
            Some(id) if id.len() > MAX_ID => {
                return Err(format!("'prompt_id' is longer than {MAX_ID} bytes"));
            }
            Some(id) if !id.is_empty() => id.into(),
            _ => new_prompt_id(),
        };
        Ok(Self {
            number,
            front: take("front").is_some_and(|v| v.truthy()),
            prompt: take("prompt"),
            prompt_id,
            extra_data,
            targets,
        })
    }
}

/// A priority as Python's `float()` reads it; one that cannot be ordered or written down is none.
fn float(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Str(text) => text.trim().parse().ok()?,
        other => other.as_f64()?,
    };
    f64::is_finite(number).then_some(number)
}

fn invalid(error: &PromptError) -> ApiError {
    let body =
        map! {"error" => problem(&error.problem), "node_errors" => node_errors(&error.nodes)};
    ApiError::Json(StatusCode::BAD_REQUEST, body.into())
}

fn problem(problem: &Problem) -> Value {
    error_object(
        problem.kind,
        &problem.message,
        &problem.details,
        problem.extra_info.clone(),
    )
}

fn node_errors(nodes: &ProblemsByNode) -> Map {
    let entry = |node: &fresco_graph::NodeProblems| {
        map! {
            "errors" => node.errors.iter().map(problem).collect::<Vec<_>>(),
            "dependent_outputs" => node.dependent_outputs.iter().map(Value::from).collect::<Vec<_>>(),
            "class_type" => &node.class,
        }
    };
    nodes
        .iter()
        .map(|(id, node)| (id.clone(), entry(node).into()))
        .collect()
}

fn accepted(ticket: Ticket, answer: Option<PendingAnswer>) -> Response {
    let text = Bytes::from(response::wire_text(&AcceptanceAnswer {
        prompt_id: &ticket.prompt_id,
        number: &ticket.number,
        node_errors: node_errors(&ticket.problems),
    }));
    let mut response = response::json_text(text.clone());
    *response.body_mut() = Body::new(Answering {
        content: Some(text),
        _answer: answer,
    });
    response
}

/// The answer's text. Frames of the prompt may go once the connection has taken all of it, which is when this is dropped.
struct Answering {
    content: Option<Bytes>,
    _answer: Option<PendingAnswer>,
}

impl http_body::Body for Answering {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        Poll::Ready(self.content.take().map(|c| Ok(Frame::data(c))))
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.content.as_ref().map_or(0, |c| c.len() as u64))
    }
}
