//! What a node is to the engine, and what the engine is to a node.
//!
//! The engine sees [`NodeClass`] objects only; they may be native (built from [`Node`] by `#[derive(Node)]`), or stand for
//! a class that lives in another process and was described by a schema at run time.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use crate::{CancelToken, Map, Schema, Value};

/// One call's arguments by input name. With `input_is_list` every argument is a [`Value::List`].
#[derive(Clone, Debug, Default)]
pub struct Args(pub Map);

impl Args {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Removes and converts one argument; an absent one is `T`'s own business (`Option` is fine with it).
    pub fn take<T: FromValue>(&mut self, name: &str) -> Result<T, NodeError> {
        match self.0.shift_remove(name) {
            Some(v) => T::from_value(v).map_err(|e| NodeError::type_error(format!("{name}: {e}"))),
            None => T::absent().ok_or_else(|| {
                NodeError::type_error(format!("missing required argument: '{name}'"))
            }),
        }
    }

    /// As [`Args::take`], with a default for an absent optional input.
    pub fn take_or<T: FromValue>(&mut self, name: &str, default: T) -> Result<T, NodeError> {
        if self.0.contains_key(name) {
            self.take(name)
        } else {
            Ok(default)
        }
    }

    /// What is left after the declared inputs were taken: undeclared links.
    pub fn rest(&mut self) -> Map {
        std::mem::take(&mut self.0)
    }
}

/// Conversion of one argument to a field's type.
pub trait FromValue: Sized {
    /// The wire type that a field of this type declares.
    const IO: &'static str;

    fn from_value(value: Value) -> Result<Self, String>;

    fn absent() -> Option<Self> {
        None
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Int(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Str(_) => "text",
        Value::List(_) => "a list",
        Value::Map(_) => "an object",
        Value::Object(_) => "an opaque value",
        Value::Blocker(_) => "a blocker",
    }
}

/// The sentence for a value of the wrong kind.
pub fn wrong_kind(wanted: &str, got: &Value) -> String {
    let got = match got {
        Value::Object(o) => o.describe(),
        other => kind_of(other).to_owned(),
    };
    format!("expected {wanted}, got {got}")
}

impl FromValue for Value {
    const IO: &'static str = "*";
    fn from_value(value: Value) -> Result<Self, String> {
        Ok(value)
    }
}

impl FromValue for bool {
    const IO: &'static str = "BOOLEAN";
    fn from_value(value: Value) -> Result<Self, String> {
        // Links carry whatever the source gave; the reference's functions then see plain truthiness.
        Ok(value.truthy())
    }
}

impl FromValue for String {
    const IO: &'static str = "STRING";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| wrong_kind("text", &value))
    }
}

impl FromValue for Arc<str> {
    const IO: &'static str = "STRING";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Str(s) => Ok(s),
            other => Err(wrong_kind("text", &other)),
        }
    }
}

macro_rules! ints {
    ($($t:ty),*) => {$(
        impl FromValue for $t {
            const IO: &'static str = "INT";
            fn from_value(value: Value) -> Result<Self, String> {
                let wide = match &value {
                    Value::Int(i) => *i,
                    Value::Bool(b) => i128::from(*b),
                    // A FLOAT may arrive through a `*` link; whole ones are meant as integers.
                    Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e18 => *f as i128,
                    other => return Err(wrong_kind("an integer", other)),
                };
                <$t>::try_from(wide).map_err(|_| format!("{wide} is out of range"))
            }
        }
    )*};
}
ints!(i32, i64, i128, u32, u64, usize);

impl FromValue for f64 {
    const IO: &'static str = "FLOAT";
    fn from_value(value: Value) -> Result<Self, String> {
        value.as_f64().ok_or_else(|| wrong_kind("a number", &value))
    }
}

impl FromValue for f32 {
    const IO: &'static str = "FLOAT";
    fn from_value(value: Value) -> Result<Self, String> {
        f64::from_value(value).map(|f| f as f32)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    const IO: &'static str = T::IO;
    fn from_value(value: Value) -> Result<Self, String> {
        if value.is_null() {
            Ok(None)
        } else {
            T::from_value(value).map(Some)
        }
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    const IO: &'static str = T::IO;
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::List(l) => l.iter().cloned().map(T::from_value).collect(),
            other => Err(wrong_kind("a list", &other)),
        }
    }
}

/// Any object, by key: `DynamicCombo` and the dictionaries of the reference.
impl FromValue for Arc<Map> {
    const IO: &'static str = "*";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Map(m) => Ok(m),
            other => Err(wrong_kind("an object", &other)),
        }
    }
}

