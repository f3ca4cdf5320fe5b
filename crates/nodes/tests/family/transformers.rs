//! Families that stay, at reduced sizes: files of their goldens' weights, loaded and sampled by the nodes that people use.

use std::path::Path;
use std::sync::Arc;

use fresco_files::Folders;
use fresco_files::dirs::Dirs;
use fresco_graph::{
    Args, Cx, Flow, FromValue as _, Map, NodeEntry, NodeError, Resources, Slots, Value, json, map,
};
use fresco_memory::{ModelRegistry, Settings};
use fresco_nodes::sampling::Model;
use fresco_nodes::types::tensor;
use fresco_tensor::{Device, Stored, Tensor, safetensors, synthetic};

use crate::harness::{distance, gib, samples};

/// Folders with model files, and calls of nodes in them.
struct Room {
    base: tempfile::TempDir,
    cx: Cx,
}

/// Layers of goldens for four channels, for the sixteen that latents have with means of their own.
const WIDER: [(&str, &[usize]); 5] = [
    ("first.weight", &[64, 64]),
    ("last.linear.weight", &[64, 64]),
    ("last.linear.bias", &[64]),
    ("net.x_embedder.proj.1.weight", &[48, 68]),
    ("net.final_layer.linear.weight", &[64, 48]),
];

/// The weights of a golden, made from their names.
fn weights(name: &str) -> Vec<(String, Stored)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold");
    let bytes = std::fs::read(root.join(format!("{name}.json"))).unwrap();
    let about = json::parse_bytes(&bytes).unwrap();
    let Some(Value::Map(keys)) = about.get("keys") else {
        panic!("{name} has no keys");
    };
    keys.iter()
        .map(|(key, shape)| {
            let shape = shape.as_list().unwrap().iter();
            let mut shape: Vec<usize> = shape.map(|n| n.as_int().unwrap() as usize).collect();
            if let Some((_, other)) = WIDER.iter().find(|(k, _)| **k == **key) {
                shape = other.to_vec();
            }
            let value = synthetic::weight(key, &shape).unwrap();
            (key.to_string(), Stored::from(&value))
        })
        .collect()
}

impl Room {
    fn new(prompt: &str, devices: Vec<Device>) -> Self {
        let base = tempfile::tempdir().unwrap();
        let mut resources = Resources::default();
        resources.insert(Folders::new(&Dirs::under(base.path())));
        resources.insert(ModelRegistry::new(Settings::default(), devices));
        let mut cx = Cx::detached(Arc::new(resources));
        cx.prompt_id = prompt.into();
        Self { base, cx }
    }

    fn file(&self, path: &str, tensors: &[(String, Stored)]) {
        let path = self.base.path().join("models").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let tensors: Vec<(&str, &Stored)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        safetensors::write(path, &tensors, &[]).unwrap();
    }

    fn try_call(&self, name: &str, args: Map) -> Result<Value, NodeError> {
        let mut classes = fresco_nodes::all().into_iter().map(NodeEntry::class);
        let class = classes.find(|class| &*class.schema().id == name).unwrap();
        match class.call(Args(args), &self.cx)? {
            Flow::Done(out) => match out.slots {
                Slots::Values(mut values) => Ok(values.remove(0)),
                other => panic!("{name} gave {other:?}"),
            },
            Flow::Later(_) => panic!("{name} is asynchronous"),
        }
    }

    fn call(&self, name: &str, args: Map) -> Value {
        match self.try_call(name, args) {
            Ok(value) => value,
            Err(e) => panic!("{name}: {}: {}", e.kind(), e.message()),
        }
    }

    /// A model from a file, by the node for diffusion models alone.
    fn model(&self, tensors: &[(String, Stored)]) -> Value {
        self.file("diffusion_models/model.safetensors", tensors);
        let inputs = map! {"unet_name" => "model.safetensors", "weight_dtype" => "default"};
        self.call("UNETLoader", inputs)
    }

    fn try_sample(&self, model: Value, prompts: [Value; 2]) -> Result<Tensor, NodeError> {
        let empty = tensor(Tensor::zeros([1, 4, 8, 6]).unwrap());
        let latent: Value = map! {"samples" => empty}.into();
        let [positive, negative] = prompts;
        let inputs = map! {
            "model" => model, "seed" => 7, "steps" => 2, "cfg" => 3.0, "sampler_name" => "euler",
            "scheduler" => "simple", "positive" => positive, "negative" => negative,
            "latent_image" => latent, "denoise" => 1.0,
        };
        Ok(samples(&self.try_call("KSampler", inputs)?))
    }

    fn sample(&self, model: Value, prompts: [Value; 2]) -> Tensor {
        match self.try_sample(model, prompts) {
            Ok(out) => out,
            Err(e) => panic!("{}: {}", e.kind(), e.message()),
        }
    }
}

