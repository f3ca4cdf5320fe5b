//! A family of models that is written here, outside of the crates: what the general path offers is all it needs.
//!
//! `docs/adding-a-model.md` describes the same steps for a family that stays.

#![allow(clippy::unwrap_used, reason = "helpers of tests may stop the test")]

mod harness;
mod toy;
mod transformers;

use std::sync::{Arc, Mutex};

use fresco_graph::{FromValue as _, map};
use fresco_models::denoise::hooks::{BlockFlow, BlockHook, BlockInfo, Moment};
use fresco_models::detect::Families;
use fresco_models::{ModelError, Prediction};
use fresco_nodes::admission::assess;
use fresco_nodes::sampling::Model;
use fresco_tensor::{Device, Tensor};

use harness::{STEPS, ToyRig, distance, gib, ksampler, samples, total_bytes};
use toy::{BLOCK, TOY, Toy};

/// The toy, loaded by the node that loads any diffusion model.
fn loaded(place: &ToyRig) -> Model {
    let inputs = map! {"unet_name" => "toy.safetensors", "weight_dtype" => "default"};
    Model::from_value(place.call("UNETLoader", inputs).remove(0)).unwrap()
}

fn sampled(place: &ToyRig, model: Model) -> Tensor {
    samples(&place.call("KSampler", ksampler(model))[0])
}

#[test]
fn it_is_detected_and_sampled_like_any_other() {
    let place = ToyRig::new("detected", &[]);
    let found = place.families().detect(&place.file()).unwrap();
    assert_eq!(found.family, "toy");
    let facts = found.network.facts();
    assert_eq!((facts.latent_channels, facts.latent.dimensions), (6, 3));
    assert_eq!(facts.sampling.prediction, Prediction::Flow);
    // Without its row nobody knows it.
    let unknown = fresco_models::detect_checkpoint(&place.file()).unwrap_err();
    assert!(unknown.to_string().contains("no known model"), "{unknown}");

    let model = loaded(&place);
    // An empty picture of four channels becomes a video of one frame with the channels of the model.
    let out = sampled(&place, model.clone());
    assert_eq!(out.shape(), [1, 6, 1, 8, 8]);
    assert!(out.data().iter().all(|v| v.is_finite()));
    assert_eq!(distance(&out, &sampled(&place, model)), 0.0);
    // What it predicts is what its equation says: one step of a flow goes from the noise to where the model points.
    let network = Toy::in_memory();
    let x = Tensor::from_fn([2, 6, 2, 4, 4], |i| (i as f32 * 0.37).sin()).unwrap();
    let prompt = Tensor::from_fn([2, 3, 16], |i| (i as f32 * 0.11).cos()).unwrap();
    let (one, two) = (
        network.pass(&x, &prompt),
        network.pass(&x, &prompt.mul_scalar(2.0)),
    );
    assert_eq!(one.shape(), x.shape());
    assert!(distance(&one, &two) > 1e-3, "it reads its prompt");
}

#[test]
fn it_is_looked_at_before_its_prompt_runs() {
    let place = ToyRig::new("admitted", &[]);
    let inputs = map! {"unet_name" => "toy.safetensors", "weight_dtype" => "default"};
    let prompt = map! {"1" => map! {"class_type" => "UNETLoader", "inputs" => inputs}};
    let look = |families: &Families| {
        let found = assess(&prompt, &place.folders(), families, place.registry());
        let [model] = &found.models[..] else {
            panic!("{found:?}")
        };
        (model.what.clone(), model.bytes)
    };
    assert_eq!(look(&place.families()), ("toy".to_owned(), total_bytes()));
    assert_eq!(look(&Families::default()), (String::new(), 0));
}

#[test]
fn all_missing_weights_come_in_one_message() {
    let gone = ["blocks.0.norm.bias", "blocks.1.q.weight", "out.weight"];
    let place = ToyRig::new("gaps", &gone);
    let inputs = map! {"unet_name" => "toy.safetensors", "weight_dtype" => "default"};
    let error = place.try_call("UNETLoader", inputs).unwrap_err();
    for part in ["3 of the", "weights of the toy", gone[0], gone[1], gone[2]] {
        assert!(error.message().contains(part), "{}", error.message());
    }
}

