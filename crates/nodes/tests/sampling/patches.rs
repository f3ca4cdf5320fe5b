//! Nodes that change the network or its guidance.

use std::sync::Arc;

use fresco_graph::{FromValue, Map, Value, map};
use fresco_nodes::sampling::Model;
use fresco_tensor::Tensor;

use crate::harness::*;

fn patched(name: &str, args: Map) -> Value {
    let mut all = map! {"model" => sd1()};
    all.extend(args);
    match call(name, all) {
        Ok(mut out) => out.remove(0),
        Err(e) => panic!("{name}: {}", e.message()),
    }
}

fn run(model: Value) -> Tensor {
    sampled(map! {"model" => model, "steps" => 2, "cfg" => 4.0})
}

/// A setting that changes nothing, and one that changes the picture.
#[track_caller]
fn check(name: &str, nothing: Map, something: Map) {
    let plain = run(sd1().into());
    let same = distance(&run(patched(name, nothing)), &plain);
    assert!(same < 1e-5, "{name}: {same:.1e}");
    let changed = run(patched(name, something));
    assert!(distance(&changed, &plain) > 1e-4, "{name} changes nothing");
    assert!(changed.data().iter().all(|v| v.is_finite()), "{name}");
}

#[test]
fn attention_that_is_disturbed() {
    check(
        "PerturbedAttentionGuidance",
        map! {"scale" => 0.0},
        map! {"scale" => 3.0},
    );
    let blur = |scale: f64| map! {"scale" => scale, "blur_sigma" => 2.0};
    check("SelfAttentionGuidance", blur(0.0), blur(0.5));
    // Without a blur the model sees the same picture again, and what it sees there differs still.
    run(patched(
        "SelfAttentionGuidance",
        map! {"scale" => 0.5, "blur_sigma" => 0.0},
    ));
}

#[test]
fn attention_that_is_cheaper() {
    let tiles = |size: i64| map! {"tile_size" => size, "swap_size" => 1, "max_depth" => 0, "scale_depth" => false};
    check("HyperTile", tiles(64), tiles(32));
    let deep = map! {"tile_size" => 1, "swap_size" => 4, "max_depth" => 10, "scale_depth" => true};
    run(patched("HyperTile", deep));
    check(
        "TomePatchModel",
        map! {"ratio" => 0.0},
        map! {"ratio" => 0.5},
    );
    run(patched("TomePatchModel", map! {"ratio" => 1.0}));
}

#[test]
fn runs_of_random_patches_repeat() {
    let args = map! {"tile_size" => 32, "swap_size" => 4, "max_depth" => 1, "scale_depth" => false};
    for model in [
        patched("HyperTile", args),
        patched("TomePatchModel", map! {"ratio" => 0.3}),
    ] {
        assert_eq!(run(model.clone()).data(), run(model).data());
    }
}

#[test]
fn attention_weights_are_multiplied() {
    for name in ["UNetSelfAttentionMultiply", "UNetCrossAttentionMultiply"] {
        let by = |v: f64| map! {"q" => 1.0, "k" => 1.0, "v" => v, "out" => 1.0};
        check(name, by(1.0), by(0.5));
        // Half the values are the same as half the output matrix; its bias stays.
        let out = map! {"q" => 2.0, "k" => 0.5, "v" => 1.0, "out" => 1.0};
        let balanced = distance(&run(patched(name, out)), &run(sd1().into()));
        assert!(balanced < 1e-4, "{name}: {balanced:.1e}");
    }
    let by = |v: f64| map! {"self_structural" => v, "self_temporal" => 9.0, "cross_structural" => 1.0, "cross_temporal" => 9.0};
    check("UNetTemporalAttentionMultiply", by(1.0), by(0.5));
}

#[test]
fn clones_of_a_patched_model_share_its_network() {
    let by = map! {"q" => 1.0, "k" => 1.0, "v" => 0.5, "out" => 1.0};
    let value = patched("UNetSelfAttentionMultiply", by);
    let model = Model::from_value(value.clone()).unwrap();
    let again = Model::from_value(patched_on(
        "ModelComputeDtype",
        value,
        map! {"dtype" => "fp16"},
    ))
    .unwrap();
    assert!(Arc::ptr_eq(
        &model.ready().unwrap().network,
        &again.ready().unwrap().network
    ));
    assert!(!Arc::ptr_eq(&model.ready().unwrap().network, &model.base));
    let plain = sd1();
    assert!(Arc::ptr_eq(&plain.ready().unwrap().network, &plain.base));
}

fn patched_on(name: &str, model: Value, args: Map) -> Value {
    let mut all = args;
    all.insert("model".into(), model);
    call(name, all).unwrap().remove(0)
}

#[test]
fn patches_go_together() {
    let mut model: Value = sd1().into();
    for (name, args) in [
        ("RescaleCFG", map! {"multiplier" => 0.5}),
        (
            "FreeU",
            map! {"b1" => 1.3, "b2" => 1.4, "s1" => 0.9, "s2" => 0.2},
        ),
        (
            "SelfAttentionGuidance",
            map! {"scale" => 0.5, "blur_sigma" => 2.0},
        ),
        ("PerturbedAttentionGuidance", map! {"scale" => 1.0}),
        ("TomePatchModel", map! {"ratio" => 0.3}),
        (
            "HyperTile",
            map! {"tile_size" => 32, "swap_size" => 2, "max_depth" => 0, "scale_depth" => false},
        ),
        (
            "PatchModelAddDownscale",
            map! {
                "block_number" => 3, "downscale_factor" => 2.0, "start_percent" => 0.0, "end_percent" => 0.35,
                "downscale_after_skip" => true, "downscale_method" => "bicubic", "upscale_method" => "bicubic",
            },
        ),
        (
            "ModelSamplingDiscrete",
            map! {"sampling" => "v_prediction", "zsnr" => true},
        ),
        (
            "APG",
            map! {"eta" => 1.0, "norm_threshold" => 5.0, "momentum" => 0.1},
        ),
        (
            "UNetCrossAttentionMultiply",
            map! {"q" => 1.1, "k" => 1.0, "v" => 1.0, "out" => 1.0},
        ),
        ("TorchCompileModel", map! {"backend" => "inductor"}),
    ] {
        model = patched_on(name, model, args);
    }
    let out = run(model);
    assert!(out.data().iter().all(|v| v.is_finite()));
}
