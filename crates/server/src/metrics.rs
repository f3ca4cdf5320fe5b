//! Counters, and `/metrics` in the Prometheus text form.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use fresco_engine::EventKind;

use crate::request::Request;
use crate::response;
use crate::route::Answer;

/// What the server has done since it started.
pub struct Metrics {
    started: Instant,
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

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            requests: AtomicU64::default(),
            answers: <[AtomicU64; 6]>::default(),
            answer_bytes: AtomicU64::default(),
            prompts_accepted: AtomicU64::default(),
            prompts_refused: AtomicU64::default(),
            prompts_started: AtomicU64::default(),
            prompts_success: AtomicU64::default(),
            prompts_error: AtomicU64::default(),
            prompts_interrupted: AtomicU64::default(),
            nodes_run: AtomicU64::default(),
            sockets: AtomicUsize::default(),
            frames_sent: AtomicU64::default(),
            frame_bytes: AtomicU64::default(),
            frames_dropped: AtomicU64::default(),
        }
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
        self.started.elapsed().as_secs_f64()
    }

    fn render(&self, queue: usize, held: &Held) -> String {
        let mut page = Page(String::with_capacity(4096));
        let load = |c: &AtomicU64| c.load(Relaxed) as f64;
        page.family(
            "fresco_queue_remaining",
            "gauge",
            "Prompts waiting or running.",
        );
        page.sample("fresco_queue_remaining", "", queue as f64);
        page.family(
            "fresco_prompts_total",
            "counter",
            "Prompts by what became of them.",
        );
        for (outcome, counter) in [
            ("accepted", &self.prompts_accepted),
            ("refused", &self.prompts_refused),
            ("started", &self.prompts_started),
            ("success", &self.prompts_success),
            ("error", &self.prompts_error),
            ("interrupted", &self.prompts_interrupted),
        ] {
            page.sample(
                "fresco_prompts_total",
                &format!("{{outcome=\"{outcome}\"}}"),
                load(counter),
            );
        }
        page.family(
            "fresco_nodes_run_total",
            "counter",
            "Node executions begun.",
        );
        page.sample("fresco_nodes_run_total", "", load(&self.nodes_run));
        page.family("fresco_sockets", "gauge", "Open WebSockets.");
        page.sample("fresco_sockets", "", self.open_sockets() as f64);
        page.family(
            "fresco_socket_frames_total",
            "counter",
            "WebSocket frames by what became of them.",
        );
        page.sample(
            "fresco_socket_frames_total",
            "{outcome=\"sent\"}",
            load(&self.frames_sent),
        );
        page.sample(
            "fresco_socket_frames_total",
            "{outcome=\"dropped\"}",
            load(&self.frames_dropped),
        );
        page.family(
            "fresco_socket_bytes_total",
            "counter",
            "Bytes of WebSocket frames sent.",
        );
        page.sample("fresco_socket_bytes_total", "", load(&self.frame_bytes));
        page.family(
            "fresco_http_requests_total",
            "counter",
            "Requests received.",
        );
        page.sample("fresco_http_requests_total", "", load(&self.requests));
        page.family(
            "fresco_http_answers_total",
            "counter",
            "Answers by class of status.",
        );
        for (class, counter) in self.answers.iter().enumerate().skip(1) {
            page.sample(
                "fresco_http_answers_total",
                &format!("{{status=\"{class}xx\"}}"),
                load(counter),
            );
        }
        page.family(
            "fresco_http_answer_bytes_total",
            "counter",
            "Bytes of answer bodies of known length.",
        );
        page.sample(
            "fresco_http_answer_bytes_total",
            "",
            load(&self.answer_bytes),
        );
        page.family(
            "fresco_request_body_bytes",
            "gauge",
            "Bytes of request bodies that are coming in or being worked on.",
        );
        for (place, bytes) in [("memory", held.body_memory), ("disk", held.body_disk)] {
            page.sample(
                "fresco_request_body_bytes",
                &format!("{{place=\"{place}\"}}"),
                bytes as f64,
            );
        }
        page.family(
            "fresco_request_memory_bytes",
            "gauge",
            "Main memory set aside for decoded pictures and large JSON of requests.",
        );
        page.sample("fresco_request_memory_bytes", "", held.memory as f64);
        page.family(
            "fresco_pictures_total",
            "counter",
            "Pieces of work on pictures for requests, and results given again.",
        );
        for (outcome, count) in [("made", held.made), ("repeated", held.repeated)] {
            page.sample(
                "fresco_pictures_total",
                &format!("{{outcome=\"{outcome}\"}}"),
                count as f64,
            );
        }
        page.family(
            "fresco_weight_bytes_total",
            "counter",
            "Bytes of model weights by what was done with them in main memory.",
        );
        let weights = fresco_memory::weight_traffic();
        for (work, bytes) in [
            ("read", weights.read),
            ("copied", weights.copied),
            ("converted", weights.converted),
        ] {
            page.sample(
                "fresco_weight_bytes_total",
                &format!("{{work=\"{work}\"}}"),
                bytes as f64,
            );
        }
        page.family(
            "process_uptime_seconds",
            "gauge",
            "Seconds since the server started.",
        );
        page.sample("process_uptime_seconds", "", self.uptime());
        if let Some(bytes) = held.resident {
            page.family(
                "process_resident_memory_bytes",
                "gauge",
                "Main memory held by the process.",
            );
            page.sample("process_resident_memory_bytes", "", bytes as f64);
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
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
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
