//! Group nodes, the predecessor of subgraphs: each use becomes a subgraph of its own.
//!
//! A group's widgets are its children's widgets one after the other, so every use holds other values; giving each a
//! definition keeps the rest of the converter ignorant of groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::defs::NodeDefs;
use super::values::{INPUT_NODE, list, small_int, text, type_text};
use super::widgets;
use crate::{Map, Value, map};

/// How much there is to copy for each use of a group.
pub(super) fn size(group: &Value) -> usize {
    let nodes = list(group.get("nodes"));
    let slots = nodes
        .iter()
        .map(|n| list(n.get("inputs")).len() + list(n.get("outputs")).len());
    nodes.len() + list(group.get("links")).len() + slots.sum::<usize>()
}

/// An instance of `group` as the definition of a subgraph.
pub(super) fn to_subgraph(name: &str, group: &Value, instance: &Value, defs: &NodeDefs) -> Value {
    let children = list(group.get("nodes"));
    let mut b = Builder {
        children,
        defs,
        config: group.get("config"),
        fed: HashMap::new(),
        links: Vec::new(),
        linked: linked_inputs(instance),
        seen: HashMap::new(),
        inputs: Vec::new(),
    };
    let mut used = HashSet::new();
    for link in list(group.get("links")) {
        b.inner_link(link, &mut used);
    }
    let values = list(instance.get("widgets_values"));
    let mut at = 0;
    let mut nodes = Vec::with_capacity(children.len());
    for i in 0..children.len() {
        nodes.push(b.child(i, values.get(at..).unwrap_or(&[]), &mut at));
    }
    let outputs = b.outputs(group, &used);
    map! {
        "name" => name,
        "nodes" => nodes,
        "links" => b.links,
        "inputs" => b.inputs,
        "outputs" => outputs,
    }
    .into()
}

/// The inputs of the instance that are linked outside.
fn linked_inputs(instance: &Value) -> HashSet<Arc<str>> {
    list(instance.get("inputs"))
        .iter()
        .filter(|i| i.get("link").is_some_and(|l| !l.is_null()))
        .filter_map(|i| text(i.get("name")))
        .collect()
}

/// As much of a name as is repeated.
fn start(text: &str) -> &str {
    const LONGEST: usize = 300;
    let end = text.char_indices().nth(LONGEST);
    end.map_or(text, |(end, _)| &text[..end])
}

struct Builder<'a> {
    children: &'a [Value],
    defs: &'a NodeDefs,
    config: Option<&'a Value>,
    /// Child and input name to the link that feeds it from inside.
    fed: HashMap<(usize, Arc<str>), i64>,
    links: Vec<Value>,
    linked: HashSet<Arc<str>>,
    /// How often a name was given to an input of the group.
    seen: HashMap<Arc<str>, usize>,
    inputs: Vec<Value>,
}

