//! Promoted widgets: inputs of a subgraph that show a widget inside, and the values its instances set for them.

use std::collections::HashMap;
use std::sync::Arc;

use super::options::MAX_DEPTH;
use super::parse::{File, Graph, Kind, Node};
use super::values::{id_text, list, text};
use crate::Value;

impl File {
    /// Finds which inner widget each input of a subgraph shows, and what the instances set it to.
    pub(super) fn promote(&mut self) {
        for at in self.inside_out() {
            let graph = &self.graphs[at];
            let found = graph
                .inputs
                .iter()
                .map(|port| {
                    port.links
                        .iter()
                        .filter_map(|link| graph.ends.get(link).copied())
                        .find(|(node, slot)| self.shows_widget(&graph.nodes[*node], *slot))
                })
                .collect();
            self.graphs[at].promoted = found;
        }
        for at in 0..self.graphs.len() {
            for n in 0..self.graphs[at].nodes.len() {
                let node = &self.graphs[at].nodes[n];
                let Kind::Instance { graph, .. } = node.kind else {
                    continue;
                };
                let set = Self::instance_values(&self.graphs[graph], &node.raw);
                if let Kind::Instance { values, .. } = &mut self.graphs[at].nodes[n].kind {
                    *values = set;
                }
            }
        }
    }

    fn shows_widget(&self, node: &Node, slot: usize) -> bool {
        match &node.kind {
            Kind::Known => node.slots[slot].widget.is_some(),
            Kind::Instance { graph, .. } => self.graphs[*graph]
                .promoted
                .get(slot)
                .is_some_and(Option::is_some),
            _ => false,
        }
    }

    /// The graphs, each after those it contains. A graph that contains itself comes at some place; expansion refuses it.
    fn inside_out(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.graphs.len());
        let mut seen = vec![false; self.graphs.len()];
        for start in 0..self.graphs.len() {
            let mut stack = vec![(start, 0)];
            while let Some((at, next)) = stack.pop() {
                if next == 0 && std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                if let Some(inner) = self.graphs[at].inner.get(next) {
                    stack.push((at, next + 1));
                    stack.push((*inner, 0));
                } else {
                    order.push(at);
                }
            }
        }
        order
    }

    fn instance_values(graph: &Graph, raw: &Value) -> Vec<Option<Value>> {
        let stored = raw.get("widgets_values");
        let named = match (raw.get("widgets_values_named"), stored) {
            (_, Some(Value::Map(m))) | (Some(Value::Map(m)), _) => Some(m),
            _ => None,
        };
        let stored = list(stored);
        let mut values = vec![None; graph.inputs.len()];
        if let Some(proxies) = proxies(raw) {
            let at: HashMap<Arc<str>, usize> = proxies
                .iter()
                .enumerate()
                .rev()
                .filter_map(|(k, entry)| {
                    let entry = entry.as_list()?;
                    let own = id_text(entry.first()).as_deref() == Some("-1");
                    own.then(|| text(entry.get(1)))
                        .flatten()
                        .map(|name| (name, k))
                })
                .collect();
            for (value, port) in values.iter_mut().zip(&graph.inputs) {
                *value = at.get(&port.name).and_then(|k| stored.get(*k)).cloned();
            }
        } else if let Some(named) = named {
            for (value, port) in values.iter_mut().zip(&graph.inputs) {
                *value = named.get(&port.name).cloned();
            }
        } else {
            let mut next = stored.iter();
            for (value, shown) in values.iter_mut().zip(&graph.promoted) {
                if shown.is_some() {
                    *value = next.next().cloned();
                }
            }
        }
        for value in &mut values {
            if value.as_ref().is_some_and(Value::is_null) {
                *value = None;
            }
        }
        values
    }

    /// The value of the widget an instance shows for an input: its own, else the one stored inside.
    pub(super) fn promoted_value(&self, instance: &Node, input: usize) -> Option<Value> {
        let (mut node, mut input) = (instance, input);
        // Bounded: inside a bypassed instance nobody has checked yet that a graph does not contain itself.
        for _ in 0..=2 * MAX_DEPTH {
            let Kind::Instance { graph, values } = &node.kind else {
                let name = node.slots.get(input)?.widget.as_ref()?;
                return node.widget(name)?.value.clone();
            };
            let graph = &self.graphs[*graph];
            let (inner, slot) = (*graph.promoted.get(input)?)?;
            if let Some(Some(value)) = values.get(input) {
                return Some(value.clone());
            }
            (node, input) = (&graph.nodes[inner], slot);
        }
        None
    }
}

/// `properties.proxyWidgets`, a list or the text of one.
fn proxies(raw: &Value) -> Option<Vec<Value>> {
    match raw.get("properties")?.get("proxyWidgets")? {
        Value::List(l) => Some(l.to_vec()),
        Value::Str(s) => match crate::json::parse(s) {
            Ok(Value::List(l)) => Some(l.to_vec()),
            _ => None,
        },
        _ => None,
    }
}
