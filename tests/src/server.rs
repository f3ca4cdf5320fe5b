//! The program under test, as a process in a folder of its own.

use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    http::{Connection, PATIENCE, Response},
    socket::Socket,
};

/// The line the reference prints too; scripts of other people wait for it.
const READY: &str = "To see the GUI go to:";
/// Folders of tests have the models that the test put there.
pub const NO_STARTER: &str = "FRESCO_NO_STARTER";

/// The built program: `FRESCO_BIN`, or the debug build next to this test.
pub fn program() -> PathBuf {
    if let Some(path) = env::var_os("FRESCO_BIN") {
        return PathBuf::from(path);
    }
    let name = format!("fresco{}", env::consts::EXE_SUFFIX);
    let here = env::current_exe().expect("a running test knows its own path");
    let found = here
        .ancestors()
        .map(|dir| dir.join(&name))
        .find(|path| path.is_file());
    found.expect("the program is not built; run `cargo build -p fresco` or set FRESCO_BIN")
}

#[derive(Default)]
pub struct StartOptions<'a> {
    pub arguments: Vec<&'a str>,
    /// An existing base directory; a fresh temporary one without it.
    pub base: Option<&'a Path>,
    /// Another program than the usual one.
    pub program: Option<&'a Path>,
    pub environment: Vec<(&'a str, &'a str)>,
}

pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub base: PathBuf,
    /// From the start of the process to the line that says it is ready.
    pub start_time: Duration,
    log: Arc<Mutex<Vec<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
    _folder: Option<TempDir>,
}

impl Server {
    pub fn start() -> Self {
        Self::with(&[])
    }

    pub fn with(arguments: &[&str]) -> Self {
        Self::start_with(StartOptions {
            arguments: arguments.to_vec(),
            ..StartOptions::default()
        })
    }

    pub fn start_with(options: StartOptions<'_>) -> Self {
        for _ in 0..5 {
            match Self::try_start(&options) {
                Ok(server) => return server,
                // Another test was given the same port in between; that is nobody's fault.
                Err((_, log)) if log.iter().any(|line| line.contains("--port")) => {}
                Err((status, log)) => {
                    panic!("the program ended with {status}:\n{}", log.join("\n"))
                }
            }
        }
        panic!("no port stays free long enough");
    }

    /// Starts the program and waits until it is ready; if it ends instead, its status and what it printed.
    pub fn try_start(options: &StartOptions<'_>) -> Result<Self, (ExitStatus, Vec<String>)> {
        let folder = match options.base {
            Some(_) => None,
            None => Some(tempfile::tempdir().expect("a temporary folder can be made")),
        };
        let base = match (&folder, options.base) {
            (_, Some(base)) => base.to_owned(),
            (Some(folder), None) => folder.path().to_owned(),
            (None, None) => unreachable!("one of the two was just chosen"),
        };
        let port = free_port();
        let begun = Instant::now();
        let mut child = spawn(&base, port, options);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sender, lines) = mpsc::channel();
        let stderr = child.stderr.take().expect("stderr was piped");
        let stdout = child.stdout.take().expect("stdout was piped");
        let readers = vec![
            collect(stderr, Arc::clone(&log), sender.clone()),
            collect(stdout, Arc::clone(&log), sender),
        ];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) if line.contains(READY) => break,
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    child.kill().expect("our own child can be killed");
                    panic!("the program did not get ready:\n{}", lock(&log).join("\n"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = child.wait().expect("our own child can be waited for");
                    let log = lock(&log).clone();
                    return Err((status, log));
                }
            }
        }
        Ok(Self {
            child,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            base,
            start_time: begun.elapsed(),
            log,
            readers,
            _folder: folder,
        })
    }

    /// How the program ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything printed so far.
    pub fn log(&self) -> String {
        lock(&self.log).join("\n")
    }

    pub fn connect(&self) -> Connection {
        match Connection::open(self.address) {
            Ok(connection) => connection,
            Err(error) => panic!("{error:#}; the program printed:\n{}", self.log()),
        }
    }

    pub fn socket(&self, client_id: &str) -> Socket {
        Socket::open(self.address, &format!("/ws?clientId={client_id}"))
    }

    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        match self.connect().request(method, path, headers, body) {
            Ok(response) => response,
            Err(error) => panic!("{error:#}; the program printed:\n{}", self.log()),
        }
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path, &[], &[])
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        let headers = [("Content-Type", "application/json")];
        self.request("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Queues a prompt that must be accepted and gives its id.
    #[track_caller]
    pub fn queue(&self, prompt: &Value, client_id: Option<&str>) -> String {
        let mut body = json!({ "prompt": prompt });
        if let Some(client_id) = client_id {
            body["client_id"] = json!(client_id);
        }
        let answer = self.post("/prompt", &body).expect_status(200).json();
        let id = answer["prompt_id"].as_str();
        id.expect("an accepted prompt has an id").to_owned()
    }

    /// The history entry of a prompt, once there is one.
    #[track_caller]
    pub fn wait_for(&self, id: &str) -> Value {
        let mut connection = self.connect();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let answer = connection.get(&format!("/history/{id}"));
            let mut history = answer.expect("the server answers").json();
            if !history[id].is_null() {
                return history[id].take();
            }
            // Asking without a pause would take the processor from the very program that is waited for.
            thread::park_timeout(Duration::from_millis(3));
        }
        panic!("{id} never finished; the program printed:\n{}", self.log());
    }

    /// Ends the process at once, as a power cut would, and keeps the folder.
    pub fn kill(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.child.kill();
        self.child.wait().expect("our own child can be waited for");
    }

    /// Asks the process to stop, as Ctrl-C does, and waits for it.
    pub fn interrupt(&mut self) -> ExitStatus {
        self.signal("-INT")
    }

    /// Asks the process to stop, as a service manager does, and waits for it.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("-TERM")
    }

    fn signal(&mut self, signal: &str) -> ExitStatus {
        let status = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status()
            .expect("kill can be run");
        assert!(status.success(), "the process is there to be signalled");
        let status = self.child.wait().expect("our own child can be waited for");
        // What it said last is still in the pipes.
        for reader in self.readers.drain(..) {
            reader.join().expect("a reading thread does not panic");
        }
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the program without waiting for anything.
pub fn spawn(base: &Path, port: u16, options: &StartOptions<'_>) -> Child {
    let path = options.program.map_or_else(program, Path::to_path_buf);
    Command::new(&path)
        .arg("--base-directory")
        .arg(base)
        .args(["--port", &port.to_string()])
        .args(&options.arguments)
        // Whatever the tree brings along; a test of the starter model takes this back.
        .env(NO_STARTER, "1")
        .envs(options.environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", path.display()))
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let address = listener.local_addr();
    address.expect("a bound socket has an address").port()
}

fn lock(log: &Mutex<Vec<String>>) -> std::sync::MutexGuard<'_, Vec<String>> {
    log.lock().expect("no thread panics while it holds the log")
}

fn collect(
    stream: impl Read + Send + 'static,
    log: Arc<Mutex<Vec<String>>>,
    sender: mpsc::Sender<String>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            lock(&log).push(text.clone());
            // Nobody listens any more once the program is ready; the log still fills.
            let _ = sender.send(text);
        }
    })
}

/// Runs the program to its end and gives status, stdout and stderr.
pub fn run_program(arguments: &[&str], folder: &Path) -> (ExitStatus, String, String) {
    let output = Command::new(program())
        .args(arguments)
        .current_dir(folder)
        .env(NO_STARTER, "1")
        .stdin(Stdio::null())
        .output()
        .expect("the program can be started");
    (
        output.status,
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}
