//! Weights that are kept in one place and used in another: what is counted where, and what is copied ahead.

use std::sync::{Arc, Mutex};

use fresco_tensor::device::{Copies, Device};
use fresco_tensor::nn::{
    Act, Conv2d, Embedding, GroupNorm, LayerNorm, Linear, MakeWeight, Padding, RmsNorm, SlotGroup,
    Streamed, Value,
};
use fresco_tensor::{Dtype, Stored, Tensor, TensorError, open_weights, safetensors};

fn half(shape: &[usize]) -> Stored {
    let t = Tensor::from_fn(shape, |i| (i % 7) as f32 - 3.0).unwrap();
    Stored::from_f32(&t, Dtype::F16).unwrap()
}

/// A linear layer from 8 to 8 with a bias: 144 bytes.
const BYTES: u64 = 2 * (64 + 8);

fn linear(group: &SlotGroup) -> Linear {
    Linear::in_group(&half(&[8, 8]), Some(&half(&[8])), group).unwrap()
}

/// 32 bytes.
fn input(device: &Device) -> Tensor {
    let x = Tensor::from_fn([1, 8], |i| i as f32).unwrap();
    x.to(device).unwrap()
}

fn copies(count: u64, bytes: u64) -> Copies {
    Copies { count, bytes }
}

#[test]
fn every_home_and_every_place_of_use() {
    let [a, b] = [120, 121].map(|n| Device::register_sim(n, 4096).unwrap());
    let cpu = Device::cpu();
    let group = SlotGroup::new();
    let layer = linear(&group);
    assert_eq!((layer.slot().home(), layer.bytes()), (cpu.clone(), BYTES));
    let expected = layer.forward(&input(&cpu)).unwrap();
    assert_eq!(group.stats(), Streamed::default());
    let (on_a, on_b) = (input(&a), input(&b));

    // Kept in main memory, used on a device.
    let base = cpu.copies_to(&a);
    a.reset_peak();
    let y = layer.forward(&on_a).unwrap();
    assert_eq!((&y, y.device()), (&expected, a.clone()));
    assert_eq!(
        (a.used(), a.peak()),
        (32 + 32, 32 + BYTES + 32),
        "the copy goes with the use"
    );
    assert_eq!(
        cpu.copies_to(&a),
        copies(base.count + 1, base.bytes + BYTES)
    );
    drop(y);

    // Kept where it is used.
    layer.slot().move_to(&a).unwrap();
    assert_eq!((layer.slot().home(), a.used()), (a.clone(), 32 + BYTES));
    let before = a.copies();
    let used = group.stats();
    let y = layer.forward(&on_a).unwrap();
    assert_eq!((&y, a.copies()), (&expected, before));
    assert_eq!(group.stats(), used, "nothing was streamed");
    assert_eq!(a.used(), 64 + BYTES);
    drop(y);

    // Kept on one device, used on another, and in main memory.
    b.reset_peak();
    assert_eq!(layer.forward(&on_b).unwrap(), expected);
    assert_eq!((b.used(), b.peak()), (32, 32 + BYTES + 32));
    assert_eq!(a.copies_to(&b), copies(1, BYTES));
    assert_eq!(layer.forward(&input(&cpu)).unwrap(), expected);
    assert_eq!(a.copies_to(&cpu), copies(1, BYTES));
    assert_eq!(a.used(), 32 + BYTES);
    assert_eq!(
        group.stats(),
        Streamed {
            uses: 3,
            ahead: 0,
            bytes: 3 * BYTES
        }
    );

    // Without peer access over the main memory.
    assert!(a.peer_access() && b.peer_access());
    b.set_peer_access(false);
    let (out, into) = (a.copies_to(&cpu), cpu.copies_to(&b));
    assert_eq!(layer.forward(&on_b).unwrap(), expected);
    assert_eq!(a.copies_to(&b), copies(1, BYTES), "not directly");
    assert_eq!(a.copies_to(&cpu), copies(out.count + 1, out.bytes + BYTES));
    assert_eq!(
        cpu.copies_to(&b),
        copies(into.count + 1, into.bytes + BYTES)
    );
    layer.slot().move_to(&b).unwrap();
    assert_eq!(a.copies_to(&b), copies(1, BYTES));
    assert_eq!((a.used(), b.used()), (32, 32 + BYTES));
    cpu.set_peer_access(false);
    assert!(cpu.peer_access());

    drop((layer, on_a, on_b));
    assert_eq!((a.used(), b.used()), (0, 0));
}

