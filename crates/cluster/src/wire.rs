//! The messages between fronts and workers: JSON, checked when it is read.
//!
//! What comes from the other side is never trusted to be whole: every field has a type and a limit, and a message that is not understood is
//! an error that says which field. New fields may be added; a change of meaning needs another [`PROTOCOL`].

use std::sync::Arc;

use fresco_engine::placement::{Resident, WorkerView};
use fresco_engine::{FreeRequest, JobEnd, JobOutcome, RunJob};
use fresco_graph::{Map, Value, json, map};

use crate::content::ModelEntry;

/// Front and worker must have the same.
pub const PROTOCOL: i64 = 1;
/// Bytes of a message that is read at all; larger ones come by content and are held against this too.
pub const LARGEST: u64 = 256 << 20;
/// Entries of a list from the other side.
const MOST: usize = 100_000;

/// A message that cannot be what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WireError(pub String);

fn wrong<T>(field: &str, wanted: &str) -> Result<T, WireError> {
    Err(WireError(format!("{field} is not {wanted}")))
}

/// A message as a map.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, WireError> {
    let value = json::parse_bytes(bytes).map_err(|e| WireError(format!("not JSON: {e}")))?;
    match value {
        Value::Map(_) => Ok(value),
        _ => wrong("the message", "an object"),
    }
}

pub(crate) fn bytes(message: Map) -> Vec<u8> {
    json::to_string(&message.into()).into_bytes()
}

/// Reads fields of a map.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl<'a> Fields<'a> {
    fn some(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(self, name: &str) -> Result<Arc<str>, WireError> {
        match self.some(name) {
            Some(Value::Str(text)) => Ok(text.clone()),
            _ => wrong(name, "a text"),
        }
    }

    pub(crate) fn text_or_none(self, name: &str) -> Result<Option<Arc<str>>, WireError> {
        match self.some(name) {
            None => Ok(None),
            Some(_) => self.text(name).map(Some),
        }
    }

    pub(crate) fn whole(self, name: &str) -> Result<u64, WireError> {
        let found = self.some(name).and_then(Value::as_int);
        match found.and_then(|n| u64::try_from(n).ok()) {
            Some(number) => Ok(number),
            None => wrong(name, "a whole number"),
        }
    }

    pub(crate) fn time(self, name: &str) -> Result<i64, WireError> {
        let found = self.some(name).and_then(Value::as_int);
        match found.and_then(|n| i64::try_from(n).ok()) {
            Some(number) => Ok(number),
            None => wrong(name, "a time"),
        }
    }

    /// Not-a-number travels as null.
    pub(crate) fn number(self, name: &str) -> f64 {
        let found = self.some(name).and_then(Value::as_f64);
        found.unwrap_or(f64::NAN)
    }

    pub(crate) fn truth(self, name: &str) -> Result<bool, WireError> {
        match self.some(name) {
            None => Ok(false),
            Some(Value::Bool(is)) => Ok(*is),
            Some(_) => wrong(name, "true or false"),
        }
    }

    pub(crate) fn map(self, name: &str) -> Result<Map, WireError> {
        match self.some(name) {
            None => Ok(Map::new()),
            Some(Value::Map(map)) => Ok((**map).clone()),
            Some(_) => wrong(name, "an object"),
        }
    }

    pub(crate) fn list(self, name: &str) -> Result<&'a [Value], WireError> {
        match self.some(name) {
            None => Ok(&[]),
            Some(Value::List(list)) if list.len() <= MOST => Ok(list),
            Some(Value::List(_)) => wrong(name, "a list of bearable length"),
            Some(_) => wrong(name, "a list"),
        }
    }

    pub(crate) fn texts(self, name: &str) -> Result<Vec<Arc<str>>, WireError> {
        let text = |value: &Value| match value {
            Value::Str(text) => Ok(text.clone()),
            _ => wrong(name, "a list of texts"),
        };
        self.list(name)?.iter().map(text).collect()
    }

    pub(crate) fn value(self, name: &str) -> Value {
        self.0.get(name).cloned().unwrap_or_default()
    }
}

pub(crate) fn texts(list: &[Arc<str>]) -> Value {
    list.iter().map(Value::from).collect::<Vec<_>>().into()
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerState {
    #[default]
    Idle,
    Busy,
    /// It is about to end and takes no more jobs.
    Draining,
}

impl WorkerState {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Draining => "draining",
        }
    }
}

/// Names one run of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskName {
    /// The front that has the job.
    pub front: Arc<str>,
    /// The number of the run in its database.
    pub task: u64,
}

