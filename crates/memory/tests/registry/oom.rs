//! Out of memory: the steps of 5.6, one after the other, and R-17.

use fresco_memory::{Policy, State};

use crate::harness::*;

fn steps(bench: &Bench) -> Vec<u64> {
    let events = bench.events(0, "oom.step");
    events
        .iter()
        .map(|event| {
            event
                .numbers
                .iter()
                .find(|(name, _)| *name == "step")
                .unwrap()
                .1
        })
        .collect()
}

#[test]
fn r17_computing_runs_out_of_memory() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &with_policy(Policy::EjectAfter),
        &with_policy(Policy::Keep),
        &with_policy(Policy::Keep),
    );
    bench.registry.prompt_started("p");
    bench.touch("p", &[&trio.v]);
    bench.touch("p", &[&trio.c]);
    let lease = bench.lease("p", &[&trio.u]);
    let device = bench.name(0);
    // What is kept goes in the third step; before that there is nothing to take.
    assert!(bench.registry.relieve(&lease, &device, 30 * GIB));
    assert_eq!(steps(&bench), [1, 2, 3]);
    for model in [&trio.v, &trio.c] {
        let report = bench.report(model).unwrap();
        assert_eq!(
            (report.policy, report.demoted_by),
            (Policy::Keep, Some("oom"))
        );
        assert_eq!(
            (report.residency.len(), report.host_bytes),
            (0, report.bytes_total)
        );
        assert_eq!(report.claims.len(), 1);
    }
    assert_eq!(bench.events(0, "retention.overridden").len(), 2);
    // Then its own model is streamed, more and more of it.
    let mut tries = 0;
    while bench.registry.relieve(&lease, &device, GIB) {
        tries += 1;
        assert!(tries < 100);
    }
    assert!(tries >= 2);
    assert_eq!(bench.on(&trio.u, 0), 0);
    assert_eq!(*steps(&bench).last().unwrap(), 6);
    assert!(!bench.registry.relieve(&lease, &device, GIB));
    let text = bench.registry.explain(&lease, &device);
    assert!(
        text.contains(&device) && text.contains("24576 MiB"),
        "{text}"
    );
    drop(lease);
    bench.registry.prompt_ended("p");
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
    // It all works again.
    bench.run("q", || bench.compute("q", &trio));
    assert_eq!(bench.report(&trio.c).unwrap().state, State::Resident);
    assert_eq!(bench.report(&trio.c).unwrap().demoted_by, None);
}

#[test]
fn each_step_goes_further() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
        &with_policy(Policy::Pin),
    );
    let x = bench.load(
        &who("p", "x"),
        "x",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    bench.compute("p", &trio);
    let lease = bench.lease("p", &[&x]);
    let device = bench.name(0);
    assert!(bench.registry.relieve(&lease, &device, 1));
    assert_eq!(steps(&bench), [1, 2]);
    assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.v, 0)), (0, V));
    assert!(bench.registry.relieve(&lease, &device, 1));
    assert_eq!(steps(&bench), [1, 2, 3]);
    assert_eq!(bench.on(&trio.v, 0), 0);
    assert!(bench.on(&trio.c, 0) > 0);
    assert!(bench.registry.relieve(&lease, &device, 1));
    assert_eq!(steps(&bench), [1, 2, 3, 4]);
    assert_eq!(bench.on(&trio.c, 0), 0);
    let pins = bench.events(0, "retention.overridden");
    assert_eq!(pins.last().unwrap().policy, Some(Policy::Pin));
    assert_eq!(bench.on(&x, 0), 4 * GIB);
    drop(lease);
    bench.registry.prompt_ended("p");
}

#[test]
fn the_models_of_other_prompts_stay_in_main_memory() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    bench.registry.prompt_started("other");
    let theirs = bench.lease("other", &[&trio.v]);
    let mine = bench.lease("p", &[&trio.u]);
    while bench.registry.relieve(&mine, &bench.name(0), GIB) {}
    assert_eq!(bench.on_host(&trio.v), V);
    drop((mine, theirs));
    bench.registry.prompt_ended("p");
    bench.registry.prompt_ended("other");
}

#[test]
fn a_device_that_others_fill_while_loading() {
    // Something that is not a model takes room after the budget was made.
    let bench = Bench::new(&[8 * GIB]);
    let keep = bench.load(
        &who("p", "k"),
        "k",
        &even(4, GIB / 4),
        &with_policy(Policy::Pin),
    );
    bench.run("p", || bench.touch("p", &[&keep]));
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("q");
    let taken = bench.devices[0].allocate(6 * GIB).unwrap();
    // No budget is left for it, but it computes: everything is streamed.
    let lease = bench.lease("q", &[&u]);
    assert_eq!(bench.report(&u).unwrap().state, State::Offloaded);
    drop((lease, taken));
    bench.registry.prompt_ended("q");
    bench.check();
}

#[test]
fn a_load_without_budget_that_does_not_fit_takes_all_steps() {
    let settings = fresco_memory::Settings {
        state: fresco_memory::VramState::HighVram,
        ..Default::default()
    };
    let bench = Bench::with(settings, &[6 * GIB]);
    let pinned = bench.load(
        &who("p", "k"),
        "k",
        &even(4, GIB),
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
    assert_eq!(bench.on(&u, 0), U);
    let report = bench.report(&pinned).unwrap();
    assert_eq!(
        (report.policy, report.demoted_by, report.host_bytes),
        (Policy::Pin, Some("oom"), 4 * GIB)
    );
    assert_eq!(steps(&bench), [1, 2, 3, 4]);
}

#[test]
fn an_unknown_device_is_given_up_at_once() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    bench.registry.prompt_started("p");
    let lease = bench.lease("p", &[&u]);
    assert!(!bench.registry.relieve(&lease, "sim:99999", 1));
    assert!(
        bench
            .registry
            .explain(&lease, "sim:99999")
            .contains("nknown device")
    );
    drop(lease);
    bench.registry.prompt_ended("p");
}

#[test]
fn after_a_node_failed_everything_of_its_prompt_leaves() {
    let bench = Bench::new(&[24 * GIB]);
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
        &with_policy(Policy::Pin),
    );
    bench.registry.prompt_started("p");
    bench.compute("p", &trio);
    bench.registry.unload_after_oom(&who("p", "n"));
    assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.v, 0)), (0, 0));
    assert!(bench.on(&trio.c, 0) > 0);
    let report = bench.report(&trio.v).unwrap();
    assert_eq!(
        (report.policy, report.demoted_by),
        (Policy::Keep, Some("oom"))
    );
    assert_eq!(bench.events(0, "retention.overridden").len(), 1);
    bench.registry.prompt_ended("p");
}
