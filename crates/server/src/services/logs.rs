//! The last lines of the log, for the front-end's terminal panel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use fresco_graph::lock;
use serde::Serialize;
use tokio::sync::watch;

use crate::services::hub::Hub;

/// Entries kept.
const KEEP: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// Local time, ISO form.
    #[serde(rename = "t")]
    pub time: String,
    #[serde(rename = "m")]
    pub text: String,
}

/// Lines as clients get them.
#[derive(Serialize)]
pub(crate) struct LogLines {
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) size: Option<TerminalSize>,
}

#[derive(Serialize)]
pub(crate) struct TerminalSize {
    pub(crate) cols: u32,
    pub(crate) rows: u32,
}

#[derive(Default)]
struct Ring {
    entries: VecDeque<LogEntry>,
    /// Writes so far.
    written: u64,
    /// What was written before this is not for those who watch.
    watched_from: u64,
}

/// Whoever writes the log pushes here; clones share. Pushing never blocks on clients: a task of the server passes
/// entries on, so that the hub may log while it holds its own lock.
#[derive(Clone)]
pub struct LogRing {
    ring: Arc<Mutex<Ring>>,
    /// The token: whoever came in with a cookie may read the log, and must not learn it there.
    secret: Arc<OnceLock<String>>,
    watched: Arc<AtomicBool>,
    signal: Arc<watch::Sender<u64>>,
}

impl Default for LogRing {
    fn default() -> Self {
        Self {
            ring: Arc::default(),
            secret: Arc::default(),
            watched: Arc::default(),
            signal: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl LogRing {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }

    /// Leaves this text out of what is kept from now on, and of what is kept already. Only the first call counts: there
    /// is one token.
    pub fn hide(&self, secret: &str) {
        if secret.is_empty() || self.secret.set(secret.to_owned()).is_err() {
            return;
        }
        for entry in &mut self.lock().entries {
            entry.text = without_secret(&entry.text, secret);
        }
    }

    /// Adds one write. A write that begins with a carriage return replaces an unfinished line, as a terminal shows it.
    pub fn push(&self, text: &str) {
        let time = jiff::Zoned::now().datetime().to_string();
        let text = match self.secret.get() {
            Some(secret) => without_secret(text, secret),
            None => text.to_owned(),
        };
        let written = {
            let mut ring = self.lock();
            let redraws = text.starts_with('\r')
                && ring.entries.back().is_some_and(|e| !e.text.ends_with('\n'));
            if redraws {
                ring.entries.pop_back();
            }
            while ring.entries.len() >= KEEP {
                ring.entries.pop_front();
            }
            ring.entries.push_back(LogEntry { time, text });
            ring.written += 1;
            ring.written
        };
        // Most of the time nobody watches, and waking somebody for every line costs more than the line.
        if self.watched.load(Ordering::Relaxed) {
            self.signal.send_replace(written);
        }
    }

    /// Somebody watches from now on.
    pub(crate) fn begin_watch(&self) {
        let mut ring = self.lock();
        if !self.watched.swap(true, Ordering::Relaxed) {
            ring.watched_from = ring.written;
        }
    }

    pub fn entries(&self) -> Vec<LogEntry> {
        self.lock().entries.iter().cloned().collect()
    }

    /// Entries written after the `seen`th write, and how many writes there are now.
    fn since(&self, seen: u64) -> (Vec<LogEntry>, u64) {
        let ring = self.lock();
        let seen = seen.max(ring.watched_from);
        let new = usize::try_from(ring.written - seen)
            .unwrap_or(KEEP)
            .min(ring.entries.len());
        (
            ring.entries
                .iter()
                .skip(ring.entries.len() - new)
                .cloned()
                .collect(),
            ring.written,
        )
    }

    /// Passes new entries to subscribed sockets until the hub is gone.
    pub(crate) async fn pump(self, hub: std::sync::Weak<Hub>) {
        let mut signal = self.signal.subscribe();
        let mut seen = *signal.borrow_and_update();
        while signal.changed().await.is_ok() {
            let (entries, written) = self.since(seen);
            seen = written;
            let Some(hub) = hub.upgrade() else { return };
            if hub.wants_logs() {
                let entries = entries.into_iter().collect();
                let size = None;
                hub.send_logs(&LogLines { entries, size });
            } else {
                self.watched.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// What stands in place of the token.
pub(crate) const HIDDEN: &str = "***";
/// Shorter tokens are only looked for as whole words: they occur in others by chance.
const LONG_SECRET: usize = 8;

/// The text without the secret.
pub(crate) fn without_secret(text: &str, secret: &str) -> String {
    if secret.len() >= LONG_SECRET {
        return text.replace(secret, HIDDEN);
    }
    let of_word = |c: char| c.is_ascii_alphanumeric();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(secret) {
        let end = at + secret.len();
        let before = rest[..at].chars().next_back().or(out.chars().next_back());
        let after = rest[end..].chars().next();
        out.push_str(&rest[..at]);
        let inside = before.is_some_and(of_word) || after.is_some_and(of_word);
        out.push_str(if inside { secret } else { HIDDEN });
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_redraws_progress() {
        let ring = LogRing::default();
        for i in 0..KEEP + 10 {
            ring.push(&format!("{i}\n"));
        }
        assert_eq!(ring.entries().len(), KEEP);
        assert_eq!(ring.entries()[0].text, "10\n");
        ring.push("\r10%");
        ring.push("\r20%");
        ring.push("\r30%\n");
        ring.push("\rnew");
        let texts: Vec<String> = ring
            .entries()
            .iter()
            .map(|e| e.text.clone())
            .rev()
            .take(3)
            .collect();
        assert_eq!(texts, ["\rnew", "\r30%\n", "309\n"]);
        let (entries, written) = ring.since(KEEP as u64 + 12);
        assert_eq!((entries.len(), written), (2, KEEP as u64 + 14));
    }

    #[test]
    fn the_token_is_not_kept() {
        let ring = LogRing::default();
        ring.push("before: a-long-secret-of-mine\n");
        ring.hide("a-long-secret-of-mine");
        ring.hide("other");
        ring.push("http://127.0.0.1/?token=a-long-secret-of-mine other\n");
        let texts: Vec<String> = ring.entries().into_iter().map(|e| e.text).collect();
        assert_eq!(
            texts,
            ["before: ***\n", "http://127.0.0.1/?token=*** other\n"]
        );
        assert_eq!(
            without_secret("ab b=ab; abab ab", "ab"),
            "*** b=***; abab ***"
        );
    }
}
