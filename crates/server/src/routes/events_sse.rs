//! `GET /api/jobs/{id}/events`: a job's events as a stream, from the start or from where a client left off.
//!
//! Events of recent jobs come from memory, with the numbers they got live. A job this process has not seen is told from
//! its history entry, numbered anew.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use fresco_engine::store::{HistoryRecord, JobBody};
use fresco_graph::{Value, json, map};
use http_body::Frame;
use tokio::sync::mpsc;

use crate::App;
use crate::http::error::stored;
use crate::http::query::query_struct;
use crate::http::request::Request;
use crate::http::route::Answer;
use crate::routes::jobs::not_found;

query_struct! {
    /// Query of `GET /api/jobs/{job_id}/events`.
    StreamQuery {
        last_event_id: Option<String> = "last_event_id", "as the header Last-Event-ID";
    }
}

/// A comment this often keeps proxies from closing a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) async fn get(request: Request) -> Answer {
    let id: Arc<str> = request.param(0).into();
    let app = request.app.clone();
    let after = request
        .header("last-event-id")
        .map(str::to_owned)
        .or_else(|| StreamQuery::of(&request).last_event_id)
        .and_then(|v| v.trim().parse::<u64>().ok())
        .unwrap_or(0);
    if app.hub.job(&id, 0).is_none_or(|v| v.entries.is_empty()) {
        match stored(app.store.job(&id).await)? {
            None => return Err(not_found()),
            Some(detail) => match detail.body {
                JobBody::Finished(record) => return Ok(stream(Body::from(retell(&record, after)))),
                // Opened before the look above could miss the first event.
                JobBody::Queued(_) => drop(app.hub.open_job(&id)),
            },
        }
    }
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(follow(app, id, after, sender));
    Ok(stream(Body::new(Channel(receiver))))
}

fn stream(body: Body) -> Response {
    let mut answer = Response::new(body);
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Tells one common proxy not to collect the stream before passing it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

/// Passes events on until the job or the client ends.
async fn follow(app: App, id: Arc<str>, mut after: u64, sender: mpsc::Sender<Bytes>) {
    loop {
        let Some(mut view) = app.hub.job(&id, after) else {
            return;
        };
        let mut text = String::new();
        for entry in &view.entries {
            write_event(&mut text, entry.id, &entry.kind, entry.data());
            after = entry.id;
        }
        if !text.is_empty() && sender.send(text.into()).await.is_err() {
            return;
        }
        if view.done {
            if after == 0
                && let Some(Ok(Some(record))) = app.store.history_get(&id).await
            {
                // It ended without running; only its record can tell.
                let _ = sender.send(retell(&record, 0).into()).await;
            }
            return;
        }
        // An event between the look and the subscription has already changed the number.
        if *view.signal.borrow_and_update() > after {
            continue;
        }
        tokio::select! {
            changed = view.signal.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            () = tokio::time::sleep(KEEP_ALIVE) => {
                if sender.send(Bytes::from_static(b": still here\n\n")).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn write_event(out: &mut String, id: u64, kind: &str, data: &str) {
    // Names come from nodes too; a line break would start a new field.
    let kind: String = kind.chars().filter(|c| !c.is_control()).collect();
    let _ = write!(out, "id: {id}\nevent: {kind}\ndata: {data}\n\n");
}

/// A finished job's events as its history knows them.
fn retell(record: &HistoryRecord, after: u64) -> String {
    let mut events: Vec<(String, String)> = Vec::new();
    let messages = json::parse(&record.messages).unwrap_or_default();
    let outputs = json::parse(&record.outputs).unwrap_or_default();
    let meta = json::parse(&record.meta).unwrap_or_default();
    let mut executed: Vec<(String, String)> = outputs
        .as_map()
        .into_iter()
        .flatten()
        .map(|(node, output)| {
            let display = meta.get(node).and_then(|m| m.get("display_node")).cloned();
            let data = map! {
                "node" => node,
                "display_node" => display.unwrap_or_else(|| node.into()),
                "output" => output.clone(),
                "prompt_id" => &record.prompt_id,
            };
            ("executed".to_owned(), json::to_string(&data.into()))
        })
        .collect();
    for message in messages.as_list().unwrap_or_default() {
        let Some([kind, data]) = message.as_list() else {
            continue;
        };
        let kind = kind.as_str().unwrap_or_default();
        if matches!(
            kind,
            "execution_success" | "execution_error" | "execution_interrupted"
        ) {
            events.append(&mut executed);
        }
        events.push((kind.to_owned(), json::to_string(data)));
    }
    events.append(&mut executed);
    let end = map! {"node" => Value::Null, "prompt_id" => &record.prompt_id};
    events.push(("executing".to_owned(), json::to_string(&end.into())));
    let mut out = String::new();
    for (id, (kind, data)) in (1..).zip(&events) {
        if id > after {
            write_event(&mut out, id, kind, data);
        }
    }
    out
}

/// A body fed through a channel.
struct Channel(mpsc::Receiver<Bytes>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|p| Ok(Frame::data(p))))
    }
}