/// The slots of an autogrow input in declaration order.
#[derive(Clone, Debug, Default)]
pub struct Grown<T>(pub Vec<T>);

impl<T: FromValue> FromValue for Grown<T> {
    const IO: &'static str = "COMFY_AUTOGROW_V3";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Map(m) => m
                .values()
                .cloned()
                .map(T::from_value)
                .collect::<Result<_, _>>()
                .map(Self),
            other => Err(wrong_kind("autogrow slots", &other)),
        }
    }
    fn absent() -> Option<Self> {
        Some(Self(Vec::new()))
    }
}

/// Why a node failed.
#[derive(Debug, Clone)]
pub enum NodeError {
    /// The user asked to stop.
    Interrupted,
    OutOfMemory {
        message: String,
    },
    /// Everything else; `kind` is the exception type that goes over the wire.
    Failed {
        kind: String,
        message: String,
        trace: Vec<String>,
    },
}

impl NodeError {
    pub fn failed(kind: &str, message: impl Into<String>) -> Self {
        Self::Failed {
            kind: kind.into(),
            message: message.into(),
            trace: Vec::new(),
        }
    }
    pub fn value_error(message: impl Into<String>) -> Self {
        Self::failed("ValueError", message)
    }
    pub fn type_error(message: impl Into<String>) -> Self {
        Self::failed("TypeError", message)
    }
    pub fn runtime(message: impl Into<String>) -> Self {
        Self::failed("RuntimeError", message)
    }
    pub fn exception(message: impl Into<String>) -> Self {
        Self::failed("Exception", message)
    }
    pub fn file_not_found(message: impl Into<String>) -> Self {
        Self::failed("FileNotFoundError", message)
    }

    pub fn kind(&self) -> &str {
        match self {
            Self::Interrupted => "InterruptProcessingException",
            Self::OutOfMemory { .. } => "torch.OutOfMemoryError",
            Self::Failed { kind, .. } => kind,
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Self::Interrupted => "",
            Self::OutOfMemory { message } | Self::Failed { message, .. } => message,
        }
    }

    pub fn trace(&self) -> &[String] {
        match self {
            Self::Failed { trace, .. } => trace,
            _ => &[],
        }
    }
}

/// Any library error ends the node as a `RuntimeError`; its causes become the trace.
impl<E: std::error::Error> From<E> for NodeError {
    fn from(error: E) -> Self {
        let mut trace = Vec::new();
        let mut cause = error.source();
        while let Some(c) = cause {
            trace.push(c.to_string());
            cause = c.source();
        }
        let mut message = error.to_string();
        if let Some(first) = trace.first() {
            message = format!("{message}: {first}");
        }
        Self::Failed {
            kind: "RuntimeError".into(),
            message,
            trace,
        }
    }
}

/// The output slots of one call.
#[derive(Clone, Debug, Default)]
pub enum Slots {
    /// Nothing; consumers see null.
    #[default]
    None,
    Values(Vec<Value>),
    /// Every slot is a blocker.
    Blocked(Option<Arc<str>>),
}

/// What one call of a node gives back.
#[derive(Clone, Debug, Default)]
pub struct NodeOutput {
    pub slots: Slots,
    /// What clients are shown; keys hold lists.
    pub ui: Option<Map>,
    /// A sub-graph to run in the node's place; `slots` may then hold links into it.
    pub expand: Option<SubGraph>,
}

impl NodeOutput {
    pub fn one(value: impl Into<Value>) -> Self {
        Self::slots(vec![value.into()])
    }

    pub fn slots(values: Vec<Value>) -> Self {
        Self {
            slots: Slots::Values(values),
            ..Self::default()
        }
    }

    pub fn ui(ui: Map) -> Self {
        Self {
            ui: Some(ui),
            ..Self::default()
        }
    }

    pub fn with_ui(mut self, ui: Map) -> Self {
        self.ui = Some(ui);
        self
    }

    pub fn blocked(message: Option<&str>) -> Self {
        Self {
            slots: Slots::Blocked(message.map(Into::into)),
            ..Self::default()
        }
    }

    pub fn expand(graph: SubGraph, slots: Vec<Value>) -> Self {
        Self {
            slots: Slots::Values(slots),
            ui: None,
            expand: Some(graph),
        }
    }
}

/// Nodes to add to the running graph, by their full ids.
pub type SubGraph = indexmap::IndexMap<Arc<str>, SubNode>;

#[derive(Clone, Debug)]
pub struct SubNode {
    pub class: Arc<str>,
    pub inputs: Map,
    /// The id the UI highlights instead of the expanding node.
    pub display: Option<Arc<str>>,
}

