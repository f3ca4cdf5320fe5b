//! Values in the form in which they travel.
//!
//! Plain values are JSON. An object with one key that begins with `$` is something else: `$t` a tensor, `$r` a value that
//! the Python process holds, `$h` one that we hold, `$s` one that was sent with the question and comes back unchanged, `$o`
//! a value in parts, `$f` a number that JSON cannot write, `$b` a blocker, `$m` an object whose keys look like these.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fresco_graph::{Back, Callback, Map, NodeError, Opaque, Parts, Value, lock, map};
use fresco_tensor::Tensor;

use crate::channel::{Fault, NextMessage};
use crate::segment::{Incoming, Outgoing, in_main_memory};
use crate::worker::Live;

/// How deep a value of a Python process may be.
const DEPTH: usize = 80;

/// A value that a Python process holds.
pub(crate) struct PackValue {
    pub(crate) number: u64,
    kind: Arc<str>,
    text: Arc<str>,
    bytes: u64,
    /// The process, and the pack that made it.
    owner: Arc<str>,
    pack: Arc<str>,
    live: Weak<Live>,
}

impl Opaque for PackValue {
    fn describe(&self) -> String {
        format!("{} of a Python pack: {}", self.kind, self.text)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn owner(&self) -> Option<&Arc<str>> {
        Some(&self.owner)
    }

    fn callback(&self) -> Option<&dyn Callback> {
        Some(self)
    }
}

impl Drop for PackValue {
    fn drop(&mut self) {
        if let Some(live) = self.live.upgrade() {
            let one = Value::from(vec![Value::from(self.number), Value::from(1)]);
            live.channel.event("release", map! {"values" => vec![one]});
        }
    }
}

/// Between two looks whether the work is still wanted.
const LOOK: Duration = Duration::from_millis(50);

impl Callback for PackValue {
    fn call(
        &self,
        method: &str,
        arguments: Vec<Value>,
        back: &mut Back<'_>,
    ) -> Result<Value, NodeError> {
        let gone = || {
            let text = format!("{} is gone: its Python process ended", self.text);
            NodeError::failed("fresco.WorkerDied", text)
        };
        let live = self.live.upgrade().ok_or_else(gone)?;
        let mut encoder = Encoder::new(&live);
        let encoded: Result<Vec<Value>, String> = arguments
            .iter()
            .map(|argument| encoder.value(argument, None))
            .collect();
        let question = map! {
            "value" => self.number,
            "method" => method,
            "args" => encoded.map_err(NodeError::runtime)?,
        };
        let number = live.channel.number();
        let sent = encoder.sent;
        let slot = live
            .channel
            .ask(number, "callback", question, encoder.numbers);
        let cancel = fresco_tensor::cancel::Cancel::current();
        loop {
            match slot.next(LOOK) {
                NextMessage::Nothing if cancel.is_raised() => {
                    live.channel.event("stop", map! {"callback" => number});
                    return Err(NodeError::Interrupted);
                }
                NextMessage::Nothing => {}
                NextMessage::Answer(answer) => {
                    let (value, numbers) = answer.map_err(|fault| match fault {
                        Fault::Raised(error) => crate::class::raised(&error),
                        _ => gone(),
                    })?;
                    let decoder = Decoder {
                        live: &live,
                        numbers: numbers.as_ref(),
                        sent: &sent,
                        pack: &self.pack,
                    };
                    return decoder.value(&value).map_err(NodeError::runtime);
                }
                NextMessage::Question(frame) => answer_back(&live, &frame, &sent, back),
            }
        }
    }
}

/// Answers what a function asks while it runs.
fn answer_back(
    live: &Arc<Live>,
    frame: &crate::channel::Frame,
    sent: &[Value],
    back: &mut Back<'_>,
) {
    let asked = frame.body.get("a");
    let mut read = || -> Result<Value, NodeError> {
        let what = asked.and_then(|a| a.get("what")).and_then(Value::as_str);
        let decoder = Decoder {
            live,
            numbers: frame.numbers.as_ref(),
            sent,
            pack: "packs",
        };
        let given = asked.and_then(|a| a.get("args")).and_then(Value::as_list);
        let given: Result<Vec<Value>, String> = given
            .unwrap_or_default()
            .iter()
            .map(|value| decoder.value(value))
            .collect();
        back(what.unwrap_or(""), given.map_err(NodeError::runtime)?)
    };
    let answer = read().and_then(|value| {
        let mut encoder = Encoder::new(live);
        let value = encoder.value(&value, None).map_err(NodeError::runtime)?;
        Ok((value, encoder.numbers))
    });
    match answer {
        Ok((value, numbers)) => live.channel.reply(frame.number, value, numbers),
        Err(error) => live.channel.refuse(frame.number, refusal(&error)),
    }
}

/// An error of ours as the process understands it.
pub(crate) fn refusal(error: &NodeError) -> Value {
    map! {
        "type" => error.kind(),
        "message" => error.message(),
        "interrupted" => matches!(error, NodeError::Interrupted),
        "memory" => matches!(error, NodeError::OutOfMemory { .. }),
    }
    .into()
}

/// Values of ours that a Python process holds.
#[derive(Default)]
pub(crate) struct Handles(Mutex<HandleTable>);

#[derive(Default)]
struct HandleTable {
    next: u64,
    by_address: HashMap<usize, u64>,
    held: BTreeMap<u64, (Value, usize, u64)>,
}

impl Handles {
    fn lend(&self, object: &Arc<dyn Opaque>) -> u64 {
        let mut table = lock(&self.0);
        let address = Arc::as_ptr(object).cast::<()>() as usize;
        let known = table.by_address.get(&address).copied();
        let number = known.unwrap_or_else(|| {
            table.next += 1;
            let number = table.next;
            table.by_address.insert(address, number);
            let value = Value::Object(object.clone());
            table.held.insert(number, (value, address, 0));
            number
        });
        if let Some((_, _, count)) = table.held.get_mut(&number) {
            *count += 1;
        }
        number
    }

