//! Inputs that depend on what is supplied: which ones exist for a given node, and how dotted names nest at call time.

use std::borrow::Cow;
use std::sync::Arc;

use crate::{Args, Input, InputGroup, Kind, Map, Schema, Value};

/// The inputs a node really has, under dotted names, given what its prompt supplies.
pub struct Declared<'a> {
    inputs: Vec<Cow<'a, Input>>,
    /// Dotted name to the place in the nested argument.
    paths: Vec<(Arc<str>, Arc<str>)>,
}

impl<'a> Declared<'a> {
    pub fn new(schema: &'a Schema, supplied: &Map) -> Self {
        if !schema.has_dynamic() {
            return Self {
                inputs: schema.inputs.iter().map(Cow::Borrowed).collect(),
                paths: Vec::new(),
            };
        }
        let mut declared = Self {
            inputs: Vec::new(),
            paths: Vec::new(),
        };
        for input in &schema.inputs {
            declared.add(input, "", input.group, supplied);
        }
        declared
    }

    pub fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.inputs.iter().map(AsRef::as_ref)
    }

    pub fn find(&self, name: &str) -> Option<&Input> {
        self.inputs().find(|i| &*i.name == name)
    }

    fn push(&mut self, input: &Input, id: &Arc<str>, group: InputGroup, path: Option<Arc<str>>) {
        let mut declared = input.clone();
        declared.name = id.clone();
        declared.group = group;
        self.inputs.push(Cow::Owned(declared));
        if let Some(path) = path {
            self.paths.push((id.clone(), path));
        }
    }

    fn add(&mut self, input: &Input, prefix: &str, group: InputGroup, supplied: &Map) {
        let id: Arc<str> = if prefix.is_empty() {
            input.name.clone()
        } else {
            format!("{prefix}.{}", input.name).into()
        };
        // The chosen value sits beside what it brings: argument `combo` = { "combo": key, ... }.
        let own_path =
            || -> Option<Arc<str>> { Some(format!("{id}.{}", last_segment(&id)).into()) };
        match &input.kind {
            Kind::Plain | Kind::Match { .. } => {
                let path = (!prefix.is_empty()).then(|| id.clone());
                self.push(input, &id, group, path);
            }
            Kind::DynamicCombo(options) => {
                let Some(chosen) = supplied.get(&id).and_then(Value::as_str) else {
                    return;
                };
                let Some(option) = options.iter().find(|o| &*o.key == chosen) else {
                    return;
                };
                for inner in &option.inputs {
                    self.add(inner, &id, inner.group, supplied);
                }
                self.push(input, &id, group, own_path());
            }
            Kind::Autogrow {
                template,
                names,
                min,
            } => {
                for (i, name) in names.all().iter().enumerate() {
                    let slot: Arc<str> = format!("{id}.{name}").into();
                    if supplied.contains_key(&slot) {
                        let group = if i < *min {
                            InputGroup::Required
                        } else {
                            InputGroup::Optional
                        };
                        self.push(template, &slot, group, Some(slot.clone()));
                    }
                }
            }
            Kind::DynamicSlot { inputs, .. } => {
                if supplied.contains_key(&id) {
                    for inner in inputs {
                        self.add(inner, &id, inner.group, supplied);
                    }
                    self.push(input, &id, group, own_path());
                }
            }
        }
    }

    /// Moves dotted arguments into nested maps. For lazy checks each leaf becomes `[value, dotted id]`.
    pub fn nest(&self, args: Args, with_ids: bool) -> Args {
        if self.paths.is_empty() {
            return args;
        }
        let mut flat = args.0;
        let mut tree = Map::new();
        let mut nested: Vec<(&str, Value)> = Vec::new();
        for (id, path) in &self.paths {
            if let Some(value) = flat.shift_remove(id) {
                let leaf = if with_ids {
                    Value::from(vec![value, Value::from(id)])
                } else {
                    value
                };
                nested.push((path, leaf));
            }
        }
        for (name, value) in flat {
            tree.insert(name, value);
        }
        for (path, leaf) in nested {
            insert_at(&mut tree, path, leaf);
        }
        Args(tree)
    }
}

pub(crate) fn last_segment(id: &str) -> &str {
    id.rsplit('.').next().unwrap_or(id)
}

fn insert_at(map: &mut Map, path: &str, leaf: Value) {
    match path.split_once('.') {
        None => {
            map.insert(path.into(), leaf);
        }
        Some((head, rest)) => {
            let slot = map.entry(head.into()).or_insert_with(|| Map::new().into());
            if !matches!(slot, Value::Map(_)) {
                *slot = Map::new().into();
            }
            if let Value::Map(inner) = slot {
                insert_at(Arc::make_mut(inner), rest, leaf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Form, map};

    fn schema() -> Schema {
        Schema::new("Dyn", Form::V3)
            .input(Input::dynamic_combo(
                "combo",
                vec![
                    ("o1", vec![Input::new("string", "STRING")]),
                    (
                        "o4",
                        vec![Input::dynamic_combo(
                            "sub",
                            vec![("p1", vec![Input::new("fx", "FLOAT").optional()])],
                        )],
                    ),
                ],
            ))
            .input(Input::autogrow("ag", Input::new("f", "FLOAT"), "f", 1, 4))
    }

    #[track_caller]
    fn check(supplied: Map, names: &[&str], nested: &str) {
        let schema = schema();
        let declared = Declared::new(&schema, &supplied);
        assert_eq!(
            declared.inputs().map(|i| &*i.name).collect::<Vec<_>>(),
            names
        );
        let args = declared.nest(Args(supplied.clone()), false);
        assert_eq!(crate::json::to_string(&args.0.into()), nested);
    }

    #[test]
    fn nests_as_the_reference_does() {
        check(
            map! {"combo" => "o4", "combo.sub" => "p1", "combo.sub.fx" => 1.5},
            &["combo.sub.fx", "combo.sub", "combo"],
            r#"{"combo":{"sub":{"fx":1.5,"sub":"p1"},"combo":"o4"}}"#,
        );
        check(
            map! {"ag.f0" => 1, "ag.f3" => 2},
            &["ag.f0", "ag.f3"],
            r#"{"ag":{"f0":1,"f3":2}}"#,
        );
    }

    #[test]
    fn unknown_or_missing_choice_declares_nothing() {
        check(map! {"combo" => "zz"}, &[], r#"{"combo":"zz"}"#);
        check(
            map! {"combo" => "o1"},
            &["combo.string", "combo"],
            r#"{"combo":{"combo":"o1"}}"#,
        );
    }
}
