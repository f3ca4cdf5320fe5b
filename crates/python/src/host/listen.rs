//! What the process of the packs says and asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base64::Engine as _;
use fresco_graph::{
    Args, Flow, Map, NodeError, NodeOutput, Preview, PreviewFormat, Progress, Slots, Value, lock,
};

use super::{ENDS_WITHIN, Host, MAX_ENDS, PAUSES, RESTARTED};
use crate::channel::Frame;
use crate::report::{Phase, State};
use crate::segment::Outgoing;
use crate::wire::{Decoder, Encoder, refusal};
use crate::worker::{Listener, Live, thread};

impl Host {
    /// Runs a built-in node, or a method of a model, for a pack.
    fn run_node(&self, live: &Arc<Live>, frame: &Frame) -> Result<(Value, Outgoing), NodeError> {
        let wrong = |text: &str| NodeError::runtime(text);
        let outside = self
            .outside()
            .ok_or_else(|| wrong("the program is still starting"))?;
        let asked = frame
            .body
            .get("a")
            .ok_or_else(|| wrong("nothing was asked"))?;
        let name = asked.get("class").and_then(Value::as_str).unwrap_or("");
        let number = whole(asked.get("call"));
        let detached = || {
            let cx = fresco_graph::Cx::detached(outside.resources());
            (cx, Arc::default())
        };
        let (cx, sent) = live.call(number).unwrap_or_else(detached);
        let decoder = Decoder {
            live,
            numbers: frame.numbers.as_ref(),
            sent: &sent,
            pack: self.label(),
        };
        let mut args = Map::new();
        let given = asked.get("args").and_then(Value::as_map);
        for (key, value) in given.into_iter().flatten() {
            let value = decoder.value(value).map_err(NodeError::runtime)?;
            args.insert(key.clone(), value);
        }
        let mut encoder = Encoder::new(live);
        let flag = cx.services.cancel_token().flag().clone();
        // A method of a model has a point in its name, and no class does that packs could mean.
        if let Some(method) = name.strip_prefix("fresco.") {
            let run = || outside.method(method, Args(args), &cx);
            let answer = fresco_tensor::cancel::with(&flag, run)
                .ok_or_else(|| wrong(&format!("unknown method {method}")))??;
            let value = encoder.value(&answer, None).map_err(NodeError::runtime)?;
            return Ok((value, encoder.numbers));
        }
        let class = outside
            .node(name)
            .ok_or_else(|| wrong(&format!("unknown built-in node {name}")))?;
        let run = || match class.call(Args(args), &cx.for_call(0))? {
            Flow::Done(output) => Ok(output),
            Flow::Later(future) => crate::class::block_on(future),
        };
        let output = fresco_tensor::cancel::with(&flag, run)?;
        let schema = class.schema();
        let NodeOutput { slots, ui, .. } = output;
        let values = match slots {
            Slots::Values(values) => values,
            _ => Vec::new(),
        };
        let mut slots = Vec::new();
        for (slot, value) in values.iter().enumerate() {
            let declared = schema.outputs.get(slot).and_then(|output| output.ty.name());
            let value = encoder.value(value, declared);
            slots.push(value.map_err(NodeError::runtime)?);
        }
        let both: Vec<Value> = vec![slots.into(), ui.map_or(Value::Null, Value::from)];
        Ok((both.into(), encoder.numbers))
    }

    fn progress(live: &Live, said: &Map, bar: bool) {
        let Some((cx, _)) = live.call(whole(said.get("call"))) else {
            return;
        };
        let number = |key: &str| said.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let preview = said.get("preview").and_then(read_preview);
        let node = said
            .get("node")
            .and_then(Value::as_str)
            .unwrap_or(&cx.node_id);
        let (value, max) = if bar {
            (number("value").min(number("max")), number("max"))
        } else {
            (0.0, 1.0)
        };
        cx.services.progress(
            &cx.prompt_id,
            node,
            Progress {
                value,
                max,
                preview,
                bar: bar && said.get("bar").is_none_or(Value::truthy),
            },
        );
    }
}

