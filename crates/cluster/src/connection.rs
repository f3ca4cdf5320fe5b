//! The connection to the NATS server, for plain threads.
//!
//! The client library is asynchronous and has a thread of its own here; every call below waits for its answer, at most as long as it
//! says. None may be made on a thread that serves sockets. A server that is absent, restarts or cannot be used is no error of a
//! start: the connection is tried again, less and less often, and [`Broker::state`] says what is wrong meanwhile.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_nats::jetstream::{self, object_store, stream};
use async_nats::{Client, ConnectOptions, HeaderMap, ServerAddr};
use bytes::Bytes;
use fresco_graph::lock;
use futures_util::StreamExt as _;
use percent_encoding::percent_decode_str;

/// How long a server may take to answer anything.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long it is looked whether a server is there at all.
const REACHING: Duration = Duration::from_secs(2);

/// Where the server is and who we are there.
#[derive(Clone)]
pub struct BrokerSettings {
    /// `nats://host:port` or `tls://host:port`, several with commas between; a name and a password may stand before an `@`.
    pub url: String,
    /// A file with credentials, as `nsc` writes it.
    pub credentials: Option<PathBuf>,
    /// A file with the certificate of the authority to trust.
    pub authority: Option<PathBuf>,
    /// First word of all subjects.
    pub prefix: String,
    /// What the server's own lists show.
    pub name: String,
}

impl std::fmt::Debug for BrokerSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may have a password.
        f.debug_struct("BrokerSettings")
            .field("prefix", &self.prefix)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What became of a call.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("{0}")]
    Settings(String),
    #[error("NATS cannot be used now: {0}")]
    NotReady(String),
    #[error(
        "{what}: NATS has no room left; raise its storage limits or wait until old files have expired ({why})"
    )]
    Full { what: String, why: String },
    #[error("{what}: nobody answered within {seconds} s")]
    NoAnswer { what: String, seconds: u64 },
    #[error("{what}: there is no such worker now")]
    Nobody { what: String },
    #[error("{what}: NATS has no content {hash}; it may have expired")]
    NoContent { what: String, hash: String },
    #[error("{what}: {why}")]
    Failed { what: String, why: String },
}

impl BrokerError {
    pub(crate) fn failed(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Failed {
            what: what.into(),
            why: why.to_string(),
        }
    }
}

/// How the connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerState {
    /// Not there yet, or broken; why, as far as that is known.
    Connecting(String),
    /// Connected, but the server cannot do what is needed.
    Unusable(String),
    Ready,
}

/// A message that came in by a subscription.
pub struct ReceivedMessage {
    pub subject: String,
    pub payload: Bytes,
    reply: Option<async_nats::Subject>,
}

/// Ends when dropped.
pub struct Subscription(tokio::task::JoinHandle<()>);

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The connection. Lives as long as the process in front and worker.
pub struct Broker {
    // Before the runtime, which must end last.
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    pub(crate) files: Mutex<Option<object_store::ObjectStore>>,
    pub(crate) events: OnceLock<stream::Stream>,
    state: Mutex<BrokerState>,
    /// Messages can be sent, whatever becomes of those that are to be kept.
    connected: AtomicBool,
    /// Why what is kept on the server cannot be used now, though it was there before.
    store_trouble: Mutex<Option<String>>,
    /// Something is kept by fewer nodes than it could be.
    pub(crate) short_of_replicas: AtomicBool,
    /// How often preparing began: of several only the last goes on.
    preparing: AtomicU64,
    /// How often the connection became usable.
    generation: AtomicU64,
    /// Without secrets.
    address: String,
    /// TLS is asked for.
    secured: bool,
    pub(crate) prefix: String,
    pub(crate) runtime: tokio::runtime::Runtime,
}

/// The servers of a URL, and how they are shown.
fn servers(url: &str) -> Result<(Vec<ServerAddr>, String), BrokerError> {
    let mut found = Vec::new();
    for one in url.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let server: ServerAddr = one.parse().map_err(|_| {
            // The text may have a password.
            BrokerError::Settings(
                "--nats: the address cannot be read; write nats://host:4222 or tls://host:4222"
                    .to_owned(),
            )
        })?;
        if server.is_websocket() {
            return Err(BrokerError::Settings(
                "--nats: web sockets are not used here; write nats://host:4222 or tls://host:4222"
                    .to_owned(),
            ));
        }
        found.push(server);
    }
    if found.is_empty() {
        return Err(BrokerError::Settings("--nats: no address".to_owned()));
    }
    let shown: Vec<String> = found
        .iter()
        .map(|server| format!("{}:{}", server.host(), server.port()))
        .collect();
    Ok((found, shown.join(", ")))
}

