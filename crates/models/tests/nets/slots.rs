//! Networks whose weights are elsewhere than where they compute, or not in memory at all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fresco_models::denoise::hooks::Hooks;
use fresco_models::patch::{Change, Patch, PatchMode, PatchSet};
use fresco_models::sd::control::ControlNet;
use fresco_models::sd::unet::UNet;
use fresco_models::sd::{self, SdModel};
use fresco_models::vae::{Autoencoder, KlVae};
use fresco_models::vision::VisionEncoder;
use fresco_models::{LatentFormat, Lazy, ModelError, Network, UnitInfo, WeightStore};
use fresco_tensor::nn::Streamed;
use fresco_tensor::{Device, Dtype, Stored, Tensor, TensorError};

use crate::gold::{Gold, MemoryFile, config, store, switches, wave, waves};

/// The small UNet of SD1 in a file, its weights in f16.
fn unet_store(device: &Device) -> (Gold, Arc<WeightStore>) {
    let gold = Gold::open("unet_sd1_small");
    let weights = gold.weights().into_iter();
    let weights = weights.map(|(key, value)| (key, value.cast(Dtype::F16).unwrap()));
    let file = MemoryFile::new(weights.collect());
    let store = WeightStore::open(Arc::new(file), "", device.clone()).with_units(&sd::UNITS);
    (gold, store)
}

fn unet(gold: &Gold, store: &Arc<WeightStore>) -> UNet {
    UNet::new(store, &config(&gold.about["config"])).unwrap()
}

fn run(gold: &Gold, net: &UNet) -> Result<Tensor, ModelError> {
    let (x, t, context) = (gold.tensor("x"), gold.tensor("t"), gold.tensor("context"));
    let hooks = Hooks::default();
    net.forward(&x, t.data(), Some(&context), None, None, &hooks)
}

/// Bytes of the units that a store keeps on a device.
fn kept_on(store: &WeightStore, device: &Device) -> u64 {
    let units = store.units().into_iter();
    let there = units.filter(|unit| store.home(&unit.name).as_ref() == Some(device));
    there.map(|unit| unit.bytes).sum()
}

fn names(units: &[UnitInfo]) -> Vec<&str> {
    units.iter().map(|unit| unit.name.as_str()).collect()
}

/// The order in which parts come, each once.
fn parts<'a>(units: &[&'a str], depth: usize) -> Vec<&'a str> {
    let mut parts: Vec<&str> = units
        .iter()
        .map(|name| match name.match_indices('.').nth(depth - 1) {
            Some((at, _)) => &name[..at],
            None => name,
        })
        .collect();
    parts.dedup();
    parts
}

