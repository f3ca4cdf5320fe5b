//! Folders with the toy's file and a LoRA for it, and calls of nodes in them.

use std::path::PathBuf;
use std::sync::Arc;

use fresco_files::Folders;
use fresco_files::dirs::Dirs;
use fresco_graph::{Args, Cx, Flow, Map, NodeEntry, NodeError, Resources, Slots, Value, map};
use fresco_memory::{ModelRegistry, Settings};
use fresco_models::detect::Families;
use fresco_nodes::resident::who;
use fresco_nodes::sampling::Model;
use fresco_nodes::types::{as_tensor, tensor};
use fresco_tensor::{Device, Stored, Tensor, WeightFile, open_weights, safetensors, synthetic};

use crate::toy::{ToyFamily, weights};

pub(crate) const STEPS: usize = 3;

pub(crate) struct ToyRig {
    base: tempfile::TempDir,
    registry: ModelRegistry,
    cx: Cx,
}

pub(crate) fn gib(count: u64) -> u64 {
    count << 30
}

fn write(path: PathBuf, tensors: &[(String, Stored)]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let tensors: Vec<(&str, &Stored)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
    safetensors::write(path, &tensors, &[]).unwrap();
}

/// A LoRA of the usual kind for one layer, under the names that general tools write.
fn lora() -> Vec<(String, Stored)> {
    let layer = "diffusion_model.blocks.1.out";
    let part = |name: &str, shape: &[usize]| {
        let value = synthetic::value(name, shape, 0.5).unwrap();
        (format!("{layer}.{name}.weight"), Stored::from(&value))
    };
    vec![part("lora_down", &[4, 32]), part("lora_up", &[32, 4])]
}

impl ToyRig {
    /// In main memory; `without` are weights that the file lacks.
    pub(crate) fn new(prompt: &str, without: &[&str]) -> Self {
        Self::with(prompt, without, Vec::new())
    }

    /// With a device, on which networks compute.
    pub(crate) fn on(prompt: &str, device: Device) -> Self {
        Self::with(prompt, &[], vec![device])
    }

    fn with(prompt: &str, without: &[&str], devices: Vec<Device>) -> Self {
        let base = tempfile::tempdir().unwrap();
        let mut tensors = weights();
        tensors.retain(|(key, _)| !without.contains(&key.as_str()));
        let models = base.path().join("models");
        write(models.join("diffusion_models/toy.safetensors"), &tensors);
        write(models.join("loras/toy.safetensors"), &lora());
        let registry = ModelRegistry::new(Settings::default(), devices);
        let mut resources = Resources::default();
        resources.insert(Folders::new(&Dirs::under(base.path())));
        resources.insert(registry.clone());
        resources.insert(Families(vec![&ToyFamily]));
        let mut cx = Cx::detached(Arc::new(resources));
        cx.prompt_id = prompt.into();
        Self { base, registry, cx }
    }

    pub(crate) fn families(&self) -> Arc<Families> {
        self.cx.resource::<Families>().unwrap()
    }

    pub(crate) fn folders(&self) -> Arc<Folders> {
        self.cx.resource::<Folders>().unwrap()
    }

    pub(crate) fn registry(&self) -> &ModelRegistry {
        &self.registry
    }

    /// Lets go of all weights.
    pub(crate) fn free_all(&self) {
        self.registry.unload_in_node(&who(&self.cx));
    }

    pub(crate) fn file(&self) -> Arc<dyn WeightFile> {
        let path = "models/diffusion_models/toy.safetensors";
        open_weights(self.base.path().join(path)).unwrap()
    }

    pub(crate) fn try_call(&self, name: &str, args: Map) -> Result<Vec<Value>, NodeError> {
        let mut classes = fresco_nodes::all().into_iter().map(NodeEntry::class);
        let class = classes.find(|class| &*class.schema().id == name).unwrap();
        match class.call(Args(args), &self.cx)? {
            Flow::Done(out) => match out.slots {
                Slots::Values(values) => Ok(values),
                other => panic!("{name} gave {other:?}"),
            },
            Flow::Later(_) => panic!("{name} is asynchronous"),
        }
    }

    pub(crate) fn call(&self, name: &str, args: Map) -> Vec<Value> {
        match self.try_call(name, args) {
            Ok(values) => values,
            Err(e) => panic!("{name}: {}: {}", e.kind(), e.message()),
        }
    }
}

/// Bytes of all weights.
pub(crate) fn total_bytes() -> u64 {
    let all = weights();
    let each = all.iter().map(|(_, value)| value.bytes().len() as u64);
    each.sum()
}

/// KSampler's arguments: two prompts and the empty latent of a picture, as nodes make them.
pub(crate) fn ksampler(model: Model) -> Map {
    let prompt = |name: &str| -> Value {
        let tokens = synthetic::value(name, &[1, 5, 16], 1.0).unwrap();
        vec![Value::from(vec![tensor(tokens), Map::new().into()])].into()
    };
    let empty = tensor(Tensor::zeros([1, 4, 8, 8]).unwrap());
    let latent: Value = map! {"samples" => empty}.into();
    map! {
        "model" => model, "seed" => 7, "steps" => STEPS as i64, "cfg" => 4.0, "sampler_name" => "euler",
        "scheduler" => "simple", "positive" => prompt("toy.pos"), "negative" => prompt("toy.neg"),
        "latent_image" => latent, "denoise" => 1.0,
    }
}

pub(crate) fn samples(latent: &Value) -> Tensor {
    as_tensor(latent.get("samples").unwrap()).unwrap().clone()
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
