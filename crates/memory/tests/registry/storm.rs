//! Many things at once, and many things in a row.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fresco_memory::{FreeRequest, MemoryError, Need, Policy};
use fresco_tensor::TensorError;

use crate::harness::*;

#[test]
fn a_thousand_prompts_of_five_models_with_room_for_two() {
    // Two models of 5 GiB and the reserves fit.
    let bench = Bench::new(&[13 * GIB]);
    let units = even(20, GIB / 4);
    let mut models: Vec<Option<Model>> = (0..5).map(|_| None).collect();
    let names = ["a", "b", "c", "d", "e"];
    let mut next = 7u64;
    for round in 0..1000 {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (next >> 33) as usize % 5;
        let prompt = format!("p{round}");
        bench.registry.prompt_started(&prompt);
        // Now and then the loader runs again.
        if models[which].is_none() || round % 7 == 0 {
            models[which] = Some(bench.load(
                &who(&prompt, names[which]),
                names[which],
                &units,
                &LoaderSettings::default(),
            ));
        }
        let model = models[which].as_ref().unwrap();
        bench.touch(&prompt, &[model]);
        assert_eq!(bench.on(model, 0), U);
        bench.registry.prompt_ended(&prompt);
        bench.check();
    }
    assert!(bench.devices[0].peak() <= 13 * GIB);
    assert!(bench.devices[0].used() <= 2 * U);
    assert_eq!(bench.listed().len(), 5);
    // Nothing was read twice.
    for model in models.into_iter().flatten() {
        assert_eq!(model.fake.loads.load(SeqCst), 1);
    }
    assert_eq!(bench.devices[0].used() + bench.host.load(SeqCst), 5 * U);
}

#[test]
fn switching_between_two_kept_models_never_reads_again() {
    let bench = Bench::new(&[8 * GIB]);
    let units = even(20, GIB / 4);
    let a = bench.load(&who("p", "a"), "a", &units, &with_policy(Policy::Keep));
    let b = bench.load(&who("p", "b"), "b", &units, &with_policy(Policy::Keep));
    for round in 0..20 {
        let prompt = format!("p{round}");
        bench.run(&prompt, || {
            bench.touch(&prompt, &[if round % 2 == 0 { &a } else { &b }]);
        });
    }
    assert_eq!(
        (a.fake.loads.load(SeqCst), b.fake.loads.load(SeqCst)),
        (1, 1)
    );
    assert_eq!(bench.listed().len(), 2);
}

