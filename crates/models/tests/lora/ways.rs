//! The ways in which patches come into a layer: merged in one format or another, made at every use, beside the weight.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use fresco_models::lora::{NameMap, load};
use fresco_models::patch::{
    Change, LoraStorage, MergeDtype, OftStrength, Patch, PatchMode, PatchOptions, PatchSet,
};
use fresco_models::store::WeightStore;
use fresco_tensor::nn::Padding;
use fresco_tensor::{Device, Dtype, Stored, Tensor, synthetic};

use crate::lora_file;

const SHAPES: [(&str, &[usize]); 5] = [
    ("a.weight", &[8, 4]),
    ("a.bias", &[8]),
    ("c.weight", &[6, 8, 3, 3]),
    ("c.bias", &[6]),
    ("p.weight", &[6, 6, 1, 1]),
];

fn base(dtype: Dtype) -> Arc<WeightStore> {
    let weights = SHAPES.iter().map(|(key, shape)| {
        let plain = synthetic::weight(key, shape).unwrap();
        ((*key).to_owned(), Stored::from_f32(&plain, dtype).unwrap())
    });
    WeightStore::from_stored("test", weights.collect(), Device::cpu())
}

fn value(name: &str, shape: &[usize]) -> Tensor {
    synthetic::value(name, shape, 0.2).unwrap()
}

/// Low-rank changes of all three layers, one of them with a middle, and of a bias.
fn lora() -> Vec<(String, Tensor)> {
    let shapes: [(&str, &[usize]); 8] = [
        ("a.lora_up.weight", &[8, 2]),
        ("a.lora_down.weight", &[2, 4]),
        ("a.diff_b", &[8]),
        ("c.lora_up.weight", &[6, 3, 1, 1]),
        ("c.lora_mid.weight", &[3, 3, 3, 3]),
        ("c.lora_down.weight", &[3, 8, 1, 1]),
        ("p.lora_up.weight", &[6, 2, 1, 1]),
        ("p.lora_down.weight", &[2, 6, 1, 1]),
    ];
    let named = shapes
        .into_iter()
        .map(|(name, shape)| (format!("lora_unet_{name}"), value(name, shape)));
    let mut all: Vec<_> = named.collect();
    all.push(("lora_unet_c.alpha".to_owned(), Tensor::scalar(1.5)));
    all
}

fn names() -> NameMap {
    NameMap::for_model(&SHAPES)
}

fn patches(tensors: &[(String, Tensor)], strength: f64) -> Vec<(String, Patch)> {
    let loaded = load(&lora_file(tensors), &names()).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    loaded.patches(strength, |_| true)
}

fn set(tensors: &[(String, Tensor)], strength: f64, mode: PatchMode) -> PatchSet {
    PatchSet::default()
        .with(patches(tensors, strength))
        .with_mode(mode)
}

const PREFIX: &str = "diffusion_model.";

/// A small network: a linear layer, a convolution with a stride and a linear layer that is written as one.
fn run(store: &WeightStore) -> Tensor {
    let x = synthetic::value("x", &[1, 5, 7, 4], 1.0).unwrap();
    let h = store.linear("a").unwrap().forward(&x).unwrap();
    let conv = store.conv("c", 2, Padding::Same(1)).unwrap();
    let h = conv.forward(&h).unwrap();
    store.linear("p").unwrap().forward(&h).unwrap()
}

fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.shape(), b.shape());
    let pairs = a.data().iter().zip(b.data());
    pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn l05_merged_on_the_fly_and_bypass_are_the_same() {
    for (dtype, most) in [
        (Dtype::F32, 1e-5),
        (Dtype::F16, 5e-3),
        (Dtype::Bf16, 4e-2),
        (Dtype::F8E4M3, 0.5),
    ] {
        let base = base(dtype);
        let plain = run(&base);
        let sets = [PatchMode::Merged, PatchMode::OnTheFly, PatchMode::Bypass]
            .map(|mode| set(&lora(), 0.8, mode));
        let stores = sets.each_ref().map(|set| set.store(&base, PREFIX));
        let counts = stores
            .each_ref()
            .map(|store| (store.on_the_fly_units(), store.bypassed_units()));
        assert_eq!(counts, [(0, 0), (3, 0), (0, 3)]);
        let results = stores.each_ref().map(|store| run(store));
        for (result, store) in results[1..].iter().zip(&stores[1..]) {
            let far = apart(result, &results[0]);
            assert!(far < most, "{dtype:?}: {far}");
            assert_eq!(store.bytes(), 0, "nothing is kept");
            assert!(store.units().iter().all(|unit| !unit.own));
        }
        // Beside the weight and in it the arithmetic is f32: only the order of additions differs.
        assert!(apart(&results[1], &results[2]) < 1e-5);
        assert!(apart(&results[0], &plain) > 0.05);
        // What is saved is merged, whatever the way.
        for (key, _) in SHAPES {
            let merged = stores[0].raw(key).unwrap();
            assert_eq!(stores[1].raw(key).unwrap(), merged, "{key}");
            assert_eq!(stores[2].raw(key).unwrap(), merged, "{key}");
        }
    }
}

/// What cannot stand beside a layer is made at every use, and what depends on the weight sees what came before it.
#[test]
fn l05_bypass_falls_back() {
    let base = base(Dtype::F32);
    let other = |parts: &[(&str, &[usize])]| -> Vec<(String, Tensor)> {
        let named = parts.iter();
        named
            .map(|(part, shape)| (format!("lora_unet_a.{part}"), value(part, shape)))
            .collect()
    };
    let loha = other(&[
        ("hada_w1_a", &[8, 2]),
        ("hada_w1_b", &[2, 4]),
        ("hada_w2_a", &[8, 2]),
        ("hada_w2_b", &[2, 4]),
    ]);
    let rotation = other(&[("oft_blocks", &[2, 4, 4])]);
    let plain = other(&[("lora_up.weight", &[8, 2]), ("lora_down.weight", &[2, 4])]);
    let mut scaled = plain.clone();
    let ones = Tensor::ones([8, 1]).unwrap();
    scaled.push(("lora_unet_a.dora_scale".to_owned(), ones));
    for (lists, made, beside) in [
        (vec![&loha], 1, 0),
        (vec![&scaled], 1, 0),
        (vec![&plain], 0, 1),
        // The rotation turns what the first one adds, so that must be in the weight.
        (vec![&plain, &rotation], 1, 0),
        (vec![&rotation, &plain], 1, 1),
        (vec![&loha, &plain], 1, 1),
        (vec![&plain, &plain], 0, 1),
    ] {
        let of = |mode| {
            let all = lists.iter().fold(PatchSet::default(), |set, tensors| {
                set.with(patches(tensors, 0.7))
            });
            all.with_mode(mode)
        };
        let (merged, bypass) = (of(PatchMode::Merged), of(PatchMode::Bypass));
        let store = bypass.store(&base, PREFIX);
        assert_eq!(
            (store.on_the_fly_units(), store.bypassed_units()),
            (made, beside)
        );
        let far = apart(&run(&store), &run(&merged.store(&base, PREFIX)));
        assert!(far < 1e-5, "{far}");
    }
    // A merged one below one that is beside: a layer of its own, with the addition.
    let all =
        PatchSet::default()
            .with(patches(&loha, 0.7))
            .with(patches(&plain, 0.7).into_iter().map(|(key, patch)| {
                let mode = PatchMode::Bypass;
                (key, Patch { mode, ..patch })
            }));
    let store = all.store(&base, PREFIX);
    assert_eq!((store.on_the_fly_units(), store.bypassed_units()), (0, 1));
    let merged = all.with_mode(PatchMode::Merged).store(&base, PREFIX);
    let far = apart(&run(&store), &run(&merged));
    assert!(far < 1e-5, "{far}");
    assert_eq!(store.bytes(), 4 * (8 * 4 + 8));
    assert_eq!(
        store.raw("a.weight").unwrap(),
        merged.raw("a.weight").unwrap()
    );
}

