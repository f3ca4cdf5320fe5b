//! LoRA on quantised weights: merged and rounded to the format again, beside the weight, or at every use.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_models::lora::{NameMap, load};
use fresco_models::patch::{PatchMode, PatchSet};
use fresco_models::store::WeightStore;
use fresco_tensor::formats::{GridKind, Levels, RowFormat, RowKind};
use fresco_tensor::weights::{InMemory, quantised_parts, with_formats};
use fresco_tensor::{Device, Dtype, Stored, Tensor, synthetic};

use crate::lora_file;

const SHAPES: [(&str, &[usize]); 2] = [("a.weight", &[32, 256]), ("a.bias", &[32])];
const PREFIX: &str = "diffusion_model.";

fn formats() -> Vec<RowFormat> {
    let grid = RowKind::Grid(GridKind {
        bits: 4,
        group: 16,
        wide_scales: false,
        levels: Levels::Usual,
        corrected: false,
    });
    let kinds = [
        (RowKind::F8E4M3, 0),
        (RowKind::F8E5M2, 0),
        (RowKind::Int8, 0),
        (RowKind::Int8, 256),
        (RowKind::Int4 { wide_input: false }, 256),
        (RowKind::Nvfp4, 0),
        (RowKind::Mxfp8, 0),
        (grid, 256),
    ];
    let formats = kinds.map(|(kind, rotation)| RowFormat::new(kind, 256, rotation).unwrap());
    formats.to_vec()
}

fn plain() -> Tensor {
    synthetic::weight("a.weight", &[32, 256]).unwrap()
}

/// A layer of a format, as a file has it.
fn base(format: RowFormat, more: &[(&str, Stored)]) -> Arc<WeightStore> {
    let weight = Stored::from_f32(&plain(), Dtype::Rows(format)).unwrap();
    let parts = quantised_parts(&weight).unwrap().into_iter();
    let mut tensors: BTreeMap<String, Stored> = parts
        .map(|(part, stored)| (format!("net.a.{part}"), stored))
        .collect();
    let bias = synthetic::weight("a.bias", &[32]).unwrap();
    tensors.insert("net.a.bias".to_owned(), Stored::from(&bias));
    for (name, stored) in more {
        tensors.insert(format!("net.a.{name}"), stored.clone());
    }
    let file = InMemory::new("quantised.safetensors", tensors, Vec::new());
    let file = with_formats(Arc::new(file)).unwrap();
    WeightStore::open(file, "net.", Device::cpu()).full_precision()
}

fn lora(scale: f32) -> Vec<(String, Tensor)> {
    let value = |name: &str, shape: &[usize]| synthetic::value(name, shape, scale).unwrap();
    vec![
        (
            "lora_unet_a.lora_up.weight".to_owned(),
            value("up", &[32, 4]),
        ),
        (
            "lora_unet_a.lora_down.weight".to_owned(),
            value("down", &[4, 256]),
        ),
    ]
}

fn set(scale: f32, mode: PatchMode) -> PatchSet {
    let loaded = load(&lora_file(&lora(scale)), &NameMap::for_model(&SHAPES)).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    PatchSet::default()
        .with(loaded.patches(1.0, |_| true))
        .with_mode(mode)
}

/// The change of the weight.
fn change(scale: f32) -> Tensor {
    let [(_, up), (_, down)] = <[_; 2]>::try_from(lora(scale)).unwrap();
    Tensor::from_fn([32, 256], |i| {
        let (row, column) = (i / 256, i % 256);
        let parts = (0..4).map(|r| up.data()[row * 4 + r] * down.data()[r * 256 + column]);
        parts.sum()
    })
    .unwrap()
}

fn input() -> Tensor {
    synthetic::value("x", &[12, 256], 1.0).unwrap()
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    let pairs = a.data().iter().zip(b.data());
    let (off, of) = pairs.fold((0.0, 0.0), |(off, of), (a, b)| {
        let (a, b) = (f64::from(*a), f64::from(*b));
        (off + (a - b).powi(2), of + b * b)
    });
    (off / of).sqrt()
}

/// The result of a store's layer for an exact weight.
fn expected(weight: &Tensor) -> Tensor {
    let bias = Stored::from(&synthetic::weight("a.bias", &[32]).unwrap());
    let weights = [
        ("a.weight".to_owned(), Stored::from(weight)),
        ("a.bias".to_owned(), bias),
    ];
    let store = WeightStore::from_stored("plain", weights.into(), Device::cpu());
    store.linear("a").unwrap().forward(&input()).unwrap()
}

fn result(store: &WeightStore) -> Tensor {
    store.linear("a").unwrap().forward(&input()).unwrap()
}

