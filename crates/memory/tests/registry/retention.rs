//! R-1 to R-40 of the specification, as far as the registry alone shows them. U is a diffusion model, V a VAE, C a text
//! encoder; one device with room for all, unless a case says otherwise.

use fresco_memory::{Action, EjectOthers, Policy, PolicySource, Reason, State, Trigger};

use crate::harness::*;

const KEEP: Policy = Policy::Keep;
const EJECT: Policy = Policy::EjectAfter;
const ROOMY: &[u64] = &[24 * GIB];

fn decisions(bench: &Bench, since: u64) -> Vec<(String, &'static str)> {
    let events = bench.events(since, "plan.computed");
    let events = events
        .into_iter()
        .filter(|e| e.trigger == Some(Trigger::PromptEnd));
    events
        .map(|e| {
            let file = e.weights.unwrap().to_string();
            (file[..1].to_owned(), e.decision.unwrap())
        })
        .collect()
}

#[test]
fn r01_eject_one_keep_two() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(KEEP),
    );
    bench.registry.prompt_started("p");
    bench.compute("p", &trio);
    let before = (bench.on(&trio.v, 0), bench.on(&trio.c, 0));
    assert_eq!(before, (V, trio.c.fake_total()));
    assert_eq!(bench.on(&trio.u, 0), U);
    let seq = bench.registry.last_seq();
    bench.registry.prompt_ended("p");
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
    assert_eq!((bench.on(&trio.v, 0), bench.on(&trio.c, 0)), before);
    assert_eq!(bench.devices[0].used(), before.0 + before.1);
    assert_eq!(bench.host.load(std::sync::atomic::Ordering::SeqCst), 0);
    let expected = [("c", "keep"), ("u", "release"), ("v", "keep")];
    let expected: Vec<_> = expected
        .iter()
        .map(|(f, d)| ((*f).to_owned(), *d))
        .collect();
    assert_eq!(decisions(&bench, seq), expected);
    assert_eq!(bench.events(seq, "cleanup.completed").len(), 1);
    assert_eq!(bench.events(seq, "cache.reset").len(), 0);
}

impl Model {
    fn fake_total(&self) -> u64 {
        use fresco_memory::Weights;
        self.fake.units().iter().map(|unit| unit.bytes).sum()
    }
}

#[test]
fn r02_eject_all() {
    let bench = Bench::new(ROOMY);
    let told = with_policy(EJECT);
    let trio = bench.trio("p", &told, &told, &told);
    bench.run("p", || bench.compute("p", &trio));
    assert!(bench.listed().is_empty());
    assert_eq!(bench.devices[0].used(), 0);
    assert_eq!(bench.host.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn r03_keep_all() {
    let bench = Bench::new(ROOMY);
    let told = with_policy(KEEP);
    let trio = bench.trio("p", &told, &told, &told);
    bench.registry.prompt_started("p");
    bench.compute("p", &trio);
    let seq = bench.registry.last_seq();
    let plan = bench.registry.prompt_ended("p");
    assert!(plan.steps.iter().all(|step| step.action == Action::Keep));
    assert_eq!(plan.steps.len(), 3);
    for kind in ["model.evicted", "model.released", "model.shrunk"] {
        assert!(bench.events(seq, kind).is_empty());
    }
    assert_eq!(bench.devices[0].used(), U + V + trio.c.fake_total());
    bench.registry.free(
        &fresco_memory::FreeRequest {
            unload_models: true,
            ..Default::default()
        },
        None,
    );
    assert_eq!(bench.devices[0].used(), 0);
    assert_eq!(bench.listed().len(), 3);
}

#[test]
fn r04_plain_loader_beside() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &LoaderSettings::default(),
        &with_policy(KEEP),
    );
    bench.run("p", || bench.compute("p", &trio));
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
    let v = bench.report(&trio.v).unwrap();
    assert_eq!(
        (v.policy, v.policy_source),
        (Policy::Auto, PolicySource::Default)
    );
    assert_eq!(bench.report(&trio.c).unwrap().policy, KEEP);
}

