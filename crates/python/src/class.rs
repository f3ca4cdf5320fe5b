//! A class of a pack, as the engine sees it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fresco_graph::{
    Args, CancelWatch, Cx, Declaration, Flow, GraphView, LinkQuestion, LinkSources, Magic, Map,
    NodeClass, NodeError, NodeFuture, NodeOutput, NodeResult, Schema, Slots, SubGraph, SubNode,
    ValidatorInputs, Value, Verdict, json, lock, map,
};

use crate::channel::{Answer, Channel, Fault, Slot};
use crate::host::Host;
use crate::schema::Described;
use crate::segment::Outgoing;
use crate::wire::{Decoder, Encoder};
use crate::worker::{Live, nap, thread};

/// How long the process may take to say what a class declares, and to check its inputs. It bounds code of packs itself, and
/// sooner; what it cannot stop is a call into other code that does not come back.
const DESCRIBE: Duration = Duration::from_secs(10);
/// For so long the others are not asked when one did not answer: what they said before will do.
const LATE: Duration = Duration::from_secs(20);
/// For so long a class that did not say in time what it declares is not asked again.
const SLOW: Duration = Duration::from_mins(1);
/// How long a prompt that was interrupted waits for the node to notice.
const NOTICE: Duration = Duration::from_millis(700);

pub(crate) struct PackClass {
    host: Arc<Host>,
    name: Arc<str>,
    module: Arc<str>,
    owner: Arc<str>,
    /// None until it has said what it declares.
    known: RwLock<Option<Described>>,
    /// When it last did not say so in time, and what that is called.
    slow: Mutex<Option<(Instant, String)>>,
}

impl PackClass {
    /// Asks for the schema at once; a class that fails to say is there and says so when it is used.
    pub(crate) fn new(host: Arc<Host>, live: &Arc<Live>, name: Arc<str>, module: &str) -> Self {
        let class = Self {
            known: RwLock::new(None),
            slow: Mutex::new(None),
            module: module.into(),
            owner: host.owner().clone(),
            host,
            name,
        };
        if let Err(error) = class.ask_description(live) {
            tracing::warn!(
                "[{module}] {}: INPUT_TYPES failed, and the node is left out: {}",
                class.name,
                error.message()
            );
            class
                .host
                .left_out_class(module, &class.name, error.message());
        }
        class
    }

