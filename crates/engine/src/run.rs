//! One prompt on its way through the executor.

mod ends;

use std::any::Any;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::mapping::{self, Call, CallResult, InputLists};
use fresco_graph::{
    Args, CacheKey, Contribution, Contributions, Cx, Declared, Flow, Hidden, Input, Keys, Magic,
    Map, Next, NodeError, NodeOutput, Nodes, Order, PromptClass, PromptClasses, Schema, Slots,
    Value, Versions, lock, map,
};

use crate::cache::CachedOutput;
use crate::cut;
use crate::dynprompt::{DynPrompt, RunNode};
use crate::event::EventKind;
use crate::job::{JobEnd, RunJob};
use crate::ledger::Counter;
use crate::messages::RunMessages;
use crate::panics::catch_panic;
use crate::state::ExecutorState;
use crate::tasks::{CallState, Tasks, panicked};
use crate::watch::Watch;

/// Why a node did not finish in this attempt.
enum Halt {
    /// It will be tried again once something else is done.
    Pending,
    Failed {
        error: NodeError,
        inputs: Value,
    },
}

impl From<NodeError> for Halt {
    fn from(error: NodeError) -> Self {
        Self::Failed {
            error,
            inputs: Map::new().into(),
        }
    }
}

/// Bytes of an input that an error report shows.
pub(super) const SHOWN_BYTES: usize = 64 << 10;
/// Below this much free memory no further node is started.
const SPARE_MEMORY: u64 = 512 << 20;
const ASK_MEMORY: Duration = Duration::from_millis(5);

/// Smaller texts are not asked for.
const LARGE_TEXT: u64 = 1 << 20;

fn len_u64(text: &str) -> u64 {
    text.len() as u64
}

/// A result held for the nodes of this prompt that still want it, whatever the cache does.
#[derive(Default)]
struct HeldOutput {
    entry: Option<Arc<CachedOutput>>,
    consumers: HashSet<Arc<str>>,
}

/// The calls of a node that expanded, waiting for their sub-graphs.
struct Expansion {
    calls: Vec<CallResult>,
    ui: Option<Map>,
}

pub(crate) struct Run<'e> {
    state: &'e mut ExecutorState,
    classes: PromptClasses,
    job: &'e RunJob,
    graph: Arc<DynPrompt>,
    watch: Arc<Watch>,
    keys: Keys,
    tokens: HashMap<Arc<str>, Value>,
    order: Order,
    held: RefCell<HashMap<Arc<str>, HeldOutput>>,
    sources: RefCell<HashMap<Arc<str>, Vec<Arc<str>>>>,
    tasks: Tasks,
    expansions: HashMap<Arc<str>, Expansion>,
    executed: Vec<Arc<str>>,
    /// The prompt with change tokens written in: what `PROMPT` shows.
    shown_prompt: Value,
    outputs: Map,
    meta: Map,
    preview_method: Arc<str>,
    memory_asked: Instant,
}

impl<'e> Run<'e> {
    pub(crate) fn new(
        state: &'e mut ExecutorState,
        job: &'e RunJob,
        graph: Arc<DynPrompt>,
        watch: Arc<Watch>,
    ) -> Self {
        let preview_method = match job.extra_data.get("preview_method").and_then(Value::as_str) {
            Some(m @ ("none" | "auto" | "latent2rgb" | "taesd")) => m.into(),
            _ => state.config.preview_method.clone(),
        };
        Self {
            keys: Keys::new(state.prompts_run),
            tasks: Tasks::new(state.bell.clone()),
            classes: PromptClasses::new(state.config.registry.snapshot()),
            state,
            job,
            graph,
            watch,
            tokens: HashMap::new(),
            order: Order::new(),
            held: RefCell::default(),
            sources: RefCell::default(),
            expansions: HashMap::new(),
            executed: Vec::new(),
            shown_prompt: Value::Map(job.prompt.clone()),
            outputs: Map::new(),
            meta: Map::new(),
            preview_method,
            // A prompt that is over in less time cannot fill the memory.
            memory_asked: Instant::now(),
        }
    }