impl Builder<'_> {
    fn add_link(&mut self, origin: Value, slot: i64) -> i64 {
        let id = self.links.len() as i64 + 1;
        self.links
            .push(map! {"id" => id, "origin_id" => origin, "origin_slot" => slot}.into());
        id
    }

    /// `[source index, source slot, target index, target slot, ..]`; one without a source comes from outside.
    fn inner_link(&mut self, link: &Value, used: &mut HashSet<(usize, i64)>) {
        let field = |i| small_int(link.as_list().and_then(|l| l.get(i)));
        let (Some(source), Some(slot), Some(target), Some(end)) =
            (field(0), field(1), field(2), field(3))
        else {
            return;
        };
        let (Ok(source), Ok(target), Ok(end)) = (
            usize::try_from(source),
            usize::try_from(target),
            usize::try_from(end),
        ) else {
            return;
        };
        let input = self
            .children
            .get(target)
            .and_then(|c| list(c.get("inputs")).get(end));
        let Some(name) = input.and_then(|i| text(i.get("name"))) else {
            return;
        };
        if source < self.children.len() {
            used.insert((source, slot));
            let id = self.add_link(Value::from(source.to_string()), slot);
            self.fed.insert((target, name), id);
        }
    }

    fn setting(&self, child: usize, part: &str, name: &str) -> Option<&Value> {
        self.config?.get(&child.to_string())?.get(part)?.get(name)
    }

    fn hidden(&self, child: usize, part: &str, name: &str) -> bool {
        self.setting(child, part, name)
            .and_then(|c| c.get("visible"))
            .and_then(Value::as_bool)
            == Some(false)
    }

    /// The name an input of a child has on the group: its own, with the child's title before it if that is taken.
    fn outer_name(&mut self, child: usize, name: &Arc<str>) -> Arc<str> {
        let custom = self
            .setting(child, "input", name)
            .and_then(|c| text(c.get("name")));
        let raw = &self.children[child];
        let title = text(raw.get("title")).or_else(|| text(raw.get("type")));
        let mut outer = custom.unwrap_or_else(|| name.clone());
        if self.seen.contains_key(&outer) {
            let title = title.unwrap_or_default();
            // Both are copied for every input of the child.
            let (title, name) = (start(&title), start(name));
            let prefixed: Arc<str> = format!("{title} {name}").into();
            let count = self.seen.get(&prefixed).copied().unwrap_or(0);
            outer = if count > 0 {
                format!("{title} {count} {name}").into()
            } else {
                prefixed.clone()
            };
            *self.seen.entry(prefixed).or_default() += 1;
        }
        *self.seen.entry(outer.clone()).or_default() += 1;
        outer
    }

    /// Child `i` with its own id, links and the part of the group's values that is its.
    fn child(&mut self, i: usize, values: &[Value], at: &mut usize) -> Value {
        let raw = &self.children[i];
        let class = text(raw.get("type")).unwrap_or_default();
        let def = self.defs.get(&class);
        let own = list(raw.get("widgets_values"));
        let mut child = raw.as_map().cloned().unwrap_or_default();
        child.insert("id".into(), i.to_string().into());

        if let Some(def) = &def {
            let skip = |name: &str| {
                self.fed.contains_key(&(i, Arc::from(name))) || self.hidden(i, "input", name)
            };
            let spliced = widgets::splice(def, own, values, &skip);
            *at += widgets::count(def, values, &skip);
            if !values.is_empty() {
                child.insert("widgets_values".into(), spliced.into());
                child.shift_remove("widgets_values_named");
            }
        } else if &*class == "PrimitiveNode" {
            // A value, and for numbers how it changes; the child's own list says which.
            let count = own.len().min(2);
            if values.len() >= count && count > 0 {
                child.insert("widgets_values".into(), values[..count].to_vec().into());
            }
            *at += count;
        }

        let mut slots: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        if let Some(def) = def {
            for widget in [false, true] {
                let part = def
                    .inputs
                    .iter()
                    .filter(|d| d.has_slot() && d.is_widget() == widget);
                slots.extend(part.map(|d| (d.name.clone(), d.ty.clone())));
            }
        }
        let known: HashSet<Arc<str>> = slots.iter().map(|(n, _)| n.clone()).collect();
        for input in list(raw.get("inputs")) {
            let name = text(input.get("name")).unwrap_or_default();
            if !known.contains(&name) {
                slots.push((name, type_text(input.get("type"))));
            }
        }
        let mut inputs: Vec<Value> = Vec::new();
        for (name, ty) in slots {
            let link = match self.fed.get(&(i, name.clone())) {
                Some(id) => Some(*id),
                None if self.hidden(i, "input", &name) => None,
                None => self.port(i, &name, &ty),
            };
            inputs.push(map! {"name" => &name, "type" => &ty, "link" => link}.into());
        }
        child.insert("inputs".into(), inputs.into());
        child.into()
    }

    /// Adds an input to the group for a child's free input. Only linked ones get a link inside: the values of the
    /// others already are with the child.
    fn port(&mut self, child: usize, name: &Arc<str>, ty: &Arc<str>) -> Option<i64> {
        let outer = self.outer_name(child, name);
        let index = self.inputs.len() as i64;
        let link = self
            .linked
            .contains(&outer)
            .then(|| self.add_link(INPUT_NODE.into(), index));
        let ids: Vec<i64> = link.into_iter().collect();
        let port: Map = map! {"name" => &outer, "type" => ty, "linkIds" => ids};
        self.inputs.push(port.into());
        link
    }

    /// The outputs of children that nothing inside uses, or that are also used outside.
    fn outputs(&mut self, group: &Value, used: &HashSet<(usize, i64)>) -> Vec<Value> {
        let external: HashSet<(usize, i64)> = list(group.get("external"))
            .iter()
            .filter_map(|e| {
                let e = e.as_list()?;
                Some((
                    usize::try_from(small_int(e.first())?).ok()?,
                    small_int(e.get(1))?,
                ))
            })
            .collect();
        let mut ports = Vec::new();
        for (i, raw) in self.children.iter().enumerate() {
            let class = text(raw.get("type")).unwrap_or_default();
            if matches!(&*class, "PrimitiveNode" | "Note" | "MarkdownNote") {
                continue;
            }
            let saved = list(raw.get("outputs"));
            let def = self.defs.get(&class);
            let known = def.as_ref().map_or(&[][..], |d| &d.outputs);
            for slot in 0..saved.len().max(known.len()) {
                let key = (i, slot as i64);
                if (used.contains(&key) && !external.contains(&key))
                    || self.hidden(i, "output", &slot.to_string())
                {
                    continue;
                }
                let ty = known
                    .get(slot)
                    .cloned()
                    .unwrap_or_else(|| type_text(saved.get(slot).and_then(|o| o.get("type"))));
                let link = self.add_link(i.to_string().into(), slot as i64);
                ports.push(map! {"type" => ty, "linkIds" => vec![link]}.into());
            }
        }
        ports
    }
}