#[test]
fn r05_the_second_run_reads_only_what_was_ejected() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(KEEP),
    );
    bench.run("p", || bench.compute("p", &trio));
    let seq = bench.registry.last_seq();
    // The loaders' answers are remembered: only the sampler runs again.
    bench.run("q", || bench.compute("q", &trio));
    let loaded = bench.events(seq, "model.loaded");
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].weights.as_ref().unwrap().to_string(), trio.u.id());
    assert_eq!(bench.events(seq, "model.rehydrated").len(), 1);
    assert_eq!(
        trio.u.fake.loads.load(std::sync::atomic::Ordering::SeqCst),
        2
    );
    assert_eq!(
        trio.v.fake.loads.load(std::sync::atomic::Ordering::SeqCst),
        1
    );
    // And it means what it meant.
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
}

#[test]
fn r06_twenty_times() {
    let bench = Bench::new(ROOMY);
    let mut levels = Vec::new();
    let mut kept = Vec::new();
    for round in 0..20 {
        let prompt = format!("p{round}");
        bench.registry.prompt_started(&prompt);
        // Every other time the loaders run again.
        if round % 2 == 0 || kept.is_empty() {
            kept = vec![bench.trio(
                &prompt,
                &with_policy(EJECT),
                &with_policy(KEEP),
                &with_policy(KEEP),
            )];
        }
        bench.compute(&prompt, &kept[0]);
        bench.registry.prompt_ended(&prompt);
        bench.check();
        levels.push((
            bench.devices[0].used(),
            bench.host.load(std::sync::atomic::Ordering::SeqCst),
        ));
    }
    assert!(
        levels.windows(2).all(|pair| pair[0] == pair[1]),
        "{levels:?}"
    );
    assert_eq!(bench.registry.snapshot().models.len(), 2);
}

#[test]
fn r07_two_loaders_of_one_file_keep_beats_eject() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    bench.registry.prompt_started("p");
    let a = bench.load(&who("p", "a"), "u", &units, &with_policy(KEEP));
    let b = bench.load(&who("p", "b"), "u", &units, &with_policy(EJECT));
    assert!(!a.attached && b.attached);
    assert_eq!(a.id(), b.id());
    bench.touch("p", &[&a]);
    bench.touch("p", &[&b]);
    let report = bench.report(&a).unwrap();
    assert_eq!((report.claims.len(), report.policy), (2, KEEP));
    let conflicts = bench.events(0, "retention.conflict");
    assert_eq!(conflicts.len(), 1);
    let Some(Reason::Conflict { loser, winner, .. }) = &conflicts[0].reason else {
        panic!("no conflict in {:?}", conflicts[0]);
    };
    assert_eq!((loser.policy, &*loser.set_by.node), (EJECT, "b"));
    assert_eq!((winner.policy, &*winner.set_by.node), (KEEP, "a"));
    bench.registry.prompt_ended("p");
    assert_eq!(bench.on(&a, 0), U);
    // The conflict is the same whoever comes first.
    let other = Bench::new(ROOMY);
    other.registry.prompt_started("p");
    let _b = other.load(&who("p", "b"), "u", &units, &with_policy(EJECT));
    let a = other.load(&who("p", "a"), "u", &units, &with_policy(KEEP));
    assert_eq!(other.events(0, "retention.conflict").len(), 1);
    other.touch("p", &[&a]);
    other.registry.prompt_ended("p");
    assert_eq!(other.on(&a, 0), U);
}

#[test]
fn r08_two_loaders_with_different_patches_both_eject() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    bench.registry.prompt_started("p");
    let a = bench.load(&who("p", "a"), "u", &units, &with_policy(EJECT));
    let b = bench.load(&who("p", "b"), "u", &units, &with_policy(EJECT));
    let (first, second) = (bench.patch(&a, 3), bench.patch(&b, 5));
    bench.touch("p", &[&first]);
    bench.touch("p", &[&second]);
    assert_eq!(bench.on(&a, 0), 20 * GIB / 4 + 3 * GIB / 4);
    let seq = bench.registry.last_seq();
    bench.registry.prompt_ended("p");
    assert!(bench.listed().is_empty());
    assert_eq!(bench.devices[0].used(), 0);
    assert_eq!(bench.host.load(std::sync::atomic::Ordering::SeqCst), 0);
    let released = bench.events(seq, "model.released");
    assert_eq!(
        released
            .iter()
            .filter(|event| event.model.is_none())
            .count(),
        1
    );
}

