//! Weights that are kept elsewhere, read from files, or changed on a GPU: the same results as when all is there.

use std::sync::Arc;
use std::time::Instant;

use fresco_tensor::formats::{RowFormat, RowKind};
use fresco_tensor::nn::{Conv2d, Conv3d, Growth, Linear, MergedAs, Padding, SlotGroup};
use fresco_tensor::weights::quantised_parts;
use fresco_tensor::{Device, Dtype, Stored, Tensor, open_weights, safetensors};

use crate::against::{Checks, Random, gpus};

fn stored(random: &mut Random, shape: &[usize], dtype: Dtype) -> Stored {
    let value = random.scaled(shape, 0.05);
    Stored::from_f32(&value, dtype).unwrap()
}

/// Runs layers one after the other, several times, with their weights in main memory.
#[test]
fn what_streams_gives_the_same_bits() {
    let mut random = Random::new(71);
    for gpu in gpus() {
        let group = SlotGroup::new();
        group.set_ahead(2);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for (at, dtype) in [
            Dtype::Bf16,
            Dtype::F16,
            Dtype::F32,
            Dtype::F8E4M3,
            Dtype::Bf16,
        ]
        .into_iter()
        .enumerate()
        {
            // Sizes that are no multiple of what a warp takes at a time.
            let out = if at == 4 { 512 } else { 504 };
            let weight = stored(&mut random, &[out, 504], dtype);
            let bias = (at % 2 == 0).then(|| stored(&mut random, &[out], dtype));
            here.push(Linear::in_group(&weight, bias.as_ref(), &group).unwrap());
            there.push(Linear::new(&weight, bias.as_ref(), &gpu.device).unwrap());
        }
        let kernels = stored(&mut random, &[512, 512, 3, 3], Dtype::Bf16);
        let conv = Conv2d::in_group(&kernels, None, 1, Padding::Same(1), &group).unwrap();
        let same = Conv2d::new(&kernels, None, 1, Padding::Same(1), &gpu.device).unwrap();
        let x = random.tensor(&[1, 8, 8, 504]).to(&gpu.device).unwrap();
        for pass in 0..4 {
            let run = |layers: &[Linear], conv: &Conv2d| -> Tensor {
                let mut x = x.clone();
                for layer in layers {
                    x = layer.forward(&x).unwrap();
                }
                conv.forward(&x).unwrap().to(&Device::cpu()).unwrap()
            };
            assert_eq!(
                run(&here, &conv),
                run(&there, &same),
                "{} {pass}",
                gpu.format
            );
        }
        let stats = group.stats();
        println!("streamed {}: {stats:?}", gpu.format);
        assert_eq!(stats.uses, 24);
        // All but those of the first pass were there before they were wanted.
        assert!(stats.ahead >= 17, "{stats:?}");
    }
}

/// More than the memory through which they go holds.
#[test]
fn copies_go_around() {
    let Some(gpu) = gpus().iter().find(|gpu| gpu.format == "bf16") else {
        return;
    };
    let mut random = Random::new(72);
    let group = SlotGroup::new();
    group.set_ahead(2);
    // Results are as large as inputs, so that 48 layers stay within f16, which cards without bf16 compute in.
    let kinds: Vec<Stored> = (0..3)
        .map(|_| random.scaled(&[4096, 4096], 1.0 / 64.0))
        .map(|value| Stored::from_f32(&value, Dtype::Bf16).unwrap())
        .collect();
    let layers: Vec<Linear> = (0..48)
        .map(|i| Linear::in_group(&kinds[i % 3], None, &group).unwrap())
        .collect();
    let there: Vec<Linear> = kinds
        .iter()
        .map(|kind| Linear::new(kind, None, &gpu.device).unwrap())
        .collect();
    let x = random.tensor(&[64, 4096]).to(&gpu.device).unwrap();
    let run = |layers: &mut dyn Iterator<Item = &Linear>| -> Tensor {
        let mut x = x.clone();
        for layer in layers {
            x = layer.forward(&x).unwrap();
        }
        x.to(&Device::cpu()).unwrap()
    };
    let wanted = run(&mut (0..48).map(|i| &there[i % 3]));
    gpu.device.reset_peak();
    let before = gpu.device.peak();
    for pass in 0..4 {
        let begun = Instant::now();
        let found = run(&mut layers.iter());
        let time = begun.elapsed().as_secs_f64();
        let speed = 48.0 * f64::from(4096 * 4096 * 2) / time / 1e9;
        println!(
            "pass {pass}: {:.1} ms, {speed:.1} GB/s of weights",
            time * 1e3
        );
        assert!(found == wanted, "pass {pass}");
    }
    let most = gpu.device.peak() - before;
    println!(
        "{} MiB of the GPU for {} MiB of weights",
        most >> 20,
        48 * 32
    );
    assert!(most < 1300 << 20, "{most}");
    group.drop_ahead();
}

