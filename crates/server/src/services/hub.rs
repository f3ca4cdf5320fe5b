//! Where events meet sockets. The engine emits on its own threads; each socket has a queue and a task that empties it.
//!
//! An event is turned into text once, whoever gets it. Progress snapshots are cumulative and would grow with the square
//! of the graph, so each prompt has a budget of bytes: while it lasts every snapshot goes out, afterwards one from time to
//! time, and always the last one before the end.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, Utf8Bytes};
use bytes::Bytes;
use fresco_engine::{Event, EventKind, EventSink, NodeIds, NodeProgress, ProgressRegistry};
use fresco_graph::{Preview, PreviewFormat, Value, lock};
use indexmap::IndexMap;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::services::answers::Answers;
use crate::services::config::Limits;
use crate::services::frame::{AnswerGate, Class, Frame};
use crate::services::frames::{self, Target};
use crate::services::job_log::{JobLogs, JobView};
use crate::services::logs::LogLines;
use crate::services::memory_json::{DowngradeEvent, event_state};
use crate::services::metrics::Metrics;
use crate::services::outbox::Outbox;

mod missed;
mod relay;

use missed::Missed;
use relay::Relay;

/// Bytes of snapshots a prompt may send at once, and how fast the allowance comes back.
const BURST: f64 = 1_000_000.0;
const REFILL_PER_SECOND: f64 = 100_000.0;
/// Late snapshots are not sent more often than this.
const LATE: Duration = Duration::from_millis(100);

/// One connected client.
pub(crate) struct Socket {
    serial: u64,
    pub(crate) sid: Arc<str>,
    pub(crate) outbox: Outbox,
    /// It announced `supports_preview_metadata`.
    described_previews: AtomicBool,
    /// It announced `supports_memory_events`.
    memory_events: AtomicBool,
    /// It announced `supports_fresco_events`.
    fresco_events: AtomicBool,
    /// It announced `fresco_all_previews`: it shows jobs of others too.
    all_previews: AtomicBool,
}

impl Socket {
    /// Stores what the client says it can do; only a plain `true` counts.
    pub(crate) fn set_flags(&self, flags: &Value) {
        let yes = |name: &str| flags.get(name).and_then(Value::as_bool) == Some(true);
        let previews = yes("supports_preview_metadata");
        self.described_previews.store(previews, Ordering::Relaxed);
        let memory = yes("supports_memory_events");
        self.memory_events.store(memory, Ordering::Relaxed);
        let fresco = yes("supports_fresco_events");
        self.fresco_events.store(fresco, Ordering::Relaxed);
        let all = yes("fresco_all_previews");
        self.all_previews.store(all, Ordering::Relaxed);
    }

    fn all_previews(&self) -> bool {
        self.described_previews() && self.all_previews.load(Ordering::Relaxed)
    }

    fn fresco_events(&self) -> bool {
        self.fresco_events.load(Ordering::Relaxed)
    }

    fn memory_events(&self) -> bool {
        self.memory_events.load(Ordering::Relaxed)
    }

    fn described_previews(&self) -> bool {
        self.described_previews.load(Ordering::Relaxed)
    }
}

/// How far a running prompt is, and its allowance of snapshots.
struct PromptProgress {
    nodes: ProgressRegistry,
    /// Something changed that nobody has been told yet.
    unsent: bool,
    tokens: f64,
    at: Instant,
    client: Option<Arc<str>>,
    timer: bool,
}

impl PromptProgress {
    fn new(client: Option<Arc<str>>) -> Self {
        Self {
            nodes: ProgressRegistry::default(),
            unsent: false,
            tokens: BURST,
            at: Instant::now(),
            client,
            timer: false,
        }
    }

    fn refill(&mut self, now: Instant) {
        let gained = now.duration_since(self.at).as_secs_f64() * REFILL_PER_SECOND;
        self.tokens = (self.tokens + gained).min(BURST);
        self.at = now;
    }

