//! Validation, order and keys on large and on random graphs, against implementations too simple to be wrong.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, LazyLock};

use fresco_graph::{
    Args, CacheKey, Contribution, Contributions, Cx, Flow, Form, Input, Keys, Map, Next,
    NoListings, NodeClass, NodeError, NodeOutput, NodeRegistry, Nodes, Order, Output, PromptError,
    PromptLimits, Resources, Rules, Schema, ValidPrompt, Value, map,
};
use proptest::prelude::*;

struct Class(Arc<Schema>);

impl NodeClass for Class {
    fn schema(&self) -> Arc<Schema> {
        self.0.clone()
    }
    fn call(&self, _: Args, _: &Cx) -> Result<Flow, NodeError> {
        Ok(Flow::Done(NodeOutput::default()))
    }
}

/// `Node` and the output node `Out`, each with six optional INT links and a required INT.
fn registry() -> Arc<NodeRegistry> {
    let mut registry = NodeRegistry::new();
    for (id, output) in [("Node", false), ("Out", true)] {
        let mut schema = Schema::new(id, Form::V1)
            .input(Input::new("n", "INT"))
            .output(Output::new("INT"));
        for i in 0..6 {
            schema = schema.input(Input::new(&format!("x{i}"), "INT").optional());
        }
        schema.output_node = output;
        registry.add_class(Arc::new(Class(Arc::new(schema))));
    }
    Arc::new(registry)
}

static REGISTRY: LazyLock<Arc<NodeRegistry>> = LazyLock::new(registry);

fn validate(prompt: Map) -> Result<ValidPrompt, PromptError> {
    let rules = Rules {
        registry: &REGISTRY,
        listings: &NoListings,
        resources: &Arc::new(Resources::default()),
        limits: PromptLimits::default(),
    };
    rules.validate(prompt, None)
}

/// A graph for all three: who needs whom, which nodes are outputs, asynchronous, cached.
#[derive(Clone, Debug, Default)]
struct Graph {
    needs: Vec<Vec<usize>>,
    output: Vec<bool>,
    later: Vec<bool>,
    cached: HashSet<usize>,
    literal: Vec<i64>,
}

fn id(i: usize) -> Arc<str> {
    i.to_string().into()
}

fn number(id: &str) -> usize {
    id.parse().unwrap()
}

impl Graph {
    fn new(needs: Vec<Vec<usize>>, outputs: &[usize]) -> Self {
        let count = needs.len();
        Self {
            output: (0..count).map(|i| outputs.contains(&i)).collect(),
            later: vec![false; count],
            literal: vec![1; count],
            needs,
            cached: HashSet::new(),
        }
    }

    fn prompt(&self) -> Map {
        let node = |i: usize| {
            let mut inputs = map! {"n" => self.literal[i]};
            for (k, source) in self.needs[i].iter().enumerate() {
                let link = vec![Value::from(id(*source)), Value::from(0)];
                inputs.insert(format!("x{k}").into(), link.into());
            }
            let class = if self.output[i] { "Out" } else { "Node" };
            Value::from(map! {"class_type" => class, "inputs" => inputs})
        };
        (0..self.needs.len()).map(|i| (id(i), node(i))).collect()
    }

    fn run(&mut self) -> Vec<usize> {
        let mut order = Order::new();
        for i in (0..self.needs.len()).filter(|i| self.output[*i]) {
            order.add_node(&id(i), self, &mut |_, _| {});
        }
        let mut ran = Vec::new();
        while let Next::Run(next) = order.next() {
            order.complete(&next);
            self.cached.insert(number(&next));
            ran.push(number(&next));
        }
        assert_eq!(order.next(), Next::Finished);
        ran
    }
}

impl Nodes for Graph {
    fn needs(&self, id: &str) -> Vec<(Arc<str>, i64)> {
        let needs = &self.needs[number(id)];
        needs.iter().map(|n| (self::id(*n), 0)).collect()
    }
    fn is_cached(&self, id: &str) -> bool {
        self.cached.contains(&number(id))
    }
    fn is_output(&self, id: &str) -> bool {
        self.output[number(id)]
    }
    fn is_async(&self, id: &str) -> bool {
        self.later[number(id)]
    }
}

impl Contributions for Graph {
    fn of(&self, id: &str) -> Option<Contribution> {
        let node = self.prompt_of(number(id))?;
        Some(node)
    }
}

