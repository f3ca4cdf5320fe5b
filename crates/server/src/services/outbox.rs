//! What waits to be sent to one socket. Bounded: a client that does not read loses previews first, then its connection,
//! never a result in the middle of the stream.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use fresco_graph::lock;
use tokio::sync::Notify;

use crate::services::config::Limits;
use crate::services::frame::{Class, Frame};

/// From here on frames that a later one makes superfluous are dropped.
const BACKLOG_FRAMES: usize = 64;
const BACKLOG_BYTES: usize = 2 << 20;

#[derive(Default)]
struct PendingFrames {
    frames: VecDeque<Frame>,
    bytes: usize,
    closed: Option<&'static str>,
    /// The writer knows when it may go on; waking it before would be for nothing.
    timed: bool,
}

/// The outgoing side of one socket.
pub(crate) struct Outbox {
    waiting: Mutex<PendingFrames>,
    wake: Notify,
    max_frames: usize,
    max_bytes: usize,
}

/// What the writer does next.
pub(crate) enum Next {
    Frame(Frame),
    Idle,
    /// There is something, but not before this.
    Wait(Instant),
    Close(&'static str),
}

impl Outbox {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            waiting: Mutex::default(),
            wake: Notify::new(),
            max_frames: limits.socket_frames,
            max_bytes: limits.socket_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingFrames> {
        lock(&self.waiting)
    }

    /// Adds a frame; returns how many older ones were dropped for it.
    pub(crate) fn push(&self, frame: Frame) -> usize {
        let mut dropped = 0;
        let wake = {
            let mut w = self.lock();
            if w.closed.is_some() {
                return 0;
            }
            let backlog = w.frames.len() >= BACKLOG_FRAMES || w.bytes >= BACKLOG_BYTES;
            if backlog
                && frame.class != Class::Result
                && let Some(i) = w.frames.iter().rposition(|f| f.class == frame.class)
            {
                dropped += w.remove(i);
            }
            w.bytes += frame.len();
            w.frames.push_back(frame);
            if w.frames.len() > self.max_frames || w.bytes > self.max_bytes {
                dropped += w.shed();
            }
            if w.frames.len() > self.max_frames || w.bytes > self.max_bytes {
                dropped += w.frames.len();
                *w = PendingFrames {
                    closed: Some("too slow: results pile up; reconnect and read /history"),
                    ..PendingFrames::default()
                };
            }
            w.closed.is_some() || !w.timed && !w.is_held()
        };
        if wake {
            self.wake.notify_one();
        }
        dropped
    }

    pub(crate) fn next(&self) -> Next {
        let mut w = self.lock();
        if let Some(reason) = w.closed {
            return Next::Close(reason);
        }
        w.timed = false;
        if let Some(answer) = w.frames.front().and_then(|f| f.after.as_ref()) {
            match answer.ready_at() {
                // Whoever hands the answer over says so.
                None => return Next::Idle,
                Some(at) if at > Instant::now() => {
                    w.timed = true;
                    return Next::Wait(at);
                }
                Some(_) => {}
            }
        }
        match w.frames.pop_front() {
            Some(frame) => {
                w.bytes -= frame.len();
                Next::Frame(frame)
            }
            None => Next::Idle,
        }
    }

    /// Frames that were taken and not sent: they are the next ones again.
    pub(crate) fn put_back(&self, frames: Vec<Frame>) {
        let mut w = self.lock();
        for frame in frames.into_iter().rev() {
            w.bytes += frame.len();
            w.frames.push_front(frame);
        }
    }

    /// Everything that waits, for nobody sends it any more.
    pub(crate) fn drain(&self) -> Vec<Frame> {
        let mut w = self.lock();
        w.bytes = 0;
        std::mem::take(&mut w.frames).into()
    }

    /// Something that frames waited for has happened.
    pub(crate) fn look_again(&self) {
        if !self.lock().frames.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Ends the connection once the writer sees it.
    pub(crate) fn close(&self, reason: &'static str) {
        self.lock().closed.get_or_insert(reason);
        self.wake.notify_one();
    }

    /// Why the connection is to end, if it is.
    pub(crate) fn closed(&self) -> Option<&'static str> {
        self.lock().closed
    }

    /// Returns when something changed. One waiter only.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }
}

impl PendingFrames {
    /// The first frame waits for an answer that is not there yet.
    fn is_held(&self) -> bool {
        let answer = self.frames.front().and_then(|f| f.after.as_ref());
        answer.is_some_and(|answer| answer.ready_at().is_none())
    }

    fn remove(&mut self, index: usize) -> usize {
        match self.frames.remove(index) {
            Some(frame) => {
                self.bytes -= frame.len();
                1
            }
            None => 0,
        }
    }

    /// Drops everything that may be dropped, but for the newest snapshot.
    fn shed(&mut self) -> usize {
        let before = self.frames.len();
        let last = self.frames.iter().rposition(|f| f.class == Class::Snapshot);
        let mut index = 0;
        self.frames.retain(|f| {
            let keep = f.class == Class::Result || Some(index) == last;
            index += 1;
            keep
        });
        self.bytes = self.frames.iter().map(Frame::len).sum();
        before - self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use axum::extract::ws::Message;

    use super::*;

    fn frame(class: Class, text: &str) -> Frame {
        Frame::new(Message::Text(text.into()), class)
    }

    fn drain(outbox: &Outbox) -> Vec<String> {
        let mut out = Vec::new();
        while let Next::Frame(f) = outbox.next() {
            out.push(f.message.into_text().unwrap().to_string());
        }
        out
    }

    #[test]
    fn a_reader_that_keeps_up_gets_everything_in_order() {
        let outbox = Outbox::new(&Limits::default());
        for i in 0..30 {
            let class = [Class::Result, Class::Snapshot, Class::Preview, Class::Bar][i % 4];
            assert_eq!(outbox.push(frame(class, &i.to_string())), 0);
        }
        let want: Vec<String> = (0..30).map(|i| i.to_string()).collect();
        assert_eq!(drain(&outbox), want);
    }

    #[test]
    fn a_slow_reader_loses_previews_but_no_result() {
        let outbox = Outbox::new(&Limits::default());
        for i in 0..1000 {
            outbox.push(frame(Class::Result, &format!("r{i}")));
            outbox.push(frame(Class::Preview, &format!("p{i}")));
            outbox.push(frame(Class::Snapshot, &format!("s{i}")));
        }
        let got = drain(&outbox);
        let results: Vec<&String> = got.iter().filter(|t| t.starts_with('r')).collect();
        assert_eq!(results.len(), 1000);
        assert!(got.len() < 1100, "{}", got.len());
        assert_eq!(got.last().map(String::as_str), Some("s999"));
    }

    #[test]
    fn too_many_results_close_the_socket_instead_of_skipping_one() {
        let limits = Limits {
            socket_frames: 100,
            ..Limits::default()
        };
        let outbox = Outbox::new(&limits);
        for i in 0..101 {
            outbox.push(frame(Class::Result, &i.to_string()));
        }
        assert!(matches!(outbox.next(), Next::Close(reason) if reason.contains("too slow")));
        outbox.push(frame(Class::Result, "late"));
        assert!(matches!(outbox.next(), Next::Close(_)));
    }
}