#[test]
fn the_units_of_a_unet_come_in_order() {
    let (gold, store) = unet_store(&Device::cpu());
    let units = store.units();
    let names = names(&units);
    assert_eq!(
        parts(&names, 1),
        [
            "time_embed",
            "input_blocks",
            "middle_block",
            "output_blocks",
            "out"
        ]
    );
    let blocks = parts(&names, 2);
    let inputs = config(&gold.about["config"]).input.len();
    for pair in blocks.windows(2) {
        let number = |name: &str| name.split('.').nth(1).unwrap().parse::<usize>().unwrap();
        let same = pair[0].split('.').next() == pair[1].split('.').next();
        assert!(!same || number(pair[0]) < number(pair[1]), "{pair:?}");
    }
    // One unit for each layer, and all that is in the file.
    let expected: BTreeSet<&str> = store
        .keys()
        .into_iter()
        .map(|key| key.rsplit_once('.').unwrap().0)
        .collect();
    assert_eq!(names.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(names.len(), expected.len());
    let elements: usize = gold.weights().values().map(Stored::len).sum();
    assert_eq!(store.total_bytes(), 2 * elements as u64);
    assert_eq!(store.read_bytes(), 0, "all without reading");
    for unit in &units {
        let block = unit.name.split('.').nth(1).and_then(|n| n.parse().ok());
        let expected = match unit.name.split('.').next().unwrap() {
            "input_blocks" => block,
            "middle_block" => Some(inputs as u32),
            "output_blocks" => block.map(|n: u32| n + inputs as u32 + 1),
            _ => None,
        };
        assert_eq!(unit.block, expected, "{}", unit.name);
        assert!(unit.castable && unit.biased && !unit.embedding && !unit.own);
        assert_eq!(store.home(&unit.name), None);
    }
    let xl = Gold::open("unet_sdxl_small").store();
    let units = xl.units();
    let first: Vec<&str> = units.iter().take(4).map(|u| u.name.as_str()).collect();
    assert_eq!(
        first,
        [
            "time_embed.0",
            "time_embed.2",
            "label_emb.0.0",
            "label_emb.0.2"
        ]
    );
}

#[test]
fn the_units_of_an_autoencoder_come_in_order() {
    let store = Gold::open("vae_kl_small").store();
    let units = store.units();
    let names = names(&units);
    assert_eq!(
        parts(&names, 2),
        [
            "encoder.conv_in",
            "encoder.down",
            "encoder.mid",
            "encoder.norm_out",
            "encoder.conv_out",
            "decoder.conv_in",
            "decoder.mid",
            "decoder.up",
            "decoder.norm_out",
            "decoder.conv_out",
            "quant_conv",
            "post_quant_conv"
        ]
    );
    KlVae::new(&store).unwrap();
    assert!(names.iter().all(|name| store.home(name).is_some()));
    assert_eq!(store.bytes(), store.total_bytes());
}

#[test]
fn the_units_of_a_vision_encoder() {
    let about = fresco_models::vision::VisionConfig {
        hidden: 32,
        layers: 12,
        heads: 4,
        inner: 64,
        act: fresco_tensor::nn::Act::Gelu,
        patch: 14,
        size: 56,
        projection: Some(16),
        siglip: false,
        scaled: false,
        gated: false,
    };
    let _only = switches();
    let weights = waves(about.weights().unwrap());
    let here = store(weights.clone());
    let device = Device::register_sim(7300, 1 << 20).unwrap();
    let units = here.units();
    let names = names(&units);
    let key = "vision_model.embeddings";
    assert_eq!(names[0], format!("{key}.class_embedding"));
    assert_eq!(names[1], format!("{key}.patch_embedding"));
    assert_eq!(names[2], format!("{key}.position_embedding"));
    assert_eq!(names[3], "vision_model.pre_layrnorm");
    assert_eq!(units[names.len() - 3].block, Some(11));
    assert_eq!(
        names[names.len() - 2..],
        ["vision_model.post_layernorm", "visual_projection"]
    );
    let kinds: Vec<_> = units[..4]
        .iter()
        .map(|unit| (unit.embedding, unit.biased, unit.castable))
        .collect();
    let (value, layer, table) = (
        (false, false, false),
        (false, true, true),
        (true, false, true),
    );
    assert_eq!(kinds, [value, layer, table, layer]);
    // The same pictures wherever the weights are.
    let picture = wave(&[1, 40, 60, 3], 0.017).map(|v| f32::midpoint(v, 1.0));
    let net = VisionEncoder::new(&here, &about).unwrap();
    let expected = net.encode(&picture, true).unwrap();
    assert_eq!(here.bytes(), here.total_bytes(), "all are in memory");
    let there = here.on(device.clone());
    assert!(there.is(&here) && there.device() == &device);
    let net = VisionEncoder::new(&there, &about).unwrap();
    for share in [0, 2, 1] {
        for (i, unit) in units.iter().enumerate() {
            if share > 0 && i % share == 0 {
                there.move_unit(&unit.name, &device).unwrap();
            }
        }
        assert_eq!(device.used(), kept_on(&here, &device));
        let found = net.encode(&picture, true).unwrap();
        assert_eq!(found.last, expected.last);
        assert_eq!(found.penultimate, expected.penultimate);
        assert_eq!(found.embeds, expected.embeds);
        assert!(found.last.device().is_cpu() && found.embeds.device().is_cpu());
    }
    assert_eq!(device.used(), here.total_bytes());
}

#[test]
fn a_device_of_a_third_of_the_size_gives_the_same() {
    let _only = switches();
    let cpu = Device::cpu();
    let (gold, store) = unet_store(&cpu);
    let expected = run(&gold, &unet(&gold, &store)).unwrap();
    let total = store.total_bytes();
    let device = Device::register_sim(7301, total / 3).unwrap();
    let there = store.on(device.clone());
    let net = unet(&gold, &there);
    assert_eq!(store.bytes(), total, "the layers are shared");
    let group = store.group();

    // All of it comes for its use.
    assert_eq!(run(&gold, &net).unwrap(), expected);
    net.rest();
    assert_eq!(device.used(), 0);
    let units = store.units();
    let first = group.stats();
    assert_eq!((first.uses, first.ahead), (units.len() as u64, 0));
    assert_eq!(first.bytes, total);

    // The same with copies made ahead.
    group.set_ahead(2);
    for pass in 0..3 {
        let before = group.stats();
        assert_eq!(run(&gold, &net).unwrap(), expected);
        let now = group.stats();
        let (uses, ahead) = (now.uses - before.uses, now.ahead - before.ahead);
        // Keys of the prompt are remembered after the first pass.
        assert!(uses > 100, "{uses}");
        match pass {
            0 => assert_eq!(ahead, 0),
            _ => assert!(ahead + 25 > uses, "{ahead} of {uses}"),
        }
    }
    net.rest();
    group.drop_ahead();
    assert_eq!(device.used(), 0);

    // A part of it stays.
    for unit in &units {
        if device.free().unwrap() > device.capacity().unwrap() * 2 / 3 {
            store.move_unit(&unit.name, &device).unwrap();
        }
    }
    let kept = kept_on(&store, &device);
    assert_eq!(device.used(), kept);
    assert!(kept > 0 && kept < total / 3);
    assert_eq!(run(&gold, &net).unwrap(), expected);
    net.rest();
    group.drop_ahead();
    assert_eq!(device.used(), kept);

    // It does not all fit.
    let refused = units
        .iter()
        .find_map(|unit| store.move_unit(&unit.name, &device).err());
    assert!(matches!(refused, Some(TensorError::DeviceFull { .. })));
    assert_eq!(device.used(), kept_on(&store, &device));
    // Full to the brim it cannot run, which is no more than an error.
    assert!(matches!(
        run(&gold, &net),
        Err(ModelError::Tensor(TensorError::DeviceFull { .. }))
    ));
    assert_eq!(device.used(), kept_on(&store, &device));
    for unit in &units {
        store.move_unit(&unit.name, &cpu).unwrap();
    }
    assert_eq!(device.used(), 0);
    assert_eq!(run(&gold, &net).unwrap(), expected);
    drop(net);
    group.drop_ahead();
    assert_eq!(device.used(), 0);
    assert!(device.peak() <= total / 3);
}

#[test]
fn weights_on_two_devices_give_the_same() {
    let _only = switches();
    let (gold, store) = unet_store(&Device::cpu());
    let expected = run(&gold, &unet(&gold, &store)).unwrap();
    let [a, b] = [7302, 7303].map(|n| Device::register_sim(n, 64 << 20).unwrap());
    for peer in [true, false] {
        b.set_peer_access(peer);
        let net = unet(&gold, &store.on(a.clone()));
        for (i, unit) in store.units().iter().enumerate() {
            let to = [a.clone(), b.clone(), Device::cpu()];
            store.move_unit(&unit.name, &to[i % 3]).unwrap();
        }
        assert_eq!(
            (a.used(), b.used()),
            (kept_on(&store, &a), kept_on(&store, &b))
        );
        assert!(a.used() > 0 && b.used() > 0);
        let before = (b.copies_to(&a), b.copies_to(&Device::cpu()));
        assert_eq!(run(&gold, &net).unwrap(), expected);
        let copied = b.copies_to(&a).bytes - before.0.bytes;
        let staged = b.copies_to(&Device::cpu()).bytes - before.1.bytes;
        let (direct, around) = if peer { (b.used(), 0) } else { (0, b.used()) };
        assert_eq!((copied, staged), (direct, around));
        drop(net);
        assert_eq!(a.used(), kept_on(&store, &a));
    }
    store.forget();
    assert_eq!((a.used(), b.used()), (0, 0));
}

#[test]
fn what_is_forgotten_is_read_again() {
    let _only = switches();
    let device = Device::register_sim(7304, 64 << 20).unwrap();
    let (gold, store) = unet_store(&device);
    let made = config(&gold.about["config"]);
    let model = SdModel::new(Arc::clone(&store), made, LatentFormat::scaled(0.18215)).unwrap();
    let total = store.total_bytes();
    assert!(!model.is_built() && store.bytes() == 0 && store.read_bytes() == 0);
    assert!(model.stores()[0].is(&store));
    model.build().unwrap();
    assert!(model.is_built());
    assert_eq!((store.bytes(), store.read_bytes()), (total, total));
    let place = || {
        for unit in store.units() {
            assert_eq!(store.home(&unit.name), Some(Device::cpu()));
            store.move_unit(&unit.name, &device).unwrap();
            assert_eq!(store.home(&unit.name), Some(device.clone()));
        }
    };
    place();
    let expected = run(&gold, &model.network().unwrap()).unwrap();
    assert!(device.used() > total, "keys of the prompt are remembered");
    model.rest();
    assert_eq!(device.used(), total);
    // The network is built again without reading.
    model.forget();
    assert!(!model.is_built());
    assert_eq!((device.used(), store.bytes()), (total, total));
    assert_eq!(run(&gold, &model.network().unwrap()).unwrap(), expected);
    assert_eq!(store.read_bytes(), total);
    // What a network holds is not lost, only no longer held by the store.
    store.forget();
    assert_eq!(store.bytes(), total);
    assert_eq!(store.home("out.2"), Some(device.clone()));
    model.forget();
    assert_eq!((device.used(), store.bytes()), (0, 0));
    assert_eq!(store.home("out.2"), None);
    store.move_unit("out.2", &device).unwrap();
    assert_eq!((device.used(), store.read_bytes()), (0, total));
    assert_eq!(run(&gold, &model.network().unwrap()).unwrap(), expected);
    assert_eq!(store.read_bytes(), 2 * total);
    model.rest();
    model.forget();
    store.forget();
    assert_eq!(device.used(), 0);
    // Built by two at once, every layer is there once.
    let unet = model.network().unwrap();
    let again = SdModel::open(store.on(Device::cpu()), model.config().clone()).unwrap();
    let other = again.network().unwrap();
    assert_eq!(store.read_bytes(), 3 * total);
    drop((unet, other));
}

/// A change of some weights.
fn lora(store: &WeightStore, keys: &[&str], strength: f64) -> PatchSet {
    PatchSet::default().with(keys.iter().map(|key| {
        let shape = store.shape(key).unwrap();
        let value = Tensor::from_fn(shape, |i| (i % 5) as f32 * 0.01).unwrap();
        let patch = Patch {
            change: Change::Diff {
                value: Stored::from(&value),
                pad: false,
            },
            strength,
            ..Patch::scaled(1.0)
        };
        ((*key).to_owned(), patch)
    }))
}

#[test]
fn l07_changes_of_a_network_in_memory_read_nothing() {
    let _only = switches();
    let cpu = Device::cpu();
    let device = Device::register_sim(7305, 64 << 20).unwrap();
    let (gold, store) = unet_store(&device);
    let base = unet(&gold, &store);
    let plain = run(&gold, &base).unwrap();
    base.rest();
    let read = store.read_bytes();
    for unit in store.units() {
        store.move_unit(&unit.name, &device).unwrap();
    }
    let total = store.total_bytes();
    let keys = ["out.2.weight", "time_embed.0.bias", "out.0.weight"];
    let own = ["time_embed.0", "out.0", "out.2"];
    let mut results = Vec::new();
    for (strength, mode) in [
        (1.0, PatchMode::Merged),
        (0.5, PatchMode::Merged),
        (1.0, PatchMode::Merged),
        (1.0, PatchMode::OnTheFly),
    ] {
        let set = lora(&store, &keys, strength).with_mode(mode);
        let patched = set.store(&store, "");
        assert!(patched.group().is(store.group()) && patched.base().unwrap().is(&store));
        let units = patched.units();
        let owned: Vec<&str> = units
            .iter()
            .filter(|unit| unit.own)
            .map(|unit| unit.name.as_str())
            .collect();
        match mode {
            PatchMode::Merged => assert_eq!(owned, own),
            // The large weight is made at every use.
            PatchMode::OnTheFly | PatchMode::Bypass => assert_eq!(owned, own[..2]),
        }
        assert_eq!(patched.total_bytes(), total);
        assert_eq!(patched.home("time_embed.0"), None);
        assert_eq!(patched.home("time_embed.2"), Some(device.clone()));
        let net = unet(&gold, &patched);
        let made: u64 = units.iter().filter(|u| u.own).map(|u| u.bytes).sum();
        assert_eq!(patched.bytes(), made);
        assert_eq!(patched.home("time_embed.0"), Some(cpu.clone()));
        // Its own units have places of their own, the others are the base's.
        patched.move_unit("time_embed.0", &device).unwrap();
        assert_eq!(store.home("time_embed.0"), Some(device.clone()));
        patched.move_unit("time_embed.2", &cpu).unwrap();
        assert_eq!(store.home("time_embed.2"), Some(cpu.clone()));
        patched.move_unit("time_embed.2", &device).unwrap();
        let bytes = |name: &str| units.iter().find(|u| u.name == name).unwrap().bytes;
        assert_eq!(device.used(), total + bytes("time_embed.0"));
        let out = run(&gold, &net).unwrap();
        assert_ne!(out, plain);
        results.push(out);
        // A view for another device has the same layers.
        let here = patched.on(cpu.clone());
        assert_eq!(
            run(&gold, &unet(&gold, &here)).unwrap(),
            results[results.len() - 1]
        );
        assert!(set.store(&store.on(cpu.clone()), "").is(&patched));
        assert_eq!(set.store(&store.on(cpu.clone()), "").device(), &cpu);
        assert_eq!(patched.bytes(), made);
        drop(here);
        // Weights that are changed at every use stay while a network uses them.
        store.forget();
        assert_eq!(run(&gold, &net).unwrap(), results[results.len() - 1]);
        assert_eq!(store.read_bytes(), read);
        drop(net);
        patched.forget();
        assert_eq!((patched.bytes(), device.used()), (0, total));
        assert_eq!(store.bytes(), total);
    }
    assert_eq!(results[0], results[2]);
    // What is made for one use is not rounded to the format of the file.
    let pairs = results[0].data().iter().zip(results[3].data());
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 0.01, "{apart}");
    assert_ne!(results[0], results[1]);
    assert_eq!((store.read_bytes(), read), (read, total));
    assert_eq!(run(&gold, &base).unwrap(), plain);
}

