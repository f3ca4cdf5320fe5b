//! Control nets and adapters.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::WeightStore;
use fresco_models::control::{ControlNetwork, ControlStore, SeenHint};
use fresco_models::denoise::hooks::{BlockKind, ControlFeatures, Hooks};
use fresco_models::sd::control::{ControlNet, T2iAdapter};
use fresco_models::sd::unet::{UNet, UNetConfig};
use fresco_models::taesd::Taesd;
use fresco_models::vae::Autoencoder;
use fresco_tensor::{Axes, Device, Stored, Tensor, WeightFile};

use crate::gold::{
    Gold, MemoryFile, assert_near, assert_summary, config, json, store, wave, waves,
};

fn features(net: &ControlNet, gold: &Gold) -> ControlFeatures {
    let seen = net.see(&gold.tensor("hint")).unwrap();
    let (x, t, context) = (gold.tensor("x"), gold.tensor("t"), gold.tensor("context"));
    net.forward(&x, &seen, t.data(), Some(&context), None)
        .unwrap()
}

/// How many maps are for input, middle and output blocks.
fn lengths(features: &ControlFeatures) -> [usize; 3] {
    [BlockKind::INPUT, BlockKind::MIDDLE, BlockKind::OUTPUT].map(|kind| features.of(kind).len())
}

fn assert_golden(found: &ControlFeatures, gold: &Gold) {
    assert_eq!(lengths(found), [0, 1, 6]);
    for (n, features) in found.of(BlockKind::OUTPUT).iter().enumerate() {
        let expected = gold.tensor(&format!("output/{n}"));
        assert_near(
            features.as_ref().unwrap(),
            &expected,
            &format!("output {n}"),
        );
    }
    let middle = found.of(BlockKind::MIDDLE)[0].as_ref().unwrap();
    assert_near(middle, &gold.tensor("middle/0"), "middle");
}

#[test]
fn a_control_net_steers_a_unet() {
    let gold = Gold::open("controlnet_small");
    let store = gold.store();
    let made = config(&gold.about["config"]);
    let found = UNetConfig {
        heads: made.heads,
        ..UNetConfig::encoder(&store).unwrap()
    };
    assert_eq!(found, made);
    let net = ControlNet::with(&store, found).unwrap();
    let control = features(&net, &gold);
    assert_golden(&control, &gold);
    let control = control.scaled(0.5, false).unwrap();
    let base = Gold::open("unet_sd1_small");
    let unet = UNet::new(&base.store(), &config(&base.about["config"])).unwrap();
    let (x, t, context) = (gold.tensor("x"), gold.tensor("t"), gold.tensor("context"));
    let run = |control: Option<&ControlFeatures>| {
        let hooks = Hooks::default();
        unet.forward(&x, t.data(), Some(&context), None, control, &hooks)
            .unwrap()
    };
    assert_near(&run(None), &gold.tensor("unet_out_without"), "without");
    let steered = run(Some(&control));
    assert_near(&steered, &gold.tensor("unet_out_with_control_x0.5"), "with");
    // Two halves in a row are the whole.
    let half = |f: &ControlFeatures| f.clone().scaled(0.5, false).unwrap();
    let twice = half(&control).joined(half(&control)).unwrap();
    assert_near(&run(Some(&twice)), &steered, "joined");
}

#[test]
fn waves_through_a_control_net() {
    let about = &json("nets")["controlnet"];
    let config = config(&about["config"]);
    let config = UNetConfig {
        output: Vec::new(),
        ..config
    };
    let made = {
        let store = store(waves(ControlNet::weights(&config, 3).unwrap()));
        let net = ControlNet::with(&store, config).unwrap();
        let seen = net.see(&wave(&[2, 3, 64, 64], 0.013)).unwrap();
        let x = wave(&[2, 4, 8, 8], 0.11);
        let context = wave(&[2, 7, 48], 0.07);
        let y = wave(&[2, 20], 0.3);
        net.forward(&x, &seen, &[10.0, 500.0], Some(&context), Some(&y))
    };
    let made = made.unwrap();
    let out = &about["out"];
    assert_summary(
        made.of(BlockKind::OUTPUT)[0].as_ref().unwrap(),
        &out["output0"],
        "first",
    );
    let last = made.of(BlockKind::OUTPUT).last().unwrap().as_ref().unwrap();
    assert_summary(last, &out["output_last"], "last");
    assert_summary(
        made.of(BlockKind::MIDDLE)[0].as_ref().unwrap(),
        &out["middle"],
        "middle",
    );
}

