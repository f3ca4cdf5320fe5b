//! Weights that loaders keep in another number format than their file's: bit by bit those that main memory has, without a conversion there.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, SlotGroup};
use fresco_tensor::weights::{Recast, with_fp8_products};
use fresco_tensor::{
    Buffer, Device, Dtype, Stored, Tensor, WeightFile, open_weights, safetensors, weight_traffic,
};
use tempfile::TempDir;

use crate::against::{Random, gpus};
use crate::bytes::has_fp8;

const ROWS: usize = 1201;
/// Not what kernels take at a time.
const COLUMNS: usize = 1048;

const FORMATS: [Dtype; 5] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::F8E4M3,
    Dtype::F8E5M2,
];

/// Numbers of all sizes up to one: every code of E4M3, what lies in the middle of two of them and right beside it, and others.
fn values(most: f32) -> Tensor {
    let mut random = Random::new(11);
    let mut values = random.scaled(&[ROWS, COLUMNS], 1.0).data().to_vec();
    let codes: Vec<f32> = Dtype::F8E4M3.to_f32(&(0..=0x7E).collect::<Vec<u8>>());
    let mut place = values.iter_mut();
    let mut put = |value: f32| {
        for sign in [1.0, -1.0] {
            *place.next().unwrap() = sign * value;
        }
    };
    for pair in codes.windows(2) {
        let middle = f32::midpoint(pair[0], pair[1]);
        for value in [pair[0], middle, middle * 0.993, middle * 1.007] {
            put(value.min(most));
        }
    }
    for value in [0.0, 1e-9, 3e-5, 6e-8, f32::MIN_POSITIVE / 8.0, most] {
        put(value);
    }
    Tensor::from_buffer([ROWS, COLUMNS], Buffer::copied(&values).unwrap()).unwrap()
}

/// A file with these values in a format.
fn file(values: &Tensor, dtype: Dtype) -> (TempDir, Arc<dyn WeightFile>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let stored = Stored::from_f32(values, dtype).unwrap();
    safetensors::write(&path, &[("x.weight", &stored)], &[]).unwrap();
    (dir, open_weights(&path).unwrap())
}

/// The weight of a layer on the GPU as it comes from its file, and how many bytes were converted in main memory on the way.
fn brought(file: &dyn WeightFile, device: &Device) -> (Vec<u8>, u64) {
    let later = file
        .later("x.weight")
        .expect("its bytes may stay in the file");
    let before = weight_traffic().converted;
    let layer = Linear::new(&later, None, device).unwrap();
    let converted = weight_traffic().converted - before;
    (layer.weight().unwrap().bytes().to_vec(), converted)
}

#[test]
fn numbers_are_rounded_on_the_gpu() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let values = values(448.0);
    for from in FORMATS {
        let (_dir, file) = file(&values, from);
        for to in FORMATS.into_iter().filter(|to| *to != from) {
            let recast = Recast::new(Arc::clone(&file), to);
            let wanted = recast.read("x.weight").unwrap();
            let (bytes, converted) = brought(&recast, &gpu.device);
            assert!(bytes == wanted.bytes(), "{from:?} to {to:?}");
            let short = matches!(from, Dtype::F16 | Dtype::Bf16);
            let on_gpu = match to {
                Dtype::F8E5M2 => false,
                Dtype::F8E4M3 => short && has_fp8(&gpu.device),
                _ => true,
            };
            if on_gpu {
                assert_eq!(converted, 0, "{from:?} to {to:?}");
            }
        }
    }
}

/// What is above the largest number becomes none, as in main memory; the kernel would make it the largest.
#[test]
fn numbers_that_are_too_large_are_rounded_as_in_main_memory() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    for most in [460.0, 480.0, 60_000.0] {
        let values = values(most);
        for from in [Dtype::F16, Dtype::Bf16] {
            let (_dir, file) = file(&values, from);
            let recast = Recast::new(file, Dtype::F8E4M3);
            let wanted = recast.read("x.weight").unwrap();
            let (bytes, _) = brought(&recast, &gpu.device);
            assert!(bytes == wanted.bytes(), "{from:?} up to {most}");
        }
    }
}

/// Rows with a scale behind each, for products of bytes.
#[test]
fn rows_for_fp8_products_are_rounded_on_the_gpu() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    for columns in [1040, COLUMNS] {
        let values = Random::new(5).scaled(&[ROWS, columns], 0.3);
        let (_dir, file) = file(&values, Dtype::Bf16);
        let rows = with_fp8_products(Arc::new(Recast::new(file, Dtype::F8E4M3)));
        let wanted = rows.read("x.weight").unwrap();
        let (bytes, converted) = brought(&*rows, &gpu.device);
        assert!(bytes == wanted.bytes(), "{columns} columns");
        if has_fp8(&gpu.device) {
            assert_eq!(converted, 0, "{columns} columns");
        }
    }
}

/// Those that have no room on the GPU come over beside its work.
#[test]
fn numbers_that_stream_are_rounded_too() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let values = values(448.0);
    let x = Random::new(3)
        .scaled(&[3, COLUMNS], 0.1)
        .to(&gpu.device)
        .unwrap();
    for (from, to) in [
        (Dtype::F32, Dtype::F16),
        (Dtype::Bf16, Dtype::F16),
        (Dtype::Bf16, Dtype::F8E4M3),
        (Dtype::F32, Dtype::F8E5M2),
    ] {
        let (_dir, file) = file(&values, from);
        let recast = Recast::new(file, to);
        let run = |layer: &Linear| {
            let y = layer.forward(&x).unwrap().to(&Device::cpu()).unwrap();
            y.data().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let read = recast.read("x.weight").unwrap();
        let wanted = run(&Linear::new(&read, None, &gpu.device).unwrap());
        let later = recast.later("x.weight").unwrap();
        let group = SlotGroup::new();
        group.set_ahead(1);
        let streamed = Linear::in_group(&later, None, &group).unwrap();
        for pass in 0..3 {
            assert!(run(&streamed) == wanted, "{from:?} to {to:?}, pass {pass}");
        }
    }
}

/// Some of the rows, and rows of several values under each other.
#[test]
fn parts_are_rounded_on_the_gpu() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let (_dir, file) = file(&values(448.0), Dtype::Bf16);
    for to in [Dtype::F16, Dtype::F8E4M3] {
        let recast = Recast::new(Arc::clone(&file), to);
        let all = recast.read("x.weight").unwrap();
        let row = COLUMNS * to.size();
        let later = recast.later("x.weight").unwrap();
        let cuts = [(1100, 101), (0, 1100)];
        let parts = cuts.map(|(start, count)| later.unread_rows(start, count).unwrap());
        let wanted = cuts.map(|(start, count)| &all.bytes()[start * row..][..count * row]);
        let joined = Stored::unread_joined(&parts).unwrap();
        let layer = Linear::new(&joined, None, &gpu.device).unwrap();
        assert!(layer.weight().unwrap().bytes() == wanted.concat(), "{to:?}");
    }
}