/// The name and the password in an address, or a name alone, which is a token. The client itself does not look at them.
fn login(servers: &[ServerAddr]) -> Option<(String, Option<String>)> {
    let with_name = |server: &&ServerAddr| server.username().is_some_and(|name| !name.is_empty());
    let server = servers.iter().find(with_name)?;
    let password = server.password().map(unescaped);
    Some((unescaped(server.username()?), password))
}

/// A part of an address with its `%40` and the like as what they stand for.
fn unescaped(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Whether somebody listens there.
fn reach(server: &str) -> Result<(), String> {
    use std::net::{TcpStream, ToSocketAddrs as _};
    let found = server.to_socket_addrs();
    let mut found = found.map_err(|e| format!("{server}: the name is not known ({e})"))?;
    let address = found
        .next()
        .ok_or_else(|| format!("{server}: the name has no address"))?;
    match TcpStream::connect_timeout(&address, REACHING) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{server}: no server answers there ({error})")),
    }
}

/// Words of subjects and names of buckets.
pub(crate) fn is_word(text: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !text.is_empty() && text.len() <= 64 && text.chars().all(known)
}

/// Longer with each try, and not the same for everybody.
fn pause(tries: usize) -> Duration {
    if tries <= 1 {
        return Duration::ZERO;
    }
    let doubled = 50_u64.saturating_mul(1 << (tries - 2).min(16));
    let longest = (LONGEST_PAUSE.as_millis() as u64).min(doubled);
    // Between half and all of it.
    let jitter = RandomState::new().hash_one(tries) % (longest / 2).max(1);
    Duration::from_millis(longest - jitter)
}

impl Broker {
    /// Begins to connect. An error is one of the settings; a server that is not there is waited for.
    pub fn connect(settings: &BrokerSettings) -> Result<Arc<Self>, BrokerError> {
        let (servers, address) = servers(&settings.url)?;
        if !is_word(&settings.prefix) {
            return Err(BrokerError::Settings(format!(
                "--nats-prefix: {:?} has signs other than letters, digits, _ and -",
                settings.prefix
            )));
        }
        let secured = settings.authority.is_some() || servers.iter().any(ServerAddr::tls_required);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nats")
            .enable_all()
            .build()
            .map_err(|e| BrokerError::failed("start the thread for NATS", e))?;
        let late: Arc<OnceLock<Weak<Self>>> = Arc::default();
        let mut options = ConnectOptions::new()
            .name(&settings.name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ping_interval(Duration::from_secs(5))
            .connection_timeout(ANSWER)
            .request_timeout(Some(ANSWER))
            .reconnect_delay_callback(pause)
            .event_callback({
                let late = late.clone();
                move |event| {
                    let broker = late.get().and_then(Weak::upgrade);
                    async move {
                        if let Some(broker) = broker {
                            broker.hear(&event);
                        }
                    }
                }
            });
        options = match login(&servers) {
            Some((name, Some(password))) => options.user_and_password(name, password),
            Some((token, None)) => options.token(token),
            None => options,
        };
        if let Some(path) = &settings.credentials {
            let text = std::fs::read_to_string(path).map_err(|error| {
                BrokerError::Settings(format!(
                    "--nats-creds: cannot read {}: {error}",
                    path.display()
                ))
            })?;
            options = options.credentials(&text).map_err(|_| {
                // What the library says could show what is in the file.
                BrokerError::Settings(format!(
                    "--nats-creds: {} has no credentials as nsc writes them",
                    path.display()
                ))
            })?;
        }
        if let Some(path) = &settings.authority {
            if let Err(error) = std::fs::metadata(path) {
                return Err(BrokerError::Settings(format!(
                    "--nats-ca: cannot read {}: {error}",
                    path.display()
                )));
            }
            options = options
                .add_root_certificates(path.clone())
                .require_tls(true);
        }
        let client = runtime
            .block_on(options.connect(servers))
            .map_err(|e| BrokerError::Settings(format!("--nats: {e}")))?;
        let context = {
            // It starts a task.
            let _inside = runtime.enter();
            jetstream::new(client.clone())
        };
        let broker = Arc::new(Self {
            client,
            context,
            files: Mutex::default(),
            events: OnceLock::new(),
            connected: AtomicBool::new(false),
            store_trouble: Mutex::default(),
            short_of_replicas: AtomicBool::new(false),
            preparing: AtomicU64::new(0),
            state: Mutex::new(BrokerState::Connecting(format!("connecting to {address}"))),
            generation: AtomicU64::new(0),
            address,
            secured,
            prefix: settings.prefix.clone(),
            runtime,
        });
        let _ = late.set(Arc::downgrade(&broker));
        // The first event may have come before anybody could hear it.
        if broker.client.connection_state() == async_nats::connection::State::Connected {
            broker.prepare_soon();
        }
        Ok(broker)
    }

    pub fn state(&self) -> BrokerState {
        lock(&self.state).clone()
    }

    /// Whether messages can be sent, and what is kept was there at least once.
    pub fn is_ready(&self) -> bool {
        *lock(&self.state) == BrokerState::Ready
    }

    /// Why nothing can be kept on the server now, while messages go on.
    pub fn store_trouble(&self) -> Option<String> {
        lock(&self.store_trouble).clone()
    }

    /// How often the connection became usable: what was heard before the last time may have gaps.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Host and port, without secrets.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn subject(&self, rest: &str) -> String {
        format!("{}.{rest}", self.prefix)
    }

