//! Events of recent jobs, kept for clients that follow a job by its id.
//!
//! Every event has a number. Of snapshots only the newest is kept, of bar positions the newest few hundred: numbers then
//! have gaps, but their order never changes.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use indexmap::IndexMap;
use tokio::sync::watch;

use crate::services::frame::Class;

/// Finished jobs remembered; older ones are rebuilt from the history.
const KEEP_JOBS: usize = 256;
/// Bytes of events remembered over all finished jobs.
const KEEP_BYTES: usize = 16 << 20;
const KEEP_BARS: usize = 256;

/// One event: its number, its name, and the message clients got.
#[derive(Clone)]
pub(crate) struct LoggedEvent {
    pub(crate) id: u64,
    pub(crate) kind: Arc<str>,
    pub(crate) frame: Utf8Bytes,
}

impl LoggedEvent {
    /// The message's `data`.
    pub(crate) fn data(&self) -> &str {
        // `{"type":KIND,"data":DATA}` with a kind that may be escaped, so look for the part between.
        let start = self.frame.find(",\"data\":").map_or(0, |i| i + 8);
        &self.frame[start..self.frame.len() - 1]
    }
}

struct JobLog {
    next: u64,
    entries: VecDeque<(Class, LoggedEvent)>,
    snapshot: Option<LoggedEvent>,
    bars: usize,
    bytes: usize,
    done: bool,
    /// Number of the newest event; changing it wakes followers.
    signal: watch::Sender<u64>,
}

/// What a follower gets to see.
pub(crate) struct JobView {
    pub(crate) entries: Vec<LoggedEvent>,
    /// Nothing will follow.
    pub(crate) done: bool,
    pub(crate) signal: watch::Receiver<u64>,
}

#[derive(Default)]
pub(crate) struct JobLogs {
    jobs: IndexMap<Arc<str>, JobLog>,
    finished: VecDeque<Arc<str>>,
    bytes: usize,
}

impl JobLogs {
    fn entry(&mut self, id: &Arc<str>) -> &mut JobLog {
        self.jobs.entry(id.clone()).or_insert_with(|| JobLog {
            next: 1,
            entries: VecDeque::new(),
            snapshot: None,
            bars: 0,
            bytes: 0,
            done: false,
            signal: watch::Sender::new(0),
        })
    }

    /// Makes sure the job has a log, for followers that come before its first event.
    pub(crate) fn open(&mut self, id: &Arc<str>) -> watch::Receiver<u64> {
        self.entry(id).signal.subscribe()
    }

    pub(crate) fn record(&mut self, id: &Arc<str>, kind: &str, class: Class, frame: &Utf8Bytes) {
        if self.jobs.get(id).is_some_and(|l| l.done) {
            // The id is used again: a new run, a new log.
            self.remove(id);
        }
        let log = self.entry(id);
        let entry = LoggedEvent {
            id: log.next,
            kind: kind.into(),
            frame: frame.clone(),
        };
        log.next += 1;
        if class == Class::Snapshot {
            log.snapshot = Some(entry);
        } else {
            if class == Class::Bar {
                log.bars += 1;
                if log.bars > KEEP_BARS
                    && let Some(i) = log.entries.iter().position(|(c, _)| *c == Class::Bar)
                    && let Some((_, old)) = log.entries.remove(i)
                {
                    log.bytes -= old.frame.len();
                    log.bars -= 1;
                }
            }
            log.bytes += frame.len();
            log.entries.push_back((class, entry));
        }
        log.signal.send_replace(log.next - 1);
    }

