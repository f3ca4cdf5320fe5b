//! Reading `widgets_values`: which stored element belongs to which widget.

use std::sync::Arc;

use super::defs::{InputDef, NodeDef, Role};
use super::rewrite::js_text;
use crate::{Map, Value};

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

/// The widgets of a node of class `def`, with the values that `node` stores.
pub(super) fn read(def: &NodeDef, node: &Value) -> Vec<Widget> {
    let named = node.get("widgets_values_named").and_then(Value::as_map);
    let stored = match node.get("widgets_values") {
        Some(Value::Map(m)) => Stored::Named(m),
        Some(Value::List(l)) => Stored::List(l),
        _ => Stored::List(&[]),
    };
    let Stored::List(values) = stored else {
        return walk(def, stored, Forced::Absent, 0).0;
    };
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
            Role::Forced => {
                if self.forced == Forced::Stored {
                    self.at += 1 + input.controls;
                }
            }
            Role::Button => self.at += 1,
            Role::Display => {
                self.skip_hole();
                self.out.push(Widget {
                    name: name.clone(),
                    value: input.default.clone(),
                    sent: None,
                    dynamic_prompts: false,
                    display: true,
                });
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
