//! Qwen-Image through nodes: latents of five dimensions, references, layers, patches that steer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fresco_graph::{Cx, FromValue as _, Map, NodeError, Value, map};
use fresco_models::model_patch::PatchStore;
use fresco_models::qwen_image::{QwenConfig, QwenNetwork};
use fresco_models::qwen_image21::{Qwen21Config, Qwen21Network};
use fresco_models::vae::{CausalVae, Vae as Network};
use fresco_models::{Diffusion, LatentFormat, ModelError, ModelSampling};
use fresco_nodes::model_patch::ModelPatch;
use fresco_nodes::sampling::Model;
use fresco_nodes::types::tensor;
use fresco_nodes::vae::{Vae, VaeModel};
use fresco_tensor::{Device, Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic};

use crate::harness::*;

fn qwen(file: &str) -> Model {
    let store = store(file, 0);
    let config = QwenConfig::detect(&store).unwrap();
    let network = Diffusion::<QwenNetwork>::open(store, config).unwrap();
    Model::new(Arc::new(network), ModelSampling::exponential_flow(1.15))
}

fn prompt(name: &str, options: Map) -> Value {
    let tokens = synthetic::value(name, &[1, 5, 56], 1.5).unwrap();
    vec![entry(tokens, options)].into()
}

/// Two steps from an empty latent.
fn run(model: &Model, latent_image: Value, positive: Value) -> Tensor {
    sampled(map! {
        "model" => model.clone(), "steps" => 2, "cfg" => 2.5, "scheduler" => "simple",
        "latent_image" => latent_image, "positive" => positive,
        "negative" => prompt("negative", Map::new()),
    })
}

fn picture() -> Value {
    call(
        "EmptySD3LatentImage",
        map! {"width" => 64, "height" => 48, "batch_size" => 1},
    )
    .unwrap()
    .remove(0)
}

#[test]
fn pictures_are_videos_of_one_frame() {
    let model = qwen("qwen_edit_small");
    let plain = run(&model, picture(), prompt("positive", Map::new()));
    assert_eq!(plain.shape(), [1, 16, 1, 6, 8]);
    // A reference changes the picture, and how it is placed, too.
    let reference = synthetic::value("reference", &[1, 16, 1, 4, 6], 1.0).unwrap();
    let with = |method: Option<&str>| {
        let mut options = map! {"reference_latents" => vec![tensor(reference.clone())]};
        if let Some(method) = method {
            options.insert("reference_latents_method".into(), method.into());
        }
        run(&model, picture(), prompt("positive", options))
    };
    let index = with(None);
    assert_eq!(distance(&index, &with(Some("index"))), 0.0);
    assert!(distance(&index, &plain) > 1e-3);
    for method in ["index_timestep_zero", "negative_index"] {
        assert!(distance(&with(Some(method)), &index) > 1e-5, "{method}");
    }
}

#[test]
fn layers_are_frames() {
    let model = qwen("qwen_layered_small");
    let inputs = map! {"width" => 32, "height" => 48, "layers" => 2, "batch_size" => 1};
    let latent = call("EmptyQwenImageLayeredLatentImage", inputs).unwrap();
    let out = run(&model, latent[0].clone(), prompt("positive", Map::new()));
    assert_eq!(out.shape(), [1, 16, 3, 6, 4]);
    let decoded = call(
        "VAEDecode",
        map! {"samples" => latent_of(out), "vae" => vae()},
    )
    .unwrap();
    let images = fresco_nodes::types::as_tensor(&decoded[0]).unwrap();
    // Three latent frames are nine of a video.
    assert_eq!(images.shape(), [9, 48, 32, 3]);
}

fn latent_of(samples: Tensor) -> Value {
    map! {"samples" => tensor(samples)}.into()
}

/// The small autoencoder without a memory room.
struct Small(Network);

fn go() -> Result<(), ModelError> {
    Ok(())
}

impl VaeModel for Small {
    fn encode(&self, pixels: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Ok(self.0.encode(pixels, &go)?)
    }

    fn decode(&self, latent: &Tensor, _: &Cx) -> Result<Tensor, NodeError> {
        Ok(self.0.decode(latent, &go)?)
    }

    fn spatial_ratio(&self) -> usize {
        self.0.ratio()
    }

    fn temporal_ratio(&self) -> Option<usize> {
        self.0.temporal_ratio()
    }

    fn latent_channels(&self) -> usize {
        self.0.facts().latent_channels
    }
}

fn vae() -> Vae {
    let network = CausalVae::new(&store("wan_vae_tiled_small", 0)).unwrap();
    Vae(Arc::new(Small(network.into())))
}

/// A weight file that is not on disk.
struct Memory(BTreeMap<String, Stored>);