    /// The job has ended; its followers are let go.
    pub(crate) fn finish(&mut self, id: &Arc<str>) {
        let Some(log) = self.jobs.get_mut(id) else {
            return;
        };
        if log.done {
            return;
        }
        log.done = true;
        log.bytes += log.snapshot.as_ref().map_or(0, |s| s.frame.len());
        self.bytes += log.bytes;
        log.signal.send_replace(log.next);
        self.finished.push_back(id.clone());
        while self.finished.len() > KEEP_JOBS
            || (self.bytes > KEEP_BYTES && self.finished.len() > 1)
        {
            let Some(oldest) = self.finished.front().cloned() else {
                break;
            };
            self.remove(&oldest);
        }
    }

    /// Ends logs that have no event yet: their jobs will never have one.
    pub(crate) fn finish_waiting(&mut self, id: Option<&str>) {
        let waiting: Vec<Arc<str>> = self
            .jobs
            .iter()
            .filter(|(i, log)| log.next == 1 && id.is_none_or(|id| &***i == id))
            .map(|(i, _)| i.clone())
            .collect();
        for id in waiting {
            self.finish(&id);
        }
    }

    pub(crate) fn finish_all(&mut self) {
        for log in self.jobs.values_mut() {
            log.done = true;
            log.signal.send_replace(log.next);
        }
    }

    fn remove(&mut self, id: &Arc<str>) {
        if let Some(log) = self.jobs.shift_remove(id) {
            if log.done {
                self.bytes -= log.bytes.min(self.bytes);
            }
            self.finished.retain(|f| f != id);
        }
    }

    /// Somebody follows this job right now.
    pub(crate) fn watched(&self, id: &str) -> bool {
        self.jobs
            .get(id)
            .is_some_and(|l| l.signal.receiver_count() > 0)
    }

    pub(crate) fn view(&self, id: &str, after: u64) -> Option<JobView> {
        let log = self.jobs.get(id)?;
        let mut entries: Vec<LoggedEvent> = log
            .entries
            .iter()
            .map(|(_, e)| e)
            .filter(|e| e.id > after)
            .cloned()
            .collect();
        if let Some(snapshot) = log.snapshot.as_ref().filter(|s| s.id > after) {
            let at = entries.partition_point(|e| e.id < snapshot.id);
            entries.insert(at, snapshot.clone());
        }
        Some(JobView {
            entries,
            done: log.done,
            signal: log.signal.subscribe(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: &str) -> Utf8Bytes {
        format!("{{\"type\":\"{kind}\",\"data\":{{\"k\":\"{kind}\"}}}}").into()
    }

    #[test]
    fn numbers_rise_and_replay_starts_where_asked() {
        let mut logs = JobLogs::default();
        let id: Arc<str> = "p".into();
        for (kind, class) in [
            ("a", Class::Result),
            ("s1", Class::Snapshot),
            ("b", Class::Result),
            ("s2", Class::Snapshot),
            ("c", Class::Result),
        ] {
            logs.record(&id, kind, class, &frame(kind));
        }
        let kinds = |after| {
            logs.view("p", after)
                .unwrap()
                .entries
                .iter()
                .map(|e| format!("{}{}", e.id, e.kind))
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(0), ["1a", "3b", "4s2", "5c"]);
        assert_eq!(kinds(3), ["4s2", "5c"]);
        assert_eq!(logs.view("p", 4).unwrap().entries[0].data(), r#"{"k":"c"}"#);
        assert!(logs.view("q", 0).is_none());
    }

    #[test]
    fn bars_and_finished_jobs_are_bounded() {
        let mut logs = JobLogs::default();
        let id: Arc<str> = "p".into();
        for _ in 0..10_000 {
            logs.record(&id, "progress", Class::Bar, &frame("progress"));
        }
        assert_eq!(logs.view("p", 0).unwrap().entries.len(), KEEP_BARS);
        for i in 0..2 * KEEP_JOBS {
            let id: Arc<str> = format!("{i}").into();
            logs.record(&id, "x", Class::Result, &frame("x"));
            logs.finish(&id);
        }
        assert_eq!(logs.jobs.len(), KEEP_JOBS + 1);
        assert!(logs.view("0", 0).is_none());
    }
}
