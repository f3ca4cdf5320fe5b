//! Loops: a part of the graph that is run once for each number or for each item of a list.
//!
//! The end of a loop is what runs it. It does not wait for what it is connected to; it looks at the graph, finds the start
//! that belongs to it and what lies between, and expands into a copy of that for each turn. A turn begins when the one before
//! has ended, so that no more than one is in memory. Inner loops are part of such a copy and do the same there.

mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fresco_graph::{
    Args, Cx, GraphView, Grown, Input, Link, Map, Node, NodeEntry, NodeError, NodeOutput,
    NodeResult, Output, SubNode, Value, entry, link,
};

pub static NODES: &[NodeEntry] = &[
    entry::<StartLoop>(),
    entry::<EndLoop>(),
    entry::<turns::LoopIteration>(),
    entry::<turns::FrescoLoop>(),
    entry::<turns::FrescoLoopTurn>(),
];

const START: &str = "StartLoop";
const END: &str = "EndLoop";

/// How often, and over what.
fn modes() -> Input {
    let int = |name: &str, default: i64, about: &str| {
        let input = Input::new(name, "INT").option("default", default);
        input.tooltip(about)
    };
    Input::dynamic_combo(
        "mode",
        vec![
            (
                "simple",
                vec![int("num_iterations", 4, "How many turns there are.").option("min", 0)],
            ),
            (
                "For",
                vec![
                    int("start_iteration_index", 0, "Number of the first turn."),
                    int(
                        "max_iteration",
                        4,
                        "Number at which the loop ends; this turn is not made.",
                    ),
                    int("step", 1, "How far apart the numbers of two turns are.").option("min", 1),
                ],
            ),
            (
                "List",
                vec![
                    Input::match_type("list", "list", "*")
                        .tooltip("The list with an item for each turn."),
                ],
            ),
        ],
    )
}

fn parent() -> Input {
    Input::new("parent_iteration", "INT")
        .option("forceInput", true)
        .optional()
}

fn initial() -> Input {
    Input::match_type("initial_iteration_value", "value", "*").optional()
}

/// Begins a loop: what lies between it and the end of the loop is run once for each turn.
#[derive(Node)]
#[node(
    id = "StartLoop",
    v3,
    module = "comfy_extras.nodes_loop",
    display = "StartLoop",
    category = "logic",
    outputs(
        Output::new("INT").named("iteration_index"),
        Output::new("BOOLEAN").named("is_first"),
        Output::new("BOOLEAN").named("is_last"),
        Output::matching("list", "list_item"),
        Output::matching("value", "current_iteration_value")
    ),
    input_is_list
)]
#[expect(dead_code, reason = "the end of the loop reads them from the graph")]
pub struct StartLoop {
    /// A number of turns, a range of numbers, or the items of a list.
    #[input(spec = modes())]
    mode: Arc<Map>,
    /// Whether turns of an earlier run that nothing changed are used again.
    #[input(default = false)]
    cache_iterations: Vec<bool>,
    /// The number of an outer loop's turn, to be part of that loop.
    #[input(spec = parent())]
    parent_iteration: Option<Value>,
    /// What the first turn finds as its value.
    #[input(spec = initial())]
    initial_iteration_value: Option<Value>,
}

impl Node for StartLoop {
    fn run(self, cx: &Cx) -> NodeResult {
        let graph = graph(cx)?;
        let closed = graph.ids().iter().any(|id| {
            class(&*graph, id).as_deref() == Some(END) && before(&*graph, id).contains(&cx.node_id)
        });
        if !closed {
            return Err(NodeError::value_error(
                "this loop has no end: connect what is made in each turn to an EndLoop",
            ));
        }
        // Turns are copies: what is between start and end never runs itself.
        Ok(NodeOutput::blocked(None))
    }

    const FINGERPRINT: bool = true;
    fn fingerprint(args: Args, _: &Cx) -> Result<Value, NodeError> {
        let kept = args.get("cache_iterations").is_some_and(|value| {
            let first = value.as_list().and_then(<[Value]>::first);
            first.unwrap_or(value).truthy()
        });
        Ok(turns::unless_kept(kept))
    }
}

fn unasked(name: &str) -> Input {
    Input::new(name, "*").option("lazy", true).optional()
}

fn terminations() -> Input {
    let slot = Input::new("termination", "*")
        .tooltip("Something that has to be done in each turn.")
        .option("lazy", true);
    Input::autogrow("terminations", slot, "termination", 0, 50).optional()
}

/// Ends a loop and gives what its turns made: of the last one, or of all.
#[derive(Node)]
#[node(
    id = "EndLoop",
    v3,
    module = "comfy_extras.nodes_loop",
    display = "EndLoop",
    category = "logic",
    outputs(Output::new("*").named("outputs").list())
)]
#[expect(dead_code, reason = "what is connected is read from the graph")]
pub struct EndLoop {
    /// What a turn makes.
    #[input(spec = unasked("output_value"))]
    output_value: Option<Value>,
    /// What the next turn finds as its value.
    #[input(spec = unasked("next_iteration_value"))]
    next_iteration_value: Option<Value>,
    /// Whether all turns count, not just the last.
    #[input(default = false, optional)]
    accumulate: Option<bool>,
    /// What has to be done in each turn, and is not given on.
    #[input(spec = terminations())]
    terminations: Grown<Value>,
}

