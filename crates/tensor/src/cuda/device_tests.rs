//! GPUs that are missing, too old, taken by others, full, or that fail, on a driver without a GPU behind it.

use std::sync::atomic::AtomicBool;

use super::super::driver::fake::{self, gpu};
use super::super::launches::elementwise::Fill;
use super::super::ops::product;
use super::super::staging::{Moment, Origin};
use super::super::steps::repeated;
use super::super::{Address, CopyEnd, CudaValue, MatrixShape, Shape};
use super::*;
use crate::formats::{RowFormat, RowKind};
use crate::gpu::{Finish, KernelCode, Treatment, Window};
use crate::{Dtype, Stored};

fn device() -> Arc<CudaDevice> {
    CudaDevice::open_with(fake::driver().unwrap(), 0, None)
        .unwrap()
        .held()
}

const GIB: u64 = 1 << 30;

#[test]
fn a_driver_that_does_not_start_says_why_and_what_to_do() {
    for (code, part) in [
        (100, "it finds no GPU"),
        (35, "install 525 or newer"),
        (803, "restart the machine"),
        (999, "does not start"),
    ] {
        gpu(|gpu| gpu.failing.insert("init", code));
        let reason = fake::driver().err().unwrap();
        assert!(reason.contains(part), "{reason}");
        assert!(reason.contains(&format!("({code})")), "{reason}");
    }
}

#[test]
fn devices_that_cannot_be_used_are_named() {
    let open = || {
        CudaDevice::open_with(fake::driver().unwrap(), 0, None)
            .err()
            .unwrap()
    };
    gpu(|gpu| gpu.capability = (6, 1));
    let reason = open();
    assert!(
        reason.contains("cuda:0 (Fake)") && reason.contains("6.1") && reason.contains("7.5"),
        "{reason}"
    );
    gpu(|gpu| (gpu.capability, gpu.pools) = ((8, 6), false));
    let reason = open();
    assert!(reason.contains("a newer one is needed"), "{reason}");
    gpu(|gpu| {
        gpu.pools = true;
        gpu.failing.insert("context", 46);
    });
    let reason = open();
    assert!(
        reason.contains("cuda:0 does not start") && reason.contains("DEVICE_UNAVAILABLE"),
        "{reason}"
    );
    // One that is not there at all.
    let reason = CudaDevice::open_with(fake::driver().unwrap(), 3, None).err();
    assert!(reason.unwrap().contains("cuda:3 does not start"));
}

#[test]
fn cards_without_bf16_compute_in_f16() {
    gpu(|gpu| gpu.capability = (7, 5));
    assert!(!device().has_bf16());
    gpu(|gpu| gpu.capability = (8, 0));
    assert!(device().has_bf16());
}

#[test]
fn one_card_computes_as_another() {
    let open = |text: &str| CudaDevice::open_with(fake::driver().unwrap(), 0, Some(text));
    let ada = open("8.9").unwrap();
    assert_eq!((ada.arch(), ada.hopper(), ada.has_fp8()), (89, false, true));
    // As much shared memory as such a card has; and the driver compiles, because machine code is for one generation.
    assert_eq!(ada.shared_limit(), 99 << 10);
    assert!(
        ada.state()
            .kernels
            .iter()
            .all(|module| module.code == KernelCode::Portable)
    );
    assert!(open("9.0").unwrap().hopper());
    for text in ["12.0", "6.1", "89", "8.x", "8.10", ""] {
        let reason = open(text).err().unwrap();
        assert!(
            reason.contains("FRESCO_CUDA_AS") && reason.contains("7.5 to 9.0"),
            "{reason}"
        );
    }
}

#[test]
fn scaled_fp8_is_multiplied_as_such_where_the_card_can() {
    let format = RowFormat::new(RowKind::F8E4M3, 64, 0).unwrap();
    let plain = crate::synthetic::value("w", &[64, 64], 0.1).unwrap();
    let stored = Stored::from_f32(&plain, Dtype::Rows(format)).unwrap();
    let shape = MatrixShape {
        out: 64,
        channels: 64,
        taps: 1,
    };
    for (capability, fp8) in [
        ((8, 0), false),
        ((8, 6), false),
        ((8, 9), true),
        ((9, 0), true),
        ((10, 0), false),
        ((12, 0), true),
        ((12, 1), true),
    ] {
        gpu(|gpu| {
            gpu.capability = capability;
            gpu.kernels.clear();
        });
        let device = device();
        let block = device.take(1 << 20).unwrap();
        let weight = CudaValue::upload(&stored, Some(shape), (&block, false), &mut 0).unwrap();
        let x = device.buffer(16 * 64, Format::Bf16).unwrap();
        let (treatment, finish) = (Treatment::default(), Finish::default());
        // The copy engine is not there, without which Hopper's kernel does not start: it comes after the rounding.
        let made = product::linear(&weight, &x, 16, treatment, finish);
        assert_eq!(made.is_ok(), capability != (9, 0));
        let kernels = gpu(|gpu| gpu.kernels.clone());
        let rounded = kernels.iter().any(|name| name == "e4m3");
        assert_eq!(rounded, fp8, "{capability:?}: {kernels:?}");
        let decoded = kernels.iter().any(|name| name == "from_apart_e4m3");
        assert_eq!(decoded, !fp8, "{capability:?}: {kernels:?}");
    }
}

