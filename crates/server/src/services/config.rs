//! Everything the server needs to be told; the binary resolves flags, environment and files into this.

use std::path::{Path, PathBuf};

/// Plain settings of the server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Shown on the status page and in `/api/health`.
    pub version: String,
    /// `system_stats.system.argv`.
    pub argv: Vec<String>,
    /// Largest request body in bytes.
    pub max_upload: u64,
    /// Bytes of all request bodies that are on disk while they come in.
    pub max_upload_total: u64,
    /// The limit was given on the command line: `/features` then shows a float, as the reference does.
    pub max_upload_given: bool,
    /// `Access-Control-Allow-Origin`; `*` for all.
    pub cors: Option<String>,
    /// Compress JSON and text.
    pub compress: bool,
    /// Tell browsers to load nothing from other hosts.
    pub block_external: bool,
    /// Secret every request must carry.
    pub token: Option<String>,
    /// Host names beyond localhost and IP addresses under which this server is reached; `*` for all.
    pub hosts: Vec<String>,
    /// Served over TLS; cookies are then marked secure.
    pub tls: bool,
    pub multi_user: bool,
    pub front_end: FrontEnd,
    /// Workflow templates.
    pub templates: Templates,
    /// Embedded node documentation.
    pub docs: Option<PathBuf>,
    /// Web directories of packs: mount name and directory.
    pub extensions: Vec<(String, PathBuf)>,
    /// Names of loaded packs, whose example workflows are served.
    pub loaded_packs: Vec<String>,
    pub versions: Versions,
    pub limits: Limits,
}

/// What `/` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FrontEnd {
    /// Our own page, which is part of the program.
    #[default]
    Page,
    /// A folder with somebody's `index.html`.
    Folder(PathBuf),
    /// A few numbers, without a script.
    Status,
}

impl FrontEnd {
    /// The folder, if it is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(root) => Some(root),
            Self::Page | Self::Status => None,
        }
    }
}

/// Version texts for `/system_stats`; the front-end compares and shows them.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    pub required_frontend: Option<String>,
    pub installed_templates: Option<String>,
    pub required_templates: Option<String>,
    pub python: Option<String>,
    pub torch: Option<String>,
}

/// Where `/templates/NAME` comes from.
#[derive(Clone, Debug, Default)]
pub enum Templates {
    #[default]
    None,
    /// One directory, as packages before 0.3.0 have it.
    Directory(PathBuf),
    /// File name to file.
    Files(indexmap::IndexMap<String, PathBuf>),
}

/// Upper bounds on what one client can ask for. Each has its own error.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a JSON body: parsed JSON takes several times its size.
    pub json_bytes: u64,
    /// Bytes of one message from a socket.
    pub socket_message: usize,
    /// Result messages waiting for one socket before it is closed.
    pub socket_frames: usize,
    /// Bytes waiting for one socket before it is closed.
    pub socket_bytes: usize,
    /// Open WebSockets.
    pub sockets: usize,
    /// Open connections.
    pub connections: usize,
    /// Pixels of an image decoded for a preview or a mask.
    pub pixels: u64,
    /// Main memory for decoded pictures and other large things of all requests together.
    pub picture_memory: u64,
    /// Header lines of a request.
    pub headers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json_bytes: 64 << 20,
            socket_message: 4 << 20,
            socket_frames: 20_000,
            socket_bytes: 64 << 20,
            sockets: 10_000,
            connections: 20_000,
            pixels: 200_000_000,
            picture_memory: 2 << 30,
            headers: 100,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            argv: Vec::new(),
            max_upload: 100 << 20,
            max_upload_total: 1 << 30,
            max_upload_given: false,
            cors: None,
            compress: false,
            block_external: false,
            token: None,
            hosts: Vec::new(),
            tls: false,
            multi_user: false,
            front_end: FrontEnd::default(),
            templates: Templates::None,
            docs: None,
            extensions: Vec::new(),
            loaded_packs: Vec::new(),
            versions: Versions::default(),
            limits: Limits::default(),
        }
    }
}
