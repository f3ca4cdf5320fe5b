//! Fixture nodes of the acceptance cases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use fresco_graph::*;

macro_rules! node {
    ($ty:ident, |$me:ident, $cx:ident| $body:expr) => {
        impl Node for $ty {
            fn run(self, $cx: &Cx) -> NodeResult {
                let $me = self;
                $body
            }
        }
    };
}

fn shown(value: &Value) -> Map {
    map! {"value" => vec![value.clone()]}
}

#[derive(Node)]
#[node(id = "Image", v1, outputs("IMAGE"))]
pub struct Image {
    #[input(default = 0.0)]
    value: f64,
    #[input(optional, default = 1, min = 1, max = 64)]
    size: Option<i64>,
}
// A picture of size 1 is its number; of another size a map, so that sizes can clash.
node!(Image, |me, _cx| Ok(NodeOutput::one(match me.size {
    None | Some(1) => Value::from(me.value),
    Some(size) => map! {"v" => me.value, "size" => size}.into(),
})));

#[derive(Node)]
#[node(id = "Save", v1, output_node)]
pub struct Save {
    #[input(ty = "IMAGE")]
    image: Value,
}
node!(Save, |me, _cx| Ok(NodeOutput::ui(shown(&me.image))));

/// An output node that also has an output.
#[derive(Node)]
#[node(id = "Scale", v1, output_node, outputs("IMAGE"))]
pub struct Scale {
    #[input(ty = "IMAGE")]
    image: f64,
}
node!(Scale, |me, _cx| Ok(
    NodeOutput::one(me.image / 2.0).with_ui(shown(&me.image.into()))
));

#[derive(Node)]
#[node(id = "SaveAny", v1, output_node)]
pub struct SaveAny {
    #[input(ty = "*")]
    value: Value,
}
node!(SaveAny, |me, _cx| Ok(NodeOutput::ui(shown(&me.value))));

/// Passes its picture on, with a warning.
#[derive(Node)]
#[node(id = "Warn", v1, outputs("IMAGE"))]
pub struct Warn {
    #[input(ty = "IMAGE")]
    image: f64,
}
node!(Warn, |me, _cx| Ok(
    NodeOutput::one(me.image).with_ui(map! {"warnings" => vec![Value::from("odd")]})
));

#[derive(Node)]
#[node(id = "Quiet", v1, output_node)]
pub struct Quiet {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "the node only exists to be an output")]
    value: Value,
}
node!(Quiet, |_me, _cx| Ok(NodeOutput::default()));

#[derive(Node)]
#[node(id = "LazyMix", v1, outputs("IMAGE"))]
pub struct LazyMix {
    #[input(ty = "IMAGE", lazy = true)]
    image1: Value,
    #[input(ty = "IMAGE", lazy = true)]
    image2: Value,
    #[input(ty = "MASK,FLOAT")]
    mask: f64,
}
impl Node for LazyMix {
    const LAZY: bool = true;
    fn check_lazy(args: Args, _: &Cx) -> Result<Vec<String>, NodeError> {
        let mask = args.get("mask").and_then(Value::as_f64).unwrap_or(0.5);
        let mut needed = Vec::new();
        for (name, skip_at) in [("image1", 1.0), ("image2", 0.0)] {
            if args.get(name).is_none_or(Value::is_null) && mask != skip_at {
                needed.push(name.to_owned());
            }
        }
        Ok(needed)
    }
    fn run(self, _: &Cx) -> NodeResult {
        if self.image1.as_map().is_some() != self.image2.as_map().is_some()
            && !self.image1.is_null()
            && !self.image2.is_null()
        {
            return Err(NodeError::runtime(
                "The size of tensor a (1) must match the size of tensor b (2)",
            ));
        }
        let (a, b) = (
            self.image1.as_f64().unwrap_or(0.0),
            self.image2.as_f64().unwrap_or(0.0),
        );
        Ok(NodeOutput::one(a * (1.0 - self.mask) + b * self.mask))
    }
}

