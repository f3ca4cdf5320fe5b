//! A network share for tests: a folder of this machine behind a file system of our own (FUSE), which stalls, fails or changes as it is
//! told. What programs do then is real: their threads hang in the kernel, pages are cached, and sizes and times are asked for anew.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// What becomes of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// They get no answer.
    Stall,
    /// The server's disk cannot read.
    Fail,
    /// They get fewer bytes than there are.
    Short,
}

/// The reads that have trouble: those of a file that reach behind a place.
#[derive(Clone, Debug)]
struct Troubled {
    name: String,
    from: u64,
    what: Trouble,
}

#[derive(Default)]
struct ShareState {
    trouble: Option<Troubled>,
    /// Nothing is answered, also not what files there are.
    silent: bool,
    waiting: Vec<Request>,
    /// Files and folders by number, from one on; the first is the folder itself.
    nodes: Vec<PathBuf>,
    open: BTreeMap<u64, File>,
    handles: u64,
}

struct Server {
    device: File,
    state: Mutex<ShareState>,
}

/// A mounted share. It is taken away when this is dropped.
pub struct Share {
    server: Arc<Server>,
    place: TempDir,
}

/// One question of the kernel.
struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

/// Numbers of errors, as Linux has them.
const NOT_FOUND: i32 = 2;
const INTERRUPTED: i32 = 4;
const INPUT_OUTPUT: i32 = 5;
const UNKNOWN: i32 = 38;

/// Most that the kernel asks for in one read.
const MOST_READ: u32 = 1 << 20;

type Answer = Result<Vec<u8>, i32>;

impl Share {
    /// Shows a folder at a place of its own. None where this machine does not let tests mount anything: /dev/fuse is needed, and root's
    /// rights (or a sudo that asks for no password).
    pub fn mount(folder: &Path) -> Option<Self> {
        let place = tempfile::tempdir().ok()?;
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .ok()?;
        let about = fs::metadata("/proc/self").ok()?;
        let options = format!(
            "fd=0,rootmode=40755,user_id={},group_id={},allow_other,ro",
            about.uid(),
            about.gid()
        );
        let mount = |command: &[&str]| {
            let mut call = Command::new(command[0]);
            call.args(&command[1..])
                .args(["-i", "-t", "fuse", "-o", &options, "fresco-test-share"])
                .arg(place.path())
                .stdin(device.try_clone().ok()?)
                .stderr(Stdio::null());
            call.status().ok().filter(std::process::ExitStatus::success)
        };
        mount(&["mount"]).or_else(|| mount(&["sudo", "-n", "mount"]))?;
        let server = Arc::new(Server {
            device,
            state: Mutex::new(ShareState {
                nodes: vec![folder.to_path_buf()],
                ..ShareState::default()
            }),
        });
        let serving = Arc::clone(&server);
        thread::spawn(move || serving.serve());
        Some(Self { server, place })
    }

    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// From now on reads of files with this in their name have trouble where they reach behind a place.
    pub fn trouble(&self, name: &str, from: u64, what: Trouble) {
        self.server.lock().trouble = Some(Troubled {
            name: name.to_owned(),
            from,
            what,
        });
    }

    /// From now on nothing is answered at all.
    pub fn fall_silent(&self) {
        self.server.lock().silent = true;
    }

    /// All is well again; what waits is answered.
    pub fn mend(&self) {
        let waiting = {
            let mut state = self.server.lock();
            state.trouble = None;
            state.silent = false;
            std::mem::take(&mut state.waiting)
        };
        for request in waiting {
            self.server.handle(request);
        }
    }

    /// Questions that get no answer now.
    pub fn waiting(&self) -> usize {
        self.server.lock().waiting.len()
    }