#[test]
fn a_store_has_one_weight_with_its_packed_bytes() {
    for format in formats() {
        let store = base(format, &[]);
        assert_eq!(store.keys(), ["a.bias", "a.weight"], "{}", format.name());
        assert_eq!(store.shape("a.weight"), Some(&[32, 256][..]));
        assert_eq!(store.dtype("a.weight"), Some(Dtype::Rows(format)));
        let packed = (32 * format.row_bytes() + 32 * 4) as u64;
        assert_eq!(store.total_bytes(), packed, "{}", format.name());
        store.linear("a").unwrap();
        assert_eq!(store.bytes(), packed, "{}", format.name());
        let kept = store.raw("a.weight").unwrap().to_f32().unwrap();
        assert!(distance(&result(&store), &expected(&kept)) < 1e-6);
    }
}

#[test]
fn merged_weights_are_rounded_to_their_format() {
    for format in formats() {
        let base = base(format, &[]);
        let kept = base.raw("a.weight").unwrap().to_f32().unwrap();
        let store = set(0.2, PatchMode::Merged).store(&base, PREFIX);
        assert_eq!((store.on_the_fly_units(), store.bypassed_units()), (0, 0));
        let exact = expected(&kept.add(&change(0.2)).unwrap());
        let merged = result(&store);
        let bound = match format.kind() {
            RowKind::Int8 | RowKind::F8E4M3 | RowKind::Mxfp8 => 0.05,
            RowKind::F8E5M2 => 0.1,
            _ => 0.25,
        };
        let off = distance(&merged, &exact);
        assert!(off < bound && off > 0.0, "{}: {off}", format.name());
        assert!(distance(&result(&base), &exact) > off, "{}", format.name());
        let weight = store.raw("a.weight").unwrap();
        assert_eq!(weight.dtype(), Dtype::Rows(format), "{}", format.name());
        assert_eq!(store.total_bytes(), base.total_bytes());
        let again = set(0.2, PatchMode::Merged).store(&base, PREFIX);
        assert_eq!(again.raw("a.weight").unwrap(), weight, "{}", format.name());
        // The weight below is as it was.
        assert_eq!(base.raw("a.weight").unwrap().to_f32().unwrap(), kept);
    }
}

#[test]
fn beside_the_weight_nothing_is_lost() {
    for format in formats() {
        let base = base(format, &[]);
        let kept = base.raw("a.weight").unwrap().to_f32().unwrap();
        let exact = expected(&kept.add(&change(0.2)).unwrap());
        let beside = set(0.2, PatchMode::Bypass).store(&base, PREFIX);
        assert_eq!((beside.on_the_fly_units(), beside.bypassed_units()), (0, 1));
        assert!(
            distance(&result(&beside), &exact) < 1e-5,
            "{}",
            format.name()
        );
        let made = set(0.2, PatchMode::OnTheFly).store(&base, PREFIX);
        assert_eq!((made.on_the_fly_units(), made.bypassed_units()), (1, 0));
        assert!(distance(&result(&made), &exact) < 1e-5, "{}", format.name());
    }
}

#[test]
fn blocks_get_their_changes_at_every_use() {
    let weight = Stored::from_f32(&plain(), Dtype::Q4K).unwrap();
    let kept = weight.to_f32().unwrap();
    let bias = Stored::from(&synthetic::weight("a.bias", &[32]).unwrap());
    let weights = [("a.weight".to_owned(), weight), ("a.bias".to_owned(), bias)];
    let base = WeightStore::from_stored("gguf", weights.into(), Device::cpu());
    let store = set(0.2, PatchMode::Merged).store(&base, PREFIX);
    assert_eq!(store.on_the_fly_units(), 1);
    let exact = expected(&kept.add(&change(0.2)).unwrap());
    assert!(distance(&result(&store), &exact) < 1e-5);
}

/// Some files say what inputs are multiplied with before the weight is used: the weight that a LoRA changes has it inside.
#[test]
fn input_scales_belong_to_the_weight() {
    let format = RowFormat::new(RowKind::Nvfp4, 256, 0).unwrap();
    let scale = synthetic::value("scale", &[256], 0.5).unwrap();
    let scale = scale.add_scalar(1.0);
    let base = base(format, &[("pre_quant_scale", Stored::from(&scale))]);
    let packed = (32 * format.row_bytes() + 32 * 4 + 256 * 4) as u64;
    assert_eq!(base.total_bytes(), packed);
    let kept = base.raw("a.weight").unwrap().to_f32().unwrap();
    let scaled = kept.mul(&scale).unwrap();
    assert!(distance(&result(&base), &expected(&scaled)) < 1e-6);
    assert_eq!(base.bytes(), packed);
    let exact = expected(&scaled.add(&change(0.2)).unwrap());
    let beside = set(0.2, PatchMode::Bypass).store(&base, PREFIX);
    assert!(distance(&result(&beside), &exact) < 1e-5);
    let made = set(0.2, PatchMode::OnTheFly).store(&base, PREFIX);
    assert!(distance(&result(&made), &exact) < 1e-5);
    let merged = set(0.2, PatchMode::Merged).store(&base, PREFIX);
    assert!(distance(&result(&merged), &exact) < 0.25);
}