/// Asks for inputs that cannot be had.
#[derive(Node)]
#[node(id = "LazyWrong", v1, outputs("INT"))]
pub struct LazyWrong {
    #[input(lazy = true)]
    #[expect(dead_code, reason = "never read: the node fails before")]
    value: i64,
    which: String,
}
impl Node for LazyWrong {
    const LAZY: bool = true;
    fn check_lazy(args: Args, _: &Cx) -> Result<Vec<String>, NodeError> {
        Ok(vec![
            args.get("which")
                .and_then(Value::as_str)
                .unwrap_or("value")
                .to_owned(),
        ])
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.which))
    }
}

#[derive(Node)]
#[node(id = "Average", v1, outputs("IMAGE"))]
pub struct Average {
    #[input(ty = "IMAGE")]
    input1: f64,
    #[input(rest)]
    others: Map,
}
node!(Average, |me, _cx| {
    let all: Vec<f64> = std::iter::once(me.input1)
        .chain(me.others.values().filter_map(Value::as_f64))
        .collect();
    Ok(NodeOutput::one(
        (all.iter().sum::<f64>() / all.len() as f64).floor(),
    ))
});

#[derive(Node)]
#[node(id = "MakeList", v1, outputs(Output::new("*").list()))]
pub struct MakeList {
    #[input(ty = "*")]
    value1: Value,
    #[input(rest)]
    others: Map,
}
node!(MakeList, |me, _cx| {
    let all: Vec<Value> = std::iter::once(me.value1)
        .chain(me.others.into_values())
        .collect();
    Ok(NodeOutput::one(all))
});

/// Takes whole lists.
#[derive(Node)]
#[node(id = "Count", v1, input_is_list, output_node)]
pub struct Count {
    #[input(ty = "*")]
    values: Vec<Value>,
}
node!(Count, |me, _cx| Ok(NodeOutput::ui(shown(
    &(me.values.len() as i64).into()
))));

/// A list of values back into single ones, in order.
#[derive(Node)]
#[node(id = "Gather", v1, input_is_list, output_node)]
pub struct Gather {
    #[input(ty = "*")]
    values: Vec<Value>,
}
node!(Gather, |me, _cx| Ok(NodeOutput::ui(
    map! {"value" => me.values}
)));

#[derive(Node)]
#[node(id = "Int", v1, outputs("INT"))]
pub struct Int {
    #[input(default = 0, min = -18446744073709551615i128, max = 18446744073709551615u64)]
    value: i128,
}
node!(Int, |me, _cx| Ok(NodeOutput::one(me.value)));

#[derive(Node)]
#[node(id = "Float", v1, outputs("FLOAT"))]
pub struct Float {
    value: f64,
}
node!(Float, |me, _cx| Ok(NodeOutput::one(me.value)));

#[derive(Node)]
#[node(id = "MaskOut", v1, outputs("MASK"))]
pub struct MaskOut {
    value: f64,
}
node!(MaskOut, |me, _cx| Ok(NodeOutput::one(me.value)));

#[derive(Node)]
#[node(id = "Blocker", v1, outputs("*"))]
pub struct Blocker {
    #[input(ty = "*")]
    input: Value,
    block: bool,
    verbose: bool,
}
node!(Blocker, |me, _cx| Ok(if me.block {
    NodeOutput::slots(vec![Value::Blocker(me.verbose.then(|| "Block!".into()))])
} else {
    NodeOutput::one(me.input)
}));

/// Returns nothing but a blocker.
#[derive(Node)]
#[node(id = "OnlyBlock", v3, outputs("*"))]
pub struct OnlyBlock;
node!(OnlyBlock, |_me, _cx| Ok(NodeOutput::blocked(None)));

#[derive(Node)]
#[node(id = "IsChanged", v1, outputs("IMAGE"))]
pub struct IsChanged {
    #[input(ty = "IMAGE")]
    image: Value,
    should_change: bool,
}
impl Node for IsChanged {
    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, _: &Cx) -> Result<Value, NodeError> {
        assert!(
            args.get("image").is_some_and(Value::is_null),
            "a linked input is null here"
        );
        Ok(match args.get("should_change").and_then(Value::as_bool) {
            Some(true) => f64::NAN.into(),
            _ => false.into(),
        })
    }
    fn run(self, _: &Cx) -> NodeResult {
        let _ = self.should_change;
        Ok(NodeOutput::one(self.image))
    }
}