/// Two prompts of a width, of different lengths.
fn prompts(width: usize, options: &Map) -> [Value; 2] {
    [("positive", 5), ("negative", 3)].map(|(name, count)| {
        let tokens = synthetic::value(name, &[1, count, width], 1.0).unwrap();
        vec![Value::from(vec![tensor(tokens), options.clone().into()])].into()
    })
}

/// Samples in main memory and on a device, both the same.
fn both(name: &str, device: u32, prompts: &[Value; 2], shape: &[usize]) -> Tensor {
    let room = Room::new(name, Vec::new());
    let here = room.sample(room.model(&weights(name)), prompts.clone());
    assert_eq!(here.shape(), shape, "{name}");
    assert!(here.data().iter().all(|v| v.is_finite()));
    let device = Device::register_sim(device, gib(4)).unwrap();
    let far = Room::new(name, vec![device.clone()]);
    let there = far.sample(far.model(&weights(name)), prompts.clone());
    assert!(distance(&there, &here) < 1e-5, "{name}");
    assert!(device.used() > 0, "{name} was on the device");
    here
}

#[test]
fn transformers_are_sampled_on_every_device() {
    let none = Map::new();
    both("z_image_small", 9201, &prompts(40, &none), &[1, 16, 8, 6]);
    both("newbie_small", 9202, &prompts(40, &none), &[1, 16, 8, 6]);
    both("krea2_small", 9203, &prompts(72, &none), &[1, 16, 1, 8, 6]);
    both("flux3_small", 9204, &prompts(40, &none), &[1, 8, 8, 6]);
    both("omnigen2_small", 9207, &prompts(40, &none), &[1, 16, 8, 6]);
    let pooled = tensor(synthetic::value("pooled", &[1, 24], 1.0).unwrap());
    let options = map! {"pooled_output" => pooled.clone()};
    both(
        "kandinsky5_image_small",
        9208,
        &prompts(40, &options),
        &[1, 16, 8, 6],
    );
    let ids = Tensor::from_vec([4], vec![3.0, 9.0, 30.0, 1.0]).unwrap();
    let words = map! {"t5xxl_ids" => tensor(ids)};
    let plain = both("anima_small", 9205, &prompts(20, &words), &[1, 16, 1, 8, 6]);
    // Weights of words count, and a number that is no word is refused.
    let room = Room::new("anima", Vec::new());
    let model = room.model(&weights("anima_small"));
    let strong = Tensor::from_vec([4], vec![1.0, 1.5, 1.0, 1.0]).unwrap();
    let heavy = words.clone();
    let heavy: Map = heavy
        .into_iter()
        .chain([("t5xxl_weights".into(), tensor(strong))])
        .collect();
    let weighted = room.sample(model.clone(), prompts(20, &heavy));
    assert!(distance(&weighted, &plain) > 1e-4);
    let far = tensor(Tensor::from_vec([1], vec![50.0]).unwrap());
    let error = room.try_sample(model, prompts(20, &map! {"t5xxl_ids" => far}));
    let error = error.unwrap_err();
    assert!(error.message().contains("token 50"), "{}", error.message());
}

#[test]
fn prompts_of_other_families_are_refused() {
    for name in ["z_image_small", "krea2_small", "flux3_small", "anima_small"] {
        let room = Room::new(name, Vec::new());
        let model = room.model(&weights(name));
        let error = room
            .try_sample(model, prompts(77, &Map::new()))
            .unwrap_err();
        let message = error.message();
        for part in ["width 77", "another family", "model.safetensors"] {
            assert!(message.contains(part), "{name}: {message}");
        }
    }
}

#[test]
fn reference_pictures_and_the_next_level_count() {
    let room = Room::new("flux3", Vec::new());
    let all = weights("flux3_small");
    let model = room.model(&all);
    let plain = room.sample(model.clone(), prompts(40, &Map::new()));
    let reference = synthetic::value("reference", &[1, 8, 3, 2], 1.0).unwrap();
    let list: Value = vec![tensor(reference)].into();
    let with = room.sample(model, prompts(40, &map! {"reference_latents" => list}));
    assert!(distance(&with, &plain) > 1e-4);
    let base: Vec<(String, Stored)> = all
        .into_iter()
        .filter(|(key, _)| !key.starts_with("ref_time_in."))
        .collect();
    let room = Room::new("flux3 base", Vec::new());
    let base = room.sample(room.model(&base), prompts(40, &Map::new()));
    assert!(distance(&base, &plain) > 1e-4);
    let room = Room::new("flux3 wrong", Vec::new());
    let model = room.model(&weights("flux3_small"));
    let other = synthetic::value("reference", &[1, 4, 3, 2], 1.0).unwrap();
    let list: Value = vec![tensor(other)].into();
    let error = room.try_sample(model, prompts(40, &map! {"reference_latents" => list}));
    assert!(error.unwrap_err().message().contains("reference picture"));
}

