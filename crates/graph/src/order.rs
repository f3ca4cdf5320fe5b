//! Which node runs next: the graph is dissolved from its outputs, each finished node freeing the ones it blocked.
//!
//! Choices are the reference's (outputs and asynchronous nodes first, then what is one or two steps before an output, then
//! first come), but kept in ordered sets, so that a step costs the logarithm of the graph and not its size.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What the scheduler asks about nodes.
pub trait Nodes {
    /// Links that must be there before the node runs: `(source, slot)` of every non-lazy linked input, in order.
    fn needs(&self, id: &str) -> Vec<(Arc<str>, i64)>;
    /// Its outputs are in the cache.
    fn is_cached(&self, id: &str) -> bool;
    fn is_output(&self, id: &str) -> bool;
    fn is_async(&self, id: &str) -> bool;
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Run(Arc<str>),
    /// Nothing is ready, but something outside will make it so.
    Wait,
    /// Nothing can ever become ready; these nodes hold each other.
    Cycle(Vec<Arc<str>>),
    Finished,
}

#[derive(Default)]
struct Node {
    id: Arc<str>,
    /// Place in the pending order; none when not pending.
    seq: Option<u64>,
    /// How many things this node waits for.
    blocked_by: usize,
    /// Nodes that wait for this one.
    blocks: Vec<usize>,
    /// Nodes this one waited for; some may be done.
    sources: Vec<usize>,
    /// How many of `blocks` are outputs.
    outputs: usize,
    /// How many of `blocks` themselves block an output.
    near: usize,
    output: bool,
    eager: bool,
    bucket: usize,
}

const BUCKETS: usize = 4;

/// The nodes of one prompt that still have to run.
#[derive(Default)]
pub struct Order {
    nodes: Vec<Node>,
    index: HashMap<Arc<str>, usize>,
    /// Who blocks whom: the same as `blocks`, to ask about one pair.
    links: HashSet<(usize, usize)>,
    ready: [BTreeSet<(u64, usize)>; BUCKETS],
    pending: usize,
    external: usize,
    next_seq: u64,
}

impl Order {
    pub fn new() -> Self {
        Self::default()
    }

    fn intern(&mut self, id: &Arc<str>, graph: &dyn Nodes) -> usize {
        if let Some(i) = self.index.get(id) {
            return *i;
        }
        let i = self.nodes.len();
        let output = graph.is_output(id);
        let eager = output || graph.is_async(id);
        self.nodes.push(Node {
            id: id.clone(),
            output,
            eager,
            ..Node::default()
        });
        self.index.insert(id.clone(), i);
        i
    }

    /// Schedules a node and all uncached ancestors. The node itself is scheduled even when cached.
    /// `linked` hears of every link, cached or not, so that results can be kept for their consumers.
    pub fn add_node(
        &mut self,
        start: &Arc<str>,
        graph: &dyn Nodes,
        linked: &mut dyn FnMut(&Arc<str>, &Arc<str>),
    ) {
        let mut stack = vec![start.clone()];
        let mut links: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        while let Some(id) = stack.pop() {
            let i = self.intern(&id, graph);
            if self.nodes[i].seq.is_some() {
                continue;
            }
            self.nodes[i].seq = Some(self.next_seq);
            self.next_seq += 1;
            self.nodes[i].blocked_by = 0;
            self.pending += 1;
            self.settle(i);
            for (source, _) in graph.needs(&id) {
                if !graph.is_cached(&source) {
                    stack.push(source.clone());
                }
                links.push((source, id.clone()));
            }
        }
        for (source, target) in links {
            self.add_link(&source, &target, graph, linked);
        }
    }

    /// Makes `target` wait for `source`, which is scheduled unless cached.
    pub fn add_link(
        &mut self,
        source: &Arc<str>,
        target: &Arc<str>,
        graph: &dyn Nodes,
        linked: &mut dyn FnMut(&Arc<str>, &Arc<str>),
    ) {
        if !graph.is_cached(source) {
            let known = self.index.get(source);
            if known.is_none_or(|i| self.nodes[*i].seq.is_none()) {
                self.add_node(source, graph, linked);
            }
            let (s, t) = (self.intern(source, graph), self.intern(target, graph));
            if self.links.insert((s, t)) {
                self.unsettle(t);
                self.nodes[t].blocked_by += 1;
                self.nodes[t].sources.push(s);
                self.nodes[s].blocks.push(t);
                self.count_block(s, t);
            }
        }
        linked(source, target);
    }

    /// Keeps the counts that [`Order::urgency`] reads, so that it need not look at all neighbours of a busy node.
    fn count_block(&mut self, s: usize, t: usize) {
        if self.nodes[t].outputs > 0 {
            self.nodes[s].near += 1;
        }
        if self.nodes[t].output {
            self.nodes[s].outputs += 1;
            if self.nodes[s].outputs == 1 {
                for p in self.live_sources(s) {
                    self.nodes[p].near += 1;
                    self.resettle(p);
                }
            }
        }
        self.resettle(s);
    }

    /// The nodes that still block `i`, each once.
    fn live_sources(&mut self, i: usize) -> Vec<usize> {
        let mut sources = std::mem::take(&mut self.nodes[i].sources);
        sources.sort_unstable();
        sources.dedup();
        sources.retain(|s| self.links.contains(&(*s, i)));
        self.nodes[i].sources.clone_from(&sources);
        sources
    }

    /// Holds a node back until [`Order::release`]: asynchronous work is under way.
    pub fn hold(&mut self, id: &str) {
        if let Some(i) = self.index.get(id).copied() {
            self.nodes[i].blocked_by += 1;
            self.external += 1;
            self.unsettle(i);
        }
    }