pub type NodeResult = Result<NodeOutput, NodeError>;
pub type NodeFuture = Pin<Box<dyn Future<Output = NodeResult> + Send>>;

/// A call that is done, or one that finishes later.
pub enum Flow {
    Done(NodeOutput),
    Later(NodeFuture),
}

/// Which inputs a native node's validator looks at. See [`ValidatorInputs`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Validator {
    pub params: &'static [&'static str],
    pub all: bool,
    pub input_types: bool,
}

/// Which inputs a class's own validator looks at. Those skip the built-in bound and combo checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValidatorInputs {
    pub params: Vec<Arc<str>>,
    /// Takes any input by keyword.
    pub all: bool,
    /// Wants the types of linked inputs, and replaces the built-in link type check.
    pub input_types: bool,
}

impl ValidatorInputs {
    pub fn takes(&self, input: &str) -> bool {
        self.all || self.params.iter().any(|name| &**name == input)
    }
}

impl From<Validator> for ValidatorInputs {
    fn from(native: Validator) -> Self {
        Self {
            params: native.params.iter().map(|name| Arc::from(*name)).collect(),
            all: native.all,
            input_types: native.input_types,
        }
    }
}

/// What a class declares to one prompt.
#[derive(Clone)]
pub struct Declaration {
    pub schema: Arc<Schema>,
    /// As asked for the order of nodes: some classes of the reference declare other inputs, and all of them lazy, then.
    pub scheduling: Arc<Schema>,
}

/// A validator's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    /// False without a word.
    Rejected,
    Because(String),
    /// What is wrong with which inputs, each by name.
    Inputs(Vec<(Arc<str>, String)>),
}

/// A node class as the engine sees it.
pub trait NodeClass: Send + Sync {
    /// What it declares, as far as is known; never waits.
    fn schema(&self) -> Arc<Schema>;

    /// What it declares to a prompt that begins now. A class of another process is asked, which may take time or fail, so
    /// never call this on a thread that serves sockets.
    fn describe(&self) -> Result<Declaration, NodeError> {
        let schema = self.schema();
        Ok(Declaration {
            scheduling: schema.clone(),
            schema,
        })
    }

    /// Whose class it is, if not the program's own: a pack, a process. Its validator and [`NodeClass::describe`] may wait
    /// for somebody else, and it may be removed.
    fn owner(&self) -> Option<&Arc<str>> {
        None
    }

    fn call(&self, args: Args, cx: &Cx) -> Result<Flow, NodeError>;

    /// True if [`NodeClass::call`] may answer [`Flow::Later`]; such nodes are started early.
    fn is_async(&self) -> bool {
        false
    }

    fn has_lazy(&self) -> bool {
        false
    }

    /// Names of further inputs this call needs, given what is there (missing ones are null).
    fn check_lazy(&self, _args: Args, _cx: &Cx) -> Result<Vec<String>, NodeError> {
        Ok(Vec::new())
    }

    fn has_fingerprint(&self) -> bool {
        false
    }

    /// The change token; a NaN in it means "always run".
    fn fingerprint(&self, _args: Args, _cx: &Cx) -> Result<Value, NodeError> {
        Ok(Value::Bool(false))
    }

    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        None
    }

    fn validate(&self, _args: Args, _types: &Map, _cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(Verdict::Ok)
    }

    /// The same for a class that also asks where links come from: class and slot by input.
    fn validate_linked(
        &self,
        args: Args,
        types: &Map,
        _sources: &LinkSources,
        cx: &Cx,
    ) -> Result<Verdict, NodeError> {
        self.validate(args, types, cx)
    }

    /// Whether an output's type is an input's by rules of this class, which has either of them; nothing where it has none
    /// for these two, and the plain rules decide.
    fn matches(&self, _link: &LinkQuestion<'_>) -> Option<bool> {
        None
    }
}

/// The sources of a node's links by input: class and slot.
pub type LinkSources = indexmap::IndexMap<Arc<str>, (Arc<str>, usize)>;

/// A link whose types are to be compared.
pub struct LinkQuestion<'a> {
    pub source: &'a str,
    pub slot: usize,
    pub received: &'a crate::IoType,
    pub target: &'a str,
    pub input: &'a str,
    pub declared: &'a crate::IoType,
}

/// Written by `#[derive(Node)]`.
pub trait NodeSchema: Sized + Send + 'static {
    fn schema() -> Schema;
    fn from_args(args: Args) -> Result<Self, NodeError>;
}