    pub(crate) fn into_ui(self) -> (Map, Map) {
        (self.outputs, self.meta)
    }

    fn class(&self, name: &str) -> Option<Arc<PromptClass>> {
        self.classes.get(name)
    }

    /// Computes change tokens and cache keys, lets the cache forget the rest, and says what is cached.
    pub(crate) fn prepare(&mut self, nodes: &HashSet<(Arc<str>, Arc<str>)>) -> Vec<Arc<str>> {
        let ids: Vec<Arc<str>> = self.graph.top_ids().cloned().collect();
        for id in &ids {
            self.compute_token(id);
        }
        self.show_tokens();
        let keys = self.compute_keys(&ids);
        self.state.cache.begin(&keys, nodes);
        let none = Vec::new();
        ids.into_iter()
            .filter(|id| {
                self.keys
                    .get(id)
                    .is_some_and(|k| self.state.cache.contains(&none, k))
            })
            .collect()
    }

    fn compute_keys(&mut self, ids: &[Arc<str>]) -> HashSet<CacheKey> {
        let view = KeyView {
            watch: &self.watch,
            graph: &self.graph,
            classes: &self.classes,
            tokens: &self.tokens,
            state: self.state,
        };
        ids.iter().map(|id| self.keys.compute(id, &view)).collect()
    }

    /// The change token of one node: given with the prompt, or asked of its class with literals only.
    fn compute_token(&mut self, id: &Arc<str>) {
        let Some(node) = self.graph.get(id) else {
            return;
        };
        let Some(class) = self
            .class(&node.class)
            .filter(|c| c.class.has_fingerprint())
        else {
            return;
        };
        let token = match node.is_changed {
            Some(token) => token,
            None => match self.ask_token(id, &node, &class) {
                Ok(token) => token,
                Err(error) => {
                    tracing::warn!(node = %id, class = %node.class, "change check failed, the node will always run: {}", error.message());
                    Value::Float(f64::NAN)
                }
            },
        };
        self.tokens.insert(id.clone(), token);
    }

    fn ask_token(
        &mut self,
        id: &Arc<str>,
        node: &RunNode,
        class: &PromptClass,
    ) -> Result<Value, NodeError> {
        let (inputs, _) = Self::assemble(node, class, &|_| None);
        let declared = Declared::new(&class.schema, &node.inputs);
        let mut cx = Cx::detached(self.state.config.resources.clone());
        cx.node_id = id.clone();
        let mut results = Vec::new();
        for call in mapping::spread(class.schema.input_is_list, &inputs)? {
            results.push(match call {
                Call::Blocked(_) => Value::Null,
                Call::Run(args) => {
                    let args = declared.nest(args, false);
                    self.guarded(|| class.class.fingerprint(args, &cx))?
                }
            });
        }
        Ok(results.into())
    }

    fn show_tokens(&mut self) {
        if self.tokens.is_empty() {
            return;
        }
        let mut prompt = (*self.job.prompt).clone();
        for (id, node) in &mut prompt {
            if let (Some(token), Value::Map(node)) = (self.tokens.get(id), node) {
                Arc::make_mut(node).insert("is_changed".into(), token.clone());
            }
        }
        self.shown_prompt = prompt.into();
    }

    /// Runs node after node until the graph is dissolved.
    pub(crate) fn drive(&mut self, messages: &mut RunMessages) -> JobEnd {
        for id in &self.job.outputs {
            self.schedule(id);
        }
        loop {
            self.between_nodes();
            let id = match self.order.next() {
                Next::Finished => {
                    self.repeat_warnings();
                    return messages.finished();
                }
                Next::Cycle(ids) => return messages.failed(self.cycle(&ids)),
                Next::Wait => {
                    self.collect_tasks(true);
                    if self.watch.is_cancelled() {
                        let id = self.executed.last().cloned().unwrap_or_default();
                        let blamed = self.watch.running_node().unwrap_or(id);
                        return self.interrupted(&blamed, messages);
                    }
                    continue;
                }
                Next::Run(id) => id,
            };
            match self.step(&id) {
                Ok(()) => {
                    self.order.complete(&id);
                    self.forget_sources(&id);
                }
                Err(Halt::Pending) => {}
                Err(Halt::Failed {
                    error: NodeError::Interrupted,
                    ..
                }) => return self.interrupted(&id, messages),
                // Whatever a node says that was told to stop: it stopped.
                Err(Halt::Failed { .. }) if self.watch.is_cancelled() => {
                    return self.interrupted(&id, messages);
                }
                Err(Halt::Failed { error, inputs }) => {
                    return messages.failed(self.failure(&id, &error, inputs));
                }
            }
            let memory = self.state.config.memory.clone();
            self.state.cache.poll(&mut || memory.available_ram());
            self.collect_tasks(false);
        }
    }