    pub(crate) fn release(&self, number: u64, count: u64) {
        let mut table = lock(&self.0);
        let Some((_, address, held)) = table.held.get_mut(&number) else {
            return;
        };
        *held = held.saturating_sub(count);
        if *held == 0 {
            let address = *address;
            table.held.remove(&number);
            table.by_address.remove(&address);
        }
    }

    /// A message with our own values in place of their numbers. Done by the thread that reads, because the next message may
    /// let go of them.
    pub(crate) fn resolve(&self, value: Value, depth: usize) -> Value {
        if depth > DEPTH {
            return value;
        }
        match value {
            Value::List(items) => {
                let items = Arc::unwrap_or_clone(items);
                let items = items.into_iter().map(|item| self.resolve(item, depth + 1));
                items.collect::<Vec<_>>().into()
            }
            Value::Map(members) => {
                if let Some((key, content)) = only(&members)
                    && &**key == "$h"
                    && let Some(number) = content.as_int().and_then(|n| u64::try_from(n).ok())
                    && let Some(held) = self.get(number)
                {
                    return held;
                }
                let members = Arc::unwrap_or_clone(members);
                let members = members
                    .into_iter()
                    .map(|(key, member)| (key, self.resolve(member, depth + 1)));
                members.collect::<Map>().into()
            }
            plain => plain,
        }
    }

    fn get(&self, number: u64) -> Option<Value> {
        lock(&self.0)
            .held
            .get(&number)
            .map(|(value, ..)| value.clone())
    }
}

/// Collects one message.
pub(crate) struct Encoder<'a> {
    live: &'a Arc<Live>,
    pub(crate) numbers: Outgoing,
    /// Values that may come back as they are.
    pub(crate) sent: Vec<Value>,
    /// Everything opaque goes as something to hold, not to look into.
    by_handle: bool,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(live: &'a Arc<Live>) -> Self {
        Self {
            live,
            numbers: Outgoing::with(&live.segments),
            sent: Vec::new(),
            by_handle: false,
        }
    }

    /// A value whose opaque parts the process can only hold and give back.
    pub(crate) fn held(&mut self, value: &Value) -> Result<Value, String> {
        let before = std::mem::replace(&mut self.by_handle, true);
        let encoded = self.value(value, None);
        self.by_handle = before;
        encoded
    }

    /// `declared` is the type of the input or output it is for.
    pub(crate) fn value(&mut self, value: &Value, declared: Option<&str>) -> Result<Value, String> {
        Ok(match value {
            Value::Float(f) if !f.is_finite() => map! {"$f" => python_float(*f)}.into(),
            Value::List(items) => {
                let items: Result<Vec<Value>, String> = items
                    .iter()
                    .map(|item| self.value(item, declared))
                    .collect();
                items?.into()
            }
            Value::Map(members) => {
                let mut out = Map::with_capacity(members.len());
                for (key, member) in members.iter() {
                    out.insert(key.clone(), self.value(member, None)?);
                }
                if out.keys().any(|key| key.starts_with('$')) {
                    let pairs: Vec<Value> = out
                        .into_iter()
                        .map(|(key, member)| vec![Value::Str(key), member].into())
                        .collect();
                    map! {"$m" => pairs}.into()
                } else {
                    out.into()
                }
            }
            Value::Object(object) => self.object(object, declared)?,
            Value::Blocker(message) => map! {"$b" => message.clone()}.into(),
            plain => plain.clone(),
        })
    }