#[test]
fn a_refused_move_changes_nothing() {
    let [a, b] = [122, 123].map(|n| Device::register_sim(n, 200).unwrap());
    let group = SlotGroup::new();
    let layer = linear(&group);
    layer.slot().move_to(&a).unwrap();
    let taken = b.allocate(100).unwrap();
    let before = (a.copies(), b.copies());
    assert!(matches!(
        layer.slot().move_to(&b),
        Err(TensorError::DeviceFull { wanted: BYTES, .. })
    ));
    assert_eq!(layer.slot().home(), a);
    assert_eq!((a.used(), b.used()), (BYTES, 100));
    assert_eq!((a.copies(), b.copies()), before);
    drop(taken);
    layer.slot().move_to(&b).unwrap();
    assert_eq!((a.used(), b.used()), (0, BYTES));
    layer.slot().move_to(&b).unwrap();
    assert_eq!(b.copies().into.count, before.1.into.count + 1);
}

#[test]
fn what_comes_next_is_copied_ahead() {
    let device = Device::register_sim(124, 4096).unwrap();
    let group = SlotGroup::new();
    group.set_ahead(2);
    let layers: Vec<Linear> = (0..4).map(|_| linear(&group)).collect();
    let x = input(&device);
    let pass = || {
        for layer in &layers {
            layer.forward(&x).unwrap();
        }
        group.stats()
    };
    let stats = |uses, ahead, copied| Streamed {
        uses,
        ahead,
        bytes: copied * BYTES,
    };
    // The order is not known yet.
    assert_eq!(pass(), stats(4, 0, 4));
    assert_eq!(device.used(), 32);
    // The first is not expected yet; from then on all are.
    assert_eq!(pass(), stats(8, 3, 10));
    assert_eq!(device.used(), 32 + 2 * BYTES, "the first two of the next");
    assert_eq!(pass(), stats(12, 7, 14));
    assert_eq!(device.used(), 32 + 2 * BYTES);
    // Never more than the current one and two more.
    device.reset_peak();
    pass();
    assert!(device.peak() <= 64 + 3 * BYTES, "{}", device.peak());
    group.drop_ahead();
    assert_eq!(device.used(), 32);
    // Those that are there need no copies, and the order holds across them.
    let home = Device::cpu();
    layers[1].slot().move_to(&device).unwrap();
    let before = group.stats();
    let after = pass();
    assert_eq!(
        (after.uses, after.ahead),
        (before.uses + 3, before.ahead + 2)
    );
    layers[1].slot().move_to(&home).unwrap();
    // A layer that goes takes its copy with it, and so does one that moves.
    pass();
    let held = device.used();
    let mut layers = layers;
    layers.remove(0);
    assert_eq!(device.used(), held - BYTES);
    layers[0].slot().move_to(&device).unwrap();
    assert_eq!(device.used(), held - BYTES, "the copy went, the home came");
    group.set_ahead(0);
    assert_eq!(device.used(), 32 + BYTES);
    drop(layers);
    assert_eq!(device.used(), 32);
}

/// Copies made ahead only take what nobody else wants.
#[test]
fn copies_ahead_give_way() {
    // Room for the input, one layer and its result, and a bit.
    let tight = Device::register_sim(125, 32 + BYTES + 32 + 10).unwrap();
    let group = SlotGroup::new();
    group.set_ahead(2);
    let layers: Vec<Linear> = (0..3).map(|_| linear(&group)).collect();
    let expected: Vec<Tensor> = layers
        .iter()
        .map(|layer| layer.forward(&input(&Device::cpu())).unwrap())
        .collect();
    let x = input(&tight);
    for _ in 0..3 {
        for (layer, expected) in layers.iter().zip(&expected) {
            assert_eq!(layer.forward(&x).unwrap(), *expected);
        }
    }
    assert_eq!(group.stats().ahead, 0);
    drop(x);

    // Room for a copy ahead, but not beside a result.
    let roomy = Device::register_sim(126, 32 + 2 * BYTES + 16).unwrap();
    let x = input(&roomy);
    let mut results = Vec::new();
    for _ in 0..3 {
        for (layer, expected) in layers.iter().zip(&expected) {
            let y = layer.forward(&x).unwrap();
            assert_eq!(y, *expected);
            results.push(y.to(&Device::cpu()).unwrap());
        }
    }
    // A copy of another network gives way, too.
    let other = SlotGroup::new();
    other.set_ahead(1);
    let pair = [linear(&other), linear(&other)];
    group.drop_ahead();
    for layer in [&pair[0], &pair[1], &pair[0]] {
        drop(layer.forward(&x));
    }
    let room = roomy.free().unwrap();
    let all = roomy.allocate(32 + 2 * BYTES + 16 - 32).unwrap();
    assert!(all.bytes() >= room);
    let Err(TensorError::DeviceFull { .. }) = layers[0].forward(&x) else {
        panic!("there was no room");
    };
    drop(all);
    assert_eq!(roomy.used(), 32);
}