/// A change function that fails: never cached.
#[derive(Node)]
#[node(id = "BadChange", v1, outputs("INT"))]
pub struct BadChange;
impl Node for BadChange {
    const FINGERPRINT: bool = true;
    fn fingerprint(_: Args, _: &Cx) -> Result<Value, NodeError> {
        Err(NodeError::runtime("no token today"))
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(1))
    }
}

/// Shows the hidden prompt's change tokens.
#[derive(Node)]
#[node(id = "ShowTokens", v1, output_node, hidden(prompt = "PROMPT"))]
pub struct ShowTokens {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "only there to depend on something")]
    value: Value,
}
node!(ShowTokens, |_me, cx| {
    let tokens: Vec<Value> = cx
        .hidden
        .prompt
        .as_map()
        .into_iter()
        .flatten()
        .filter_map(|(id, n)| {
            Some(Value::from(format!(
                "{id}={}",
                json::to_python(n.get("is_changed")?)
            )))
        })
        .collect();
    Ok(NodeOutput::ui(map! {"value" => tokens}))
});

/// Finishes after some time on a thread of its own.
struct Sleeping {
    done: Arc<AtomicBool>,
    until: Instant,
    started: bool,
    result: Option<NodeResult>,
    cx: Cx,
}

impl Future for Sleeping {
    type Output = NodeResult;
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        task: &mut std::task::Context<'_>,
    ) -> Poll<NodeResult> {
        if let Err(e) = self.cx.progress(0.0, 1.0, None) {
            return Poll::Ready(Err(e));
        }
        if self.done.load(Ordering::SeqCst) {
            return Poll::Ready(self.result.take().expect("polled once after the end"));
        }
        if !self.started {
            self.started = true;
            let (done, waker, until) = (self.done.clone(), task.waker().clone(), self.until);
            std::thread::spawn(move || {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                done.store(true, Ordering::SeqCst);
                waker.wake();
            });
        }
        Poll::Pending
    }
}

#[derive(Node)]
#[node(id = "Sleep", v1, outputs("*"), hidden(unique_id = "UNIQUE_ID"))]
pub struct Sleep {
    #[input(ty = "*")]
    value: Value,
    #[input(min = 0.0, max = 600.0)]
    seconds: f64,
    #[input(optional)]
    fail: Option<String>,
}
impl Node for Sleep {
    const ASYNC: bool = true;
    fn run(self, _: &Cx) -> NodeResult {
        unreachable!("started as an asynchronous node")
    }
    fn start(self, cx: &Cx) -> Result<Flow, NodeError> {
        let result = match self.fail {
            Some(text) => Err(NodeError::value_error(text)),
            None => Ok(NodeOutput::one(self.value)),
        };
        let until = Instant::now() + Duration::from_secs_f64(self.seconds);
        let future = Sleeping {
            done: Arc::default(),
            until,
            started: false,
            result: Some(result),
            cx: cx.clone(),
        };
        Ok(Flow::Later(Box::pin(future)))
    }
}

/// Ends in the first poll.
#[derive(Node)]
#[node(id = "AsyncNow", v1, outputs("*"))]
pub struct AsyncNow {
    #[input(ty = "*")]
    value: Value,
}
impl Node for AsyncNow {
    const ASYNC: bool = true;
    fn run(self, _: &Cx) -> NodeResult {
        unreachable!("started as an asynchronous node")
    }
    fn start(self, _: &Cx) -> Result<Flow, NodeError> {
        let value = self.value;
        Ok(Flow::Later(Box::pin(
            async move { Ok(NodeOutput::one(value)) },
        )))
    }
}