impl Graph {
    fn prompt_of(&self, i: usize) -> Option<Contribution> {
        let mut inputs = map! {"n" => *self.literal.get(i)?};
        for (k, source) in self.needs[i].iter().enumerate() {
            inputs.insert(
                format!("x{k}").into(),
                vec![Value::from(id(*source)), Value::from(0)].into(),
            );
        }
        Some(Contribution {
            class: "Node".into(),
            inputs: Arc::new(inputs),
            token: Value::Bool(false),
            own_id: false,
        })
    }
}

/// Runs a test with so little stack that anything recursive over ten thousand nodes would not survive it.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(256 * 1024);
    thread.spawn(test).unwrap().join().unwrap();
}

#[test]
fn ten_thousand_in_a_row() {
    on_a_small_stack(|| {
        let count = 10_000;
        let needs = (0..count).map(|i: usize| i.checked_sub(1).into_iter().collect());
        let mut graph = Graph::new(needs.collect(), &[count - 1]);
        let valid = validate(graph.prompt()).unwrap();
        assert_eq!(valid.outputs, [id(count - 1)]);
        Keys::new(1).compute(&id(count - 1), &graph);
        assert_eq!(graph.run(), (0..count).collect::<Vec<_>>());

        // The same, wrong at its far end.
        graph.literal[0] = 1;
        let mut prompt = graph.prompt();
        prompt["0"] = map! {"class_type" => "Node", "inputs" => Map::new()}.into();
        let error = validate(prompt).unwrap_err();
        assert_eq!(error.nodes.keys().map(|k| &**k).collect::<Vec<_>>(), ["0"]);
        assert_eq!(error.nodes["0"].dependent_outputs, [id(count - 1)]);
    });
}

#[test]
fn a_ring_of_ten_thousand() {
    on_a_small_stack(|| {
        let count = 10_000;
        let needs = (0..count).map(|i: usize| vec![(i + 1) % count]).collect();
        let graph = Graph::new(needs, &[0]);
        let error = validate(graph.prompt()).unwrap_err();
        assert!(error.nodes.is_empty());
        Keys::new(1).compute(&id(0), &graph);
        let mut order = Order::new();
        order.add_node(&id(0), &graph, &mut |_, _| {});
        assert!(matches!(order.next(), Next::Cycle(ids) if ids.len() == count));
    });
}

#[test]
fn one_node_that_feeds_and_one_that_needs_thousands() {
    // 0 feeds 1..n, which all feed n+1 .. n+40, which feed the output.
    let n = 8_000;
    let mut needs = vec![Vec::new()];
    needs.extend((0..n).map(|_| vec![0]));
    for k in 0..40 {
        needs.push((1..=n).filter(|i| i % 40 == k).collect());
    }
    needs.push((n + 1..=n + 40).collect());
    let last = needs.len() - 1;
    let mut graph = Graph::new(needs, &[last]);
    let ran = graph.run();
    assert_eq!((ran.len(), ran[0], *ran.last().unwrap()), (n + 42, 0, last));
}

#[test]
fn thousands_of_broken_outputs_on_a_long_chain() {
    // Every output depends on every node of the chain: the answer must not be their product.
    let chain = 2_000;
    let mut needs: Vec<Vec<usize>> = (0..chain)
        .map(|i: usize| i.checked_sub(1).into_iter().collect())
        .collect();
    let outputs: Vec<usize> = (chain..chain + 2_000).collect();
    needs.extend(outputs.iter().map(|_| vec![chain - 1]));
    let mut prompt = Graph::new(needs, &outputs).prompt();
    for i in 0..chain {
        let Value::Map(node) = &mut prompt[i] else {
            panic!("nodes are maps")
        };
        let Some(Value::Map(inputs)) = Arc::make_mut(node).get_mut("inputs") else {
            panic!("so are inputs")
        };
        Arc::make_mut(inputs).shift_remove("n");
    }
    let error = validate(prompt).unwrap_err();
    assert_eq!(error.nodes.len(), chain);
    let listed: usize = error
        .nodes
        .values()
        .map(|n| n.dependent_outputs.len())
        .sum();
    assert!(listed < 2_000_000, "{listed}");
    assert!(
        error
            .nodes
            .values()
            .all(|n| !n.dependent_outputs.is_empty())
    );
}

/// The scheduler in the simplest form, without a thought for speed.
#[derive(Default)]
struct Simple {
    pending: Vec<usize>,
    blocked: BTreeMap<usize, usize>,
    blocking: BTreeMap<usize, BTreeSet<usize>>,
    held: usize,
}

