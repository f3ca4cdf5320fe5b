//! What clients have missed: how their prompts went while they were not connected.
//!
//! A client that gives its own name and connects again under it gets this first, in the order in which it happened, and once. It is kept
//! for those who were connected before, here or at another front, and for prompts from before this process began, whose clients may have
//! been; in a cluster for all, since fronts hear late of each other's clients. It is kept for [`KEPT`], and no more of it than there is
//! room for. Progress and pictures on the way are not kept: what comes later says more.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::Message;
use fresco_graph::{Value, json};
use indexmap::IndexMap;

use crate::services::frame::{Class, Frame};

/// How long it is kept.
const KEPT: Duration = Duration::from_mins(10);
/// Frames of one client, the newest.
const FRAMES: usize = 512;
/// Bytes of all clients.
const BYTES: usize = 32 << 20;
/// Clients that are remembered to have been connected, the newest.
const CLIENTS: usize = 16_384;
/// Prompts that this process has accepted and that have not ended.
const PROMPTS: usize = 200_000;

#[derive(Default)]
pub(super) struct Missed {
    /// Any client may be connected to another front, of which this one has not heard yet.
    in_cluster: bool,
    /// Clients that were connected since this process began.
    known: IndexMap<Arc<str>, ()>,
    /// Prompts that were submitted to this process and have not ended.
    own: HashSet<Arc<str>>,
    /// By client; the one that missed something last comes last.
    kept: IndexMap<Arc<str>, VecDeque<(Instant, Frame)>>,
    bytes: usize,
}

/// Whether a frame is about the course of a prompt, and later ones do not say the same again.
fn tells_more(frame: &Frame) -> bool {
    let Message::Text(text) = &frame.message else {
        return false;
    };
    let of_a_prompt = ["{\"type\":\"exec", "{\"type\":\"fresco_held\""];
    if frame.class != Class::Result || !of_a_prompt.iter().any(|start| text.starts_with(start)) {
        return false;
    }
    if !text.starts_with("{\"type\":\"executing\"") {
        return true;
    }
    // Which node runs is old news; that none does any more is the end.
    let data = json::parse(text).ok();
    let node = data
        .as_ref()
        .and_then(|frame| frame.get("data")?.get("node"));
    node.is_some_and(Value::is_null)
}

impl Missed {
    /// Other fronts may have clients of prompts here.
    pub(super) fn join_cluster(&mut self) {
        self.in_cluster = true;
    }

    /// A client is connected, here or at another front.
    pub(super) fn saw(&mut self, client: &Arc<str>) {
        self.known.shift_remove(client);
        if self.known.len() >= CLIENTS {
            self.known.shift_remove_index(0);
        }
        self.known.insert(client.clone(), ());
    }

    /// A prompt is submitted to this process.
    pub(super) fn submitted(&mut self, prompt_id: &Arc<str>) {
        if self.own.len() >= PROMPTS {
            self.own.clear();
        }
        self.own.insert(prompt_id.clone());
    }

    /// A prompt has ended, or left the queue; none: all that wait have.
    pub(super) fn ended(&mut self, prompt_id: &str) {
        self.own.remove(prompt_id);
    }

    /// Whether this client may come back for what it misses of this prompt.
    pub(super) fn wants(&self, client: &str, prompt_id: &str) -> bool {
        self.in_cluster || self.known.contains_key(client) || !self.own.contains(prompt_id)
    }

    /// Keeps a frame that nobody was there for.
    pub(super) fn keep(&mut self, client: &Arc<str>, frame: Frame) {
        // Those that wait for the answer to their prompt come in one order with the rest.
        if frame.after.is_none() && !tells_more(&frame) {
            return;
        }
        let now = Instant::now();
        self.bytes += frame.len();
        // Those that missed something last come last.
        let mut frames = self.kept.shift_remove(client).unwrap_or_default();
        frames.push_back((now, frame));
        if frames.len() > FRAMES
            && let Some((_, gone)) = frames.pop_front()
        {
            self.bytes -= gone.len();
        }
        self.kept.insert(client.clone(), frames);
        self.forget(now);
    }

    /// Everything a client has missed.
    pub(super) fn take(&mut self, client: &str) -> Vec<Frame> {
        self.forget(Instant::now());
        let frames = self.kept.shift_remove(client).unwrap_or_default();
        let frames: Vec<Frame> = frames.into_iter().map(|(_, frame)| frame).collect();
        self.bytes -= frames.iter().map(Frame::len).sum::<usize>();
        frames
    }

    /// Drops what is too old, and of too much what was there first.
    fn forget(&mut self, now: Instant) {
        while let Some((_, frames)) = self.kept.first_mut() {
            let newest = frames.back().map(|(at, _)| *at);
            let old = newest.is_none_or(|at| now.saturating_duration_since(at) > KEPT);
            if !old && self.bytes <= BYTES {
                return;
            }
            self.bytes -= frames.iter().map(|(_, frame)| frame.len()).sum::<usize>();
            self.kept.shift_remove_index(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> Frame {
        Frame::new(Message::Text(text.into()), Class::Result)
    }

    fn texts(frames: &[Frame]) -> Vec<String> {
        let text = |frame: &Frame| frame.message.clone().into_text().unwrap().to_string();
        frames.iter().map(text).collect()
    }

    #[test]
    fn what_is_missed_comes_once_and_in_order() {
        let mut missed = Missed::default();
        let client: Arc<str> = "c".into();
        let start = r#"{"type":"execution_start","data":{"prompt_id":"p"}}"#;
        let node = r#"{"type":"executing","data":{"node":"1","prompt_id":"p"}}"#;
        let end = r#"{"type":"executing","data":{"node":null,"prompt_id":"p"}}"#;
        for text in [start, node, r#"{"type":"progress","data":{}}"#, end] {
            missed.keep(&client, frame(text));
        }
        assert_eq!(texts(&missed.take("c")), [start, end]);
        assert!(missed.take("c").is_empty());
        assert_eq!(missed.bytes, 0);
    }

    #[test]
    fn clients_that_were_here_and_prompts_from_before_count() {
        let mut missed = Missed::default();
        missed.submitted(&"own".into());
        assert!(!missed.wants("stranger", "own"));
        assert!(missed.wants("stranger", "from before"));
        missed.saw(&"stranger".into());
        assert!(missed.wants("stranger", "own"));
        missed.ended("own");
        assert!(missed.own.is_empty());
        let mut missed = Missed::default();
        missed.submitted(&"own".into());
        missed.join_cluster();
        assert!(missed.wants("stranger", "own"));
    }

    #[test]
    fn there_is_no_end_of_clients_but_of_what_is_kept() {
        let mut missed = Missed::default();
        let long = format!(r#"{{"type":"executed","data":"{}"}}"#, "x".repeat(1 << 20));
        for n in 0..40 {
            missed.keep(&n.to_string().into(), frame(&long));
        }
        assert!(missed.bytes <= BYTES && missed.kept.len() > 20);
        assert!(missed.take("0").is_empty() && !missed.take("39").is_empty());
        for n in 0..=CLIENTS {
            missed.saw(&n.to_string().into());
        }
        assert_eq!(missed.known.len(), CLIENTS);
        let client: Arc<str> = "c".into();
        for _ in 0..2 * FRAMES {
            missed.keep(&client, frame(r#"{"type":"executed","data":1}"#));
        }
        assert_eq!(missed.take("c").len(), FRAMES);
    }
}