#[derive(Node)]
#[node(id = "Fail", v1, outputs("*"))]
pub struct Fail {
    #[input(ty = "*", optional)]
    value: Option<Value>,
    #[input(optional)]
    how: Option<String>,
}
node!(Fail, |me, _cx| match me.how.as_deref() {
    Some("panic") => panic!("oh dear"),
    Some("memory") => Err(NodeError::OutOfMemory {
        message: "no room".into()
    }),
    _ => Err(NodeError::value_error(format!(
        "bad {}",
        me.value.is_some()
    ))),
});

/// Expands into the average of three sleeping pictures.
#[derive(Node)]
#[node(id = "ExpandSleeps", v1, outputs("IMAGE"))]
pub struct ExpandSleeps {
    #[input(ty = "IMAGE")]
    a: Value,
    #[input(ty = "IMAGE")]
    b: Value,
    #[input(ty = "IMAGE")]
    c: Value,
    #[input(min = 0.0)]
    seconds: f64,
}
node!(ExpandSleeps, |me, cx| {
    let mut g = cx.graph_builder();
    let ids: Vec<_> = [me.a, me.b, me.c]
        .into_iter()
        .map(|v| g.node("Sleep", None, map! {"value" => v, "seconds" => me.seconds}))
        .collect();
    let inputs = map! {"input1" => link(&ids[0], 0), "input2" => link(&ids[1], 0), "input3" => link(&ids[2], 0)};
    let average = g.node("Average", Some("avg"), inputs);
    Ok(NodeOutput::expand(g.finish(), vec![link(&average, 0)]))
});

/// Halves n times by expanding into itself: a loop.
#[derive(Node)]
#[node(id = "HalveTimes", v1, outputs("IMAGE"))]
pub struct HalveTimes {
    #[input(ty = "IMAGE")]
    image: f64,
    times: i64,
}
node!(HalveTimes, |me, cx| {
    if me.times <= 0 {
        return Ok(NodeOutput::one(me.image));
    }
    let mut g = cx.graph_builder();
    let next = g.node(
        "HalveTimes",
        None,
        map! {"image" => (me.image / 2.0).floor(), "times" => me.times - 1},
    );
    Ok(NodeOutput::expand(g.finish(), vec![link(&next, 0)]))
});

/// Expands into two nodes that wait for each other.
#[derive(Node)]
#[node(id = "ExpandCycle", v1, outputs("IMAGE"))]
pub struct ExpandCycle {
    #[input(ty = "IMAGE")]
    image: Value,
}
node!(ExpandCycle, |me, cx| {
    let mut g = cx.graph_builder();
    let a = g.node("Average", Some("a"), map! {"input1" => me.image});
    let b = g.node("Average", Some("b"), map! {"input1" => link(&a, 0)});
    let b_link = link(&b, 0);
    if let Some(node) = g.nodes_mut().get_mut(&a) {
        node.inputs.insert("input2".into(), b_link.clone());
    }
    Ok(NodeOutput::expand(g.finish(), vec![b_link]))
});

/// Gives a value as a plain result or through an expansion, and white in a second slot.
#[derive(Node)]
#[node(id = "Mixed", v1, outputs("IMAGE", Output::new("IMAGE").named("white")))]
pub struct Mixed {
    value: f64,
    expand: bool,
}
node!(Mixed, |me, cx| {
    if !me.expand {
        return Ok(NodeOutput::slots(vec![
            (me.value * 255.0).floor().into(),
            255.0.into(),
        ]));
    }
    let mut g = cx.graph_builder();
    let picture = g.node("Image", None, map! {"value" => (me.value * 255.0).floor()});
    let white = g.node("Image", None, map! {"value" => 255.0});
    Ok(NodeOutput::expand(
        g.finish(),
        vec![link(&picture, 0), link(&white, 0)],
    ))
});

/// Expands into an output node of its own and shows it under another node's id.
#[derive(Node)]
#[node(id = "ExpandOutput", v1, outputs("IMAGE"))]
pub struct ExpandOutput {
    #[input(ty = "IMAGE")]
    image: Value,
}
node!(ExpandOutput, |me, cx| {
    let mut g = cx.graph_builder();
    let save = g.node("Save", Some("save"), map! {"image" => me.image.clone()});
    if let Some(node) = g.nodes_mut().get_mut(&save) {
        node.display = Some("1".into());
    }
    Ok(NodeOutput::expand(g.finish(), vec![me.image]))
});

