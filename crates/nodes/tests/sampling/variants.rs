//! Networks with further inputs, other families, other numbers of threads.

use fresco_graph::{Value, map};
use fresco_models::denoise::{Cond, EncodeArgs};
use fresco_models::sd::SdModel;
use fresco_models::sd::unet::{Heads, UNetConfig};
use fresco_models::{LatentFormat, latent_format};
use fresco_nodes::types::tensor;
use fresco_tensor::{Device, Tensor, synthetic};

use crate::harness::*;

#[test]
fn a_small_sdxl() {
    let model = made(
        "unet_sdxl_small",
        4,
        Heads::Width(16),
        latent_format::SDXL.scale,
    );
    let prompt = |name: &str, pooled: &str| -> Value {
        let tokens = synthetic::value(name, &[1, 77, 96], 1.5).unwrap();
        let pooled = synthetic::value(pooled, &[1, 64], 1.0).unwrap();
        vec![entry(tokens, map! {"pooled_output" => tensor(pooled)})].into()
    };
    let out = sampled(map! {
        "model" => model, "positive" => prompt("e2exl.pos", "e2exl.pooled"),
        "negative" => prompt("e2exl.neg", "e2exl.npooled"),
    });
    let error = distance(&out, &golden("e2e_sdxl_small", "euler_normal_4_cfg7"));
    assert!(error < 1e-4, "{error:.1e}");
}

#[test]
fn sizes_go_into_sdxl() {
    let store = store("unet_sdxl_small", 4);
    let config = UNetConfig::detect(&store).unwrap();
    let model = SdModel::new(store, config, latent_format::SDXL).unwrap();
    let mut cond = Cond::new(Tensor::zeros([1, 77, 96]).unwrap());
    cond.pooled = Some(synthetic::value("e2exl.pooled", &[1, 64], 1.0).unwrap());
    for (key, value) in [
        ("crop_h", 5.0),
        ("crop_w", 3.0),
        ("target_height", 896.0),
        ("target_width", 640.0),
    ] {
        cond.numbers.insert(key.into(), value);
    }
    let noise = Tensor::zeros([1, 4, 8, 8]).unwrap();
    let args = EncodeArgs {
        cond: &cond,
        noise: &noise,
        latent: None,
        denoise_mask: None,
        width: 512.0,
        height: 768.0,
        prompt_type: "positive",
    };
    let made = model.encode(&args).unwrap();
    let error = distance(
        made["y"].tensor().unwrap(),
        &golden("e2e_sdxl_small", "adm_512x768"),
    );
    assert!(error < 1e-5, "{error:.1e}");
}

#[test]
fn inpainting_networks_see_mask_and_picture() {
    let model = made("unet_sd1_small", 9, Heads::Count(4), 0.18215);
    let start = synthetic::value("e2e.latent", &[2, 4, 8, 8], 3.0).unwrap();
    let run = |positive: Value, latent: Value| {
        sampled(
            map! {"model" => model.clone(), "positive" => positive, "latent_image" => latent, "steps" => 2},
        )
    };
    let blank = run(positive(), latent(start.clone()));
    let masked = |fill: f32| {
        let mask = Tensor::full([1, 64, 64], fill).unwrap();
        let picture = synthetic::value("e2e.picture", &[1, 4, 8, 8], 3.0).unwrap();
        let options =
            map! {"concat_mask" => tensor(mask), "concat_latent_image" => tensor(picture)};
        let positive: Value = vec![entry(text("e2e.pos", 77), options)].into();
        run(positive, latent(start.clone()))
    };
    let (open, closed) = (masked(1.0), masked(0.0));
    assert!(distance(&open, &blank) > 1e-3 && distance(&open, &closed) > 1e-3);
    // A mask of shades is rounded.
    assert_eq!(masked(0.7).data(), open.data());
    let noise_mask = map! {"samples" => tensor(start.clone()), "noise_mask" => tensor(Tensor::ones([1, 16, 16]).unwrap())};
    assert!(distance(&run(positive(), noise_mask.into()), &blank) > 1e-3);
}

#[test]
fn editing_networks_see_the_picture() {
    let model = made("unet_sd1_small", 8, Heads::Count(4), 0.18215);
    let run = |size: usize| {
        let picture = synthetic::value("e2e.picture", &[1, 4, size, size], 3.0).unwrap();
        let options = map! {"concat_latent_image" => tensor(picture)};
        let positive: Value = vec![entry(text("e2e.pos", 77), options)].into();
        sampled(map! {"model" => model.clone(), "positive" => positive, "steps" => 2})
    };
    let without = sampled(map! {"model" => model.clone(), "steps" => 2});
    assert!(distance(&run(8), &without) > 1e-3);
    assert!(distance(&run(16), &run(8)) > 1e-3);
}

#[test]
fn odd_sizes_and_batches() {
    for shape in [[1, 4, 7, 9], [3, 4, 5, 8], [1, 4, 1, 1]] {
        let start = synthetic::value("e2e.odd", &shape, 3.0).unwrap();
        let out = sampled(map! {"latent_image" => latent(start), "steps" => 2});
        assert_eq!(out.shape(), shape);
        assert!(out.data().iter().all(|v| v.is_finite()));
    }
}

#[test]
fn threads_do_not_matter() {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let model = made(
                "unet_sd1_small",
                4,
                Heads::Count(4),
                LatentFormat::scaled(0.18215).scale,
            );
            sampled(map! {"model" => model, "sampler_name" => "dpmpp_2m_sde"})
        })
    };
    assert_eq!(run(1).data(), run(3).data());
}

#[test]
fn other_devices_give_the_same() {
    let device = Device::register_sim(70, 1 << 30).unwrap();
    let on = |device: &Device| -> Value {
        let store = store_on("unet_sd1_small", 4, device.clone());
        let mut value: Value = model(store, Heads::Count(4), 0.18215).into();
        for (name, args) in [
            (
                "SelfAttentionGuidance",
                map! {"scale" => 0.5, "blur_sigma" => 2.0},
            ),
            ("PerturbedAttentionGuidance", map! {"scale" => 1.0}),
            ("TomePatchModel", map! {"ratio" => 0.3}),
            (
                "HyperTile",
                map! {"tile_size" => 32, "swap_size" => 2, "max_depth" => 1, "scale_depth" => false},
            ),
            (
                "FreeU",
                map! {"b1" => 1.1, "b2" => 1.2, "s1" => 0.9, "s2" => 0.2},
            ),
        ] {
            let mut args = args;
            args.insert("model".into(), value);
            value = call(name, args).unwrap().remove(0);
        }
        value
    };
    let here = sampled(map! {"model" => on(&Device::cpu()), "steps" => 2});
    let there = sampled(map! {"model" => on(&device), "steps" => 2});
    assert_eq!(here.data(), there.data());
    assert!(device.peak() > 0 && device.copies().into.bytes > 0);
}

#[test]
fn a_full_device_is_a_clear_error() {
    let device = Device::register_sim(71, 1 << 16).unwrap();
    let store = store_on("unet_sd1_small", 4, device);
    let small = model(store, Heads::Count(4), 0.18215);
    let error = call("KSampler", ksampler(map! {"model" => small})).unwrap_err();
    assert_eq!(error.kind(), "torch.OutOfMemoryError", "{error:?}");
    assert!(
        error.message().contains("sim:71 is full"),
        "{}",
        error.message()
    );
}