/// A worker's sign of life.
#[derive(Clone, Debug, PartialEq)]
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

fn task_to_value(task: &TaskName) -> Value {
    map! {"front" => &task.front, "task" => task.task}.into()
}

fn task_from_value(value: &Value) -> Result<TaskName, WireError> {
    Ok(TaskName {
        front: Fields(value).text("front")?,
        task: Fields(value).whole("task")?,
    })
}

impl Alive {
    pub fn encode(&self) -> Vec<u8> {
        let resident: Vec<Value> = self
            .view
            .resident()
            .iter()
            .map(|one| map! {"key" => &one.key, "bytes" => one.bytes, "kept" => one.kept}.into())
            .collect();
        let mut message = map! {
            "protocol" => self.protocol,
            "version" => &self.version,
            "session" => &self.session,
            "time" => self.time,
            "state" => self.state.name(),
            "events" => self.events,
            "catalogue" => self.catalogue,
            "view" => map! {
                "resident" => resident,
                "devices" => texts(self.view.devices()),
                "room" => self.view.room(),
            },
        };
        if let Some(job) = &self.job {
            message.insert("job".into(), task_to_value(job));
        }
        if !self.delivering.is_empty() {
            let tasks: Vec<Value> = self.delivering.iter().map(task_to_value).collect();
            message.insert("delivering".into(), tasks.into());
        }
        if let Some(trouble) = &self.trouble {
            message.insert("trouble".into(), trouble.into());
        }
        if let Some(front) = &self.offered {
            message.insert("offered".into(), front.into());
        }
        if let Some(results) = self.results {
            message.insert("results".into(), results.into());
        }
        bytes(message)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let value = parse(bytes)?;
        let fields = Fields(&value);
        let protocol = fields.time("protocol")?;
        let (version, session) = (fields.text("version")?, fields.text("session")?);
        if protocol != PROTOCOL {
            // Nothing else need be as we know it.
            return Ok(Self {
                protocol,
                version,
                session,
                time: 0,
                state: WorkerState::Draining,
                job: None,
                events: 0,
                offered: None,
                catalogue: 0,
                view: WorkerView::default(),
                results: None,
                delivering: Vec::new(),
                trouble: None,
            });
        }
        let state = match &*fields.text("state")? {
            "idle" => WorkerState::Idle,
            "busy" => WorkerState::Busy,
            "draining" => WorkerState::Draining,
            _ => return wrong("state", "idle, busy or draining"),
        };
        let job = match value.get("job") {
            None | Some(Value::Null) => None,
            Some(job) => Some(task_from_value(job)?),
        };
        let delivering = fields.list("delivering")?.iter();
        let delivering = delivering.map(task_from_value).collect::<Result<_, _>>()?;
        let view = fields.value("view");
        let view_fields = Fields(&view);
        let mut resident = Vec::new();
        for one in view_fields.list("resident")? {
            resident.push(Resident {
                key: Fields(one).text("key")?,
                bytes: Fields(one).whole("bytes")?,
                kept: Fields(one).truth("kept")?,
            });
        }
        Ok(Self {
            protocol,
            version,
            session,
            time: fields.time("time")?,
            state,
            job,
            events: fields.whole("events")?,
            offered: fields.text_or_none("offered")?,
            catalogue: fields.whole("catalogue")?,
            view: WorkerView::new(
                resident,
                view_fields.texts("devices")?,
                view_fields.whole("room")?,
            ),
            results: fields.whole("results").ok(),
            delivering,
            trouble: fields.text_or_none("trouble")?,
        })
    }
}

/// A job on its way to a worker.
#[derive(Clone, Debug)]
pub struct JobMessage {
    pub name: TaskName,
    /// Whom it is meant for: a worker that began anew since does not take it.
    pub session: Arc<str>,
    pub job: RunJob,
    /// Files that the worker has to fetch first, in the words of whoever packed them.
    pub inputs: Value,
    /// Model files that the job names and the front has itself: a worker that has another one of such a name does not run it.
    pub models: Vec<ModelEntry>,
}

