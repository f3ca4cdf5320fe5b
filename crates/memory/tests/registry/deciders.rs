//! Who decided: every event that tells a decision names the policy that counted, who set it, and who made it happen; and
//! how long a node's wish belongs to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fresco_memory::{
    ApiRequest, EjectOthers, Event, FreeRequest, MemoryFlag, Origin, Policy, PolicySource, Reason,
    SetBy, Settings, Who, Wish,
};

use crate::harness::*;

/// Kinds that tell a decision about a model.
const DECISIONS: [&str; 9] = [
    "plan.computed",
    "model.released",
    "model.evicted",
    "model.shrunk",
    "policy.set",
    "policy.ended",
    "retention.conflict",
    "retention.overridden",
    "cleanup.deferred",
];

/// All decisions name a policy, who set it, and an origin; and where a reason says who set it, it is the same.
#[track_caller]
fn consistent(bench: &Bench) {
    for event in bench.registry.events(0, &[], usize::MAX) {
        if !DECISIONS.contains(&event.kind) {
            continue;
        }
        let (Some(policy), Some(set_by), Some(_)) = (event.policy, &event.set_by, &event.origin)
        else {
            panic!("nobody decided {event:?}");
        };
        let named = event.reason.as_ref().and_then(wish_of);
        // Those two tell of a wish that counts no more, and what counts instead.
        let of_another = ["retention.conflict", "policy.ended", "policy.set"];
        if let Some(wish) = named
            && !of_another.contains(&event.kind)
        {
            assert_eq!(policy, wish.policy, "{event:?}");
            let by_node =
                |source| matches!(source, PolicySource::NodeInput | PolicySource::PolicyNode);
            assert_eq!(
                by_node(set_by.source),
                by_node(wish.set_by.source)
                    && wish.set_by.node == set_by.node
                    && !set_by.node.is_empty(),
                "{event:?}"
            );
        }
    }
}

/// The first claimant's wish that a reason names.
fn wish_of(reason: &Reason) -> Option<&Wish> {
    let wish = match reason {
        Reason::HeldByOther(Some(wish))
        | Reason::Policy(wish)
        | Reason::RetentionRespected(wish)
        | Reason::PromptOver(wish)
        | Reason::TimeToLiveOver(wish)
        | Reason::Counts(wish)
        | Reason::UsedAgain(wish)
        | Reason::Conflict { loser: wish, .. }
        | Reason::ClaimMoved { counts: wish, .. } => wish,
        Reason::Retry(Some(first)) => return wish_of(first),
        Reason::Several(all) => return all.iter().find_map(wish_of),
        _ => return None,
    };
    let made = wish.set_by.source == PolicySource::Api || !wish.set_by.node.is_empty();
    let strong = [Policy::EjectAfter, Policy::Keep, Policy::Pin].contains(&wish.policy);
    (made && strong).then_some(wish)
}

fn client(name: &str, prompt: &str, node: &str) -> Who {
    Who {
        client: name.into(),
        ..who(prompt, node)
    }
}

fn last(bench: &Bench, kind: &str) -> Event {
    let found = bench.events(0, kind).pop();
    found.unwrap_or_else(|| panic!("there is no {kind}"))
}

#[track_caller]
fn decided(event: &Event, policy: Policy, source: PolicySource, origin: &Origin) {
    let set_by = event.set_by.as_ref().map(|set_by| set_by.source);
    assert_eq!(
        (event.policy, set_by, event.origin.as_ref()),
        (Some(policy), Some(source), Some(origin)),
        "{event:?}"
    );
}

fn by_node(node: &str, input: &'static str) -> Origin {
    Origin::node(&who("", node), input)
}

