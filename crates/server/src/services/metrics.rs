//! Counters, and `/metrics` in the Prometheus text form.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use fresco_engine::EventKind;

use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;

/// What the server has done since it started.
#[derive(Default)]
pub struct Metrics {
    started: Started,
    requests: AtomicU64,
    /// By first digit of the status, 1 to 5.
    answers: [AtomicU64; 6],
    answer_bytes: AtomicU64,
    prompts_accepted: AtomicU64,
    prompts_refused: AtomicU64,
    prompts_started: AtomicU64,
    prompts_success: AtomicU64,
    prompts_error: AtomicU64,
    prompts_interrupted: AtomicU64,
    nodes_run: AtomicU64,
    sockets: AtomicUsize,
    frames_sent: AtomicU64,
    frame_bytes: AtomicU64,
    frames_dropped: AtomicU64,
}

struct Started(Instant);

impl Default for Started {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Metrics {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn answer(&self, status: StatusCode, headers: &HeaderMap) {
        self.answers[usize::from(status.as_u16() / 100).min(5)].fetch_add(1, Relaxed);
        let length = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse().ok());
        self.answer_bytes.fetch_add(length.unwrap_or(0), Relaxed);
    }

    pub(crate) fn prompt(&self, accepted: bool) {
        let counter = if accepted {
            &self.prompts_accepted
        } else {
            &self.prompts_refused
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn sockets(&self, open: usize) {
        self.sockets.store(open, Relaxed);
    }

    pub(crate) fn open_sockets(&self) -> usize {
        self.sockets.load(Relaxed)
    }

    pub(crate) fn frames_sent(&self, frames: u64, bytes: usize) {
        self.frames_sent.fetch_add(frames, Relaxed);
        self.frame_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn frames_dropped(&self, frames: usize) {
        self.frames_dropped.fetch_add(frames as u64, Relaxed);
    }

    pub(crate) fn event(&self, kind: &EventKind) {
        let counter = match kind {
            EventKind::Start { .. } => &self.prompts_started,
            EventKind::Success { .. } => &self.prompts_success,
            EventKind::Error(_) => &self.prompts_error,
            EventKind::Interrupted { .. } => &self.prompts_interrupted,
            EventKind::Executing { .. } => &self.nodes_run,
            _ => return,
        };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn uptime(&self) -> f64 {
        self.started.0.elapsed().as_secs_f64()
    }

    fn render(&self, queue: usize, held: &Held) -> String {
        let load = |c: &AtomicU64| c.load(Relaxed) as f64;
        let weights = fresco_memory::weight_traffic();
        let class = |at: usize| ["1xx", "2xx", "3xx", "4xx", "5xx"][at - 1];
        let mut page = Page(String::with_capacity(4096));
        page.gauge(
            "fresco_queue_remaining",
            "Prompts waiting or running.",
            queue as f64,
        );
        page.counters(
            "fresco_prompts_total",
            "Prompts by what became of them.",
            "outcome",
            &[
                ("accepted", load(&self.prompts_accepted)),
                ("refused", load(&self.prompts_refused)),
                ("started", load(&self.prompts_started)),
                ("success", load(&self.prompts_success)),
                ("error", load(&self.prompts_error)),
                ("interrupted", load(&self.prompts_interrupted)),
            ],
        );
        page.counter(
            "fresco_nodes_run_total",
            "Node executions begun.",
            load(&self.nodes_run),
        );
        page.gauge(
            "fresco_sockets",
            "Open WebSockets.",
            self.open_sockets() as f64,
        );
        page.counters(
            "fresco_socket_frames_total",
            "WebSocket frames by what became of them.",
            "outcome",
            &[
                ("sent", load(&self.frames_sent)),
                ("dropped", load(&self.frames_dropped)),
            ],
        );
        page.counter(
            "fresco_socket_bytes_total",
            "Bytes of WebSocket frames sent.",
            load(&self.frame_bytes),
        );
        page.counter(
            "fresco_http_requests_total",
            "Requests received.",
            load(&self.requests),
        );
        page.counters(
            "fresco_http_answers_total",
            "Answers by class of status.",
            "status",
            &[1, 2, 3, 4, 5].map(|at| (class(at), load(&self.answers[at]))),
        );
        page.counter(
            "fresco_http_answer_bytes_total",
            "Bytes of answer bodies of known length.",
            load(&self.answer_bytes),
        );
        page.family(
            "fresco_request_body_bytes",
            "gauge",
            "Bytes of request bodies that are coming in or being worked on.",
            "place",
            &[
                ("memory", held.body_memory as f64),
                ("disk", held.body_disk as f64),
            ],
        );
        page.gauge(
            "fresco_request_memory_bytes",
            "Main memory set aside for decoded pictures and large JSON of requests.",
            held.memory as f64,
        );
        page.counters(
            "fresco_pictures_total",
            "Pieces of work on pictures for requests, and results given again.",
            "outcome",
            &[
                ("made", held.made as f64),
                ("repeated", held.repeated as f64),
            ],
        );
        page.counters(
            "fresco_weight_bytes_total",
            "Bytes of model weights by what was done with them in main memory.",
            "work",
            &[
                ("read", weights.read as f64),
                ("copied", weights.copied as f64),
                ("converted", weights.converted as f64),
            ],
        );
        page.gauge(
            "process_uptime_seconds",
            "Seconds since the server started.",
            self.uptime(),
        );
        if let Some(bytes) = held.resident {
            page.gauge(
                "process_resident_memory_bytes",
                "Main memory held by the process.",
                bytes as f64,
            );
        }
        page.0
    }
}

/// What requests hold now, and what was made for them.
#[derive(Default)]
struct Held {
    body_memory: u64,
    body_disk: u64,
    memory: u64,
    /// What the process has of the main memory.
    resident: Option<u64>,
    made: u64,
    repeated: u64,
}

struct Page(String);

impl Page {
    /// A figure with a sample for each value of its label; a label without a name stands for no label.
    fn family(&mut self, name: &str, kind: &str, help: &str, label: &str, samples: &[(&str, f64)]) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (of, value) in samples {
            let _ = match label {
                "" => writeln!(self.0, "{name} {value}"),
                _ => writeln!(self.0, "{name}{{{label}=\"{of}\"}} {value}"),
            };
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help, "", &[("", value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", help, "", &[("", value)]);
    }

    fn counters(&mut self, name: &str, help: &str, label: &str, samples: &[(&str, f64)]) {
        self.family(name, "counter", help, label, samples);
    }
}

/// `GET /metrics`.
pub(crate) async fn get(request: Request) -> Answer {
    let app = &request.app;
    let (body_memory, body_disk) = app.bodies.held();
    let held = Held {
        body_memory,
        body_disk,
        memory: app.memory.taken(),
        resident: fresco_memory::resident_set(),
        made: app.pictures.made.load(Relaxed),
        repeated: app.pictures.repeated.load(Relaxed),
    };
    let text = app.metrics.render(app.engine.remaining(), &held);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(response::bytes(StatusCode::OK, kind, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_belongs_to_a_family() {
        let metrics = Metrics::default();
        metrics.event(&EventKind::Success { timestamp: 1 });
        let text = metrics.render(7, &Held::default());
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(family), "{line}");
            }
        }
        assert!(text.contains("fresco_queue_remaining 7\n"));
        assert!(text.contains("fresco_prompts_total{outcome=\"success\"} 1\n"));
    }
}