#[test]
fn a_use_keeps_its_memory_while_the_home_moves() {
    let device = Device::register_sim(127, 4096).unwrap();
    let group = SlotGroup::new();
    let below = linear(&group);
    let slot = Arc::clone(below.slot());
    slot.move_to(&device).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    // A weight that is made at every use shows what is held during one.
    let make: MakeWeight = {
        let (slot, device, seen) = (Arc::clone(&slot), device.clone(), Arc::clone(&seen));
        Arc::new(move || {
            slot.move_to(&Device::cpu())?;
            let away = device.used();
            slot.move_to(&device)?;
            let both = device.used();
            slot.move_to(&Device::cpu())?;
            seen.lock().unwrap().push((away, both));
            Ok(half(&[8, 8]))
        })
    };
    let layer = Linear::made_in_slot((&[8, 8], Dtype::F16, make), None, Arc::clone(&slot)).unwrap();
    let x = input(&device);
    layer.forward(&x).unwrap();
    let made = 2 * 64;
    assert_eq!(
        *seen.lock().unwrap(),
        [(32 + BYTES + made, 32 + 2 * BYTES + made)],
        "the use holds what it began with, and the room for what is made"
    );
    assert_eq!((slot.home(), device.used()), (Device::cpu(), 32));
}

#[test]
fn tables_copy_the_rows_they_look_up() {
    let device = Device::register_sim(128, 4096).unwrap();
    let group = SlotGroup::new();
    let table = half(&[10, 4]);
    let embedding = Embedding::in_group(&table, &group).unwrap();
    let here = embedding.lookup(&[3, 0, 3]).unwrap();
    device.reset_peak();
    let there = embedding.lookup_on(&[3, 0, 3], &device).unwrap();
    assert_eq!((&here, there.device()), (&there, device.clone()));
    assert_eq!(device.peak(), 3 * 8 + 48);
    assert_eq!((device.used(), device.copies().into), (48, copies(1, 24)));
    embedding.slot().move_to(&device).unwrap();
    assert_eq!(device.used(), 48 + 80);
    let before = device.copies();
    assert_eq!(embedding.lookup_on(&[1], &device).unwrap().shape(), [1, 4]);
    assert_eq!(device.copies(), before);
    // Main memory needs the rows only.
    embedding.lookup(&[1, 2]).unwrap();
    assert_eq!(device.copies_to(&Device::cpu()), copies(1, 16));
    assert!(embedding.lookup_on(&[10], &device).is_err());
}

