//! `POST /free` as the worker carries it out: F-1 to F-9 and R-20 to R-24, and single models by API.

use std::sync::atomic::Ordering::SeqCst;

use fresco_memory::{FreeNote, FreeRequest, Policy, Reason, Refusal, Removed, State};

use crate::harness::*;

fn unload() -> FreeRequest {
    FreeRequest {
        unload_models: true,
        ..FreeRequest::default()
    }
}

fn all() -> FreeRequest {
    FreeRequest {
        unload_models: true,
        free_memory: true,
        ..FreeRequest::default()
    }
}

fn bench() -> Bench {
    Bench::new(&[24 * GIB, 24 * GIB])
}

/// U on the first device, V on the second, C in main memory.
fn spread(bench: &Bench, policy: Option<Policy>) -> Trio {
    let settings = |device, cpu| LoaderSettings {
        policy,
        device: Some(device),
        cpu,
        ..LoaderSettings::default()
    };
    let trio = bench.trio(
        "p",
        &settings(0, false),
        &settings(1, false),
        &settings(0, true),
    );
    bench.run("p", || bench.compute("p", &trio));
    trio
}

#[test]
fn f01_unload_models_covers_every_device() {
    let bench = bench();
    let trio = spread(&bench, None);
    assert_eq!(bench.report(&trio.c).unwrap().state, State::Resident);
    bench.registry.free(&unload(), None);
    for device in &bench.devices {
        assert_eq!(device.used(), 0);
    }
    assert_eq!(bench.listed().len(), 3);
    for model in [&trio.u, &trio.v, &trio.c] {
        let report = bench.report(model).unwrap();
        assert_eq!(report.state, State::Offloaded);
        assert_eq!(report.host_bytes, report.bytes_total);
    }
    // The next run reads no file.
    bench.run("q", || bench.compute("q", &trio));
    for model in [&trio.u, &trio.v, &trio.c] {
        assert_eq!(model.fake.loads.load(SeqCst), 1);
        assert_eq!(bench.report(model).unwrap().state, State::Resident);
    }
}

#[test]
fn f02_f06_r24_while_a_prompt_runs_only_what_it_does_not_use() {
    let bench = bench();
    let trio = spread(&bench, None);
    bench.registry.prompt_started("q");
    bench.touch("q", &[&trio.u]);
    bench
        .registry
        .note_free(FreeNote::Deferred { prompt_id: "q" });
    let deferred = bench.events(0, "free.deferred");
    assert_eq!(deferred[0].prompt.as_deref(), Some("q"));
    let force = FreeRequest {
        force: true,
        ..unload()
    };
    let report = bench.registry.free(&force, Some("q"));
    assert_eq!(bench.on(&trio.u, 0), U);
    assert_eq!(bench.on(&trio.v, 1), 0);
    let waits = report
        .plan
        .steps
        .iter()
        .find(|step| step.weights == *trio.u.handle.id());
    assert_eq!(waits.unwrap().action.name(), "defer");
    bench.registry.prompt_ended("q");
    bench.registry.free(&force, None);
    assert_eq!(bench.on(&trio.u, 0), 0);
}

#[test]
fn f03_f04_r22_free_memory_leaves_nothing() {
    let only = FreeRequest {
        free_memory: true,
        ..FreeRequest::default()
    };
    for request in [all(), only] {
        let bench = bench();
        let trio = spread(&bench, Some(Policy::Keep));
        let patched = bench.patch(&trio.u, 3);
        bench.run("q", || bench.touch("q", &[&patched]));
        bench.registry.free(&request, None);
        assert!(bench.listed().is_empty());
        assert!(bench.registry.model(&trio.c.id()).is_none());
        assert_eq!(bench.devices[0].used() + bench.devices[1].used(), 0);
        assert_eq!(bench.host.load(SeqCst), 0);
        // The handles are still good.
        bench.run("r", || bench.touch("r", &[&patched]));
        assert_eq!(trio.u.fake.loads.load(SeqCst), 2);
        assert_eq!(bench.report(&trio.u).unwrap().policy, Policy::Auto);
    }
}

#[test]
fn f05_nothing_asked_nothing_done() {
    let bench = bench();
    let _trio = spread(&bench, None);
    let seq = bench.registry.last_seq();
    let before = bench.registry.snapshot();
    bench.registry.free(&FreeRequest::default(), None);
    let events = bench.registry.events(seq, &[], usize::MAX);
    assert_eq!(
        events.iter().map(|event| event.kind).collect::<Vec<_>>(),
        ["free.noop"]
    );
    assert_eq!(bench.registry.snapshot(), before);
}

