//! Models that are spread over devices: M-4, M-7 to M-9, M-12, M-14, and what a load would do.

use std::sync::atomic::Ordering::SeqCst;

use fresco_memory::{
    DeviceTotal, EjectOthers, LoadModel, LoadRequest, Need, Placement, Policy, State, parse_expert,
};

use crate::harness::*;

fn virtual_gb(gb: f64, donor: &str) -> LoaderSettings {
    LoaderSettings {
        placement: Some(Placement::Virtual {
            gb,
            donors: vec![donor.to_owned()],
        }),
        ..LoaderSettings::default()
    }
}

#[test]
fn m04_no_placement_no_plan() {
    let bench = Bench::new(&[24 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(10, GIB),
        &LoaderSettings::default(),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let (report, units) = bench.registry.model(&u.id()).unwrap();
    assert_eq!(report.handles[0].placement, None);
    assert!(units.iter().all(|unit| unit.planned.is_none()));
}

#[test]
fn m07_another_placement_moves_the_difference() {
    let bench = Bench::new(&[24 * GIB, 12 * GIB]);
    let units = even(10, GIB);
    let donor = bench.name(1);
    let first = bench.load(&who("p", "u"), "u", &units, &virtual_gb(4.0, &donor));
    bench.run("p", || bench.touch("p", &[&first]));
    assert_eq!(
        (bench.on(&first, 0), bench.on(&first, 1)),
        (6 * GIB, 4 * GIB)
    );
    let allocation = format!("#{};4.0;{donor}", bench.name(0));
    assert_eq!(
        bench.report(&first).unwrap().handles[0].placement,
        Some(allocation)
    );
    let moves = first.fake.moves.load(SeqCst);
    let second = bench.load(&who("q", "u"), "u", &units, &virtual_gb(6.0, &donor));
    bench.run("q", || bench.touch("q", &[&second]));
    assert_eq!(
        (bench.on(&second, 0), bench.on(&second, 1)),
        (4 * GIB, 6 * GIB)
    );
    assert_eq!(second.fake.moves.load(SeqCst), moves + 2);
    assert_eq!(second.fake.loads.load(SeqCst), 1);
    let homes = bench.homes(&second);
    let expected: Vec<_> = (0..10)
        .map(|i| Some(bench.name(usize::from(i < 6))))
        .collect();
    assert_eq!(homes, expected);
}

#[test]
fn m08_never_more_than_the_quota_while_loading() {
    // The model is larger than the device.
    let bench = Bench::new(&[8 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB),
        &virtual_gb(14.0, "cpu"),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(bench.on(&u, 0), 6 * GIB);
    assert!(
        bench.devices[0].peak() <= 7 * GIB,
        "{}",
        bench.devices[0].peak()
    );
    // Also when it is spread anew over a full device.
    bench.devices[0].reset_peak();
    let u = bench.load(
        &who("q", "u"),
        "u",
        &even(20, GIB),
        &virtual_gb(18.0, "cpu"),
    );
    bench.run("q", || bench.touch("q", &[&u]));
    assert_eq!(bench.on(&u, 0), 2 * GIB);
    assert!(bench.devices[0].peak() <= 7 * GIB);
}

#[test]
fn m09_two_models_share_a_donor() {
    let bench = Bench::new(&[24 * GIB, 4 * GIB]);
    let donor = bench.name(1);
    let a = bench.load(
        &who("p", "a"),
        "a",
        &even(4, GIB / 2),
        &virtual_gb(1.0, &donor),
    );
    let b = bench.load(
        &who("p", "b"),
        "b",
        &even(4, GIB / 2),
        &virtual_gb(1.0, &donor),
    );
    for round in 0..4 {
        let prompt = format!("p{round}");
        bench.run(&prompt, || {
            bench.touch(&prompt, &[if round % 2 == 0 { &a } else { &b }]);
        });
    }
    assert_eq!((bench.on(&a, 1), bench.on(&b, 1)), (GIB, GIB));
    assert_eq!((bench.on(&a, 0), bench.on(&b, 0)), (GIB, GIB));
    assert!(bench.events(0, "model.evicted").is_empty());
}

#[test]
fn donors_are_charged() {
    let bench = Bench::new(&[24 * GIB, 4 * GIB]);
    let donor = bench.name(1);
    let on_donor = LoaderSettings {
        device: Some(1),
        ..LoaderSettings::default()
    };
    let other = bench.load(&who("p", "o"), "o", &even(4, GIB / 2), &on_donor);
    bench.run("p", || bench.touch("p", &[&other]));
    assert_eq!(bench.on(&other, 1), 2 * GIB);
    // Three of four GiB are wanted there: what is there leaves.
    let u = bench.load(
        &who("q", "u"),
        "u",
        &even(10, GIB),
        &virtual_gb(3.0, &donor),
    );
    bench.run("q", || bench.touch("q", &[&u]));
    assert_eq!(
        (bench.on(&other, 1), bench.on(&u, 1), bench.on(&u, 0)),
        (0, 3 * GIB, 7 * GIB)
    );
    // What is pinned does not; the rest is in main memory.
    bench.registry.free(
        &fresco_memory::FreeRequest {
            unload_models: true,
            ..Default::default()
        },
        None,
    );
    bench.run("r", || bench.touch("r", &[&other]));
    bench.registry.set_policy(&other.id(), Policy::Pin).unwrap();
    let taken = bench.devices[1].allocate(GIB).unwrap();
    bench.registry.prompt_started("s");
    let lease = bench.lease("s", &[&u]);
    assert_eq!(bench.on(&u, 0), 7 * GIB);
    drop((lease, taken));
    bench.registry.prompt_ended("s");
}

#[test]
fn shards_elsewhere_stay_when_only_one_device_needs_room() {
    let bench = Bench::new(&[12 * GIB, 12 * GIB]);
    let donor = bench.name(1);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(10, GIB),
        &virtual_gb(4.0, &donor),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let x = bench.load(
        &who("q", "x"),
        "x",
        &even(10, GIB),
        &LoaderSettings::default(),
    );
    bench.run("q", || bench.touch("q", &[&x]));
    assert_eq!((bench.on(&u, 0), bench.on(&u, 1)), (0, 4 * GIB));
}

#[test]
fn m14_blocks_on_a_swap_device() {
    let bench = Bench::new(&[24 * GIB, 24 * GIB]);
    let mut units = even(12, GIB);
    for (index, unit) in units.iter_mut().enumerate().skip(2) {
        unit.block = Some(index as u32 - 2);
    }
    let told = LoaderSettings {
        placement: Some(Placement::Swap {
            blocks: 4,
            device: bench.name(1),
            ahead: 1,
        }),
        ..LoaderSettings::default()
    };
    let u = bench.load(&who("p", "u"), "u", &units, &told);
    bench.run("p", || bench.touch("p", &[&u]));
    assert_eq!(
        (bench.on(&u, 0), bench.on(&u, 1), bench.on_host(&u)),
        (8 * GIB, 4 * GIB, 0)
    );
    assert_eq!(u.fake.ahead.load(SeqCst), 1);
    assert_eq!(bench.homes(&u)[8..], vec![Some(bench.name(1)); 4]);
    assert_eq!(bench.report(&u).unwrap().state, State::Partial);
}

#[test]
fn m03_a_text_encoder_that_is_all_on_donors() {
    let bench = Bench::new(&[24 * GIB]);
    let mut units = even(10, GIB);
    units[0].embedding = true;
    units[0].biased = false;
    let told = LoaderSettings {
        text_encoder: true,
        ..virtual_gb(99.0, "cpu")
    };
    let c = bench.load(&who("p", "c"), "c", &units, &told);
    bench.run("p", || bench.touch("p", &[&c]));
    assert_eq!(c.handle.compute(), bench.devices[0]);
    assert_eq!((bench.on(&c, 0), bench.on_host(&c)), (GIB, 9 * GIB));
    assert_eq!(bench.homes(&c)[0], Some(bench.name(0)));
}

#[test]
fn the_compute_share_of_a_placement_has_a_budget() {
    let bench = Bench::new(&[4 * GIB]);
    let u = bench.load(
        &who("p", "u"),
        "u",
        &even(20, GIB / 2),
        &virtual_gb(2.0, "cpu"),
    );
    bench.run("p", || bench.touch("p", &[&u]));
    let on = bench.on(&u, 0);
    assert!(
        on > 0 && on <= 4 * GIB - fresco_memory::Reserves::default().minimum(),
        "{on}"
    );
}

fn described(name: &str, placement: Option<Placement>) -> LoadModel {
    LoadModel {
        name: name.to_owned(),
        weights: None,
        units: even(10, GIB).into(),
        compute: "cuda:0".to_owned(),
        offload: "cpu".to_owned(),
        placement,
        text_encoder: false,
        full: false,
    }
}

#[test]
fn m01_plans_of_the_table() {
    let bench = Bench::new(&[]);
    let devices: Vec<DeviceTotal> = [("cuda:0", 24), ("cuda:1", 12), ("cpu", 64)]
        .iter()
        .map(|(name, total)| DeviceTotal {
            name: (*name).to_owned(),
            total: total * GIB,
        })
        .collect();
    let expert = |text: &str| Placement::Expert(parse_expert(text, &devices).unwrap().unwrap());
    let of = |gb, donor: &str| Placement::Virtual {
        gb,
        donors: vec![donor.to_owned()],
    };
    for (placement, first, second, orphans) in [
        (of(4.0, "cpu"), 6, 0, 0),
        (of(4.0, "cuda:1"), 6, 4, 0),
        (expert("cuda:0,2.5gb;cuda:1,3gb;cpu,*"), 2, 3, 1),
        (expert("cuda:0,25%;cpu,75%"), 2, 0, 1),
        (expert("cuda:0,0.1;cpu,0.5"), 2, 0, 0),
    ] {
        let request = LoadRequest {
            models: vec![described("m", Some(placement))],
            devices: Some(devices.clone()),
            ..LoadRequest::default()
        };
        let plan = bench.registry.plan_load(&request);
        assert!(plan.fits, "{:?}", plan.problems);
        let model = &plan.models[0];
        let on = |name: &str| {
            model
                .places
                .iter()
                .find(|(d, _)| d == name)
                .map_or(0, |(_, b)| b / GIB)
        };
        assert_eq!(
            (on("cuda:0"), on("cuda:1"), on("cpu")),
            (first, second, 10 - first - second)
        );
        assert_eq!(model.orphans.len(), orphans);
        assert!(model.allocation.is_some());
        assert_eq!((model.resident / GIB, model.full), (first, false));
    }
}

#[test]
fn a_plan_does_what_the_load_then_does() {
    let bench = Bench::new(&[13 * GIB]);
    let a = bench.load(
        &who("p", "a"),
        "a",
        &even(20, GIB / 4),
        &LoaderSettings::default(),
    );
    let b = bench.load(
        &who("p", "b"),
        "b",
        &even(20, GIB / 4),
        &with_policy(Policy::Keep),
    );
    bench.run("p", || bench.touch("p", &[&a]));
    bench.run("q", || bench.touch("q", &[&b]));
    let x = bench.load(
        &who("p", "x"),
        "x",
        &even(80, GIB / 4),
        &LoaderSettings::default(),
    );
    let request = LoadRequest {
        models: vec![LoadModel {
            name: "x".to_owned(),
            weights: Some(x.handle.id().clone()),
            units: Vec::new().into(),
            compute: bench.name(0),
            offload: "cpu".to_owned(),
            placement: None,
            text_encoder: false,
            full: false,
        }],
        need: Need::default(),
        ..LoadRequest::default()
    };
    let before = bench.registry.snapshot();
    let seq = bench.registry.last_seq();
    let plan = bench.registry.plan_load(&request);
    assert_eq!(bench.registry.snapshot(), before);
    assert_eq!(bench.registry.last_seq(), seq);
    assert!(plan.fits && !plan.models[0].full);
    let leaving: Vec<_> = plan
        .evictions
        .steps
        .iter()
        .map(|step| step.weights.clone())
        .collect();
    assert_eq!(leaving, [a.handle.id().clone(), b.handle.id().clone()]);
    bench.run("r", || bench.touch("r", &[&x]));
    assert_eq!(bench.on(&x, 0), plan.models[0].resident);
    assert_eq!(bench.on_host(&x), plan.models[0].offloaded);
    assert_eq!((bench.on(&a, 0), bench.on(&b, 0)), (0, 0));
}

#[test]
fn plans_say_what_cannot_be() {
    let bench = Bench::new(&[4 * GIB]);
    bench.ram.store(16 * GIB, SeqCst);
    let mut model = described("big", None);
    model.compute = bench.name(0);
    let mut request = LoadRequest {
        models: vec![model.clone(), model.clone()],
        eject: EjectOthers::AllDevices,
        ..LoadRequest::default()
    };
    let plan = bench.registry.plan_load(&request);
    assert!(!plan.fits);
    assert!(
        plan.problems[0].starts_with("host_memory:"),
        "{:?}",
        plan.problems
    );
    assert_eq!(plan.host.unwrap().wanted, 20 * GIB);
    request.models.truncate(1);
    assert!(bench.registry.plan_load(&request).fits);
    request.need.required = 4 * GIB;
    let plan = bench.registry.plan_load(&request);
    assert!(
        !plan.fits && plan.problems[0].contains("largest layer"),
        "{:?}",
        plan.problems
    );
    request.models[0].compute = "sim:4242".to_owned();
    let plan = bench.registry.plan_load(&request);
    assert!(plan.problems[0].contains("sim:4242"), "{:?}", plan.problems);
}