    fn description(&self) -> Option<Described> {
        self.known
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    fn known(&self) -> Described {
        self.description()
            .unwrap_or_else(|| Described::unknown(&self.name, &self.module))
    }

    /// What it declared last; a class that never said anything is left out, and not shown empty.
    fn before(&self, why: &str) -> Result<Declaration, NodeError> {
        let Some(known) = self.description() else {
            return Err(NodeError::runtime(why));
        };
        Ok(Declaration {
            schema: known.schema.clone(),
            scheduling: known.schema,
        })
    }

    fn ask_description(&self, live: &Live) -> Result<Declaration, NodeError> {
        let waits = |at: &Instant| at.elapsed() < SLOW;
        if let Some((_, why)) = lock(&self.slow).as_ref().filter(|(at, _)| waits(at)) {
            return self.before(why);
        }
        let late = lock(&live.late).clone();
        if let Some((_, class)) = late.filter(|(at, _)| at.elapsed() < LATE) {
            return self.before(&format!(
                "it could not be asked what it declares: the process of the packs is held up by {class}"
            ));
        }
        let question = map! {"class" => &self.name};
        let said = match live.channel.ask_and_wait("describe", question, DESCRIBE) {
            Ok(said) => said,
            Err(Fault::Late) => {
                let now = Instant::now();
                *lock(&live.late) = Some((now, self.name.clone()));
                let why = format!(
                    "INPUT_TYPES of {} ({}) does not come back",
                    self.name, self.module
                );
                *lock(&self.slow) = Some((now, why.clone()));
                return self.before(&why);
            }
            Err(fault) => {
                let error = self.error(fault);
                if error.kind() == "TimeoutError" {
                    let why = format!("INPUT_TYPES: {}", error.message());
                    *lock(&self.slow) = Some((Instant::now(), why));
                }
                return Err(error);
            }
        };
        let read = |index: usize| Described::read(&self.name, said.as_list()?.get(index)?);
        let (Some(plain), Some(scheduling)) = (read(0), read(1)) else {
            let text = format!("what {} declares cannot be understood", self.name);
            return Err(NodeError::runtime(text));
        };
        let declaration = Declaration {
            schema: plain.schema.clone(),
            scheduling: scheduling.schema,
        };
        let before = self
            .known
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .replace(plain);
        if before.is_none() {
            self.host.described_class(&self.module, &self.name);
        }
        *lock(&self.slow) = None;
        Ok(declaration)
    }

    fn live(&self) -> Result<Arc<Live>, NodeError> {
        self.host.live().map_err(|why| {
            let text = format!("{} ({}) cannot run: {why}", self.name, self.module);
            NodeError::failed("fresco.WorkerUnavailable", text)
        })
    }

    /// The process for what runs on its thread for nodes, which may be held up by a call that was given up.
    fn node_live(&self) -> Result<Arc<Live>, NodeError> {
        self.live()?.wait_unstuck();
        self.live()
    }

    fn error(&self, fault: Fault) -> NodeError {
        match fault {
            Fault::Died(reason) => NodeError::failed(
                "fresco.WorkerDied",
                format!(
                    "the process of the packs ended while {} ({}) was asked: {reason}",
                    self.name, self.module
                ),
            ),
            Fault::Late => {
                NodeError::runtime(format!("{} ({}) does not answer", self.name, self.module))
            }
            Fault::Given => NodeError::Interrupted,
            Fault::Raised(error) => raised(&error),
        }
    }

    /// Everything about one question of a node.
    fn question(&self, live: &Arc<Live>, args: &Args, cx: &Cx) -> Result<Question, NodeError> {
        let schema = self.known().schema;
        let mut encoder = Encoder::new(live);
        let mut encoded = Map::new();
        for (name, value) in &args.0 {
            let declared = schema.find(name).and_then(|input| input.ty.name());
            let value = encoder.value(value, declared).map_err(|problem| {
                NodeError::runtime(format!(
                    "{name} of {} ({}): {problem}",
                    self.name, self.module
                ))
            })?;
            encoded.insert(name.clone(), value);
        }
        let mut body = map! {
            "class" => &self.name,
            "prompt" => &cx.prompt_id,
            "node" => &cx.node_id,
            "client" => &cx.client,
            "index" => cx.call_index,
            "args" => encoded,
        };
        if let Some(graph) = &cx.graph {
            body.insert("display".into(), graph.display(&cx.node_id).into());
        }
        let (hidden, given) = Self::hidden(&schema, live, cx, &mut encoder)?;
        body.insert("hidden".into(), hidden.into());
        body.insert("given".into(), given.into());
        Ok(Question {
            body,
            numbers: encoder.numbers,
            sent: encoder.sent,
        })
    }

    /// Which hidden inputs there are, and those values that the process does not have yet.
    fn hidden(
        schema: &Schema,
        live: &Live,
        cx: &Cx,
        encoder: &mut Encoder<'_>,
    ) -> Result<(Map, Map), NodeError> {
        let mut names = Map::new();
        let mut given = Map::new();
        for (name, magic) in &schema.hidden {
            let Some(magic) = magic else { continue };
            names.insert(name.clone(), magic.wire().into());
            match magic {
                Magic::DynPrompt => {
                    let nodes = match &cx.graph {
                        Some(graph) => graph_rows(&**graph, encoder)?,
                        None => Vec::new(),
                    };
                    given.insert("dynprompt".into(), nodes.into());
                }
                Magic::AuthToken => {
                    given.insert("auth_token".into(), cx.hidden.auth_token.clone());
                }
                Magic::ApiKey => {
                    given.insert("api_key".into(), cx.hidden.api_key.clone());
                }
                Magic::Prompt | Magic::ExtraPngInfo | Magic::UniqueId => {}
            }
        }
        if schema.wants(Magic::Prompt) || schema.wants(Magic::ExtraPngInfo) {
            let mut knows = lock(&live.knows_prompt);
            if knows.as_ref() != Some(&cx.prompt_id) {
                given.insert("prompt".into(), json::to_string(&cx.hidden.prompt).into());
                let info = json::to_string(&cx.hidden.extra_pnginfo);
                given.insert("extra_pnginfo".into(), info.into());
                *knows = Some(cx.prompt_id.clone());
            }
        }
        Ok((names, given))
    }

    /// The Python object that belongs to this node, by number. It is dropped there when the engine drops its state.
    fn instance(live: &Arc<Live>, cx: &Cx) -> u64 {
        cx.with_state(|kept: &mut Option<Instance>| {
            let fresh = kept.as_ref().is_none_or(|i| i.owner != live.owner);
            if fresh {
                *kept = Some(Instance {
                    number: live.channel.number(),
                    owner: live.owner.clone(),
                    channel: Arc::downgrade(&live.channel),
                });
            }
            kept.as_ref().map_or(0, |instance| instance.number)
        })
    }

    /// Asks and waits, until there is an answer or the prompt is interrupted.
    fn ask(
        &self,
        live: &Arc<Live>,
        method: &'static str,
        question: Question,
        cx: &Cx,
    ) -> CallAnswer {
        let pending = self.send(live, method, question, cx);
        let answer = pending.slot.wait(None, NOTICE);
        if matches!(answer, Err(Fault::Given)) {
            self.give_up(live, pending.number);
        }
        pending.finish(answer)
    }

    fn send(&self, live: &Arc<Live>, method: &'static str, question: Question, cx: &Cx) -> Pending {
        let number = live.channel.number();
        let sent = Arc::new(question.sent);
        lock(&live.calls).insert(number, (cx.clone(), sent.clone()));
        let who = (self.name.clone(), self.module.clone());
        lock(&live.busy).insert(number, who);
        *lock(&live.speaker) = self
            .module
            .strip_prefix("custom_nodes.")
            .unwrap_or(&self.module)
            .into();
        let slot = live
            .channel
            .ask(number, method, question.body, question.numbers);
        let (stopped, channel, prompt) = (
            slot.clone(),
            Arc::downgrade(&live.channel),
            cx.prompt_id.clone(),
        );
        let watch = cx.services.cancel_token().on_raise(move || {
            if let Some(channel) = channel.upgrade() {
                channel.event("interrupt", map! {"prompt" => &prompt});
            }
            stopped.stop();
        });
        Pending {
            live: live.clone(),
            number,
            slot,
            sent,
            _watch: watch,
        }
    }

    /// The prompt does not wait any longer. A process that still does not come back from the call is ended.
    fn give_up(&self, live: &Arc<Live>, number: u64) {
        *lock(&live.stuck) = Some(number);
        let (live, grace) = (live.clone(), self.host.interrupt_grace());
        let (name, module) = (self.name.clone(), self.module.clone());
        let host = Arc::downgrade(&self.host);
        let watch = move || {
            nap(grace);
            if live.channel.is_waiting(number) {
                tracing::warn!(
                    "{name} of {module} ignores the interrupt; the process of the packs is ended"
                );
                if let Some(host) = host.upgrade() {
                    host.blame(&module, &format!("{name} did not heed an interrupt"));
                }
                live.kill("a node did not heed an interrupt");
            }
        };
        if thread("pack-grace", watch).is_err() {
            tracing::warn!("nobody watches whether {} ends", self.name);
        }
    }

    fn read(&self, live: &Arc<Live>, answered: CallAnswer, cx: &Cx) -> NodeResult {
        let (body, numbers) = answered.answer.map_err(|fault| self.error(fault))?;
        let decoder = Decoder {
            live,
            numbers: numbers.as_ref(),
            sent: &answered.sent,
            pack: &self.module,
        };
        if let Some(changes) = body
            .get("changes")
            .and_then(Value::as_map)
            .filter(|c| !c.is_empty())
        {
            let read = |key: &str| json::parse(changes.get(key)?.as_str()?).ok();
            cx.services
                .change_hidden(read("prompt"), read("extra_pnginfo"));
        }
        read_output(&body, &decoder).map_err(NodeError::runtime)
    }
}

/// What is sent for one question.
struct Question {
    body: Map,
    numbers: Outgoing,
    sent: Vec<Value>,
}

/// A question on its way.
struct Pending {
    live: Arc<Live>,
    number: u64,
    slot: Arc<Slot>,
    sent: Arc<Vec<Value>>,
    _watch: CancelWatch,
}

struct CallAnswer {
    answer: Answer,
    sent: Arc<Vec<Value>>,
}

impl Pending {
    fn finish(self, answer: Answer) -> CallAnswer {
        CallAnswer {
            answer,
            sent: self.sent.clone(),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.live.calls).remove(&self.number);
        lock(&self.live.busy).remove(&self.number);
    }
}

/// A Python object that belongs to a node.
struct Instance {
    number: u64,
    owner: Arc<str>,
    channel: Weak<Channel>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.event("release", map! {"instances" => vec![self.number]});
        }
    }
}

