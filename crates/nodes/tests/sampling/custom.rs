//! The same run put together from parts.

use fresco_graph::{Map, Value, map};
use fresco_nodes::types::tensor;
use fresco_tensor::{Tensor, synthetic};

use crate::harness::*;

fn one(name: &str, args: Map) -> Value {
    match call(name, args) {
        Ok(mut out) => out.remove(0),
        Err(e) => panic!("{name}: {}", e.message()),
    }
}

fn sigmas(steps: i64) -> Value {
    let args = map! {"model" => sd1(), "scheduler" => "normal", "steps" => steps, "denoise" => 1.0};
    one("BasicScheduler", args)
}

fn sampler(name: &str) -> Value {
    one("KSamplerSelect", map! {"sampler_name" => name})
}

/// What `SamplerCustomAdvanced` gives.
fn advanced(guider: Value, sampler: Value) -> Vec<Tensor> {
    let args = map! {
        "noise" => one("RandomNoise", map! {"noise_seed" => 99}), "guider" => guider, "sampler" => sampler,
        "sigmas" => sigmas(4), "latent_image" => empty(),
    };
    match call("SamplerCustomAdvanced", args) {
        Ok(out) => out.iter().map(samples).collect(),
        Err(e) => panic!("{}", e.message()),
    }
}

fn cfg_guider(cfg: f64) -> Value {
    let args =
        map! {"model" => sd1(), "positive" => positive(), "negative" => negative(), "cfg" => cfg};
    one("CFGGuider", args)
}

#[test]
fn parts_give_what_the_whole_gives() {
    let whole = sampled(map! {});
    let args = map! {
        "model" => sd1(), "add_noise" => true, "noise_seed" => 99, "cfg" => 7.0, "positive" => positive(),
        "negative" => negative(), "sampler" => sampler("euler"), "sigmas" => sigmas(4), "latent_image" => empty(),
    };
    let custom = call("SamplerCustom", args).unwrap();
    assert_eq!(samples(&custom[0]).data(), whole.data());
    // The last step of euler goes all the way to what the model sees.
    assert!(distance(&samples(&custom[1]), &whole) < 1e-5);
    let out = advanced(cfg_guider(7.0), sampler("euler"));
    assert_eq!(out[0].data(), whole.data());
}

#[test]
fn the_basic_guider_is_guidance_of_strength_one() {
    let basic = one(
        "BasicGuider",
        map! {"model" => sd1(), "conditioning" => positive()},
    );
    let out = advanced(basic, sampler("euler"));
    assert_eq!(
        out[0].data(),
        advanced(cfg_guider(1.0), sampler("euler"))[0].data()
    );
    let gold = golden("e2e_sd1_small", "euler/normal/4/cfg1.0/d1.0");
    assert!(distance(&out[0], &gold) < 1e-4);
}

#[test]
fn cfg_plus_plus_gets_its_second_prediction() {
    let one = advanced(cfg_guider(1.0), sampler("euler_cfg_pp"));
    let other = advanced(cfg_guider(1.0), sampler("euler"));
    assert!(distance(&one[0], &other[0]) > 1e-3);
    let basic = call(
        "BasicGuider",
        map! {"model" => sd1(), "conditioning" => positive()},
    )
    .unwrap();
    advanced(basic[0].clone(), sampler("euler_cfg_pp"));
}

#[test]
fn dual_guidance_with_the_same_prompt_twice_is_plain() {
    let args = map! {
        "model" => sd1(), "cond1" => positive(), "cond2" => positive(), "negative" => negative(),
        "cfg_conds" => 3.0, "cfg_cond2_negative" => 7.0, "style" => "regular",
    };
    let out = advanced(one("DualCFGGuider", args.clone()), sampler("euler"));
    assert!(distance(&out[0], &sampled(map! {})) < 1e-4);
    let mut nested = args;
    nested.insert("style".into(), "nested".into());
    let out = advanced(one("DualCFGGuider", nested), sampler("euler"));
    assert!(distance(&out[0], &sampled(map! {})) < 1e-4);
}

#[test]
fn both_forms_of_perpendicular_negatives_agree() {
    let empty_text = conditioning(text("e2e.empty", 77));
    let args = map! {
        "model" => sd1(), "positive" => positive(), "negative" => negative(), "empty_conditioning" => empty_text.clone(),
        "cfg" => 5.0, "neg_scale" => 0.7,
    };
    let guided = advanced(one("PerpNegGuider", args), sampler("euler"));
    let args = map! {"model" => sd1(), "empty_conditioning" => empty_text, "neg_scale" => 0.7};
    let model = one("PerpNeg", args);
    let patched = sampled(map! {"model" => model, "cfg" => 5.0});
    assert!(distance(&patched, &guided[0]) < 1e-4);
    assert!(distance(&patched, &sampled(map! {"cfg" => 5.0})) > 1e-3);
}