/// Weights in blocks are never merged unless a format is asked for.
#[test]
fn l05_blocks_are_changed_at_every_use() {
    let blocks = (0..8 * 34).map(|i| match i % 34 {
        0 => 0,
        1 => 0x2c, // 1/16 as f16
        other => (other * 7 % 50) as u8,
    });
    let weight = Stored::new(Dtype::Q8_0, [8, 32], blocks.collect()).unwrap();
    let weights = BTreeMap::from([("a.weight".to_owned(), weight.clone())]);
    let base = WeightStore::from_stored("test", weights, Device::cpu());
    let diff = value("d", &[8, 32]);
    let patch = Patch {
        strength: 0.5,
        change: Change::Diff {
            value: Stored::from(&diff),
            pad: false,
        },
        ..Patch::scaled(1.0)
    };
    let set = PatchSet::default().with([("a.weight".to_owned(), patch)]);
    let store = set.store(&base, "");
    assert_eq!((store.on_the_fly_units(), store.bytes()), (1, 0));
    let x = value("x", &[1, 32]);
    let found = store.linear("a").unwrap().forward(&x).unwrap();
    let sum = weight.to_f32().unwrap().add(&diff.mul_scalar(0.5)).unwrap();
    let expected = fresco_tensor::nn::Linear::new(&Stored::from(&sum), None, &Device::cpu())
        .unwrap()
        .forward(&x)
        .unwrap();
    assert_eq!(found, expected);
    let kept = set.with_options(PatchOptions {
        storage: LoraStorage::Bf16,
        ..PatchOptions::default()
    });
    let store = kept.store(&base, "");
    store.linear("a").unwrap();
    assert_eq!((store.on_the_fly_units(), store.bytes()), (0, 2 * 8 * 32));
}

/// Where another process puts its bytes.
const OUT: &str = "FRESCO_TEST_L04_OUT";

/// An fp8 model with a LoRA has the same bytes however often it is merged, also by another process.
#[test]
fn l04_eight_bits_are_the_same_in_every_process() {
    let merged = || {
        let base = base(Dtype::F8E4M3);
        let set = set(&lora(), 0.9, PatchMode::Merged);
        let store = set.store(&base, PREFIX);
        run(&store);
        let bytes = SHAPES.iter().flat_map(|(key, _)| {
            let layer = store.raw(key).unwrap();
            assert_eq!(layer.dtype(), Dtype::F8E4M3);
            layer.bytes().to_vec()
        });
        bytes.collect::<Vec<u8>>()
    };
    let first = merged();
    assert_eq!(merged(), first);
    // The child is this test again.
    if let Some(path) = std::env::var_os(OUT) {
        std::fs::write(path, first).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "ways::l04_eight_bits_are_the_same_in_every_process",
            "--exact",
        ])
        .env(OUT, &path)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert_eq!(std::fs::read(path).unwrap(), first);
    // And the change is in them: on average it is not rounded away.
    let plain = base(Dtype::F8E4M3);
    let before = SHAPES
        .iter()
        .flat_map(|(key, _)| plain.raw(key).unwrap().bytes().to_vec());
    assert_ne!(before.collect::<Vec<u8>>(), first);
}

/// After patches are gone, the weights are those of the file.
#[test]
fn l03_unpatched_weights_are_those_of_the_file() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E4M3] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let values: Vec<(String, Stored)> = SHAPES
            .iter()
            .map(|(key, shape)| {
                let plain = synthetic::weight(key, shape).unwrap();
                ((*key).to_owned(), Stored::from_f32(&plain, dtype).unwrap())
            })
            .collect();
        let list: Vec<(&str, &Stored)> = values.iter().map(|(n, v)| (&**n, v)).collect();
        fresco_tensor::safetensors::write(&path, &list, &[]).unwrap();
        let file = fresco_tensor::open_weights(&path).unwrap();
        let base = WeightStore::open(file, "", Device::cpu());
        let plain = run(&base);
        for mode in [PatchMode::Merged, PatchMode::OnTheFly, PatchMode::Bypass] {
            let set = set(&lora(), 1.0, mode);
            let store = set.store(&base, PREFIX);
            assert_ne!(run(&store), plain);
            store.forget();
            assert_eq!(store.bytes(), 0);
            drop((store, set));
            for (key, value) in &values {
                assert_eq!(base.raw(key).unwrap(), *value, "{key} {mode:?}");
            }
            assert_eq!(run(&base), plain);
        }
    }
}

