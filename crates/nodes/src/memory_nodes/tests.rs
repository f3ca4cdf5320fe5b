//! What nodes tell the registry: loaders with devices, and the nodes of this room. Nothing is read from the files.

use std::sync::Arc;

use fresco_graph::{
    Args, Cx, Flow, Map, NodeError, NodeRegistry as Classes, Resources, Slots, Value, map,
};
use fresco_memory::{ModelRegistry, ModelReport, Policy, PolicySource, Settings};
use fresco_tensor::Device;

use crate::small_files::{ModelFolders, place};

struct Bench {
    _place: ModelFolders,
    registry: ModelRegistry,
    classes: Classes,
    cx: Cx,
}

fn bench(device: u32) -> Bench {
    let place = place();
    let sim = Device::register_sim(device, 64 << 20).unwrap();
    let registry = ModelRegistry::new(Settings::default(), vec![sim]);
    let mut resources = Resources::default();
    resources.insert(registry.clone());
    resources.insert(place.folders.clone());
    let mut classes = Classes::new();
    classes.add(&crate::all());
    let mut cx = Cx::detached(Arc::new(resources));
    cx.prompt_id = "p".into();
    Bench {
        _place: place,
        registry,
        classes,
        cx,
    }
}

impl Bench {
    fn call(&self, node: &str, class: &str, inputs: Map) -> Result<Vec<Value>, NodeError> {
        let mut cx = self.cx.clone();
        cx.node_id = node.into();
        let class = self.classes.get(class).unwrap();
        let Flow::Done(output) = class.call(Args(inputs), &cx)? else {
            panic!("it is not done");
        };
        let Slots::Values(values) = output.slots else {
            panic!("it gives nothing");
        };
        Ok(values)
    }

    fn unet(&self, node: &str, class: &str, more: Map) -> Value {
        let mut inputs = map! {"unet_name" => "net.safetensors", "weight_dtype" => "default"};
        inputs.extend(more);
        self.call(node, class, inputs).unwrap().remove(0)
    }

    fn models(&self) -> Vec<ModelReport> {
        self.registry.snapshot().models
    }
}

fn policy(model: &ModelReport) -> (Policy, PolicySource) {
    (model.policy, model.policy_source)
}

#[test]
fn loaders_say_where_and_how_long() {
    let bench = bench(320);
    let inputs =
        map! {"compute_device" => "sim:320", "virtual_vram_gb" => 0.004, "keep_loaded" => true};
    let first = bench.unet("1", "UNETLoaderDisTorch2MultiGPU", inputs);
    let models = bench.models();
    assert_eq!(models.len(), 1);
    assert_eq!(policy(&models[0]), (Policy::Keep, PolicySource::NodeInput));
    let handle = &models[0].handles[0];
    assert_eq!(handle.compute_device, "sim:320");
    assert_eq!(handle.placement.as_deref(), Some("#sim:320;0.004;cpu"));
    // Another amount is another placement of the same weights.
    let inputs = map! {"compute_device" => "sim:320", "virtual_vram_gb" => 0.002, "retention" => "eject_after"};
    let second = bench.unet("1", "UNETLoaderDisTorch2MultiGPU", inputs);
    let again = bench.models();
    assert_eq!(again.len(), 1);
    assert_eq!(
        (&again[0].weights, again[0].handles.len()),
        (&models[0].weights, 2)
    );
    assert_eq!(
        policy(&again[0]),
        (Policy::EjectAfter, PolicySource::NodeInput)
    );
    // Without one it is an ordinary model.
    let third = bench.unet("3", "UNETLoaderMultiGPU", map! {"device" => "cpu"});
    let handles = &bench.models()[0].handles;
    assert_eq!((handles.len(), &*handles[2].compute_device), (3, "cpu"));
    assert_eq!(handles[2].placement, None);
    drop((first, second, third));
}

