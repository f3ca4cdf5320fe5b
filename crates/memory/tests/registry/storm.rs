//! Many things at once, and many things in a row.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use fresco_memory::{FreeRequest, Policy};

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
                &Told::default(),
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
    let a = bench.load(&who("p", "a"), "a", &units, &told(Policy::Keep));
    let b = bench.load(&who("p", "b"), "b", &units, &told(Policy::Keep));
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
                        let told = Told {
                            policy: [None, Some(Policy::Keep), Some(Policy::EjectAfter)][round % 3],
                            device: Some(if round % 5 == 0 { 0 } else { worker }),
                            ..Told::default()
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
                        &told(Policy::Keep),
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