    fn object(
        &mut self,
        object: &Arc<dyn Opaque>,
        declared: Option<&str>,
    ) -> Result<Value, String> {
        let any: &dyn std::any::Any = &**object;
        if let Some(theirs) = any.downcast_ref::<PackValue>() {
            if theirs.owner == self.live.owner {
                return Ok(map! {"$r" => theirs.number}.into());
            }
            let process = |owner: &str| owner.split('#').next().unwrap_or("").to_owned();
            if process(&theirs.owner) != process(&self.live.owner) {
                return Err(format!(
                    "{} of {} lives in another Python process, and only plain values and tensors go from one to the other; \
                     let both packs share one: leave them out of --isolate-packs",
                    theirs.text, theirs.pack
                ));
            }
            return Err(format!(
                "{} was made by a Python process that has ended since; run the workflow again",
                theirs.describe()
            ));
        }
        let split = if self.by_handle {
            None
        } else {
            self.live.codec.split(&**object)
        };
        match split {
            Some(parts) if &*parts.kind == "tensor" && parts.tensors.len() == 1 => {
                self.sent.push(Value::Object(object.clone()));
                let index = self.sent.len() as i64 - 1;
                self.tensor(&parts.tensors[0], index, Some(object))
            }
            Some(parts) => {
                let plain = self.value(&parts.plain.into(), None)?;
                let tensors: Result<Vec<Value>, String> = parts
                    .tensors
                    .iter()
                    .map(|t| self.tensor(t, -1, None))
                    .collect();
                let parts = map! {"kind" => &parts.kind, "plain" => plain, "tensors" => tensors?};
                Ok(map! {"$o" => parts}.into())
            }
            None => {
                let number = self.live.handles.lend(object);
                let text = object.describe();
                let kind = handle_kind(declared, &text);
                let handle = vec![Value::from(number), kind.into(), text.into()];
                Ok(map! {"$h" => handle}.into())
            }
        }
    }

    /// `whole` is the value that the tensor is, and that keeps it as it is.
    fn tensor(
        &mut self,
        tensor: &Tensor,
        index: i64,
        whole: Option<&Arc<dyn Opaque>>,
    ) -> Result<Value, String> {
        let tensor = in_main_memory(tensor).map_err(|error| error.to_string())?;
        let shape: Vec<Value> = tensor.shape().iter().map(|side| (*side).into()).collect();
        let lent = whole.and_then(|object| self.numbers.lend(object, &tensor));
        let offset = if lent.is_some() {
            0
        } else {
            self.numbers.add(tensor)
        };
        let place: [Value; 4] = [offset.into(), shape.into(), index.into(), lent.into()];
        Ok(map! {"$t" => place}.into())
    }
}

/// Which of the host's classes stands for a value of ours.
fn handle_kind(declared: Option<&str>, text: &str) -> &'static str {
    match declared {
        Some("MODEL") => "model",
        Some("CLIP") => "clip",
        Some("VAE") => "vae",
        Some("CONTROL_NET") => "control_net",
        Some("CLIP_VISION") => "clip_vision",
        Some("NOISE") => "noise",
        Some("SAMPLER") => "sampler",
        Some("GUIDER") => "guider",
        Some("HOOKS") => "hooks",
        Some("UPSCALE_MODEL") => "upscale_model",
        _ if text.starts_with("control net") => "control_net",
        _ if text.contains("text encoder") => "clip",
        _ if text.contains("vision encoder") => "clip_vision",
        _ if text.contains("autoencoder") || text.contains("VAE") => "vae",
        _ if text.starts_with("model ") => "model",
        _ if text.starts_with("sampler ") => "sampler",
        _ if text.starts_with("guider ") => "guider",
        _ if text.contains("upscale model") => "upscale_model",
        _ => "object",
    }
}

fn python_float(f: f64) -> &'static str {
    if f.is_nan() {
        "nan"
    } else if f > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

/// Puts values of a message together.
pub(crate) struct Decoder<'a> {
    pub(crate) live: &'a Arc<Live>,
    pub(crate) numbers: Option<&'a Incoming>,
    pub(crate) sent: &'a [Value],
    /// Whose values they are.
    pub(crate) pack: &'a str,
}