impl JobMessage {
    pub fn encode(&self) -> Vec<u8> {
        let mut message = map! {
            "front" => &self.name.front,
            "task" => self.name.task,
            "session" => &self.session,
            "prompt_id" => &self.job.prompt_id,
            "prompt" => Value::Map(self.job.prompt.clone()),
            "extra_data" => self.job.extra_data.clone(),
            "outputs" => texts(&self.job.outputs),
            "sensitive" => self.job.sensitive.clone(),
            "inputs" => self.inputs.clone(),
            "models" => self.models.iter().map(ModelEntry::to_value).collect::<Vec<_>>(),
        };
        if let Some(client) = &self.job.client {
            message.insert("client".into(), client.into());
        }
        bytes(message)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let value = parse(bytes)?;
        let fields = Fields(&value);
        let front = fields.text("front")?;
        if !crate::connection::is_word(&front) {
            return wrong("front", "a name");
        }
        Ok(Self {
            name: TaskName {
                front,
                task: fields.whole("task")?,
            },
            session: fields.text("session")?,
            job: RunJob {
                prompt_id: fields.text("prompt_id")?,
                prompt: Arc::new(fields.map("prompt")?),
                extra_data: fields.map("extra_data")?,
                outputs: fields.texts("outputs")?,
                sensitive: fields.map("sensitive")?,
                client: fields.text_or_none("client")?,
            },
            inputs: fields.value("inputs"),
            models: ModelEntry::list(&fields.value("models")),
        })
    }
}

/// What a worker says to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunAnswer {
    Accepted,
    /// It runs something else, or is kept for another front, or is about to end.
    Busy(String),
    /// It cannot run this job: nodes or models are missing, or it is not understood.
    Refused(String),
}

impl RunAnswer {
    pub fn encode(&self) -> Vec<u8> {
        let (answer, why) = match self {
            Self::Accepted => ("accepted", ""),
            Self::Busy(why) => ("busy", why.as_str()),
            Self::Refused(why) => ("refused", why.as_str()),
        };
        bytes(map! {"answer" => answer, "why" => why})
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let value = parse(bytes)?;
        let why = Fields(&value).text("why")?.to_string();
        match &*Fields(&value).text("answer")? {
            "accepted" => Ok(Self::Accepted),
            "busy" => Ok(Self::Busy(why)),
            "refused" => Ok(Self::Refused(why)),
            _ => wrong("answer", "accepted, busy or refused"),
        }
    }
}

/// How a run ended, as the last of its events.
#[derive(Clone, Debug)]
pub struct OutcomeMessage {
    pub outcome: JobOutcome,
    /// Files that were made, in the words of whoever packed them.
    pub files: Value,
    /// While the worker is idle after this: only this front may have it.
    pub offered: Option<Arc<str>>,
}

impl OutcomeMessage {
    pub(crate) fn to_value(&self) -> Value {
        let outcome = &self.outcome;
        let mut message = map! {
            "success" => outcome.end == JobEnd::Finished,
            "interrupted" => outcome.end == JobEnd::Interrupted,
            "outputs" => outcome.outputs.clone(),
            "meta" => outcome.meta.clone(),
            "messages" => outcome.messages.clone(),
            "files" => self.files.clone(),
        };
        if let Some(front) = &self.offered {
            message.insert("offered".into(), front.into());
        }
        if let Some(why) = outcome.end.goes_back() {
            let lost = matches!(outcome.end, JobEnd::Lost(_));
            message.insert(
                "returned".into(),
                map! {"lost" => lost, "why" => why}.into(),
            );
        }
        message.into()
    }

    pub(crate) fn from_value(value: &Value) -> Result<Self, WireError> {
        let fields = Fields(value);
        let end = match value.get("returned") {
            Some(returned) if !returned.is_null() => {
                let why = Fields(returned).text("why")?.to_string();
                if Fields(returned).truth("lost")? {
                    JobEnd::Lost(why)
                } else {
                    JobEnd::Refused(why)
                }
            }
            _ if fields.truth("interrupted")? => JobEnd::Interrupted,
            _ if fields.truth("success")? => JobEnd::Finished,
            _ => JobEnd::Failed,
        };
        Ok(Self {
            outcome: JobOutcome {
                end,
                outputs: fields.map("outputs")?,
                meta: fields.map("meta")?,
                messages: fields.list("messages")?.to_vec(),
            },
            files: fields.value("files"),
            offered: fields.text_or_none("offered")?,
        })
    }
}

pub(crate) fn free_request(request: &FreeRequest) -> Map {
    let names = |list: &Option<Vec<String>>| -> Value {
        match list {
            None => Value::Null,
            Some(list) => list.iter().map(Value::from).collect::<Vec<_>>().into(),
        }
    };
    map! {
        "do" => "free",
        "unload_models" => request.unload_models,
        "free_memory" => request.free_memory,
        "respect" => request.respect,
        "force" => request.force,
        "devices" => names(&request.devices),
        "models" => names(&request.models),
    }
}