/// A native node: fields are the inputs of one call, `run` does the work.
pub trait Node: NodeSchema {
    fn run(self, cx: &Cx) -> NodeResult;

    /// Set when [`Node::start`] is overridden.
    const ASYNC: bool = false;
    /// Asynchronous nodes override this instead of relying on `run`.
    fn start(self, cx: &Cx) -> Result<Flow, NodeError> {
        self.run(cx).map(Flow::Done)
    }

    /// Set when [`Node::check_lazy`] is overridden.
    const LAZY: bool = false;
    fn check_lazy(_args: Args, _cx: &Cx) -> Result<Vec<String>, NodeError> {
        Ok(Vec::new())
    }

    /// Set when [`Node::fingerprint`] is overridden.
    const FINGERPRINT: bool = false;
    fn fingerprint(_args: Args, _cx: &Cx) -> Result<Value, NodeError> {
        Ok(Value::Bool(false))
    }

    /// Set when [`Node::validate`] is overridden.
    const VALIDATOR: Option<Validator> = None;
    fn validate(_args: Args, _types: &Map, _cx: &Cx) -> Result<Verdict, NodeError> {
        Ok(Verdict::Ok)
    }
}

/// Typed things the assembly hands to nodes: directories, model folders, the memory room.
#[derive(Clone, Default)]
pub struct Resources(BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Resources {
    pub fn insert<T: Any + Send + Sync>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0
            .get(&TypeId::of::<T>())
            .cloned()
            .and_then(|v| v.downcast().ok())
    }
}

/// A picture for the progress display, already encoded.
#[derive(Clone, Debug)]
pub struct Preview {
    pub format: PreviewFormat,
    pub bytes: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewFormat {
    Jpeg,
    Png,
}

/// One progress report of a node.
#[derive(Clone, Debug)]
pub struct Progress {
    pub value: f64,
    pub max: f64,
    pub preview: Option<Preview>,
    /// From a progress bar: clients also get the classic `progress` message.
    pub bar: bool,
}

/// The engine, as a running node may call it. All calls are thread-safe.
pub trait Services: Send + Sync {
    fn progress(&self, prompt_id: &str, node_id: &str, progress: Progress);
    /// True from an interrupt until the run ends.
    fn interrupted(&self) -> bool;
    /// The run's own token, for work that has to be told: a call in another process, a wait.
    fn cancel_token(&self) -> CancelToken {
        CancelToken::default()
    }
    /// Sends a message of the node's own to one socket or to all.
    fn send(&self, event: &str, data: Value, client: Option<&str>);
    /// Text shown on a node.
    fn text(&self, node_id: &str, text: &str);
    /// Queue flags (`unload_models`, `free_memory`), consumed after the running prompt.
    fn set_flag(&self, name: &str, value: Value);
    /// A node changed the prompt or the picture information that later nodes of this run are given. What history keeps
    /// stays as it was.
    fn change_hidden(&self, _prompt: Option<Value>, _extra_pnginfo: Option<Value>) {}
}

/// For tests and for calls outside a prompt: nobody listens, nothing interrupts.
pub struct NoServices;

impl Services for NoServices {
    fn progress(&self, _: &str, _: &str, _: Progress) {}
    fn interrupted(&self) -> bool {
        false
    }
    fn send(&self, _: &str, _: Value, _: Option<&str>) {}
    fn text(&self, _: &str, _: &str) {}
    fn set_flag(&self, _: &str, _: Value) {}
}

/// Hidden values of one node.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    pub prompt: Value,
    pub extra_pnginfo: Value,
    pub auth_token: Value,
    pub api_key: Value,
}

/// State that survives between prompts while the same node id keeps the same class.
#[derive(Clone, Default)]
pub struct InstanceState(Arc<Mutex<Option<Box<dyn Any + Send>>>>);

/// Looks up nodes of the running graph, expansions included (`DYNPROMPT`).
pub trait GraphView: Send + Sync {
    fn node(&self, id: &str) -> Option<SubNode>;
    fn parent(&self, id: &str) -> Option<Arc<str>>;
    fn display(&self, id: &str) -> Arc<str>;
    fn ids(&self) -> Vec<Arc<str>>;
}

/// What a node call knows of its surroundings. Cheap to clone, so that asynchronous work can keep it.
#[derive(Clone)]
pub struct Cx {
    pub prompt_id: Arc<str>,
    /// Who submitted the prompt; empty if nobody said.
    pub client: Arc<str>,
    pub node_id: Arc<str>,
    /// Which of the mapped calls this is; none when there is just one.
    pub call_index: usize,
    pub hidden: Hidden,
    pub graph: Option<Arc<dyn GraphView>>,
    pub services: Arc<dyn Services>,
    pub resources: Arc<Resources>,
    pub state: InstanceState,
    /// `none`, `latent2rgb`, ...: what previews this prompt asked for.
    pub preview_method: Arc<str>,
    builders: Arc<std::sync::atomic::AtomicUsize>,
}