/// Counts the blocks it sees, and weakens what comes out of the second.
#[derive(Default)]
struct Weaker(Mutex<Vec<usize>>);

impl BlockHook for Weaker {
    fn apply(&self, flow: BlockFlow, at: &BlockInfo<'_>) -> Result<BlockFlow, ModelError> {
        self.0.lock().unwrap().push(at.number);
        let factor = if at.number == 1 { 0.5 } else { 1.0 };
        Ok(BlockFlow {
            h: flow.h.mul_scalar(factor),
            beside: flow.beside,
        })
    }
}

#[test]
fn hooks_and_guidance_act_in_it() {
    let place = ToyRig::new("hooks", &[]);
    let plain = sampled(&place, loaded(&place));
    let mut model = loaded(&place);
    let hook = Arc::new(Weaker::default());
    model
        .patches
        .hooks
        .on_block(BLOCK, Moment::After, hook.clone());
    assert!(distance(&sampled(&place, model), &plain) > 1e-4);
    let seen = hook.0.lock().unwrap();
    assert_eq!(seen[..2], [0, 1], "by number, in order");
    assert_eq!(seen.len(), 2 * STEPS, "both prompts share a pass");
    drop(seen);
    let rescaled = place.call(
        "RescaleCFG",
        map! {"model" => loaded(&place), "multiplier" => 0.9},
    );
    let rescaled = Model::from_value(rescaled[0].clone()).unwrap();
    assert!(distance(&sampled(&place, rescaled), &plain) > 1e-4);
}

#[test]
fn loras_change_it_in_every_mode() {
    let place = ToyRig::new("lora", &[]);
    let plain = sampled(&place, loaded(&place));
    let with = |mode: &str, strength: f64| {
        let inputs = map! {
            "model" => loaded(&place), "lora_name" => "toy.safetensors", "strength_model" => strength,
            "strength_clip" => 0.0, "patch_mode" => mode, "oft_strength" => "compat",
            "lora_storage" => "stored_dtype",
        };
        let changed = place.call("FrescoLoraLoader", inputs);
        sampled(&place, Model::from_value(changed[0].clone()).unwrap())
    };
    let merged = with("merge", 1.0);
    assert!(distance(&merged, &plain) > 1e-4);
    for mode in ["on_the_fly", "bypass"] {
        let other = distance(&with(mode, 1.0), &merged);
        assert!(other < 1e-4, "{mode}: {other}");
    }
    assert_eq!(distance(&with("merge", 0.0), &plain), 0.0);
}

#[test]
fn the_memory_room_moves_its_units() {
    let place = ToyRig::new("memory", &[]);
    let here = sampled(&place, loaded(&place));
    let models = place.registry().snapshot().models;
    assert_eq!(models.len(), 1);
    assert_eq!(models[0].bytes_total, total_bytes());
    let device = Device::register_sim(9100, gib(8)).unwrap();
    let far = ToyRig::on("far", device.clone());
    let model = loaded(&far);
    let there = sampled(&far, model.clone());
    assert!(distance(&there, &here) < 1e-5);
    let resident = |place: &ToyRig| place.registry().snapshot().models[0].residency.clone();
    assert_eq!(resident(&far), [("sim:9100".to_owned(), total_bytes())]);
    // Units are layers in the order of their blocks.
    let store = model.base.store().unwrap();
    let blocks: Vec<Option<u32>> = store.units().iter().map(|unit| unit.block).collect();
    let numbered: Vec<u32> = blocks.iter().copied().flatten().collect();
    assert_eq!(numbered.len(), 2 * TOY.layers_per_block);
    assert!(numbered.is_sorted(), "{blocks:?}");
    far.free_all();
    assert_eq!(device.used(), 0);
    assert!(
        distance(&sampled(&far, model), &here) < 1e-5,
        "and back again"
    );
}
