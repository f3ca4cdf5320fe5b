//! Prompts that begin and end: exactly once, also after a crash; handles that come and go.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use fresco_memory::plan::EvictionRank;
use fresco_memory::{MemoryError, ModelRegistry, Need, Policy, Probes, Reason, Settings, Trigger};

use crate::harness::*;

#[test]
fn the_end_happens_once() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &with_policy(Policy::EjectAfter),
        &with_policy(Policy::Keep),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.compute("p", &trio));
    let seq = bench.registry.last_seq();
    assert!(bench.registry.prompt_ended("p").steps.is_empty());
    assert!(bench.registry.prompt_ended("never").steps.is_empty());
    assert_eq!(bench.registry.last_seq(), seq);
}

#[test]
fn what_a_crash_left_behind_is_taken_back() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "crashed",
        &with_policy(Policy::EjectAfter),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    // Its start was never told, or its worker is gone.
    let lost = bench.lease("crashed", &[&trio.u]);
    bench.registry.prompt_started("next");
    bench.check();
    assert_eq!(bench.listed().len(), 2);
    let done = bench.events(0, "cleanup.completed");
    assert_eq!((done.len(), done[0].trigger), (1, Some(Trigger::Recovered)));
    // The lease that was revoked ends without harm, and cannot ask for anything.
    assert!(!bench.registry.relieve(&lost, &bench.name(0), 1));
    drop(lost);
    bench.touch("next", &[&trio.v]);
    bench.registry.prompt_ended("next");
}

#[test]
fn prompts_that_run_are_left_alone() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "a",
        &LoaderSettings::default(),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("a");
    bench.touch("a", &[&trio.u]);
    bench.registry.prompt_started("b");
    assert_eq!(bench.report(&trio.u).unwrap().leases, ["a".into()]);
    bench.registry.prompt_ended("b");
    assert_eq!(bench.report(&trio.u).unwrap().leases, ["a".into()]);
    bench.registry.prompt_ended("a");
    assert!(bench.report(&trio.u).unwrap().leases.is_empty());
}

#[test]
fn orphans_stay_until_their_place_is_needed() {
    let bench = Bench::new(&[24 * GIB]);
    let units = even(20, GIB / 4);
    bench.run("p", || {
        let u = bench.load(&who("p", "u"), "u", &units, &LoaderSettings::default());
        bench.touch("p", &[&u]);
    });
    let listed = bench.registry.snapshot().models;
    assert_eq!(
        (
            listed.len(),
            listed[0].handles.len(),
            listed[0].claims.len()
        ),
        (1, 0, 0)
    );
    // A loader that runs again reads nothing.
    bench.run("q", || {
        let u = bench.load(&who("q", "u"), "u", &units, &LoaderSettings::default());
        assert!(u.attached);
        bench.touch("q", &[&u]);
        assert_eq!(u.fake.loads.load(SeqCst), 1);
    });
    // It goes first, although something else was not used for longer.
    bench.run("r", || {
        let old = bench.load(
            &who("r", "old"),
            "old",
            &even(4, GIB),
            &LoaderSettings::default(),
        );
        bench.touch("r", &[&old]);
        let u = bench.load(&who("r", "u"), "u", &units, &LoaderSettings::default());
        bench.touch("r", &[&u]);
        std::mem::forget(old.handle);
    });
    let big = bench.load(
        &who("s", "x"),
        "x",
        &even(30, GIB / 2),
        &LoaderSettings::default(),
    );
    bench.run("s", || bench.touch("s", &[&big]));
    let names: Vec<String> = bench
        .listed()
        .iter()
        .map(|id| id.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["old", "x"]);
    let released = bench.events(0, "model.released");
    let unreferenced = |reason: &Reason| match reason {
        Reason::Room { rank, .. } | Reason::MainMemory { rank } => {
            *rank == EvictionRank::Unreferenced
        }
        _ => false,
    };
    assert!(released[0].reason.as_ref().is_some_and(unreferenced));
}

#[test]
fn the_last_clone_takes_its_own_units_along() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    let patched = bench.patch(&u, 4);
    bench.run("p", || bench.touch("p", &[&patched]));
    let clone = patched.handle.clone();
    drop(patched);
    assert_eq!(bench.devices[0].used(), U);
    drop(clone);
    assert_eq!(bench.devices[0].used(), U - GIB);
    assert_eq!(bench.on_host(&u), GIB);
    assert_eq!(
        bench.events(0, "model.released")[0].trigger,
        Some(Trigger::HandleDropped)
    );
}

#[test]
fn a_patch_on_a_patch() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    let first = bench.patch(&u, 6);
    let second = bench.patch(
        &Model {
            handle: first.handle.clone(),
            fake: Arc::clone(&first.fake),
            attached: true,
        },
        2,
    );
    // The first handle is not referred to any more, but what the second was made from is.
    drop(first.handle);
    bench.run("p", || bench.touch("p", &[&second]));
    assert_eq!(bench.devices[0].used(), U);
    assert_eq!(bench.on_host(&u), 6 * GIB / 4 + 2 * GIB / 4);
    drop(second);
    assert_eq!(bench.devices[0].used(), U - 6 * GIB / 4);
}