impl Listener for Host {
    fn event(&self, live: &Arc<Live>, frame: Frame) {
        let nothing = Map::new();
        let said = frame
            .body
            .get("a")
            .and_then(Value::as_map)
            .unwrap_or(&nothing);
        let text = |key: &str| said.get(key).and_then(Value::as_str);
        let cx = || live.call(whole(said.get("call"))).map(|(cx, _)| cx);
        match frame.body.get("m").and_then(Value::as_str).unwrap_or("") {
            "release" => {
                for pair in said
                    .get("handles")
                    .and_then(Value::as_list)
                    .unwrap_or_default()
                {
                    let pair = pair.as_list().unwrap_or_default();
                    live.handles
                        .release(whole(pair.first()), whole(pair.get(1)));
                }
            }
            "segments" => {
                for pair in said
                    .get("done")
                    .and_then(Value::as_list)
                    .unwrap_or_default()
                {
                    let pair = pair.as_list().unwrap_or_default();
                    live.segments
                        .release(whole(pair.first()), whole(pair.get(1)));
                }
            }
            "folders" => {
                if let Some(outside) = self.outside() {
                    outside.folders(super::folder_table(said.get("table")));
                }
            }
            "replaced" => {
                tracing::info!(
                    "packs replaced functions of their host, which has an effect in their process only: {}",
                    text("names").unwrap_or("")
                );
            }
            "importing" => {
                // Without a name: libraries, and modules of the host.
                let Some(name) = text("pack").map(str::to_owned) else {
                    *lock(&live.importing) = None;
                    *lock(&live.speaker) = "packs".into();
                    return;
                };
                *lock(&live.speaker) = name.as_str().into();
                if let Some(pack) = lock(&self.inner).packs.iter_mut().find(|p| p.name == name) {
                    pack.state = State::Loading;
                }
                *lock(&live.importing) = Some(name);
            }
            "loaded" => {
                let name = text("pack").unwrap_or("");
                let mut inner = lock(&self.inner);
                let Some(pack) = inner.packs.iter_mut().find(|p| p.name == name) else {
                    return;
                };
                pack.update(said);
                if let Some(error) = &pack.error {
                    tracing::warn!("[{name}] cannot be imported: {error}");
                }
                for (class, before) in &pack.overridden {
                    tracing::info!("[{name}] replaces the node {class} of {before}");
                }
            }
            "progress" => Self::progress(live, said, true),
            "preview" => Self::progress(live, said, false),
            "send" => {
                let event = text("event").unwrap_or("");
                let data = said.get("data").cloned().unwrap_or_default();
                match (cx(), self.outside()) {
                    (Some(cx), _) => cx.services.send(event, data, text("sid")),
                    (None, Some(outside)) => outside.send(event, data, text("sid")),
                    (None, None) => {}
                }
            }
            "bytes" => {
                let content = text("content").unwrap_or("");
                let decoded = base64::engine::general_purpose::STANDARD.decode(content);
                let kind = u32::try_from(whole(said.get("event"))).unwrap_or(0);
                if let (Ok(bytes), Some(outside)) = (decoded, self.outside()) {
                    outside.send_bytes(kind, bytes.into(), text("sid"));
                } else {
                    tracing::debug!("packs sent bytes that are none");
                }
            }
            "outside" => {
                let (name, path) = (text("pack").unwrap_or(""), text("path").unwrap_or(""));
                let said = if said.get("refused").is_some_and(Value::truthy) {
                    "was kept from writing"
                } else {
                    "writes"
                };
                tracing::warn!("[{name}] {said} outside its folders: {path}");
                let mut inner = lock(&self.inner);
                let pack = inner.packs.iter_mut().find(|pack| pack.name == name);
                if let Some(pack) = pack.filter(|pack| pack.outside.len() < MAX_OUTSIDE) {
                    pack.outside.push(path.to_owned());
                }
            }
            "text" => {
                if let Some(cx) = cx() {
                    cx.services
                        .text(text("node").unwrap_or(""), text("text").unwrap_or(""));
                }
            }
            "flag" => {
                let value = said.get("value").cloned().unwrap_or_default();
                let name = text("name").unwrap_or("");
                match (cx(), self.outside()) {
                    (Some(cx), _) => cx.services.set_flag(name, value),
                    (None, Some(outside)) => outside.set_flag(name, value.truthy()),
                    (None, None) => {}
                }
            }
            "memory" => {
                let bytes = whole(said.get("gpu"));
                live.on_gpu.store(bytes, Ordering::Relaxed);
            }
            "interrupt" => {
                if let Some(outside) = self.outside() {
                    outside.interrupt(text("prompt"));
                }
            }
            other => tracing::debug!("packs sent an unknown message {other:?}"),
        }
    }

