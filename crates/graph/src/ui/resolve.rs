//! Expanding instances, following links to their sources, and writing the nodes out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::options::{ConvertError, MAX_DEPTH, MAX_PATH, Options, Warnings};
use super::parse::{File, Graph, Kind, Link, Mode, Node};
use super::rewrite::DynamicPrompts;
use super::room::Room;
use super::values::INPUT_NODE;
use crate::{Map, Value, map};

/// Steps along links for a whole file; honest ones need a few for each input.
const MAX_STEPS: usize = 3_000_000;

/// One use of a graph: the root, or an instance at some path.
struct Scope {
    graph: usize,
    /// The scope and node of the instance.
    parent: Option<(usize, usize)>,
    /// What the ids of its nodes begin with: `42:34:`.
    prefix: Arc<str>,
    depth: usize,
}

/// Where a link comes from in the end.
#[derive(Clone)]
enum Source {
    Node {
        scope: usize,
        node: usize,
        slot: usize,
    },
    /// A value instead of a link; `scope` is that of the primitive node it comes from.
    Value {
        value: Value,
        scope: Option<usize>,
    },
    /// A node that is switched off.
    Muted,
    Nothing,
}

/// Expands, resolves and writes the whole file.
pub(super) fn flatten(
    file: &File,
    options: &Options,
    warnings: &mut Warnings,
) -> Result<Map, ConvertError> {
    let mut f = Flattener {
        file,
        scopes: Vec::new(),
        instances: HashMap::new(),
        paths: HashMap::new(),
        memo: HashMap::new(),
        steps: 0,
        room: Room::new(options.max_bytes),
        warnings,
    };
    let plan = f.expand(options.max_nodes)?;
    let dynamic = DynamicPrompts::new(options);
    for (scope, node) in &plan {
        let path = f.path(*scope, *node);
        f.paths.insert((*scope, *node), path);
    }
    let mut prompt = Map::with_capacity(plan.len());
    for (scope, node) in plan {
        let path = f.paths[&(scope, node)].clone();
        if prompt.contains_key(&path) {
            f.warnings
                .add(|| format!("two nodes have the id {path}; the second was left out"));
            continue;
        }
        let entry = f.write(scope, node, options, &dynamic)?;
        prompt.insert(path, entry);
    }
    Ok(prompt)
}

struct Flattener<'a> {
    file: &'a File,
    scopes: Vec<Scope>,
    /// Scope and node of an instance to its inner scope.
    instances: HashMap<(usize, usize), usize>,
    /// Ids of the nodes that are written.
    paths: HashMap<(usize, usize), Arc<str>>,
    /// Sources of outputs that only pass something on, by the type wanted.
    memo: HashMap<(usize, usize, usize, Arc<str>), Source>,
    steps: usize,
    room: Room,
    warnings: &'a mut Warnings,
}