impl Cx {
    pub fn new(
        prompt_id: Arc<str>,
        node_id: Arc<str>,
        services: Arc<dyn Services>,
        resources: Arc<Resources>,
    ) -> Self {
        Self {
            prompt_id,
            client: "".into(),
            node_id,
            call_index: 0,
            hidden: Hidden::default(),
            graph: None,
            services,
            resources,
            state: InstanceState::default(),
            preview_method: "none".into(),
            builders: Arc::default(),
        }
    }

    /// A context that leads nowhere, for tests and for validation.
    pub fn detached(resources: Arc<Resources>) -> Self {
        Self::new("".into(), "".into(), Arc::new(NoServices), resources)
    }

    /// The same node's context for another mapped call.
    pub fn for_call(&self, call_index: usize) -> Self {
        Self {
            call_index,
            builders: Arc::default(),
            ..self.clone()
        }
    }

    pub fn check_interrupt(&self) -> Result<(), NodeError> {
        if self.services.interrupted() {
            Err(NodeError::Interrupted)
        } else {
            Ok(())
        }
    }

    /// A progress-bar update: clamps, reports, and stops the node if the user asked to.
    pub fn progress(
        &self,
        value: f64,
        max: f64,
        preview: Option<Preview>,
    ) -> Result<(), NodeError> {
        self.check_interrupt()?;
        self.report(value, max, preview);
        Ok(())
    }

    /// The same report without the question whether to go on, for who asks it elsewhere.
    pub fn report(&self, value: f64, max: f64, preview: Option<Preview>) {
        let progress = Progress {
            value: value.min(max),
            max,
            preview,
            bar: true,
        };
        self.services
            .progress(&self.prompt_id, &self.node_id, progress);
    }

    /// The newer progress call: no interrupt check and no classic `progress` message.
    pub fn set_progress(&self, value: f64, max: f64, preview: Option<Preview>) {
        self.services.progress(
            &self.prompt_id,
            &self.node_id,
            Progress {
                value,
                max,
                preview,
                bar: false,
            },
        );
    }

    /// A thing the assembly provided; its absence is a fault of the assembly, reported as a node error.
    pub fn resource<T: Any + Send + Sync>(&self) -> Result<Arc<T>, NodeError> {
        self.resources.get::<T>().ok_or_else(|| {
            NodeError::runtime(format!(
                "this build provides no {}",
                std::any::type_name::<T>()
            ))
        })
    }

    /// State kept for this node id and class between prompts.
    pub fn with_state<T: Any + Send + Default, R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut slot = crate::lock(&self.state.0);
        if !slot.as_ref().is_some_and(|s| s.is::<T>()) {
            *slot = Some(Box::new(T::default()));
        }
        let state = slot
            .as_mut()
            .and_then(|s| s.downcast_mut::<T>())
            .expect("the slot was just filled with a T");
        f(state)
    }

    /// Starts a sub-graph; ids get the prefix `{node}.{call}.{graph}.`.
    pub fn graph_builder(&self) -> GraphBuilder {
        let n = self
            .builders
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        GraphBuilder {
            prefix: format!("{}.{}.{}.", self.node_id, self.call_index, n),
            nodes: SubGraph::new(),
            next: 1,
        }
    }
}

/// Collects the nodes of an expansion.
pub struct GraphBuilder {
    prefix: String,
    nodes: SubGraph,
    next: usize,
}

impl GraphBuilder {
    /// Adds a node and gives its full id.
    pub fn node(&mut self, class: &str, id: Option<&str>, inputs: Map) -> Arc<str> {
        let local = id.map_or_else(|| self.next.to_string(), str::to_owned);
        self.next += usize::from(id.is_none());
        let full: Arc<str> = format!("{}{local}", self.prefix).into();
        self.nodes.insert(
            full.clone(),
            SubNode {
                class: class.into(),
                inputs,
                display: None,
            },
        );
        full
    }

    pub fn nodes_mut(&mut self) -> &mut SubGraph {
        &mut self.nodes
    }

    pub fn finish(self) -> SubGraph {
        self.nodes
    }
}

/// `[id, slot]` as an input value.
pub fn link(id: &Arc<str>, slot: i64) -> Value {
    crate::Link {
        node: id.clone(),
        slot,
    }
    .to_value()
}
