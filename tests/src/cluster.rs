//! A cluster on loopback: a NATS server, fronts and workers as processes that can be killed, stopped for a while, cut off and started
//! again in the same place.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    http::{Connection, PATIENCE},
    server::{NO_STARTER, free_port, program},
};

/// Where Debian puts it: not on the path of everybody.
const NATS_SERVERS: [&str; 3] = [
    "nats-server",
    "/usr/sbin/nats-server",
    "/usr/local/bin/nats-server",
];

/// The NATS server of this machine, if it has one.
pub fn nats_server() -> Option<&'static str> {
    NATS_SERVERS.into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// The file that fills a small disk.
const BALLAST: &str = "ballast";

/// How `unshare` gives a process a disk of its own here, if it can.
pub fn small_disks() -> Option<&'static str> {
    ["-m", "-rm"].into_iter().find(|how| {
        Command::new("unshare")
            .args([how, "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// A process that writes its log into a file, and can be started again.
pub struct Process {
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    started: Instant,
}

impl Process {
    pub fn new(name: &str, program: &Path, arguments: Vec<String>, log: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments,
            log: log.to_owned(),
            child: None,
            started: Instant::now(),
        }
    }

    pub fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env(NO_STARTER, "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.child = Some(child);
        self.started = Instant::now();
        Ok(())
    }

    /// Has it see a disk of so many bytes at this folder from its next start on, with all of it taken by a file but `free` bytes. Nobody
    /// else sees that disk, and it ends with the process.
    pub fn on_small_disk(&mut self, folder: &Path, bytes: u64, free: u64) -> Result<()> {
        let unshare = small_disks().context("this machine lets nobody mount a disk of its own")?;
        fs::create_dir_all(folder)?;
        let script = format!(
            "mount -t tmpfs -o size={bytes} tmpfs \"$0\" && head -c {} /dev/zero > \"$0/{BALLAST}\" && exec \"$@\"",
            bytes - free
        );
        let program = std::mem::replace(&mut self.program, "unshare".into());
        let own = std::mem::take(&mut self.arguments);
        let before = [
            unshare.to_owned(),
            "sh".to_owned(),
            "-c".to_owned(),
            script,
            folder.to_string_lossy().into_owned(),
            program.to_string_lossy().into_owned(),
        ];
        self.arguments = before.into_iter().chain(own).collect();
        Ok(())
    }

    /// Makes room on the disk that only it sees.
    pub fn make_room(&self, folder: &Path) -> Result<()> {
        let pid = self.pid().context("it does not run")?;
        let inside = folder.strip_prefix("/")?;
        let path = Path::new("/proc").join(pid.to_string()).join("root");
        Ok(fs::remove_file(path.join(inside).join(BALLAST))?)
    }

    /// Since it was last started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn is_started(&self) -> bool {
        self.child.is_some()
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// How it ended by itself, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may be gone already, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal by its name, as `STOP` or `TERM`.
    pub fn signal(&self, name: &str) {
        if let Some(pid) = self.pid() {
            let _ = Command::new("kill")
                .args([&format!("-{name}"), &pid.to_string()])
                .status();
        }
    }

    /// Asks it to stop and waits for it.
    pub fn terminate(&mut self) -> Option<ExitStatus> {
        self.signal("TERM");
        self.child.take()?.wait().ok()
    }

    pub fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of its log, under its name.
    pub fn tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        let last = &all[all.len().saturating_sub(lines)..];
        format!("--- {}\n{}\n", self.name, last.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Connections to a server that can be cut.
pub struct Line {
    pub port: u16,
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    /// Passes everything on to a port of this machine.
    pub fn to(target: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (cut, open) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (is_cut, streams) = (cut.clone(), open.clone());
        thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(to) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else {
                    continue;
                };
                let _ = from.set_nodelay(true);
                let _ = to.set_nodelay(true);
                let copies = (|| -> io::Result<_> {
                    let both = [from.try_clone()?, to.try_clone()?];
                    streams.lock().expect("nobody panics with it").extend(both);
                    Ok((from.try_clone()?, to.try_clone()?))
                })();
                let Ok((from_again, to_again)) = copies else {
                    continue;
                };
                thread::spawn(move || pass(from, to));
                thread::spawn(move || pass(to_again, from_again));
            }
        });
        Ok(Self { port, cut, open })
    }

    /// Breaks all connections and lets no new one through.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in self.open.lock().expect("nobody panics with it").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// A front, by the place where it runs.
pub struct Front {
    pub process: Process,
    pub address: SocketAddr,
    pub base: PathBuf,
}

impl Front {
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.address)
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        let answer = self.connect()?.get(path)?;
        ensure!(answer.status == 200, "GET {path}: {}", answer.text());
        Ok(serde_json::from_slice(&answer.body)?)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.connect()?.post(path, body)?;
        ensure!(answer.status == 200, "POST {path}: {}", answer.text());
        Ok(serde_json::from_slice(&answer.body).unwrap_or(Value::Null))
    }

    /// Queues a prompt that must be accepted and gives its id.
    pub fn queue(&self, prompt: &Value) -> Result<String> {
        let answer = self.post("/prompt", &serde_json::json!({ "prompt": prompt }))?;
        let id = answer["prompt_id"].as_str();
        Ok(id.context("an accepted prompt has an id")?.to_owned())
    }

    /// The history entry of a prompt, once there is one.
    pub fn wait_for(&self, id: &str) -> Result<Value> {
        let mut connection = self.connect()?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let mut history = connection.get(&format!("/history/{id}"))?.json();
            if !history[id].is_null() {
                return Ok(history[id].take());
            }
            thread::park_timeout(Duration::from_millis(2));
        }
        bail!("{id} never finished:\n{}", self.process.tail(40))
    }

    pub fn until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.get("/api/health").is_ok() {
                return Ok(());
            }
            if let Some(status) = self.process.ended() {
                bail!("the front ended: {status}\n{}", self.process.tail(40));
            }
            if Instant::now() > deadline {
                bail!("the front does not answer:\n{}", self.process.tail(40));
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// A worker, by the place where it runs.
pub struct Worker {
    pub process: Process,
    pub name: String,
    pub base: PathBuf,
    /// Its connection to the NATS server.
    pub line: Line,
}

/// All of it, in one folder.
pub struct Cluster {
    pub folder: TempDir,
    pub nats: Process,
    pub nats_port: u16,
    /// Further nodes, where the NATS server is a cluster itself.
    pub more_nats: Vec<Process>,
    /// The ports where nodes tell of themselves, the first one's first; none of a single server.
    pub monitors: Vec<u16>,
    /// The address of all nodes.
    url: String,
    pub fronts: Vec<Front>,
    pub workers: Vec<Worker>,
}

impl Cluster {
    /// Prepares the folders; starts nothing.
    pub fn new(fronts: usize, workers: usize) -> Result<Self> {
        Self::with(fronts, workers, &[])
    }

    /// As [`Cluster::new`], on three NATS servers that are a cluster.
    pub fn on_three_nodes(fronts: usize, workers: usize) -> Result<Self> {
        let mut cluster = Self::new(0, 0)?;
        let server = Path::new(nats_server().context("it was here just now")?);
        let root = cluster.folder.path().to_owned();
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let route_list: Vec<String> = routes
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        let mut nodes = Vec::new();
        for node in 0..3 {
            let name = format!("nats{node}");
            let monitor = free_port();
            let store = root.join(&name).to_string_lossy().into_owned();
            let words = format!(
                "-js -a 127.0.0.1 -p {} -m {monitor} --server_name {name} --cluster_name test --cluster {} --routes {} -sd",
                ports[node],
                route_list[node],
                route_list.join(",")
            );
            let arguments = words.split(' ').map(str::to_owned).chain([store]);
            let log = root.join(format!("{name}.log"));
            nodes.push(Process::new(&name, server, arguments.collect(), &log));
            cluster.monitors.push(monitor);
        }
        let urls: Vec<String> = ports
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        cluster.url = urls.join(",");
        cluster.nats_port = ports[0];
        cluster.nats = nodes.remove(0);
        cluster.more_nats = nodes;
        for index in 0..fronts {
            cluster.add_front(index, &[])?;
        }
        for index in 0..workers {
            cluster.add_worker(&format!("w{index}"), &[])?;
        }
        Ok(cluster)
    }

    /// A node of the NATS cluster.
    pub fn node(&mut self, index: usize) -> &mut Process {
        match index {
            0 => &mut self.nats,
            _ => &mut self.more_nats[index - 1],
        }
    }

    /// What the NATS node that leads a stream knows of it; null if none does.
    pub fn stream(&self, name: &str) -> Value {
        let ask = |node: usize| -> Option<Value> {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.monitors[node]));
            let path = "/jsz?accounts=1&streams=1&config=1";
            let answer = Connection::open(address).ok()?.get(path).ok()?;
            let whole: Value = serde_json::from_slice(&answer.body).ok()?;
            let streams = whole["account_details"][0]["stream_detail"].as_array()?;
            let found = streams.iter().find(|stream| stream["name"] == name)?;
            // Only that one knows how far the others are.
            let leads = found["cluster"]["leader"] == format!("nats{node}");
            leads.then(|| found.clone())
        };
        (0..self.monitors.len()).find_map(ask).unwrap_or_default()
    }

    /// As [`Cluster::new`], with more arguments for fronts and workers.
    pub fn with(fronts: usize, workers: usize, more: &[&str]) -> Result<Self> {
        let server =
            nats_server().context("nats-server is not here; apt-get install nats-server")?;
        let folder = tempfile::tempdir()?;
        let root = folder.path();
        let nats_port = free_port();
        let store = root.join("nats").to_string_lossy().into_owned();
        let port = nats_port.to_string();
        let arguments = ["-js", "-sd", &store, "-a", "127.0.0.1", "-p", &port];
        let nats = Process::new(
            "nats",
            Path::new(server),
            arguments.map(str::to_owned).to_vec(),
            &root.join("nats.log"),
        );
        let mut cluster = Self {
            nats,
            nats_port,
            more_nats: Vec::new(),
            monitors: Vec::new(),
            url: format!("nats://127.0.0.1:{nats_port}"),
            fronts: Vec::new(),
            workers: Vec::new(),
            folder,
        };
        for index in 0..fronts {
            cluster.add_front(index, more)?;
        }
        for index in 0..workers {
            cluster.add_worker(&format!("w{index}"), more)?;
        }
        Ok(cluster)
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }

    fn place(&self, name: &str) -> Result<PathBuf> {
        let base = self.folder.path().join(name);
        fs::create_dir_all(&base)?;
        Ok(base)
    }

    fn add_front(&mut self, index: usize, more: &[&str]) -> Result<()> {
        let name = format!("front{index}");
        let base = self.place(&name)?;
        let port = free_port();
        let mut arguments = vec!["serve".to_owned(), "--nats".to_owned(), self.url()];
        arguments.extend(["--base-directory".to_owned(), base.to_string_lossy().into()]);
        arguments.extend(["--port".to_owned(), port.to_string()]);
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        let log = self.folder.path().join(format!("{name}.log"));
        self.fronts.push(Front {
            process: Process::new(&name, &program(), arguments, &log),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            base,
        });
        Ok(())
    }

    pub fn add_worker(&mut self, name: &str, more: &[&str]) -> Result<()> {
        let base = self.place(name)?;
        let line = Line::to(self.nats_port)?;
        // A line to one node would hide the others.
        let url = if self.monitors.is_empty() {
            format!("nats://127.0.0.1:{}", line.port)
        } else {
            self.url()
        };
        let mut arguments = vec!["worker".to_owned(), "--nats".to_owned(), url];
        arguments.extend(["--name".to_owned(), name.to_owned()]);
        arguments.extend(["--base-directory".to_owned(), base.to_string_lossy().into()]);
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        let log = self.folder.path().join(format!("{name}.log"));
        self.workers.push(Worker {
            process: Process::new(name, &program(), arguments, &log),
            name: name.to_owned(),
            base,
            line,
        });
        Ok(())
    }

    /// Starts everything that does not run, and waits until fronts answer and the NATS server listens.
    pub fn start(&mut self) -> Result<()> {
        for node in std::iter::once(&mut self.nats).chain(&mut self.more_nats) {
            if !node.is_started() {
                node.start()?;
            }
        }
        self.until_nats_listens()?;
        for front in &mut self.fronts {
            if !front.process.is_started() {
                front.process.start()?;
            }
        }
        for worker in &mut self.workers {
            if !worker.process.is_started() {
                worker.process.start()?;
            }
        }
        for front in &mut self.fronts {
            front.until_ready()?;
        }
        Ok(())
    }

    pub fn until_nats_listens(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.nats_port)).is_err() {
            if Instant::now() > deadline {
                bail!("the NATS server does not listen:\n{}", self.nats.tail(40));
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What all of them said last.
    pub fn tails(&self, lines: usize) -> String {
        let fronts = self.fronts.iter().map(|front| &front.process);
        let workers = self.workers.iter().map(|worker| &worker.process);
        let nodes = std::iter::once(&self.nats).chain(&self.more_nats);
        let all = nodes.chain(fronts).chain(workers);
        all.map(|process| process.tail(lines)).collect()
    }

    /// Waits until something is so; what it waited for is told if it never is.
    pub fn until(&self, what: &str, mut so: impl FnMut(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if so(self) {
                return Ok(());
            }
            thread::park_timeout(Duration::from_millis(20));
        }
        bail!("waited in vain for {what}:\n{}", self.tails(40))
    }
}