/// Counts its calls: state of the instance.
#[derive(Node)]
#[node(id = "Counter", v1, output_node)]
pub struct Counter {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "changes make the node run again")]
    value: Value,
}
node!(Counter, |_me, cx| {
    let n = cx.with_state(|n: &mut i64| {
        *n += 1;
        *n
    });
    Ok(NodeOutput::ui(shown(&n.into())))
});

#[derive(Node)]
#[node(id = "OwnId", v1, outputs("STRING"), hidden(unique_id = "UNIQUE_ID"))]
pub struct OwnId;
node!(OwnId, |_me, cx| Ok(NodeOutput::one(&cx.node_id)));

/// Reports progress, with a picture if asked.
#[derive(Node)]
#[node(id = "Steps", v1, outputs("INT"))]
pub struct Steps {
    steps: i64,
    #[input(optional)]
    picture: Option<bool>,
}
node!(Steps, |me, cx| {
    for i in 0..me.steps {
        let preview = me.picture.unwrap_or(false).then(|| Preview {
            format: PreviewFormat::Jpeg,
            bytes: Arc::from(&b"jpeg"[..]),
        });
        cx.progress((i + 1) as f64, me.steps as f64, preview)?;
    }
    cx.set_progress(me.steps as f64, me.steps as f64, None);
    Ok(NodeOutput::one(me.steps))
});

/// Never ends, but reports progress, so that an interrupt reaches it.
#[derive(Node)]
#[node(id = "Forever", v1, outputs("INT"))]
pub struct Forever {
    /// Ignores interrupts.
    deaf: bool,
}
node!(Forever, |me, cx| loop {
    std::thread::sleep(Duration::from_millis(1));
    if !me.deaf {
        cx.progress(1.0, 2.0, None)?;
    }
});

/// Sets the queue flags from inside.
#[derive(Node)]
#[node(id = "SetFree", v1, output_node)]
pub struct SetFree {
    #[input(ty = "*")]
    #[expect(dead_code, reason = "only there to depend on something")]
    value: Value,
}
node!(SetFree, |_me, cx| {
    cx.services.set_flag("unload_models", true.into());
    cx.services.set_flag("free_memory", true.into());
    Ok(NodeOutput::default())
});

/// A union input with a validator that accepts only floats.
#[derive(Node)]
#[node(id = "FloatOnly", v1, outputs("FLOAT"))]
pub struct FloatOnly {
    #[input(ty = "IMAGE,FLOAT")]
    value: Value,
}
impl Node for FloatOnly {
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["value"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        Ok(match args.get("value") {
            Some(Value::Float(_) | Value::Null) => Verdict::Ok,
            _ => Verdict::Because("not a float".into()),
        })
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// Looks at the types of its links itself.
#[derive(Node)]
#[node(id = "TypesOnly", v1, outputs("FLOAT"))]
pub struct TypesOnly {
    #[input(ty = "FLOAT,INT")]
    value: Value,
}
impl Node for TypesOnly {
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["value"],
        all: false,
        input_types: true,
    });
    fn validate(_: Args, types: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        Ok(match types.get("value").and_then(Value::as_str) {
            None | Some("FLOAT") => Verdict::Ok,
            Some(other) => Verdict::Because(format!("{other} is not FLOAT")),
        })
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// Bounded inputs whose validator takes any keyword and refuses 7.
#[derive(Node)]
#[node(id = "NoSevens", v1, outputs("FLOAT"))]
pub struct NoSevens {
    #[input(min = 0.0, max = 1.0)]
    a: f64,
    #[input(min = 0.0, max = 1.0)]
    b: f64,
}
impl Node for NoSevens {
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &[],
        all: true,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        Ok(if args.0.values().any(|v| v.as_f64() == Some(7.0)) {
            Verdict::Rejected
        } else {
            Verdict::Ok
        })
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.a + self.b))
    }
}