impl Decoder<'_> {
    pub(crate) fn value(&self, value: &Value) -> Result<Value, String> {
        self.at(value, 0)
    }

    fn at(&self, value: &Value, depth: usize) -> Result<Value, String> {
        if depth > DEPTH {
            return Err("a value of a pack is nested too deeply".into());
        }
        match value {
            Value::List(items) => {
                let items: Result<Vec<Value>, String> =
                    items.iter().map(|item| self.at(item, depth + 1)).collect();
                Ok(items?.into())
            }
            Value::Map(members) => {
                if let Some((key, content)) = only(members) {
                    return self.special(key, content, depth);
                }
                self.members(members.iter(), depth)
            }
            plain => Ok(plain.clone()),
        }
    }

    fn members<'m>(
        &self,
        members: impl Iterator<Item = (&'m Arc<str>, &'m Value)>,
        depth: usize,
    ) -> Result<Value, String> {
        let mut out = Map::new();
        for (key, member) in members {
            out.insert(key.clone(), self.at(member, depth + 1)?);
        }
        Ok(out.into())
    }

    fn special(&self, key: &str, content: &Value, depth: usize) -> Result<Value, String> {
        let wrong = || format!("a value of a pack is marked {key} and is not one");
        match key {
            "$t" => self.join("tensor".into(), Map::new(), vec![self.tensor(content)?]),
            "$s" => {
                let index = content.as_int().and_then(|i| usize::try_from(i).ok());
                index
                    .and_then(|i| self.sent.get(i).cloned())
                    .ok_or_else(wrong)
            }
            "$h" => content
                .as_int()
                .and_then(|number| u64::try_from(number).ok())
                .and_then(|number| self.live.handles.get(number))
                .ok_or_else(|| {
                    "a pack gave back an object that Fresco does not hold any more".into()
                }),
            "$r" => self.reference(content).ok_or_else(wrong),
            "$f" => {
                let text = content.as_str().ok_or_else(wrong)?;
                Ok(Value::Float(text.parse().map_err(|_| wrong())?))
            }
            "$b" => Ok(Value::Blocker(content.as_str().map(Into::into))),
            "$o" => {
                let kind = content
                    .get("kind")
                    .and_then(Value::as_str)
                    .ok_or_else(wrong)?;
                let plain = match self.at(content.get("plain").ok_or_else(wrong)?, depth + 1)? {
                    Value::Map(plain) => Arc::unwrap_or_clone(plain),
                    _ => return Err(wrong()),
                };
                let tensors = content
                    .get("tensors")
                    .and_then(Value::as_list)
                    .ok_or_else(wrong)?;
                let tensors: Result<Vec<Tensor>, String> = tensors
                    .iter()
                    .map(|tensor| self.tensor(tensor.get("$t").ok_or_else(wrong)?))
                    .collect();
                self.join(kind.into(), plain, tensors?)
            }
            "$m" => {
                let pairs = content.as_list().ok_or_else(wrong)?;
                let mut out = Map::new();
                for pair in pairs {
                    let Some([Value::Str(key), member]) = pair.as_list() else {
                        return Err(wrong());
                    };
                    out.insert(key.clone(), self.at(member, depth + 1)?);
                }
                Ok(out.into())
            }
            _ => Err(wrong()),
        }
    }

    fn join(&self, kind: Arc<str>, plain: Map, tensors: Vec<Tensor>) -> Result<Value, String> {
        let parts = Parts {
            kind,
            plain,
            tensors,
        };
        self.live.codec.join(parts).map_err(|e| e.to_string())
    }

    fn tensor(&self, content: &Value) -> Result<Tensor, String> {
        let place = content.as_list().unwrap_or_default();
        let (Some(offset), Some(shape)) = (
            place.first().and_then(Value::as_int),
            place.get(1).and_then(Value::as_list),
        ) else {
            return Err("a tensor of a pack has no place or shape".into());
        };
        let shape: Option<Vec<usize>> = shape
            .iter()
            .map(|side| usize::try_from(side.as_int()?).ok())
            .collect();
        let shape = shape.ok_or("a tensor of a pack has an impossible shape")?;
        if shape.contains(&0) {
            return Tensor::zeros(shape).map_err(|error| error.to_string());
        }
        let offset = u64::try_from(offset).map_err(|_| "a tensor of a pack has no place")?;
        let numbers = self
            .numbers
            .ok_or("a tensor of a pack came without numbers")?;
        numbers.tensor(offset, shape)
    }

    fn reference(&self, content: &Value) -> Option<Value> {
        let [number, kind, text, bytes] = content.as_list()? else {
            return None;
        };
        let whole = |value: &Value| u64::try_from(value.as_int()?).ok();
        Some(Value::object(PackValue {
            number: whole(number)?,
            kind: kind.as_str()?.into(),
            text: text.as_str()?.into(),
            bytes: whole(bytes).unwrap_or(0),
            owner: self.live.owner.clone(),
            pack: self.pack.into(),
            live: Arc::downgrade(self.live),
        }))
    }
}

/// The only member of an object, if its key says that the object is something else.
fn only(members: &Map) -> Option<(&Arc<str>, &Value)> {
    let first = members.first()?;
    (members.len() == 1 && first.0.starts_with('$')).then_some(first)
}