#[test]
fn halved_kernels_are_kept_where_there_is_plenty_of_room() {
    let shape = MatrixShape {
        out: 64,
        channels: 64,
        taps: 9,
    };
    let plain = crate::synthetic::value("w", &[64, 64, 3, 3], 0.1).unwrap();
    let stored = Stored::from_f32(&plain, Dtype::F16).unwrap();
    let window = Window {
        frames: 1,
        size: (64, 64),
        enlarged: (128, 128),
        channels: 64,
        out: [1, 128, 128],
        kernel: [1, 3, 3],
        time_stride: 1,
        stride: 1,
        time_before: 0,
        above: 1,
        left: 1,
    };
    let bytes = 16 * 64 * 64 * 2;
    // Whether the weight stays, what others leave, and what is kept after two uses.
    for (stays, left, kept) in [(true, GIB, bytes), (false, GIB, 0), (true, 2 << 20, 0)] {
        gpu(|gpu| {
            gpu.capability = (9, 0);
            gpu.others = 0;
        });
        let device = device();
        let block = device.take(1 << 20).unwrap();
        let weight = CudaValue::upload(&stored, Some(shape), (&block, false), &mut 0).unwrap();
        let x = device.buffer(64 * 64 * 64, Format::F16).unwrap();
        gpu(|gpu| gpu.others = gpu.total - gpu.used() - left);
        let treatment = Treatment {
            stays,
            ..Treatment::default()
        };
        let before = device.taken();
        for _ in 0..2 {
            // Hopper's kernel does not start without the copy engine: it comes after that.
            assert!(product::conv(&weight, &x, window, treatment, Finish::default()).is_err());
        }
        assert_eq!(device.taken() - before, kept, "{stays} {left}");
        // It goes with the weight.
        drop(weight);
        assert_eq!(device.taken(), before, "{stays} {left}");
    }
    gpu(|gpu| gpu.others = 0);
}

#[test]
fn memory_that_others_take_is_not_free() {
    let device = device();
    assert_eq!(device.free(), device.capacity());
    gpu(|gpu| gpu.others = 6 * GIB);
    assert_eq!(device.free(), 2 * GIB);
    // The books would allow it, the driver does not: the error says what there is.
    match device.take(3 * GIB).unwrap_err() {
        TensorError::DeviceFull {
            device: name,
            wanted,
            free,
            ..
        } => {
            assert_eq!((&*name, wanted), ("cuda:0", 3 * GIB));
            assert_eq!(free, 2 * GIB);
        }
        other => panic!("{other}"),
    }
    // What was counted for it is not counted any more, and the device goes on.
    assert_eq!(device.used(), 0);
    let block = device.take(GIB).unwrap();
    assert_eq!(device.used(), GIB);
    drop(block);
    assert_eq!((device.used(), gpu(|gpu| gpu.used())), (0, 0));
    gpu(|gpu| gpu.others = 0);
    assert_eq!(device.free(), device.capacity());
}

#[test]
fn a_part_that_is_left_to_others_is_refused_before_the_driver_is_asked() {
    let device = device();
    device.reserve(6 * GIB);
    assert_eq!(device.capacity(), 2 * GIB);
    let before = gpu(|gpu| gpu.count("allocate"));
    assert!(device.take(3 * GIB).is_err());
    assert_eq!(gpu(|gpu| gpu.count("allocate")), before);
}

#[test]
fn an_error_that_ends_the_context_is_remembered_and_survived() {
    let device = device();
    let block = device.take(1 << 20).unwrap();
    gpu(|gpu| gpu.failing.insert("synchronize", 700));
    let error = device.synchronize().unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cuda:0 has failed: ") && text.contains("ILLEGAL_ADDRESS (700)"),
        "{text}"
    );
    // Whatever the driver would say now: nothing is asked of it any more.
    gpu(|gpu| gpu.failing.clear());
    let calls = gpu(|gpu| gpu.calls.len());
    let failed = |error: TensorError| matches!(error, TensorError::DeviceFailed { .. });
    assert!(failed(device.take(1).unwrap_err()));
    assert!(failed(device.upload(block.address(), &[1]).unwrap_err()));
    assert!(failed(device.synchronize().unwrap_err()));
    let fill = Fill {
        to: (&block).into(),
        value: 0.0,
        total: 1,
    };
    let launched = device.launch(Format::F32, Shape::row(1, 32), fill);
    assert!(failed(launched.unwrap_err()));
    drop(block);
    device.trim();
    assert_eq!(gpu(|gpu| gpu.calls.len()), calls);
    assert_eq!(device.used(), 0);
    assert!(device.state().failed.unwrap().contains("700"));
}

