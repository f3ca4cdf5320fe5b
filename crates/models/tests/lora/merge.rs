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
fn every_kind_gives_the_references_weight() {
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
        strength_model: 1.0,
        slice: Some(Slice { dim: 0, start, len }),
        reorder: None,
        change: diff(rows),
        source: 1,
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