/// What layers give back is what was in the file.
#[test]
fn l03_values_of_layers_are_those_of_the_file() {
    let gold = Gold::open("unet_sd1_small");
    for dtype in [
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F8E4M3,
        Dtype::F32,
        Dtype::F64,
    ] {
        let weights: std::collections::BTreeMap<String, Stored> = gold
            .weights()
            .into_iter()
            .map(|(key, value)| {
                // F64 as the file of somebody else has it: not what f32 can say.
                let value = if dtype == Dtype::F64 {
                    let plain = value.to_f32().unwrap();
                    let exact = |v: &f32| (f64::from(*v) + 1e-12).to_le_bytes();
                    let bytes = plain.data().iter().flat_map(exact);
                    Stored::new(dtype, value.shape(), bytes.collect()).unwrap()
                } else {
                    value.cast(dtype).unwrap()
                };
                (key, value)
            })
            .collect();
        let file = Arc::new(MemoryFile::new(weights.clone()));
        let store = WeightStore::open(file, "", Device::cpu());
        let _net = unet(&gold, &store);
        let read = store.read_bytes();
        assert_eq!(
            (store.bytes(), read),
            (store.total_bytes(), store.total_bytes())
        );
        for (key, value) in &weights {
            assert_eq!(store.raw(key).unwrap(), *value, "{key}");
        }
        assert_eq!(store.read_bytes(), read, "{dtype:?}");
    }
}