impl NodeClass for PackClass {
    fn schema(&self) -> Arc<Schema> {
        self.known().schema
    }

    fn describe(&self) -> Result<Declaration, NodeError> {
        match self.host.live_now() {
            Some(live) => self.ask_description(&live),
            // It comes back; until then what was said last is what it declares.
            None => self.before("it has not said yet what it declares"),
        }
    }

    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }

    fn call(&self, args: Args, cx: &Cx) -> Result<Flow, NodeError> {
        let live = self.node_live()?;
        let mut question = self.question(&live, &args, cx)?;
        let instance = Self::instance(&live, cx);
        question.body.insert("instance".into(), instance.into());
        if !self.known().is_async {
            let answered = self.ask(&live, "call", question, cx);
            return self.read(&live, answered, cx).map(Flow::Done);
        }
        let pending = self.send(&live, "call", question, cx);
        let class = Self {
            host: self.host.clone(),
            name: self.name.clone(),
            module: self.module.clone(),
            owner: self.owner.clone(),
            known: RwLock::new(self.description()),
            slow: Mutex::new(None),
        };
        let future: NodeFuture = Box::pin(Later {
            class,
            pending: Some(pending),
            cx: cx.clone(),
        });
        Ok(Flow::Later(future))
    }

    fn is_async(&self) -> bool {
        self.known().is_async
    }

    fn has_lazy(&self) -> bool {
        self.known().lazy
    }

    fn check_lazy(&self, args: Args, cx: &Cx) -> Result<Vec<String>, NodeError> {
        let live = self.node_live()?;
        let mut question = self.question(&live, &args, cx)?;
        question
            .body
            .insert("instance".into(), Self::instance(&live, cx).into());
        let answered = self.ask(&live, "lazy", question, cx);
        let (names, _) = answered.answer.map_err(|fault| self.error(fault))?;
        let names = names.as_list().unwrap_or_default();
        Ok(names
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect())
    }

    fn has_fingerprint(&self) -> bool {
        self.known().changed
    }

    fn fingerprint(&self, args: Args, cx: &Cx) -> Result<Value, NodeError> {
        let live = self.node_live()?;
        let question = self.question(&live, &args, cx)?;
        let answered = self.ask(&live, "changed", question, cx);
        let (token, _) = answered.answer.map_err(|fault| self.error(fault))?;
        let decoder = Decoder {
            live: &live,
            numbers: None,
            sent: &[],
            pack: &self.module,
        };
        decoder.value(&token).map_err(NodeError::runtime)
    }

    fn validator(&self) -> Option<Arc<ValidatorInputs>> {
        self.known().validator
    }

    fn validate_linked(
        &self,
        args: Args,
        types: &Map,
        sources: &LinkSources,
        _cx: &Cx,
    ) -> Result<Verdict, NodeError> {
        let live = self.live()?;
        let sources: Map = sources
            .iter()
            .map(|(input, (class, slot))| {
                (
                    input.clone(),
                    vec![Value::from(class), (*slot).into()].into(),
                )
            })
            .collect();
        let question = map! {
            "class" => &self.name,
            "args" => args.0,
            "types" => types.clone(),
            "sources" => sources,
        };
        let verdict = live.channel.ask_and_wait("validate", question, DESCRIBE);
        Ok(match verdict.map_err(|fault| self.error(fault))? {
            Value::Bool(true) => Verdict::Ok,
            Value::Str(text) => Verdict::Because(text.to_string()),
            _ => Verdict::Rejected,
        })
    }

    fn matches(&self, link: &LinkQuestion<'_>) -> Option<bool> {
        let known = self.known();
        let target =
            link.target == &*self.name && known.own_inputs.iter().any(|i| &**i == link.input);
        let source = link.source == &*self.name && known.own_outputs.contains(&link.slot);
        if !target && !source {
            return None;
        }
        let none = fresco_graph::NoListings;
        let question = map! {
            "received" => map! {
                "class" => link.source,
                "slot" => link.slot,
                "type" => link.received.to_value(&none),
            },
            "declared" => map! {
                "class" => link.target,
                "input" => link.input,
                "type" => link.declared.to_value(&none),
            },
        };
        let live = self.live().ok()?;
        let answer = live.channel.ask_and_wait("match", question, DESCRIBE);
        answer.ok().and_then(|value| value.as_bool())
    }
}