#[test]
fn r08b_an_ejected_handle_loses_its_patches_even_if_the_weights_stay() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    bench.registry.prompt_started("p");
    let a = bench.load(&who("p", "a"), "u", &units, &with_policy(KEEP));
    let b = bench.load(&who("p", "b"), "u", &units, &with_policy(EJECT));
    let patched = bench.patch(&b, 4);
    bench.touch("p", &[&patched]);
    bench.registry.prompt_ended("p");
    bench.check();
    assert_eq!(bench.devices[0].used(), 16 * GIB / 4);
    assert_eq!(bench.on_host(&a), 4 * GIB / 4);
}

#[test]
fn r09_patched_clones_share_the_weights() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    let u = bench.load(&who("p", "u"), "u", &units, &with_policy(KEEP));
    let read = || u.fake.read.load(std::sync::atomic::Ordering::SeqCst);
    let weak = bench.patch(&u, 4);
    bench.run("p", || bench.touch("p", &[&weak]));
    assert_eq!(read(), U);
    let report = bench.report(&u).unwrap();
    assert_eq!((report.policy, report.handles.len()), (KEEP, 2));
    // Shared units that the patch stands in for are backups in main memory.
    assert_eq!(report.host_bytes, GIB);
    assert_eq!(bench.devices[0].used(), U);
    let strong = bench.patch(&u, 4);
    let moves = u.fake.moves.load(std::sync::atomic::Ordering::SeqCst);
    drop(weak);
    assert_eq!(bench.devices[0].used(), U - GIB);
    bench.run("q", || bench.touch("q", &[&strong]));
    assert_eq!(read(), U);
    assert_eq!(
        u.fake.moves.load(std::sync::atomic::Ordering::SeqCst),
        moves
    );
    assert_eq!(bench.devices[0].used(), U);
}

#[test]
fn r10_keep_then_eject_by_the_same_node() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    let first = bench.run("p", || {
        let u = bench.load(&who("p", "u"), "u", &units, &with_policy(KEEP));
        bench.touch("p", &[&u]);
        u
    });
    assert_eq!(bench.on(&first, 0), U);
    bench.run("q", || {
        let u = bench.load(&who("q", "u"), "u", &units, &with_policy(EJECT));
        assert_eq!(bench.report(&u).unwrap().claims.len(), 1);
        bench.touch("q", &[&u]);
    });
    assert!(bench.listed().is_empty());
    assert_eq!(bench.events(0, "retention.conflict").len(), 0);
}

#[test]
fn r11_a_keep_claim_outlives_its_node() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    bench.run("p", || {
        let u = bench.load(&who("p", "u"), "u", &units, &with_policy(KEEP));
        bench.touch("p", &[&u]);
    });
    // The node is gone, its handle too.
    bench.run("q", || {
        let other = bench.load(&who("q", "x"), "x", &units, &LoaderSettings::default());
        bench.touch("q", &[&other]);
    });
    let models = bench.registry.snapshot().models;
    let u = models
        .iter()
        .find(|model| model.weights.as_str().starts_with("u:"))
        .unwrap();
    assert_eq!(
        (u.policy, &*u.claims[0].node, u.handles.len()),
        (KEEP, "u", 0)
    );
    assert_eq!(u.residency, [(bench.name(0), U)]);
    bench.registry.free(
        &fresco_memory::FreeRequest {
            free_memory: true,
            ..Default::default()
        },
        None,
    );
    assert!(bench.listed().is_empty());
}

#[test]
fn r12_r13_two_prompts_share_a_model() {
    for (second, stays) in [(Policy::Auto, false), (KEEP, true)] {
        let bench = Bench::new(&[24 * GIB, 24 * GIB]);
        let units = even(10, GIB / 10);
        bench.registry.prompt_started("p1");
        bench.registry.prompt_started("p2");
        let first = bench.load(&who("p1", "c"), "c", &units, &with_policy(EJECT));
        let on_second = LoaderSettings {
            policy: Some(second),
            device: Some(1),
            ..LoaderSettings::default()
        };
        let other = bench.load(&who("p2", "d"), "c", &units, &on_second);
        bench.touch("p1", &[&first]);
        let held = bench.lease("p2", &[&other]);
        let seq = bench.registry.last_seq();
        bench.registry.prompt_ended("p1");
        bench.check();
        let deferred = bench.events(seq, "cleanup.deferred").len();
        assert_eq!(deferred, usize::from(!stays));
        let all: u64 = units.iter().map(|unit| unit.bytes).sum();
        assert_eq!(bench.on(&other, 1), all);
        drop(held);
        // Used once more after the other prompt wanted it gone.
        bench.touch("p2", &[&other]);
        bench.registry.prompt_ended("p2");
        bench.check();
        assert_eq!(!bench.listed().is_empty(), stays);
        assert_eq!(bench.on(&other, 1), if stays { all } else { 0 });
    }
}

