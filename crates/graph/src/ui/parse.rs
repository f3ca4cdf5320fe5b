//! The file as graphs of nodes with slots, links and widgets. What is of a wrong form is left out with a warning.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::defs::NodeDefs;
use super::group;
use super::options::{ConvertError, MAX_DEPTH, MAX_SLOTS, Options, Warnings};
use super::room::{Room, weight};
use super::values::{INPUT_NODE, id_text, list, small_int, text, type_text};
use super::widgets::{self, Widget};
use crate::{Map, Value};

/// All graphs of a file: the root first, then the subgraph definitions, then one for each use of a group node.
pub(super) struct File {
    pub(super) graphs: Vec<Graph>,
}

#[derive(Default)]
pub(super) struct Graph {
    pub(super) name: Arc<str>,
    pub(super) nodes: Vec<Node>,
    pub(super) by_id: HashMap<Arc<str>, usize>,
    pub(super) links: HashMap<Arc<str>, Link>,
    /// Which node and slot a link ends on, as the nodes themselves say.
    pub(super) ends: HashMap<Arc<str>, (usize, usize)>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    /// For each input the inner node and slot whose widget it shows, if any.
    pub(super) promoted: Vec<Option<(usize, usize)>>,
    pub(super) inner: Vec<usize>,
}

/// An input or output of a subgraph.
pub(super) struct Port {
    pub(super) name: Arc<str>,
    ty: Arc<str>,
    pub(super) links: Vec<Arc<str>>,
}

pub(super) struct Link {
    pub(super) origin: Arc<str>,
    pub(super) slot: usize,
}

pub(super) struct Node {
    pub(super) id: Arc<str>,
    pub(super) ty: Arc<str>,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) title: Option<Arc<str>>,
    pub(super) slots: Vec<NodeSlot>,
    pub(super) outputs: Vec<Arc<str>>,
    pub(super) widgets: Vec<Widget>,
    pub(super) raw: Value,
}

pub(super) enum Kind {
    /// A class the server knows.
    Known,
    /// A class it does not know, with the last value it stores.
    Unknown(Option<Value>),
    Reroute,
    Primitive(Option<Value>),
    /// Text for people.
    Note,
    Instance {
        graph: usize,
        /// The values it sets for its inputs; none keeps what is stored inside.
        values: Vec<Option<Value>>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Active,
    Muted,
    Bypassed,
}

pub(super) struct NodeSlot {
    pub(super) name: Arc<str>,
    pub(super) ty: Arc<str>,
    pub(super) link: Option<Arc<str>>,
    /// The widget this slot feeds.
    pub(super) widget: Option<Arc<str>>,
}

impl Node {
    pub(super) fn widget(&self, name: &str) -> Option<&Widget> {
        self.widgets.iter().find(|w| &*w.name == name)
    }

    /// What a person would call it.
    pub(super) fn label(&self) -> String {
        format!("{} ({})", self.id, self.ty)
    }
}

struct Parser<'a> {
    defs: &'a NodeDefs,
    groups: Option<&'a Map>,
    definitions: HashMap<Arc<str>, usize>,
    graphs: Vec<Graph>,
    /// Graphs whose nodes are still to be read, and how deep in group nodes they are.
    queue: VecDeque<(usize, Value, usize)>,
    left: usize,
    limit: usize,
    slots_left: usize,
    /// Each use of a group is read as if it were written out in the file.
    room: Room,
    /// Bytes of each group that is used.
    weights: HashMap<&'a str, usize>,
    unknown: HashSet<Arc<str>>,
}

