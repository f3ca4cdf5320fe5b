//! Every kind of adapter against the reference's merged weights.

use std::sync::Arc;

use fresco_models::lora::{LoraFile, NameMap, load};
use fresco_models::patch::PatchSet;
use fresco_tensor::{SafeTensors, Tensor, safetensors, synthetic};

use crate::{gold, gold_json};

/// A LoRA file with the inputs of one golden case.
fn lora_of(case: &str, golden: &SafeTensors, folder: &std::path::Path) -> LoraFile {
    let prefix = format!("{case}/in/x.");
    let tensors: Vec<(String, Tensor)> = golden
        .names()
        .filter_map(|name| {
            let part = name.strip_prefix(&prefix)?;
            let layer = format!("diffusion_model.k.{part}");
            Some((layer, golden.tensor(name).unwrap()))
        })
        .collect();
    assert!(!tensors.is_empty(), "{case} has no inputs");
    let list: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let path = folder.join(format!("{case}.safetensors"));
    safetensors::write(&path, &list, &[]).unwrap();
    LoraFile::open(&path).unwrap()
}

fn relative_error(actual: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(actual.shape(), expected.shape());
    let pairs = actual.data().iter().zip(expected.data());
    let (error, size) = pairs.fold((0.0, 0.0), |(e, s), (&a, &b)| {
        (e + f64::from(a - b).powi(2), s + f64::from(b).powi(2))
    });
    (error / size).sqrt()
}

#[test]
fn l01_every_kind_gives_the_references_weight() {
    let about = gold_json("lora_merge.json");
    let golden = SafeTensors::open(gold("lora_merge.safetensors")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for (case, spec) in about["cases"].as_object().unwrap() {
        let Some(shape) = spec["weight_shape"].as_array() else {
            continue;
        };
        let shape: Vec<usize> = shape.iter().map(|v| v.as_u64().unwrap() as usize).collect();
        let base = synthetic::weight("lora.base.weight", &shape).unwrap();
        let names = NameMap::for_model(&[("k.weight", &shape)]);
        let loaded = load(&lora_of(case, &golden, folder.path()), &names).unwrap();
        assert!(loaded.unused.is_empty(), "{case}: {:?}", loaded.unused);
        let strength = spec["strength"].as_f64().unwrap();
        let mut patches = loaded.patches(strength, |_| true);
        assert_eq!(patches.len(), 1, "{case}");
        patches[0].1.strength_model = spec["strength_model"].as_f64().unwrap();
        let set = PatchSet::default().with(patches);
        let merged = set.apply("diffusion_model.k.weight", base).unwrap();
        let expected = golden.tensor(&format!("{case}/merged")).unwrap();
        let error = relative_error(&merged, &expected);
        assert!(error < 2e-6, "{case}: {error}");
        ran += 1;
    }
    assert_eq!(ran, 17);
}

/// The slices of one matrix are independent, and one that does not fit changes nothing.
#[test]
fn parts_of_a_matrix() {
    use fresco_models::patch::{Change, Patch, Slice};
    use fresco_tensor::Stored;
    let base = Tensor::from_fn([4, 2], |i| i as f32).unwrap();
    let diff = |rows: usize| Change::Diff {
        value: Stored::from(&Tensor::ones([rows, 2]).unwrap()),
        pad: false,
    };
    let patch = |start: usize, len: usize, rows: usize| Patch {
        strength: 2.0,
        slice: Some(Slice { dim: 0, start, len }),
        change: diff(rows),
        source: 1,
        ..Patch::scaled(1.0)
    };
    let run = |patch: Patch| {
        let set = Arc::new(PatchSet::default().with([("a".to_owned(), patch)]));
        set.apply("a", base.clone()).unwrap().into_vec()
    };
    assert_eq!(
        run(patch(1, 2, 2)),
        [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 6.0, 7.0]
    );
    assert_eq!(run(patch(1, 2, 3)), base.data());
    assert_eq!(run(patch(3, 2, 2)), base.data());
}

/// Weights that are made at every use give what kept ones give but for their rounding, and take no memory.
#[test]
fn l05_on_the_fly_is_the_same() {
    use fresco_models::patch::{Change, Patch, PatchMode};
    use fresco_models::store::WeightStore;
    use fresco_tensor::nn::Padding;
    use fresco_tensor::{Device, Dtype, Stored};
    let weight = |name: &str, shape: &[usize]| {
        let plain = synthetic::weight(name, shape).unwrap();
        Stored::from_f32(&plain, Dtype::F16).unwrap()
    };
    let weights = [
        ("a.weight".to_owned(), weight("a.weight", &[8, 4])),
        ("a.bias".to_owned(), weight("a.bias", &[8])),
        ("c.weight".to_owned(), weight("c.weight", &[6, 8, 3, 3])),
    ];
    let base = WeightStore::from_stored("test", weights.into_iter().collect(), Device::cpu());
    let patch = |shape: &[usize]| Patch {
        change: Change::Diff {
            value: Stored::from(&synthetic::value("d", shape, 0.1).unwrap()),
            pad: false,
        },
        strength: 0.7,
        ..Patch::scaled(0.9)
    };
    let set = PatchSet::default().with([
        ("n.a.weight".to_owned(), patch(&[8, 4])),
        ("n.a.bias".to_owned(), patch(&[8])),
        ("n.c.weight".to_owned(), patch(&[6, 8, 3, 3])),
        ("n.absent".to_owned(), patch(&[1])),
    ]);
    let kept = set.store(&base, "n.");
    let made = set.with_mode(PatchMode::OnTheFly).store(&base, "n.");
    let x = synthetic::value("x", &[1, 5, 5, 4], 1.0).unwrap();
    let run = |store: &WeightStore| {
        let h = store.linear("a").unwrap().forward(&x).unwrap();
        let conv = store.conv("c", 1, Padding::Same(1)).unwrap();
        conv.forward(&h).unwrap()
    };
    let (one, two) = (run(&kept), run(&made));
    let pairs = one.data().iter().zip(two.data());
    let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart > 0.0 && apart < 5e-3, "{apart}");
    assert_eq!((kept.on_the_fly_units(), made.on_the_fly_units()), (0, 2));
    assert_ne!(one, {
        let h = base.linear("a").unwrap().forward(&x).unwrap();
        base.conv("c", 1, Padding::Same(1))
            .unwrap()
            .forward(&h)
            .unwrap()
    });
    assert_eq!(made.linear("a").unwrap().bytes(), 2 * 8, "only the bias");
    assert_eq!(made.raw("a.weight").unwrap(), kept.raw("a.weight").unwrap());
    // Equal sets share one store, other strengths do not.
    let again = PatchSet::default().with([
        ("n.a.weight".to_owned(), patch(&[8, 4])),
        ("n.a.bias".to_owned(), patch(&[8])),
        ("n.c.weight".to_owned(), patch(&[6, 8, 3, 3])),
        ("n.absent".to_owned(), patch(&[1])),
    ]);
    assert!(again.store(&base, "n.").is(&kept));
    assert!(!Arc::ptr_eq(
        &again
            .with([("n.a.bias".to_owned(), patch(&[8]))])
            .store(&base, "n."),
        &kept
    ));
}