#[test]
fn r14_a_queued_prompt_holds_nothing() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    let u = bench.load(&who("p1", "u"), "u", &units, &with_policy(EJECT));
    bench.run("p1", || bench.touch("p1", &[&u]));
    assert!(bench.listed().is_empty());
    bench.run("p2", || {
        bench.touch("p2", &[&u]);
        assert_eq!(bench.on(&u, 0), U);
    });
    assert_eq!(u.fake.loads.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[test]
fn r15_r16_r19_the_end_of_a_prompt_is_the_same_however_it_comes() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(KEEP),
    );
    bench.registry.prompt_started("p");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _lease = bench.lease("p", &[&trio.u, &trio.c]);
        bench.touch("p", &[&trio.v]);
        panic!("a node");
    }));
    assert!(result.is_err());
    bench.registry.prompt_ended("p");
    bench.check();
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
    bench.run("q", || bench.compute("q", &trio));
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
}

#[test]
fn r25_eject_others_moves_what_is_kept() {
    let bench = Bench::new(ROOMY);
    bench.registry.prompt_started("p");
    let eject = LoaderSettings {
        eject: EjectOthers::ComputeDevice,
        ..LoaderSettings::default()
    };
    let trio = bench.trio("p", &eject, &LoaderSettings::default(), &with_policy(KEEP));
    let c = trio.c.fake_total();
    bench.touch("p", &[&trio.c]);
    assert_eq!(bench.on(&trio.c, 0), c);
    let lease = bench.lease("p", &[&trio.u]);
    assert_eq!((bench.on(&trio.c, 0), bench.on_host(&trio.c)), (0, c));
    assert_eq!(bench.report(&trio.c).unwrap().policy, KEEP);
    assert_eq!(bench.on(&trio.u, 0), U);
    assert_eq!(bench.events(0, "eject.applied").len(), 1);
    assert!(bench.events(0, "retention.overridden").is_empty());
    drop(lease);
    // Once: the next load leaves the others alone.
    bench.touch("p", &[&trio.c]);
    bench.touch("p", &[&trio.u]);
    assert_eq!(bench.on(&trio.c, 0), c);
    assert_eq!(bench.events(0, "eject.applied").len(), 1);
    bench.registry.prompt_ended("p");
    assert!(bench.listed().contains(&trio.c.id()));
}

#[test]
fn r26_r27_eject_does_what_it_says_whatever_the_placement() {
    let bench = Bench::new(ROOMY);
    bench.registry.prompt_started("p");
    let virtual_only = LoaderSettings {
        placement: Some(fresco_memory::Placement::Virtual {
            gb: 4.0,
            donors: vec!["cpu".to_owned()],
        }),
        ..LoaderSettings::default()
    };
    let eject_only = LoaderSettings {
        eject: EjectOthers::ComputeDevice,
        ..LoaderSettings::default()
    };
    let trio = bench.trio("p", &virtual_only, &eject_only, &with_policy(KEEP));
    bench.touch("p", &[&trio.c]);
    bench.touch("p", &[&trio.u]);
    assert!(bench.events(0, "eject.applied").is_empty());
    assert_eq!(bench.on(&trio.c, 0), trio.c.fake_total());
    assert_eq!(bench.on(&trio.u, 0), GIB);
    bench.touch("p", &[&trio.v]);
    assert_eq!(bench.events(0, "eject.applied").len(), 1);
    assert_eq!((bench.on(&trio.c, 0), bench.on(&trio.u, 0)), (0, 0));
    bench.registry.prompt_ended("p");
}

