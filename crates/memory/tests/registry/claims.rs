//! Which policy counts, and what a claim replaces.

use std::time::Duration;

use fresco_memory::{Policy, PolicySource};

use crate::harness::*;

#[test]
fn the_strongest_claim_counts() {
    let ttl = Policy::Ttl(Duration::from_mins(1));
    let order = [
        Policy::Auto,
        Policy::EjectAfter,
        ttl,
        Policy::Keep,
        Policy::Pin,
    ];
    for (i, weak) in order.iter().enumerate() {
        for strong in &order[i..] {
            for swapped in [false, true] {
                let bench = Bench::new(&[24 * GIB]);
                bench.registry.prompt_started("p");
                let (first, second) = if swapped {
                    (strong, weak)
                } else {
                    (weak, strong)
                };
                let a = bench.load(&who("p", "a"), "u", &even(2, GIB), &with_policy(*first));
                let b = bench.load(&who("p", "b"), "u", &even(2, GIB), &with_policy(*second));
                let report = bench.report(&a).unwrap();
                assert_eq!(report.policy, *strong);
                let conflict = *weak == Policy::EjectAfter && *strong > Policy::EjectAfter;
                assert_eq!(
                    bench.events(0, "retention.conflict").len(),
                    usize::from(conflict)
                );
                drop(b);
                bench.registry.prompt_ended("p");
            }
        }
    }
}

#[test]
fn a_claimant_has_one_claim() {
    let bench = Bench::new(&[24 * GIB]);
    let mut last = None;
    for policy in [
        Policy::Keep,
        Policy::Pin,
        Policy::Auto,
        Policy::Keep,
        Policy::Auto,
    ] {
        let u = bench.load(&who("p", "u"), "u", &even(2, GIB), &with_policy(policy));
        let report = bench.report(&u).unwrap();
        assert_eq!((report.policy, report.claims.len()), (policy, 1));
        assert_eq!(report.policy_source, PolicySource::NodeInput);
        last = Some(u);
    }
    // Another client is another claimant, and so is another node.
    let mut stranger = who("p", "u");
    stranger.client = "stranger".into();
    let u = bench.load(&stranger, "u", &even(2, GIB), &with_policy(Policy::Keep));
    assert_eq!(bench.report(&u).unwrap().claims.len(), 2);
    drop(last);
    // A claim on another file does not touch this one.
    let _x = bench.load(&stranger, "x", &even(2, GIB), &with_policy(Policy::Auto));
    assert_eq!(bench.report(&u).unwrap().policy, Policy::Keep);
}

#[test]
fn a_policy_node_speaks_for_a_model_on_a_link() {
    let bench = Bench::new(&[24 * GIB]);
    bench.registry.prompt_started("p");
    let u = bench.load(
        &who("p", "loader"),
        "u",
        &even(2, GIB),
        &LoaderSettings::default(),
    );
    u.handle.set_policy(
        &who("p", "policy"),
        Policy::EjectAfter,
        PolicySource::PolicyNode,
    );
    let report = bench.report(&u).unwrap();
    assert_eq!(
        (report.policy, report.policy_source),
        (Policy::EjectAfter, PolicySource::PolicyNode)
    );
    bench.touch("p", &[&u]);
    bench.registry.prompt_ended("p");
    assert!(bench.listed().is_empty());
    // Both nodes are remembered; only the sampler runs again.
    bench.run("q", || bench.touch("q", &[&u]));
    assert!(bench.listed().is_empty());
    u.handle
        .set_policy(&who("r", "policy"), Policy::Keep, PolicySource::PolicyNode);
    bench.run("r", || bench.touch("r", &[&u]));
    assert_eq!(bench.on(&u, 0), 2 * GIB);
}

#[test]
fn policies_are_parsed_strictly() {
    for policy in [
        Policy::Auto,
        Policy::EjectAfter,
        Policy::Keep,
        Policy::Pin,
        Policy::Ttl(Duration::from_secs(7)),
    ] {
        assert_eq!(Policy::parse(&policy.to_string()), Some(policy));
    }
    assert_eq!(Policy::parse("eject"), Some(Policy::EjectAfter));
    for text in [
        "", "KEEP", "ttl", "ttl:", "ttl:-1", "ttl:x", "null", "keep ",
    ] {
        assert_eq!(Policy::parse(text), None, "{text:?}");
    }
}

#[test]
fn ids_are_readable_and_of_the_content() {
    let bench = Bench::new(&[]);
    let units = even(2, GIB);
    let id = |file: &str, edition| {
        let told = LoaderSettings {
            edition,
            ..LoaderSettings::default()
        };
        bench.load(&who("p", "u"), file, &units, &told).id()
    };
    let first = id("sd15.safetensors", 0);
    assert!(first.starts_with("sd15.safetensors:diffusion-"), "{first}");
    assert_eq!(first, id("sd15.safetensors", 0));
    assert_ne!(first, id("sd15.safetensors", 1));
    assert_ne!(first, id("other.safetensors", 0));
}