#[test]
fn waves_through_an_adapter() {
    let about = &json("nets")["t2i_adapter"];
    let mut layout: Vec<(String, Vec<usize>)> = Vec::new();
    let mut conv = |key: &str, out: usize, input: usize, side: usize| {
        layout.push((format!("{key}.weight"), vec![out, input, side, side]));
        layout.push((format!("{key}.bias"), vec![out]));
    };
    conv("conv_in", 8, 192, 3);
    let mut at = 8;
    for (n, out) in [8, 8, 16, 16, 32, 32, 32, 32].into_iter().enumerate() {
        if out != at {
            conv(&format!("body.{n}.in_conv"), out, at, 1);
        }
        conv(&format!("body.{n}.block1"), out, out, 3);
        conv(&format!("body.{n}.block2"), out, out, 1);
        at = out;
    }
    let weights = waves(layout);
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights.clone()));
    let opened = ControlStore::find(&file, &Device::cpu()).and_then(|found| found.build());
    let hint = wave(&[1, 3, 64, 64], 0.013);
    let seen = opened.and_then(|net| net.see(&hint, &[])).unwrap();
    assert!(matches!(seen, SeenHint::Features(_)), "of an adapter");
    let made = {
        let net = T2iAdapter::new(&store(weights)).unwrap();
        assert_eq!((net.unshuffle(), net.hint_channels()), (8, 3));
        net.forward(&wave(&[1, 3, 64, 64], 0.013)).unwrap()
    };
    assert_eq!(lengths(&made), [12, 0, 0]);
    for (slot, features) in made.of(BlockKind::INPUT).iter().enumerate() {
        let expected = &about["out"][format!("slot{slot}")];
        match features {
            Some(features) => assert_summary(features, expected, &format!("slot {slot}")),
            None => assert!(expected.is_null()),
        }
    }
}

fn find(weights: BTreeMap<String, Stored>) -> Result<ControlStore, String> {
    let file: Arc<dyn WeightFile> = Arc::new(MemoryFile::new(weights));
    ControlStore::find(&file, &Device::cpu()).map_err(|e| e.to_string())
}

fn open(weights: BTreeMap<String, Stored>) -> Result<Box<dyn ControlNetwork>, String> {
    find(weights)?.build().map_err(|e| e.to_string())
}

/// The names of the published nets that carry a prefix.
#[test]
fn files_of_several_kinds() {
    let gold = Gold::open("controlnet_small");
    let prefixed = gold.weights().into_iter();
    let prefixed = prefixed
        .map(|(k, v)| (format!("control_model.{k}"), v))
        .collect();
    let net = find(prefixed).unwrap();
    assert_eq!(net.build().unwrap().hint_channels(), 3);
    let net = ControlNet::new(&net.store).unwrap();
    assert_eq!((net.config().input.len(), net.hint_channels()), (6, 3));
    let one = |key: &str| {
        let zeros = Stored::from(&Tensor::zeros([2, 2]).unwrap());
        open([(key.to_owned(), zeros)].into()).err().unwrap()
    };
    assert!(one("lora_controlnet").contains("Control-LoRA"));
    assert!(one("controlnet_blocks.0.weight").contains("of another kind"));
    assert!(one("x.lora_down.weight").contains("a LoRA, not a control net"));
    assert!(one("something").contains("not a control net"));
    let mut weights = gold.weights();
    weights.remove("zero_convs.3.0.bias");
    assert!(open(weights).err().unwrap().contains("zero_convs.3.0.bias"));
    let mut weights = gold.weights();
    let odd = Stored::from(&Tensor::zeros([7, 3, 3, 3]).unwrap());
    weights.insert("input_hint_block.0.weight".to_owned(), odd);
    assert!(open(weights).err().unwrap().contains("input_hint_block."));
}

#[test]
fn diffusers_names() {
    let gold = Gold::open("controlnet_small");
    let rename = |key: &str| -> String {
        if let Some(rest) = key.strip_prefix("zero_convs.") {
            return format!("controlnet_down_blocks.{}", rest.replacen(".0.", ".", 1));
        }
        if let Some(rest) = key.strip_prefix("middle_block_out.0.") {
            return format!("controlnet_mid_block.{rest}");
        }
        if let Some(rest) = key.strip_prefix("input_hint_block.") {
            let (place, last) = rest.split_once('.').unwrap();
            let part = match place.parse::<usize>().unwrap() {
                0 => "conv_in".to_owned(),
                14 => "conv_out".to_owned(),
                n => format!("blocks.{}", n / 2 - 1),
            };
            return format!("controlnet_cond_embedding.{part}.{last}");
        }
        crate::detect::diffusers_name(key)
    };
    let weights = gold.weights().into_iter();
    let weights = weights.map(|(k, v)| (rename(&k), v)).collect();
    let net = ControlNet::new(&find(weights).unwrap().store).unwrap();
    // The file does not say how many heads; the published nets have eight, this one four.
    let eight = ControlNet::new(&gold.store()).unwrap();
    let expected = features(&eight, &gold);
    let found = features(&net, &gold);
    let (found, expected) = (found.of(BlockKind::OUTPUT), expected.of(BlockKind::OUTPUT));
    for (a, b) in found.iter().zip(expected) {
        assert_near(a.as_ref().unwrap(), b.as_ref().unwrap(), "diffusers");
    }
}