    pub fn release(&mut self, id: &str) {
        if let Some(i) = self.index.get(id).copied() {
            self.nodes[i].blocked_by -= 1;
            self.external -= 1;
            self.settle(i);
        }
    }

    /// A node is done: it leaves, and what it blocked may become ready.
    pub fn complete(&mut self, id: &str) {
        let Some(i) = self.index.get(id).copied() else {
            return;
        };
        self.unsettle(i);
        if self.nodes[i].seq.take().is_some() {
            self.pending -= 1;
        }
        if self.nodes[i].outputs > 0 {
            for p in self.live_sources(i) {
                self.nodes[p].near -= 1;
                self.resettle(p);
            }
        }
        self.nodes[i].outputs = 0;
        self.nodes[i].near = 0;
        for t in std::mem::take(&mut self.nodes[i].blocks) {
            self.links.remove(&(i, t));
            self.nodes[t].blocked_by -= 1;
            self.settle(t);
        }
    }

    /// Picks the next node. It stays pending until [`Order::complete`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would end where this waits"
    )]
    pub fn next(&mut self) -> Next {
        if self.pending == 0 {
            return Next::Finished;
        }
        if let Some((_, i)) = self.ready.iter().find_map(BTreeSet::first) {
            return Next::Run(self.nodes[*i].id.clone());
        }
        if self.external > 0 {
            Next::Wait
        } else {
            Next::Cycle(self.stuck())
        }
    }

    /// How urgent a ready node is; lower is sooner.
    fn urgency(&self, i: usize) -> usize {
        let node = &self.nodes[i];
        if node.eager {
            0
        } else if node.outputs > 0 {
            1
        } else if node.near > 0 {
            2
        } else {
            3
        }
    }

    fn settle(&mut self, i: usize) {
        if let (Some(seq), 0) = (self.nodes[i].seq, self.nodes[i].blocked_by) {
            let bucket = self.urgency(i);
            self.nodes[i].bucket = bucket;
            self.ready[bucket].insert((seq, i));
        }
    }

    fn unsettle(&mut self, i: usize) {
        if let Some(seq) = self.nodes[i].seq {
            self.ready[self.nodes[i].bucket].remove(&(seq, i));
        }
    }

    fn resettle(&mut self, i: usize) {
        self.unsettle(i);
        self.settle(i);
    }

    /// The nodes that remain after taking away, again and again, those nothing blocks.
    fn stuck(&self) -> Vec<Arc<str>> {
        let mut blocked: HashMap<usize, usize> = HashMap::new();
        let mut left: BTreeSet<(u64, usize)> = BTreeSet::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(seq) = node.seq {
                blocked.insert(i, node.blocked_by);
                left.insert((seq, i));
            }
        }
        let mut free: Vec<(u64, usize)> = left
            .iter()
            .filter(|(_, i)| blocked[i] == 0)
            .copied()
            .collect();
        while let Some(node) = free.pop() {
            left.remove(&node);
            for t in &self.nodes[node.1].blocks {
                if let Some(n) = blocked.get_mut(t) {
                    *n -= 1;
                    if let (0, Some(seq)) = (*n, self.nodes[*t].seq) {
                        free.push((seq, *t));
                    }
                }
            }
        }
        left.into_iter()
            .map(|(_, i)| self.nodes[i].id.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `"4:1,2! 1 2"`: node 4 needs 1 and 2 and is an output.
    struct Script(Vec<(Arc<str>, Vec<Arc<str>>, bool)>);

    impl Script {
        fn new(text: &str) -> Self {
            Self(
                text.split_whitespace()
                    .map(|word| {
                        let output = word.ends_with('!');
                        let (id, needs) = word
                            .trim_end_matches('!')
                            .split_once(':')
                            .unwrap_or((word.trim_end_matches('!'), ""));
                        (
                            id.into(),
                            needs
                                .split(',')
                                .filter(|s| !s.is_empty())
                                .map(Arc::from)
                                .collect(),
                            output,
                        )
                    })
                    .collect(),
            )
        }
        fn find(&self, id: &str) -> &(Arc<str>, Vec<Arc<str>>, bool) {
            self.0.iter().find(|n| &*n.0 == id).unwrap()
        }
    }

    impl Nodes for Script {
        fn needs(&self, id: &str) -> Vec<(Arc<str>, i64)> {
            self.find(id).1.iter().map(|n| (n.clone(), 0)).collect()
        }
        fn is_cached(&self, _: &str) -> bool {
            false
        }
        fn is_output(&self, id: &str) -> bool {
            self.find(id).2
        }
        fn is_async(&self, _: &str) -> bool {
            false
        }
    }

    #[track_caller]
    fn check(script: &str, want: &str) {
        let script = Script::new(script);
        let mut order = Order::new();
        for (id, _, output) in &script.0 {
            if *output {
                order.add_node(id, &script, &mut |_, _| {});
            }
        }
        let mut ran = Vec::new();
        loop {
            match order.next() {
                Next::Run(id) => {
                    order.complete(&id);
                    ran.push(id.to_string());
                }
                Next::Cycle(ids) => {
                    ran.push(format!("cycle({})", ids.join(",")));
                    break;
                }
                Next::Wait | Next::Finished => break,
            }
        }
        assert_eq!(ran.join(" "), want);
    }

    #[test]
    fn runs_in_the_reference_order() {
        check("4:1,2! 1 2", "2 1 4");
        check("1 2:1 3:2!", "1 2 3");
        // Two outputs: the one that is ready goes first, its neighbours before distant ones.
        check("9:8! 8:7 7 5:4! 4", "4 5 7 8 9");
    }

    #[test]
    fn finds_the_cycle_and_not_its_consumers() {
        check("1:2 2:1 3:1! 4!", "4 cycle(3,1,2)");
    }
}