#[test]
fn loras_of_other_namings_fit() {
    let room = Room::new("lora", Vec::new());
    let model = room.model(&weights("z_image_small"));
    let plain = room.sample(model.clone(), prompts(40, &Map::new()));
    let mut before = plain.clone();
    for layer in [
        "transformer.layers.0.attention.to_k",
        "diffusion_model.layers.1.feed_forward.w2",
        "lora_unet_layers_0_attention_out",
    ] {
        let part = |name: &str, shape: &[usize]| {
            let value = synthetic::value(name, shape, 0.5).unwrap();
            (format!("{layer}.{name}.weight"), Stored::from(&value))
        };
        let input = if layer.ends_with("w2") { 704 } else { 256 };
        let file = [part("lora_down", &[4, input]), part("lora_up", &[256, 4])];
        room.file(&format!("loras/{layer}.safetensors"), &file);
        let inputs = map! {
            "model" => model.clone(), "lora_name" => format!("{layer}.safetensors"), "strength_model" => 1.0,
        };
        let changed = room.call("LoraLoaderModelOnly", inputs);
        let changed = room.sample(changed, prompts(40, &Map::new()));
        assert!(distance(&changed, &plain) > 1e-5, "{layer}");
        assert!(distance(&changed, &before) > 1e-5, "{layer}");
        before = changed;
    }
}

/// The inputs of the node that steers, without pictures.
fn control_inputs(room: &Room, model: &Value, strength: f64) -> Map {
    let patch = room.call("ModelPatchLoader", map! {"name" => "control.safetensors"});
    let vae = room.call("VAELoader", map! {"vae_name" => "vae.safetensors"});
    map! {"model" => model.clone(), "model_patch" => patch, "vae" => vae, "strength" => strength}
}

fn with(mut inputs: Map, more: Map) -> Map {
    inputs.extend(more);
    inputs
}

#[test]
fn control_nets_steer_z_image() {
    let device = Device::register_sim(9206, gib(4)).unwrap();
    let mut results: Vec<Tensor> = Vec::new();
    for devices in [Vec::new(), vec![device]] {
        let room = Room::new("control", devices);
        let model = room.model(&weights("z_image_small"));
        room.file(
            "model_patches/control.safetensors",
            &weights("z_image_control_small"),
        );
        room.file("vae/vae.safetensors", &weights("vae_ae16_small"));
        let text = || prompts(40, &Map::new());
        let plain = room.sample(model.clone(), text());
        let picture = |name: &str, w: usize| {
            let image = synthetic::value(name, &[1, 64, w, 3], 0.5).unwrap();
            tensor(image.add_scalar(0.5))
        };
        let mask = tensor(Tensor::from_fn([1, 64, 48], |i| (i % 48 / 24) as f32).unwrap());
        let steer = |strength: f64, more: Map| {
            let inputs = with(control_inputs(&room, &model, strength), more);
            room.sample(room.call("ZImageFunControlnet", inputs), text())
        };
        let off = steer(0.0, map! {"image" => picture("hint", 48)});
        assert!(distance(&off, &plain) < 1e-6, "no strength, no change");
        let edges = steer(1.0, map! {"image" => picture("hint", 48)});
        // The node of Qwen-Image takes such patches too.
        let inputs = with(
            control_inputs(&room, &model, 1.0),
            map! {"image" => picture("hint", 48)},
        );
        let same = room.sample(room.call("QwenImageDiffsynthControlnet", inputs), text());
        assert!(distance(&same, &edges) < 1e-6, "the same net");
        let wide = steer(1.0, map! {"image" => picture("hint", 80)});
        let grey = steer(1.0, Map::new());
        let inpaint = steer(
            1.0,
            map! {"image" => picture("hint", 48), "inpaint_image" => picture("scene", 48), "mask" => mask},
        );
        let all = [plain, edges, wide, grey, inpaint];
        for (i, a) in all.iter().enumerate() {
            assert!(a.data().iter().all(|v| v.is_finite()));
            for b in &all[..i] {
                assert!(distance(a, b) > 1e-5, "{i}");
            }
        }
        match results.as_slice() {
            [] => results.extend(all),
            here => {
                for (a, b) in all.iter().zip(here) {
                    assert!(distance(a, b) < 1e-4);
                }
            }
        }
    }
}