impl WeightFile for Memory {
    fn path(&self) -> &Path {
        Path::new("patch.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.0.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let found = self.0.get(name).cloned();
        found.ok_or_else(|| WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// A patch for networks of so many channels, with a mask or without.
fn patch(width: usize, values: usize) -> ModelPatch {
    let mut keys = vec![
        ("img_in.weight".to_owned(), vec![width, values]),
        ("img_in.bias".to_owned(), vec![width]),
    ];
    for block in 0..2 {
        for (name, shape) in [
            ("x_rms.weight", vec![width]),
            ("y_rms.weight", vec![width]),
            ("input_proj.weight", vec![width, width]),
            ("input_proj.bias", vec![width]),
            ("output_proj.weight", vec![width, width]),
            ("output_proj.bias", vec![width]),
        ] {
            keys.push((format!("controlnet_blocks.{block}.{name}"), shape));
        }
    }
    let weights = keys.into_iter().map(|(key, shape)| {
        let weight = synthetic::weight(&key, &shape).unwrap();
        (key, Stored::from(&weight))
    });
    let file: Arc<dyn WeightFile> = Arc::new(Memory(weights.collect()));
    let found = PatchStore::find(&file, &Device::cpu()).unwrap();
    ModelPatch::new("patch.safetensors", found)
}

#[test]
fn patches_steer() {
    let model = qwen("qwen_edit_small");
    let image = synthetic::value("image", &[1, 40, 72, 3], 0.5).unwrap();
    let image = image.add_scalar(0.5);
    let steered = |patch: ModelPatch, strength: f64, mask: Option<Tensor>| {
        let mut inputs = map! {
            "model" => model.clone(), "model_patch" => patch, "vae" => vae(),
            "image" => tensor(image.clone()), "strength" => strength,
        };
        if let Some(mask) = mask {
            inputs.insert("mask".into(), tensor(mask));
        }
        call("QwenImageDiffsynthControlnet", inputs)
    };
    let model_of = |out: Vec<Value>| Model::from_value(out[0].clone()).unwrap();
    let sample = |model: &Model| run(model, picture(), prompt("positive", Map::new()));
    let plain = sample(&model);
    let whole = sample(&model_of(steered(patch(96, 64), 1.0, None).unwrap()));
    assert_eq!(whole.shape(), plain.shape());
    assert!(distance(&whole, &plain) > 1e-3);
    let none = sample(&model_of(steered(patch(96, 64), 0.0, None).unwrap()));
    assert_eq!(distance(&none, &plain), 0.0);
    // Nets that paint in see where; a mask of zeros is none at all.
    let masked = |fill: f32| {
        let mask = Tensor::full([1, 40, 72], fill).unwrap();
        sample(&model_of(steered(patch(96, 68), 1.0, Some(mask)).unwrap()))
    };
    let open = sample(&model_of(steered(patch(96, 68), 1.0, None).unwrap()));
    assert_eq!(distance(&masked(0.0), &open), 0.0);
    assert!(distance(&masked(1.0), &open) > 1e-4);
    // For a network of another width, for latents of another family, for a model of another family.
    let narrow = model_of(steered(patch(48, 64), 1.0, None).unwrap());
    let wrong = call(
        "KSampler",
        ksampler(map! {
            "model" => narrow, "latent_image" => picture(), "positive" => prompt("p", Map::new()),
            "negative" => prompt("n", Map::new()),
        }),
    );
    assert!(wrong.unwrap_err().message().contains("width 48"));
    let error = steered(patch(96, 40), 1.0, None).unwrap_err();
    assert!(
        error.message().contains("another family"),
        "{}",
        error.message()
    );
    let inputs = map! {
        "model" => sd1(), "model_patch" => patch(96, 64), "vae" => vae(),
        "image" => tensor(image.clone()), "strength" => 1.0,
    };
    let error = call("QwenImageDiffsynthControlnet", inputs).unwrap_err();
    assert!(
        error.message().contains("no such model"),
        "{}",
        error.message()
    );
}

/// Version 2.1: cells of sixteen pixels, and a cache that changes nothing.
#[test]
fn cells_of_sixteen_pixels() {
    let store = store("qwen_image21_small", 0);
    let config = Qwen21Config::detect(&store).unwrap();
    let network = Diffusion::<Qwen21Network>::open(store, config).unwrap();
    // Its latent format is for 64 channels, and this small one has 8.
    let model = Model::new(Arc::new(network), ModelSampling::exponential_flow(0.69))
        .with_latent_format(LatentFormat::scaled(1.0));
    let prompt = |name: &str| -> Value {
        let tokens = synthetic::value(name, &[1, 4, 48], 1.0).unwrap();
        vec![entry(tokens, Map::new())].into()
    };
    let inputs = map! {"width" => 96, "height" => 64, "batch_size" => 1};
    let empty = call("EmptyLatentImage", inputs).unwrap().remove(0);
    let sample = |model: &Model| {
        sampled(map! {
            "model" => model.clone(), "steps" => 2, "cfg" => 1.0, "scheduler" => "simple",
            "latent_image" => empty.clone(), "positive" => prompt("a"), "negative" => prompt("b"),
        })
    };
    let plain = sample(&model);
    assert_eq!(plain.shape(), [1, 8, 4, 6]);
    for device in ["auto", "cpu", "off"] {
        let inputs = map! {"model" => model.clone(), "device" => device, "dtype" => "default"};
        let kept = call("QwenImage21Cache", inputs).unwrap();
        let kept = Model::from_value(kept[0].clone()).unwrap();
        let again = sample(&kept);
        assert_eq!(distance(&again, &plain), 0.0, "{device}");
    }
    let inputs = map! {"model" => sd1(), "device" => "auto", "dtype" => "default"};
    assert!(call("QwenImage21Cache", inputs).is_err());
}
