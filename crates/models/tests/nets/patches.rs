//! A whole network with a LoRA: the ways of applying it, what a change of its strength costs, and merging that fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fresco_models::denoise::hooks::Hooks;
use fresco_models::lora::{LoraFile, NameMap, load};
use fresco_models::patch::{PatchMode, PatchSet};
use fresco_models::sd::unet::UNet;
use fresco_models::{ModelError, WeightStore};
use fresco_tensor::{
    Device, Dtype, Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic,
};

use crate::gold::{Gold, MemoryFile, config, switches};

/// The small UNet of SD1.
fn weights(gold: &Gold, dtype: Dtype) -> BTreeMap<String, Stored> {
    let weights = gold.weights().into_iter();
    let weights = weights.map(|(key, value)| (key, value.cast(dtype).unwrap()));
    weights.collect()
}

fn unet(gold: &Gold, store: &Arc<WeightStore>) -> Result<UNet, ModelError> {
    UNet::new(store, &config(&gold.about["config"]))
}

fn run(gold: &Gold, net: &UNet) -> Tensor {
    let (x, t, context) = (gold.tensor("x"), gold.tensor("t"), gold.tensor("context"));
    let hooks = Hooks::default();
    net.forward(&x, t.data(), Some(&context), None, None, &hooks)
        .unwrap()
}

/// A LoRA for all attention, the feed-forward parts and the convolutions of the network.
fn lora(store: &WeightStore) -> (LoraFile, NameMap, usize) {
    let mut tensors = BTreeMap::new();
    let keys = store.keys();
    let keys: Vec<(&str, &[usize])> = keys
        .into_iter()
        .map(|key| (key, store.shape(key).unwrap()))
        .collect();
    let mut count = 0;
    for (key, shape) in &keys {
        let Some(path) = key.strip_suffix(".weight") else {
            continue;
        };
        let (up, down): (Vec<usize>, Vec<usize>) = match **shape {
            [out, input] => (vec![out, 2], vec![2, input]),
            [out, input, h, w] => (vec![out, 2, 1, 1], vec![2, input, h, w]),
            _ => continue,
        };
        for (part, shape) in [("lora_up", up), ("lora_down", down)] {
            let name = format!("lora_unet_{}.{part}.weight", path.replace('.', "_"));
            let value = synthetic::value(&name, &shape, 0.05).unwrap();
            tensors.insert(name, Stored::from_f32(&value, Dtype::F16).unwrap());
        }
        count += 1;
    }
    let file = LoraFile::new(Arc::new(MemoryFile::new(tensors)), 7).unwrap();
    (file, NameMap::for_model(&keys), count)
}

fn set(store: &WeightStore, strength: f64, mode: PatchMode) -> PatchSet {
    let (file, names, _) = lora(store);
    let loaded = load(&file, &names).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    PatchSet::default()
        .with(loaded.patches(strength, |_| true))
        .with_mode(mode)
}

const PREFIX: &str = "diffusion_model.";