#[derive(Node)]
#[node(id = "Types", v1, output_node)]
pub struct Types {
    #[input(min = 0, max = 10)]
    n: i64,
    flag: bool,
    #[input(choices = ["a", "b"])]
    pick: String,
    #[input(optional, choices = (0..44).map(|i| format!("o{i}")))]
    many: Option<String>,
}
node!(Types, |me, _cx| Ok(NodeOutput::ui(map! {
    "value" => vec![Value::from(me.n), me.flag.into(), me.pick.into(), me.many.into()],
})));

/// A plain FLOAT with a validator of its own.
#[derive(Node)]
#[node(id = "PlainFloat", v1, outputs("FLOAT"))]
pub struct PlainFloat {
    value: f64,
}
impl Node for PlainFloat {
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["value"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        let fits = args
            .get("value")
            .is_none_or(|v| v.is_null() || v.as_f64().is_some());
        Ok(if fits { Verdict::Ok } else { Verdict::Rejected })
    }
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(self.value))
    }
}

/// Sends a preview if this prompt asked for one.
#[derive(Node)]
#[node(id = "Previewer", v1, outputs("INT"))]
pub struct Previewer {
    seed: i64,
}
node!(Previewer, |me, cx| {
    let preview = (&*cx.preview_method != "none").then(|| Preview {
        format: PreviewFormat::Jpeg,
        bytes: Arc::from(&b"jpeg"[..]),
    });
    cx.progress(1.0, 1.0, preview)?;
    Ok(NodeOutput::one(me.seed))
});

fn dynamic_input() -> Input {
    Input::dynamic_combo(
        "mode",
        vec![
            ("plain", vec![]),
            (
                "scaled",
                vec![Input::new("factor", "FLOAT").option("default", 1.0)],
            ),
        ],
    )
}

#[derive(Node)]
#[node(id = "Dynamic", v3, output_node)]
pub struct Dynamic {
    #[input(spec = dynamic_input())]
    mode: Option<Value>,
    #[input(spec = Input::autogrow("parts", Input::new("part", "IMAGE"), "part", 1, 8))]
    parts: Grown<f64>,
}
node!(Dynamic, |me, _cx| Ok(NodeOutput::ui(map! {
    "value" => vec![me.mode.unwrap_or_default(), me.parts.0.into()],
})));

/// Makes a text of so many KiB, a new one for every number.
#[derive(Node)]
#[node(id = "Words", v1, outputs("STRING"))]
pub struct Words {
    kib: i64,
    #[expect(dead_code, reason = "tells texts apart")]
    number: i64,
    #[expect(dead_code, reason = "what has to be there before")]
    #[input(optional, ty = "*")]
    after: Option<Value>,
}

impl Node for Words {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one("x".repeat(self.kib as usize * 1024)))
    }
}

pub static NODES: &[NodeEntry] = &[
    entry::<Image>(),
    entry::<Save>(),
    entry::<Scale>(),
    entry::<SaveAny>(),
    entry::<Warn>(),
    entry::<Quiet>(),
    entry::<LazyMix>(),
    entry::<LazyWrong>(),
    entry::<Average>(),
    entry::<MakeList>(),
    entry::<Count>(),
    entry::<Gather>(),
    entry::<Int>(),
    entry::<Float>(),
    entry::<MaskOut>(),
    entry::<Blocker>(),
    entry::<OnlyBlock>(),
    entry::<IsChanged>(),
    entry::<BadChange>(),
    entry::<ShowTokens>(),
    entry::<Sleep>(),
    entry::<AsyncNow>(),
    entry::<Fail>(),
    entry::<Words>(),
    entry::<ExpandSleeps>(),
    entry::<HalveTimes>(),
    entry::<ExpandCycle>(),
    entry::<Mixed>(),
    entry::<ExpandOutput>(),
    entry::<Counter>(),
    entry::<OwnId>(),
    entry::<Steps>(),
    entry::<Forever>(),
    entry::<SetFree>(),
    entry::<FloatOnly>(),
    entry::<TypesOnly>(),
    entry::<NoSevens>(),
    entry::<Types>(),
    entry::<PlainFloat>(),
    entry::<Previewer>(),
    entry::<Dynamic>(),
];