/// From a file straight to the GPU, with the same bytes when they are asked for again.
#[test]
fn files_are_read_to_their_place() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut random = Random::new(73);
    let value = random.scaled(&[6000, 4001], 1.0);
    safetensors::write(&path, &[("w", &value)], &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let later = file.later("w").unwrap();
    let begun = Instant::now();
    let layer = Linear::new(&later, None, &gpu.device).unwrap();
    gpu.device.synchronize().unwrap();
    let time = begun.elapsed().as_secs_f64();
    println!(
        "read to the GPU at {:.1} GB/s",
        value.len() as f64 * 4e-9 / time
    );
    assert_eq!(layer.weight().unwrap().to_f32().unwrap(), value);
    // A file that is written meanwhile is told.
    let later = file.later("w").unwrap();
    std::fs::write(&path, b"changed").unwrap();
    let error = Linear::new(&later, None, &gpu.device).err().unwrap();
    assert!(error.to_string().contains("changed on disk"), "{error}");
}

/// What came from a file is not copied back when it leaves the GPU: it is in its file.
#[test]
fn weights_leave_for_their_file() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut random = Random::new(76);
    let weight = random.scaled(&[1100, 700], 0.05);
    let kernels = random.scaled(&[64, 64, 3, 3, 3], 0.05);
    let bias = random.scaled(&[1100], 0.05);
    let all = [("w", &weight), ("k", &kernels), ("b", &bias)];
    safetensors::write(&path, &all, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let later = |name: &str| file.later(name).unwrap();
    let group = SlotGroup::new();
    let linear = Linear::in_group(&later("w"), Some(&later("b")), &group).unwrap();
    let conv = Conv3d::in_group(&later("k"), None, &group).unwrap();
    let (x, frames) = (random.tensor(&[8, 700]), random.tensor(&[2, 4, 4, 64]));
    let run = |device: &Device| {
        let y = linear.forward(&x.to(device).unwrap()).unwrap();
        let z = conv
            .forward(&frames.to(device).unwrap(), &[], None)
            .unwrap();
        [y, z].map(|y| y.to(&Device::cpu()).unwrap())
    };
    let slots = [linear.slot(), conv.slot()];
    let mut first = None;
    for _ in 0..3 {
        for slot in slots {
            slot.move_to(&gpu.device).unwrap();
            slot.finish_move().unwrap();
        }
        let there = run(&gpu.device);
        assert_eq!(*first.get_or_insert_with(|| there.clone()), there);
        let before = gpu.device.used();
        let bytes: u64 = slots.iter().map(|slot| slot.bytes()).sum();
        for slot in slots {
            slot.move_to(&Device::cpu()).unwrap();
            assert_eq!(slot.home(), Device::cpu());
            assert_eq!(slot.unread_bytes(), slot.bytes(), "it was copied");
        }
        assert!(
            gpu.device.used() + bytes <= before,
            "the GPU has its memory back"
        );
    }
    // The processor reads them from there, too.
    let close = |a: &Tensor, b: &Tensor| {
        let pairs = a.data().iter().zip(b.data());
        pairs.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) < 0.1
    };
    let here = run(&Device::cpu());
    let first = first.unwrap();
    assert!(close(&here[0], &first[0]) && close(&here[1], &first[1]));
}