impl Node for EndLoop {
    fn run(self, cx: &Cx) -> NodeResult {
        let graph = graph(cx)?;
        let found = Loop::find(&*graph, &cx.node_id)?;
        let start = graph.node(&found.start);
        let mut inputs = start.map(|node| node.inputs).unwrap_or_default();
        inputs.insert("close_id".into(), cx.node_id.clone().into());
        inputs.insert("accumulate".into(), self.accumulate.unwrap_or(false).into());
        let mut builder = cx.graph_builder();
        let run = builder.node(turns::FRESCO_LOOP, None, inputs);
        Ok(NodeOutput::expand(builder.finish(), vec![link(&run, 0)]))
    }
}

fn graph(cx: &Cx) -> Result<Arc<dyn GraphView>, NodeError> {
    let graph = cx.graph.clone();
    graph.ok_or_else(|| NodeError::runtime("a loop can only be run inside of a prompt"))
}

fn class(graph: &dyn GraphView, id: &str) -> Option<Arc<str>> {
    graph.node(id).map(|node| node.class)
}

fn links(node: &SubNode) -> impl Iterator<Item = Link> + '_ {
    node.inputs.values().filter_map(Value::as_link)
}

/// Everything that a node depends on.
fn before(graph: &dyn GraphView, id: &str) -> BTreeSet<Arc<str>> {
    let mut found = BTreeSet::new();
    let mut open: Vec<Arc<str>> = vec![id.into()];
    while let Some(id) = open.pop() {
        let Some(node) = graph.node(&id) else {
            continue;
        };
        for link in links(&node) {
            if found.insert(link.node.clone()) {
                open.push(link.node);
            }
        }
    }
    found
}

/// What belongs to the end of a loop.
struct Loop {
    start: Arc<str>,
    /// Everything that depends on the start, without the end and what comes after it.
    body: BTreeSet<Arc<str>>,
}

impl Loop {
    fn find(graph: &dyn GraphView, end: &str) -> Result<Self, NodeError> {
        let start = start_of(graph, end)?;
        let mut readers: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for id in graph.ids() {
            let Some(node) = graph.node(&id) else {
                continue;
            };
            for link in links(&node) {
                readers.entry(link.node).or_default().push(id.clone());
            }
        }
        let mut body = BTreeSet::new();
        let mut open = VecDeque::from([start.clone()]);
        while let Some(id) = open.pop_front() {
            for reader in readers.get(&id).into_iter().flatten() {
                if &**reader != end && body.insert(reader.clone()) {
                    open.push_back(reader.clone());
                }
            }
        }
        for id in &body {
            if before(graph, id).contains(end) {
                return Err(NodeError::value_error(format!(
                    "node {id} takes something out of the loop from {start} to {end} and also its result: connect to the \
                     EndLoop what it should get of the turns"
                )));
            }
        }
        if let Some(node) = graph.node(end)
            && let Some(asked) = node.inputs.get("accumulate").and_then(Value::as_link)
            && (asked.node == start || body.contains(&asked.node))
        {
            return Err(NodeError::value_error(format!(
                "what the EndLoop {end} accumulates cannot be decided inside of its loop: connect `accumulate` to something \
                 outside"
            )));
        }
        Ok(Self { start, body })
    }
}

/// The start that belongs to the end of a loop: before it, not of a loop that ends before, and the last of those.
fn start_of(graph: &dyn GraphView, end: &str) -> Result<Arc<str>, NodeError> {
    let all = before(graph, end);
    let of = |wanted: &str| -> Vec<Arc<str>> {
        let found = all
            .iter()
            .filter(|id| class(graph, id).as_deref() == Some(wanted));
        found.cloned().collect()
    };
    // Inner loops first: those with the least before them.
    let mut ends: Vec<(Arc<str>, BTreeSet<Arc<str>>)> = of(END)
        .into_iter()
        .map(|id| {
            let before = before(graph, &id);
            (id, before)
        })
        .collect();
    ends.sort_by_key(|(id, before)| (before.len(), id.clone()));
    ends.push((end.into(), all.clone()));
    let starts = of(START);
    let mut taken: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut last = None;
    for (id, before_it) in &ends {
        let open: Vec<&Arc<str>> = starts
            .iter()
            .filter(|start| before_it.contains(*start) && !taken.contains(*start))
            .collect();
        let is_inner = |start: &&&Arc<str>| {
            let others = open.iter().filter(|other| **other != **start);
            !others
                .into_iter()
                .any(|other| before(graph, other).contains(**start))
        };
        let inner: Vec<&&Arc<str>> = open.iter().filter(is_inner).collect();
        last = match inner.as_slice() {
            [start] => {
                taken.insert(Arc::clone(start));
                Some(Arc::clone(start))
            }
            [] if &**id == end => {
                return Err(NodeError::value_error(format!(
                    "the EndLoop {end} has no StartLoop before it: connect something to it that depends on one"
                )));
            }
            [] => None,
            several => {
                let names: Vec<&str> = several.iter().map(|start| &****start).collect();
                return Err(NodeError::value_error(format!(
                    "the EndLoop {id} could end several loops ({}): connect `parent_iteration` of the inner StartLoop to the \
                     outer one, or end them one by one",
                    names.join(", ")
                )));
            }
        };
    }
    last.ok_or_else(|| NodeError::value_error(format!("the EndLoop {end} has no StartLoop")))
}

#[cfg(test)]
mod tests;
