//! What a user can get wrong: a clear error, never a panic.

use std::sync::Arc;

use fresco_graph::{Map, NodeError, Value, map};
use fresco_models::denoise::Call;
use fresco_models::sd::SdModel;
use fresco_models::sd::unet::{Heads, UNetConfig};
use fresco_models::{LatentFormat, ModelError, ModelSampling, Prediction, WeightStore};
use fresco_nodes::sampling::{BaseModel, Model};
use fresco_nodes::types::tensor;
use fresco_tensor::{Device, Stored, Tensor, TensorError};

use crate::harness::*;

#[track_caller]
fn fails(changes: Map, words: &[&str]) {
    let error = call("KSampler", ksampler(changes)).expect_err("must fail");
    for word in words {
        let message = error.message();
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

fn filled(shape: &[usize], value: f32) -> Value {
    latent(Tensor::full(shape, value).unwrap())
}

#[test]
fn latents() {
    fails(
        map! {"latent_image" => filled(&[1, 16, 8, 8], 1.0)},
        &["4 channels", "16", "another family"],
    );
    fails(
        map! {"latent_image" => filled(&[1, 4, 8, 8], f32::NAN)},
        &["not numbers"],
    );
    fails(
        map! {"latent_image" => filled(&[1, 4, 8, 8], f32::INFINITY)},
        &["not numbers"],
    );
    for shape in [
        &[1, 4, 1, 8, 8][..],
        &[4, 8, 8],
        &[0, 4, 8, 8],
        &[1, 4, 0, 8],
        &[1, 0, 8, 8],
        &[],
    ] {
        fails(map! {"latent_image" => filled(shape, 0.0)}, &["latent"]);
    }
    fails(map! {"latent_image" => Map::new()}, &["samples"]);
    // An empty latent of another family is nothing but a size.
    let out = sampled(map! {"latent_image" => filled(&[1, 16, 8, 8], 0.0)});
    assert_eq!(out.data(), sampled(map! {}).data());
    for mask in [
        Tensor::zeros([0, 8, 8]),
        Tensor::zeros([8]),
        Tensor::zeros([1, 0, 8]),
    ] {
        let latent = map! {"samples" => tensor(Tensor::zeros([1, 4, 8, 8]).unwrap()), "noise_mask" => tensor(mask.unwrap())};
        fails(map! {"latent_image" => latent}, &["mask"]);
    }
    let index =
        map! {"samples" => tensor(Tensor::zeros([1, 4, 8, 8]).unwrap()), "batch_index" => vec![-1]};
    fails(map! {"latent_image" => index}, &["batch_index"]);
}

#[test]
fn conditionings() {
    let wide = conditioning(Tensor::zeros([1, 77, 2048]).unwrap());
    fails(
        map! {"positive" => wide.clone()},
        &[
            "width 64",
            "positive",
            "2048",
            "another family",
            "unet_sd1_small",
        ],
    );
    fails(map! {"negative" => wide}, &["negative"]);
    fails(
        map! {"positive" => Vec::<Value>::new()},
        &["positive conditioning is empty"],
    );
    fails(
        map! {"negative" => Vec::<Value>::new()},
        &["negative conditioning is empty"],
    );
    for shape in [&[1, 0, 64][..], &[0, 77, 64], &[77, 64], &[64]] {
        fails(
            map! {"positive" => conditioning(Tensor::zeros(shape).unwrap())},
            &["conditioning"],
        );
    }
    let none: Value = vec![Value::from(vec![Value::Null, Map::new().into()])].into();
    fails(map! {"positive" => none}, &["no text"]);
    let with = |options: Map| -> Value { vec![entry(text("e2e.pos", 77), options)].into() };
    for options in [
        map! {"area" => vec![4, 4, 8, 0]},
        map! {"area" => vec![0, 4, 0, 0]},
        map! {"area" => "left"},
        map! {"mask" => tensor(Tensor::zeros([2]).unwrap())},
        map! {"strength" => "x"},
        map! {"control" => 1},
        map! {"gligen" => vec![1]},
        map! {"unclip_conditioning" => 1},
        map! {"unclip_conditioning" => vec![1]},
    ] {
        fails(map! {"positive" => with(options)}, &["conditioning"]);
    }
}

#[test]
fn steps() {
    for steps in [0, -1, i64::MAX] {
        fails(map! {"steps" => steps}, &["steps"]);
    }
    fails(map! {"denoise" => 1e-12}, &["steps"]);
    let start = filled(&[1, 4, 8, 8], 0.5);
    for denoise in [0.0, -1.0] {
        let out = sampled(map! {"denoise" => denoise, "latent_image" => start.clone()});
        assert_eq!(out.data(), samples(&start).data());
    }
    let sigmas = |values: &[f32]| {
        let sampler = call("KSamplerSelect", map! {"sampler_name" => "euler"}).unwrap();
        let args = map! {
            "model" => sd1(), "add_noise" => true, "noise_seed" => 1, "cfg" => 2.0, "positive" => positive(),
            "negative" => negative(), "sampler" => sampler[0].clone(),
            "sigmas" => tensor(Tensor::from_slice(values)), "latent_image" => start.clone(),
        };
        call("SamplerCustom", args)
    };
    assert!(sigmas(&[f32::NAN, 0.0]).is_err());
    assert!(sigmas(&[f32::INFINITY, 0.0]).is_err());
    let out = sigmas(&[]).unwrap();
    assert_eq!(samples(&out[0]).data(), samples(&start).data());
    assert_eq!(samples(&out[1]).data(), samples(&start).data());
    sigmas(&[1.0]).unwrap();
}

#[test]
fn names_of_other_versions_mean_the_first_one() {
    let out = sampled(map! {"sampler_name" => "euler_of_the_future", "scheduler" => "none such"});
    assert_eq!(out.data(), sampled(map! {"scheduler" => "simple"}).data());
}

/// The small SD1 with one weight replaced.
fn spoiled(key: &str, value: f32) -> Model {
    let whole = store("unet_sd1_small", 4);
    let weights = whole.keys().into_iter().map(|k| {
        let mut weight = whole.raw(k).unwrap();
        if k == key {
            weight = Stored::from(&Tensor::full(weight.shape(), value).unwrap());
        }
        (k.to_owned(), weight)
    });
    let store = WeightStore::from_stored("spoiled.safetensors", weights.collect(), Device::cpu());
    let config = UNetConfig {
        heads: Heads::Count(4),
        ..UNetConfig::detect(&store).unwrap()
    };
    let network = SdModel::new(store, config, LatentFormat::scaled(0.18215)).unwrap();
    Model::new(
        Arc::new(network),
        ModelSampling::discrete(Prediction::Eps, false),
    )
}

#[test]
fn damaged_weights() {
    for value in [f32::NAN, f32::INFINITY] {
        let model = spoiled("out.2.bias", value);
        fails(
            map! {"model" => model},
            &["spoiled.safetensors", "not numbers", "damaged"],
        );
    }
}

#[test]
fn networks_of_no_known_kind() {
    let store = store("unet_sd1_small", 7);
    let config = UNetConfig::detect(&store).unwrap();
    let error = SdModel::new(store, config, LatentFormat::scaled(1.0))
        .err()
        .unwrap();
    assert!(error.to_string().contains("7 to 4 channels"), "{error}");
}

/// A model whose network does not fit.
struct Full;

impl BaseModel for Full {
    fn name(&self) -> String {
        "full".into()
    }
    fn process_latent_in(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }
    fn process_latent_out(&self, latent: &Tensor) -> fresco_tensor::Result<Tensor> {
        Ok(latent.clone())
    }
    fn apply(&self, _: &ModelSampling, call: &Call<'_>) -> Result<Tensor, ModelError> {
        let shape = call.x.shape().to_vec();
        Err(TensorError::NoMemory {
            shape,
            missing: 5 << 30,
        }
        .into())
    }
}

#[test]
fn memory_runs_out() {
    let model = Model::new(
        Arc::new(Full),
        ModelSampling::discrete(Prediction::Eps, false),
    );
    let error = call("KSampler", ksampler(map! {"model" => model})).unwrap_err();
    assert!(matches!(error, NodeError::OutOfMemory { .. }), "{error:?}");
    assert_eq!(error.kind(), "torch.OutOfMemoryError");
    assert!(error.message().contains("5120 MiB"), "{}", error.message());
}
