//! Budgets, partial loads and who leaves for whom.

use std::sync::atomic::Ordering::SeqCst;

use fresco_memory::{
    MemoryError, ModelRegistry, Need, Policy, Reserves, Settings, State, VramState,
};
use fresco_tensor::Device;

use crate::harness::*;

fn bare(state: VramState, streams: usize) -> Settings {
    Settings {
        state,
        reserves: Reserves {
            extra: 0,
            inference: 0,
            ratio: 0.0,
        },
        streams,
        ..Settings::default()
    }
}

#[test]
fn what_fits_is_loaded_completely() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(bench.report(&u).unwrap().state, State::Resident);
    let loaded = bench.events(0, "model.loaded");
    assert_eq!((loaded.len(), loaded[0].decision), (1, Some("full")));
    assert_eq!(loaded[0].bytes_after, Some(U));
    assert_eq!(u.fake.ahead.load(SeqCst), 0);
    // A second use has nothing to do and says nothing.
    let seq = bench.registry.last_seq();
    bench.run("q", || bench.touch("q", &[&u]));
    assert!(bench.events(seq, "model.loaded").is_empty());
    assert!(bench.events(seq, "model.load_requested").is_empty());
}

#[test]
fn golden_partial_loads() {
    // The first two rows of the table: 20 units of 100 MiB, a limit of 1000 MiB.
    for (streams, resident, buffer) in [(2, 600, 300), (0, 800, 100)] {
        let bench = Bench::with(bare(VramState::NormalVram, streams), &[1000 * MIB]);
        let u = bench.load(
            &who("p", "u"),
            "u",
            &even(20, 100 * MIB),
            &LoaderSettings::default(),
        );
        bench.run("p", || bench.touch("p", &[&u]));
        assert_eq!(bench.on(&u, 0), resident * MIB);
        let report = bench.report(&u).unwrap();
        assert_eq!(
            (report.state, report.host_bytes),
            (State::Partial, (2000 - resident) * MIB)
        );
        let loaded = &bench.events(0, "model.loaded")[0];
        assert_eq!(loaded.decision, Some("partial"));
        for number in [
            ("usable", 1000 * MIB),
            ("loaded", resident * MIB),
            ("offloaded", (2000 - resident) * MIB),
            ("buffer", buffer * MIB),
            ("read", 2000 * MIB),
        ] {
            assert!(loaded.numbers.contains(&number), "{number:?} {loaded:?}");
        }
        assert_eq!(u.fake.ahead.load(SeqCst), streams as u64);
        let snapshot = bench.registry.snapshot();
        assert_eq!(snapshot.devices[1].weights_buffer, buffer * MIB);
        // The same again moves nothing.
        let moves = u.fake.moves.load(SeqCst);
        bench.run("q", || bench.touch("q", &[&u]));
        assert_eq!(u.fake.moves.load(SeqCst), moves);
    }
}

