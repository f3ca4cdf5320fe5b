//! One node, many values: spreading input lists over calls and gathering the calls' results.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::{Args, Map, NodeError, NodeOutput, Schema, Slots, SubGraph, Value};

/// Input name to its list of values.
pub type InputLists = IndexMap<Arc<str>, Vec<Value>>;

/// One call the mapper wants made.
#[derive(Clone, Debug)]
pub enum Call {
    Run(Args),
    /// An argument was a blocker; the message, if any, is to be reported once.
    Blocked(Option<Arc<str>>),
}

/// Spreads input lists over calls: one call with all lists for `input_is_list`, else as many as the longest list, with
/// shorter lists repeating their last element.
pub fn spread(input_is_list: bool, inputs: &InputLists) -> Result<Vec<Call>, NodeError> {
    if inputs.is_empty() {
        return Ok(vec![Call::Run(Args::default())]);
    }
    if input_is_list {
        if let Some(blocker) = inputs.values().flatten().find_map(blocker) {
            return Ok(vec![Call::Blocked(blocker)]);
        }
        let args = inputs
            .iter()
            .map(|(k, v)| (k.clone(), Value::List(Arc::new(v.clone()))))
            .collect();
        return Ok(vec![Call::Run(Args(args))]);
    }
    let count = inputs.values().map(Vec::len).max().unwrap_or(0);
    let mut calls = Vec::with_capacity(count);
    for i in 0..count {
        let mut args = Map::with_capacity(inputs.len());
        let mut blocked = None;
        for (name, list) in inputs {
            let value = list.get(i).or(list.last()).ok_or_else(|| {
                NodeError::failed(
                    "IndexError",
                    format!("list index out of range: input '{name}' is an empty list"),
                )
            })?;
            if blocked.is_none() {
                blocked = blocker(value);
            }
            args.insert(name.clone(), value.clone());
        }
        calls.push(blocked.map_or(Call::Run(Args(args)), Call::Blocked));
    }
    Ok(calls)
}

#[expect(clippy::option_option, reason = "a blocker may have no message")]
fn blocker(value: &Value) -> Option<Option<Arc<str>>> {
    if let Value::Blocker(message) = value {
        Some(message.clone())
    } else {
        None
    }
}

/// What all calls of a node gave, before or after expansion.
#[derive(Debug, Default)]
pub struct Gathered {
    /// One list of values per output slot.
    pub outputs: Vec<Vec<Value>>,
    pub ui: Option<Map>,
}

/// A call that asked for a sub-graph, or did not; kept in order until the sub-graphs are done.
#[derive(Debug)]
pub struct CallResult {
    pub slots: Slots,
    pub graph: Option<SubGraph>,
}

/// Splits outputs into UI and results. An error if a later call lacks a UI key of the first.
pub fn split(outputs: Vec<NodeOutput>) -> Result<(Vec<CallResult>, Option<Map>), NodeError> {
    let mut uis = Vec::new();
    let mut results = Vec::with_capacity(outputs.len());
    for output in outputs {
        if let Some(ui) = output.ui {
            uis.push(ui);
        }
        // A call that only shows something has no result; the others keep their place.
        if output.expand.is_some() || !matches!(output.slots, Slots::None) {
            results.push(CallResult {
                slots: output.slots,
                graph: output.expand,
            });
        }
    }
    Ok((results, merge_ui(uis)?))
}

fn merge_ui(uis: Vec<Map>) -> Result<Option<Map>, NodeError> {
    let Some(first) = uis.first() else {
        return Ok(None);
    };
    let mut merged = Map::new();
    for key in first.keys() {
        let mut all = Vec::new();
        for ui in &uis {
            let part = ui
                .get(key)
                .ok_or_else(|| NodeError::failed("KeyError", format!("'{key}'")))?;
            match part {
                Value::List(l) => all.extend(l.iter().cloned()),
                other => all.push(other.clone()),
            }
        }
        merged.insert(key.clone(), Value::List(Arc::new(all)));
    }
    // An empty object shows nothing, so nobody is told of it.
    Ok((!merged.is_empty()).then_some(merged))
}

