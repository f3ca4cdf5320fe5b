//! Videos together with their sound: latents of two parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_graph::{Map, Value, map};
use fresco_models::ltx2::{DIFFUSERS, Ltx2Config, Ltx2Network, NO_TOKEN, VOICE, VoiceGuidance};
use fresco_models::minimax::{MiniMaxConfig, MiniMaxNetwork};
use fresco_models::{Diffusion, ModelSampling, WeightStore};
use fresco_nodes::sampling::Model;
use fresco_nodes::types::{Latent, Nested, tensor};
use fresco_tensor::{Device, Stored, Tensor, synthetic};

use crate::harness::*;

fn ltx2() -> Model {
    let shapes: BTreeMap<String, Vec<usize>> = keys("ltx2_small").into_iter().collect();
    let names: Vec<&str> = shapes.keys().map(String::as_str).collect();
    let weights: BTreeMap<String, Stored> = DIFFUSERS
        .keys(&names)
        .into_iter()
        .map(|(key, name)| {
            let weight = synthetic::weight(name, &shapes[name]).unwrap();
            (key, Stored::from(&weight))
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

/// Sampled with conditionings that carry more, and a model that may be patched.
fn with(model: Model, more: impl Fn(Value) -> Value) -> Vec<Tensor> {
    let empty = latent(Tensor::zeros([1, 8, 3, 2, 2]).unwrap());
    let args = ksampler(map! {
        "model" => model, "steps" => 2, "cfg" => 2.0, "scheduler" => "simple",
        "latent_image" => joined(empty, latent(sound())),
        "positive" => more(prompt("pos", 72)), "negative" => more(prompt("neg", 72)),
    });
    parts(&call("KSampler", args).unwrap()[0])
}

fn set(conditioning: Value, key: &str, value: &Value) -> Value {
    let Value::List(items) = conditioning else {
        panic!("no conditioning")
    };
    let items = items.iter().map(|item| {
        let Value::List(pair) = item else {
            panic!("no pair")
        };
        let Value::Map(options) = &pair[1] else {
            panic!("no options")
        };
        let mut options = (**options).clone();
        options.insert(key.into(), value.clone());
        Value::from(vec![pair[0].clone(), options.into()])
    });
    items.collect::<Vec<_>>().into()
}

#[test]
fn a_voice_changes_the_sound_and_is_guided_towards() {
    let plain = with(ltx2(), |c| c);
    let voice = tensor(synthetic::value("voice", &[1, 2, 4, 3], 1.0).unwrap());
    let heard = with(ltx2(), |c| set(c, VOICE, &voice));
    assert_eq!(heard[1].shape(), plain[1].shape());
    assert!(distance(&heard[1], &plain[1]) > 1e-3);
    let guided = |start_sigma: f64, scale: f64| {
        let mut model = ltx2();
        model.patches.post_cfg.push(Arc::new(VoiceGuidance {
            scale,
            start_sigma,
            end_sigma: 0.0,
        }));
        with(model, |c| set(c, VOICE, &voice))
    };
    let more = guided(1.0, 3.0);
    assert!(distance(&more[1], &heard[1]) > 1e-3);
    // Outside of its noise levels it does nothing, and without strength neither.
    assert!(guided(-1.0, 3.0)[1] == heard[1]);
    assert!(distance(&guided(1.0, 0.0)[1], &heard[1]) < 1e-5);
    // A voice of another kind of sound is refused in words.
    let wrong = tensor(Tensor::zeros([1, 5, 4, 3]).unwrap());
    let empty = latent(Tensor::zeros([1, 8, 3, 2, 2]).unwrap());
    let args = ksampler(map! {
        "model" => ltx2(), "steps" => 1, "cfg" => 1.0, "scheduler" => "simple",
        "latent_image" => joined(empty, latent(sound())),
        "positive" => set(prompt("pos", 72), VOICE, &wrong), "negative" => prompt("neg", 72),
    });
    let error = call("KSampler", args).unwrap_err();
    assert!(error.message().contains("tokens"), "{}", error.message());
}

#[test]
fn cells_of_smaller_references_that_are_empty_do_not_count() {
    // The last frame is a reference of one cell, whose other cells are no tokens.
    let places = |row: [f32; 4]| {
        let all = [[0.0; 4], row, row].concat();
        tensor(Tensor::from_vec([1, 3, 4], all).unwrap())
    };
    let keys = places([16.0, NO_TOKEN, NO_TOKEN, NO_TOKEN]);
    let made = |filler: f32| {
        let mut given = video("given");
        let whole = given.data_mut();
        for channel in 0..8 {
            for cell in 1..4 {
                whole[(channel * 3 + 2) * 4 + cell] = filler;
            }
        }
        let mut mask = Tensor::ones([1, 1, 3, 1, 1]).unwrap();
        mask.data_mut()[2] = 0.0;
        let begun: Value = map! {"samples" => tensor(given), "noise_mask" => tensor(mask)}.into();
        let args = ksampler(map! {
            "model" => ltx2(), "steps" => 2, "cfg" => 1.0, "scheduler" => "simple",
            "latent_image" => joined(begun, latent(sound())),
            "positive" => set(prompt("pos", 72), "keyframe_idxs", &keys),
            "negative" => set(prompt("neg", 72), "keyframe_idxs", &keys),
        });
        parts(&call("KSampler", args).unwrap()[0])
    };
    let (a, b) = (made(0.0), made(5.0));
    let own = |t: &Tensor| t.narrow(2, 0, 2).unwrap();
    assert!(own(&a[0]) == own(&b[0]) && a[1] == b[1]);
    let all = places([16.0, 48.0, 16.0, 48.0]);
    let other = with(ltx2(), |c| set(c, "keyframe_idxs", &all));
    assert!(other[0].data().iter().all(|v| v.is_finite()));
}
