//! The worked table of block assignment, virtual memory, block swap.

use fresco_memory::amount::{GIB, MIB};
use fresco_memory::{
    DeviceTotal, Distribution, Placement, Unit, allocation_string, device_order, distribute,
    parse_expert,
};

use crate::{devices, machine, unit};

fn ten() -> Vec<Unit> {
    (0..10).map(|i| unit(&format!("unit.{i}"), GIB)).collect()
}

fn lend(gb: f64, donors: &[&str]) -> Placement {
    Placement::Virtual {
        gb,
        donors: donors.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn expert(text: &str, devices: &[DeviceTotal]) -> Placement {
    Placement::Expert(parse_expert(text, devices).unwrap().unwrap())
}

/// `device: unit unit o`, devices in their order, units from the last to the first, orphans marked.
fn show(plan: &Distribution) -> String {
    let mut parts = Vec::new();
    for (place, device) in plan.devices.iter().enumerate() {
        let units: Vec<String> = (0..plan.of.len())
            .rev()
            .filter(|i| plan.of[*i] == place)
            .map(|i| {
                if plan.orphans.contains(&i) {
                    format!("{i}o")
                } else {
                    i.to_string()
                }
            })
            .collect();
        if !units.is_empty() {
            parts.push(format!("{device}: {}", units.join(" ")));
        }
    }
    parts.join(" | ")
}

#[track_caller]
fn check(placement: impl Fn(&[DeviceTotal], &str) -> Placement, expected: &str) {
    for kind in ["cuda", "sim"] {
        let devices = machine(kind);
        let placement = placement(&devices, kind);
        let plan = distribute(&ten(), &format!("{kind}:0"), &placement, &devices, false);
        assert_eq!(show(&plan), expected.replace("X:", &format!("{kind}:")));
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }
}

#[test]
fn worked_table() {
    check(
        |_, _| lend(4.0, &["cpu"]),
        "X:0: 9 8 7 6 5 4 | cpu: 3 2 1 0",
    );
    check(
        |_, kind| lend(4.0, &[&format!("{kind}:1")]),
        "X:0: 9 8 7 6 5 4 | X:1: 3 2 1 0",
    );
    check(
        |devices, kind| expert(&format!("{kind}:0,2.5gb;{kind}:1,3gb;cpu,*"), devices),
        "X:0: 9 8 | X:1: 7 6 5 | cpu: 4 3 2 1 0o",
    );
    check(
        |devices, kind| expert(&format!("{kind}:0,25%;cpu,75%"), devices),
        "X:0: 9 8 | cpu: 7 6 5 4 3 2 1 0o",
    );
    check(
        |devices, kind| expert(&format!("{kind}:0,0.1;cpu,0.5"), devices),
        "X:0: 9 8 | cpu: 7 6 5 4 3 2 1 0",
    );
}

#[test]
fn the_order_of_the_text_does_not_matter() {
    check(
        |devices, kind| expert(&format!("cpu,*;{kind}:1,3gb;{kind}:0,2.5gb"), devices),
        "X:0: 9 8 | X:1: 7 6 5 | cpu: 4 3 2 1 0o",
    );
}

#[test]
fn quotas_are_exact_bytes() {
    let devices = machine("cuda");
    let plan = distribute(&ten(), "cuda:0", &lend(4.0, &["cuda:1"]), &devices, false);
    assert_eq!(plan.devices, ["cuda:0", "cuda:1", "cpu"]);
    assert_eq!(plan.quotas, [6 * GIB, 4 * GIB, 0]);
    let third = expert("cuda:0,33.3%;cuda:1,33.3%;cpu,33.3%", &devices);
    let plan = distribute(&ten(), "cuda:0", &third, &devices, false);
    let share = 10 * GIB / 3;
    assert_eq!(plan.quotas, [share, share, 10 * GIB - 2 * share]);
}

#[test]
fn orphans_stay_on_compute_without_a_limit_on_it() {
    let devices = machine("cuda");
    // Not named, so not limited: 0.5 of a unit is left on cuda:1.
    let plan = distribute(
        &ten(),
        "cuda:0",
        &expert("cuda:1,3.5g;cpu,6.5g", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "cuda:0: 0o | cuda:1: 9 8 7 | cpu: 6 5 4 3 2 1");
    let plan = distribute(&ten(), "cuda:0", &lend(3.5, &["cpu"]), &devices, false);
    assert_eq!(show(&plan), "cuda:0: 9 8 7 6 5 4 0o | cpu: 3 2 1");
    // It takes the rest itself.
    let plan = distribute(
        &ten(),
        "cuda:0",
        &expert("cuda:0,*;cpu,3.5g", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "cuda:0: 9 8 7 6 5 4 0o | cpu: 3 2 1");
}

#[test]
fn orphans_go_to_a_device_that_was_named() {
    let devices = machine("cuda");
    // Nothing is said about cpu, and the shares are of everything.
    let plan = distribute(
        &ten(),
        "cuda:0",
        &expert("cuda:0,25%;cuda:1,75%", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "cuda:0: 9 8 | cuda:1: 7 6 5 4 3 2 1 0o");
    let plan = distribute(
        &ten(),
        "cuda:0",
        &expert("cuda:0,5.5g;cuda:1,4.5g;cpu,*", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "cuda:0: 9 8 7 6 5 | cuda:1: 4 3 2 1 | cpu: 0o");
    let plan = distribute(
        &ten(),
        "cuda:0",
        &expert("cuda:0,100%", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "cuda:0: 9 8 7 6 5 4 3 2 1 0");
}

#[test]
fn virtual_memory_fills_donors_in_order() {
    let devices = devices(&[("cpu", 64), ("sim:0", 24), ("sim:1", 2), ("sim:2", 1)]);
    let plan = distribute(
        &ten(),
        "sim:0",
        &lend(6.0, &["sim:2", "sim:1", "cpu"]),
        &devices,
        false,
    );
    assert_eq!(plan.quotas, [4 * GIB, 2 * GIB, GIB, 3 * GIB]);
    assert_eq!(
        show(&plan),
        "sim:0: 9 8 7 6 | sim:1: 5 4 | sim:2: 3 | cpu: 2 1 0"
    );
    // More than there is: everything away, or what the donors can take.
    let plan = distribute(&ten(), "sim:0", &lend(99.0, &["cpu"]), &devices, false);
    assert_eq!(show(&plan), "cpu: 9 8 7 6 5 4 3 2 1 0");
    let plan = distribute(
        &ten(),
        "sim:0",
        &lend(99.0, &["sim:1", "sim:1", "sim:7"]),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "sim:0: 7o 6o 5o 4o 3o 2o 1o 0o | sim:1: 9 8");
    assert!(
        plan.warnings[0].starts_with("donors_too_small: 8 GiB "),
        "{:?}",
        plan.warnings
    );
    // It lends to itself.
    let plan = distribute(&ten(), "sim:0", &lend(4.0, &["sim:0"]), &devices, false);
    assert_eq!(plan.quotas[0], 10 * GIB);
}

#[test]
fn absurd_virtual_memory_is_none() {
    let devices = machine("sim");
    for gb in [0.0, -4.0, f64::NAN, f64::INFINITY] {
        let plan = distribute(&ten(), "sim:0", &lend(gb, &["cpu"]), &devices, false);
        assert_eq!(show(&plan), "sim:0: 9 8 7 6 5 4 3 2 1 0", "{gb}");
    }
    let plan = distribute(&ten(), "sim:0", &lend(f64::MAX, &["cpu"]), &devices, false);
    assert_eq!(show(&plan), "cpu: 9 8 7 6 5 4 3 2 1 0");
}

#[test]
fn a_model_larger_than_its_device_is_told() {
    let devices = devices(&[("cpu", 64), ("sim:0", 10)]);
    let plan = distribute(&ten(), "sim:0", &lend(0.5, &["cpu"]), &devices, false);
    assert_eq!(
        plan.warnings,
        [
            "model_larger_than_device: the model has 10 GiB, sim:0 10 GiB: at least 1 GiB of virtual VRAM are needed"
        ]
    );
    let nine = &ten()[..9];
    assert!(
        distribute(nine, "sim:0", &lend(0.5, &["cpu"]), &devices, false)
            .warnings
            .is_empty()
    );
    // Whatever was asked, what does not fit is told.
    let plan = distribute(
        &ten(),
        "sim:0",
        &expert("sim:0,*", &devices),
        &devices,
        false,
    );
    assert!(plan.warnings.is_empty());
    let eleven: Vec<Unit> = (0..11).map(|i| unit(&format!("{i}"), GIB)).collect();
    let plan = distribute(
        &eleven,
        "sim:0",
        &expert("sim:0,*", &devices),
        &devices,
        false,
    );
    assert_eq!(
        plan.warnings,
        ["above_device: 11 GiB of the model go to sim:0, which has 10 GiB"]
    );
}

#[test]
fn embeddings_of_text_encoders_stay_with_compute() {
    let devices = machine("sim");
    let mut units = ten();
    units[0] = unit("text_model.embeddings.token_embedding", 2 * GIB);
    units[1].embedding = true;
    units[1].name = "shared".into();
    units[5].name = "h.WTE".into();
    units[9].name = "wpe".into();
    // M-3: all of it is virtual.
    let plan = distribute(&units, "sim:0", &lend(99.0, &["cpu"]), &devices, true);
    assert_eq!(show(&plan), "sim:0: 9 5 1 0 | cpu: 8 7 6 4 3 2");
    assert!(plan.orphans.is_empty());
    // Their bytes are part of the quota: 6 of 11, 5 for embeddings.
    let plan = distribute(&units, "sim:0", &lend(5.0, &["cpu"]), &devices, true);
    assert_eq!(show(&plan), "sim:0: 9 8 5 1 0 | cpu: 7 6 4 3 2");
    // Other networks have no such rule.
    let plan = distribute(&units, "sim:0", &lend(99.0, &["cpu"]), &devices, false);
    assert_eq!(show(&plan), "cpu: 9 8 7 6 5 4 3 2 1 0");
}

#[test]
fn small_units_and_those_without_bias_stay_with_compute() {
    let devices = machine("sim");
    let mut units: Vec<Unit> = (0..4).map(|i| unit(&format!("{i}"), 2500 * MIB)).collect();
    units[2].biased = false;
    units.push(unit("small", MIB - 1));
    units.push(unit("enough", MIB + 500));
    units.push(unit("empty", 0));
    let plan = distribute(&units, "sim:1", &lend(99.0, &["cpu"]), &devices, false);
    assert_eq!(show(&plan), "sim:1: 6 4 2 | cpu: 5 3 1 0");
}

#[test]
fn devices_are_in_the_order_of_their_numbers() {
    let mut names = [
        "cpu",
        "cuda:10",
        "mps",
        "cuda:2",
        "cuda:02",
        "directml:0",
        "cuda:1",
        "xpu:0",
        "cuda:x",
    ];
    names.sort_by(|a, b| device_order(a, b));
    assert_eq!(
        names,
        [
            "cuda:1",
            "cuda:02",
            "cuda:2",
            "cuda:10",
            "cuda:x",
            "directml:0",
            "mps",
            "xpu:0",
            "cpu"
        ]
    );
    let devices = devices(&[("sim:10", 24), ("cpu", 64), ("sim:2", 24)]);
    let plan = distribute(
        &ten(),
        "sim:10",
        &expert("sim:10,40%;sim:2,40%;cpu,20%", &devices),
        &devices,
        false,
    );
    assert_eq!(show(&plan), "sim:2: 9 8 7 6 | sim:10: 5 4 3 2 | cpu: 1 0");
}

#[test]
fn the_last_blocks_are_swapped() {
    let devices = machine("sim");
    let mut units = ten();
    for (i, unit) in units.iter_mut().enumerate() {
        // No block, then four blocks of two units, then no block.
        unit.block = (1..9).contains(&i).then(|| (i as u32 - 1) / 2);
    }
    let swap = |blocks, device: &str| {
        let placement = Placement::Swap {
            blocks,
            device: device.to_owned(),
            ahead: 1,
        };
        distribute(&units, "sim:0", &placement, &devices, false)
    };
    assert_eq!(show(&swap(0, "cpu")), "sim:0: 9 8 7 6 5 4 3 2 1 0");
    assert_eq!(
        show(&swap(1, "sim:1")),
        "sim:0: 9 6 5 4 3 2 1 0 | sim:1: 8 7"
    );
    assert_eq!(show(&swap(3, "cpu")), "sim:0: 9 2 1 0 | cpu: 8 7 6 5 4 3");
    assert_eq!(swap(3, "cpu").quotas, [4 * GIB, 0, 6 * GIB]);
    assert_eq!(
        show(&swap(u32::MAX, "sim:1")),
        "sim:0: 9 0 | sim:1: 8 7 6 5 4 3 2 1"
    );
    assert_eq!(swap(3, "sim:0").quotas, [10 * GIB, 0, 0]);
}

#[test]
fn nothing_to_place() {
    for placement in [
        lend(4.0, &[]),
        lend(4.0, &["nowhere"]),
        expert("cpu,5%", &machine("sim")),
    ] {
        let plan = distribute(&[], "", &placement, &[], true);
        assert!(plan.of.is_empty() && plan.orphans.is_empty());
        assert!(plan.devices.contains(&String::new()));
    }
    let plan = distribute(&ten(), "sim:0", &lend(4.0, &["cpu"]), &[], false);
    assert_eq!(plan.device(0), Some("sim:0"));
    assert_eq!(plan.device(10), None);
}

#[test]
fn allocation_strings() {
    let donors = ["cpu".to_owned()];
    let two = ["sim:1".to_owned(), "cpu".to_owned()];
    assert_eq!(
        allocation_string("", "cuda:0", 4.0, &donors),
        "#cuda:0;4.0;cpu"
    );
    assert_eq!(
        allocation_string("", "cuda:0", 0.1, &two),
        "#cuda:0;0.1;sim:1,cpu"
    );
    assert_eq!(
        allocation_string("cuda:0,2g;cpu,*", "cuda:0", 0.0, &donors),
        "cuda:0,2g;cpu,*#cuda:0"
    );
    assert_eq!(
        allocation_string("cuda:0,2g", "cuda:1", 12.5, &donors),
        "cuda:0,2g#cuda:1;12.5;cpu"
    );
    for gb in [0.0, -1.0, f64::NAN] {
        assert_eq!(allocation_string(" ", "cuda:0", gb, &donors), "");
    }
}