/// Gathers per-call slots into one list per output.
pub fn merge(schema: &Schema, results: Vec<Slots>) -> Vec<Vec<Value>> {
    let width = schema.outputs.len();
    let results: Vec<Slots> = results
        .into_iter()
        .filter(|r| !matches!(r, Slots::None))
        .collect();
    let count = match results.first() {
        None => return Vec::new(),
        Some(Slots::Values(v)) => v.len().min(width),
        Some(_) => width,
    };
    let mut outputs = vec![Vec::with_capacity(results.len()); count];
    for result in results {
        match result {
            Slots::None => {}
            Slots::Blocked(message) => {
                for slot in &mut outputs {
                    slot.push(Value::Blocker(message.clone()));
                }
            }
            Slots::Values(values) => {
                for (s, value) in values.into_iter().take(count).enumerate() {
                    match value {
                        Value::List(items) if schema.outputs[s].is_list => {
                            outputs[s].extend(items.iter().cloned());
                        }
                        other => outputs[s].push(other),
                    }
                }
            }
        }
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Form, Output, map};

    fn lists(pairs: &[(&str, &[i64])]) -> InputLists {
        pairs
            .iter()
            .map(|(k, v)| (Arc::from(*k), v.iter().map(|i| Value::from(*i)).collect()))
            .collect()
    }

    #[test]
    fn short_lists_repeat_their_last() {
        let calls = spread(false, &lists(&[("a", &[1, 2, 3]), ("b", &[9])])).unwrap();
        let shown: Vec<_> = calls
            .iter()
            .map(|c| match c {
                Call::Run(a) => crate::json::to_string(&a.0.clone().into()),
                Call::Blocked(_) => "blocked".into(),
            })
            .collect();
        assert_eq!(
            shown,
            [r#"{"a":1,"b":9}"#, r#"{"a":2,"b":9}"#, r#"{"a":3,"b":9}"#]
        );
        assert!(spread(false, &lists(&[("a", &[1]), ("b", &[])])).is_err());
        assert_eq!(spread(false, &InputLists::new()).unwrap().len(), 1);
    }

    #[test]
    fn only_the_blocked_element_is_skipped() {
        let mut inputs = lists(&[("a", &[1, 2])]);
        inputs["a"][1] = Value::Blocker(Some("no".into()));
        let calls = spread(false, &inputs).unwrap();
        assert!(matches!(&calls[0], Call::Run(_)));
        assert!(matches!(&calls[1], Call::Blocked(Some(m)) if &**m == "no"));
    }

    #[test]
    fn merges_lists_values_and_blockers() {
        let schema = Schema::new("X", Form::V1)
            .output(Output::new("INT").list())
            .output(Output::new("INT"));
        let slots = vec![
            Slots::Values(vec![vec![1, 2].into(), 5.into()]),
            Slots::Blocked(None),
            Slots::Values(vec![vec![3].into(), 6.into()]),
        ];
        let out = merge(&schema, slots);
        assert_eq!(format!("{out:?}"), "[[1, 2, null, 3], [5, null, 6]]");
    }

    #[test]
    fn ui_keys_of_the_first_call_must_be_in_all() {
        let a = NodeOutput::ui(map! {"text" => vec!["a"]});
        let b = NodeOutput::ui(map! {"text" => vec!["b"]});
        let (_, ui) = split(vec![a.clone(), b]).unwrap();
        assert_eq!(
            crate::json::to_string(&ui.unwrap().into()),
            r#"{"text":["a","b"]}"#
        );
        assert!(split(vec![a, NodeOutput::ui(map! {"images" => vec!["b"]})]).is_err());
    }

    #[test]
    fn an_empty_ui_counts_as_none() {
        let (calls, ui) = split(vec![NodeOutput::ui(Map::new())]).unwrap();
        assert!(calls.is_empty() && ui.is_none());
    }
}