    fn wait(&self) -> Duration {
        LATE.max(Duration::from_secs_f64(
            (-self.tokens).max(0.0) / REFILL_PER_SECOND,
        ))
    }
}

/// The node that a client is shown to run.
struct ShownNode {
    client: Option<Arc<str>>,
    node: Arc<str>,
}

impl State {
    /// Where frames for a client go: to its socket, or to the front that has it.
    fn socket_of(&self, client: &str) -> Option<&Arc<Socket>> {
        let here = self.sockets.get(client);
        here.or_else(|| self.elsewhere(client))
    }

    /// The way to a client of another front that is not connected here too.
    fn elsewhere(&self, client: &str) -> Option<&Arc<Socket>> {
        let relay = self.relays.get(client)?;
        (!self.sockets.contains_key(client)).then_some(&relay.socket)
    }
}

#[derive(Default)]
struct State {
    sockets: IndexMap<Arc<str>, Arc<Socket>>,
    /// Clients that are connected to other fronts.
    relays: IndexMap<Arc<str>, Relay>,
    next_serial: u64,
    /// By prompt, as long as it runs.
    progress: HashMap<Arc<str>, PromptProgress>,
    answers: Answers,
    missed: Missed,
    jobs: JobLogs,
    log_subscribers: BTreeSet<Arc<str>>,
    /// What runs now, by prompt.
    current: IndexMap<Arc<str>, ShownNode>,
}

/// See the module text.
pub struct Hub {
    state: Mutex<State>,
    limits: Limits,
    metrics: Arc<Metrics>,
    runtime: Option<Handle>,
    me: Weak<Hub>,
}

