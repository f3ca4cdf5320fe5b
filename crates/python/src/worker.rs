//! One Python process: how it is started, what is heard of it, how it ends.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fresco_graph::{Codec, Cx, Value, lock};
use fresco_tensor::Tensor;

use crate::channel::{Channel, Frame, Kind, Reader, Stream};
use crate::output::{Logs, Output};
use crate::segment::Segments;
use crate::wire::Handles;

/// How long a message may wait until the process reads it.
const UNREAD: Duration = Duration::from_secs(10);
/// How long a process that closed its channel may take to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// Names of a pack and of a class of it.
pub(crate) type PackAndClass = (Arc<str>, Arc<str>);

/// How a process is started.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) logs: Arc<Logs>,
    pub(crate) python: PathBuf,
    pub(crate) path: Vec<PathBuf>,
    pub(crate) folder: PathBuf,
    /// Variables of the environment, complete.
    pub(crate) environment: Vec<(String, String)>,
}

/// The surroundings of a call, and the values that were sent with it.
type GoingCall = (Cx, Arc<Vec<Value>>);

/// A running process.
pub(crate) struct Live {
    /// Whose values and classes these are; another one for every process.
    pub(crate) owner: Arc<str>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) handles: Handles,
    /// Memory files of large tensors that it was given.
    pub(crate) segments: Arc<Segments>,
    pub(crate) codec: Arc<dyn Codec<Tensor>>,
    /// The surroundings of calls that are going on, by number, and the values that were sent with them.
    pub(crate) calls: Mutex<HashMap<u64, GoingCall>>,
    /// Which class of which pack each of them is.
    pub(crate) busy: Mutex<BTreeMap<u64, PackAndClass>>,
    /// A call that nobody waits for any more, and that others would have to wait for.
    pub(crate) stuck: Mutex<Option<u64>>,
    /// The prompt whose hidden values the process has.
    pub(crate) knows_prompt: Mutex<Option<Arc<str>>>,
    /// Who is writing, as far as is known.
    pub(crate) speaker: Arc<Mutex<Arc<str>>>,
    /// When it last did not say in time what a class declares, and which class.
    pub(crate) late: Mutex<Option<(Instant, Arc<str>)>>,
    /// The pack that is being imported.
    pub(crate) importing: Mutex<Option<String>>,
    child: Mutex<Child>,
    process: u32,
    /// Bytes of GPUs that torch has taken there.
    pub(crate) on_gpu: AtomicU64,
    output: Output,
    killed: Mutex<Option<&'static str>>,
}

/// Who listens to a process.
pub(crate) trait Listener: Send + Sync {
    fn event(&self, live: &Arc<Live>, frame: Frame);
    fn call(&self, live: &Arc<Live>, frame: Frame);
    fn ended(&self, live: &Arc<Live>, reason: &Arc<str>);
}

