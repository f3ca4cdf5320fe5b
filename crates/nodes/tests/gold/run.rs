//! Running one golden case the way the engine runs a node.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fresco_graph::mapping::{Call, merge, split, spread};
use fresco_graph::{
    Cx, Declared, Flow, Map, NodeClass, NodeError, NodeOutput, NodeRegistry, Resources, Value,
};

use crate::compare::{self, Comparer};
use crate::inputs;
use crate::store::{Area, Case, Tensors};

/// Every class there is.
pub(crate) fn registry() -> NodeRegistry {
    let mut registry = NodeRegistry::new();
    registry.add(&fresco_nodes::all());
    registry
}

/// What a case's node gave: one list per slot, and what it shows.
pub(crate) type NodeResult = (Vec<Vec<Value>>, Option<Map>);

/// Spreads the inputs, calls the class, gathers the results.
pub(crate) fn call(
    class: &dyn NodeClass,
    case: &Case,
    registry: &NodeRegistry,
    resources: Arc<Resources>,
) -> Result<NodeResult, NodeError> {
    let schema = class.schema();
    let lists = inputs::lists(case, registry);
    let supplied: Map = lists
        .iter()
        .map(|(k, v)| (k.clone(), v.first().cloned().unwrap_or_default()))
        .collect();
    let declared = Declared::new(&schema, &supplied);
    let mut cx = Cx::detached(resources);
    if let Some(hidden) = &case.hidden {
        let get = |key: &str| hidden.get(key).cloned().unwrap_or_default();
        cx.hidden.prompt = get("prompt");
        cx.hidden.extra_pnginfo = get("extra_pnginfo");
    }
    let mut outputs = Vec::new();
    for (i, call) in spread(schema.input_is_list, &lists)?
        .into_iter()
        .enumerate()
    {
        outputs.push(match call {
            Call::Run(args) => match class.call(declared.nest(args, false), &cx.for_call(i))? {
                Flow::Done(out) => out,
                Flow::Later(mut future) => {
                    let mut context = Context::from_waker(Waker::noop());
                    match future.as_mut().poll(&mut context) {
                        Poll::Ready(out) => out?,
                        Poll::Pending => return Err(NodeError::runtime("still waiting")),
                    }
                }
            },
            Call::Blocked(message) => NodeOutput::blocked(message.as_deref()),
        });
    }
    let (results, ui) = split(outputs)?;
    let slots = results.into_iter().map(|r| r.slots).collect();
    Ok((merge(&schema, slots), ui))
}

/// Classes that have one more output than the reference: the text that they show.
pub(crate) const NEWER_OUTPUT: [&str; 1] = ["PreviewAny"];

/// The differences of one case, with the resources that its area needs.
pub(crate) fn check(
    class: &dyn NodeClass,
    case: &Case,
    tensors: &Tensors,
    registry: &NodeRegistry,
    resources: Arc<Resources>,
) -> Vec<String> {
    let result = call(class, case, registry, resources);
    match (result, &case.error) {
        (Err(e), Some(expected)) => compare::error(case, expected, &e).into_iter().collect(),
        (Err(e), None) => vec![format!(
            "{}: failed: {}: {}",
            case.id,
            e.kind(),
            e.message()
        )],
        (Ok(_), Some(expected)) => {
            vec![format!("{}: should have failed with {expected:?}", case.id)]
        }
        (Ok((mut outputs, ui)), None) => {
            let mut comparer = Comparer::new(case, tensors);
            if NEWER_OUTPUT.contains(&case.class.as_str()) {
                outputs.pop();
            }
            if let Some(expected) = &case.outputs {
                comparer.outputs(expected, &outputs);
            }
            if let Some(expected) = &case.ui {
                comparer.value(".ui", expected, &ui.map_or(Value::Null, Value::from));
            }
            comparer.found
        }
    }
}

/// All cases of an area whose class exists; fails with every difference.
#[track_caller]
pub(crate) fn area(name: &str) {
    let registry = registry();
    let area = Area::load(name);
    let resources = Arc::new(Resources::default());
    let (mut ran, mut missing, mut found) = (0, Vec::new(), Vec::new());
    for case in &area.cases {
        let Some(class) = registry.get(&case.class) else {
            if missing.last() != Some(&&case.class) && !missing.contains(&&case.class) {
                missing.push(&case.class);
            }
            continue;
        };
        ran += 1;
        found.extend(check(
            &**class,
            case,
            &area.tensors,
            &registry,
            resources.clone(),
        ));
    }
    eprintln!(
        "{}: {ran} of {} cases ran; classes not there: {missing:?}",
        area.name,
        area.cases.len()
    );
    assert!(
        found.is_empty(),
        "{} differences in {name}:\n{}",
        found.len(),
        found.join("\n")
    );
}