impl File {
    pub(super) fn parse(
        workflow: &Value,
        defs: &NodeDefs,
        options: &Options,
        warnings: &mut Warnings,
    ) -> Result<Self, ConvertError> {
        let groups = workflow
            .get("extra")
            .and_then(|e| e.get("groupNodes"))
            .and_then(Value::as_map);
        let mut p = Parser {
            defs,
            groups,
            definitions: HashMap::new(),
            graphs: Vec::new(),
            queue: VecDeque::new(),
            left: options.max_nodes,
            limit: options.max_nodes,
            slots_left: MAX_SLOTS,
            room: Room::new(options.max_bytes),
            weights: HashMap::new(),
            unknown: HashSet::new(),
        };
        p.add_graph(workflow, 0);
        p.add_definitions(workflow, warnings);
        while let Some((graph, raw, depth)) = p.queue.pop_front() {
            p.read_graph(graph, &raw, depth, warnings)?;
        }
        let mut file = Self { graphs: p.graphs };
        file.promote();
        Ok(file)
    }
}

impl<'a> Parser<'a> {
    fn add_graph(&mut self, raw: &Value, depth: usize) -> usize {
        let mut graph = Graph {
            name: text(raw.get("name")).unwrap_or_default(),
            links: read_links(raw),
            inputs: read_ports(raw.get("inputs")),
            outputs: read_ports(raw.get("outputs")),
            ..Graph::default()
        };
        // Only the first link that is there counts, and it is asked for at every use.
        let Graph { links, outputs, .. } = &mut graph;
        for port in outputs {
            port.links.retain(|id| links.contains_key(id));
            port.links.truncate(1);
        }
        // Some writers leave the ids out of the ports; the links themselves say where they start.
        if graph.inputs.iter().any(|p| p.links.is_empty()) {
            let listed: HashSet<usize> = (0..graph.inputs.len())
                .filter(|i| !graph.inputs[*i].links.is_empty())
                .collect();
            for raw in list(raw.get("links")) {
                if let Some((id, link)) = read_link(raw)
                    && &*link.origin == INPUT_NODE
                    && !listed.contains(&link.slot)
                    && let Some(port) = graph.inputs.get_mut(link.slot)
                {
                    port.links.push(id);
                }
            }
        }
        self.graphs.push(graph);
        self.queue
            .push_back((self.graphs.len() - 1, raw.clone(), depth));
        self.graphs.len() - 1
    }

    /// Definitions sit in the root list; lists inside definitions are accepted too.
    fn add_definitions(&mut self, workflow: &Value, warnings: &mut Warnings) {
        let mut holders = VecDeque::from([workflow.clone()]);
        while let Some(holder) = holders.pop_front() {
            let found = holder
                .get("definitions")
                .and_then(|d| d.get("subgraphs"))
                .cloned();
            for raw in list(found.as_ref()) {
                let Some(id) = id_text(raw.get("id")) else {
                    warnings.add(|| "a subgraph without an id was left out".into());
                    continue;
                };
                if self.definitions.contains_key(&id) {
                    continue;
                }
                let graph = self.add_graph(raw, 0);
                self.definitions.insert(id, graph);
                holders.push_back(raw.clone());
            }
        }
    }

    fn read_graph(
        &mut self,
        at: usize,
        raw: &Value,
        depth: usize,
        warnings: &mut Warnings,
    ) -> Result<(), ConvertError> {
        for raw in list(raw.get("nodes")) {
            self.left = self
                .left
                .checked_sub(1)
                .ok_or(ConvertError::TooLarge { limit: self.limit })?;
            let (Some(id), Some(ty)) = (id_text(raw.get("id")), text(raw.get("type"))) else {
                warnings.add(|| "a node without an id or a type was left out".into());
                continue;
            };
            if self.graphs[at].by_id.contains_key(&id) {
                warnings.add(|| format!("node {id} occurs twice; the second was left out"));
                continue;
            }
            let mut node = self.read_node(id, ty, raw, depth, warnings)?;
            let graph = &mut self.graphs[at];
            for (i, slot) in node.slots.iter_mut().enumerate() {
                let Some(link) = &slot.link else { continue };
                if graph.links.contains_key(link) {
                    graph
                        .ends
                        .entry(link.clone())
                        .or_insert((graph.nodes.len(), i));
                } else {
                    warnings.add(|| {
                        format!(
                            "input {:?} of node {}: there is no link {link}",
                            slot.name, node.id
                        )
                    });
                    slot.link = None;
                }
            }
            if let Kind::Instance { graph: inner, .. } = &node.kind {
                graph.inner.push(*inner);
            }
            graph.by_id.insert(node.id.clone(), graph.nodes.len());
            graph.nodes.push(node);
        }
        Ok(())
    }