impl Hub {
    /// Must be called inside the runtime that serves the sockets; outside of one late snapshots wait for the next event.
    pub fn new(limits: &Limits, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            state: Mutex::default(),
            limits: limits.clone(),
            metrics,
            runtime: Handle::try_current().ok(),
            me: me.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// This is one of several fronts.
    pub(crate) fn join_cluster(&self) {
        self.lock().missed.join_cluster();
    }

    /// Registers a socket, greets it, and tells it what its prompt is doing. A socket of the same id is replaced: it
    /// stays open but receives nothing more.
    pub(crate) fn connect(&self, sid: Arc<str>, remaining: usize) -> Option<Arc<Socket>> {
        let mut state = self.lock();
        if state.sockets.len() >= self.limits.sockets && !state.sockets.contains_key(&sid) {
            return None;
        }
        let socket = self.socket(&mut state, sid.clone());
        let greet = |kind: &str, data: Value| {
            let text = frames::text_frame(kind, &data);
            let message = Message::Text(text.into());
            socket.outbox.push(Frame::new(message, Class::Result));
        };
        greet("status", frames::status_data(remaining, Some(&sid)));
        let mut shown = state.current.values();
        if let Some(own) = shown.find(|shown| shown.client.as_ref() == Some(&sid)) {
            greet("executing", fresco_graph::map! {"node" => &own.node}.into());
        }
        state.missed.saw(&sid);
        for frame in state.missed.take(&sid) {
            socket.outbox.push(frame);
        }
        for frame in state.answers.take_late(&sid) {
            socket.outbox.push(frame);
        }
        state.sockets.insert(sid, socket.clone());
        self.metrics.sockets(state.sockets.len());
        Some(socket)
    }

    fn socket(&self, state: &mut State, sid: Arc<str>) -> Arc<Socket> {
        state.next_serial += 1;
        Arc::new(Socket {
            serial: state.next_serial,
            sid,
            outbox: Outbox::new(&self.limits),
            described_previews: AtomicBool::new(false),
            memory_events: AtomicBool::new(false),
            fresco_events: AtomicBool::new(false),
            all_previews: AtomicBool::new(false),
        })
    }

    /// A prompt is being submitted by this client: its frames wait until the answer is dropped.
    pub(crate) fn expect_answer(
        self: &Arc<Self>,
        prompt_id: &Arc<str>,
        client: &str,
        has_event_loop: bool,
    ) -> PendingAnswer {
        let client: Arc<str> = client.into();
        let mut state = self.lock();
        state.missed.submitted(prompt_id);
        let answer = state
            .answers
            .open(prompt_id, client.clone(), has_event_loop);
        PendingAnswer {
            hub: self.clone(),
            prompt_id: prompt_id.clone(),
            client,
            answer,
        }
    }

    fn answered(&self, pending: &PendingAnswer) {
        let mut state = self.lock();
        state.answers.answered(&pending.prompt_id, &pending.answer);
        if let Some(socket) = state.socket_of(&pending.client) {
            socket.outbox.look_again();
        }
    }

    /// Forgets a socket, unless another one has taken its id meanwhile.
    pub(crate) fn disconnect(&self, socket: &Socket) {
        let mut state = self.lock();
        if state
            .sockets
            .get(&socket.sid)
            .is_some_and(|s| s.serial == socket.serial)
        {
            state.sockets.shift_remove(&socket.sid);
            state.log_subscribers.remove(&socket.sid);
            for frame in socket.outbox.drain() {
                state.missed.keep(&socket.sid, frame);
            }
        }
        self.metrics.sockets(state.sockets.len());
    }

    pub(crate) fn subscribe_logs(&self, sid: &str, enabled: bool) {
        let mut state = self.lock();
        if !enabled {
            state.log_subscribers.remove(sid);
        } else if state.sockets.contains_key(sid) {
            state.log_subscribers.insert(sid.into());
        }
    }

    pub(crate) fn wants_logs(&self) -> bool {
        !self.lock().log_subscribers.is_empty()
    }

    /// Sends a message to everyone who watches the log.
    pub(crate) fn send_logs(&self, data: &LogLines) {
        let mut state = self.lock();
        let State {
            sockets,
            log_subscribers,
            ..
        } = &mut *state;
        log_subscribers.retain(|sid| sockets.contains_key(sid));
        if log_subscribers.is_empty() {
            return;
        }
        let text: Utf8Bytes = frames::typed_frame("logs", data).into();
        for sid in log_subscribers.iter() {
            if let Some(socket) = sockets.get(sid) {
                let message = Message::Text(text.clone());
                self.push(socket, Frame::new(message, Class::Result));
            }
        }
    }

    /// Sends one message to one socket.
    pub(crate) fn reply<T: Serialize>(&self, socket: &Socket, kind: &str, data: &T) {
        let text = frames::typed_frame(kind, data);
        let message = Message::Text(text.into());
        self.push(socket, Frame::new(message, Class::Result));
    }

    /// A job's events after `after`, and a signal for more; none if this process has not seen the job.
    pub(crate) fn job(&self, prompt_id: &str, after: u64) -> Option<JobView> {
        self.lock().jobs.view(prompt_id, after)
    }

    /// As [`Hub::job`] for a job that is known to be queued and may not have had an event yet.
    pub(crate) fn open_job(&self, prompt_id: &Arc<str>) -> watch::Receiver<u64> {
        self.lock().jobs.open(prompt_id)
    }

    /// Waiting jobs left the queue without running; with `None` all of them. Whoever follows one is let go.
    pub(crate) fn jobs_left(&self, prompt_id: Option<&str>) {
        let mut state = self.lock();
        state.jobs.finish_waiting(prompt_id);
        if let Some(id) = prompt_id {
            state.missed.ended(id);
        }
    }

    /// Ends all connections, saying why.
    pub(crate) fn close_all(&self, reason: &'static str) {
        let mut state = self.lock();
        for socket in state.sockets.values() {
            socket.outbox.close(reason);
        }
        state.jobs.finish_all();
    }

    fn push(&self, socket: &Socket, frame: Frame) {
        let dropped = socket.outbox.push(frame);
        if dropped > 0 {
            self.metrics.frames_dropped(dropped);
            if socket.outbox.closed().is_some() {
                tracing::warn!(client = %socket.sid, "closing a client that does not read its results");
            }
        }
    }

    /// Sends a message of a prompt. What goes to its submitter waits for the answer, and is kept for one who has no socket.
    fn send_to(
        &self,
        state: &mut State,
        prompt_id: &Arc<str>,
        client: Option<&Arc<str>>,
        target: Target,
        class: Class,
        message: Message,
    ) {
        let awaited = match target {
            Target::All => None,
            Target::Client | Target::ClientOrAll => {
                client.and_then(|client| state.answers.of(prompt_id, client))
            }
        };
        let frame = Frame {
            after: awaited,
            ..Frame::new(message, class)
        };
        let mut sent = false;
        for socket in addressees(state, client, target) {
            self.push(socket, frame.clone());
            sent = true;
        }
        if sent || target == Target::All {
            return;
        }
        match client {
            Some(client) if state.missed.wants(client, prompt_id) => {
                state.missed.keep(client, frame);
            }
            _ if frame.after.is_some() => state.answers.keep(prompt_id, frame),
            _ => {}
        }
    }

    fn send(
        &self,
        state: &mut State,
        event: &Event,
        target: Target,
        class: Class,
        message: Message,
    ) {
        match &event.prompt_id {
            Some(id) => self.send_to(state, id, event.client.as_ref(), target, class, message),
            None => {
                for socket in addressees(state, event.client.as_ref(), target) {
                    let frame = Frame::new(message.clone(), class);
                    let after = state.answers.of_client(&socket.sid);
                    self.push(socket, Frame { after, ..frame });
                }
            }
        }
    }

    /// Somebody would see a snapshot of this prompt, or may connect to see it.
    fn watched(state: &State, prompt_id: &Arc<str>, client: Option<&Arc<str>>) -> bool {
        let expected = client.is_some_and(|client| state.answers.of(prompt_id, client).is_some());
        expected
            || addressees(state, client, Target::ClientOrAll)
                .next()
                .is_some()
            || state.jobs.watched(prompt_id)
    }

    fn progress(&self, state: &mut State, event: &Event, node: &NodeProgress) {
        let Some(id) = &event.prompt_id else { return };
        let watched = Self::watched(state, id, event.client.as_ref());
        let progress = state
            .progress
            .entry(id.clone())
            .or_insert_with(|| PromptProgress::new(event.client.clone()));
        progress.nodes.apply(node.clone());
        progress.unsent = true;
        if !watched {
            return;
        }
        progress.refill(Instant::now());
        if progress.tokens > 0.0 {
            self.send_unsent(state, id);
        } else if !progress.timer {
            progress.timer = true;
            let wait = progress.wait();
            self.later(id.clone(), wait);
        }
    }

    /// Sends the unsent state once the budget allows.
    fn later(&self, id: Arc<str>, wait: Duration) {
        let Some(runtime) = &self.runtime else { return };
        let me = self.me.clone();
        runtime.spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(hub) = me.upgrade() {
                hub.flush(&id);
            }
        });
    }

    fn flush(&self, id: &Arc<str>) {
        let mut state = self.lock();
        let state = &mut *state;
        if let Some(progress) = state.progress.get_mut(id) {
            progress.timer = false;
            progress.refill(Instant::now());
        }
        self.send_unsent(state, id);
    }

    /// Sends how far a prompt is, if that has changed.
    fn send_unsent(&self, state: &mut State, id: &Arc<str>) {
        let Some(progress) = state.progress.get_mut(id) else {
            return;
        };
        if !std::mem::take(&mut progress.unsent) {
            return;
        }
        let text: Utf8Bytes = frames::progress_frame(id, progress.nodes.nodes()).into();
        progress.tokens -= text.len() as f64;
        let client = progress.client.clone();
        let logs = &mut state.jobs;
        logs.record(id, "progress_state", Class::Snapshot, &text);
        self.send_to(
            state,
            id,
            client.as_ref(),
            Target::ClientOrAll,
            Class::Snapshot,
            Message::Text(text),
        );
    }

    /// The memory room did or decided something.
    pub fn memory_event(&self, event: &fresco_memory::Event) {
        self.memory(&self.lock(), || event_state(event));
    }

    /// To everyone who asked for events of the memory room.
    fn memory<T: Serialize>(&self, state: &State, data: impl FnOnce() -> T) {
        self.to_those(state, Socket::memory_events, "memory_event", data);
    }

    /// To everyone who asked for events of a kind. Written once, and only if somebody did.
    fn to_those<T: Serialize>(
        &self,
        state: &State,
        asked: fn(&Socket) -> bool,
        kind: &str,
        data: impl FnOnce() -> T,
    ) {
        let mut data = Some(data);
        let mut frame: Option<Utf8Bytes> = None;
        for socket in state.sockets.values().filter(|s| asked(s)) {
            if let Some(data) = data.take() {
                frame = Some(frames::typed_frame(kind, &data()).into());
            }
            if let Some(text) = &frame {
                let message = Message::Text(text.clone());
                self.push(socket, Frame::new(message, Class::Result));
            }
        }
    }

    /// Frame 4 for the submitter's socket if it knows it, and for sockets that show the jobs of others. PNG pictures are
    /// results of a saver node, not previews of something better.
    fn described(&self, state: &State, event: &Event, ids: &NodeIds, preview: &Preview) {
        let mut frame: Option<Bytes> = None;
        let id = event.prompt_id.as_deref().unwrap_or("");
        let client = event.client.as_ref();
        let elsewhere = client.and_then(|client| state.elsewhere(client));
        for socket in state.sockets.values().chain(elsewhere) {
            let own = event.client.as_deref() == Some(&*socket.sid);
            let wanted = socket.all_previews() || own && socket.described_previews();
            if !wanted {
                continue;
            }
            let bytes =
                frame.get_or_insert_with(|| frames::described_preview_frame(id, ids, preview));
            // Whoever only looks on can do without any of them.
            let class = if own {
                preview_class(preview)
            } else {
                Class::Preview
            };
            let after = state.answers.of(id, &socket.sid);
            let message = Message::Binary(bytes.clone());
            let frame = Frame::new(message, class);
            self.push(socket, Frame { after, ..frame });
        }
    }

    /// Frame 1 for everyone else.
    fn plain_preview(&self, state: &State, event: &Event, preview: &Preview) {
        if let Some(client) = &event.client
            && state
                .socket_of(client)
                .is_none_or(|s| s.described_previews())
        {
            return;
        }
        let message = Message::Binary(frames::preview_frame(preview));
        let class = preview_class(preview);
        for socket in addressees(state, event.client.as_ref(), Target::ClientOrAll) {
            // These got it as frame 4 already.
            if !socket.all_previews() {
                let after = event.prompt_id.as_ref();
                let after = after.and_then(|id| state.answers.of(id, &socket.sid));
                let frame = Frame::new(message.clone(), class);
                self.push(socket, Frame { after, ..frame });
            }
        }
    }
}

