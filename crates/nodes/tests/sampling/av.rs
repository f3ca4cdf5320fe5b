//! Videos together with their sound: latents of two parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_graph::{Map, Value, map};
use fresco_models::ltx2::{DIFFUSERS, Ltx2Config, Ltx2Network};
use fresco_models::minimax::{MiniMaxConfig, MiniMaxNetwork};
use fresco_models::{Diffusion, ModelSampling, WeightStore};
use fresco_nodes::sampling::Model;
use fresco_nodes::types::{Latent, Nested, tensor};
use fresco_tensor::{Device, Stored, Tensor, synthetic};

use crate::harness::*;

fn ltx2() -> Model {
    let weights: BTreeMap<String, Stored> = keys("ltx2_small")
        .into_iter()
        .map(|(name, shape)| {
            let weight = synthetic::weight(&name, &shape).unwrap();
            (DIFFUSERS.key(&name), Stored::from(&weight))
        })
        .collect();
    let store = WeightStore::from_stored("ltx2.test", weights, Device::cpu());
    let config = Ltx2Config::detect(&store).unwrap();
    let network = Diffusion::<Ltx2Network>::open(store, config).unwrap();
    Model::new(Arc::new(network), ModelSampling::exponential_flow(2.37))
}

fn prompt(name: &str, width: usize) -> Value {
    conditioning(synthetic::value(name, &[1, 5, width], 1.0).unwrap())
}

fn video(name: &str) -> Tensor {
    synthetic::value(name, &[1, 8, 3, 2, 2], 1.0).unwrap()
}

fn sound() -> Tensor {
    Tensor::zeros([1, 2, 5, 3]).unwrap()
}

fn joined(video: Value, sound: Value) -> Value {
    let inputs = map! {"video_latent" => video, "audio_latent" => sound};
    call("LTXVConcatAVLatent", inputs).unwrap().remove(0)
}

fn parts(value: &Value) -> Vec<Tensor> {
    let Value::Map(map) = value else {
        panic!("no latent")
    };
    Latent(map.clone()).parts().unwrap().to_vec()
}

fn run(latent: Value) -> Vec<Tensor> {
    let args = ksampler(map! {
        "model" => ltx2(), "steps" => 2, "cfg" => 2.0, "scheduler" => "simple",
        "latent_image" => latent, "positive" => prompt("pos", 72), "negative" => prompt("neg", 72),
    });
    parts(&call("KSampler", args).unwrap()[0])
}

#[test]
fn a_video_and_its_sound_are_sampled_as_one() {
    let empty = latent(Tensor::zeros([1, 8, 3, 2, 2]).unwrap());
    let both = run(joined(empty.clone(), latent(sound())));
    assert_eq!(both[0].shape(), [1, 8, 3, 2, 2]);
    assert_eq!(both[1].shape(), [1, 2, 5, 3]);
    assert!(both[1].data().iter().any(|v| v.abs() > 1e-3));
    assert!(run(joined(empty.clone(), latent(sound())))[1] == both[1]);
    // Alone it becomes another video.
    let alone = sampled(map! {
        "model" => ltx2(), "steps" => 2, "cfg" => 2.0, "scheduler" => "simple",
        "latent_image" => empty, "positive" => prompt("pos", 72), "negative" => prompt("neg", 72),
    });
    assert!(distance(&alone, &both[0]) > 1e-3);
}

#[test]
fn what_is_masked_stays() {
    let (given, mut mask) = (video("given"), Tensor::ones([1, 1, 3, 1, 1]).unwrap());
    mask.data_mut()[0] = 0.0;
    let begun: Value = map! {
        "samples" => tensor(given.clone()), "noise_mask" => tensor(mask),
    }
    .into();
    let out = run(joined(begun, latent(sound())));
    let first = |t: &Tensor| t.narrow(2, 0, 1).unwrap();
    assert!(distance(&first(&out[0]), &first(&given)) < 1e-5);
    assert!(distance(&out[0], &given) > 1e-2);
}

