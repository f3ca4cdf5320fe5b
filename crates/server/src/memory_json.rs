//! What is said of memory that no memory room says itself.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_cluster::protocol::memory::EventState;
use fresco_engine::FreeReport;
use fresco_engine::placement::{FreedModel, PlannedStep};
use fresco_memory::Event;
use serde::Serialize;

use crate::response::wire_text;

/// One line of the memory log.
pub fn event_line(event: &Event) -> String {
    let mut line = wire_text(&EventState::from(event));
    line.push('\n');
    line
}

/// A prompt runs otherwise than it was meant to. The engine says so, not the memory room: it has no number.
#[derive(Serialize)]
pub(crate) struct DowngradeEvent<'a> {
    seq: Option<u64>,
    /// Milliseconds since 1970.
    time: u64,
    kind: &'static str,
    trigger: &'static str,
    prompt_id: Option<&'a str>,
    decision: &'static str,
    reason: &'a str,
}

impl<'a> DowngradeEvent<'a> {
    pub(crate) fn new(prompt_id: Option<&'a Arc<str>>, reason: &'a str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = u64::try_from(since.unwrap_or_default().as_millis());
        Self {
            seq: None,
            time: time.unwrap_or(u64::MAX),
            kind: "admission.downgraded",
            trigger: "load",
            prompt_id: prompt_id.map(|id| &**id),
            decision: "downgrade",
            reason,
        }
    }
}

/// What `POST /free` did, all workers together.
#[derive(Serialize)]
pub(crate) struct FreeAnswer<'a> {
    models: Vec<&'a FreedModel>,
    ram_before: Option<u64>,
    ram_after: Option<u64>,
    /// Seconds.
    duration: f64,
    cache_reset: bool,
    plan: Vec<&'a PlannedStep>,
}

impl<'a> FreeAnswer<'a> {
    pub(crate) fn new(reports: &'a [FreeReport]) -> Self {
        let rooms = || reports.iter().filter_map(|report| report.models.as_ref());
        let took = reports.iter().map(|report| report.took).max();
        Self {
            models: rooms().flat_map(|room| &room.models).collect(),
            ram_before: reports.iter().filter_map(|report| report.ram_before).max(),
            ram_after: reports.last().and_then(|report| report.ram_after),
            duration: took.unwrap_or_default().as_secs_f64(),
            cache_reset: reports.iter().any(|report| report.cache_reset),
            plan: rooms().flat_map(|room| &room.plan).collect(),
        }
    }
}