#[test]
fn other_networks_stream_too() {
    let _only = switches();
    let go = || Ok(());
    let gold = Gold::open("vae_kl_small");
    let store = gold.store();
    let device = Device::register_sim(7306, 4 << 20).unwrap();
    let here = KlVae::new(&store).unwrap();
    let there = KlVae::new(&store.on(device.clone())).unwrap();
    let z = gold.tensor("z");
    assert_eq!(
        there.decode(&z, &go).unwrap(),
        here.decode(&z, &go).unwrap()
    );
    let pixels = gold.tensor("pixels");
    store.group().set_ahead(3);
    for _ in 0..2 {
        assert_eq!(
            there.encode(&pixels, &go).unwrap(),
            here.encode(&pixels, &go).unwrap()
        );
    }
    assert!(store.group().stats().ahead > 10);
    store.group().set_ahead(0);
    assert_eq!(device.used(), 0);
    let gold = Gold::open("controlnet_small");
    let store = gold.store();
    let net = ControlNet::new(&store.on(device.clone())).unwrap();
    assert_eq!(store.bytes(), store.total_bytes());
    let units = store.units();
    assert_eq!(
        parts(&names(&units), 1),
        [
            "time_embed",
            "input_blocks",
            "zero_convs",
            "input_hint_block",
            "middle_block",
            "middle_block_out"
        ]
    );
    assert_eq!(net.see(&gold.tensor("hint")).unwrap().device(), device);
}