    /// What cached nodes warned of holds for this run too, also where nobody had to ask them for their outputs.
    fn repeat_warnings(&mut self) {
        let ids: Vec<Arc<str>> = self.job.prompt.keys().cloned().collect();
        for id in ids {
            if self.outputs.contains_key(&id) {
                continue;
            }
            let Some(ui) = self.cached(&id).and_then(|entry| entry.ui.clone()) else {
                continue;
            };
            if ui.contains_key("warnings") {
                self.keep_ui(&id, Some(&ui));
                self.watch.emit(EventKind::Executed {
                    display: self.graph.display_of(&id),
                    node: id,
                    output: ui.into(),
                });
            }
        }
    }

    /// Does what does not wait for the end of the prompt: frees what was asked for with force, as far as this prompt does
    /// not hold it, and forgets results whose owner is gone.
    fn between_nodes(&mut self) {
        // A run that was given up has no say any more.
        if self.watch.control.is_given_up() {
            return;
        }
        let Some(urgent) = self.state.requests.take_urgent() else {
            return;
        };
        for owner in &urgent.owners {
            self.state.drop_owned(owner);
        }
        if let Some(request) = urgent.forced {
            let memory = &self.state.config.memory;
            catch_panic("free", || memory.free(&request, Some(&self.job.prompt_id)));
        }
    }

    fn collect_tasks(&mut self, wait: bool) {
        for node in self.tasks.poll(wait) {
            self.order.release(&node);
        }
    }

    fn schedule(&mut self, id: &Arc<str>) {
        let view = OrderView {
            graph: &self.graph,
            classes: &self.classes,
            keys: &self.keys,
            state: self.state,
        };
        let mut linked = |s: &Arc<str>, t: &Arc<str>| hold(&self.held, &self.sources, &view, s, t);
        self.order.add_node(id, &view, &mut linked);
    }

    fn require(&mut self, source: &Arc<str>, target: &Arc<str>) {
        let view = OrderView {
            graph: &self.graph,
            classes: &self.classes,
            keys: &self.keys,
            state: self.state,
        };
        let mut linked = |s: &Arc<str>, t: &Arc<str>| hold(&self.held, &self.sources, &view, s, t);
        self.order.add_link(source, target, &view, &mut linked);
    }

    fn forget_sources(&mut self, id: &Arc<str>) {
        let mut held = self.held.borrow_mut();
        for source in self.sources.borrow_mut().remove(id).unwrap_or_default() {
            if let Some(h) = held.get_mut(&source) {
                h.consumers.remove(id);
                if h.consumers.is_empty() {
                    held.remove(&source);
                }
            }
        }
    }

    fn cached(&mut self, id: &str) -> Option<Arc<CachedOutput>> {
        let key = self.keys.get(id)?;
        let owners = self.graph.owners_of(id);
        self.state.cache.get(&owners, key)
    }

    /// A node's outputs for a consumer: held for this prompt, or cached.
    fn result_of(&mut self, id: &str) -> Option<Arc<CachedOutput>> {
        if let Some(entry) = self.held.borrow().get(id).and_then(|h| h.entry.clone()) {
            return Some(entry);
        }
        self.cached(id)
    }