#[test]
fn free_storms_while_prompts_run() {
    let bench = Bench::new(&[13 * GIB, 13 * GIB]);
    let done = AtomicBool::new(false);
    let prompts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (bench, prompts) = (&bench, &prompts);
                scope.spawn(move || {
                    for round in 0..150 {
                        let prompt = format!("w{worker}-{round}");
                        bench.registry.prompt_started(&prompt);
                        let told = LoaderSettings {
                            policy: [None, Some(Policy::Keep), Some(Policy::EjectAfter)][round % 3],
                            device: Some(if round % 5 == 0 { 0 } else { worker }),
                            ..LoaderSettings::default()
                        };
                        // Shared between the workers, and one of its own.
                        let shared =
                            bench.load(&who(&prompt, "s"), "shared", &even(20, GIB / 4), &told);
                        let own = bench.load(
                            &who(&prompt, "o"),
                            &format!("own{worker}"),
                            &even(10, GIB / 4),
                            &told,
                        );
                        let patched = bench.patch(&own, 2);
                        let lease = bench.lease(&prompt, &[&shared, &patched]);
                        if round % 4 == 0 {
                            bench.registry.relieve(&lease, &bench.name(worker), GIB);
                        }
                        // What is leased is never released under it.
                        assert_eq!(
                            bench.report(&patched).map(|report| report
                                .residency
                                .iter()
                                .map(|r| r.1)
                                .sum::<u64>()
                                + report.host_bytes),
                            Some(12 * GIB / 4),
                        );
                        drop(lease);
                        bench.registry.prompt_ended(&prompt);
                        prompts.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        let storm = scope.spawn(|| {
            let mut round = 0u32;
            while !done.load(SeqCst) {
                round = round.wrapping_add(1);
                let request = FreeRequest {
                    unload_models: true,
                    free_memory: round.is_multiple_of(2),
                    force: round.is_multiple_of(3),
                    respect: round.is_multiple_of(5),
                    ..FreeRequest::default()
                };
                bench.registry.free(&request, None);
                bench.registry.tick();
                bench.registry.soft_empty();
                let snapshot = bench.registry.snapshot();
                for device in &snapshot.devices[1..] {
                    assert!(device.weights_resident <= device.total);
                }
                let _ =
                    bench
                        .registry
                        .events(bench.registry.last_seq().saturating_sub(20), &[], 20);
            }
        });
        let ends: Vec<_> = workers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        // The storm ends also where a worker failed.
        done.store(true, SeqCst);
        storm.join().unwrap();
        for end in ends {
            end.unwrap();
        }
    });
    assert_eq!(prompts.load(SeqCst), 300);
    bench.check();
    bench.registry.free(
        &FreeRequest {
            free_memory: true,
            force: true,
            ..FreeRequest::default()
        },
        None,
    );
    assert_eq!(bench.devices[0].used() + bench.devices[1].used(), 0);
    assert_eq!(bench.host.load(SeqCst), 0);
    assert!(bench.listed().is_empty());
}

#[test]
fn two_threads_that_want_the_same_file_read_it_once() {
    let bench = Bench::new(&[24 * GIB]);
    for round in 0..20 {
        let file = format!("f{round}");
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (bench, file) = (&bench, &file);
                scope.spawn(move || {
                    let prompt = format!("{file}-{worker}");
                    bench.registry.prompt_started(&prompt);
                    let u = bench.load(
                        &who(&prompt, "u"),
                        file,
                        &even(20, MIB),
                        &with_policy(Policy::Keep),
                    );
                    bench.touch(&prompt, &[&u]);
                    assert_eq!(u.fake.loads.load(SeqCst), 1);
                    bench.registry.prompt_ended(&prompt);
                });
            }
        });
        bench.check();
    }
    assert_eq!(bench.listed().len(), 20);
}

/// A move of many gigabytes holds up nobody but those who want the same model.
#[test]
fn the_registry_answers_while_units_are_copied() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 2),
        &LoaderSettings::default(),
    );
    let other = bench.load(
        &who("p", "o"),
        "o",
        &even(1, GIB),
        &LoaderSettings::default(),
    );
    let (registry, name) = (bench.registry.clone(), bench.name(0));
    let seen = Arc::new(Mutex::new(None));
    let result = Arc::clone(&seen);
    *u.fake.while_copying.lock().unwrap() = Some(Box::new(move || {
        // From another thread, as requests come; it would wait for ever if the lock were held.
        let asked = std::thread::spawn(move || {
            let snapshot = registry.snapshot();
            let device = snapshot.devices.into_iter().find(|d| d.device == name);
            let weights = device.map(|device| device.weights_resident);
            (weights, registry.last_seq() > 0, registry.check())
        });
        *result.lock().unwrap() = Some(asked.join().unwrap());
        Ok(())
    }));
    bench.run("p", || bench.touch("p", &[&u, &other]));
    let (weights, events, problems) = seen.lock().unwrap().take().expect("it was copied");
    assert!(weights >= Some(10 * GIB), "its room is taken: {weights:?}");
    assert!(events && problems.is_empty(), "{problems:?}");
}