#[test]
fn all_kinds_of_layers_count_what_is_in_the_file() {
    let device = Device::register_sim(129, 1 << 16).unwrap();
    let group = SlotGroup::new();
    let (four, kernel) = (half(&[4]), half(&[6, 4, 3, 3]));
    let x = Tensor::from_fn([1, 3, 3, 4], |i| i as f32).unwrap();
    let conv = Conv2d::in_group(&kernel, Some(&half(&[6])), 1, Padding::Same(1), &group);
    let conv = conv.unwrap();
    let group_norm = GroupNorm::in_group(&four, &four, 2, 1e-5, &group).unwrap();
    let layer_norm = LayerNorm::in_group(Some(&four), Some(&four), 1e-5, &group).unwrap();
    let rms_norm = RmsNorm::in_group(Some(&four), 1e-5, &group).unwrap();
    let value = Value::in_group(&four, &group).unwrap();
    let plain = LayerNorm::new(None, None, 1e-5).unwrap();
    let run = |x: &Tensor| {
        let value = value.at(&x.device()).unwrap();
        let normed = group_norm.forward(x, Act::Silu).unwrap();
        let mut results = vec![
            conv.forward(x).unwrap(),
            layer_norm.forward(x).unwrap(),
            rms_norm.forward(x).unwrap(),
            plain.forward(x).unwrap(),
            x.add(&value).unwrap(),
        ];
        results.push(group_norm.forward_owned(normed, Act::None).unwrap());
        results
    };
    let expected = run(&x);
    let there = x.to(&device).unwrap();
    let before = device.copies().into;
    let streamed = run(&there);
    assert_eq!(streamed, expected);
    assert!(streamed.iter().all(|t| t.device() == device));
    drop(streamed);
    assert_eq!(device.used(), 4 * 36);
    let total = 444 + 16 + 16 + 16 + 8 + 8;
    let now = device.copies().into;
    assert_eq!(
        (now.count, now.bytes),
        (before.count + 6, before.bytes + total),
        "the group norm was used twice, the one without weights needs none"
    );
    let slots = [
        conv.slot(),
        group_norm.slot(),
        layer_norm.slot(),
        rms_norm.slot(),
        value.slot(),
    ];
    for slot in slots {
        slot.move_to(&device).unwrap();
    }
    assert_eq!(device.used(), 4 * 36 + total - 16);
    let sizes = [
        conv.bytes(),
        group_norm.bytes(),
        layer_norm.bytes(),
        rms_norm.bytes(),
        value.bytes(),
    ];
    assert_eq!(sizes.iter().sum::<u64>(), total - 16);
    let before = device.copies();
    assert_eq!(run(&there), expected);
    assert_eq!(device.copies(), before);
    // Blocks of quantised files count as blocks.
    let blocks = Stored::new(Dtype::Q8_0, [4, 64], vec![0; 272]).unwrap();
    let linear = Linear::new(&blocks, None, &Device::cpu()).unwrap();
    assert_eq!(linear.bytes(), 272);
    assert_eq!(linear.weight().unwrap(), blocks);
}

#[test]
fn many_threads_use_and_move_the_same_layers() {
    let [a, b] = [130, 131].map(|n| Device::register_sim(n, 6 * BYTES).unwrap());
    let group = SlotGroup::new();
    group.set_ahead(1);
    let layers: Vec<Linear> = (0..3).map(|_| linear(&group)).collect();
    let expected = layers[0].forward(&input(&Device::cpu())).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (layers, expected, a, b, group) = (&layers, &expected, &a, &b, &group);
            scope.spawn(move || {
                let places = [a, b, &Device::cpu()];
                for i in 0..300 {
                    let layer = &layers[(i + thread) % 3];
                    if thread < 2 {
                        // Refused is fine, wrong is not.
                        if let Ok(y) = input(&Device::cpu())
                            .to(places[i % 2])
                            .and_then(|x| layer.forward(&x))
                        {
                            assert_eq!(y, *expected);
                        }
                    } else {
                        let _ = layer.slot().move_to(places[(i / 3 + thread) % 3]);
                    }
                    if i % 50 == 0 {
                        group.drop_ahead();
                    }
                }
            });
        }
    });
    group.drop_ahead();
    let on = |device: &Device| {
        let kept = layers.iter().filter(|l| l.slot().home() == *device);
        kept.count() as u64 * BYTES
    };
    assert_eq!((a.used(), b.used()), (on(&a), on(&b)));
    drop(layers);
    assert_eq!((a.used(), b.used()), (0, 0));
}