    /// Bytes that one message may have, with some left for headers.
    pub fn largest_message(&self) -> usize {
        self.client.max_payload().clamp(4096, 1 << 20) - 2048
    }

    fn set_state(&self, state: BrokerState) {
        let mut now = lock(&self.state);
        if *now == state {
            return;
        }
        match &state {
            BrokerState::Ready => tracing::info!("connected to NATS at {}", self.address),
            BrokerState::Connecting(why) | BrokerState::Unusable(why) => {
                tracing::warn!("NATS at {}: {why}", self.address);
            }
        }
        *now = state;
    }

    fn hear(self: &Arc<Self>, event: &async_nats::Event) {
        use async_nats::Event;
        match event {
            Event::Connected => self.prepare_soon(),
            Event::Disconnected | Event::Closed => {
                self.connected.store(false, Ordering::Release);
                self.set_state(BrokerState::Connecting(
                    "the connection broke; trying again".to_owned(),
                ));
            }
            Event::ClientError(error) => {
                let text = error.to_string();
                let refused = text.contains("uthoriz") || text.contains("uthentic");
                let text = if refused {
                    "the server refuses us; give credentials with --nats-creds or in the address"
                        .to_owned()
                } else {
                    format!("{text}; trying again")
                };
                if !self.is_ready() {
                    if text.contains("IO error") {
                        self.look_why();
                    } else {
                        self.set_state(BrokerState::Connecting(text));
                    }
                }
            }
            Event::ServerError(error) => {
                let text = error.to_string();
                if text.contains("uthoriz") {
                    self.set_state(BrokerState::Connecting(
                        "the server refuses us; give credentials with --nats-creds or in the address"
                            .to_owned(),
                    ));
                } else {
                    // For instance a subject that our account may not use.
                    tracing::warn!("NATS at {}: {text}", self.address);
                }
            }
            Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
        }
    }

    /// Makes what is needed on the server, again and again until that works or the connection breaks. Once it was there, messages go on
    /// meanwhile: a node that is lost takes what it kept with it for a while, and not the signs of life.
    fn prepare_soon(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let number = self.preparing.fetch_add(1, Ordering::AcqRel) + 1;
        self.runtime.spawn(async move {
            let mut tries = 1;
            let mut told = false;
            while let Some(broker) = weak.upgrade() {
                let connected =
                    broker.client.connection_state() == async_nats::connection::State::Connected;
                if !connected || broker.preparing.load(Ordering::Acquire) != number {
                    return;
                }
                if let Err(why) = broker.check_server() {
                    broker.set_state(BrokerState::Unusable(why));
                } else {
                    broker.connected.store(true, Ordering::Release);
                    let was_there = broker.events.get().is_some();
                    if was_there && !told {
                        broker.become_ready();
                    }
                    told |= was_there;
                    match broker.prepare_streams().await {
                        Ok(()) => {
                            if lock(&broker.store_trouble).take().is_some() {
                                let address = &broker.address;
                                tracing::info!(
                                    "NATS at {address}: what it keeps can be used again"
                                );
                            }
                            broker.become_ready();
                            return;
                        }
                        Err(why) if was_there => broker.set_store_trouble(why),
                        Err(why) => broker.set_state(BrokerState::Unusable(why)),
                    }
                }
                drop(broker);
                tries += 1;
                tokio::time::sleep(pause(tries + 4)).await;
            }
        });
    }