    /// One attempt at one node.
    fn step(&mut self, id: &Arc<str>) -> Result<(), Halt> {
        let ids = self.graph.ids_of(id);
        let Some(node) = self.graph.get(id) else {
            return Err(NodeError::failed(
                "comfy_execution.graph.NodeNotFoundError",
                format!("Node {id} not found"),
            )
            .into());
        };
        let Some(class) = self.class(&node.class) else {
            return Err(NodeError::failed("KeyError", format!("'{}'", node.class)).into());
        };
        if let Some(problem) = &class.problem {
            return Err(problem.clone().into());
        }
        if let Some(entry) = self.cached(id) {
            let shown = entry.ui.clone().map_or(Value::Null, Value::from);
            self.watch.emit(EventKind::Executed {
                node: id.clone(),
                display: ids.display.clone(),
                output: shown,
            });
            self.keep_ui(id, entry.ui.as_ref());
            self.watch.node_finished(ids);
            self.deliver(id, entry);
            return Ok(());
        }
        if let Some(results) = self.tasks.take(id) {
            let outputs = results.into_iter().collect::<Result<Vec<_>, _>>()?;
            return self.conclude(id, &node, &class, outputs);
        }
        if let Some(expansion) = self.expansions.remove(id) {
            return self.conclude_expansion(id, &node, &class, expansion);
        }

        self.watch.node_started(ids.clone());
        let wanted: Vec<Arc<str>> = node
            .inputs
            .values()
            .filter_map(Value::as_link)
            .map(|l| l.node)
            .collect();
        let results: HashMap<Arc<str>, Arc<CachedOutput>> = wanted
            .into_iter()
            .filter_map(|s| self.result_of(&s).map(|e| (s, e)))
            .collect();
        let (inputs, missing) =
            Self::assemble(&node, &class, &|source| results.get(source).cloned());
        self.watch.emit(EventKind::Executing {
            node: id.clone(),
            display: ids.display.clone(),
        });
        let cx = self.context(id, &node, &class);
        let shown = |error: NodeError| Halt::Failed {
            inputs: show_inputs(&inputs),
            error,
        };
        if class.class.has_lazy()
            && self
                .wants_more(id, &node, &class, &inputs, &missing, &cx)
                .map_err(shown)?
        {
            return Err(Halt::Pending);
        }
        let calls = self.call(id, &node, &class, &inputs, &cx).map_err(shown)?;
        match self.tasks.start(id, calls) {
            None => {
                self.order.hold(id);
                Err(Halt::Pending)
            }
            Some(results) => {
                let outputs = results
                    .into_iter()
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(shown)?;
                self.conclude(id, &node, &class, outputs)
            }
        }
    }

    /// Input lists of a node, and which linked inputs have no result.
    fn assemble(
        node: &RunNode,
        class: &PromptClass,
        result: &dyn Fn(&str) -> Option<Arc<CachedOutput>>,
    ) -> (InputLists, HashSet<Arc<str>>) {
        let schema = &class.schema;
        let declared = Declared::new(schema, &node.inputs);
        let mut inputs = InputLists::with_capacity(node.inputs.len());
        let mut missing = HashSet::new();
        for (name, value) in node.inputs.iter() {
            let info = declared.find(name);
            match value.as_link() {
                Some(link) if !schema.gives_link(info) => {
                    let entry = result(&link.node);
                    let list = entry.as_ref().and_then(|e| {
                        let n = e.outputs.len() as i64;
                        let slot = if link.slot < 0 {
                            link.slot + n
                        } else {
                            link.slot
                        };
                        e.outputs.get(usize::try_from(slot).ok()?)
                    });
                    if let Some(list) = list {
                        inputs.insert(name.clone(), list.clone());
                    } else {
                        missing.insert(name.clone());
                        inputs.insert(name.clone(), vec![Value::Null]);
                    }
                }
                _ => {
                    if schema.takes(name, info) {
                        inputs.insert(name.clone(), vec![value.clone()]);
                    }
                }
            }
        }
        (inputs, missing)
    }