/// A move out of main memory takes the room at once; the numbers follow when they are needed, or when told to.
#[test]
fn a_move_takes_the_room_first_and_copies_later() {
    let device = Device::register_sim(132, 4096).unwrap();
    let (cpu, group) = (Device::cpu(), SlotGroup::new());
    let layer = linear(&group);
    let expected = layer.forward(&input(&cpu)).unwrap();
    let x = input(&device);
    let used = device.used();
    layer.slot().move_to(&device).unwrap();
    assert_eq!(
        (layer.slot().home(), device.used()),
        (device.clone(), used + BYTES)
    );
    // Back before anything was copied.
    layer.slot().move_to(&cpu).unwrap();
    layer.slot().finish_move().unwrap();
    assert_eq!((layer.slot().home(), device.used()), (cpu.clone(), used));
    assert_eq!(layer.forward(&input(&cpu)).unwrap(), expected);
    // By the first use, and by being told.
    for told in [false, true] {
        layer.slot().move_to(&device).unwrap();
        if told {
            layer.slot().finish_move().unwrap();
            layer.slot().finish_move().unwrap();
        }
        let y = layer.forward(&x).unwrap();
        assert_eq!((&y, device.used()), (&expected, used + BYTES + 32));
        assert_eq!(layer.weight().unwrap(), half(&[8, 8]));
        assert_eq!(layer.bias().unwrap(), Some(half(&[8])));
        drop(y);
        layer.slot().move_to(&cpu).unwrap();
        assert_eq!(device.used(), used);
    }
}

/// What a slot holds on a device is a copy: no bytes are shared with the weight it was made from.
#[test]
fn weights_on_a_device_are_bytes_of_their_own() {
    let device = Device::register_sim(133, 4096).unwrap();
    let layer = Embedding::in_group(&half(&[10, 4]), &SlotGroup::new()).unwrap();
    let here = layer.table().unwrap();
    layer.slot().move_to(&device).unwrap();
    layer.slot().finish_move().unwrap();
    let before = device.copies_to(&Device::cpu());
    let there = layer.table().unwrap();
    assert_eq!(there, here);
    assert_ne!(there.bytes().as_ptr(), here.bytes().as_ptr());
    // Reading it back is a copy like any other.
    let now = device.copies_to(&Device::cpu());
    assert_eq!(
        (now.count, now.bytes),
        (before.count + 1, before.bytes + 80)
    );
}

/// The order of the processor's kernels is made at the first use there, or when told to, and not for a device.
#[test]
fn weights_stay_as_read_until_the_processor_needs_them() {
    let device = Device::register_sim(134, 4096).unwrap();
    let given = half(&[8, 8]);
    let as_read = |layer: &Linear| {
        let weight = layer.weight().unwrap();
        assert_eq!(weight, given);
        weight.bytes().as_ptr() == given.bytes().as_ptr()
    };
    let group = SlotGroup::new();
    let layer = Linear::in_group(&given, None, &group).unwrap();
    assert!(as_read(&layer));
    // On its way to a device nothing is reordered in main memory.
    layer.slot().move_to(&device).unwrap();
    layer.slot().move_to(&Device::cpu()).unwrap();
    assert!(as_read(&layer));
    layer.forward(&input(&Device::cpu())).unwrap();
    assert!(!as_read(&layer), "what was read is gone");
    // For a device that reads the same order it is made once, not for each use.
    let layer = Linear::in_group(&given, None, &group).unwrap();
    layer.forward(&input(&device)).unwrap();
    assert!(!as_read(&layer));
    let layer = Linear::in_group(&given, None, &group).unwrap();
    layer.slot().prepare().unwrap();
    assert!(!as_read(&layer));
}

/// A vocabulary of 20 MB, of which a prompt needs some rows: alone, one after the other, and again and again.
#[test]
fn a_large_table_stays_in_its_file() {
    const ROWS: usize = 10_000;
    const WIDTH: usize = 1024;
    let values = Tensor::from_fn([ROWS, WIDTH], |i| (i % 1999) as f32 / 8.0).unwrap();
    let stored = Stored::from_f32(&values, Dtype::F16).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.safetensors");
    safetensors::write(&path, &[("words", &stored)], &[]).unwrap();
    let file = open_weights(&path).unwrap();
    let table = Embedding::new(&file.later("words").unwrap()).unwrap();
    let in_memory = Embedding::new(&stored).unwrap();
    let ids = [9_999, 3, 4, 5, 0, 0, 0, 4, 7_777, 7_777, 7_778];
    for _ in 0..2 {
        let found = table.lookup(&ids).unwrap();
        assert_eq!(found, in_memory.lookup(&ids).unwrap());
        assert_eq!(table.slot().unread_bytes(), table.bytes());
    }
    assert_eq!(table.table().unwrap().bytes(), stored.bytes());
    assert_eq!(
        table.lookup(&ids).unwrap(),
        in_memory.lookup(&ids).unwrap(),
        "after all of it was read"
    );
}