#[test]
fn latents_are_taken_apart_as_they_were_joined() {
    let mask = Tensor::ones([1, 1, 3, 1, 1]).unwrap();
    let begun: Value = map! {
        "samples" => tensor(video("a")), "noise_mask" => tensor(mask.clone()),
    }
    .into();
    let both = joined(begun, latent(sound()));
    let apart = call("LTXVSeparateAVLatent", map! {"av_latent" => both.clone()}).unwrap();
    assert!(samples(&apart[0]) == video("a") && samples(&apart[1]) == sound());
    let kept = fresco_nodes::types::as_tensor(apart[0].get("noise_mask").unwrap());
    assert!(kept == Some(&mask));
    let error = call(
        "LTXVSeparateAVLatent",
        map! {"av_latent" => latent(sound())},
    )
    .unwrap_err();
    assert!(
        error.message().contains("nothing to take apart"),
        "{}",
        error.message()
    );
    let refused = call("KSampler", ksampler(map! {"latent_image" => both})).unwrap_err();
    assert!(
        refused.message().contains("LTXVSeparateAVLatent"),
        "{}",
        refused.message()
    );
}

#[test]
fn each_part_has_its_own_guidance() {
    let guided = |class: &str, strengths: Map| {
        let mut inputs = map! {
            "model" => ltx2(), "positive" => prompt("pos", 72), "negative" => prompt("neg", 72),
        };
        inputs.extend(strengths);
        let guider = call(class, inputs).unwrap().remove(0);
        let noise = call("RandomNoise", map! {"noise_seed" => 3})
            .unwrap()
            .remove(0);
        let sampler = call("KSamplerSelect", map! {"sampler_name" => "euler"}).unwrap();
        let sigmas = tensor(Tensor::from_slice(&[1.0, 0.0]));
        let empty = latent(Tensor::zeros([1, 8, 3, 2, 2]).unwrap());
        let inputs = map! {
            "noise" => noise, "guider" => guider, "sampler" => sampler[0].clone(),
            "sigmas" => sigmas, "latent_image" => joined(empty, latent(sound())),
        };
        parts(&call("SamplerCustomAdvanced", inputs).unwrap()[0])
    };
    let plain = guided("CFGGuider", map! {"cfg" => 3.0});
    let equal = guided(
        "LTXVDualCFGGuider",
        map! {"video_cfg" => 3.0, "audio_cfg" => 3.0},
    );
    assert!(plain[0] == equal[0] && plain[1] == equal[1]);
    let other = guided(
        "LTXVDualCFGGuider",
        map! {"video_cfg" => 3.0, "audio_cfg" => 7.0},
    );
    assert!(distance(&other[0], &plain[0]) < 1e-6);
    assert!(distance(&other[1], &plain[1]) > 1e-3);
}

#[test]
fn sound_with_a_schedule_of_its_own() {
    let store = store("minimax_h3_small", 0);
    let config = MiniMaxConfig::detect(&store).unwrap();
    let network = Diffusion::<MiniMaxNetwork>::open(store, config).unwrap();
    let model = Model::new(Arc::new(network), ModelSampling::flow(12.0, 1000.0));
    let sampled = |model: Value, options: Map| {
        let text = synthetic::value("pos", &[1, 5, 40], 1.0).unwrap();
        let positive: Value = vec![entry(text, options)].into();
        let both = Value::object(Nested(vec![
            Tensor::zeros([1, 4, 7, 4, 6]).unwrap(),
            Tensor::zeros([1, 6, 2, 9]).unwrap(),
        ]));
        let args = ksampler(map! {
            "model" => model, "steps" => 2, "cfg" => 1.0, "scheduler" => "simple",
            "latent_image" => Value::from(map! {"samples" => both}), "positive" => positive.clone(),
            "negative" => positive,
        });
        parts(&call("KSampler", args).unwrap()[0])
    };
    let plain = sampled(model.clone().into(), Map::new());
    assert_eq!(plain[1].shape(), [1, 6, 2, 9]);
    let shift = |video: f64, audio: f64| {
        let inputs =
            map! {"model" => model.clone(), "shift_video" => video, "shift_audio" => audio};
        call("MiniMaxH3SigmaShift", inputs).unwrap().remove(0)
    };
    let same = sampled(shift(12.0, 3.0), Map::new());
    assert!(distance(&same[0], &plain[0]) < 1e-6 && distance(&same[1], &plain[1]) < 1e-6);
    assert!(distance(&sampled(shift(12.0, 6.0), Map::new())[1], &plain[1]) > 1e-4);
    // A first frame changes the video.
    let frame = synthetic::value("frame", &[1, 4, 1, 4, 6], 1.0).unwrap();
    let options = map! {
        "minimax_latents" => vec![tensor(frame)], "minimax_kinds" => "frame:0",
    };
    assert!(distance(&sampled(model.into(), options)[0], &plain[0]) > 1e-3);
}