/// A control net in the layers of Anima: each picture, mask, strength and range of steps has its own effect, on a device too.
#[test]
fn control_nets_act_in_layers_of_anima() {
    let device = Device::register_sim(9217, gib(4)).unwrap();
    let mut results: Vec<Tensor> = Vec::new();
    for devices in [Vec::new(), vec![device]] {
        let room = Room::new("lite", devices);
        let model = room.model(&weights("anima_small"));
        let name = "model_patches/lite.safetensors";
        room.file(name, &weights("anima_lite_small"));
        let patch = room.call("ModelPatchLoader", map! {"name" => "lite.safetensors"});
        let ids = tensor(Tensor::from_fn([4], |i| i as f32 + 1.0).unwrap());
        let text = || prompts(20, &map! {"t5xxl_ids" => ids.clone()});
        let plain = room.sample(model.clone(), text());
        let picture = |name: &str, w: usize| {
            let image = synthetic::value(name, &[2, 64, w, 3], 0.5).unwrap();
            tensor(image.add_scalar(0.5))
        };
        let mask = |cut: usize| {
            tensor(Tensor::from_fn([1, 64, 48], |i| f32::from(u8::from(i % 48 < cut))).unwrap())
        };
        let inputs = |strength: f64, range: (f64, f64), more: Map| {
            let inputs = map! {
                "model" => model.clone(), "model_patch" => patch.clone(), "strength" => strength,
                "start_percent" => range.0, "end_percent" => range.1,
            };
            with(inputs, more)
        };
        let steer = |strength: f64, range: (f64, f64), more: Map| {
            let inputs = inputs(strength, range, more);
            room.sample(room.call("AnimaLLLiteApply", inputs), text())
        };
        let whole = (0.0, 1.0);
        let half = || map! {"image" => picture("hint", 48), "mask" => mask(24)};
        let off = steer(0.0, whole, half());
        assert!(distance(&off, &plain) < 1e-6, "no strength, no change");
        let late = steer(1.0, (0.999, 1.0), half());
        assert!(distance(&late, &plain) < 1e-6, "no step is so late");
        let all = [
            plain,
            steer(1.0, whole, half()),
            steer(0.5, whole, half()),
            steer(1.0, (0.0, 0.4), half()),
            steer(
                1.0,
                whole,
                map! {"image" => picture("hint", 80), "mask" => mask(24)},
            ),
            steer(
                1.0,
                whole,
                map! {"image" => picture("hint", 48), "mask" => mask(9)},
            ),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(a.data().iter().all(|v| v.is_finite()));
            for b in &all[..i] {
                assert!(distance(a, b) > 1e-6, "{i}");
            }
        }
        let bare = inputs(1.0, whole, map! {"image" => picture("hint", 48)});
        let error = room.try_call("AnimaLLLiteApply", bare).unwrap_err();
        assert!(error.message().contains("mask"), "{}", error.message());
        match results.as_slice() {
            [] => results.extend(all),
            here => {
                for (a, b) in all.iter().zip(here) {
                    assert!(distance(a, b) < 1e-4);
                }
            }
        }
        // Another family.
        let other = room.model(&weights("krea2_small"));
        let mixed = with(inputs(1.0, whole, half()), map! {"model" => other});
        let error = room.try_call("AnimaLLLiteApply", mixed).unwrap_err();
        assert!(error.message().contains("Anima"), "{}", error.message());
    }
}

#[test]
fn patches_say_what_they_are_for() {
    let room = Room::new("patches", Vec::new());
    room.file(
        "model_patches/control.safetensors",
        &weights("z_image_control6_small"),
    );
    room.file("model_patches/other.safetensors", &weights("vae_kl_small"));
    room.file("vae/vae.safetensors", &weights("vae_ae16_small"));
    let model = room.model(&weights("newbie_small"));
    let inputs = control_inputs(&room, &model, 1.0);
    let error = room.try_call("ZImageFunControlnet", inputs).unwrap_err();
    assert!(error.message().contains("Z-Image"), "{}", error.message());
    let error = room.try_call("ModelPatchLoader", map! {"name" => "other.safetensors"});
    let error = error.unwrap_err();
    assert!(
        error.message().contains("not a model patch"),
        "{}",
        error.message()
    );
    // A VAE of another family.
    let room = Room::new("patches of others", Vec::new());
    room.file(
        "model_patches/control.safetensors",
        &weights("z_image_control6_small"),
    );
    room.file("vae/vae.safetensors", &weights("vae_kl_small"));
    let model = room.model(&weights("z_image_small"));
    let inputs = control_inputs(&room, &model, 1.0);
    let error = room.try_call("ZImageFunControlnet", inputs).unwrap_err();
    assert!(error.message().contains("VAE"), "{}", error.message());
    assert!(Model::from_value(model).is_ok());
}
