//! Simulated devices: exact accounting, refusal when full, counted copies, results where the inputs are.

use std::sync::Arc;

use fresco_tensor::device::{Copies, Device};
use fresco_tensor::nn::{self, Act, After, Conv2d, GroupNorm, LayerNorm, Linear, Mask, Padding};
use fresco_tensor::{Axes, Dtype, Stored, Tensor, TensorError};
use proptest::prelude::*;

#[test]
fn copies_are_counted_by_direction() {
    let [a, b] = [100, 101].map(|n| Device::register_sim(n, 1 << 20).unwrap());
    let cpu = Device::cpu();
    let x = Tensor::ones([3, 5]).unwrap();
    assert_eq!(x.device(), cpu);
    let on_a = x.to(&a).unwrap();
    assert_eq!((on_a.device(), a.used()), (a.clone(), 60));
    assert_eq!(on_a, x);
    let same = on_a.to(&a).unwrap();
    assert_eq!(a.used(), 60, "the same storage");
    let on_b = on_a.to(&b).unwrap();
    on_b.to(&cpu).unwrap();
    let once = Copies {
        count: 1,
        bytes: 60,
    };
    assert_eq!(cpu.copies_to(&a), once);
    assert_eq!(a.copies_to(&b), once);
    assert_eq!(b.copies_to(&cpu), once);
    assert_eq!(a.copies_to(&cpu), Copies::default());
    assert_eq!((a.copies().into, a.copies().out), (once, once));
    drop((on_a, same, on_b));
    assert_eq!((a.used(), b.used()), (0, 0));
    assert_eq!(a.peak(), 60);
}

#[test]
fn operations_stay_on_the_device() {
    let device = Device::register_sim(102, 1 << 20).unwrap();
    let host = Tensor::from_fn([2, 4, 4, 8], |i| (i % 13) as f32 - 6.0).unwrap();
    let x = host.to(&device).unwrap();
    let rows = x.reshape([2, 16, 8]).unwrap();
    let results = [
        x.add_scalar(1.0),
        x.mul(&x).unwrap(),
        x.permute(&[0, 3, 1, 2]).unwrap(),
        x.narrow(1, 1, 2).unwrap(),
        x.repeat(&[2, 1, 1, 1]).unwrap(),
        x.index_select(0, &[1]).unwrap(),
        x.mean(&[1, 2], Axes::Keep).unwrap(),
        x.expand(&[2, 4, 4, 8]).unwrap(),
        x.clamp(-1.0, 1.0),
        x.lerp(&x, 0.5).unwrap(),
        nn::avg_pool2d(&x, 2).unwrap(),
        x.nhwc_to_nchw().unwrap(),
        Tensor::cat(&[&x, &x], 3).unwrap(),
        nn::concat_channels(&[&x, &x]).unwrap(),
        nn::upsample_nearest(&x, 8, 8).unwrap(),
        nn::silu(&x),
        nn::geglu(&x).unwrap(),
        nn::softmax_last(&x).unwrap(),
        nn::attention(&rows, &rows, &rows, 2, Mask::None, None).unwrap(),
        LayerNorm::new(None, None, 1e-5)
            .unwrap()
            .forward(&x)
            .unwrap(),
        Tensor::zeros_on(&device, [3]).unwrap(),
        fresco_tensor::common_upscale(
            &x,
            8,
            8,
            fresco_tensor::ResizeMethod::Bilinear,
            fresco_tensor::Crop::Disabled,
        )
        .unwrap(),
    ];
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result.device(), device, "{i}");
    }
    assert_eq!(results[1], host.mul(&host).unwrap());
    let mismatch = |error: TensorError| {
        let TensorError::DeviceMismatch { left, right, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((&*left, &*right), ("sim:102", "cpu"));
    };
    mismatch(x.add(&host).unwrap_err());
    mismatch(Tensor::cat(&[&x, &host], 0).unwrap_err());
    mismatch(x.clone().paste(&[0; 4], &host).unwrap_err());
    let other = host.reshape([2, 16, 8]).unwrap();
    mismatch(nn::attention(&rows, &other, &rows, 2, Mask::None, None).unwrap_err());
    mismatch(nn::attention(&rows, &rows, &other, 2, Mask::None, None).unwrap_err());
    // On the device as in main memory: bit for bit.
    let here = [
        host.add_scalar(1.0),
        host.mul(&host).unwrap(),
        host.permute(&[0, 3, 1, 2]).unwrap(),
    ];
    for (there, here) in results.iter().zip(&here) {
        assert_eq!(there.to(&Device::cpu()).unwrap().data(), here.data());
    }
    drop((results, x, rows));
    assert_eq!(device.used(), 0);
}

/// What ends a node when an operation has no other way to fail.
fn raised(body: impl FnOnce() + std::panic::UnwindSafe) -> TensorError {
    let thrown = std::panic::catch_unwind(body).unwrap_err();
    let error = thrown.downcast::<Box<dyn std::error::Error + Send + Sync>>();
    let error = error
        .expect("an error, not a message")
        .downcast::<TensorError>();
    *error.expect("an error of this crate")
}