fn apart(a: &Tensor, b: &Tensor) -> f32 {
    let pairs = a.data().iter().zip(b.data());
    pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn l05_a_network_merged_on_the_fly_and_with_bypass() {
    let _only = switches();
    let gold = Gold::open("unet_sd1_small");
    for (dtype, most) in [(Dtype::F32, 1e-3), (Dtype::F16, 2e-2)] {
        let base = WeightStore::from_stored("test", weights(&gold, dtype), Device::cpu());
        let plain = run(&gold, &unet(&gold, &base).unwrap());
        let count = lora(&base).2;
        let mut results = Vec::new();
        for (mode, counts) in [
            (PatchMode::Merged, (0, 0)),
            (PatchMode::OnTheFly, (count, 0)),
            (PatchMode::Bypass, (0, count)),
        ] {
            let set = set(&base, 1.0, mode);
            let store = set.store(&base, PREFIX);
            let net = unet(&gold, &store).unwrap();
            results.push(run(&gold, &net));
            assert_eq!((store.on_the_fly_units(), store.bypassed_units()), counts);
            let own: u64 = store
                .units()
                .iter()
                .filter(|u| u.own)
                .map(|u| u.bytes)
                .sum();
            assert_eq!(store.bytes(), own);
            assert_eq!(own == 0, mode != PatchMode::Merged);
        }
        assert!(apart(&results[0], &plain) > 0.1);
        for other in &results[1..] {
            let far = apart(other, &results[0]);
            assert!(far < most, "{dtype:?}: {far}");
        }
    }
}

/// Another strength costs the bytes of what it changes and no reading; the first strength again gives the first result.
#[test]
fn l07_strength_one_half_and_one_again() {
    let _only = switches();
    let device = Device::register_sim(7321, 64 << 20).unwrap();
    let gold = Gold::open("unet_sd1_small");
    let file = Arc::new(MemoryFile::new(weights(&gold, Dtype::F16)));
    let base = WeightStore::open(file, "", device.clone());
    let _net = unet(&gold, &base).unwrap();
    for unit in base.units() {
        base.move_unit(&unit.name, &device).unwrap();
    }
    let read = base.read_bytes();
    let mut results = Vec::new();
    for strength in [1.0, 0.5, 1.0] {
        let set = set(&base, strength, PatchMode::Merged);
        let store = set.store(&base, PREFIX);
        let net = unet(&gold, &store).unwrap();
        let before = device.copies().into.bytes;
        let mut own = 0;
        for unit in store.units() {
            store.move_unit(&unit.name, &device).unwrap();
            own += if unit.own { unit.bytes } else { 0 };
        }
        let uploaded = device.copies().into.bytes - before;
        assert!(uploaded <= own && own < base.total_bytes() && own > 0);
        results.push(run(&gold, &net));
        net.rest();
        drop(net);
        store.forget();
        assert_eq!(device.used(), base.total_bytes());
    }
    assert_eq!(results[0], results[2]);
    assert_ne!(results[0], results[1]);
    assert_eq!(base.read_bytes(), read);
}

/// A file that cannot be read any more after some tensors.
struct Failing {
    file: MemoryFile,
    left: AtomicUsize,
}

impl WeightFile for Failing {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<String> {
        self.file.names()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.file.info(name)
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 {
            return self.file.read("gone");
        }
        self.file.read(name)
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// Merging that fails leaves nothing behind, and the next load gives what it would have given.
#[test]
fn l10_an_error_while_merging_leaves_nothing_behind() {
    let _only = switches();
    let device = Device::register_sim(7322, 64 << 20).unwrap();
    let gold = Gold::open("unet_sd1_small");
    let all = weights(&gold, Dtype::F16);
    let expected = {
        let base = WeightStore::from_stored("test", all.clone(), Device::cpu());
        let set = set(&base, 0.7, PatchMode::Merged);
        run(&gold, &unet(&gold, &set.store(&base, PREFIX)).unwrap())
    };
    let many = all.len();
    for left in [0, many / 3, many - 1] {
        let file = Arc::new(Failing {
            file: MemoryFile::new(all.clone()),
            left: AtomicUsize::new(left),
        });
        let base = WeightStore::open(Arc::clone(&file) as Arc<dyn WeightFile>, "", device.clone());
        let set = set(&base, 0.7, PatchMode::Merged);
        let store = set.store(&base, PREFIX);
        assert!(unet(&gold, &store).is_err());
        for store in [&store, &base] {
            for unit in store.units() {
                store.move_unit(&unit.name, &device).unwrap();
            }
            store.forget();
        }
        assert_eq!((store.bytes(), base.bytes(), device.used()), (0, 0, 0));
        file.left.store(usize::MAX, Ordering::Relaxed);
        let net = unet(&gold, &store).unwrap();
        assert_eq!(run(&gold, &net), expected, "{left}");
        net.rest();
        drop(net);
        store.forget();
        base.forget();
        assert_eq!(device.used(), 0);
    }
    // A device that has no room for a merged unit leaves it where it was.
    let small = Device::register_sim(7323, 1000).unwrap();
    let base = WeightStore::from_stored("test", all, small.clone());
    let set = set(&base, 0.7, PatchMode::Merged);
    let store = set.store(&base, PREFIX);
    let _net = unet(&gold, &store).unwrap();
    let large = store
        .units()
        .into_iter()
        .max_by_key(|unit| unit.bytes)
        .unwrap();
    assert!(store.move_unit(&large.name, &small).is_err());
    assert_eq!(store.home(&large.name), Some(Device::cpu()));
    assert_eq!(small.used(), 0);
}