#[test]
fn lazy_networks_are_built_once_and_forgotten() {
    static RESTED: AtomicUsize = AtomicUsize::new(0);
    let store = Gold::open("vae_kl_small").store();
    let built = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&built);
    let weights = Arc::clone(&store);
    let lazy = Lazy::new(
        vec![Arc::clone(&store)],
        Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            KlVae::new(&weights)
        }),
    );
    assert!(!lazy.is_built() && lazy.built().is_none());
    let first = lazy.get().unwrap();
    lazy.build().unwrap();
    assert!(Arc::ptr_eq(&first, &lazy.get().unwrap()));
    assert_eq!(built.load(Ordering::Relaxed), 1);
    let network: &dyn Network = &lazy;
    assert!(network.is_built() && network.stores()[0].is(&store));
    network.forget();
    store.forget();
    assert!(!lazy.is_built());
    assert_eq!(store.bytes(), store.total_bytes(), "somebody uses it still");
    drop(first);
    assert_eq!(store.bytes(), 0);
    assert_eq!(store.group().stats(), Streamed::default());
    lazy.get().unwrap();
    assert_eq!(built.load(Ordering::Relaxed), 2);
    // A network that remembers something can be told to forget that only.
    let lazy = lazy.resting(|_| {
        RESTED.fetch_add(1, Ordering::Relaxed);
    });
    Network::rest(&lazy);
    lazy.forget();
    Network::rest(&lazy);
    assert_eq!(RESTED.load(Ordering::Relaxed), 1);
    // What cannot be built says so each time.
    let broken: Lazy<KlVae> = Lazy::new(
        Vec::new(),
        Box::new(|| Err(ModelError::invalid("test", "no"))),
    );
    assert!(broken.get().is_err() && broken.build().is_err() && !broken.is_built());
}