impl Simple {
    fn add_node(&mut self, start: usize, graph: &Graph) {
        let mut stack = vec![start];
        let mut links = Vec::new();
        while let Some(i) = stack.pop() {
            if self.pending.contains(&i) {
                continue;
            }
            self.pending.push(i);
            self.blocked.insert(i, 0);
            for source in &graph.needs[i] {
                if !graph.cached.contains(source) {
                    stack.push(*source);
                }
                links.push((*source, i));
            }
        }
        for (source, target) in links {
            self.add_link(source, target, graph);
        }
    }

    fn add_link(&mut self, source: usize, target: usize, graph: &Graph) {
        if !graph.cached.contains(&source) {
            self.add_node(source, graph);
            if self.blocking.entry(source).or_default().insert(target) {
                *self.blocked.get_mut(&target).unwrap() += 1;
            }
        }
    }

    fn complete(&mut self, i: usize) {
        self.pending.retain(|p| *p != i);
        for target in self.blocking.remove(&i).unwrap_or_default() {
            *self.blocked.get_mut(&target).unwrap() -= 1;
        }
    }

    fn blocks(&self, i: usize, what: impl Fn(usize) -> bool) -> bool {
        self.blocking
            .get(&i)
            .is_some_and(|targets| targets.iter().any(|t| what(*t)))
    }

    fn next(&self, graph: &Graph) -> Next {
        if self.pending.is_empty() {
            return Next::Finished;
        }
        let ready: Vec<usize> = self
            .pending
            .iter()
            .copied()
            .filter(|i| self.blocked[i] == 0)
            .collect();
        if ready.is_empty() {
            return if self.held > 0 {
                Next::Wait
            } else {
                Next::Cycle(self.stuck())
            };
        }
        let first = |rule: &dyn Fn(usize) -> bool| ready.iter().copied().find(|i| rule(*i));
        let output = |i: usize| graph.output[i];
        let picked = first(&|i| graph.output[i] || graph.later[i])
            .or_else(|| first(&|i| self.blocks(i, output)))
            .or_else(|| first(&|i| self.blocks(i, |t| self.blocks(t, output))))
            .unwrap_or(ready[0]);
        Next::Run(id(picked))
    }

    fn stuck(&self) -> Vec<Arc<str>> {
        let mut left = self.pending.clone();
        let mut blocked = self.blocked.clone();
        while let Some(i) = left.iter().copied().find(|i| blocked[i] == 0) {
            left.retain(|l| *l != i);
            for target in self.blocking.get(&i).into_iter().flatten() {
                *blocked.get_mut(target).unwrap() -= 1;
            }
        }
        left.into_iter().map(id).collect()
    }
}

/// Nodes that need only earlier ones, in any number and any order.
fn dags() -> impl Strategy<Value = Graph> {
    (1usize..25).prop_flat_map(|count| {
        let needs: Vec<_> = (0..count)
            .map(|i| prop::collection::vec(0..i.max(1), 0..4.min(i + 1)))
            .collect();
        (
            needs,
            prop::collection::vec(prop::bool::weighted(0.3), count),
            prop::collection::vec(prop::bool::weighted(0.2), count),
            prop::collection::hash_set(0..count, 0..3),
            prop::collection::vec(0i64..3, count),
        )
            .prop_map(|(mut needs, output, later, cached, literal)| {
                needs[0].clear();
                Graph {
                    needs,
                    output,
                    later,
                    cached,
                    literal,
                }
            })
    })
}