#[test]
fn two_halves_make_a_whole() {
    let half = |start: i64, end: i64, noise: &str, leftover: &str, latent: Value| {
        let args = map! {
            "model" => sd1(), "add_noise" => noise, "noise_seed" => 99, "steps" => 4, "cfg" => 7.0,
            "sampler_name" => "euler", "scheduler" => "normal", "positive" => positive(),
            "negative" => negative(), "latent_image" => latent, "start_at_step" => start, "end_at_step" => end,
            "return_with_leftover_noise" => leftover,
        };
        one("KSamplerAdvanced", args)
    };
    let first = half(0, 2, "enable", "enable", empty());
    let both = half(2, 10000, "disable", "disable", first.clone());
    assert!(distance(&samples(&both), &sampled(map! {})) < 1e-4);
    // A window after the end leaves the latent alone.
    let after = half(4, 10000, "enable", "disable", first.clone());
    assert_eq!(samples(&after).data(), samples(&first).data());
    // Without leftover noise, the same steps end clean.
    let clean = half(0, 2, "enable", "disable", empty());
    assert!(distance(&samples(&clean), &samples(&first)) > 1e-2);
}

#[test]
fn every_sampler_node_runs() {
    let nodes: [(&str, Map); 13] = [
        (
            "SamplerEulerAncestral",
            map! {"eta" => 0.5, "s_noise" => 1.0},
        ),
        (
            "SamplerEulerAncestralCFGPP",
            map! {"eta" => 0.5, "s_noise" => 1.0},
        ),
        ("SamplerLMS", map! {"order" => 3}),
        (
            "SamplerDPMPP_3M_SDE",
            map! {"eta" => 1.0, "s_noise" => 1.0, "noise_device" => "gpu"},
        ),
        (
            "SamplerDPMPP_2M_SDE",
            map! {"solver_type" => "heun", "eta" => 1.0, "s_noise" => 1.0, "noise_device" => "cpu"},
        ),
        (
            "SamplerDPMPP_SDE",
            map! {"eta" => 1.0, "s_noise" => 1.0, "r" => 0.4, "noise_device" => "cpu"},
        ),
        (
            "SamplerDPMPP_2S_Ancestral",
            map! {"eta" => 1.0, "s_noise" => 1.0},
        ),
        (
            "SamplerDPMAdaptative",
            map! {
                "order" => 2, "rtol" => 0.5, "atol" => 0.5, "h_init" => 0.5, "pcoeff" => 0.0, "icoeff" => 1.0,
                "dcoeff" => 0.0, "accept_safety" => 0.81, "eta" => 0.0, "s_noise" => 1.0,
            },
        ),
        (
            "SamplerER_SDE",
            map! {"solver_type" => "Reverse-time SDE", "max_stage" => 2, "eta" => 1.0, "s_noise" => 1.0},
        ),
        (
            "SamplerSEEDS2",
            map! {"solver_type" => "phi_2", "eta" => 1.0, "s_noise" => 1.0, "r" => 0.5},
        ),
        (
            "SamplerSASolver",
            map! {
                "model" => sd1(), "eta" => 1.0, "sde_start_percent" => 0.2, "sde_end_percent" => 0.8, "s_noise" => 1.0,
                "predictor_order" => 3, "corrector_order" => 4, "use_pece" => false, "simple_order_2" => true,
            },
        ),
        (
            "SamplerLCMUpscale",
            map! {"scale_ratio" => 1.5, "scale_steps" => -1, "upscale_method" => "bislerp"},
        ),
        ("SamplerEulerCFGpp", map! {"version" => "alternative"}),
    ];
    for (name, args) in nodes {
        let out = advanced(cfg_guider(2.0), one(name, args));
        assert!(out[0].data().iter().all(|v| v.is_finite()), "{name}");
        let side = if name == "SamplerLCMUpscale" { 12 } else { 8 };
        assert_eq!(out[0].shape(), [1, 4, side, side], "{name}");
    }
}

#[test]
fn items_with_an_index_get_the_noise_of_their_place() {
    let batch = sampled(
        map! {"steps" => 2, "latent_image" => latent(Tensor::zeros([3, 4, 8, 8]).unwrap())},
    );
    let picked = map! {
        "samples" => tensor(Tensor::zeros([1, 4, 8, 8]).unwrap()), "batch_index" => vec![2],
    };
    let picked = sampled(map! {"steps" => 2, "latent_image" => picked});
    assert!(distance(&picked, &batch.narrow(0, 2, 1).unwrap()) < 1e-4);
}

#[test]
fn shades_of_a_mask_open_one_after_the_other() {
    let start = synthetic::value("e2e.latent", &[1, 4, 8, 8], 3.0).unwrap();
    let shades = Tensor::from_fn([1, 8, 8], |i| (i % 8) as f32 / 7.0).unwrap();
    let run = |model: Value, mask: &Tensor| {
        let latent =
            map! {"samples" => tensor(start.clone()), "noise_mask" => tensor(mask.clone())};
        sampled(map! {"model" => model, "latent_image" => latent, "cfg" => 2.0})
    };
    let args = map! {"model" => sd1(), "strength" => 1.0};
    let differential = one("DifferentialDiffusion", args);
    let out = run(differential.clone(), &shades);
    assert!(distance(&out, &run(sd1().into(), &shades)) > 1e-3);
    // White is sampled as without the node.
    let white = Tensor::ones([1, 8, 8]).unwrap();
    assert_eq!(
        run(differential, &white).data(),
        run(sd1().into(), &white).data()
    );
    // And without the node, nothing happens where the mask is black.
    let out = run(sd1().into(), &Tensor::zeros([1, 8, 8]).unwrap());
    assert!(distance(&out, &start) < 1e-5);
}