#[test]
fn the_reserves_are_kept_free() {
    // 2.2: 0.8 GiB and 400 MiB.
    let bench = Bench::new(&[8 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(100, GIB / 10),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let minimum = Reserves::default().minimum();
    assert!(bench.devices[0].free().unwrap() >= minimum);
    assert!(bench.on(&u, 0) > 6 * GIB);
    // A larger picture: the model shrinks for it.
    bench.registry.prompt_started("q");
    let need = Need {
        required: 4 * GIB,
        ..Need::default()
    };
    let lease = bench
        .registry
        .lease(&who("q", "s"), &[&u.handle], need)
        .unwrap();
    let free = bench.devices[0].free().unwrap();
    assert!(free >= 4 * GIB, "{free}");
    drop(lease);
    bench.registry.prompt_ended("q");
}

#[test]
fn vram_states() {
    let units = even(20, GIB / 4);
    for (state, size, on_device) in [
        (VramState::NoVram, 24 * GIB, 0),
        (VramState::HighVram, 6 * GIB, U),
        (VramState::Shared, 6 * GIB, U),
        (VramState::Disabled, 6 * GIB, U),
    ] {
        let settings = Settings {
            state,
            ..Settings::default()
        };
        let bench = Bench::with(settings, &[size]);
        let u = bench.load(&who("p", "u"), "u", &units, &LoaderSettings::default());
        bench.run("p", || bench.touch("p", &[&u]));
        assert_eq!(bench.on(&u, 0), on_device, "{state:?}");
    }
    // Without a budget, but larger than the device: as much as fits, streamed.
    let settings = Settings {
        state: VramState::HighVram,
        ..Settings::default()
    };
    let bench = Bench::with(settings, &[4 * GIB]);
    let u = bench.load(&who("p", "u"), "u", &units, &LoaderSettings::default());
    bench.run("p", || bench.touch("p", &[&u]));
    let on = bench.on(&u, 0);
    assert!(
        on > 0 && on < 4 * GIB - Reserves::default().minimum(),
        "{on}"
    );
}

#[test]
fn main_memory_computes_without_devices() {
    let bench = Bench::new(&[24 * GIB]);
    let on_cpu = LoaderSettings {
        cpu: true,
        ..LoaderSettings::default()
    };
    let u = bench.load(&who("p", "u"), "u", &even(20, GIB / 4), &on_cpu);
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(bench.devices[0].copies().into.count, 0);
    assert_eq!(bench.devices[0].peak(), 0);
    assert_eq!(bench.report(&u).unwrap().state, State::Resident);
    let none = Bench::new(&[]);
    let u = none.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    none.run("p", || none.touch("p", &[&u]));
    assert_eq!(none.registry.primary().name(), "cpu");
}

#[test]
fn the_longest_unused_leaves_first() {
    // Room for two of three.
    let bench = Bench::new(&[13 * GIB]);
    let load = |name: &str| {
        bench.load(
            &who("p", name),
            name,
            &even(20, GIB / 4),
            &LoaderSettings::default(),
        )
    };
    let (a, b, c) = (load("a"), load("b"), load("c"));
    bench.run("1", || bench.touch("1", &[&a]));
    bench.run("2", || bench.touch("2", &[&b]));
    bench.run("3", || bench.touch("3", &[&a]));
    bench.run("4", || bench.touch("4", &[&c]));
    assert_eq!(
        (bench.on(&a, 0), bench.on(&b, 0), bench.on(&c, 0)),
        (U, 0, U)
    );
    let loaded = bench.events(0, "model.loaded");
    let numbers = &loaded.last().unwrap().numbers;
    for number in [
        ("used_at_start", 2 * U),
        ("used_with_room", U),
        ("used", 2 * U),
    ] {
        assert!(numbers.contains(&number), "{number:?} {numbers:?}");
    }
    let evicted = bench.events(0, "model.evicted");
    assert_eq!(evicted.len(), 1);
    assert_eq!(evicted[0].weights.as_ref(), Some(b.handle.id()));
    assert_eq!(bench.report(&b).unwrap().demoted_by, Some("pressure"));
    // Back from main memory, without reading.
    bench.run("5", || bench.touch("5", &[&b]));
    assert_eq!(b.fake.loads.load(SeqCst), 1);
    assert_eq!(bench.report(&b).unwrap().demoted_by, None);
}

#[test]
fn r18_kept_models_make_room_for_a_load() {
    let bench = Bench::new(&[8 * GIB]);
    let kept = bench.load(
        &who("p", "k"),
        "k",
        &even(8, GIB / 2),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.touch("p", &[&kept]));
    let u = bench.load(
        &who("q", "u"),
        "u",
        &even(20, GIB / 4),
        &with_policy(Policy::EjectAfter),
    );
    bench.registry.prompt_started("q");
    let lease = bench.lease("q", &[&u]);
    assert_eq!(bench.on(&u, 0), U);
    let report = bench.report(&kept).unwrap();
    assert_eq!(
        (report.policy, report.demoted_by),
        (Policy::Keep, Some("pressure"))
    );
    assert!(report.host_bytes > 0);
    let overridden = bench.events(0, "retention.overridden");
    assert_eq!(overridden.len(), 1);
    assert_eq!(overridden[0].policy, Some(Policy::Keep));
    drop(lease);
    bench.registry.prompt_ended("q");
    assert_eq!(bench.listed(), [kept.id()]);
}

#[test]
fn pinned_models_do_not_make_room() {
    let bench = Bench::new(&[8 * GIB]);
    let pinned = bench.load(
        &who("p", "k"),
        "k",
        &even(8, GIB / 2),
        &with_policy(Policy::Pin),
    );
    bench.run("p", || bench.touch("p", &[&pinned]));
    let u = bench.load(
        &who("q", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.run("q", || bench.touch("q", &[&u]));
    assert_eq!(bench.on(&pinned, 0), 4 * GIB);
    assert_eq!(bench.report(&u).unwrap().state, State::Partial);
    assert!(bench.events(0, "oom.step").is_empty());
}

#[test]
fn models_of_one_load_do_not_push_each_other_out() {
    let bench = Bench::new(&[8 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    let n = bench.load(
        &who("p", "n"),
        "n",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u, &n]));
    assert_eq!(bench.on(&u, 0), U);
    assert_eq!(bench.report(&n).unwrap().state, State::Partial);
    // In the order of the request.
    bench.run("q", || bench.touch("q", &[&n, &u]));
    assert_eq!(bench.devices[0].used(), bench.on(&u, 0) + bench.on(&n, 0));
}

#[test]
fn a_layer_larger_than_the_device_is_refused() {
    let bench = Bench::new(&[4 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &[unit("small", GIB), unit("huge", 5 * GIB)],
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    let result = bench
        .registry
        .lease(&who("p", "s"), &[&u.handle], Need::default());
    let Err(MemoryError::NoRoom {
        device,
        wanted,
        capacity,
        would_fit,
        ..
    }) = result
    else {
        panic!("{result:?}")
    };
    assert_eq!(
        (device, wanted, capacity),
        (bench.name(0), 5 * GIB, 4 * GIB)
    );
    assert!(would_fit.contains("huge"), "{would_fit}");
    bench.check();
    bench.registry.prompt_ended("p");
}

#[test]
fn three_times_the_device() {
    let bench = Bench::new(&[4 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(120, GIB / 10),
        &LoaderSettings::default(),
    );
    for prompt in ["p", "q", "r"] {
        bench.run(prompt, || {
            let _lease = bench.lease(prompt, &[&u]);
            // What streaming and computing needs is free.
            let computing =
                bench.devices[0].allocate(3 * (GIB / 10) + Reserves::default().inference);
            assert!(computing.is_ok());
        });
    }
    assert_eq!(u.fake.loads.load(SeqCst), 1);
    assert!(bench.devices[0].peak() <= 4 * GIB);
}

#[test]
fn without_smart_memory_everything_leaves() {
    let settings = Settings {
        smart: false,
        ..Settings::default()
    };
    let bench = Bench::with(settings, &[24 * GIB]);
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    bench.touch("p", &[&trio.c]);
    bench.touch("p", &[&trio.u]);
    assert_eq!(bench.on(&trio.c, 0), 0);
    bench.touch("p", &[&trio.v]);
    bench.registry.prompt_ended("p");
    assert_eq!(bench.devices[0].used(), V);
}

#[test]
fn an_offload_device_takes_what_does_not_fit() {
    let bench = Bench::new(&[4 * GIB, 24 * GIB]);
    let told = LoaderSettings {
        offload: Some(1),
        ..LoaderSettings::default()
    };
    let u = bench.load(&who("p", "u"), "u", &even(20, GIB / 4), &told);
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(bench.on(&u, 0) + bench.on(&u, 1), U);
    assert_eq!(bench.on_host(&u), 0);
    // Unloading means main memory, whatever the offload device.
    let request = fresco_memory::FreeRequest {
        unload_models: true,
        ..Default::default()
    };
    bench.registry.free(&request, None);
    assert_eq!(bench.on_host(&u), U);
}

#[test]
fn a_handle_on_another_device_moves_the_weights() {
    let bench = Bench::new(&[24 * GIB, 24 * GIB]);
    let units = even(20, GIB / 4);
    let first = bench.load(&who("p", "a"), "u", &units, &LoaderSettings::default());
    let second = LoaderSettings {
        device: Some(1),
        ..LoaderSettings::default()
    };
    let second = bench.load(&who("p", "b"), "u", &units, &second);
    bench.run("p", || {
        bench.touch("p", &[&first]);
        bench.touch("p", &[&second]);
    });
    assert_eq!((bench.on(&first, 0), bench.on(&first, 1)), (0, U));
    assert_eq!(first.fake.loads.load(SeqCst), 1);
}

/// A device that fails takes what was on it with it. Whoever comes next gets it elsewhere, from the file.
#[test]
fn a_failed_device_is_passed_over() {
    // Simulated both: a GPU would be lost for all tests that follow.
    let devices = [7900, 7901].map(|n| Device::register_sim(n, 24 * GIB).unwrap());
    let registry = ModelRegistry::new(Settings::default(), devices.to_vec());
    let bench = Bench::over(registry, devices.to_vec());
    let plain = LoaderSettings::default();
    let model = bench.load(&who("p", "u"), "u.safetensors", &even(20, GIB / 4), &plain);
    let patched = bench.patch(&model, 3);
    bench.run("p", || {
        bench.touch("p", &[&model]);
        bench.touch("p", &[&patched]);
    });
    assert!(bench.on(&model, 0) > 0);
    assert_eq!(bench.registry.primary(), devices[0]);
    devices[0].fail("an illegal address");
    assert_eq!(bench.registry.primary(), devices[1]);
    // Whoever still means that device is told so.
    bench.registry.prompt_started("q");
    let error = bench
        .registry
        .lease(&who("q", "s"), &[&model.handle], Need::default())
        .unwrap_err();
    let text = format!("{error:?}");
    assert!(text.contains("an illegal address"), "{text}");
    bench.registry.prompt_ended("q");
    // The same file on the other device, read again.
    let told = LoaderSettings {
        device: Some(1),
        ..LoaderSettings::default()
    };
    let again = bench.load(&who("r", "u"), "u.safetensors", &even(20, GIB / 4), &told);
    bench.run("r", || bench.touch("r", &[&again]));
    assert_eq!(bench.on(&again, 1), 5 * GIB);
    assert!(again.reads() >= 2);
}