    fn call(&self, live: &Arc<Live>, frame: Frame) {
        let method = frame
            .body
            .get("m")
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned();
        let (Some(host), live) = (self.me.upgrade(), live.clone()) else {
            return;
        };
        let number = frame.number;
        let channel = live.channel.clone();
        if method == "back" {
            let to = whole(frame.body.get("a").and_then(|asked| asked.get("to")));
            match channel.waiting(to) {
                Some(slot) => slot.ask_back(frame),
                None => channel.refuse(number, refusal(&NodeError::Interrupted)),
            }
            return;
        }
        // On a thread of its own: it may take long, and this one reads.
        let work = move || {
            let plain = |value: Result<Value, String>| {
                value
                    .map(|value| (value, Outgoing::default()))
                    .map_err(NodeError::runtime)
            };
            let asked = frame.body.get("a").cloned().unwrap_or_default();
            let answer = match method.as_str() {
                "run_node" => host.run_node(&live, &frame),
                "class_info" => {
                    let name = asked.get("class").and_then(Value::as_str).unwrap_or("");
                    let info = host.outside().and_then(|outside| outside.node_info(name));
                    plain(
                        info.map(Value::from)
                            .ok_or_else(|| format!("unknown built-in node {name}")),
                    )
                }
                "make_room" => plain(match host.outside() {
                    Some(outside) => {
                        let text = |key: &str| asked.get(key).and_then(Value::as_str).unwrap_or("");
                        let bytes = whole(asked.get("bytes"));
                        Ok(outside
                            .make_room(bytes, text("device"), text("prompt"))
                            .into())
                    }
                    None => Err("the program is still starting".to_owned()),
                }),
                "queue" => plain(match host.outside() {
                    Some(outside) => outside.queue(&asked),
                    None => Err("the program is still starting".to_owned()),
                }),
                other => plain(Err(format!("unknown question {other:?}"))),
            };
            match answer {
                Ok((value, numbers)) => live.channel.reply(number, value, numbers),
                Err(error) => live.channel.refuse(number, refusal(&error)),
            }
        };
        if let Err(error) = thread("pack-call", work) {
            channel.refuse(number, error.to_string());
        }
    }

    fn ended(&self, live: &Arc<Live>, reason: &Arc<str>) {
        let pause = {
            let mut inner = lock(&self.inner);
            if let Some(socket) = inner.socket.take() {
                let _ = std::fs::remove_file(&*socket);
            }
            if inner.stopping {
                return;
            }
            if reason.starts_with(RESTARTED) {
                Some(Duration::ZERO)
            } else if let Some(name) = lock(&live.importing).take() {
                inner.left_out.push(name.clone());
                if let Some(pack) = inner.packs.iter_mut().find(|p| p.name == name) {
                    pack.state = State::Failed;
                    pack.error = Some(format!("its import ended the process: {reason}"));
                }
                tracing::warn!(
                    "[{name}] ended the process of the packs while it was imported, and is left out: {reason}"
                );
                // Each pack can do this once.
                Some(Duration::ZERO)
            } else {
                let now = Instant::now();
                inner.ends.push_back(now);
                while inner
                    .ends
                    .front()
                    .is_some_and(|at| now.duration_since(*at) > ENDS_WITHIN)
                {
                    inner.ends.pop_front();
                }
                let count = inner.ends.len();
                let busy: Vec<_> = lock(&live.busy).values().cloned().collect();
                let mut whose = Vec::new();
                for (class, module) in &busy {
                    super::blame(&mut inner, module, reason);
                    whose.push(format!("{class} of {module}"));
                }
                if whose.is_empty() {
                    tracing::warn!("the process of the packs ended: {reason}");
                } else {
                    let whose = whose.join(", ");
                    tracing::warn!("the process of the packs ended while it ran {whose}: {reason}");
                }
                (count <= MAX_ENDS).then(|| PAUSES[(count - 1).min(PAUSES.len() - 1)])
            }
        };
        if let Some(outside) = self.outside() {
            outside.lost(&live.owner);
        }
        let Some(pause) = pause else {
            return self.unavailable(&format!(
                "their process ended more than {MAX_ENDS} times in ten minutes; restart it with POST /fresco/packs/restart. \
                 The last time: {reason}"
            ));
        };
        lock(&self.inner).pause = Some(pause);
        if !self.is_starting() {
            self.set_phase(Phase::Restarting);
        }
    }
}

/// Places that are kept of each pack.
const MAX_OUTSIDE: usize = 20;

fn whole(value: Option<&Value>) -> u64 {
    let number = value.and_then(Value::as_int);
    number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

fn read_preview(said: &Value) -> Option<Preview> {
    let [kind, content] = said.as_list()? else {
        return None;
    };
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(content.as_str()?)
        .ok()?;
    Some(Preview {
        format: if kind.as_str() == Some("PNG") {
            PreviewFormat::Png
        } else {
            PreviewFormat::Jpeg
        },
        bytes: bytes.into(),
    })
}