#[test]
fn a_load_that_fails_leaves_nothing_behind() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &with_policy(Policy::Keep),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    trio.u.fake.fail_load.store(true, SeqCst);
    let result = bench.registry.lease(
        &who("p", "s"),
        &[&trio.c.handle, &trio.u.handle],
        Need::default(),
    );
    let MemoryError::Load { weights, source } = result.unwrap_err() else {
        panic!("another error")
    };
    assert_eq!(weights, *trio.u.handle.id());
    assert!(source.downcast_ref::<Injected>().is_some());
    bench.check();
    let report = bench.report(&trio.u).unwrap();
    assert_eq!(
        (
            report.host_bytes,
            report.residency.len(),
            report.leases.len()
        ),
        (0, 0, 0)
    );
    trio.u.fake.fail_load.store(false, SeqCst);
    bench.touch("p", &[&trio.u]);
    assert_eq!(bench.on(&trio.u, 0), U);
    bench.registry.prompt_ended("p");
}

#[test]
fn l10_an_error_while_placing_detaches_the_model() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    let patched = bench.patch(&u, 5);
    bench.registry.prompt_started("p");
    patched.fake.fail_move.store(true, SeqCst);
    let result = bench
        .registry
        .lease(&who("p", "s"), &[&patched.handle], Need::default());
    assert!(matches!(result, Err(MemoryError::Device(_))), "{result:?}");
    bench.check();
    assert_eq!(bench.devices[0].used(), 0);
    assert!(bench.report(&u).unwrap().leases.is_empty());
    patched.fake.fail_move.store(false, SeqCst);
    bench.touch("p", &[&patched]);
    assert_eq!(bench.devices[0].used(), U);
    assert_eq!(u.fake.loads.load(SeqCst), 1);
    bench.registry.prompt_ended("p");
}

#[test]
fn a_panic_while_reading_does_not_block_others() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    u.fake.panic_load.store(true, SeqCst);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.touch("p", &[&u])));
    assert!(result.is_err());
    u.fake.panic_load.store(false, SeqCst);
    bench.touch("p", &[&u]);
    assert_eq!(bench.on(&u, 0), U);
    bench.registry.prompt_ended("p");
}

#[test]
fn listeners_may_ask_the_registry() {
    let bench = Bench::new(&[24 * GIB]);
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let (registry, list) = (bench.registry.clone(), Arc::clone(&seen));
    bench.registry.on_event(Arc::new(move |event| {
        assert!(registry.last_seq() >= event.seq);
        let _ = registry.snapshot();
        list.lock().unwrap().push(event.seq);
    }));
    let trio = bench.trio(
        "p",
        &with_policy(Policy::EjectAfter),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.compute("p", &trio));
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, (1..=bench.registry.last_seq()).collect::<Vec<_>>());
}

#[test]
fn events_are_a_ring() {
    let bench = Bench::new(&[]);
    for _ in 0..10_005 {
        bench.registry.note_cache_reset();
    }
    let all = bench.registry.events(0, &[], usize::MAX);
    assert_eq!(
        (all.len(), all[0].seq, bench.registry.last_seq()),
        (10_000, 6, 10_005)
    );
    let newest = bench.registry.events(0, &[], 3);
    assert_eq!(
        newest.iter().map(|event| event.seq).collect::<Vec<_>>(),
        [10_003, 10_004, 10_005]
    );
    assert!(
        bench
            .registry
            .events(0, &["model.loaded".to_owned()], 10)
            .is_empty()
    );
    assert_eq!(
        bench
            .registry
            .events(10_003, &["cache.reset".to_owned()], 10)
            .len(),
        2
    );
}

#[test]
fn weights_may_drop_handles_when_they_go() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &with_policy(Policy::EjectAfter),
    );
    let v = bench.load(
        &who("p", "v"),
        "v",
        &even(4, GIB / 8),
        &LoaderSettings::default(),
    );
    let patched = bench.patch(&v, 2);
    bench.registry.prompt_started("p");
    bench.touch("p", &[&patched]);
    bench.touch("p", &[&u]);
    *u.fake.holds.lock().unwrap() = Some(patched.handle.clone());
    drop(patched);
    assert_eq!(bench.report(&v).unwrap().handles.len(), 2);
    bench.registry.prompt_ended("p");
    assert_eq!(bench.report(&v).unwrap().handles.len(), 1);
    assert_eq!(bench.on(&v, 0), V / 2);
}

#[test]
fn after_a_prompt_without_models_nobody_asks_the_machine() {
    let registry = ModelRegistry::new(Settings::default(), Vec::new());
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    registry.set_probes(Probes {
        host: Arc::new(move || {
            count.fetch_add(1, SeqCst);
            None
        }),
        ..Probes::default()
    });
    registry.prompt_started("p");
    registry.prompt_ended("p");
    assert_eq!(asked.load(SeqCst), 0);
}