impl Live {
    pub(crate) fn start(
        launch: &Launch,
        owner: Arc<str>,
        codec: Arc<dyn Codec<Tensor>>,
        listener: Arc<dyn Listener>,
    ) -> std::io::Result<Arc<Self>> {
        let mut command = Command::new(&launch.python);
        command
            .args(["-m", "fresco_host"])
            .current_dir(&launch.folder)
            .env_clear()
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let path = std::env::join_paths(&launch.path).map_err(std::io::Error::other)?;
        command.env("PYTHONPATH", path);
        let (mut child, stream) = spawn(&mut command)?;
        // Whoever writes to a process that reads no more must not wait for ever.
        stream.set_write_timeout(Some(UNREAD))?;
        let process = child.id();
        let output = Output::default();
        let speaker: Arc<Mutex<Arc<str>>> = Arc::new(Mutex::new("packs".into()));
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|s| Box::new(s) as _),
            child.stderr.take().map(|s| Box::new(s) as _),
        ];
        for stream in streams.into_iter().flatten() {
            let reader = output.reader(&speaker, &launch.logs);
            thread("pack-output", move || reader.run(stream))?;
        }
        let live = Arc::new(Self {
            owner,
            channel: Arc::new(Channel::new(stream.try_clone()?)),
            handles: Handles::default(),
            segments: Arc::default(),
            codec,
            calls: Mutex::default(),
            busy: Mutex::default(),
            stuck: Mutex::default(),
            knows_prompt: Mutex::default(),
            speaker,
            late: Mutex::default(),
            importing: Mutex::default(),
            child: Mutex::new(child),
            process,
            on_gpu: AtomicU64::new(0),
            output,
            killed: Mutex::default(),
        });
        let reading = live.clone();
        thread("pack-channel", move || reading.read(stream, &*listener))?;
        Ok(live)
    }

    /// The surroundings of a call that is going on.
    pub(crate) fn call(&self, number: u64) -> Option<GoingCall> {
        lock(&self.calls).get(&number).cloned()
    }

    /// Waits until a call that was given up has come back, or the process was ended for it.
    pub(crate) fn wait_unstuck(&self) {
        let Some(number) = *lock(&self.stuck) else {
            return;
        };
        while self.channel.is_open() && self.channel.is_waiting(number) {
            nap(Duration::from_millis(10));
        }
        lock(&self.stuck).take_if(|stuck| *stuck == number);
    }

    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Bytes of main memory that it has, where the system says so.
    pub(crate) fn resident(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kilobytes * 1024)
    }

    fn read(self: Arc<Self>, stream: Stream, listener: &dyn Listener) {
        let mut reader = Reader::new(stream, &self.channel);
        let problem = loop {
            match reader.next() {
                Ok(None) => break None,
                Err(error) => break Some(error.to_string()),
                Ok(Some(mut frame)) => {
                    if frame.kind != Kind::Event {
                        frame.body = self.handles.resolve(frame.body, 0);
                    }
                    match frame.kind {
                        Kind::Reply | Kind::Error => self.channel.answered(frame),
                        Kind::Event => listener.event(&self, frame),
                        Kind::Call => listener.call(&self, frame),
                    }
                }
            }
        };
        if problem.is_some() {
            self.kill("it was stopped");
        }
        let status = self.wait();
        let reason = self.reason(problem, status);
        // First, so that whoever hears of the end in the channel finds everything in order.
        listener.ended(&self, &reason);
        self.channel.close(&reason);
        lock(&self.calls).clear();
        lock(&self.busy).clear();
    }

    /// Ends the process and everything it started.
    pub(crate) fn kill(&self, why: &'static str) {
        lock(&self.killed).get_or_insert(why);
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.process)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = lock(&self.child).kill();
    }

    /// Tells the process to end, and sees to it.
    pub(crate) fn stop(&self) {
        self.channel.event("shutdown", fresco_graph::Map::new());
        let began = Instant::now();
        while began.elapsed() < FAREWELL {
            if !matches!(lock(&self.child).try_wait(), Ok(None)) {
                return;
            }
            nap(Duration::from_millis(5));
        }
        self.kill("it was stopped");
    }

    fn wait(&self) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match lock(&self.child).try_wait() {
                Ok(Some(status)) => break Some(status),
                Err(_) => break None,
                Ok(None) => {}
            }
            if began.elapsed() > FAREWELL {
                self.kill("it closed its channel and went on");
            }
            nap(Duration::from_millis(2));
        }
    }

    fn reason(&self, problem: Option<String>, status: Option<ExitStatus>) -> Arc<str> {
        // What was written last may still be on its way.
        let began = Instant::now();
        while self.output.is_open() && began.elapsed() < Duration::from_millis(300) {
            nap(Duration::from_millis(2));
        }
        // Children of the pack may still be there.
        self.kill("it ended");
        let mut text = match (problem, *lock(&self.killed)) {
            (Some(problem), _) => problem,
            (None, Some(why)) if why != "it ended" => why.to_owned(),
            _ => status.map_or_else(|| "it ended".to_owned(), describe),
        };
        let last = self.output.last_words();
        if !last.is_empty() {
            text.push_str("\nIts last output:\n");
            text.push_str(&last.join("\n"));
        }
        text.into()
    }
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt as _;
        if let Some(signal) = status.signal() {
            let name = match signal {
                6 => " (SIGABRT)",
                9 => " (SIGKILL; perhaps the system ran out of memory)",
                11 => " (SIGSEGV)",
                15 => " (SIGTERM)",
                _ => "",
            };
            return format!("it was ended by signal {signal}{name}");
        }
    }
    match status.code() {
        Some(code) => format!("it ended with code {code}"),
        None => "it ended".to_owned(),
    }
}

/// Waits for a moment between two looks at a process.
#[expect(
    clippy::disallowed_methods,
    reason = "the end of a process rings no bell that could be waited for with a deadline"
)]
pub(crate) fn nap(time: Duration) {
    std::thread::sleep(time);
}

pub(crate) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}

/// The channel is the process's standard input, so that no descriptor has to be passed by number.
#[cfg(unix)]
fn spawn(command: &mut Command) -> std::io::Result<(Child, Stream)> {
    use std::os::fd::OwnedFd;
    use std::os::unix::process::CommandExt as _;
    let (ours, theirs) = Stream::pair()?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    command.process_group(0);
    Ok((command.spawn()?, ours))
}

/// A port of this machine, with a secret that only our process knows.
#[cfg(not(unix))]
fn spawn(command: &mut Command) -> std::io::Result<(Child, Stream)> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let mut secret = [0_u8; 16];
    getrandom::fill(&mut secret).map_err(|error| std::io::Error::other(error.to_string()))?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    command
        .env("FRESCO_PORT", listener.local_addr()?.port().to_string())
        .env("FRESCO_SECRET", &secret)
        .stdin(Stdio::null());
    let child = command.spawn()?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut said = vec![0_u8; secret.len()];
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        if stream.read_exact(&mut said).is_ok() && said == secret.as_bytes() {
            stream.set_read_timeout(None)?;
            return Ok((child, stream));
        }
    }
}
