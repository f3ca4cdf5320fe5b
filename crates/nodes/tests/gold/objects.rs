//! Golden `$object` descriptions: made into values for inputs, and values made into descriptions for outputs.
//!
//! Objects that a node of ours can make are made by that node. The rest is in `objects_*.rs`.

use std::sync::Arc;

use fresco_graph::{Args, Cx, Flow, Map, NodeRegistry, Resources, Slots, Value, map};
use fresco_nodes::types::tensor;
use fresco_tensor::Tensor;

use crate::{inputs, objects_b, objects_c, store::Case};

/// The input object that a golden describes.
pub(crate) fn build(spec: &Map, registry: &NodeRegistry) -> Value {
    let kind = spec.get("type").and_then(Value::as_str).expect("type");
    let get = |key: &str| {
        spec.get(key)
            .unwrap_or_else(|| panic!("{kind} lacks {key}"))
    };
    match kind {
        "SIGMAS" => tensor(Tensor::from_slice(&floats(get("values")))),
        "IMAGE_VALUES" => {
            let values = floats(get("values"));
            let height = get("height").as_int().expect("a height") as usize;
            let shape = [1, height, values.len() / height / 3, 3];
            tensor(Tensor::from_vec(shape, values).expect("values fill the shape"))
        }
        "NOISE" => made_by(
            registry,
            "RandomNoise",
            map! {"noise_seed" => get("seed").clone()},
        ),
        "LATENT_OPERATION" => {
            let node = get("node").as_str().expect("a class").to_owned();
            let mut args = spec.clone();
            args.shift_remove("type");
            args.shift_remove("node");
            made_by(registry, &node, args)
        }
        "HOOK_KEYFRAMES" => {
            let mut chain = Value::Null;
            for item in get("items").as_list().expect("items") {
                let pair = item.as_list().expect("a pair");
                let mut args =
                    map! {"strength_mult" => pair[0].clone(), "start_percent" => pair[1].clone()};
                if !chain.is_null() {
                    args.insert("prev_hook_kf".into(), chain);
                }
                chain = made_by(registry, "CreateHookKeyframe", args);
            }
            chain
        }
        "VIDEO" => {
            let args = map! {"images" => inputs::build(get("images"), registry), "fps" => get("fps").clone()};
            made_by(registry, "CreateVideo", args)
        }
        other => objects_b::build(other, spec, registry)
            .or_else(|| objects_c::build(other, spec, registry))
            .unwrap_or_else(|| panic!("no test object for {other}")),
    }
}

/// What the goldens write down of an output object, or nothing if no describer knows it.
pub(crate) fn describe(case: &Case, value: &Value) -> Option<Value> {
    objects_b::describe(case, value).or_else(|| objects_c::describe(case, value))
}

/// First output of a node called directly.
pub(crate) fn made_by(registry: &NodeRegistry, class: &str, args: Map) -> Value {
    let node = registry
        .get(class)
        .unwrap_or_else(|| panic!("{class} is not there to make an input"));
    let cx = Cx::detached(Arc::new(Resources::default()));
    match node.call(Args(args), &cx) {
        Ok(Flow::Done(out)) => match out.slots {
            Slots::Values(v) => v.into_iter().next().expect("an output"),
            other => panic!("{class} gave {other:?}"),
        },
        Ok(Flow::Later(_)) => panic!("{class} is asynchronous"),
        Err(e) => panic!("{class}: {}", e.message()),
    }
}

fn floats(list: &Value) -> Vec<f32> {
    list.as_list()
        .expect("numbers")
        .iter()
        .map(|v| v.as_f64().expect("a number") as f32)
        .collect()
}