/// The ancestors of a node, and itself.
fn upstream(graph: &Graph, start: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([start]);
    let mut todo = vec![start];
    while let Some(i) = todo.pop() {
        todo.extend(graph.needs[i].iter().copied().filter(|s| seen.insert(*s)));
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same choices as the simple scheduler, with lazy links, holds and nodes that run again.
    #[test]
    fn order_is_the_specified_one(
        graph in dags(),
        keep in any::<bool>(),
        backward in prop::collection::vec((0usize..25, 0usize..25), 0..2),
        lazy in prop::collection::vec((0usize..25, 0usize..25), 0..6),
        hold in prop::collection::hash_set(0usize..25, 0..4),
    ) {
        let mut graph = graph;
        let count = graph.needs.len();
        // Sometimes a link back, which may close a cycle.
        for (a, b) in backward {
            graph.needs[a % count].push(b % count);
        }
        let mut lazy: Vec<(usize, usize)> = lazy.iter().map(|(a, b)| (a % count, b % count)).collect();
        let mut hold = hold;
        let mut fast = Order::new();
        let mut simple = Simple::default();
        for i in (0..count).filter(|i| graph.output[*i]) {
            fast.add_node(&id(i), &graph, &mut |_, _| {});
            simple.add_node(i, &graph);
        }
        let mut held: Vec<usize> = Vec::new();
        let mut runs = BTreeMap::new();
        for _ in 0..500 {
            let next = fast.next();
            prop_assert_eq!(&next, &simple.next(&graph));
            let i = match next {
                Next::Run(i) => number(&i),
                Next::Wait => {
                    let i = held.remove(0);
                    fast.release(&id(i));
                    *simple.blocked.get_mut(&i).unwrap() -= 1;
                    simple.held -= 1;
                    continue;
                }
                Next::Cycle(_) | Next::Finished => break,
            };
            // First what it asks for besides, then what it waits for, then it is done.
            if let Some(at) = lazy.iter().position(|(t, s)| *t == i && *s < i) {
                let (_, source) = lazy.remove(at);
                fast.add_link(&id(source), &id(i), &graph, &mut |_, _| {});
                simple.add_link(source, i, &graph);
                continue;
            }
            if hold.remove(&i) {
                fast.hold(&id(i));
                *simple.blocked.get_mut(&i).unwrap() += 1;
                simple.held += 1;
                held.push(i);
                continue;
            }
            *runs.entry(i).or_insert(0) += 1;
            fast.complete(&id(i));
            simple.complete(i);
            if keep {
                graph.cached.insert(i);
            }
        }
        if keep {
            prop_assert!(runs.values().all(|n| *n == 1));
        }
    }

    /// Every node after its sources, all ancestors of outputs and nothing else.
    #[test]
    fn everything_runs_once_after_its_sources(graph in dags()) {
        let mut graph = graph;
        graph.cached.clear();
        let wanted: BTreeSet<usize> =
            (0..graph.needs.len()).filter(|i| graph.output[*i]).flat_map(|i| upstream(&graph, i)).collect();
        let ran = graph.run();
        prop_assert_eq!(ran.iter().copied().collect::<BTreeSet<_>>(), wanted);
        for (at, i) in ran.iter().enumerate() {
            prop_assert!(graph.needs[*i].iter().all(|s| ran[..at].contains(s)));
        }
    }

    /// An output is good exactly if nothing above it is broken, and problems name exactly the outputs they spoil.
    #[test]
    fn validation_blames_exactly_what_is_broken(graph in dags(), broken in prop::collection::hash_set(0usize..25, 0..4)) {
        let mut prompt = graph.prompt();
        for i in broken.iter().filter(|i| **i < graph.needs.len()) {
            let class = if graph.output[*i] { "Out" } else { "Node" };
            let mut inputs = prompt[*i].get("inputs").unwrap().as_map().unwrap().clone();
            inputs.insert("n".into(), "not a number".into());
            prompt[*i] = map! {"class_type" => class, "inputs" => inputs}.into();
        }
        let outputs: Vec<usize> = (0..graph.needs.len()).filter(|i| graph.output[*i]).collect();
        let spoilt = |o: usize| upstream(&graph, o).into_iter().filter(|i| broken.contains(i)).collect::<BTreeSet<_>>();
        let good: Vec<Arc<str>> = outputs.iter().filter(|o| spoilt(**o).is_empty()).map(|o| id(*o)).collect();
        let (found, problems) = match validate(prompt) {
            Ok(valid) => (valid.outputs, valid.problems),
            Err(e) => (Vec::new(), e.nodes),
        };
        prop_assert_eq!(found, good);
        let mut want: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for o in &outputs {
            for i in spoilt(*o) {
                want.entry(id(i)).or_default().push(id(*o));
            }
        }
        let have: BTreeMap<_, _> =
            problems.into_iter().map(|(i, p)| (i, p.dependent_outputs)).collect();
        prop_assert_eq!(have, want);
    }

    /// A changed literal changes the keys of what depends on it and no other.
    #[test]
    fn keys_change_downstream_only(graph in dags(), at in 0usize..25) {
        let keys = |graph: &Graph, prompt: u64| -> Vec<CacheKey> {
            let mut keys = Keys::new(prompt);
            (0..graph.needs.len()).map(|i| keys.compute(&id(i), graph)).collect()
        };
        let before = keys(&graph, 1);
        prop_assert_eq!(&before, &keys(&graph, 2));
        let at = at % graph.needs.len();
        let mut changed = graph.clone();
        changed.literal[at] += 100;
        for (i, (a, b)) in before.iter().zip(keys(&changed, 1)).enumerate() {
            prop_assert_eq!(*a != b, upstream(&graph, i).contains(&at), "node {}", i);
        }
    }
}
