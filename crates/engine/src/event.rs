//! What the engine tells the world. The server turns these into frames; the command line into a progress bar.

use std::sync::Arc;

use fresco_graph::{Map, Preview, Value};
use serde::{Deserialize, Serialize};

use crate::messages::now_ms;

/// One thing that happened.
#[derive(Clone)]
pub struct Event {
    /// The prompt it belongs to, if any.
    pub prompt_id: Option<Arc<str>>,
    /// The socket id that submitted that prompt.
    pub client: Option<Arc<str>>,
    /// Who runs it; none where no worker has a part in it.
    pub worker: Option<Arc<str>>,
    pub kind: EventKind,
}

/// Serialised as workers tell fronts of it; what is the front's own affair, and pictures, which travel apart, are left out.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The queue changed; pending plus running.
    #[serde(skip)]
    Status {
        remaining: usize,
    },
    /// Waiting prompts were ordered, held or released, or the queue was paused.
    #[serde(skip)]
    Queue {
        paused: bool,
    },
    Start {
        timestamp: i64,
    },
    Cached {
        nodes: Vec<Arc<str>>,
        timestamp: i64,
    },
    /// A node starts.
    Executing {
        node: Arc<str>,
        display: Arc<str>,
    },
    /// The prompt has left the queue, whatever its end.
    #[serde(skip)]
    Ended,
    /// How far one node is. Whoever shows the whole prompt adds these up, with [`ProgressRegistry`](crate::ProgressRegistry).
    NodeProgress(NodeProgress),
    /// A progress bar moved. A picture goes out before this as frame 4 to clients that know it, after it as frame 1 to
    /// the others.
    Progress {
        ids: NodeIds,
        value: f64,
        max: f64,
        #[serde(skip)]
        preview: Option<Preview>,
    },
    /// A picture from the newer progress call: frame 4 only, clients that do not know it get nothing.
    #[serde(skip)]
    Preview {
        ids: NodeIds,
        preview: Preview,
    },
    /// UI output; null when a cached node had none.
    Executed {
        node: Arc<str>,
        display: Arc<str>,
        output: Value,
    },
    Success {
        timestamp: i64,
    },
    Error(Arc<Failure>),
    /// A blocker with a message stopped one call; the prompt goes on.
    Blocked {
        node: Arc<str>,
        class: Arc<str>,
        executed: Vec<Arc<str>>,
        message: Arc<str>,
    },
    Interrupted {
        node: Arc<str>,
        class: Arc<str>,
        executed: Vec<Arc<str>>,
        timestamp: i64,
    },
    /// The prompt runs, but not as it was meant to: there is too little memory.
    Downgraded {
        message: Arc<str>,
    },
    /// Text shown on a node.
    Text {
        node: Arc<str>,
        text: Arc<str>,
    },
    /// A node's own message in bytes, of a kind that is a number, to one socket or to all.
    Bytes {
        event: u32,
        #[serde(with = "base64_bytes")]
        bytes: Arc<[u8]>,
        client: Option<Arc<str>>,
    },
    /// A node's own message, to one socket or to all.
    Custom {
        event: Arc<str>,
        data: Value,
        client: Option<Arc<str>>,
    },
}

impl EventKind {
    /// Whether a worker elsewhere tells its front of it as a message.
    pub fn is_told_elsewhere(&self) -> bool {
        !matches!(
            self,
            Self::Status { .. } | Self::Queue { .. } | Self::Ended | Self::Preview { .. }
        )
    }

    /// When it happened, where it says so.
    pub fn timestamp_mut(&mut self) -> Option<&mut i64> {
        match self {
            Self::Start { timestamp }
            | Self::Cached { timestamp, .. }
            | Self::Success { timestamp }
            | Self::Interrupted { timestamp, .. } => Some(timestamp),
            Self::Error(failure) => Some(&mut Arc::make_mut(failure).timestamp),
            _ => None,
        }
    }
}

/// Bytes as text, for JSON.
pub mod base64_bytes {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &Arc<[u8]>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[u8]>, D::Error> {
        let text = Arc::<str>::deserialize(from)?;
        let bytes = BASE64_STANDARD.decode(text.as_bytes());
        bytes.map(Into::into).map_err(D::Error::custom)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Running,
    Finished,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeProgress {
    pub ids: NodeIds,
    pub state: NodeState,
    pub value: f64,
    pub max: f64,
}

/// A node's several names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeIds {
    pub node: Arc<str>,
    pub display: Arc<str>,
    pub parent: Option<Arc<str>>,
    pub real: Arc<str>,
}

/// `execution_error`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Top-level node.
    pub node: Arc<str>,
    pub class: Arc<str>,
    pub executed: Vec<Arc<str>>,
    pub message: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub trace: Vec<String>,
    /// Input name to values in text form; an empty list for graph cycles.
    pub inputs: Value,
    pub outputs: Vec<Arc<str>>,
    pub timestamp: i64,
}

impl Failure {
    /// A failure that belongs to the whole job and to none of its nodes.
    pub fn of_job(kind: &str, message: String) -> Self {
        Self {
            node: "".into(),
            class: "".into(),
            executed: Vec::new(),
            message,
            kind: kind.to_owned(),
            trace: Vec::new(),
            inputs: Map::new().into(),
            outputs: Vec::new(),
            timestamp: now_ms(),
        }
    }
}

/// Receives events on the engine's threads; must neither block nor panic.
pub trait EventSink: Send + Sync {
    fn emit(&self, event: Event);
}

/// Nobody listens.
pub struct NoSink;

impl EventSink for NoSink {
    fn emit(&self, _: Event) {}
}