#[test]
fn a_device_that_vanishes_is_one_that_failed() {
    for code in [4, 46, 999] {
        gpu(|gpu| gpu.failing.clear());
        let device = device();
        let block = device.take(1 << 20).unwrap();
        gpu(|gpu| gpu.failing.insert("copy", code));
        let error = device.upload(block.address(), &[0; 16]).unwrap_err();
        assert!(matches!(error, TensorError::DeviceFailed { .. }), "{code}");
        assert!(device.state().failed.is_some(), "{code}");
    }
}

#[test]
fn an_error_of_one_call_does_not_end_the_device() {
    let device = device();
    // An invalid value is our own mistake; the context is as good as before.
    gpu(|gpu| gpu.failing.insert("copy", 1));
    let block = device.take(64).unwrap();
    assert!(device.upload(block.address(), &[0; 16]).is_err());
    gpu(|gpu| gpu.failing.clear());
    device.upload(block.address(), &[7; 16]).unwrap();
    let mut back = [0; 16];
    device.download(&mut back, block.address()).unwrap();
    assert_eq!(back, [7; 16]);
}

#[test]
fn weights_go_through_pinned_memory_in_pieces() {
    let device = device();
    let bytes: Vec<u8> = (0..(100 << 20) + 13)
        .map(|i: u32| ((i * 7) >> 3) as u8)
        .collect();
    let block = device.take(bytes.len() as u64).unwrap();
    device
        .bring(block.address(), Origin::Memory(&bytes), Moment::InTurn)
        .unwrap();
    let mut back = vec![0; bytes.len()];
    device.download(&mut back, block.address()).unwrap();
    assert!(back == bytes);
    // A few pieces, however much goes through them.
    let pieces = gpu(|gpu| gpu.count("pinned"));
    assert!((1..=16).contains(&pieces), "{pieces}");
    device.trim();
    drop(block);
    assert_eq!(gpu(|gpu| gpu.used()), 0);
}

#[test]
fn an_interrupt_ends_a_copy_between_two_pieces() {
    let device = device();
    let bytes = vec![7; 40 << 20];
    let block = device.take(bytes.len() as u64).unwrap();
    let bring = || device.bring(block.address(), Origin::Memory(&bytes), Moment::InTurn);
    let flag = Arc::new(AtomicBool::new(true));
    let ended = crate::cancel::with(&flag, bring);
    assert_eq!(ended, Err(TensorError::Cancelled));
    // The device is as good as before.
    bring().unwrap();
    let mut back = vec![0; bytes.len()];
    device.download(&mut back, block.address()).unwrap();
    assert!(back == bytes);
}

#[test]
fn a_reader_that_hangs_keeps_nobody() {
    let device = device();
    let len = 20 << 20;
    let block = device.take(len as u64).unwrap();
    let (go_on, hangs) = std::sync::mpsc::channel::<()>();
    let hangs = std::sync::Mutex::new(hangs);
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    // The third part comes from a network share that does not answer, and the prompt is interrupted meanwhile.
    let fill = move |(from, len): (usize, usize), out: &mut [u8]| {
        if from == 2 << 20 {
            raised.store(true, Ordering::Relaxed);
            let _ = lock(&hangs).recv();
        }
        out[..len].fill(7);
        Ok(0..len)
    };
    let ended = crate::cancel::with(&flag, || {
        device.bring_by(block.address(), len, Arc::new(fill), &crate::readers::start)
    });
    assert_eq!(ended, Err(TensorError::Cancelled));
    // Others go on before the share answers, and after that.
    let bytes = vec![3; len];
    let bring = || device.bring(block.address(), Origin::Memory(&bytes), Moment::InTurn);
    bring().unwrap();
    drop(go_on);
    bring().unwrap();
    let mut back = vec![0; len];
    device.download(&mut back, block.address()).unwrap();
    assert!(back == bytes);
    device.trim();
    drop(block);
    assert_eq!(gpu(|gpu| gpu.used()), 0);
}

