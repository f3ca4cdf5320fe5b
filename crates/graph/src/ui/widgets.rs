//! Reading `widgets_values`: which stored element belongs to which widget.
//!
//! Values are stored in a row, and a class may have other widgets today than when the file was saved. Where the file names
//! its widgets, the names count.

use std::sync::Arc;

use super::defs::{InputDef, NodeDef, Role};
use super::options::Warnings;
use super::values::{js_text, list, text};
use crate::{Map, Value};

/// Widgets that took the place of others of the same type: a bare value there may have meant either. The name today, the
/// name before, and whose.
const REPLACED: [(&str, &str, &str); 1] = [(
    "eject_models",
    "keep_loaded",
    "version 2.5.0 of the MultiGPU extension",
)];

/// One widget of one node, as stored.
#[derive(Clone, Debug)]
pub(super) struct Widget {
    pub(super) name: Arc<str>,
    /// None when nothing is stored and the class has no default: then nothing is sent.
    pub(super) value: Option<Value>,
    /// What goes into the prompt, where that differs from the value. Subgraphs show the value, not this.
    pub(super) sent: Option<Value>,
    pub(super) dynamic_prompts: bool,
    /// Only the editor looks at it.
    pub(super) display: bool,
}

#[derive(Clone, Copy)]
enum Stored<'a> {
    List(&'a [Value]),
    Named(&'a Map),
}

/// The widgets of a node of class `def`, with the values that `node` stores. `label`: what a person would call the node.
pub(super) fn read(
    def: &NodeDef,
    node: &Value,
    label: &str,
    warnings: &mut Warnings,
) -> Vec<Widget> {
    let named = node.get("widgets_values_named").and_then(Value::as_map);
    let stored = match node.get("widgets_values") {
        Some(Value::Map(m)) => Stored::Named(m),
        Some(Value::List(l)) => Stored::List(l),
        _ => Stored::List(&[]),
    };
    let values = match stored {
        Stored::List(values) => values,
        Stored::Named(named) => return by_name(def, named, label, warnings),
    };
    let unknown = |named: &&Map| named.keys().any(|name| !has_widget(def, name));
    if let Some(named) = named.filter(unknown) {
        return by_name(def, named, label, warnings);
    }
    if let Some(named) = named_by_slots(def, node, values) {
        return by_name(def, &named, label, warnings);
    }
    if named.is_none() {
        warn_of_replaced(def, node, values, label, warnings);
    }
    if def.inputs.iter().any(|i| matches!(i.role, Role::Forced)) {
        // Files from before front-end 1.16 hold dummies for inputs that must be linked: only an exact fit tells.
        let (widgets, count) = walk(def, stored, Forced::Stored, 0);
        if count == values.len() {
            return widgets;
        }
    }
    let (widgets, count) = walk(def, stored, Forced::Absent, 0);
    if count != values.len() {
        if let Some(named) = named {
            return walk(def, Stored::Named(named), Forced::Absent, 0).0;
        }
        if values.len() > count {
            return walk(def, stored, Forced::Absent, values.len() - count).0;
        }
    }
    widgets
}

/// Whether positions and this name speak of the same: a widget that the class has.
fn has_widget(def: &NodeDef, name: &str) -> bool {
    def.inputs.iter().any(|input| {
        let inner = || {
            let rest = name.strip_prefix(&*input.name);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        match &input.role {
            Role::Widget | Role::Button | Role::Display | Role::DisplayAt(_) => {
                &*input.name == name
            }
            Role::Dynamic(_) => &*input.name == name || inner(),
            Role::Socket | Role::Forced => false,
        }
    })
}

/// Whether the name is that of a widget which only says how another's value changes between runs; the editor adds those
/// itself, and no prompt has them.
fn steers_another(def: &NodeDef, name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or(name);
    matches!(own, "control_after_generate" | "control_filter_list")
        || def
            .inputs
            .iter()
            .any(|input| input.controls > 0 && input.control_name.as_deref() == Some(own))
}

/// Values by the names the file gives them. What the class does not know is left out, except where its place is known to
/// be another widget's today: whoever runs the prompt may still understand the old name.
fn by_name(def: &NodeDef, named: &Map, label: &str, warnings: &mut Warnings) -> Vec<Widget> {
    let mut widgets = walk(def, Stored::Named(named), Forced::Absent, 0).0;
    for (name, value) in named {
        let known = widgets.iter().any(|widget| widget.name == *name);
        if known || has_widget(def, name) || steers_another(def, name) || value.is_null() {
            continue;
        }
        if REPLACED.iter().any(|(_, before, _)| **name == **before) {
            widgets.push(Widget {
                name: name.clone(),
                value: Some(value.clone()),
                sent: None,
                dynamic_prompts: false,
                display: false,
            });
        } else if !def.inputs.iter().any(|input| input.name == *name) {
            warnings
                .add(|| format!("node {label} has no widget {name:?} here; its value is left out"));
        }
    }
    widgets
}

/// The values with the names of the node's slots: newer editors save a slot for every widget. None where the slots do not
/// account for every value, or where they say what the positions say.
fn named_by_slots(def: &NodeDef, node: &Value, values: &[Value]) -> Option<Map> {
    let names = slot_names(node);
    let mut named = Map::new();
    let mut at = 0;
    for name in &names {
        let input = def.inputs.iter().find(|input| input.name == *name);
        let value = values.get(at)?;
        if named.insert(name.clone(), value.clone()).is_some() {
            return None;
        }
        at += 1 + input.map_or(0, |input| input.controls);
    }
    if names.is_empty() || at != values.len() {
        return None;
    }
    let here = def
        .inputs
        .iter()
        .filter(|input| matches!(input.role, Role::Widget | Role::Dynamic(_) | Role::Button));
    let mut here = here.map(|input| &input.name);
    // The widgets of a dynamic choice are not in the class itself; positions know them.
    let mut listed = names.iter().filter(|name| !name.contains('.'));
    let same = listed.all(|name| here.next() == Some(name));
    (!same).then_some(named)
}

fn slot_names(node: &Value) -> Vec<Arc<str>> {
    list(node.get("inputs"))
        .iter()
        .filter_map(|slot| text(slot.get("widget")?.get("name")))
        .collect()
}

/// A bare value in the last place that a widget took over from another.
fn warn_of_replaced(
    def: &NodeDef,
    node: &Value,
    values: &[Value],
    label: &str,
    warnings: &mut Warnings,
) {
    for (now, before, whose) in REPLACED {
        let mut at = 0;
        for input in def.inputs.iter().take_while(|input| &*input.name != now) {
            match input.role {
                Role::Widget | Role::Dynamic(_) => at += 1 + input.controls,
                Role::Button => at += 1,
                Role::Socket | Role::Forced | Role::Display | Role::DisplayAt(_) => {}
            }
        }
        let takes = def.inputs.iter().any(|input| &*input.name == now);
        // With a value behind it, the file is newer than the change.
        let [.., Value::Bool(value)] = values else {
            continue;
        };
        if !takes || at + 1 != values.len() || slot_names(node).iter().any(|name| &**name == now) {
            continue;
        }
        warnings.add(|| {
            format!(
                "node {label}: its last value, {value}, has no name and is read as {now}; if {whose} saved the file, \
                 {before} was meant: set retention instead"
            )
        });
    }
}

/// How many elements of an instance's list the widgets of a class would take, leaving out some; for group nodes.
pub(super) fn count(def: &NodeDef, values: &[Value], skip: &dyn Fn(&str) -> bool) -> usize {
    let mut reader = Reader::new(Stored::List(values), Forced::Absent, 0);
    for input in def.inputs.iter().filter(|i| !skip(&i.name)) {
        reader.input(&input.name, input);
    }
    reader.at
}

/// Reads a class's widgets from the front of `values`, those left out keeping their place in `own`.
pub(super) fn splice(
    def: &NodeDef,
    own: &[Value],
    values: &[Value],
    skip: &dyn Fn(&str) -> bool,
) -> Vec<Value> {
    let mut out = Vec::new();
    let mut mine = Reader::new(Stored::List(own), Forced::Absent, 0);
    let mut given = Reader::new(Stored::List(values), Forced::Absent, 0);
    for input in &def.inputs {
        let from = mine.at;
        mine.input(&input.name, input);
        if skip(&input.name) {
            out.extend((from..mine.at).map(|i| own.get(i).cloned().unwrap_or_default()));
        } else {
            let from = given.at;
            given.input(&input.name, input);
            out.extend((from..given.at).map(|i| values.get(i).cloned().unwrap_or_default()));
        }
    }
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Forced {
    Absent,
    Stored,
}

fn walk(def: &NodeDef, stored: Stored, forced: Forced, surplus: usize) -> (Vec<Widget>, usize) {
    let mut reader = Reader::new(stored, forced, surplus);
    for input in &def.inputs {
        reader.input(&input.name, input);
    }
    (reader.out, reader.at)
}

struct Reader<'a> {
    stored: Stored<'a>,
    forced: Forced,
    /// Elements more than the widgets account for.
    surplus: usize,
    at: usize,
    out: Vec<Widget>,
}

impl<'a> Reader<'a> {
    fn new(stored: Stored<'a>, forced: Forced, surplus: usize) -> Self {
        Self {
            stored,
            forced,
            surplus,
            at: 0,
            out: Vec::new(),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        match self.stored {
            Stored::List(l) => {
                self.at += 1;
                l.get(self.at - 1).cloned()
            }
            Stored::Named(m) => m.get(name).cloned(),
        }
    }

    /// An old file's hole for a widget that is not stored any more.
    fn skip_hole(&mut self) {
        if self.surplus > 0
            && let Stored::List(l) = self.stored
            && l.get(self.at).is_some_and(Value::is_null)
        {
            self.at += 1;
            self.surplus -= 1;
        }
    }

    /// Nesting is that of the definition, which is bounded when it is read.
    fn input(&mut self, name: &Arc<str>, input: &InputDef) {
        match &input.role {
            Role::Socket => {}
            Role::Forced => match self.stored {
                // It had a widget when the file was saved.
                Stored::Named(named) => {
                    if let Some(value) = named.get(name).filter(|value| !value.is_null()) {
                        self.push(name, Some(value.clone()), input);
                    }
                }
                Stored::List(_) if self.forced == Forced::Stored => self.at += 1 + input.controls,
                Stored::List(_) => {}
            },
            Role::Button => self.at += 1,
            Role::Display => {
                self.skip_hole();
                self.push_display(name, input.default.clone());
            }
            Role::DisplayAt(place) => {
                self.skip_hole();
                // Newer editors store an empty value, and then send it.
                let stored = match self.stored {
                    Stored::List(l) => l.get(*place).cloned(),
                    Stored::Named(m) => m.get(name).cloned(),
                };
                self.push_display(name, stored.or_else(|| input.default.clone()));
            }
            Role::Widget => {
                if &*input.ty == "LOAD_3D" {
                    // Its buttons were stored in some versions, just before it.
                    self.at += std::mem::take(&mut self.surplus);
                }
                let value = self.take(name).map(|v| as_shown(v, input));
                self.push(name, value, input);
                self.at += input.controls;
            }
            Role::Dynamic(choices) => {
                let value = self.take(name).or_else(|| input.default.clone());
                self.push(name, value.clone(), input);
                let chosen = value.and_then(|v| choices.iter().find(|(key, _)| key.same(&v)));
                for child in chosen.map_or(&[][..], |(_, inputs)| inputs) {
                    self.input(&format!("{name}.{}", child.name).into(), child);
                }
            }
        }
    }

    fn push_display(&mut self, name: &Arc<str>, value: Option<Value>) {
        self.out.push(Widget {
            name: name.clone(),
            value,
            sent: None,
            dynamic_prompts: false,
            display: true,
        });
    }

    fn push(&mut self, name: &Arc<str>, value: Option<Value>, input: &InputDef) {
        self.out.push(Widget {
            name: name.clone(),
            value: value.or_else(|| input.default.clone()),
            sent: None,
            dynamic_prompts: input.dynamic_prompts,
            display: false,
        });
    }
}

/// What a text area makes of a value put into it.
fn as_shown(value: Value, input: &InputDef) -> Value {
    if !input.multiline {
        return value;
    }
    match &value {
        Value::Null => "".into(),
        Value::Str(s) if s.contains('\r') => s.replace("\r\n", "\n").replace('\r', "\n").into(),
        Value::Int(_) | Value::Float(_) | Value::Bool(_) => js_text(&value).into(),
        _ => value,
    }
}
