//! The turns of a loop: what the end of a loop expands into. Nobody puts these nodes into a workflow.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Grown, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, link, map,
};

use super::{Loop, graph, modes};

pub(super) const FRESCO_LOOP: &str = "FrescoLoop";
const TURN: &str = "FrescoLoopTurn";
const ITERATION: &str = "LoopIteration";

/// More turns than anybody waits for; each of them is nodes of a graph.
const MOST_TURNS: usize = 10_000;

/// One turn of a loop: what its start gives to it.
#[derive(Node)]
#[node(
    id = "LoopIteration",
    v3,
    module = "comfy_extras.nodes_loop",
    display = "LoopIteration",
    category = "logic",
    outputs(
        Output::new("INT").named("iteration_index"),
        Output::new("BOOLEAN").named("is_first"),
        Output::new("BOOLEAN").named("is_last"),
        Output::new("*").named("list_item"),
        Output::new("*").named("current_iteration_value")
    )
)]
pub(super) struct LoopIteration {
    /// Number of the turn, from 0 or from where the loop starts.
    iteration_index: i64,
    /// Whether it is the first turn.
    is_first: bool,
    /// Whether it is the last turn.
    is_last: bool,
    /// Whether results of an earlier run are used again.
    #[expect(dead_code, reason = "it says what the key of a turn depends on")]
    reuse_cache: bool,
    /// The item of the list that this turn is for.
    #[input(ty = "*", optional)]
    list_item: Option<Value>,
    /// The value that the turn before handed on.
    #[input(ty = "*", optional)]
    current_iteration_value: Option<Value>,
}

impl Node for LoopIteration {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::slots(vec![
            self.iteration_index.into(),
            self.is_first.into(),
            self.is_last.into(),
            self.list_item.unwrap_or_default(),
            self.current_iteration_value.unwrap_or_default(),
        ]))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, _: &Cx) -> Result<Value, NodeError> {
        let kept = args.get("reuse_cache").is_some_and(Value::truthy);
        Ok(unless_kept(kept))
    }
}

/// What tells a node of a loop from the same one in another run: nothing, or that it is another run.
pub(super) fn unless_kept(kept: bool) -> Value {
    if kept {
        Value::Bool(false)
    } else {
        f64::NAN.into()
    }
}

/// Runs the turns of a loop. The end of a loop brings it; it is not for workflows.
#[derive(Node)]
#[node(
    id = "FrescoLoop",
    v3,
    module = "fresco",
    display = "Loop Turns",
    category = "logic",
    outputs("*"),
    input_is_list
)]
pub(super) struct FrescoLoop {
    /// A number of turns, a range of numbers, or the items of a list.
    #[input(spec = modes())]
    mode: Arc<Map>,
    /// Whether turns of an earlier run that nothing changed are used again.
    #[input(default = false)]
    cache_iterations: Vec<bool>,
    /// The end of the loop.
    #[input(default = "")]
    close_id: Vec<String>,
    /// Whether all turns count, not just the last.
    #[input(default = false)]
    accumulate: Vec<bool>,
}

/// The numbers of the turns and, for those over a list, its items.
struct Turns {
    numbers: Vec<i64>,
    items: Option<Vec<Value>>,
}

impl FrescoLoop {
    /// A setting of the mode, which comes as a list.
    fn setting(&self, name: &str) -> Value {
        let value = self.mode.get(name).cloned().unwrap_or_default();
        let first = value.as_list().map(|list| list.first().cloned());
        first.map_or(value, Option::unwrap_or_default)
    }

    fn number(&self, name: &str) -> Result<i64, NodeError> {
        let value = self.setting(name);
        let number = value.as_int().and_then(|n| i64::try_from(n).ok());
        number
            .ok_or_else(|| NodeError::type_error(format!("{name} of a loop is not a whole number")))
    }

    fn turns(&self) -> Result<Turns, NodeError> {
        let mode = self.setting("mode");
        let mut items = None;
        let (first, step, count) = match mode.as_str().unwrap_or_default() {
            "For" => {
                let (first, end) = (
                    self.number("start_iteration_index")?,
                    self.number("max_iteration")?,
                );
                let step = self.number("step")?;
                if step < 1 {
                    return Err(NodeError::value_error(format!(
                        "a loop with steps of {step} would never end: take 1 or more"
                    )));
                }
                let span = i128::from(end) - i128::from(first);
                let count = (span.max(0) + i128::from(step) - 1) / i128::from(step);
                (first, step, usize::try_from(count).unwrap_or(usize::MAX))
            }
            "List" => {
                let list = items.insert(listed(self.mode.get("list")));
                (0, 1, list.len())
            }
            _ => {
                let count = self.number("num_iterations")?.max(0);
                (0, 1, usize::try_from(count).unwrap_or(usize::MAX))
            }
        };
        if count > MOST_TURNS {
            return Err(NodeError::value_error(format!(
                "a loop of {count} turns; {MOST_TURNS} are the most"
            )));
        }
        let numbers = (0..count as i64).map(|n| first + n * step).collect();
        Ok(Turns { numbers, items })
    }
}

/// The items of what is connected to a list: several values, or one that is a list.
fn listed(value: Option<&Value>) -> Vec<Value> {
    let values = value.and_then(Value::as_list).unwrap_or_default();
    match values {
        [Value::List(list)] => list.to_vec(),
        values => values.to_vec(),
    }
}