    fn spend(&mut self, slots: usize) -> Result<(), ConvertError> {
        self.slots_left = self
            .slots_left
            .checked_sub(slots)
            .ok_or(ConvertError::TooLarge { limit: self.limit })?;
        Ok(())
    }

    fn read_node(
        &mut self,
        id: Arc<str>,
        ty: Arc<str>,
        raw: &Value,
        depth: usize,
        warnings: &mut Warnings,
    ) -> Result<Node, ConvertError> {
        let mode = match small_int(raw.get("mode")) {
            Some(2) => Mode::Muted,
            Some(4) => Mode::Bypassed,
            _ => Mode::Active,
        };
        self.spend(list(raw.get("inputs")).len())?;
        let mut saved = read_slots(raw.get("inputs"));
        let mut outputs: Vec<Arc<str>> = list(raw.get("outputs"))
            .iter()
            .map(|o| type_text(o.get("type")))
            .collect();
        let first_value = || list(raw.get("widgets_values")).first().cloned();
        let mut widgets = Vec::new();
        let kind = match &*ty {
            "Reroute" => {
                saved.truncate(1);
                Kind::Reroute
            }
            "PrimitiveNode" => Kind::Primitive(first_value()),
            "Note" | "MarkdownNote" => Kind::Note,
            _ => {
                if let Some(graph) = self.instance(&ty, raw, depth, &id)? {
                    let definition = &self.graphs[graph];
                    self.spend(definition.inputs.len() + definition.outputs.len())?;
                    let ports = &self.graphs[graph].inputs;
                    let known = ports.iter().map(|p| (&p.name, &p.ty, false));
                    saved = merge_slots(known, saved);
                    merge_outputs(
                        &mut outputs,
                        self.graphs[graph].outputs.iter().map(|p| &p.ty),
                    );
                    Kind::Instance {
                        graph,
                        values: Vec::new(),
                    }
                } else if let Some(def) = self.defs.get(&ty) {
                    let label = format!("{id} ({ty})");
                    widgets = widgets::read(&def, raw, &label, warnings);
                    // Sockets come first, then widgets, whatever the class declares between them.
                    let part = |widget: bool| {
                        def.inputs
                            .iter()
                            .filter(move |i| i.has_slot() && i.is_widget() == widget)
                            .map(move |i| (&i.name, &i.ty, widget))
                    };
                    saved = merge_slots(part(false).chain(part(true)), saved);
                    merge_outputs(&mut outputs, def.outputs.iter());
                    Kind::Known
                } else {
                    if self.unknown.insert(ty.clone()) {
                        warnings.add(|| format!("node {id}: unknown node type {ty:?}"));
                    }
                    Kind::Unknown(list(raw.get("widgets_values")).last().cloned())
                }
            }
        };
        for slot in &mut saved {
            // Inputs of a dynamic combo's choice are not in the class, but their widgets are there by now.
            if slot.widget.is_none() && widgets.iter().any(|w| w.name == slot.name) {
                slot.widget = Some(slot.name.clone());
            }
        }
        let display_name = self.defs.get(&ty).and_then(|d| d.display_name.clone());
        Ok(Node {
            title: text(raw.get("title"))
                .filter(|t| !t.is_empty())
                .or(display_name),
            id,
            ty,
            kind,
            mode,
            slots: saved,
            outputs,
            widgets,
            raw: raw.clone(),
        })
    }