#[test]
fn f08_only_the_devices_that_are_named() {
    let bench = bench();
    let trio = spread(&bench, None);
    let mut request = FreeRequest {
        devices: Some(vec![bench.name(1)]),
        ..unload()
    };
    bench.registry.free(&request, None);
    assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.v, 1)), (U, 0));
    assert_eq!(bench.report(&trio.c).unwrap().state, State::Resident);
    // With all flags too: what is also in main memory only leaves the devices that are named.
    request.free_memory = true;
    bench.run("q", || bench.touch("q", &[&trio.v]));
    let patched = bench.patch(&trio.v, 1);
    bench.run("r", || bench.touch("r", &[&patched]));
    bench.registry.free(&request, None);
    assert_eq!(
        (bench.on(&trio.v, 1), bench.on_host(&trio.v)),
        (0, V + V / 4)
    );
    assert_eq!(bench.on(&trio.u, 0), U);
    request.devices = Some(vec!["cpu".to_owned()]);
    bench.registry.free(&request, None);
    assert_eq!(bench.listed(), [trio.u.id()]);
}

#[test]
fn f09_the_report_says_before_and_after() {
    let bench = bench();
    let trio = spread(&bench, None);
    let request = FreeRequest {
        models: Some(vec![
            trio.u.id(),
            trio.v.handle.model().to_string(),
            "nobody".to_owned(),
        ]),
        ..unload()
    };
    let planned = bench.registry.free_plan(&request);
    let report = bench.registry.free(&request, None);
    assert_eq!(report.plan, planned);
    let rows: Vec<_> = report
        .models
        .iter()
        .map(|m| (m.weights.to_string(), &m.before, &m.after))
        .collect();
    let u = (vec![(bench.name(0), U)], vec![("cpu".to_owned(), U)]);
    let v = (vec![(bench.name(1), V)], vec![("cpu".to_owned(), V)]);
    assert_eq!(rows, [(trio.u.id(), &u.0, &u.1), (trio.v.id(), &v.0, &v.1)]);
}

#[test]
fn r20_respect_spares_what_is_kept() {
    let bench = bench();
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.compute("p", &trio));
    let request = FreeRequest {
        respect: true,
        ..all()
    };
    bench.registry.free(&request, None);
    assert_eq!(bench.listed(), [trio.c.id()]);
    let report = bench.report(&trio.c).unwrap();
    assert_eq!((report.claims.len(), report.state), (1, State::Resident));
    // The node cache was reset: the loader runs again.
    let id = trio.c.id();
    drop(trio);
    assert_eq!(bench.listed(), std::slice::from_ref(&id));
    let seq = bench.registry.last_seq();
    let again = bench.load(
        &who("q", "c"),
        "c.safetensors",
        &even(10, C / 10),
        &with_policy(Policy::Keep),
    );
    assert!(again.attached && again.id() == id);
    bench.run("q", || bench.touch("q", &[&again]));
    assert_eq!(bench.events(seq, "model.attached").len(), 1);
    assert_eq!(again.fake.loads.load(SeqCst), 1);
    assert_eq!(bench.listed().len(), 1);
}

#[test]
fn r21_a_user_overrides_keep() {
    let bench = bench();
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &LoaderSettings::default(),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.compute("p", &trio));
    bench.registry.free(&unload(), None);
    let report = bench.report(&trio.c).unwrap();
    assert_eq!(
        (report.residency.len(), report.policy, report.claims.len()),
        (0, Policy::Keep, 1)
    );
    assert_eq!(report.host_bytes, report.bytes_total);
    bench.run("q", || bench.touch("q", &[&trio.c]));
    assert_eq!(bench.on(&trio.c, 0), report.bytes_total);
    assert_eq!(trio.c.fake.loads.load(SeqCst), 1);
}

#[test]
fn r23_pinned_stays_unless_forced() {
    let bench = bench();
    let trio = spread(&bench, None);
    bench
        .registry
        .set_policy(&trio.u.id(), Policy::Pin)
        .unwrap();
    for request in [unload(), all()] {
        let report = bench.registry.free(&request, None);
        assert_eq!(bench.on(&trio.u, 0), U);
        let step = report
            .plan
            .steps
            .iter()
            .find(|step| step.weights == *trio.u.handle.id())
            .unwrap();
        assert_eq!(
            (step.action.name(), &step.reason),
            ("keep", &Reason::Pinned)
        );
    }
    let said = bench.events(0, "plan.computed");
    assert!(
        said.iter()
            .any(|event| event.reason == Some(Reason::Pinned))
    );
    let force = FreeRequest {
        force: true,
        ..unload()
    };
    bench.registry.free(&force, None);
    assert_eq!((bench.on(&trio.u, 0), bench.on_host(&trio.u)), (0, U));
    assert_eq!(bench.report(&trio.u).unwrap().policy, Policy::Pin);
}