    /// Waits until a reader waits for the share.
    #[track_caller]
    pub fn wait_for_reader(&self) {
        let deadline = Instant::now() + Duration::from_mins(2);
        while self.waiting() == 0 {
            assert!(Instant::now() < deadline, "nobody reads from the share");
            thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.mend();
        let unmount = |command: &[&str]| {
            let mut call = Command::new(command[0]);
            call.args(&command[1..]).arg("-l").arg(self.place.path());
            call.stderr(Stdio::null());
            call.status().is_ok_and(|status| status.success())
        };
        if !unmount(&["umount"]) && !unmount(&["sudo", "-n", "umount"]) {
            eprintln!("{} stays mounted", self.place.path().display());
        }
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until the share is taken away.
    fn serve(&self) {
        let mut bytes = vec![0; (MOST_READ as usize) + 8192];
        while let Ok(len) = (&self.device).read(&mut bytes) {
            if len < 40 {
                return;
            }
            let request = Request {
                opcode: u32_at(&bytes, 4),
                unique: u64_at(&bytes, 8),
                node: u64_at(&bytes, 16),
                body: bytes[40..len].to_vec(),
            };
            match request.opcode {
                FORGET | BATCH_FORGET => {}
                DESTROY => return,
                INTERRUPT => self.give_up(u64_at(&request.body, 0)),
                _ => self.handle(request),
            }
        }
    }

    /// The one who waited for an answer was ended.
    fn give_up(&self, unique: u64) {
        let waited = {
            let mut state = self.lock();
            let at = state.waiting.iter().position(|r| r.unique == unique);
            at.map(|at| state.waiting.remove(at))
        };
        if waited.is_some() {
            self.reply(unique, &Err(INTERRUPTED));
        }
    }

    fn handle(&self, request: Request) {
        let answer = {
            let mut state = self.lock();
            if state.stalls(&request) {
                state.waiting.push(request);
                return;
            }
            state.answer(&request)
        };
        self.reply(request.unique, &answer);
    }

    fn reply(&self, unique: u64, answer: &Answer) {
        let (body, error) = match answer {
            Ok(body) => (body.as_slice(), 0),
            Err(number) => (&[][..], -number),
        };
        let mut bytes = Vec::with_capacity(16 + body.len());
        bytes.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&error.to_le_bytes());
        bytes.extend_from_slice(&unique.to_le_bytes());
        bytes.extend_from_slice(body);
        // The kernel does not want it any more where the share was taken away.
        let _ = (&self.device).write_all(&bytes);
    }
}

impl ShareState {
    /// What becomes of a read that has trouble.
    fn trouble_of(&self, request: &Request) -> Option<(Trouble, u64)> {
        let trouble = self.trouble.as_ref().filter(|_| request.opcode == READ)?;
        let end = u64_at(&request.body, 8) + u64::from(u32_at(&request.body, 16));
        let name = self.path(request.node)?.to_string_lossy();
        let meant = name.contains(&trouble.name) && end > trouble.from;
        meant.then_some((trouble.what, trouble.from))
    }

    fn stalls(&self, request: &Request) -> bool {
        let silent = self.silent && !matches!(request.opcode, INIT | RELEASE | RELEASEDIR | FLUSH);
        silent || matches!(self.trouble_of(request), Some((Trouble::Stall, _)))
    }

    fn path(&self, node: u64) -> Option<&PathBuf> {
        self.nodes.get(usize::try_from(node.checked_sub(1)?).ok()?)
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let body = &request.body;
        match request.opcode {
            INIT => Ok(capabilities()),
            STATFS => Ok(vec![0; 80]),
            FLUSH => Ok(Vec::new()),
            RELEASE | RELEASEDIR => {
                self.open.remove(&u64_at(body, 0));
                Ok(Vec::new())
            }
            LOOKUP => self.look_up(request.node, body),
            GETATTR => {
                let path = self.path(request.node).ok_or(NOT_FOUND)?;
                // Asked for every time.
                let mut answer = vec![0; 16];
                answer.extend(attributes(path, request.node)?);
                Ok(answer)
            }
            OPEN | OPENDIR => {
                let path = self.path(request.node).ok_or(NOT_FOUND)?;
                let file = File::open(path).map_err(number_of)?;
                self.handles += 1;
                self.open.insert(self.handles, file);
                let keep_cache = 2_u32;
                let mut answer = self.handles.to_le_bytes().to_vec();
                answer.extend(keep_cache.to_le_bytes());
                answer.extend([0; 4]);
                Ok(answer)
            }
            READ => self.read(request),
            READDIR => self.list(request.node, u64_at(body, 8), u32_at(body, 16) as usize),
            _ => Err(UNKNOWN),
        }
    }