#[test]
fn nothing_else_reads_the_memory_of_a_device() {
    let device = Device::register_sim(107, 1 << 20).unwrap();
    let host = Tensor::from_fn([2, 3], |i| i as f32).unwrap();
    let x = host.to(&device).unwrap();
    let refused = |error: TensorError| {
        let TensorError::NotInMainMemory { device, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(device, "sim:107");
        assert!(
            error.to_string().contains("copy it to cpu first"),
            "{error}"
        );
    };
    let copy = || std::panic::AssertUnwindSafe(x.clone());
    let t = copy();
    refused(raised(move || drop(t.data().to_vec())));
    let mut t = copy();
    refused(raised(move || t.data_mut()[0] = 1.0));
    let t = copy();
    refused(raised(move || drop(t.0.into_vec())));
    let t = copy();
    refused(raised(move || drop(t.map(|v| v))));
    let t = copy();
    refused(raised(move || drop(t.map_indexed(|_, v| v))));
    let mut t = copy();
    refused(raised(move || t.map_inplace(|v| v)));
    refused(x.zip_map(&x, |a, _| a).unwrap_err());
    refused(x.reduce(&[0], Axes::Drop, |_| 0.0).unwrap_err());
    refused(x.where_else(&x, &x).unwrap_err());
    refused(x.at(&[0, 0]).unwrap_err());
    refused(
        x.narrow(0, 0, 1)
            .unwrap()
            .narrow(1, 0, 1)
            .unwrap()
            .item()
            .unwrap_err(),
    );
    assert_eq!(format!("{x:?}"), "Tensor[2, 3] on sim:107");
    assert_eq!(x.to(&Device::cpu()).unwrap().data(), host.data());
}

/// A device with room for the input but not for the result refuses before it computes.
#[test]
fn what_does_not_fit_is_refused_before_the_work() {
    let device = Device::register_sim(108, 4 * 64 + 8).unwrap();
    let x = Tensor::zeros_on(&device, [1, 4, 4, 4]).unwrap();
    let full = |result: Result<Tensor, TensorError>| {
        assert!(
            matches!(result, Err(TensorError::DeviceFull { .. })),
            "{result:?}"
        );
        assert_eq!(device.used(), 4 * 64);
    };
    full(x.add(&x));
    full(x.permute(&[0, 3, 1, 2]));
    full(nn::upsample_nearest(&x, 8, 8));
    full(nn::concat_channels(&[&x, &x]));
    let weight = Stored::from(&Tensor::ones([8, 4]).unwrap());
    let seen = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let make: nn::MakeWeight = {
        let seen = Arc::clone(&seen);
        Arc::new(move || {
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(weight.clone())
        })
    };
    let layer = Linear::made((&[8, 4], Dtype::F32, make), None, &device).unwrap();
    full(layer.forward(&x));
    assert!(!seen.load(std::sync::atomic::Ordering::Relaxed));
    // An empty result takes nothing.
    assert!(x.narrow(0, 0, 0).is_ok());
    // Shared storage cannot be written without a copy; what nobody else holds can.
    let error = raised(std::panic::AssertUnwindSafe(|| drop(nn::silu(&x))));
    assert!(matches!(error, TensorError::DeviceFull { .. }), "{error}");
    assert_eq!(nn::activate(x, Act::Silu).device(), device);
}

#[test]
fn layers_take_memory_where_they_are() {
    let device = Device::register_sim(103, 1 << 20).unwrap();
    let stored = |shape: &[usize]| Stored::from(&Tensor::ones(shape).unwrap());
    let (w, b) = (stored(&[16, 8]), stored(&[16]));
    let linear = Linear::new(&w, Some(&b), &device).unwrap();
    assert_eq!(device.used(), linear.bytes());
    assert_eq!(device.copies().into.bytes, linear.bytes());
    let conv = Conv2d::new(&stored(&[4, 8, 3, 3]), None, 1, Padding::Same(1), &device).unwrap();
    let weights = linear.bytes() + conv.bytes();
    assert_eq!(device.used(), weights);
    // What is in a file counts, not what kernels make of it.
    assert_eq!((linear.bytes(), conv.bytes()), (4 * (128 + 16), 4 * 288));
    let host = Tensor::ones([1, 4, 4, 8]).unwrap();
    let x = host.to(&device).unwrap();
    let y = linear.forward(&x).unwrap();
    let z = conv.forward(&x).unwrap();
    assert_eq!((y.device(), z.device()), (device.clone(), device.clone()));
    assert_eq!(device.used(), weights + 4 * (128 + 256 + 64));
    let elsewhere = Tensor::ones([1, 4, 4, 16]).unwrap();
    let after = After {
        act: Act::Silu,
        add: Some(&elsewhere),
        per_item: None,
        ..After::default()
    };
    let error = linear.forward_with(&x, after).unwrap_err();
    assert!(
        matches!(error, TensorError::DeviceMismatch { .. }),
        "{error}"
    );
    let norm = GroupNorm::new(&stored(&[8]), &stored(&[8]), 2, 1e-5).unwrap();
    assert_eq!(norm.forward(&x, Act::Silu).unwrap().device(), device);
    // A weight that is made for each use takes memory only then.
    device.reset_peak();
    let before = device.used();
    let same = w.clone();
    let make: nn::MakeWeight = Arc::new(move || Ok(same.clone()));
    let made = Linear::made((w.shape(), w.dtype(), make), None, &device).unwrap();
    assert_eq!((made.bytes(), device.used()), (0, before));
    let again = made.forward(&x).unwrap();
    assert_eq!(device.used(), before + 4 * 256);
    let bias = 4 * 16;
    assert_eq!(device.peak(), before + linear.bytes() - bias + 4 * 256);
    drop((linear, conv, made, x, y, z, again));
    assert_eq!(device.used(), 0);

    let small = Device::register_sim(104, 100).unwrap();
    let Err(TensorError::DeviceFull { free: 100, .. }) = Linear::new(&w, None, &small) else {
        panic!("512 bytes were taken of 100");
    };
    let x = Tensor::zeros_on(&small, [20]).unwrap();
    assert!(x.add(&x).is_err());
    assert!(Tensor::ones([6]).unwrap().to(&small).is_err());
    assert_eq!(small.used(), 80);
    drop(x);
    assert_eq!((small.used(), small.peak()), (0, 80));
}

/// What a test does next; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Make { device: usize, size: usize },
    Drop(usize),
    Clone(usize),
    Move { which: usize, device: usize },
    Write(usize),
    Add(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0..1000usize;
    prop_oneof![
        (any.clone(), 0..60usize).prop_map(|(device, size)| Step::Make { device, size }),
        any.clone().prop_map(Step::Drop),
        any.clone().prop_map(Step::Clone),
        (any.clone(), any.clone()).prop_map(|(which, device)| Step::Move { which, device }),
        any.clone().prop_map(Step::Write),
        (any.clone(), any).prop_map(|(a, b)| Step::Add(a, b)),
    ]
}

/// Bytes of the storages of one device, each counted once.
fn bytes_on(tensors: &[Tensor], device: &Device) -> u64 {
    let mut storages: Vec<_> = tensors
        .iter()
        .filter(|t| t.device() == *device && !t.is_empty())
        .map(|t| (t.storage_address(), t.len()))
        .collect();
    storages.sort_unstable();
    storages.dedup();
    storages.iter().map(|(_, len)| 4 * *len as u64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accounting_is_exact(steps in prop::collection::vec(step(), 1..60)) {
        const CAPACITY: u64 = 600;
        let sim = |n| Device::register_sim(n, CAPACITY).or_else(|_| Device::sim(n)).unwrap();
        let devices = [Device::cpu(), sim(105), sim(106)];
        let mut tensors: Vec<Tensor> = Vec::new();
        for step in steps {
            let count = tensors.len().max(1);
            let get = |i: usize| tensors.get(i % count).cloned();
            let made = match step {
                Step::Make { device, size } => Some(Tensor::zeros_on(&devices[device % 3], [size])),
                Step::Clone(i) => get(i).map(Ok),
                Step::Move { which, device } => get(which).map(|t| t.to(&devices[device % 3])),
                Step::Add(a, b) => get(a).zip(get(b)).map(|(a, b)| a.add(&b)),
                Step::Drop(i) => {
                    if !tensors.is_empty() {
                        tensors.swap_remove(i % count);
                    }
                    None
                }
                Step::Write(i) => {
                    if let Some(t) = tensors.get(i % count) {
                        let room = t.device().free().is_none_or(|free| free >= 4 * t.len() as u64);
                        if room {
                            let own = tensors.swap_remove(i % count);
                            tensors.push(nn::activate(own, Act::Relu));
                        }
                    }
                    None
                }
            };
            match made {
                Some(Ok(tensor)) => tensors.push(tensor),
                Some(Err(TensorError::DeviceFull { wanted, free, capacity, .. })) => {
                    prop_assert!(wanted > free && capacity == CAPACITY);
                }
                Some(Err(
                    TensorError::DeviceMismatch { .. } | TensorError::ShapeMismatch { .. },
                )) | None => {}
                Some(Err(error)) => panic!("{error}"),
            }
            for device in &devices[1..] {
                prop_assert_eq!(device.used(), bytes_on(&tensors, device));
                prop_assert!(device.used() <= CAPACITY && device.peak() <= CAPACITY);
            }
        }
        drop(tensors);
        prop_assert_eq!((devices[1].used(), devices[2].used()), (0, 0));
    }
}