impl Node for FrescoLoop {
    fn run(self, cx: &Cx) -> NodeResult {
        let graph = graph(cx)?;
        let end: Arc<str> = self
            .close_id
            .first()
            .map(String::as_str)
            .unwrap_or_default()
            .into();
        let found = Loop::find(&*graph, &end)?;
        let turns = self.turns()?;
        let first = |values: &[bool]| values.first().copied().unwrap_or(false);
        let close = graph.node(&end).map(|node| node.inputs).unwrap_or_default();
        let begun = graph
            .node(&found.start)
            .map(|node| node.inputs)
            .unwrap_or_default();
        let mut builder = cx.graph_builder();
        let mut carried = begun.get("initial_iteration_value").cloned();
        let mut turn: Option<Arc<str>> = None;
        for (n, number) in turns.numbers.iter().enumerate() {
            let mut inputs = map! {
                "iteration_index" => *number, "is_first" => n == 0,
                "is_last" => n + 1 == turns.numbers.len(), "reuse_cache" => first(&self.cache_iterations),
            };
            if let Some(item) = turns.items.as_ref().and_then(|items| items.get(n)) {
                inputs.insert("list_item".into(), item.clone());
            }
            if let Some(value) = &carried {
                inputs.insert("current_iteration_value".into(), value.clone());
            }
            if let Some(earlier) = &turn {
                // Not an input: it makes the turn wait for the one before.
                inputs.insert("after".into(), link(earlier, 0));
            }
            let iteration = builder.node(ITERATION, Some(&format!("{n}")), inputs);
            let mut copies: BTreeMap<Arc<str>, Arc<str>> =
                BTreeMap::from([(found.start.clone(), iteration)]);
            for id in &found.body {
                let node = graph.node(id);
                let class = node.map(|node| node.class).unwrap_or_default();
                let copy = builder.node(&class, Some(&format!("{n}.{id}")), Map::new());
                copies.insert(id.clone(), copy);
            }
            // Links into the loop become links into this turn.
            let here = |value: &Value| match value.as_link() {
                Some(to) => match copies.get(&to.node) {
                    Some(copy) => link(copy, to.slot),
                    None => value.clone(),
                },
                None => value.clone(),
            };
            for id in &found.body {
                let (Some(node), Some(copy)) = (graph.node(id), copies.get(id)) else {
                    continue;
                };
                if let Some(made) = builder.nodes_mut().get_mut(copy) {
                    made.inputs = node
                        .inputs
                        .iter()
                        .map(|(k, v)| (k.clone(), here(v)))
                        .collect();
                    made.display = Some(graph.display(id));
                }
            }
            let mut inputs = map! {"accumulate" => first(&self.accumulate)};
            if let Some(earlier) = &turn {
                inputs.insert("earlier".into(), link(earlier, 0));
            }
            if let Some(value) = close.get("output_value") {
                inputs.insert("value".into(), here(value));
            }
            let awaited = close.iter().filter(|(name, value)| {
                !matches!(&***name, "output_value" | "accumulate") && value.as_link().is_some()
            });
            for (at, (_, value)) in awaited.enumerate() {
                inputs.insert(format!("awaited.awaited{at}").into(), here(value));
            }
            carried = close.get("next_iteration_value").map(here);
            turn = Some(builder.node(TURN, Some(&format!("{n}.turn")), inputs));
        }
        Ok(match turn {
            Some(turn) => NodeOutput::expand(builder.finish(), vec![link(&turn, 0)]),
            None => NodeOutput::one(Vec::<Value>::new()),
        })
    }

    // What it makes also depends on the nodes between start and end, which are not its inputs.
    const FINGERPRINT: bool = true;
    fn fingerprint(_: Args, _: &Cx) -> Result<Value, NodeError> {
        Ok(unless_kept(false))
    }
}

fn any(name: &str) -> Input {
    Input::new(name, "*").optional()
}

fn awaited() -> Input {
    Input::autogrow(
        "awaited",
        Input::new("awaited", "*")
            .tooltip("Something that has to be done before the turn has ended."),
        "awaited",
        0,
        60,
    )
    .optional()
}

/// The end of a turn: what it made, with what those before it made. The end of a loop brings it; it is not for workflows.
#[derive(Node)]
#[node(
    id = "FrescoLoopTurn",
    v3,
    module = "fresco",
    display = "Loop Turn",
    category = "logic",
    outputs("*"),
    input_is_list
)]
pub(super) struct FrescoLoopTurn {
    /// Whether all turns count, not just the last.
    #[input(default = false)]
    accumulate: Vec<bool>,
    /// What the turns before made.
    #[input(spec = any("earlier"))]
    earlier: Option<Vec<Value>>,
    /// What this turn made.
    #[input(spec = any("value"))]
    value: Option<Vec<Value>>,
    /// What has to be done before the turn has ended.
    #[input(spec = awaited())]
    #[expect(dead_code, reason = "it is enough that it was done")]
    awaited: Grown<Value>,
}

impl Node for FrescoLoopTurn {
    fn run(self, _: &Cx) -> NodeResult {
        let all = self.accumulate.first().copied().unwrap_or(false);
        let mut made = match self.earlier.as_deref() {
            Some([Value::List(earlier)]) if all => earlier.to_vec(),
            _ => Vec::new(),
        };
        made.extend(self.value.unwrap_or_default());
        Ok(NodeOutput::one(made))
    }
}