/// Quantised rows, joined and cut as foreign layouts want them, straight from their file.
#[test]
fn quantised_files_are_read_to_their_place() {
    let Some(gpu) = gpus().first() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let mut random = Random::new(75);
    let kinds = [
        (RowKind::F8E4M3, 0),
        (RowKind::Int8, 64),
        (RowKind::Int4 { wide_input: false }, 64),
        (RowKind::Nvfp4, 0),
    ];
    // Large enough to go through pinned pieces.
    let (rows, columns) = (1200, 1024);
    let mut all = Vec::new();
    for (i, (kind, rotation)) in kinds.into_iter().enumerate() {
        let format = RowFormat::new(kind, columns, rotation).unwrap();
        let value = random.scaled(&[rows, columns], 0.3);
        let weight = Stored::from_f32(&value, Dtype::Rows(format)).unwrap();
        for (part, stored) in quantised_parts(&weight).unwrap() {
            all.push((format!("{i}.{part}"), stored));
        }
    }
    let pairs: Vec<_> = all.iter().map(|(n, s)| (n.as_str(), s)).collect();
    safetensors::write(&path, &pairs, &[]).unwrap();
    let file = open_weights(&path).unwrap();
    for i in 0..kinds.len() {
        let name = format!("{i}.weight");
        let wanted = file.read(&name).unwrap();
        let later = || file.later(&name).unwrap();
        let layer = Linear::new(&later(), None, &gpu.device).unwrap();
        assert_eq!(layer.weight().unwrap(), wanted, "{name}");
        let parts = [
            later().unread_rows(500, 700).unwrap(),
            later().unread_rows(0, 500).unwrap(),
        ];
        let turned = Stored::unread_joined(&parts).unwrap();
        let layer = Linear::new(&turned, None, &gpu.device).unwrap();
        let row = wanted.bytes().len() / rows;
        let (first, second) = wanted.bytes().split_at(500 * row);
        assert_eq!(layer.weight().unwrap().bytes(), [second, first].concat());
    }
}

/// A LoRA that is merged on the GPU against one that is merged here.
#[test]
fn growths_are_merged_as_here() {
    let mut checks = Checks::default();
    let mut random = Random::new(74);
    let Some(gpu) = gpus().first() else {
        return;
    };
    for dtype in [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
    ] {
        let (out, input, rank) = (384, 640, 16);
        let weight = stored(&mut random, &[out, input], dtype);
        let bias = stored(&mut random, &[out], Dtype::F32);
        let growths = [
            Growth {
                up: stored(&mut random, &[out, rank], Dtype::F16),
                down: stored(&mut random, &[rank, input], Dtype::F16),
                scale: 0.7,
                first: 0,
            },
            Growth {
                up: stored(&mut random, &[128, 4, 1, 1], Dtype::F32),
                down: stored(&mut random, &[4, input, 1, 1], Dtype::F32),
                scale: -1.3,
                first: 200,
            },
        ];
        let mut sum = weight.to_f32().unwrap();
        for growth in &growths {
            let flat = |of: &Stored| {
                let rows = of.shape()[0];
                of.to_f32().unwrap().reshape([1, rows, of.len() / rows])
            };
            let (up, down) = (flat(&growth.up).unwrap(), flat(&growth.down).unwrap());
            let change = fresco_tensor::nn::matmul(&up, &down).unwrap();
            let from = growth.first * input;
            for (to, by) in sum.data_mut()[from..].iter_mut().zip(change.data()) {
                *to += growth.scale * by;
            }
        }
        let wanted = Stored::by_chance(&sum, dtype, 99).unwrap();
        let group = SlotGroup::new();
        for home in [&gpu.device, &Device::cpu()] {
            let layer = Linear::new(&weight, Some(&bias), home).unwrap();
            let how = MergedAs {
                dtype,
                seed: 99,
                bias: Some(&bias),
                group: &group,
            };
            let merged = layer.merged(&growths, how, &gpu.device).unwrap().unwrap();
            assert_eq!(merged.slot().home(), gpu.device);
            assert_eq!(merged.bias().unwrap().unwrap(), bias);
            let found = merged.weight().unwrap();
            let pairs = found.bytes().iter().zip(wanted.bytes());
            let other = pairs.filter(|(a, b)| a != b).count();
            println!(
                "merged {dtype:?}: {other} of {} bytes differ",
                found.bytes().len()
            );
            let (found, wanted) = (found.to_f32().unwrap(), wanted.to_f32().unwrap());
            let allowed = match dtype {
                Dtype::F32 => 1e-5,
                Dtype::F16 => 2e-3,
                Dtype::Bf16 => 1e-2,
                _ => 0.15,
            };
            checks.compare(&format!("merged {dtype:?}"), allowed, &wanted, &found);
            if dtype != Dtype::F32 {
                assert!(other * 50 < found.len() * 4, "{dtype:?}: {other}");
            }
        }
        // Nothing of it is done elsewhere than on a GPU.
        let layer = Arc::new(Linear::new(&weight, None, &Device::cpu()).unwrap());
        let how = MergedAs {
            dtype,
            seed: 1,
            bias: None,
            group: &group,
        };
        assert!(
            layer
                .merged(&growths, how, &Device::cpu())
                .unwrap()
                .is_none()
        );
    }
    checks.finish();
}
