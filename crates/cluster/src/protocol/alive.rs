//! Signs of life.

use std::sync::Arc;

use fresco_engine::placement::WorkerView;
use fresco_graph::typed;
use serde::{Deserialize, Serialize};

use super::{OtherVersion, PROGRAM, PROTOCOL, ProtocolError, check_version, parse, text};

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    #[default]
    Idle,
    Busy,
    /// It is about to end and takes no more jobs.
    Draining,
}

/// Names one run of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskName {
    /// The front that has the job.
    pub front: Arc<str>,
    /// The number of the run in its database.
    pub task: u64,
}

/// A worker's sign of life. Its first three fields are the same in every version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alive {
    pub protocol: i64,
    /// Of the program.
    pub version: Arc<str>,
    /// New with each start of the process.
    pub session: Arc<str>,
    /// The worker's clock, milliseconds since the epoch.
    pub time: i64,
    pub state: WorkerState,
    /// What it runs, or whose outcome it still has to deliver.
    pub job: Option<TaskName>,
    /// Number of the last event of that job.
    pub events: u64,
    /// While it is idle: only this front may have it, for a moment.
    pub offered: Option<Arc<str>>,
    /// Grows when its nodes or model files change.
    pub catalogue: u64,
    pub view: WorkerView,
    /// Results of nodes that it keeps.
    pub results: Option<u64>,
    /// Jobs that are done and whose outcomes the server has not taken yet: they are said again until it does.
    pub delivering: Vec<TaskName>,
    /// Why it takes no job now, though it runs none.
    pub trouble: Option<Arc<str>>,
}

#[derive(Deserialize)]
struct Session {
    session: Arc<str>,
}

/// A sign of life of a worker that speaks another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    pub session: Arc<str>,
    pub version: OtherVersion,
}

impl Alive {
    pub fn encode(&self) -> Vec<u8> {
        text(self)
    }

    /// The inner error: it speaks another version, and nothing else need be as we know it.
    pub fn decode(bytes: &[u8]) -> Result<Result<Self, Stranger>, ProtocolError> {
        let message = parse(bytes)?;
        match check_version(&message) {
            Ok(()) => typed::from_value(&message)
                .map(Ok)
                .map_err(ProtocolError::garbage),
            Err(ProtocolError::Version(version)) => {
                let Session { session } =
                    typed::from_value(&message).map_err(ProtocolError::garbage)?;
                Ok(Err(Stranger { session, version }))
            }
            Err(error) => Err(error),
        }
    }
}

/// A client of a front.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientName {
    pub sid: Arc<str>,
    /// It knows previews that say which node they are of.
    pub described_previews: bool,
}

/// A front's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontAlive {
    protocol: i64,
    version: Arc<str>,
    /// Its clients; none where it has heard of no other front yet.
    pub connected: Option<Vec<ClientName>>,
}

impl FrontAlive {
    pub fn new(connected: Option<Vec<ClientName>>) -> Self {
        Self {
            protocol: PROTOCOL,
            version: PROGRAM.into(),
            connected,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        text(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let message = parse(bytes)?;
        check_version(&message)?;
        typed::from_value(&message).map_err(ProtocolError::garbage)
    }
}