impl<'a> Flattener<'a> {
    fn graph(&self, scope: usize) -> &'a Graph {
        &self.file.graphs[self.scopes[scope].graph]
    }

    fn node(&self, scope: usize, node: usize) -> &'a Node {
        &self.graph(scope).nodes[node]
    }

    fn path(&self, scope: usize, node: usize) -> Arc<str> {
        let id = &self.node(scope, node).id;
        let prefix = &self.scopes[scope].prefix;
        if prefix.is_empty() {
            id.clone()
        } else {
            format!("{prefix}{id}").into()
        }
    }

    /// Makes a scope for every active instance; returns the nodes to write, in the order of the file.
    fn expand(&mut self, limit: usize) -> Result<Vec<(usize, usize)>, ConvertError> {
        self.scopes.push(Scope {
            graph: 0,
            parent: None,
            prefix: "".into(),
            depth: 0,
        });
        let mut plan = Vec::new();
        let mut visited = 0;
        let mut stack = vec![(0, 0)];
        while let Some((scope, at)) = stack.pop() {
            let Some(node) = self.graph(scope).nodes.get(at) else {
                continue;
            };
            visited += 1;
            if visited > limit {
                return Err(ConvertError::TooLarge { limit });
            }
            stack.push((scope, at + 1));
            if node.mode != Mode::Active {
                continue;
            }
            match &node.kind {
                Kind::Known | Kind::Unknown(_) => plan.push((scope, at)),
                Kind::Instance { graph, .. } => {
                    let inner = self.enter(scope, at, *graph)?;
                    stack.push((inner, 0));
                }
                Kind::Reroute | Kind::Primitive(_) | Kind::Note => {}
            }
        }
        Ok(plan)
    }

    fn enter(&mut self, scope: usize, at: usize, graph: usize) -> Result<usize, ConvertError> {
        let depth = self.scopes[scope].depth + 1;
        let path = self.path(scope, at);
        let mut above = Some(scope);
        while let Some(s) = above {
            if self.scopes[s].graph == graph {
                return Err(ConvertError::Recursive {
                    name: self.file.graphs[graph].name.to_string(),
                });
            }
            above = self.scopes[s].parent.map(|(s, _)| s);
        }
        if depth > MAX_DEPTH || path.len() > MAX_PATH {
            return Err(ConvertError::TooDeep {
                node: path.to_string(),
                limit: MAX_DEPTH,
            });
        }
        self.scopes.push(Scope {
            graph,
            parent: Some((scope, at)),
            prefix: format!("{path}:").into(),
            depth,
        });
        self.instances.insert((scope, at), self.scopes.len() - 1);
        Ok(self.scopes.len() - 1)
    }

    fn write(
        &mut self,
        scope: usize,
        at: usize,
        options: &Options,
        dynamic: &DynamicPrompts,
    ) -> Result<Value, ConvertError> {
        let node = self.node(scope, at);
        let title = node.title.as_ref().unwrap_or(&node.ty);
        let path = self.paths[&(scope, at)].len();
        // Every slot is looked at, whether or not it is written.
        let least = path + title.len() + node.ty.len() + node.slots.len();
        self.room.spend(least)?;
        let mut inputs = Map::new();
        for w in &node.widgets {
            if let Some(value) = w.sent.as_ref().or(w.value.as_ref())
                && (options.display_values || !w.display)
            {
                self.room.spend(w.name.len())?;
                self.room.spend_value(value)?;
                inputs.insert(w.name.clone(), wrapped(value));
            }
        }
        if let Kind::Unknown(Some(value)) = &node.kind {
            self.room.spend_value(value)?;
            inputs.insert("UNKNOWN".into(), wrapped(value));
        }
        for (i, slot) in node.slots.iter().enumerate() {
            if slot.link.is_none() {
                continue;
            }
            self.room.spend(slot.name.len())?;
            match self.source(scope, at, i)? {
                Source::Node {
                    scope: s,
                    node: n,
                    slot: out,
                } => {
                    let path = self.paths[&(s, n)].clone();
                    self.room.spend(path.len())?;
                    inputs.insert(slot.name.clone(), vec![Value::Str(path), out.into()].into());
                }
                // A primitive node writes into the widget, which then does with it what it does with any value.
                Source::Value {
                    value,
                    scope: Some(from),
                } if from == scope => {
                    self.room.spend_value(&value)?;
                    if let Some(widget) = slot.widget.as_ref().and_then(|w| node.widget(w)) {
                        let value = dynamic.serialise(node, widget, value);
                        inputs.insert(widget.name.clone(), wrapped(&value));
                    }
                }
                Source::Value { value, .. } => {
                    self.room.spend_value(&value)?;
                    inputs.insert(slot.name.clone(), wrapped(&value));
                }
                Source::Muted if !options.keep_widgets_of_muted => {
                    inputs.shift_remove(&slot.name);
                }
                Source::Muted | Source::Nothing => {}
            }
        }
        let mut entry = map! {"inputs" => inputs};
        // The editor does not name the class of a node it does not know; the server answers that it is missing.
        if options.name_unknown || matches!(node.kind, Kind::Known) {
            entry.insert("class_type".into(), (&node.ty).into());
        }
        entry.insert("_meta".into(), map! {"title" => title}.into());
        Ok(entry.into())
    }

    /// Follows the link of an input through reroutes, bypassed nodes and the walls of subgraphs.
    fn source(&mut self, scope: usize, at: usize, slot: usize) -> Result<Source, ConvertError> {
        let wanted = self.node(scope, at).slots[slot].ty.clone();
        let mut trail = Vec::new();
        let found = self.follow((scope, at, slot), &wanted, &mut trail)?;
        for (scope, node, out) in trail {
            self.memo
                .insert((scope, node, out, wanted.clone()), found.clone());
        }
        Ok(found)
    }

    fn follow(
        &mut self,
        start: (usize, usize, usize),
        wanted: &Arc<str>,
        trail: &mut Vec<(usize, usize, usize)>,
    ) -> Result<Source, ConvertError> {
        let mut passed = HashSet::new();
        let (mut scope, at, slot) = start;
        let Some(mut link) = self.link_of(scope, at, slot) else {
            return Ok(Source::Nothing);
        };
        loop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(ConvertError::TooTangled);
            }
            if &*link.origin == INPUT_NODE
                && let Some((outer, instance)) = self.scopes[scope].parent
            {
                if let Some(next) = self.link_of(outer, instance, link.slot) {
                    (scope, link) = (outer, next);
                    continue;
                }
                let instance = self.node(outer, instance);
                let value = self.file.promoted_value(instance, link.slot);
                return Ok(value.map_or(Source::Nothing, |value| Source::Value {
                    value,
                    scope: None,
                }));
            }
            let Some(at) = self.graph(scope).by_id.get(&link.origin).copied() else {
                self.warnings
                    .add(|| format!("a link starts at node {}, which is not there", link.origin));
                return Ok(Source::Nothing);
            };
            let node = self.node(scope, at);
            let here = (scope, at, link.slot);
            if let Some(known) = self.memo.get(&(here.0, here.1, here.2, wanted.clone())) {
                return Ok(known.clone());
            }
            let next = match &node.kind {
                Kind::Note => return Ok(Source::Nothing),
                Kind::Primitive(value) => {
                    return Ok(value
                        .clone()
                        .map_or(Source::Nothing, |value| Source::Value {
                            value,
                            scope: Some(scope),
                        }));
                }
                Kind::Reroute => self.link_of(scope, at, 0),
                // Only nodes that would run can be switched off; the kinds above never do.
                _ if node.mode == Mode::Muted => return Ok(Source::Muted),
                _ if node.mode == Mode::Bypassed => {
                    let each = |ty: &str| 1 + ty.len() * wanted.len() / 64;
                    self.steps += node.slots.iter().map(|s| each(&s.ty)).sum::<usize>();
                    bypass(node, link.slot, wanted)
                        .and_then(|through| self.link_of(scope, at, through))
                }
                Kind::Instance { .. } => {
                    let inner = self.instances.get(&(scope, at)).copied();
                    inner.and_then(|inner| {
                        scope = inner;
                        self.output_link(inner, link.slot)
                    })
                }
                Kind::Known | Kind::Unknown(_) => {
                    return Ok(Source::Node {
                        scope,
                        node: at,
                        slot: link.slot,
                    });
                }
            };
            if !passed.insert(here) {
                self.warnings
                    .add(|| format!("the links through node {} go in a circle", node.label()));
                return Ok(Source::Nothing);
            }
            trail.push(here);
            let Some(next) = next else {
                return Ok(Source::Nothing);
            };
            link = next;
        }
    }

    fn link_of(&self, scope: usize, at: usize, slot: usize) -> Option<&'a Link> {
        let graph = self.graph(scope);
        let link = graph.nodes[at].slots.get(slot)?.link.as_ref()?;
        graph.links.get(link)
    }

    /// The first link that ends on an output of a subgraph.
    fn output_link(&self, scope: usize, slot: usize) -> Option<&'a Link> {
        let graph = self.graph(scope);
        let ids = &graph.outputs.get(slot)?.links;
        ids.iter().find_map(|id| graph.links.get(id))
    }
}