#[test]
fn r37_freeing_what_is_gone_is_nothing() {
    let bench = bench();
    let trio = bench.trio(
        "p",
        &with_policy(Policy::EjectAfter),
        &LoaderSettings::default(),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.compute("p", &trio));
    bench.registry.free(&all(), None);
    let released = bench.events(0, "model.released");
    let of_u = released
        .iter()
        .filter(|event| event.weights.as_ref() == Some(trio.u.handle.id()));
    assert_eq!(of_u.count(), 1);
    assert_eq!(bench.events(0, "free.applied").len(), 1);
}

#[test]
fn single_models_by_api() {
    let bench = bench();
    let trio = spread(&bench, None);
    assert_eq!(
        bench.registry.set_policy("nobody", Policy::Keep),
        Err(Refusal::Unknown)
    );
    assert_eq!(
        bench.registry.remove("m99999", false),
        Err(Refusal::Unknown)
    );
    let report = bench
        .registry
        .set_policy(&trio.u.handle.model().to_string(), Policy::Pin)
        .unwrap();
    assert_eq!((report.policy, report.claims.len()), (Policy::Pin, 2));
    assert_eq!(
        bench.registry.remove(&trio.u.id(), false),
        Err(Refusal::Pinned)
    );
    assert_eq!(bench.registry.remove(&trio.u.id(), true), Ok(Removed::Done));
    assert!(bench.report(&trio.u).is_none());
    // What a prompt uses goes after it.
    bench.registry.prompt_started("q");
    bench.touch("q", &[&trio.v]);
    assert_eq!(bench.registry.release(&trio.v.id()), Err(Refusal::Leased));
    assert_eq!(
        bench.registry.remove(&trio.v.id(), true),
        Ok(Removed::Deferred)
    );
    assert_eq!(bench.on(&trio.v, 1), V);
    bench.registry.prompt_ended("q");
    assert_eq!(bench.listed(), [trio.c.id()]);
    // Eject-after by API: at once, because nobody uses it.
    let report = bench
        .registry
        .set_policy(&trio.c.id(), Policy::EjectAfter)
        .unwrap();
    assert_eq!(report.state, State::Released);
    assert!(bench.listed().is_empty());
    assert_eq!(bench.host.load(SeqCst), 0);
}

#[test]
fn eject_by_api_while_a_prompt_uses_it() {
    let bench = bench();
    let trio = spread(&bench, None);
    bench.registry.prompt_started("q");
    bench.touch("q", &[&trio.u]);
    bench
        .registry
        .set_policy(&trio.u.id(), Policy::EjectAfter)
        .unwrap();
    assert_eq!(bench.on(&trio.u, 0), U);
    bench.registry.prompt_ended("q");
    assert!(bench.report(&trio.u).is_none());
    assert_eq!(bench.listed().len(), 2);
}

#[test]
fn an_error_with_one_model_does_not_stop_the_others() {
    let bench = bench();
    let trio = spread(&bench, None);
    trio.u.fake.fail_move.store(true, SeqCst);
    let report = bench.registry.free(&unload(), None);
    assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.v, 1)), (U, 0));
    let row = report
        .models
        .iter()
        .find(|m| m.weights == *trio.u.handle.id())
        .unwrap();
    assert!(row.error.as_ref().unwrap().contains("injected"));
}

#[test]
fn what_another_worker_holds_is_freed_later() {
    for request in [unload(), all()] {
        let bench = bench();
        let trio = spread(&bench, Some(Policy::Keep));
        bench.registry.prompt_started("other");
        bench.touch("other", &[&trio.u]);
        bench.registry.free(&request, None);
        assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.v, 1)), (U, 0));
        bench.registry.prompt_ended("other");
        assert_eq!(bench.on(&trio.u, 0), 0);
        assert_eq!(bench.report(&trio.u).is_some(), !request.free_memory);
        // Once.
        bench.run("next", || bench.touch("next", &[&trio.u]));
        assert_eq!(bench.on(&trio.u, 0), U);
    }
}

#[test]
fn a_lease_without_a_prompt_holds_while_it_lasts() {
    let bench = bench();
    let trio = spread(&bench, None);
    let (one, two) = (bench.lease("", &[&trio.u]), bench.lease("", &[&trio.u]));
    bench.registry.free(&all(), Some("q"));
    assert_eq!(bench.on(&trio.u, 0), U);
    drop(one);
    bench.registry.free(&all(), Some("q"));
    assert_eq!(bench.on(&trio.u, 0), U);
    drop(two);
    bench.registry.free(&all(), Some("q"));
    assert!(bench.listed().is_empty());
}