/// Drop it once the submitter's answer is on its way.
pub(crate) struct PendingAnswer {
    hub: Arc<Hub>,
    prompt_id: Arc<str>,
    client: Arc<str>,
    answer: Arc<AnswerGate>,
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        self.hub.answered(self);
    }
}

fn preview_class(preview: &Preview) -> Class {
    match preview.format {
        PreviewFormat::Jpeg => Class::Preview,
        PreviewFormat::Png => Class::Result,
    }
}

fn addressees<'a>(
    state: &'a State,
    client: Option<&Arc<str>>,
    target: Target,
) -> impl Iterator<Item = &'a Arc<Socket>> {
    let one = match (client, target) {
        (Some(client), Target::Client | Target::ClientOrAll) => state.socket_of(client),
        _ => None,
    };
    let all = match (client, target) {
        (_, Target::All) | (None, Target::ClientOrAll) => Some(state.sockets.values()),
        _ => None,
    };
    one.into_iter().chain(all.into_iter().flatten())
}

impl EventSink for Hub {
    fn emit(&self, event: Event) {
        self.metrics.event(&event.kind);
        let mut guard = self.lock();
        let state = &mut *guard;
        match &event.kind {
            EventKind::NodeProgress(node) => {
                self.progress(state, &event, node);
                return;
            }
            EventKind::Preview { ids, preview } => {
                self.described(state, &event, ids, preview);
                return;
            }
            EventKind::Queue { paused } => {
                self.to_those(state, Socket::fresco_events, "fresco_queue", || {
                    Value::from(fresco_graph::map! {"paused" => *paused})
                });
                return;
            }
            EventKind::Downgraded { message } => {
                self.memory(state, || {
                    DowngradeEvent::new(event.prompt_id.as_ref(), message)
                });
                return;
            }
            EventKind::Bytes {
                event: kind,
                bytes,
                client,
            } => {
                let frame = Message::Binary(frames::bytes_frame(*kind, bytes));
                // Of pictures on the way a slow client may miss some.
                let class = if matches!(kind, 1 | 4) {
                    Class::Preview
                } else {
                    Class::Result
                };
                let target = if client.is_some() {
                    Target::Client
                } else {
                    Target::All
                };
                let addressed = Event {
                    client: client.clone(),
                    ..event.clone()
                };
                self.send(state, &addressed, target, class, frame);
                return;
            }
            EventKind::Text { node, text } => {
                let frame = Message::Binary(frames::node_text_frame(node, text));
                self.send(state, &event, Target::All, Class::Result, frame);
                return;
            }
            EventKind::Executing { display, .. } => {
                if let Some(id) = &event.prompt_id {
                    let shown = ShownNode {
                        client: event.client.clone(),
                        node: display.clone(),
                    };
                    state.current.insert(id.clone(), shown);
                }
            }
            EventKind::Ended => {
                if let Some(id) = &event.prompt_id {
                    state.current.shift_remove(id);
                }
            }
            EventKind::Success { .. } | EventKind::Error(_) | EventKind::Interrupted { .. } => {
                if let Some(id) = &event.prompt_id {
                    self.send_unsent(state, id);
                }
            }
            EventKind::Progress {
                ids,
                preview: Some(preview),
                ..
            } => self.described(state, &event, ids, preview),
            _ => {}
        }
        let Some(message) = frames::message(&event) else {
            return;
        };
        let class = match event.kind {
            EventKind::Progress { .. } => Class::Bar,
            _ => Class::Result,
        };
        let custom_client = match &event.kind {
            EventKind::Custom { client, .. } => client.clone(),
            _ => None,
        };
        let text: Utf8Bytes = frames::text_frame(&message.kind, &message.data).into();
        if let Some(id) = &event.prompt_id
            && !matches!(event.kind, EventKind::Status { .. })
        {
            state.jobs.record(id, &message.kind, class, &text);
        }
        if let Some(client) = custom_client {
            let addressed = Event {
                client: Some(client),
                ..event.clone()
            };
            self.send(
                state,
                &addressed,
                message.target,
                class,
                Message::Text(text),
            );
        } else {
            self.send(state, &event, message.target, class, Message::Text(text));
        }
        match &event.kind {
            EventKind::Progress {
                preview: Some(preview),
                ..
            } => self.plain_preview(state, &event, preview),
            EventKind::Ended => {
                if let Some(id) = &event.prompt_id {
                    state.progress.remove(id);
                    state.jobs.finish(id);
                    state.missed.ended(id);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