    /// The client library says the same of a server that is not there and of one whose certificate is not trusted.
    fn look_why(self: &Arc<Self>) {
        let me = self.clone();
        self.runtime.spawn_blocking(move || {
            let servers = me.address.split(", ");
            let mut problems: Vec<String> = servers
                .map(|server| reach(server).err().unwrap_or_else(|| {
                    let secured = "it answers, but no secure connection came about: give the certificate of its authority with --nats-ca, \
                                   and name it in the address as its certificate does";
                    let plain = "it answers, but ends the connection: it may want tls:// in the address, or is no NATS server";
                    format!("{server}: {}", if me.secured { secured } else { plain })
                }))
                .collect();
            problems.dedup();
            if !me.is_ready() {
                let why = format!("{}; trying again", problems.join("; "));
                me.set_state(BrokerState::Connecting(why));
            }
        });
    }

    fn become_ready(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.set_state(BrokerState::Ready);
    }

    fn set_store_trouble(&self, why: String) {
        let mut now = lock(&self.store_trouble);
        if now.as_ref() != Some(&why) {
            tracing::warn!("NATS at {}: {why}; jobs go on without it", self.address);
            *now = Some(why);
        }
    }

    /// Whether the server can do what is needed at all.
    fn check_server(&self) -> Result<(), String> {
        let info = self.client.server_info();
        if !self.client.is_server_compatible(2, 9, 0) {
            return Err(format!(
                "the server has version {}; 2.9 or newer is needed",
                info.version
            ));
        }
        if !info.jetstream {
            return Err("the server has no JetStream; start it with -js".to_owned());
        }
        if !is_word(&self.prefix) {
            return Err("the prefix is not a word".to_owned());
        }
        Ok(())
    }

    /// Fails at once where nothing can be sent.
    pub(crate) fn check_connected(&self) -> Result<(), BrokerError> {
        if self.connected.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.state() {
            BrokerState::Ready => Err(BrokerError::NotReady("the connection broke".to_owned())),
            BrokerState::Connecting(why) | BrokerState::Unusable(why) => {
                Err(BrokerError::NotReady(why))
            }
        }
    }

    /// Waits for something, at most so long.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        patience: Duration,
        future: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, BrokerError> {
        let limited = async move { tokio::time::timeout(patience, future).await };
        self.runtime.block_on(limited).unwrap_or_else(|_| {
            Err(BrokerError::NoAnswer {
                what: what.to_owned(),
                seconds: patience.as_secs(),
            })
        })
    }

    /// Sends a message that is lost if nobody listens.
    pub fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BrokerError> {
        self.check_connected()?;
        let what = format!("send to {subject}");
        let sent = async {
            self.client
                .publish(subject.to_owned(), payload.into())
                .await
                .map_err(|e| BrokerError::failed(&what, chain(&e)))
        };
        self.wait(&what, ANSWER, sent)
    }

    /// Sends a message that is kept. `id`: sent twice, it is kept once.
    pub fn publish_stored(
        &self,
        subject: &str,
        id: &str,
        payload: Vec<u8>,
        patience: Duration,
    ) -> Result<(), BrokerError> {
        self.check_connected()?;
        let what = format!("store a message for {subject}");
        let stored = async {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", id);
            let sent = self
                .context
                .publish_with_headers(subject.to_owned(), headers, payload.into())
                .await;
            let acknowledged = match sent {
                Ok(acknowledged) => acknowledged.await,
                Err(error) => Err(error),
            };
            acknowledged
                .map(drop)
                .map_err(|error| publish_error(&what, &chain(&error)))
        };
        self.wait(&what, patience, stored)
    }

    /// Asks somebody and waits for the answer.
    pub fn request(
        &self,
        subject: &str,
        payload: Vec<u8>,
        patience: Duration,
    ) -> Result<Bytes, BrokerError> {
        self.check_connected()?;
        let what = format!("ask {subject}");
        let ask = async {
            let request = async_nats::Request::new()
                .payload(payload.into())
                .timeout(Some(patience));
            let answer = self
                .client
                .send_request(subject.to_owned(), request)
                .await
                .map_err(|error| match error.kind() {
                    async_nats::RequestErrorKind::NoResponders => {
                        BrokerError::Nobody { what: what.clone() }
                    }
                    async_nats::RequestErrorKind::TimedOut => BrokerError::NoAnswer {
                        what: what.clone(),
                        seconds: patience.as_secs(),
                    },
                    _ => BrokerError::failed(&what, chain(&error)),
                })?;
            Ok(answer.payload)
        };
        self.wait(&what, patience + ANSWER, ask)
    }