#[test]
fn pinned_memory_that_is_refused_is_told() {
    let device = device();
    gpu(|gpu| gpu.failing.insert("pinned", 2));
    let block = device.take(4 << 20).unwrap();
    let bytes = vec![1; 4 << 20];
    let error = device.bring(block.address(), Origin::Memory(&bytes), Moment::InTurn);
    assert!(matches!(error, Err(TensorError::DeviceFull { .. })));
}

#[test]
fn the_ring_gives_way_to_what_needs_its_room() {
    let device = device();
    device.reserve(4 * GIB);
    let part = device.block_in_ring(100 << 20).unwrap().unwrap();
    assert_eq!(device.taken(), GIB);
    assert_eq!(device.used(), 0);
    drop(part);
    // All but what the ring has, and then all of it.
    let first = device.block(3 * GIB).unwrap();
    let second = device.block(GIB / 2).unwrap();
    assert_eq!(device.taken(), 3 * GIB + GIB / 2);
    drop((first, second));
    // The next ring is smaller.
    let part = device.block_in_ring(100 << 20).unwrap().unwrap();
    assert_eq!(device.taken(), GIB / 2);
    drop(part);
    // Copies that are too large for it find their own place.
    assert!(device.block_in_ring(GIB).unwrap().is_none());
}

#[test]
fn a_step_leaves_room_for_the_weights_that_are_copied_while_it_runs() {
    let device = device();
    // Room for all that the step takes once, and not twice.
    device.reserve(8 * GIB - (700 << 20));
    let step = |key: u64, copies: bool| {
        repeated(&*device, key, || {
            let _results = device.buffer(100 << 20, Format::F32).unwrap();
            if copies {
                CopyEnd::new(device.shared()).unwrap().wait().unwrap();
            }
            device.taken() - device.used() > 0
        })
    };
    // The first one is measured. One that only computes then has memory of its own.
    assert_eq!([(); 2].map(|()| step(1, false)), [false, true]);
    device.trim();
    assert_eq!([(); 3].map(|()| step(2, true)), [false; 3]);
    // With room for both it has, and so it has when nothing is copied any more.
    device.reserve(7 * GIB);
    assert!(step(2, true));
    device.reserve(8 * GIB - (700 << 20));
    assert_eq!([(); 2].map(|()| step(2, false)), [false, true]);
}

#[test]
fn results_of_a_step_come_back_without_pinned_memory_too() {
    let device = device();
    let step = |bytes: usize| {
        repeated(&*device, 1, || {
            let results = device.buffer(bytes / 4, Format::F32).unwrap();
            device.download(&mut vec![0; bytes], results.address())
        })
    };
    let pinned = || gpu(|gpu| gpu.count("pinned"));
    // The first one is measured. Then there is one place for all that are no larger.
    for bytes in [4096, 4096, 4096, 64] {
        step(bytes).unwrap();
    }
    assert_eq!(pinned(), 1);
    gpu(|gpu| gpu.failing.insert("pinned", 2));
    step(8192).unwrap();
    gpu(|gpu| gpu.failing.remove("pinned"));
    step(8192).unwrap();
    assert_eq!(pinned(), 3);
    // Many go their own way.
    step(16 << 20).unwrap();
    assert_eq!(pinned(), 3);
}

#[test]
fn a_ring_waits_on_the_gpu_and_not_in_the_program() {
    let device = device();
    device.reserve(4 * GIB);
    let mut held = Vec::new();
    while let Some(part) = device.block_in_ring(200 << 20).unwrap() {
        held.push(part);
    }
    assert_eq!(held.len(), 5);
    held.clear();
    let before = gpu(|gpu| (gpu.count("wait"), gpu.count("synchronize")));
    let _part = device.block_in_ring(200 << 20).unwrap().unwrap();
    let after = gpu(|gpu| (gpu.count("wait"), gpu.count("synchronize")));
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 0));
}

#[test]
fn the_books_are_compared_with_the_driver() {
    let device = device();
    assert_eq!(device.discrepancy(), None);
    let block = device.take(10 << 20).unwrap();
    assert_eq!(device.discrepancy(), None);
    // Somebody else in this process took memory of the pool, or we lost count.
    device.used.fetch_sub(5 << 20, Ordering::Relaxed);
    let problem = device.discrepancy().unwrap();
    assert!(problem.contains("1 pieces"), "{problem}");
    device.used.fetch_add(6 << 20, Ordering::Relaxed);
    assert!(device.discrepancy().is_some());
    device.used.fetch_sub(1 << 20, Ordering::Relaxed);
    drop(block);
    assert_eq!(device.discrepancy(), None);
    gpu(|gpu| gpu.failing.insert("synchronize", 719));
    assert!(device.synchronize().is_err());
    assert!(device.discrepancy().unwrap().contains("it has failed"));
}
