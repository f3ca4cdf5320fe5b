//! Messages between the program and a Python process.
//!
//! A frame is four bytes of length (little-endian, of what follows), one byte of kind, eight bytes of number and a body of
//! JSON. Both sides may ask while a question of theirs waits; answers carry the number of their question.
//!
//! JSON and not MessagePack, because every Python reads and writes it in C and has whole numbers of any size in it. A
//! message of a call is some 300 bytes, which take Python 26 us to write and 20 us to read; MessagePack in plain Python
//! took 106 us and 128 us, and a package for it is one more thing that an environment of packs would have to have. Numbers
//! of tensors are in neither.

use std::collections::{HashMap, VecDeque};
#[cfg(not(target_os = "linux"))]
use std::io::Read as _;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use fresco_graph::{Map, Value, json, lock, map};

use crate::segment::{Incoming, Outgoing, Sealed};

#[cfg(unix)]
pub(crate) type Stream = std::os::unix::net::UnixStream;
#[cfg(not(unix))]
pub(crate) type Stream = std::net::TcpStream;

/// Bytes of a frame; what is larger belongs into a memory file.
const LIMIT: usize = 64 << 20;
const HEAD: usize = 13;
/// Descriptors that may wait for their frames.
#[cfg(target_os = "linux")]
const DESCRIPTORS: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Call = 0,
    Reply = 1,
    Error = 2,
    Event = 3,
}

/// One message as it came.
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) number: u64,
    pub(crate) body: Value,
    pub(crate) numbers: Option<Incoming>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The process ended; what is known of it.
    Died(Arc<str>),
    /// The process says so.
    Raised(Value),
    /// No answer in time.
    Late,
    /// Nobody wants the answer any more.
    Given,
}

pub(crate) type Answer = Result<(Value, Option<Incoming>), Fault>;

/// A question that waits for its answer.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlotState {
    answer: Option<Answer>,
    waker: Option<Waker>,
    /// When somebody asked to stop.
    stopped: Option<Instant>,
    /// What the process asks before it answers.
    questions: VecDeque<Frame>,
}

/// The message that came first.
pub(crate) enum NextMessage {
    Answer(Answer),
    Question(Frame),
    Nothing,
}