/// A file that does not come holds up who wants it only as long as they want it.
#[test]
fn an_interrupt_ends_waiting_for_a_model_that_another_prompt_loads() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    let (registry, handle) = (bench.registry.clone(), u.handle.clone());
    let seen = Arc::new(Mutex::new(None));
    let result = Arc::clone(&seen);
    *u.fake.while_copying.lock().unwrap() = Some(Box::new(move || {
        let flag = Arc::new(AtomicBool::new(false));
        let raise = Arc::clone(&flag);
        let waiting = std::thread::spawn(move || {
            registry.prompt_started("q");
            let lease = || registry.lease(&who("q", "sampler"), &[&handle], Need::default());
            let ended = fresco_tensor::cancel::with(&flag, || lease().map(drop));
            registry.prompt_ended("q");
            ended
        });
        std::thread::park_timeout(Duration::from_millis(100));
        assert!(!waiting.is_finished(), "it does not wait");
        raise.store(true, SeqCst);
        *result.lock().unwrap() = Some(waiting.join().unwrap());
        Ok(())
    }));
    bench.run("p", || bench.touch("p", &[&u]));
    let ended = seen.lock().unwrap().take().expect("it was copied");
    assert!(
        matches!(ended, Err(MemoryError::Device(TensorError::Cancelled))),
        "{ended:?}"
    );
    // The one that loaded has it.
    assert_eq!(bench.devices[0].used(), 4 * GIB);
    assert_eq!(u.reads(), 1);
    bench.check();
}

/// What a use finds in its file still takes no main memory, and nothing is freed by dropping it.
#[test]
fn bytes_that_are_still_in_their_file_are_not_counted_as_main_memory() {
    let bench = Bench::new(&[2 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let host_bytes = || bench.registry.snapshot().models[0].host_bytes;
    let there = host_bytes();
    assert!(there >= 2 * GIB, "{there}");
    u.fake.unread.store(GIB, SeqCst);
    let away = there / GIB;
    assert_eq!(host_bytes(), there - away * GIB);
    let main = &bench.registry.snapshot().devices[0];
    assert_eq!(main.weights_resident, there - away * GIB);
    bench.check();
}

/// A copy that fails is a load that fails: the model is on no device, and the next load starts anew.
#[test]
fn a_copy_that_fails_leaves_nothing_behind() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    *u.fake.while_copying.lock().unwrap() = Some(Box::new(|| {
        let reason = "injected".to_owned();
        Err(TensorError::Invalid { op: "copy", reason })
    }));
    bench.registry.prompt_started("p");
    let sampler = who("p", "sampler");
    let failed = bench
        .registry
        .lease(&sampler, &[&u.handle], Need::default());
    let Err(error) = failed else {
        panic!("the copy failed");
    };
    assert!(error.to_string().contains("injected"), "{error}");
    bench.registry.prompt_ended("p");
    assert_eq!(bench.devices[0].used(), 0);
    // Half of it may have been read: it is in main memory neither.
    assert_eq!(bench.host.load(SeqCst), 0);
    let released = bench.events(0, "model.released");
    assert_eq!(released.len(), 1, "{released:?}");
    bench.check();
    bench.run("q", || bench.touch("q", &[&u]));
    assert_eq!(bench.devices[0].used(), 4 * GIB);
    assert_eq!(u.reads(), 2);
}

/// Of a variant with patches only its own weights were read then: those that it shares stay where they are.
#[test]
fn a_copy_of_a_variant_that_fails_leaves_the_shared_weights() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(4, GIB),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let patched = bench.patch(&u, 2);
    *patched.fake.while_copying.lock().unwrap() = Some(Box::new(|| Err(TensorError::Cancelled)));
    bench.registry.prompt_started("q");
    let failed = bench
        .registry
        .lease(&who("q", "sampler"), &[&patched.handle], Need::default());
    assert!(failed.is_err());
    bench.registry.prompt_ended("q");
    bench.check();
    assert!(
        bench
            .events(0, "model.released")
            .iter()
            .all(|event| event.bytes_after == Some(4 * GIB))
    );
    bench.run("r", || bench.touch("r", &[&u, &patched]));
    assert_eq!((u.reads(), patched.reads()), (1, 2));
    bench.check();
}