    fn context(&mut self, id: &Arc<str>, node: &RunNode, class: &PromptClass) -> Cx {
        let mut cx = Cx::new(
            self.job.prompt_id.clone(),
            id.clone(),
            self.watch.clone(),
            self.state.config.resources.clone(),
        );
        let schema = &class.schema;
        let secret = |key: &str| self.job.sensitive.get(key).cloned().unwrap_or_default();
        let changed = lock(&self.watch.hidden).clone();
        let (prompt, extra_pnginfo) = changed;
        cx.hidden = Hidden {
            prompt: prompt.unwrap_or_else(|| self.shown_prompt.clone()),
            extra_pnginfo: extra_pnginfo.unwrap_or_else(|| {
                let given = self.job.extra_data.get("extra_pnginfo");
                given.cloned().unwrap_or_default()
            }),
            auth_token: if schema.wants(Magic::AuthToken) {
                secret("auth_token_comfy_org")
            } else {
                Value::Null
            },
            api_key: if schema.wants(Magic::ApiKey) {
                secret("api_key_comfy_org")
            } else {
                Value::Null
            },
        };
        cx.graph = Some(self.graph.clone());
        cx.preview_method = self.preview_method.clone();
        cx.client = self.job.client.clone().unwrap_or_default();
        if self.state.cache.strategy() != crate::cache::Strategy::None {
            let real = self.graph.real_of(id);
            cx.state = self.state.instances.get(id, &node.class, &real);
        }
        cx
    }

    /// Asks a lazy node what it needs beyond what is there; true if it has to wait for that.
    fn wants_more(
        &mut self,
        id: &Arc<str>,
        node: &RunNode,
        class: &PromptClass,
        inputs: &InputLists,
        missing: &HashSet<Arc<str>>,
        cx: &Cx,
    ) -> Result<bool, NodeError> {
        let declared = Declared::new(&class.schema, &node.inputs);
        let mut needed: Vec<Arc<str>> = Vec::new();
        for (i, call) in mapping::spread(class.schema.input_is_list, inputs)?
            .into_iter()
            .enumerate()
        {
            cx.check_interrupt()?;
            let Call::Run(args) = call else { continue };
            let args = declared.nest(args, true);
            for name in self.guarded(|| class.class.check_lazy(args, &cx.for_call(i)))? {
                let name: Arc<str> = name.into();
                if (!inputs.contains_key(&name) || missing.contains(&name))
                    && !needed.contains(&name)
                {
                    needed.push(name);
                }
            }
        }
        for name in &needed {
            let kind = "comfy_execution.graph.NodeInputError";
            let Some(value) = node.inputs.get(name) else {
                let text = format!(
                    "Node {id} says it needs input {name}, but there is no input to that node at all"
                );
                return Err(NodeError::failed(kind, text));
            };
            let Some(link) = value.as_link() else {
                let text =
                    format!("Node {id} says it needs input {name}, but that value is a constant");
                return Err(NodeError::failed(kind, text));
            };
            self.require(&link.node, id);
        }
        Ok(!needed.is_empty())
    }

    /// Makes all mapped calls.
    fn call(
        &mut self,
        id: &Arc<str>,
        node: &RunNode,
        class: &PromptClass,
        inputs: &InputLists,
        cx: &Cx,
    ) -> Result<Vec<CallState>, NodeError> {
        let declared = Declared::new(&class.schema, &node.inputs);
        let mut calls = Vec::new();
        let mut counter = self.counter();
        for (i, call) in mapping::spread(class.schema.input_is_list, inputs)?
            .into_iter()
            .enumerate()
        {
            cx.check_interrupt()?;
            calls.push(match call {
                Call::Blocked(message) => {
                    if let Some(message) = message {
                        self.blocked(id, node, message);
                    }
                    CallState::Done(Ok(NodeOutput::blocked(None)))
                }
                Call::Run(args) => {
                    self.check_memory()?;
                    let args: Args = declared.nest(args, false);
                    let _texts = self.claim_texts(&args)?;
                    match self.guarded(|| class.class.call(args, &cx.for_call(i)))? {
                        Flow::Done(output) => {
                            counter.add_output(&output);
                            counter.check(|| self.state.cache.forget_earlier())?;
                            CallState::Done(Ok(output))
                        }
                        Flow::Later(future) => CallState::Going(future),
                    }
                }
            });
        }
        Ok(calls)
    }