/// The input whose source stands in for output `slot` of a bypassed node.
fn bypass(node: &Node, slot: usize, wanted: &str) -> Option<usize> {
    let inputs = &node.slots;
    if wanted.is_empty() || wanted == "*" {
        return (!inputs.is_empty()).then_some(if slot < inputs.len() { slot } else { 0 });
    }
    let output = node.outputs.get(slot).map_or("*", |t| t);
    let fits = |ty: &str| compatible(ty, output) && compatible(ty, wanted);
    if inputs.get(slot).is_some_and(|i| fits(&i.ty)) {
        return Some(slot);
    }
    inputs
        .iter()
        .position(|i| &*i.ty == wanted)
        .or_else(|| inputs.iter().position(|i| fits(&i.ty)))
}

/// Whether the editor would let two types be linked.
fn compatible(a: &str, b: &str) -> bool {
    let any = |t: &str| t.is_empty() || t == "*";
    if any(a) || any(b) || a.eq_ignore_ascii_case(b) {
        return true;
    }
    let alternatives =
        |t: &'_ str| -> Vec<String> { t.split(',').map(|p| p.trim().to_lowercase()).collect() };
    if !a.contains(',') && !b.contains(',') {
        return a.to_lowercase() == b.to_lowercase();
    }
    let (a, b) = (alternatives(a), alternatives(b));
    a.iter().any(|x| b.iter().any(|y| x == y || y == "*")) || a.iter().any(|x| x == "*")
}

/// A list would read as a link, so it travels in an object.
fn wrapped(value: &Value) -> Value {
    if matches!(value, Value::List(_)) {
        map! {"__value__" => value.clone()}.into()
    } else {
        value.clone()
    }
}