fn rounded(t: &Tensor) -> Tensor {
    Stored::from_f32(t, Dtype::F16).unwrap().to_f32().unwrap()
}

/// Merging in f16 rounds the weight, the change and the sum; what is made at every use is not concerned.
#[test]
fn merging_in_half_precision_rounds_on_the_way() {
    let base = base(Dtype::F32);
    let options = |merge| PatchOptions {
        merge,
        ..PatchOptions::default()
    };
    let of = |merge, mode| {
        let set = set(&lora(), 0.8, mode).with_options(options(merge));
        set.store(&base, PREFIX).tensor("a.weight").unwrap()
    };
    let full = of(MergeDtype::Fp32, PatchMode::Merged);
    assert_eq!(of(MergeDtype::Auto, PatchMode::Merged), full);
    let half = of(MergeDtype::Fp16, PatchMode::Merged);
    assert_ne!(half, full);
    assert_eq!(rounded(&half), half);
    let plain = base.tensor("a.weight").unwrap();
    let change = rounded(&full.sub(&plain).unwrap());
    let expected = rounded(&rounded(&plain).add(&change).unwrap());
    let far = apart(&half, &expected);
    assert!(far < 2e-3, "{far}");
    // Biases are kept, and so they are rounded.
    let mut large = lora();
    large.retain(|(name, _)| !name.ends_with(".diff_b"));
    let sets = [MergeDtype::Fp16, MergeDtype::Fp32]
        .map(|merge| set(&large, 0.8, PatchMode::OnTheFly).with_options(options(merge)));
    let [one, two] = sets.each_ref().map(|set| run(&set.store(&base, PREFIX)));
    assert_eq!(one, two);
    // Different numbers are different stores.
    assert_ne!(sets[0].identity(), sets[1].identity());
}

/// Changed layers are kept in the format that was asked for, and counted so.
#[test]
fn merged_weights_are_kept_as_asked_for() {
    for (own, storage, expected) in [
        (Dtype::F8E4M3, LoraStorage::StoredDtype, Dtype::F8E4M3),
        (Dtype::F8E4M3, LoraStorage::Bf16, Dtype::Bf16),
        (Dtype::F32, LoraStorage::Bf16, Dtype::Bf16),
        (Dtype::F16, LoraStorage::Bf16, Dtype::F16),
        (Dtype::F8E5M2, LoraStorage::F8E4M3, Dtype::F8E4M3),
        (Dtype::F16, LoraStorage::F8E4M3, Dtype::F8E4M3),
    ] {
        let base = base(own);
        let set = set(&lora(), 1.0, PatchMode::Merged).with_options(PatchOptions {
            storage,
            ..PatchOptions::default()
        });
        let store = set.store(&base, PREFIX);
        let what = format!("{own:?} {storage:?}");
        assert_eq!(store.raw("a.weight").unwrap().dtype(), expected, "{what}");
        let layer = store.linear("a").unwrap();
        assert_eq!(layer.dtype(), expected, "{what}");
        store.conv("c", 1, Padding::Same(1)).unwrap();
        store.linear("p").unwrap();
        let counted: u64 = store.units().iter().map(|unit| unit.bytes).sum();
        assert_eq!(store.bytes(), counted, "{what}");
        // Beside eight bits nothing has more.
        let bias = store.conv("c", 1, Padding::Same(1)).unwrap();
        let bias = bias.bias().unwrap().unwrap().dtype();
        let eight = storage == LoraStorage::F8E4M3;
        assert_eq!(bias, if eight { Dtype::F8E4M3 } else { own }, "{what}");
    }
    // In bf16 an fp8 model keeps more of a change than in its own format.
    let plain = base(Dtype::F8E4M3);
    let exact = set(&lora(), 1.0, PatchMode::OnTheFly);
    let exact = exact
        .apply(
            "diffusion_model.a.weight",
            plain.tensor("a.weight").unwrap(),
        )
        .unwrap();
    let far = |storage| {
        let set = set(&lora(), 1.0, PatchMode::Merged).with_options(PatchOptions {
            storage,
            ..PatchOptions::default()
        });
        let kept = set.store(&plain, PREFIX).tensor("a.weight").unwrap();
        apart(&kept, &exact)
    };
    assert!(far(LoraStorage::Bf16) * 4.0 < far(LoraStorage::StoredDtype));
}