    /// Runs node code, which can tell wherever it is that the prompt was interrupted; a panic becomes the node's error.
    pub(crate) fn guarded<T>(
        &self,
        f: impl FnOnce() -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let run = || self.watch.interruptible(&self.state.config.resources, f);
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panicked(&*panic)))
    }

    /// Ends the prompt before its many small results have taken all memory and the system ends the program. The question
    /// costs some microseconds, so it is not asked for every call of a long list.
    fn check_memory(&mut self) -> Result<(), NodeError> {
        if self.memory_asked.elapsed() < ASK_MEMORY {
            return Ok(());
        }
        let left = self.state.config.memory.available_ram();
        self.memory_asked = Instant::now();
        match left {
            Some(left) if left < SPARE_MEMORY => Err(NodeError::failed(
                "MemoryError",
                format!("this machine has only {} MiB of memory left", left >> 20),
            )),
            _ => Ok(()),
        }
    }

    /// Asks for the copies that a node makes of large texts among its arguments.
    fn claim_texts(&self, args: &Args) -> Result<Option<Box<dyn Any + Send>>, NodeError> {
        let text = |value: &Value| match value {
            Value::Str(text) => text.len() as u64,
            Value::List(list) => list.iter().filter_map(Value::as_str).map(len_u64).sum(),
            _ => 0,
        };
        let bytes: u64 = args.0.values().map(text).sum();
        if bytes < LARGE_TEXT {
            return Ok(None);
        }
        let claimed = self.state.config.memory.claim(bytes);
        claimed.map(Some).map_err(|missing| {
            NodeError::failed(
                "MemoryError",
                format!(
                    "not enough memory for the texts that this node is given: they take {} MiB, {} MiB more than this \
                     machine or its container can spare",
                    bytes.div_ceil(1 << 20),
                    missing.div_ceil(1 << 20)
                ),
            )
        })
    }

    fn counter(&self) -> Counter {
        let budget = self.state.config.max_prompt_memory;
        Counter::new(&self.state.ledger, budget)
    }

    /// A result that counts against the budget of the prompt, or an error if that is used up.
    fn counted(
        &mut self,
        outputs: Vec<Vec<Value>>,
        ui: Option<Map>,
    ) -> Result<CachedOutput, NodeError> {
        let mut counter = self.counter();
        counter.add_result(&outputs, ui.as_ref());
        counter.check(|| self.state.cache.forget_earlier())?;
        let held = counter.hold();
        Ok(CachedOutput { outputs, ui, held })
    }

    fn blocked(&self, id: &Arc<str>, node: &RunNode, message: Arc<str>) {
        let (class, executed) = (node.class.clone(), self.executed.clone());
        self.watch.emit(EventKind::Blocked {
            node: id.clone(),
            class,
            executed,
            message,
        });
    }

    /// All calls are done: show what is to be shown, then expand or store.
    fn conclude(
        &mut self,
        id: &Arc<str>,
        node: &RunNode,
        class: &PromptClass,
        outputs: Vec<NodeOutput>,
    ) -> Result<(), Halt> {
        let (calls, ui) = mapping::split(outputs)?;
        if let Some(ui) = &ui {
            self.keep_ui(id, Some(ui));
            let display = self.graph.display_of(id);
            let output = Value::from(ui.clone());
            self.watch.emit(EventKind::Executed {
                node: id.clone(),
                display,
                output,
            });
        }
        if calls.iter().any(|c| c.graph.is_some()) {
            self.expand(id, node, calls, ui)?;
            return Err(Halt::Pending);
        }
        let slots = calls.into_iter().map(|c| c.slots).collect();
        let entry = self.counted(mapping::merge(&class.schema, slots), ui)?;
        self.store(id, entry);
        Ok(())
    }

    fn expand(
        &mut self,
        id: &Arc<str>,
        node: &RunNode,
        mut calls: Vec<CallResult>,
        ui: Option<Map>,
    ) -> Result<(), NodeError> {
        let mut new_ids = Vec::new();
        let mut new_nodes = HashSet::new();
        let mut output_ids = Vec::new();
        let mut sources = Vec::new();
        for call in &mut calls {
            let Some(graph) = call.graph.as_mut() else {
                continue;
            };
            for (new, sub) in std::mem::take(graph) {
                let class = self.class(&sub.class).ok_or_else(|| {
                    NodeError::failed(
                        "KeyError",
                        format!("'{}': node {id} expanded into an unknown class", sub.class),
                    )
                })?;
                if class.schema.output_node {
                    output_ids.push(new.clone());
                }
                new_nodes.insert((new.clone(), sub.class.clone()));
                self.graph.add(new.clone(), sub, id).map_err(|limit| {
                    NodeError::runtime(format!(
                        "the graph grew to more than {limit} nodes while running"
                    ))
                })?;
                new_ids.push(new);
            }
            if let Slots::Values(values) = &call.slots {
                sources.extend(values.iter().filter_map(Value::as_link).map(|l| l.node));
            }
        }
        for new in &new_ids {
            self.compute_token(new);
        }
        let keys = self.compute_keys(&new_ids);
        let mut owners = self.graph.owners_of(id);
        owners.push((id.clone(), node.class.clone()));
        self.state.cache.expand(&owners, &keys, &new_nodes);
        for output in &output_ids {
            self.schedule(output);
        }
        for source in &sources {
            self.require(source, id);
        }
        self.expansions.insert(id.clone(), Expansion { calls, ui });
        Ok(())
    }

    /// The sub-graphs are done: links in the results become values.
    fn conclude_expansion(
        &mut self,
        id: &Arc<str>,
        _node: &RunNode,
        class: &PromptClass,
        expansion: Expansion,
    ) -> Result<(), Halt> {
        let mut slots = Vec::new();
        for call in expansion.calls {
            slots.push(match (call.graph, call.slots) {
                (Some(_), Slots::Values(values)) => {
                    let mut resolved = Vec::new();
                    for value in values {
                        match value.as_link() {
                            Some(link) => {
                                let entry = self.result_of(&link.node);
                                let list = entry
                                    .as_ref()
                                    .and_then(|e| e.outputs.get(usize::try_from(link.slot).ok()?));
                                resolved.extend(list.into_iter().flatten().cloned());
                            }
                            None => resolved.push(value),
                        }
                    }
                    Slots::Values(resolved)
                }
                (_, slots) => slots,
            });
        }
        let entry = self.counted(mapping::merge(&class.schema, slots), expansion.ui)?;
        self.store(id, entry);
        Ok(())
    }

    /// A fresh result: into the cache, to its consumers, and the node counts as executed.
    fn store(&mut self, id: &Arc<str>, entry: CachedOutput) {
        let entry = Arc::new(entry);
        if let Some(key) = self.keys.get(id) {
            let owners = self.graph.owners_of(id);
            self.state.cache.set(&owners, key, entry.clone());
        }
        self.deliver(id, entry);
        self.watch.node_finished(self.graph.ids_of(id));
        self.executed.push(id.clone());
    }

    fn deliver(&mut self, id: &Arc<str>, entry: Arc<CachedOutput>) {
        if let Some(held) = self.held.borrow_mut().get_mut(id) {
            held.entry = Some(entry);
        }
    }

    fn keep_ui(&mut self, id: &Arc<str>, ui: Option<&Map>) {
        let Some(ui) = ui else { return };
        let ids = self.graph.ids_of(id);
        self.outputs.insert(id.clone(), ui.clone().into());
        let meta = map! {
            "node_id" => &ids.node,
            "display_node" => &ids.display,
            "parent_node" => ids.parent,
            "real_node_id" => &ids.real,
        };
        self.meta.insert(id.clone(), meta.into());
    }
}