pub(crate) fn read_free_request(value: &Value) -> Result<FreeRequest, WireError> {
    let fields = Fields(value);
    let names = |name: &str| -> Result<Option<Vec<String>>, WireError> {
        match value.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => {
                let list = fields.texts(name)?;
                Ok(Some(list.iter().map(ToString::to_string).collect()))
            }
        }
    };
    Ok(FreeRequest {
        unload_models: fields.truth("unload_models")?,
        free_memory: fields.truth("free_memory")?,
        respect: fields.truth("respect")?,
        force: fields.truth("force")?,
        devices: names("devices")?,
        models: names("models")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alive() -> Alive {
        let resident = vec![Resident {
            key: "model:vae/a".into(),
            bytes: 7,
            kept: true,
        }];
        Alive {
            protocol: PROTOCOL,
            version: "1".into(),
            session: "s".into(),
            time: 5,
            state: WorkerState::Busy,
            job: Some(TaskName {
                front: "f".into(),
                task: 9,
            }),
            events: 3,
            offered: Some("g".into()),
            catalogue: 2,
            view: WorkerView::new(resident, vec!["cuda:0".into()], 100),
            results: Some(4),
            delivering: vec![TaskName {
                front: "f".into(),
                task: 6,
            }],
            trouble: Some("its disk is full".into()),
        }
    }

    #[test]
    fn a_sign_of_life_comes_back_as_it_was() {
        let whole = alive();
        assert_eq!(Alive::decode(&whole.encode()), Ok(whole.clone()));
        let bare = Alive {
            job: None,
            offered: None,
            results: None,
            delivering: Vec::new(),
            trouble: None,
            view: WorkerView::default(),
            ..whole
        };
        assert_eq!(Alive::decode(&bare.encode()), Ok(bare));
    }

    #[test]
    fn another_protocol_is_read_as_far_as_its_number() {
        let text = br#"{"protocol": 99, "version": "8", "session": "s", "state": 5}"#;
        let read = Alive::decode(text).unwrap();
        assert_eq!((read.protocol, &*read.version), (99, "8"));
    }

    #[test]
    fn garbage_is_named_and_never_believed() {
        let text = |bytes: &[u8]| Alive::decode(bytes).unwrap_err().to_string();
        assert!(text(b"\xff\x00").contains("not JSON"));
        assert!(text(b"[]").contains("not an object"));
        assert!(text(b"{}").contains("protocol is not"));
        let bad = String::from_utf8(alive().encode()).unwrap();
        let bad = bad.replace("\"busy\"", "\"asleep\"");
        assert!(text(bad.as_bytes()).contains("state is not"));
        assert!(RunAnswer::decode(b"{\"answer\":\"maybe\",\"why\":\"\"}").is_err());
        assert!(JobMessage::decode(b"{\"front\":\"a.b\"}").is_err());
    }

    #[test]
    fn jobs_and_answers_travel_whole() {
        let job = JobMessage {
            models: Vec::new(),
            name: TaskName {
                front: "f-1".into(),
                task: u64::MAX,
            },
            session: "s".into(),
            job: RunJob {
                prompt_id: "p".into(),
                prompt: Arc::new(map! {"1" => map! {"class_type" => "X"}}),
                extra_data: map! {"client_id" => "c"},
                outputs: vec!["1".into()],
                sensitive: map! {"key" => "secret"},
                client: Some("c".into()),
            },
            inputs: Value::Null,
        };
        let read = JobMessage::decode(&job.encode()).unwrap();
        assert_eq!(read.encode(), job.encode());
        assert_eq!(read.name, job.name);
        let busy = RunAnswer::Busy("x".into());
        assert_eq!(RunAnswer::decode(&busy.encode()), Ok(busy));
    }

    #[test]
    fn outcomes_and_requests_travel_whole() {
        let outcome = OutcomeMessage {
            outcome: JobOutcome {
                outputs: map! {"9" => map! {"text" => vec![Value::from("a")]}},
                messages: vec![vec![Value::from("execution_start")].into()],
                ..JobEnd::Lost("it broke".to_owned()).into()
            },
            files: Value::Null,
            offered: Some("g".into()),
        };
        let value = outcome.to_value();
        let read = OutcomeMessage::from_value(&value).unwrap();
        assert_eq!(read.to_value(), value);
        let request = FreeRequest {
            unload_models: true,
            devices: Some(vec!["cuda:0".to_owned()]),
            ..FreeRequest::default()
        };
        let value = Value::from(free_request(&request));
        assert_eq!(read_free_request(&value), Ok(request));
    }
}