/// Half a rotation is half the way where that was asked for, and a quarter in the reference.
#[test]
fn rotations_are_as_strong_as_asked_for() {
    let base = base(Dtype::F32);
    let weight = base.tensor("a.weight").unwrap();
    let run = |blocks: &[usize], strength: f64, oft: OftStrength| {
        let name = "lora_unet_a.oft_blocks".to_owned();
        let tensors = [(name, value("oft", blocks))];
        let all = patches(&tensors, strength).into_iter();
        let all = all.map(|(key, patch)| (key, Patch { oft, ..patch }));
        let set = PatchSet::default().with(all);
        let changed = set.apply("diffusion_model.a.weight", weight.clone());
        changed.unwrap().sub(&weight).unwrap()
    };
    for blocks in [&[2, 4, 4][..], &[1, 2, 4, 4]] {
        let whole = run(blocks, 1.0, OftStrength::Linear);
        assert!(apart(&whole, &run(blocks, 1.0, OftStrength::Compat)) < 1e-7);
        let half = run(blocks, 0.5, OftStrength::Linear);
        assert!(apart(&half, &whole.mul_scalar(0.5)) < 1e-6);
        let compat = run(blocks, 0.5, OftStrength::Compat);
        assert!(apart(&compat, &whole.mul_scalar(0.25)) < 1e-6);
    }
}

/// What a GPU would add to a weight by itself is what the processor adds; what is more than that it leaves to the processor.
#[test]
fn growths_are_the_whole_change_or_there_are_none() {
    let shape = [8, 4];
    let set = set(&lora(), 0.5, PatchMode::Merged);
    let scoped = set.scoped(PREFIX);
    let growths = scoped.growths("a.weight", &shape).unwrap();
    let [growth] = growths.as_slice() else {
        panic!("{growths:?}");
    };
    let plain = synthetic::weight("a.weight", &shape).unwrap();
    let key = format!("{PREFIX}a.weight");
    let wanted = set.apply(&key, plain.clone()).unwrap();
    let (up, down) = (growth.up.to_f32().unwrap(), growth.down.to_f32().unwrap());
    for (at, (wanted, plain)) in wanted.data().iter().zip(plain.data()).enumerate() {
        let (row, column) = (at / 4, at % 4);
        let rank = (0..2).map(|r| up.data()[row * 2 + r] * down.data()[r * 4 + column]);
        let sum = plain + growth.scale * rank.sum::<f32>();
        assert!((sum - wanted).abs() < 1e-6, "{at}: {sum} {wanted}");
    }
    // Kernels of convolutions, rounding on the way, and weights that are scaled themselves.
    assert!(scoped.growths("c.weight", &[6, 8, 3, 3]).is_none());
    let short = set.with_options(PatchOptions {
        merge: MergeDtype::Fp16,
        ..PatchOptions::default()
    });
    assert!(short.scoped(PREFIX).growths("a.weight", &shape).is_none());
    let dimmed = set.with([(key, Patch::scaled(0.5))]);
    assert!(dimmed.scoped(PREFIX).growths("a.weight", &shape).is_none());
}