/// Notes that `target` will want `source`'s result, which is kept for it from now on even if the cache drops it.
fn hold(
    held: &RefCell<HashMap<Arc<str>, HeldOutput>>,
    sources: &RefCell<HashMap<Arc<str>, Vec<Arc<str>>>>,
    view: &OrderView<'_>,
    source: &Arc<str>,
    target: &Arc<str>,
) {
    let mut held = held.borrow_mut();
    let slot = held.entry(source.clone()).or_default();
    if slot.entry.is_none() {
        slot.entry = view.peek(source);
    }
    if slot.consumers.insert(target.clone()) {
        sources
            .borrow_mut()
            .entry(target.clone())
            .or_default()
            .push(source.clone());
    }
}

/// Inputs for an error report, which is sent and stored: plain values as they are, all else in text form, the beginning
/// of what is long.
fn show_inputs(inputs: &InputLists) -> Value {
    let map: Map = inputs
        .iter()
        .map(|(name, values)| (name.clone(), cut::shown_input(values, SHOWN_BYTES)))
        .collect();
    map.into()
}

struct KeyView<'a> {
    watch: &'a Watch,
    graph: &'a DynPrompt,
    classes: &'a PromptClasses,
    tokens: &'a HashMap<Arc<str>, Value>,
    state: &'a ExecutorState,
}