#[test]
fn r28_eject_stays_on_its_device() {
    let bench = Bench::new(&[24 * GIB, 24 * GIB]);
    bench.registry.prompt_started("p");
    let eject = LoaderSettings {
        eject: EjectOthers::ComputeDevice,
        ..LoaderSettings::default()
    };
    let second = LoaderSettings {
        device: Some(1),
        ..LoaderSettings::default()
    };
    let trio = bench.trio("p", &eject, &second, &LoaderSettings::default());
    bench.touch("p", &[&trio.v]);
    bench.touch("p", &[&trio.c]);
    bench.touch("p", &[&trio.u]);
    assert_eq!(bench.on(&trio.c, 0), 0);
    assert_eq!(bench.on(&trio.v, 1), V);
    // A pinned one is not moved either.
    bench
        .registry
        .set_policy(&trio.u.id(), Policy::Pin)
        .unwrap();
    let again = bench.load(
        &who("p", "again"),
        "v.safetensors",
        &even(4, GIB / 8),
        &eject,
    );
    bench.touch("p", &[&again]);
    assert_eq!(bench.on(&trio.u, 0), U);
    bench.registry.prompt_ended("p");
}

#[test]
fn r29_r30_a_prompt_that_loads_nothing() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(KEEP),
    );
    bench.run("p", || bench.compute("p", &trio));
    let before = bench.registry.snapshot();
    bench.registry.prompt_started("q");
    let plan = bench.registry.prompt_ended("q");
    assert!(plan.steps.is_empty());
    assert_eq!(bench.registry.snapshot(), before);
    // Only the text encoder: nothing is read.
    bench.run("r", || bench.touch("r", &[&trio.c]));
    assert_eq!(
        trio.u.fake.loads.load(std::sync::atomic::Ordering::SeqCst),
        1
    );
    assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
}

#[test]
fn r31_a_release_that_fails_is_tried_again() {
    use std::sync::atomic::Ordering::SeqCst;
    for at_idle in [true, false] {
        let bench = Bench::new(ROOMY);
        let trio = bench.trio(
            "p",
            &with_policy(EJECT),
            &with_policy(KEEP),
            &with_policy(KEEP),
        );
        trio.u.fake.fail_release.store(true, SeqCst);
        bench.run("p", || bench.compute("p", &trio));
        let report = bench.report(&trio.u).unwrap();
        assert_eq!(report.state, State::ReleaseFailed);
        assert_eq!(bench.on(&trio.v, 0), V);
        let released = bench.events(0, "model.released");
        assert_eq!(released[0].error.as_deref(), Some("injected"));
        assert!(bench.registry.next_tick().is_some());
        trio.u.fake.fail_release.store(false, SeqCst);
        bench.pass(std::time::Duration::from_secs(11));
        if at_idle {
            bench.registry.tick();
        } else {
            bench.run("q", || bench.touch("q", &[&trio.c]));
        }
        assert_eq!(bench.listed(), [trio.c.id(), trio.v.id()]);
        assert!(bench.registry.next_tick().is_none());
    }
}

#[test]
fn r31b_a_release_that_failed_is_forgotten_when_the_model_is_used_again() {
    use std::sync::atomic::Ordering::SeqCst;
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    let u = bench.load(&who("p", "u"), "u", &units, &with_policy(EJECT));
    u.fake.fail_release.store(true, SeqCst);
    bench.run("p", || bench.touch("p", &[&u]));
    u.fake.fail_release.store(false, SeqCst);
    bench.pass(std::time::Duration::from_secs(11));
    let u = bench.load(&who("q", "u"), "u", &units, &with_policy(KEEP));
    bench.run("q", || bench.touch("q", &[&u]));
    bench.registry.tick();
    assert_eq!(bench.on(&u, 0), U);
    assert_eq!(bench.report(&u).unwrap().state, State::Resident);
    assert_eq!(u.fake.loads.load(SeqCst), 1);
}

#[test]
fn r33_shutdown_cleans_up() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(Policy::Pin),
    );
    bench.registry.prompt_started("p");
    let lease = bench.lease("p", &[&trio.u, &trio.c]);
    bench.registry.shutdown();
    drop(lease);
    assert_eq!(bench.devices[0].used(), 0);
    assert_eq!(bench.host.load(std::sync::atomic::Ordering::SeqCst), 0);
    let trigger = bench.events(0, "cleanup.completed")[0].trigger;
    assert_eq!(trigger, Some(Trigger::Shutdown));
}