    /// The graph a node stands for, if it is an instance of a subgraph or a group node.
    fn instance(
        &mut self,
        ty: &Arc<str>,
        raw: &Value,
        depth: usize,
        id: &Arc<str>,
    ) -> Result<Option<usize>, ConvertError> {
        if let Some(graph) = self.definitions.get(ty) {
            return Ok(Some(*graph));
        }
        let name = ty
            .strip_prefix("workflow>")
            .or_else(|| ty.strip_prefix("workflow/"));
        let groups: Option<&'a Map> = self.groups;
        let Some((name, group)) = name.zip(groups).and_then(|(n, g)| g.get_key_value(n)) else {
            return Ok(None);
        };
        if depth >= MAX_DEPTH {
            return Err(ConvertError::TooDeep {
                node: id.to_string(),
                limit: MAX_DEPTH,
            });
        }
        if group::size(group) > self.left {
            return Err(ConvertError::TooLarge { limit: self.limit });
        }
        self.spend(group::size(group))?;
        let known = self.weights.entry(&**name);
        let bytes = *known.or_insert_with(|| weight(group, usize::MAX));
        self.room.spend(bytes)?;
        let definition = group::to_subgraph(name, group, raw, self.defs);
        Ok(Some(self.add_graph(&definition, depth + 1)))
    }
}

fn read_link(raw: &Value) -> Option<(Arc<str>, Link)> {
    let field = |i: usize, name: &str| match raw {
        Value::List(l) => l.get(i),
        other => other.get(name),
    };
    Some((
        id_text(field(0, "id"))?,
        Link {
            origin: id_text(field(1, "origin_id"))?,
            slot: usize::try_from(small_int(field(2, "origin_slot"))?).ok()?,
        },
    ))
}

fn read_links(raw: &Value) -> HashMap<Arc<str>, Link> {
    list(raw.get("links"))
        .iter()
        .filter_map(read_link)
        .collect()
}

fn read_ports(raw: Option<&Value>) -> Vec<Port> {
    list(raw)
        .iter()
        .map(|p| Port {
            name: text(p.get("name")).unwrap_or_default(),
            ty: type_text(p.get("type")),
            links: list(p.get("linkIds"))
                .iter()
                .filter_map(|l| id_text(Some(l)))
                .collect(),
        })
        .collect()
}

fn read_slots(raw: Option<&Value>) -> Vec<NodeSlot> {
    list(raw)
        .iter()
        .map(|s| NodeSlot {
            name: text(s.get("name")).unwrap_or_default(),
            ty: type_text(s.get("type")),
            link: id_text(s.get("link")),
            widget: s.get("widget").and_then(|w| text(w.get("name"))),
        })
        .collect()
}

/// The slots a class declares, with what was saved for those names, then what was saved beyond them.
fn merge_slots<'a>(
    known: impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>, bool)>,
    saved: Vec<NodeSlot>,
) -> Vec<NodeSlot> {
    let by_name: HashMap<Arc<str>, usize> = saved
        .iter()
        .enumerate()
        .map(|(i, s)| (s.name.clone(), i))
        .collect();
    let mut names = HashSet::new();
    let mut slots = Vec::new();
    for (name, ty, widget) in known {
        names.insert(name.clone());
        slots.push(NodeSlot {
            name: name.clone(),
            ty: ty.clone(),
            link: by_name.get(name).and_then(|i| saved[*i].link.clone()),
            widget: widget.then(|| name.clone()),
        });
    }
    slots.extend(saved.into_iter().filter(|s| !names.contains(&s.name)));
    slots
}

fn merge_outputs<'a>(saved: &mut Vec<Arc<str>>, known: impl Iterator<Item = &'a Arc<str>>) {
    for (i, ty) in known.enumerate() {
        if let Some(have) = saved.get_mut(i) {
            have.clone_from(ty);
        } else {
            saved.push(ty.clone());
        }
    }
}