impl Contributions for KeyView<'_> {
    fn of(&self, id: &str) -> Option<Contribution> {
        let node = self.graph.get(id)?;
        let class = self.classes.get(&node.class);
        let schema = class.as_ref().map(|c| &c.schema);
        let own_id = schema.is_some_and(|s| {
            // The reference does not see the hidden id of its newer classes; their results are shared between nodes.
            s.not_idempotent || (s.form == fresco_graph::Form::V1 && s.wants(Magic::UniqueId))
        });
        let mut token = self.tokens.get(id).cloned().unwrap_or(Value::Bool(false));
        // Not part of the token itself, which the prompt of saved pictures shows.
        let versions = schema.map_or_else(Vec::new, |s| self.versions(s, &node));
        if !versions.is_empty() {
            token = vec![token, versions.into()].into();
        }
        Some(Contribution {
            class: node.class,
            inputs: node.inputs,
            token,
            own_id,
        })
    }
}

impl KeyView<'_> {
    /// What the entries of lists stand for that a node names, such as the files of models.
    fn versions(&self, schema: &Schema, node: &RunNode) -> Vec<Value> {
        let Some(versions) = self.state.config.resources.get::<Versions>() else {
            return Vec::new();
        };
        let version = |input: &Input| {
            let entry = node.inputs.get(&*input.name)?.as_str()?;
            let source = input.source()?;
            // A disk is asked, which may not answer.
            let ask = || Ok((versions.0)(source, entry));
            let version = self.watch.interruptible(&self.state.config.resources, ask);
            version.ok().flatten().map(Value::from)
        };
        schema.inputs.iter().filter_map(version).collect()
    }
}

struct OrderView<'a> {
    graph: &'a DynPrompt,
    classes: &'a PromptClasses,
    keys: &'a Keys,
    state: &'a ExecutorState,
}

impl OrderView<'_> {
    fn peek(&self, id: &str) -> Option<Arc<CachedOutput>> {
        self.state
            .cache
            .peek(&self.graph.owners_of(id), self.keys.get(id)?)
    }

    fn class(&self, id: &str) -> Option<Arc<PromptClass>> {
        self.classes.get(&self.graph.get(id)?.class)
    }
}

impl Nodes for OrderView<'_> {
    fn needs(&self, id: &str) -> Vec<(Arc<str>, i64)> {
        let Some(node) = self.graph.get(id) else {
            return Vec::new();
        };
        let class = self.classes.get(&node.class);
        node.inputs
            .iter()
            .filter_map(|(name, value)| {
                let link = value.as_link()?;
                let lazy = class.as_ref().is_some_and(|c| c.scheduling.is_lazy(name));
                (!lazy).then_some((link.node, link.slot))
            })
            .collect()
    }

    fn is_cached(&self, id: &str) -> bool {
        let Some(key) = self.keys.get(id) else {
            return false;
        };
        self.state.cache.contains(&self.graph.owners_of(id), key)
    }

    fn is_output(&self, id: &str) -> bool {
        self.class(id).is_some_and(|c| c.schema.output_node)
    }

    fn is_async(&self, id: &str) -> bool {
        self.class(id).is_some_and(|c| c.class.is_async())
    }
}