impl Slot {
    fn fill(&self, answer: Answer) {
        let waker = {
            let mut state = lock(&self.state);
            if state.answer.is_none() {
                state.answer = Some(answer);
            }
            state.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whoever waits is told that the answer is not wanted any more.
    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Waits; after a stop for so much longer.
    pub(crate) fn wait(&self, limit: Option<Duration>, after_stop: Duration) -> Answer {
        let began = Instant::now();
        let mut state = lock(&self.state);
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            let late = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if late.is_some_and(|left| left.is_zero()) {
                return Err(Fault::Late);
            }
            let stop = state
                .stopped
                .map(|at| after_stop.saturating_sub(at.elapsed()));
            if stop.is_some_and(|left| left.is_zero()) {
                return Err(Fault::Given);
            }
            let wait = late.into_iter().chain(stop).min();
            state = match wait {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(time) => {
                    self.changed
                        .wait_timeout(state, time)
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    /// The process asks something that belongs to this question.
    pub(crate) fn ask_back(&self, question: Frame) {
        lock(&self.state).questions.push_back(question);
        self.changed.notify_all();
    }

    /// Waits a while for the answer or a question.
    pub(crate) fn next(&self, limit: Duration) -> NextMessage {
        let until = Instant::now() + limit;
        let mut state = lock(&self.state);
        loop {
            if let Some(question) = state.questions.pop_front() {
                return NextMessage::Question(question);
            }
            if let Some(answer) = state.answer.take() {
                return NextMessage::Answer(answer);
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return NextMessage::Nothing;
            };
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
    }

    /// The answer if it is there; otherwise the waker is called when it comes.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Answer> {
        let mut state = lock(&self.state);
        let answer = state.answer.take();
        if answer.is_none() {
            state.waker = Some(waker.clone());
        }
        answer
    }
}

/// The writing half, and who waits for what.
pub(crate) struct Channel {
    writer: Mutex<Stream>,
    waiting: Mutex<HashMap<u64, Arc<Slot>>>,
    next: AtomicU64,
    ended: Mutex<Option<Arc<str>>>,
    closed: Condvar,
    open: AtomicBool,
}

impl Channel {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            writer: Mutex::new(stream),
            waiting: Mutex::default(),
            next: AtomicU64::new(1),
            ended: Mutex::default(),
            closed: Condvar::new(),
            open: AtomicBool::new(true),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until the process is gone.
    pub(crate) fn wait_closed(&self) {
        let mut ended = lock(&self.ended);
        while ended.is_none() {
            ended = self
                .closed
                .wait(ended)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// A question that is still without an answer.
    pub(crate) fn waiting(&self, number: u64) -> Option<Arc<Slot>> {
        lock(&self.waiting).get(&number).cloned()
    }

    /// Whether this question is still without an answer.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        lock(&self.waiting).contains_key(&number)
    }

    /// A number for the next question, so that what belongs to it can be noted before it is asked.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks; the slot has the answer later.
    pub(crate) fn ask(
        &self,
        number: u64,
        method: &str,
        arguments: Map,
        numbers: Outgoing,
    ) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        lock(&self.waiting).insert(number, slot.clone());
        if let Some(reason) = lock(&self.ended).clone() {
            lock(&self.waiting).remove(&number);
            slot.fill(Err(Fault::Died(reason)));
            return slot;
        }
        let body = map! {"m" => method, "a" => arguments};
        if let Err(error) = self.send(Kind::Call, number, body, numbers)
            && error.kind() == io::ErrorKind::InvalidInput
        {
            // Nothing was sent. All else ends with the process, whose reader says how.
            lock(&self.waiting).remove(&number);
            slot.fill(Err(Fault::Raised(error.to_string().into())));
        }
        slot
    }

    /// Asks for something without numbers and waits.
    pub(crate) fn ask_and_wait(
        &self,
        method: &str,
        arguments: Map,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let number = self.number();
        let slot = self.ask(number, method, arguments, Outgoing::default());
        let answer = slot.wait(Some(limit), Duration::MAX);
        lock(&self.waiting).remove(&number);
        answer.map(|(value, _)| value)
    }

    pub(crate) fn event(&self, method: &str, arguments: Map) {
        let body = map! {"m" => method, "a" => arguments};
        // A process that is gone needs no news.
        let _ = self.send(Kind::Event, 0, body, Outgoing::default());
    }

    pub(crate) fn reply(&self, number: u64, value: Value, numbers: Outgoing) {
        let sent = self.send(Kind::Reply, number, map! {"v" => value}, numbers);
        if let Err(error) = sent {
            self.refuse(number, error.to_string());
        }
    }

    pub(crate) fn refuse(&self, number: u64, error: impl Into<Value>) {
        let body = map! {"e" => error.into()};
        let _ = self.send(Kind::Error, number, body, Outgoing::default());
    }

    fn send(&self, kind: Kind, number: u64, mut body: Map, numbers: Outgoing) -> io::Result<()> {
        let (size, pool) = (numbers.size(), numbers.pool());
        let sealed = numbers.seal()?;
        if size > 0 {
            body.insert("bytes".into(), size.into());
        }
        if let Some(path) = &sealed.path {
            body.insert("file".into(), path.to_string_lossy().as_ref().into());
        }
        if !sealed.lent.is_empty() {
            let lent = sealed.lent.iter();
            let lent = lent.map(|(number, size)| vec![Value::from(*number), (*size).into()].into());
            body.insert("segments".into(), lent.collect::<Vec<Value>>().into());
        }
        let text = json::to_string(&body.into());
        if text.len() + HEAD > LIMIT {
            Outgoing::take_back(pool.as_ref(), &sealed.lent);
            let problem = format!(
                "a message of {} bytes is too large for a Python process",
                text.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let mut frame = Vec::with_capacity(HEAD + text.len());
        frame.extend(((text.len() + 9) as u32).to_le_bytes());
        frame.push(kind as u8);
        frame.extend(number.to_le_bytes());
        frame.extend(text.into_bytes());
        let mut writer = lock(&self.writer);
        let sent = write(&mut writer, &frame, &sealed);
        if sent.is_err() {
            // Half a message may be on its way, or the process reads no more: its reader ends the rest.
            let _ = writer.shutdown(std::net::Shutdown::Both);
        }
        sent
    }

    /// Gives an answer to whoever waits for it.
    pub(crate) fn answered(&self, frame: Frame) {
        let Some(slot) = lock(&self.waiting).remove(&frame.number) else {
            return;
        };
        let take = |key: &str| match &frame.body {
            Value::Map(body) => body.get(key).cloned().unwrap_or_default(),
            _ => Value::Null,
        };
        slot.fill(match frame.kind {
            Kind::Reply => Ok((take("v"), frame.numbers)),
            _ => Err(Fault::Raised(take("e"))),
        });
    }

    /// The process is gone: nobody waits any longer.
    pub(crate) fn close(&self, reason: &Arc<str>) {
        self.open.store(false, Ordering::SeqCst);
        *lock(&self.ended) = Some(reason.clone());
        self.closed.notify_all();
        let waiting: Vec<Arc<Slot>> = {
            let mut waiting = lock(&self.waiting);
            waiting.drain().map(|(_, slot)| slot).collect()
        };
        for slot in waiting {
            slot.fill(Err(Fault::Died(reason.clone())));
        }
    }
}

fn write(stream: &mut Stream, frame: &[u8], sealed: &Sealed) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if !sealed.descriptors.is_empty() {
        let sent = send_with(stream, frame, &sealed.descriptors)?;
        return stream.write_all(&frame[sent..]);
    }
    let _ = sealed;
    stream.write_all(frame)
}

#[cfg(target_os = "linux")]
fn send_with(stream: &Stream, frame: &[u8], fds: &[std::os::fd::OwnedFd]) -> io::Result<usize> {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd as _;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let parts = [IoSlice::new(frame)];
    Ok(sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?)
}

/// The reading half.
pub(crate) struct Reader {
    stream: Stream,
    channel: Weak<Channel>,
    #[cfg(target_os = "linux")]
    fds: VecDeque<std::os::fd::OwnedFd>,
}

impl Reader {
    pub(crate) fn new(stream: Stream, channel: &Arc<Channel>) -> Self {
        Self {
            stream,
            channel: Arc::downgrade(channel),
            #[cfg(target_os = "linux")]
            fds: VecDeque::new(),
        }
    }

    /// The next message; nothing when the process has closed its end. An error means that it sent something else.
    pub(crate) fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0_u8; HEAD];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if !(9..=LIMIT).contains(&length) {
            return Err(io::Error::other(
                "it sent a message of an impossible length",
            ));
        }
        let kind = match head[4] {
            0 => Kind::Call,
            1 => Kind::Reply,
            2 => Kind::Error,
            3 => Kind::Event,
            _ => return Err(io::Error::other("it sent a message of an unknown kind")),
        };
        let mut number = [0_u8; 8];
        number.copy_from_slice(&head[5..]);
        let mut body = Vec::new();
        // Not all at once: the length may be a lie.
        let mut left = length - 9;
        while left > 0 {
            let start = body.len();
            body.resize(start + left.min(1 << 20), 0);
            if !self.fill(&mut body[start..])? {
                return Ok(None);
            }
            left -= body.len() - start;
        }
        let body = json::parse_bytes(&body).map_err(|error| {
            io::Error::other(format!("it sent a message that is not JSON: {error}"))
        })?;
        let numbers = self.numbers(&body)?;
        Ok(Some(Frame {
            kind,
            number: u64::from_le_bytes(number),
            body,
            numbers,
        }))
    }

    fn numbers(&mut self, body: &Value) -> io::Result<Option<Incoming>> {
        let size = body.get("bytes").and_then(Value::as_int).unwrap_or(0);
        let size = u64::try_from(size).unwrap_or(0);
        if size == 0 {
            return Ok(None);
        }
        #[cfg(target_os = "linux")]
        {
            let fd = self.fds.pop_front();
            let fd = fd.ok_or_else(|| io::Error::other("it sent numbers without a descriptor"))?;
            let incoming = Incoming::sealed(fd, size)?;
            let warm = body.get("warm").and_then(Value::as_int);
            Ok(Some(match warm.and_then(|n| u64::try_from(n).ok()) {
                Some(number) => incoming.used_again(self.channel.clone(), number),
                None => incoming,
            }))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let path = body.get("file").and_then(Value::as_str).unwrap_or("");
            Incoming::file(std::path::Path::new(path), size).map(Some)
        }
    }

    /// Fills the buffer; false at the end of the stream.
    fn fill(&mut self, mut buffer: &mut [u8]) -> io::Result<bool> {
        while !buffer.is_empty() {
            let read = match self.receive(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
                other => other?,
            };
            if read == 0 {
                return Ok(false);
            }
            buffer = &mut buffer[read..];
        }
        Ok(true)
    }

    #[cfg(target_os = "linux")]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::io::IoSliceMut;
        use std::mem::MaybeUninit;

        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let got = recvmsg(
            &self.stream,
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > DESCRIPTORS {
            return Err(io::Error::other(
                "it sent descriptors that belong to nothing",
            ));
        }
        Ok(got.bytes)
    }

    #[cfg(not(target_os = "linux"))]
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}