#[test]
fn what_ends_with_its_prompt_names_the_node_that_wanted_it() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.run("p", || {
        let u = bench.load(
            &who("p", "u"),
            "u",
            &even(2, GIB),
            &with_policy(Policy::EjectAfter),
        );
        bench.touch("p", &[&u]);
        u
    });
    for kind in ["plan.computed", "model.released"] {
        let event = last(&bench, kind);
        decided(
            &event,
            Policy::EjectAfter,
            PolicySource::NodeInput,
            &by_node("u", "retention"),
        );
        assert_eq!(&*event.set_by.as_ref().unwrap().client, "client");
    }
    // The variant's own layers go for the same reason.
    let patched = bench.patch(&u, 1);
    bench.run("q", || bench.touch("q", &[&patched]));
    consistent(&bench);
}

#[test]
fn requests_and_flags_are_named() {
    let bench = Bench::new(&[24 * GIB]);
    let api = |request| Origin::Api { request };
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(2, GIB),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let everything = |unload: bool| FreeRequest {
        unload_models: unload,
        free_memory: !unload,
        ..FreeRequest::default()
    };
    bench.registry.free(&everything(true), None);
    let keep = (Policy::Keep, PolicySource::NodeInput);
    decided(
        &last(&bench, "model.evicted"),
        keep.0,
        keep.1,
        &api(ApiRequest::Free),
    );
    // Asked while a prompt holds it, done at its end.
    bench.registry.prompt_started("q");
    bench.touch("q", &[&u]);
    bench.registry.remove(&u.id(), false).unwrap();
    let deferred = last(&bench, "cleanup.deferred");
    decided(&deferred, keep.0, keep.1, &api(ApiRequest::Remove));
    bench.registry.prompt_ended("q");
    let released = last(&bench, "model.released");
    assert_eq!(released.origin, Some(api(ApiRequest::Remove)));
    // By policy, at once.
    bench.run("r", || bench.touch("r", &[&u]));
    bench
        .registry
        .set_policy(&u.id(), Policy::EjectAfter)
        .unwrap();
    decided(
        &last(&bench, "model.released"),
        Policy::EjectAfter,
        PolicySource::Api,
        &api(ApiRequest::SetPolicy),
    );
    consistent(&bench);

    let settings = Settings {
        smart: false,
        ..Settings::default()
    };
    let bench = Bench::with(settings, &[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(2, GIB),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let flag = Origin::Flag {
        flag: MemoryFlag::DisableSmartMemory,
    };
    decided(
        &last(&bench, "model.evicted"),
        Policy::Auto,
        PolicySource::Default,
        &flag,
    );
    consistent(&bench);
}

#[test]
fn a_time_to_live_names_who_set_it() {
    let bench = Bench::new(&[24 * GIB]);
    let ttl = Policy::Ttl(Duration::from_secs(5));
    let u = bench.load(&who("p", "u"), "u", &even(2, GIB), &with_policy(ttl));
    bench.run("p", || bench.touch("p", &[&u]));
    bench.pass(Duration::from_secs(6));
    bench.registry.tick();
    let released = last(&bench, "model.released");
    decided(
        &released,
        ttl,
        PolicySource::NodeInput,
        &by_node("u", "retention"),
    );
    consistent(&bench);
}

/// Who cleared the device is the loader that asked, not the sampler that happened to need it first.
#[test]
fn a_cleared_device_names_the_loader() {
    let bench = Bench::new(&[24 * GIB]);
    let c = bench.load(
        &who("p", "c"),
        "c",
        &even(2, GIB),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.touch("p", &[&c]));
    let wish = LoaderSettings {
        eject: EjectOthers::ComputeDevice,
        ..LoaderSettings::default()
    };
    bench.run("q", || {
        let u = bench.load(&who("q", "u"), "u", &even(2, GIB), &wish);
        bench.touch("q", &[&u]);
    });
    let origin = by_node("u", "eject_models");
    let evicted = last(&bench, "model.evicted");
    decided(&evicted, Policy::Keep, PolicySource::NodeInput, &origin);
    assert_eq!(last(&bench, "eject.applied").origin, Some(origin));
    consistent(&bench);
}

/// Two prompts share a model; the one that wants it gone ends first. Who decided is remembered until it can go.
#[test]
fn a_deferred_wish_keeps_its_name() {
    let bench = Bench::new(&[24 * GIB]);
    bench.registry.prompt_started("p");
    bench.registry.prompt_started("q");
    let c = bench.load(
        &who("p", "c"),
        "c",
        &even(2, GIB),
        &with_policy(Policy::EjectAfter),
    );
    bench.touch("p", &[&c]);
    let again = bench.load(
        &who("q", "d"),
        "c",
        &even(2, GIB),
        &LoaderSettings::default(),
    );
    bench.touch("q", &[&again]);
    bench.registry.prompt_ended("p");
    let eject = (Policy::EjectAfter, PolicySource::NodeInput);
    let origin = by_node("c", "retention");
    decided(&last(&bench, "cleanup.deferred"), eject.0, eject.1, &origin);
    bench.registry.prompt_ended("q");
    decided(&last(&bench, "model.released"), eject.0, eject.1, &origin);
    consistent(&bench);
}

#[test]
fn a_loaded_model_names_every_device() {
    let bench = Bench::new(&[24 * GIB, 24 * GIB]);
    let wish = LoaderSettings {
        placement: Some(fresco_memory::Placement::Virtual {
            gb: 3.0,
            donors: vec![bench.name(1)],
        }),
        ..LoaderSettings::default()
    };
    let u = bench.load(&who("p", "u"), "u", &even(8, GIB), &wish);
    bench.run("p", || bench.touch("p", &[&u]));
    let loaded = last(&bench, "model.loaded");
    assert_eq!(
        loaded.places,
        [(bench.name(0), 5 * GIB), (bench.name(1), 3 * GIB)]
    );
    assert_eq!(loaded.origin, Some(by_node("u", "virtual_vram_gb")));
    let by_input = |reason: &Reason| matches!(reason, Reason::PlacementInput { by, input, .. } if &*by.node == "u" && *input == "virtual_vram_gb");
    assert!(match loaded.reason.unwrap() {
        Reason::Several(reasons) => reasons.iter().any(by_input),
        reason => by_input(&reason),
    });
}

/// Item 17: keep belongs to the place in the workflow, not to every file it ever named.
#[test]
fn another_file_in_the_same_place_ends_the_old_wish() {
    let bench = Bench::new(&[24 * GIB]);
    let load = |prompt: &str, who: &Who, file: &str, policy| {
        bench.run(prompt, || {
            let model = bench.load(who, file, &even(2, GIB), &with_policy(policy));
            bench.touch(prompt, &[&model]);
            model
        })
    };
    let policy = |model: &Model| bench.report(model).map(|report| report.policy);
    for next in [Policy::Keep, Policy::EjectAfter, Policy::Auto] {
        let a = load("1", &who("1", "u"), "a", Policy::Keep);
        let b = load("2", &who("2", "u"), "b", next);
        assert_eq!(policy(&a), Some(Policy::Auto), "after {next}");
        let ended = last(&bench, "policy.ended");
        assert_eq!(ended.weights.unwrap().to_string(), a.id());
        assert_eq!(ended.policy, Some(Policy::Keep));
        assert!(matches!(
            ended.reason,
            Some(Reason::ClaimMoved { file, .. }) if file == "b"
        ));
        // A remembered loader does not run again, but means its file when that is used: and the other one counts no more.
        bench.run("3", || bench.touch("3", &[&a]));
        assert_eq!(policy(&a), Some(Policy::Keep), "after {next}");
        if next == Policy::Keep {
            assert_eq!(policy(&b), Some(Policy::Auto));
        }
        drop((a, b));
        let everything = FreeRequest {
            free_memory: true,
            ..FreeRequest::default()
        };
        bench.registry.free(&everything, None);
    }
    // Another node and another client are other places.
    let a = load("4", &who("4", "u"), "a", Policy::Keep);
    let _b = load("5", &who("5", "v"), "b", Policy::Keep);
    let _c = load("6", &client("other", "6", "u"), "c", Policy::Keep);
    assert_eq!(policy(&a), Some(Policy::Keep));
    // Within one prompt a node may load several.
    bench.run("7", || {
        let x = bench.load(
            &who("7", "w"),
            "x",
            &even(2, GIB),
            &with_policy(Policy::Keep),
        );
        let y = bench.load(
            &who("7", "w"),
            "y",
            &even(2, GIB),
            &with_policy(Policy::Keep),
        );
        assert_eq!(
            (policy(&x), policy(&y)),
            (Some(Policy::Keep), Some(Policy::Keep))
        );
    });
    // What a request said is of no place.
    bench.registry.set_policy(&a.id(), Policy::Pin).unwrap();
    let b = load("8", &who("8", "u"), "b", Policy::Keep);
    assert_eq!(
        (policy(&a), policy(&b)),
        (Some(Policy::Pin), Some(Policy::Keep))
    );
    consistent(&bench);
}

#[test]
fn a_conflict_names_both_clients_and_the_way_out() {
    let bench = Bench::new(&[24 * GIB]);
    bench.registry.prompt_started("p");
    bench.registry.prompt_started("q");
    let a = bench.load(
        &client("alice", "p", "1"),
        "u",
        &even(2, GIB),
        &with_policy(Policy::Keep),
    );
    bench.load(
        &client("bob", "q", "7"),
        "u",
        &even(2, GIB),
        &with_policy(Policy::EjectAfter),
    );
    let conflicts = bench.events(0, "retention.conflict");
    assert_eq!(conflicts.len(), 1);
    let Some(Reason::Conflict {
        loser,
        winner,
        weights,
    }) = &conflicts[0].reason
    else {
        panic!("no conflict in {:?}", conflicts[0]);
    };
    let wish = |wish: &Wish| {
        let SetBy { node, client, .. } = &wish.set_by;
        (wish.policy, node.to_string(), client.to_string())
    };
    assert_eq!(
        wish(loser),
        (Policy::EjectAfter, "7".to_owned(), "bob".to_owned())
    );
    assert_eq!(
        wish(winner),
        (Policy::Keep, "1".to_owned(), "alice".to_owned())
    );
    assert_eq!(weights.to_string(), a.id());
    consistent(&bench);
}

/// A script may make up a client for every run: its wishes do not pile up for ever.
#[test]
fn wishes_are_bounded() {
    let bench = Bench::new(&[24 * GIB]);
    let mut kept = None;
    for run in 0..200 {
        let prompt = run.to_string();
        let name = format!("script-{run}");
        kept = Some(bench.run(&prompt, || {
            let who = client(&name, &prompt, "1");
            bench.load(&who, "u", &even(2, GIB), &with_policy(Policy::Keep))
        }));
    }
    let report = bench.report(&kept.unwrap()).unwrap();
    assert_eq!(report.policy, Policy::Keep);
    assert!(report.claims.len() <= 64, "{}", report.claims.len());
    assert_eq!(&*report.claims.last().unwrap().client, "script-199");
}

/// What listeners hear is what the ring remembers.
#[test]
fn listeners_hear_who_decided() {
    let bench = Bench::new(&[24 * GIB]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    bench.registry.on_event(Arc::new(move |event| {
        ear.lock().unwrap().push(event.clone());
    }));
    bench.run("p", || {
        let u = bench.load(
            &who("p", "u"),
            "u",
            &even(2, GIB),
            &with_policy(Policy::EjectAfter),
        );
        bench.touch("p", &[&u]);
    });
    assert_eq!(
        *heard.lock().unwrap(),
        bench.registry.events(0, &[], usize::MAX)
    );
}