#[test]
fn bad_hints_are_errors() {
    let gold = Gold::open("controlnet_small");
    let net = ControlNet::new(&gold.store()).unwrap();
    let zeros = |shape: &[usize]| Tensor::zeros(shape).unwrap();
    for shape in [
        &[1, 4, 64, 64][..],
        &[0, 3, 64, 64],
        &[1, 3, 0, 8],
        &[3, 64, 64],
    ] {
        assert!(net.see(&zeros(shape)).is_err());
    }
    let context = gold.tensor("context");
    let seen = net.see(&zeros(&[1, 3, 32, 32])).unwrap();
    let x = gold.tensor("x");
    assert!(
        net.forward(&x, &seen, &[1.0], Some(&context), None)
            .is_err()
    );
    let narrow = zeros(&[1, 77, 63]);
    let seen = net.see(&gold.tensor("hint")).unwrap();
    assert!(net.forward(&x, &seen, &[1.0], Some(&narrow), None).is_err());
}

#[test]
fn pooling_keeps_the_mean() {
    let control = ControlFeatures::default()
        .with(BlockKind::INPUT, vec![None])
        .with(BlockKind::OUTPUT, vec![Some(wave(&[2, 3, 4, 5], 0.3))]);
    let pooled = control.clone().scaled(2.0, true).unwrap();
    let (before, after) = (
        control.of(BlockKind::OUTPUT)[0].as_ref().unwrap(),
        pooled.of(BlockKind::OUTPUT)[0].as_ref().unwrap(),
    );
    assert_eq!(after.shape(), before.shape());
    let mean = before.mean(&[2, 3], Axes::Keep).unwrap();
    for n in 0..6 {
        let expected = mean.data()[n] * 2.0;
        assert!(
            after.data()[n * 20..][..20]
                .iter()
                .all(|v| (v - expected).abs() < 1e-6)
        );
    }
    // Lists of another length, and gaps.
    let list = vec![Some(wave(&[1, 1, 2, 2], 0.1)), None];
    let other = ControlFeatures::default()
        .with(BlockKind::INPUT, list)
        .with(BlockKind::SINGLE, vec![None]);
    let joined = control.joined(other).unwrap();
    assert_eq!(lengths(&joined), [2, 0, 1]);
    assert_eq!(joined.of(BlockKind::SINGLE).len(), 1);
    let input = joined.of(BlockKind::INPUT);
    assert!(input[0].is_some() && input[1].is_none());
}

#[test]
fn networks_run_where_their_weights_are() {
    let _only = crate::gold::switches();
    let device = Device::register_sim(7200, 256 << 20).unwrap();
    let there = |gold: &Gold| WeightStore::from_stored("test", gold.weights(), device.clone());
    let gold = Gold::open("controlnet_small");
    let here = features(&ControlNet::new(&gold.store()).unwrap(), &gold);
    let far = features(&ControlNet::new(&there(&gold)).unwrap(), &gold);
    let maps = here.of(BlockKind::OUTPUT).iter();
    for (a, b) in maps.zip(far.of(BlockKind::OUTPUT)) {
        assert_eq!(a, b);
    }
    // Features of one place steer a network of another.
    let base = Gold::open("unet_sd1_small");
    let unet = UNet::new(&there(&base), &config(&base.about["config"])).unwrap();
    let (x, t, context) = (gold.tensor("x"), gold.tensor("t"), gold.tensor("context"));
    let hooks = Hooks::default();
    let run = |control: &ControlFeatures| {
        let out = unet.forward(&x, t.data(), Some(&context), None, Some(control), &hooks);
        out.unwrap()
    };
    assert_eq!(run(&here), run(&far.scaled(1.0, false).unwrap()));
    let small = Gold::open("taesd_4ch");
    let net = Taesd::combined(&there(&small)).unwrap();
    let decoded = net.decode(&small.tensor("z"), &|| Ok(())).unwrap();
    assert_near(&decoded, &small.tensor("decoded"), "taesd");
    assert_eq!(decoded.device(), Device::cpu());
    assert!(device.peak() > 0);
}
