//! Times to live, idle time (R-38), and main memory that runs short.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fresco_memory::{MemoryError, Need, Policy, Settings, State};

use crate::harness::*;

const MINUTE: Duration = Duration::from_mins(1);

#[test]
fn a_time_to_live_begins_with_the_end_of_a_prompt() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &with_policy(Policy::Ttl(MINUTE)),
    );
    bench.run("p", || {
        bench.pass(MINUTE * 10);
        bench.touch("p", &[&u]);
    });
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
    assert_eq!(
        bench.registry.next_tick(),
        Some(*bench.clock.lock().unwrap() + MINUTE)
    );
    bench.pass(MINUTE / 2);
    // A use begins it anew.
    bench.run("q", || bench.touch("q", &[&u]));
    bench.pass(MINUTE / 2);
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
    bench.pass(MINUTE / 2);
    bench.registry.tick();
    assert!(bench.listed().is_empty());
    assert_eq!(bench.registry.next_tick(), None);
    // And after the next use it counts again.
    bench.run("r", || bench.touch("r", &[&u]));
    assert_eq!(bench.report(&u).unwrap().policy, Policy::Ttl(MINUTE));
    bench.pass(MINUTE);
    bench.run("s", || ());
    assert!(bench.listed().is_empty());
}

#[test]
fn a_time_to_live_by_api() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    bench
        .registry
        .set_policy(&u.id(), Policy::Ttl(MINUTE))
        .unwrap();
    bench.pass(MINUTE);
    // Not while a prompt uses it.
    bench.registry.prompt_started("q");
    bench.touch("q", &[&u]);
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
    bench.registry.prompt_ended("q");
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
    bench.pass(MINUTE);
    bench.registry.tick();
    assert!(bench.listed().is_empty());
}

#[test]
fn r38_idle_models_leave_the_devices() {
    let settings = Settings {
        unload_after: Some(MINUTE),
        ..Settings::default()
    };
    let bench = Bench::with(settings, &[24 * GIB]);
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.compute("p", &trio));
    bench
        .registry
        .set_policy(&trio.c.id(), Policy::Pin)
        .unwrap();
    bench.pass(MINUTE / 2);
    bench.registry.tick();
    assert_eq!(bench.on(&trio.u, 0), U);
    assert_eq!(
        bench.registry.next_tick(),
        Some(*bench.clock.lock().unwrap() + MINUTE / 2)
    );
    bench.pass(MINUTE / 2);
    bench.registry.tick();
    assert_eq!((bench.on(&trio.u, 0), bench.on_host(&trio.u)), (0, U));
    assert_eq!(bench.on(&trio.v, 0), V);
    assert!(bench.on(&trio.c, 0) > 0);
    assert_eq!(bench.registry.next_tick(), None);
    assert_eq!(bench.report(&trio.u).unwrap().demoted_by, Some("idle"));
}

#[test]
fn r38_off_by_default() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(bench.registry.next_tick(), None);
    bench.pass(MINUTE * 10_000);
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
}

#[test]
fn m12_what_main_memory_cannot_hold_is_refused_before_reading() {
    let bench = Bench::new(&[24 * GIB]);
    bench.ram.store(32 * GIB, SeqCst);
    let big = even(20, GIB);
    let on_cpu = LoaderSettings {
        cpu: true,
        ..LoaderSettings::default()
    };
    let a = bench.load(&who("p", "a"), "a", &big, &on_cpu);
    let b = bench.load(&who("p", "b"), "b", &big, &on_cpu);
    bench.registry.prompt_started("p");
    bench.touch("p", &[&a]);
    let result = bench
        .registry
        .lease(&who("p", "s"), &[&b.handle], Need::default());
    let Err(MemoryError::Host { wanted, available }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(wanted, 20 * GIB);
    assert!(available < 12 * GIB);
    assert_eq!(b.fake.loads.load(SeqCst), 0);
    bench.check();
    bench.registry.prompt_ended("p");
    // Nothing holds the first one any more: it makes room.
    bench.run("q", || bench.touch("q", &[&b]));
    assert_eq!(bench.on_host(&b), 20 * GIB);
    assert!(bench.report(&a).is_none());
}

#[test]
fn main_memory_that_runs_short() {
    let settings = Settings {
        host_headroom: Some(8 * GIB),
        ..Settings::default()
    };
    let bench = Bench::with(settings, &[]);
    let keep = with_policy(Policy::Keep);
    let kept = bench.load(&who("p", "k"), "k", &even(4, GIB), &keep);
    let auto = bench.load(
        &who("p", "a"),
        "a",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    bench.run("p", || {
        bench.touch("p", &[&kept]);
        bench.touch("p", &[&auto]);
        let orphan = bench.load(
            &who("p", "o"),
            "o",
            &even(4, GIB),
            &LoaderSettings::default(),
        );
        bench.touch("p", &[&orphan]);
    });
    assert_eq!(bench.listed().len(), 3);
    // Something else takes memory: 12 of 16 GiB are ours.
    bench.ram.store(16 * GIB, SeqCst);
    bench.registry.tick();
    assert_eq!(bench.listed(), [auto.id(), kept.id()]);
    bench.ram.store(15 * GIB, SeqCst);
    bench.registry.tick();
    assert_eq!(bench.listed(), [kept.id()]);
    // Less than a fiftieth: what is kept is dropped too, but remembered.
    bench.ram.store(4 * GIB + 4 * GIB / 100, SeqCst);
    bench.registry.tick();
    let report = bench.report(&kept).unwrap();
    assert_eq!(
        (report.state, report.policy, report.host_bytes),
        (State::Released, Policy::Keep, 0)
    );
    bench.ram.store(1 << 50, SeqCst);
    bench.run("q", || bench.touch("q", &[&kept]));
    assert_eq!(bench.events(0, "model.rehydrated").len(), 1);
}

#[test]
fn pinned_models_stay_in_main_memory() {
    let bench = Bench::new(&[]);
    let pinned = bench.load(
        &who("p", "k"),
        "k",
        &even(4, GIB),
        &with_policy(Policy::Pin),
    );
    bench.run("p", || bench.touch("p", &[&pinned]));
    bench.ram.store(4 * GIB, SeqCst);
    bench.registry.tick();
    assert_eq!(bench.on_host(&pinned), 4 * GIB);
}

#[test]
fn a_time_to_live_without_a_prompt() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("", "u"),
        "u",
        &even(20, GIB / 4),
        &with_policy(Policy::Ttl(MINUTE)),
    );
    bench.touch("", &[&u]);
    assert_eq!(
        bench.registry.next_tick(),
        Some(*bench.clock.lock().unwrap() + MINUTE)
    );
    bench.pass(MINUTE);
    bench.registry.tick();
    assert!(bench.listed().is_empty());
}
