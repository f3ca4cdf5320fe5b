//! Small models, node calls, golden tensors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use fresco_graph::{Args, Cx, Flow, Map, NodeClass, NodeError, Resources, Slots, Value, json, map};
use fresco_models::sd::SdModel;
use fresco_models::sd::unet::{Heads, UNetConfig};
use fresco_models::{LatentFormat, ModelSampling, Prediction, WeightStore};
use fresco_nodes::sampling::Model;
use fresco_nodes::types::{as_tensor, tensor};
use fresco_tensor::{Device, SafeTensors, Stored, Tensor, synthetic};

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold")
}

/// A tensor of a golden file.
pub(crate) fn golden(file: &str, name: &str) -> Tensor {
    let file = SafeTensors::open(folder().join(format!("{file}.safetensors"))).unwrap();
    file.tensor(name).unwrap()
}

pub(crate) fn keys(file: &str) -> Vec<(String, Vec<usize>)> {
    let bytes = std::fs::read(folder().join(format!("{file}.json"))).unwrap();
    let about = json::parse_bytes(&bytes).unwrap();
    let keys = about.get("keys").and_then(Value::as_map).unwrap();
    let size = |v: &Value| v.as_int().unwrap() as usize;
    keys.iter()
        .map(|(key, shape)| {
            let shape = shape.as_list().unwrap().iter().map(size).collect();
            (key.to_string(), shape)
        })
        .collect()
}

/// The network of a golden file; `inputs` sets the channels that go in.
pub(crate) fn store(file: &str, inputs: usize) -> Arc<WeightStore> {
    store_on(file, inputs, Device::cpu())
}

pub(crate) fn store_on(file: &str, inputs: usize, device: Device) -> Arc<WeightStore> {
    let mut weights = BTreeMap::new();
    for (key, mut shape) in keys(file) {
        if key == "input_blocks.0.0.weight" {
            shape[1] = inputs;
        }
        let weight = synthetic::weight(&key, &shape).unwrap();
        weights.insert(key, Stored::from(&weight));
    }
    WeightStore::from_stored(&format!("{file}.test"), weights, device)
}

pub(crate) fn made(file: &str, inputs: usize, heads: Heads, scale: f32) -> Model {
    model(store(file, inputs), heads, scale)
}

pub(crate) fn model(store: Arc<WeightStore>, heads: Heads, scale: f32) -> Model {
    let config = UNetConfig {
        heads,
        ..UNetConfig::detect(&store).unwrap()
    };
    let network = SdModel::new(store, config, LatentFormat::scaled(scale)).unwrap();
    Model::new(
        Arc::new(network),
        ModelSampling::discrete(Prediction::Eps, false),
    )
}

/// The small SD1, built once: packing its weights takes longer than running it.
pub(crate) fn sd1() -> Model {
    static MODEL: LazyLock<Model> =
        LazyLock::new(|| made("unet_sd1_small", 4, Heads::Count(4), 0.18215));
    MODEL.clone()
}

pub(crate) fn class(name: &str) -> Arc<dyn NodeClass> {
    static CLASSES: LazyLock<BTreeMap<String, Arc<dyn NodeClass>>> = LazyLock::new(|| {
        let all = fresco_nodes::all()
            .into_iter()
            .map(fresco_graph::NodeEntry::class);
        all.map(|c| (c.schema().id.to_string(), c)).collect()
    });
    CLASSES
        .get(name)
        .unwrap_or_else(|| panic!("no {name}"))
        .clone()
}

pub(crate) fn call_in(name: &str, args: Map, cx: &Cx) -> Result<Vec<Value>, NodeError> {
    match class(name).call(Args(args), cx)? {
        Flow::Done(out) => match out.slots {
            Slots::Values(v) => Ok(v),
            other => panic!("{name} gave {other:?}"),
        },
        Flow::Later(_) => panic!("{name} is asynchronous"),
    }
}

pub(crate) fn cx() -> Cx {
    Cx::detached(Arc::new(Resources::default()))
}

pub(crate) fn call(name: &str, args: Map) -> Result<Vec<Value>, NodeError> {
    call_in(name, args, &cx())
}

/// A conditioning of one entry.
pub(crate) fn entry(tokens: Tensor, options: Map) -> Value {
    Value::from(vec![tensor(tokens), options.into()])
}

pub(crate) fn conditioning(tokens: Tensor) -> Value {
    vec![entry(tokens, Map::new())].into()
}

pub(crate) fn text(name: &str, count: usize) -> Tensor {
    synthetic::value(name, &[1, count, 64], 1.5).unwrap()
}

pub(crate) fn positive() -> Value {
    conditioning(text("e2e.pos", 77))
}

pub(crate) fn negative() -> Value {
    conditioning(text("e2e.neg", 77))
}

pub(crate) fn latent(samples: Tensor) -> Value {
    map! {"samples" => tensor(samples)}.into()
}

pub(crate) fn empty() -> Value {
    latent(Tensor::zeros([1, 4, 8, 8]).unwrap())
}

/// KSampler's arguments, with some replaced.
pub(crate) fn ksampler(changes: Map) -> Map {
    let mut args = map! {
        "model" => sd1(), "seed" => 99, "steps" => 4, "cfg" => 7.0, "sampler_name" => "euler",
        "scheduler" => "normal", "positive" => positive(), "negative" => negative(),
        "latent_image" => empty(), "denoise" => 1.0,
    };
    args.extend(changes);
    args
}

pub(crate) fn samples(value: &Value) -> Tensor {
    as_tensor(value.get("samples").expect("samples"))
        .expect("a tensor")
        .clone()
}

pub(crate) fn sampled(changes: Map) -> Tensor {
    match call("KSampler", ksampler(changes)) {
        Ok(out) => samples(&out[0]),
        Err(e) => panic!("{}: {}", e.kind(), e.message()),
    }
}

/// The distance as a part of the length of `b`.
pub(crate) fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        let pairs = a.data().iter().zip(b.data());
        pairs.map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum()
    };
    (sum(&|a, b| (a - b).powi(2)) / sum(&|_, b| b * b)).sqrt()
}