#[test]
fn r34_ids_are_the_same_everywhere() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(EJECT),
        &with_policy(KEEP),
        &with_policy(KEEP),
    );
    bench.run("p", || bench.compute("p", &trio));
    for (model, set) in [&trio.u, &trio.v, &trio.c]
        .iter()
        .zip(bench.events(0, "policy.set"))
    {
        assert_eq!(set.weights.as_ref().unwrap().to_string(), model.id());
        let planned = bench.events(0, "plan.computed");
        assert!(planned.iter().any(|event| event.weights == set.weights));
    }
}

#[test]
fn r35_a_file_that_changed_is_another_model() {
    for pinned in [false, true] {
        let bench = Bench::new(ROOMY);
        let units = even(20, GIB / 4);
        let old = bench.load(&who("p", "u"), "u", &units, &with_policy(KEEP));
        bench.run("p", || bench.touch("p", &[&old]));
        let old_id = old.id();
        if pinned {
            bench.registry.set_policy(&old_id, Policy::Pin).unwrap();
        }
        let changed = LoaderSettings {
            edition: 1,
            ..with_policy(KEEP)
        };
        let new = bench.load(&who("q", "u"), "u", &units, &changed);
        assert!(!new.attached);
        assert_ne!(new.id(), old_id);
        // The loader's remembered answer is replaced.
        drop(old);
        let (report, _) = bench.registry.model(&old_id).unwrap();
        assert_eq!(
            report.policy,
            if pinned { Policy::Pin } else { Policy::Auto }
        );
        assert_eq!(report.residency, [(bench.name(0), U)]);
        // Need of room: the orphan goes first and for good.
        let big = bench.load(
            &who("q", "x"),
            "x",
            &even(40, GIB / 2),
            &LoaderSettings::default(),
        );
        bench.run("q", || bench.touch("q", &[&big]));
        assert_eq!(bench.registry.model(&old_id).is_some(), pinned);
    }
}

#[test]
fn r36_soft_empty_changes_nothing() {
    let bench = Bench::new(ROOMY);
    let trio = bench.trio(
        "p",
        &with_policy(KEEP),
        &with_policy(KEEP),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.compute("p", &trio));
    let before = bench.registry.snapshot();
    for _ in 0..5 {
        bench.registry.soft_empty();
    }
    assert_eq!(bench.registry.snapshot(), before);
    assert!(bench.events(0, "cache.reset").is_empty());
}

#[test]
fn r39_a_node_unloads_everything() {
    let bench = Bench::new(ROOMY);
    bench.registry.prompt_started("p");
    bench.registry.prompt_started("other");
    let trio = bench.trio(
        "p",
        &LoaderSettings::default(),
        &LoaderSettings::default(),
        &with_policy(KEEP),
    );
    bench.touch("p", &[&trio.u]);
    bench.touch("other", &[&trio.v]);
    bench.touch("p", &[&trio.c]);
    bench.registry.unload_in_node(&who("p", "node"));
    assert_eq!((bench.on(&trio.u, 0), bench.on(&trio.c, 0)), (0, 0));
    assert_eq!(bench.on(&trio.v, 0), V);
    assert_eq!(bench.on_host(&trio.u), U);
    bench.touch("p", &[&trio.u]);
    assert_eq!(bench.on(&trio.u, 0), U);
    assert_eq!(
        trio.u.fake.loads.load(std::sync::atomic::Ordering::SeqCst),
        1
    );
    bench.registry.prompt_ended("p");
    bench.registry.prompt_ended("other");
}

#[test]
fn r40_explicit_beats_default() {
    let bench = Bench::new(ROOMY);
    let units = even(20, GIB / 4);
    bench.run("p", || {
        let plain = bench.load(&who("p", "a"), "u", &units, &LoaderSettings::default());
        let ejecting = bench.load(&who("p", "b"), "u", &units, &with_policy(EJECT));
        bench.touch("p", &[&plain]);
        bench.touch("p", &[&ejecting]);
        assert_eq!(bench.report(&plain).unwrap().policy, EJECT);
        std::mem::forget((plain.handle, ejecting.handle));
    });
    assert!(bench.listed().is_empty());
    assert!(bench.events(0, "retention.conflict").is_empty());
}