    /// Hears a subject from now on, also after the connection broke. The handler runs on the client's thread: it must hand over and
    /// return.
    pub fn subscribe(
        &self,
        subject: &str,
        mut handler: impl FnMut(ReceivedMessage) + Send + 'static,
    ) -> Result<Subscription, BrokerError> {
        let what = format!("listen to {subject}");
        let subscribe = async {
            self.client
                .subscribe(subject.to_owned())
                .await
                .map_err(|e| BrokerError::failed(&what, chain(&e)))
        };
        let mut subscriber = self.wait(&what, ANSWER, subscribe)?;
        let task = self.runtime.spawn(async move {
            while let Some(message) = subscriber.next().await {
                handler(ReceivedMessage {
                    subject: message.subject.to_string(),
                    payload: message.payload,
                    reply: message.reply,
                });
            }
        });
        Ok(Subscription(task))
    }

    /// Answers a request.
    pub fn answer(&self, heard: &ReceivedMessage, payload: Vec<u8>) -> Result<(), BrokerError> {
        let Some(reply) = heard.reply.clone() else {
            return Ok(());
        };
        self.check_connected()?;
        let what = "answer a request";
        let sent = async {
            self.client
                .publish(reply, payload.into())
                .await
                .map_err(|e| BrokerError::failed(what, chain(&e)))
        };
        self.wait(what, ANSWER, sent)
    }

    /// What was sent is on its way when this returns.
    pub fn flush(&self) {
        let flush = async {
            let flushed = self.client.flush().await;
            flushed.map_err(|e| BrokerError::failed("flush", chain(&e)))
        };
        if let Err(error) = self.wait("flush", Duration::from_secs(1), flush) {
            tracing::debug!("{error}");
        }
    }
}

/// An error with its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let next = cause.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = cause.source();
    }
    text
}

/// Why something was not kept: for lack of room, or otherwise.
pub(crate) fn publish_error(what: &str, why: &str) -> BrokerError {
    let full = [
        "maximum bytes",
        "maximum messages",
        "insufficient",
        "resource",
    ];
    if full.iter().any(|sign| why.contains(sign)) {
        return BrokerError::Full {
            what: what.to_owned(),
            why: why.to_owned(),
        };
    }
    BrokerError::failed(what, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_secrets() {
        let (found, shown) = servers("nats://me:secret@a:1, tls://b").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(shown, "a:1, b:4222");
        let error = servers("nats://me:secret@:x y").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        assert!(
            servers(" ,")
                .unwrap_err()
                .to_string()
                .contains("no address")
        );
        assert!(servers("ws://a").is_err());
    }

    #[test]
    fn names_and_passwords_come_from_the_address() {
        let found = |url: &str| login(&servers(url).unwrap().0);
        let both = |name: &str, password: &str| Some((name.to_owned(), Some(password.to_owned())));
        assert_eq!(
            found("tls://fresco:s3cret@hub:4222"),
            both("fresco", "s3cret")
        );
        assert_eq!(
            found("nats://a, nats://me:p%40s%25s@b"),
            both("me", "p@s%s")
        );
        assert_eq!(found("nats://t0ken@a"), Some(("t0ken".to_owned(), None)));
        assert_eq!(found("nats://a:1"), None);
        assert_eq!(unescaped("a%zzb%4"), "a%zzb%4");
    }

    #[test]
    fn a_server_that_is_not_there_is_named_with_why() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(&server), Ok(()));
        drop(listener);
        let why = reach(&server).unwrap_err();
        assert!(
            why.contains(&server) && why.contains("no server answers"),
            "{why}"
        );
        assert!(
            reach("nowhere.invalid:4222")
                .unwrap_err()
                .contains("not known")
        );
    }

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(1), Duration::ZERO);
        for tries in 2..100 {
            let one = pause(tries);
            assert!(
                one > Duration::ZERO && one <= LONGEST_PAUSE,
                "{tries}: {one:?}"
            );
        }
        assert!(pause(40) >= LONGEST_PAUSE / 2);
    }

    #[test]
    fn a_lack_of_room_is_told_from_other_failures() {
        let full = publish_error("put x", "publish failed: maximum bytes exceeded");
        assert!(matches!(full, BrokerError::Full { .. }));
        assert!(matches!(
            publish_error("put x", "broken pipe"),
            BrokerError::Failed { .. }
        ));
    }
}