    fn look_up(&mut self, node: u64, name: &[u8]) -> Answer {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let folder = self.path(node).ok_or(NOT_FOUND)?;
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        fs::symlink_metadata(&path).map_err(number_of)?;
        let known = self.nodes.iter().position(|other| *other == path);
        let at = known.unwrap_or_else(|| {
            self.nodes.push(path.clone());
            self.nodes.len() - 1
        });
        let node = at as u64 + 1;
        let mut answer = node.to_le_bytes().to_vec();
        answer.extend([0; 32]);
        answer.extend(attributes(&path, node)?);
        Ok(answer)
    }

    fn read(&self, request: &Request) -> Answer {
        let body = &request.body;
        let (at, mut len) = (u64_at(body, 8), u32_at(body, 16) as usize);
        match self.trouble_of(request) {
            Some((Trouble::Fail, _)) => return Err(INPUT_OUTPUT),
            Some((Trouble::Short, from)) => len = from.saturating_sub(at) as usize,
            _ => {}
        }
        let file = self.open.get(&u64_at(body, 0)).ok_or(NOT_FOUND)?;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match file.read_at(&mut bytes[done..], at + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(error) => return Err(number_of(error)),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// The entries of a folder from one on, as many as there is room for.
    fn list(&self, node: u64, from: u64, room: usize) -> Answer {
        let folder = self.path(node).ok_or(NOT_FOUND)?;
        let mut entries: Vec<_> = fs::read_dir(folder)
            .and_then(Iterator::collect::<std::io::Result<_>>)
            .map_err(number_of)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let mut answer = Vec::new();
        for (number, entry) in entries.iter().enumerate().skip(from as usize) {
            let name = entry.file_name();
            let name = name.as_bytes();
            let size = (24 + name.len()).next_multiple_of(8);
            if answer.len() + size > room {
                break;
            }
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let kind: u32 = if is_folder { 4 } else { 8 };
            let begin = answer.len();
            answer.extend((number as u64 + 2).to_le_bytes());
            answer.extend((number as u64 + 1).to_le_bytes());
            answer.extend((name.len() as u32).to_le_bytes());
            answer.extend(kind.to_le_bytes());
            answer.extend(name);
            answer.resize(begin + size, 0);
        }
        Ok(answer)
    }
}

/// What this file system can: version 7.31 of the protocol, reads of a megabyte, any number of them at a time.
fn capabilities() -> Vec<u8> {
    let (async_read, auto_inval_data, max_pages) = (1_u32, 1 << 12, 1 << 22);
    let mut out = Vec::new();
    for number in [7, 31, MOST_READ, async_read | auto_inval_data | max_pages] {
        out.extend(number.to_le_bytes());
    }
    for number in [1024_u16, 1024] {
        out.extend(number.to_le_bytes());
    }
    for number in [4096_u32, 1] {
        out.extend(number.to_le_bytes());
    }
    out.extend(((MOST_READ / 4096) as u16).to_le_bytes());
    out.resize(64, 0);
    out
}

/// Size, times and kind of a file, as the kernel wants them.
fn attributes(path: &Path, node: u64) -> Result<Vec<u8>, i32> {
    let about = fs::metadata(path).map_err(number_of)?;
    let mut out = Vec::new();
    for number in [
        node,
        about.size(),
        about.blocks(),
        about.atime() as u64,
        about.mtime() as u64,
        about.ctime() as u64,
    ] {
        out.extend(number.to_le_bytes());
    }
    for number in [
        about.atime_nsec() as u32,
        about.mtime_nsec() as u32,
        about.ctime_nsec() as u32,
        about.mode(),
        about.nlink() as u32,
        about.uid(),
        about.gid(),
        0,
        4096,
        0,
    ] {
        out.extend(number.to_le_bytes());
    }
    Ok(out)
}

fn number_of(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(INPUT_OUTPUT)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    u32::from_le_bytes(part.unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    u64::from_le_bytes(part.unwrap_or_default())
}