/// Weights that are changed at every use are changed where the layer computes, from the model's own.
#[test]
fn changes_on_the_fly_take_memory_while_they_are_used() {
    use fresco_models::patch::{Patch, PatchMode};
    use fresco_models::store::WeightStore;
    use fresco_tensor::{Device, Stored};
    let device = Device::register_sim(7311, 2000).unwrap();
    let weight = Stored::from(&Tensor::ones([8, 16]).unwrap());
    let weights = [("a.weight".to_owned(), weight)];
    let base = WeightStore::from_stored("test", weights.into_iter().collect(), device.clone());
    let set = PatchSet::default().with([("a.weight".to_owned(), Patch::scaled(2.0))]);
    let store = set.with_mode(PatchMode::OnTheFly).store(&base, "");
    let layer = store.linear("a").unwrap();
    assert_eq!((layer.bytes(), store.bytes()), (0, 0));
    assert!(store.units().iter().all(|unit| !unit.own));
    let x = Tensor::ones([1, 16]).unwrap().to(&device).unwrap();
    device.reset_peak();
    let y = layer.forward(&x).unwrap().to(&Device::cpu()).unwrap();
    assert_eq!(y.data(), [32.0; 8]);
    // The input, the model's weight, the changed one, and the result.
    assert_eq!((device.used(), device.peak()), (64, 64 + 512 + 512 + 32));
    base.move_unit("a", &device).unwrap();
    assert_eq!(store.home("a"), Some(device.clone()));
    assert_eq!(device.used(), 64 + 512);
    let before = device.copies().into;
    layer.forward(&x).unwrap();
    assert_eq!(device.copies().into, before);
    assert_eq!(
        store.tensor("a.weight").unwrap(),
        Tensor::full([8, 16], 2.0).unwrap()
    );
}