/// An asynchronous call that goes on.
struct Later {
    class: PackClass,
    pending: Option<Pending>,
    cx: Cx,
}

impl Future for Later {
    type Output = NodeResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NodeResult> {
        let Some(pending) = &self.pending else {
            return Poll::Ready(Err(NodeError::runtime(
                "the call was asked for its end twice",
            )));
        };
        let Some(answer) = pending.slot.poll(context.waker()) else {
            return Poll::Pending;
        };
        let live = pending.live.clone();
        let Some(pending) = self.pending.take() else {
            return Poll::Pending;
        };
        let answered = pending.finish(answer);
        Poll::Ready(self.class.read(&live, answered, &self.cx))
    }
}

/// Waits for a future on this thread.
pub(crate) fn block_on(mut future: NodeFuture) -> NodeResult {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        std::thread::park();
    }
}

pub(crate) fn raised(error: &Value) -> NodeError {
    let flag = |key: &str| error.get(key).is_some_and(Value::truthy);
    let text = |key: &str| {
        error
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    if let Some(plain) = error.as_str() {
        return NodeError::runtime(plain);
    }
    if flag("interrupted") {
        return NodeError::Interrupted;
    }
    if flag("memory") {
        return NodeError::OutOfMemory {
            message: text("message"),
        };
    }
    let trace = error
        .get("trace")
        .and_then(Value::as_list)
        .unwrap_or_default();
    NodeError::Failed {
        kind: text("type"),
        message: text("message"),
        trace: trace
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    }
}

pub(crate) fn error_text(error: &Value) -> String {
    let error = raised(error);
    format!("{}: {}", error.kind(), error.message())
}

fn read_output(body: &Value, decoder: &Decoder<'_>) -> Result<NodeOutput, String> {
    let mut output = NodeOutput::default();
    if let Some(Value::Map(ui)) = body.get("ui") {
        output.ui = Some((**ui).clone());
    }
    if let Some(nodes) = body.get("expand").and_then(Value::as_list) {
        output.expand = Some(read_graph(nodes, decoder)?);
    }
    if let Some(blocked) = body.get("blocked") {
        output.slots = Slots::Blocked(blocked.as_str().map(Into::into));
    } else if let Some(slots) = body.get("slots").and_then(Value::as_list) {
        let values: Result<Vec<Value>, String> =
            slots.iter().map(|slot| decoder.value(slot)).collect();
        output.slots = Slots::Values(values?);
    }
    Ok(output)
}

fn read_graph(nodes: &[Value], decoder: &Decoder<'_>) -> Result<SubGraph, String> {
    let mut graph = SubGraph::new();
    for node in nodes {
        let Some(
            [
                Value::Str(id),
                Value::Str(class),
                Value::Map(inputs),
                display,
            ],
        ) = node.as_list()
        else {
            return Err("an expansion of a pack is not a graph".into());
        };
        let mut read = Map::new();
        for (name, value) in inputs.iter() {
            read.insert(name.clone(), decoder.value(value)?);
        }
        let sub = SubNode {
            class: class.clone(),
            inputs: read,
            display: display.as_str().map(Into::into),
        };
        graph.insert(id.clone(), sub);
    }
    Ok(graph)
}

/// The running graph for `DYNPROMPT`. What only we can look into a pack can still hand on in an expansion.
fn graph_rows(graph: &dyn GraphView, encoder: &mut Encoder<'_>) -> Result<Vec<Value>, NodeError> {
    let mut rows = Vec::new();
    for id in graph.ids() {
        let Some(node) = graph.node(&id) else {
            continue;
        };
        let mut inputs = Map::new();
        for (name, value) in &node.inputs {
            let value = encoder.held(value).map_err(NodeError::runtime)?;
            inputs.insert(name.clone(), value);
        }
        let row: Vec<Value> = vec![
            Value::from(&id),
            Value::from(&node.class),
            inputs.into(),
            graph.parent(&id).into(),
            graph.display(&id).into(),
        ];
        rows.push(row.into());
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_packs_keep_their_type() {
        let error = json::parse(
            r#"{"type":"pack.MyError","message":"no","trace":["a","b"],"interrupted":false}"#,
        )
        .unwrap();
        let error = raised(&error);
        assert_eq!(
            (error.kind(), error.message(), error.trace().len()),
            ("pack.MyError", "no", 2)
        );
        let error = raised(&json::parse(r#"{"interrupted":true}"#).unwrap());
        assert!(matches!(error, NodeError::Interrupted));
    }
}