#[test]
fn parts_of_a_checkpoint_go_where_they_are_told() {
    let bench = bench(321);
    let inputs = map! {
        "ckpt_name" => "whole.safetensors", "unet_compute_device" => "sim:321", "unet_virtual_vram_gb" => 0.004,
        "unet_donor_device" => "cpu", "clip_compute_device" => "cpu", "clip_virtual_vram_gb" => 2.0,
        "clip_donor_device" => "cpu", "vae_device" => "sim:321", "retention" => "keep",
    };
    let made = bench
        .call("1", "CheckpointLoaderAdvancedDisTorch2MultiGPU", inputs)
        .unwrap();
    let text = |m: &ModelReport| {
        let handle = &m.handles[0];
        let placement = handle.placement.as_deref().unwrap_or("-");
        format!(
            "{} {} {} {placement}",
            m.component, m.policy, handle.compute_device
        )
    };
    let mut found: Vec<String> = bench.models().iter().map(text).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "clip keep cpu -",
            "diffusion keep sim:321 #sim:321;0.004;cpu",
            "vae keep sim:321 -"
        ]
    );
    drop(made);
}

#[test]
fn retention_is_set_behind_any_loader() {
    let bench = bench(322);
    let made = bench
        .call(
            "1",
            "CheckpointLoaderSimple",
            map! {"ckpt_name" => "whole.safetensors"},
        )
        .unwrap();
    let retain = |value: &Value, retention: &str| {
        let inputs = map! {"model" => value.clone(), "retention" => retention, "ttl_seconds" => 60};
        bench.call("2", "FrescoRetention", inputs)
    };
    let of = |component: &str| {
        let models = bench.models();
        policy(models.iter().find(|m| m.component == component).unwrap())
    };
    for (value, component) in made.iter().zip(["diffusion", "clip", "vae"]) {
        assert_eq!(of(component), (Policy::Auto, PolicySource::Default));
        let passed = retain(value, "keep").unwrap().remove(0);
        assert!(passed.same(value));
        assert_eq!(of(component), (Policy::Keep, PolicySource::PolicyNode));
    }
    retain(&made[0], "ttl").unwrap();
    assert_eq!(of("diffusion").0.to_string(), "ttl:60");
    retain(&made[0], "eject_after").unwrap();
    assert_eq!(of("diffusion").0, Policy::EjectAfter);
    assert!(retain(&made[0], "forever").is_err());
    assert!(retain(&Value::from(1), "keep").is_err());
    // Something without weights has nothing to keep.
    let pixels = bench
        .call("3", "VAELoader", map! {"vae_name" => "pixel_space"})
        .unwrap();
    retain(&pixels[0], "keep").unwrap();
}

#[test]
fn blocks_wait_where_they_are_told() {
    let bench = bench(323);
    let model = bench.unet("1", "UNETLoader", map! {});
    let swap = |blocks: i64, device: &str| {
        let inputs = map! {
            "model" => model.clone(), "blocks_to_swap" => blocks, "swap_device" => device, "prefetch_blocks" => 2,
        };
        bench.call("2", "FrescoBlockSwap", inputs)
    };
    let swapped = swap(3, "cpu").unwrap();
    let placements = || {
        let models = bench.models();
        let handles = models[0].handles.iter();
        handles.map(|h| h.placement.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        placements(),
        [None, Some("blocks 3 on cpu, 2 ahead#sim:323".to_owned())]
    );
    assert_eq!(swap(0, "cpu").unwrap().len(), 1);
    assert_eq!(placements().len(), 2);
    let error = swap(3, "sim:1000").unwrap_err();
    assert!(
        error.message().contains("cpu, sim:323"),
        "{}",
        error.message()
    );
    drop(swapped);
}

#[test]
fn unloading_passes_on_what_comes() {
    let bench = bench(324);
    let passed = bench.call("1", "FrescoUnloadModels", map! {"value" => 7});
    assert_eq!(passed.unwrap(), [Value::from(7)]);
    let asked = bench.registry.events(0, &[], 100);
    assert!(asked.iter().all(|event| event.error.is_none()));
}
