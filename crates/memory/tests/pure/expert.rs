//! Every row of the table of expert texts, and how problems are told.

use fresco_memory::amount::{Decimal, GIB, MIB};
use fresco_memory::{Amount, DeviceTotal, Expert, ExpertCode, Placement, distribute, parse_expert};

use crate::{devices, machine, unit};

#[track_caller]
fn good(text: &str, devices: &[DeviceTotal]) -> Expert {
    parse_expert(text, devices).unwrap().unwrap()
}

/// Codes and places.
#[track_caller]
fn bad(text: &str, devices: &[DeviceTotal]) -> Vec<(&'static str, usize)> {
    let errors = parse_expert(text, devices).unwrap_err();
    errors
        .iter()
        .map(|error| (error.code.name(), error.position))
        .collect()
}

/// Bytes by device for a model of ten units of 1 GiB that computes on the first accelerator.
#[track_caller]
fn quotas(text: &str, devices: &[DeviceTotal], compute: &str) -> Vec<(String, f64)> {
    let units: Vec<_> = (0..10).map(|i| unit(&format!("{i}"), GIB)).collect();
    let expert = good(text, devices);
    let plan = distribute(&units, compute, &Placement::Expert(expert), devices, false);
    let gib = plan.quotas.iter().map(|bytes| *bytes as f64 / GIB as f64);
    plan.devices
        .iter()
        .cloned()
        .zip(gib)
        .filter(|(_, gib)| *gib > 0.0)
        .collect()
}

fn pairs(list: &[(&str, f64)]) -> Vec<(String, f64)> {
    list.iter()
        .map(|(name, gib)| ((*name).to_owned(), *gib))
        .collect()
}

/// Rows with accelerators, for both kinds of names.
fn each(run: impl Fn(&str, Vec<DeviceTotal>)) {
    for kind in ["cuda", "sim"] {
        run(kind, machine(kind));
    }
}

#[test]
fn bytes_and_rest() {
    each(|kind, devices| {
        let text = format!("{kind}:0,2.5gb;cpu,*");
        let (zero, one) = (format!("{kind}:0"), format!("{kind}:1"));
        assert_eq!(
            quotas(&text, &devices, &zero),
            pairs(&[(&zero, 2.5), ("cpu", 7.5)])
        );
        let expert = good(&text, &devices);
        assert_eq!(expert.wildcard.as_deref(), Some("cpu"));
        assert!(expert.warnings.is_empty());

        let text = format!("{kind}:0,500mb;{kind}:1,3.0g;cpu,5gb*");
        let expert = good(&text, &devices);
        assert_eq!(
            expert.items,
            [
                (zero.clone(), Amount::Bytes(500 * MIB)),
                (one.clone(), Amount::Bytes(3 * GIB)),
                ("cpu".to_owned(), Amount::Rest),
            ]
        );
        let codes: Vec<&str> = expert.warnings.iter().map(|warning| warning.code).collect();
        assert_eq!(codes, ["wildcard_amount_ignored"]);
        assert_eq!(expert.warnings[0].position, text.find("5gb*").unwrap());
        let rest = 7.0 - 500.0 / 1024.0;
        assert_eq!(
            quotas(&text, &devices, &zero),
            pairs(&[(&zero, 500.0 / 1024.0), (&one, 3.0), ("cpu", rest)])
        );
    });
}

#[test]
fn ratios() {
    each(|kind, devices| {
        let (zero, one) = (format!("{kind}:0"), format!("{kind}:1"));
        assert_eq!(
            quotas(&format!("{kind}:0,25%;cpu,75%"), &devices, &zero),
            pairs(&[(&zero, 2.5), ("cpu", 7.5)])
        );
        assert_eq!(
            quotas(&format!("{kind}:0,8%;{kind}:1,8%;cpu,4%"), &devices, &zero),
            pairs(&[(&zero, 4.0), (&one, 4.0), ("cpu", 2.0)])
        );
        // The rest to a hundred.
        assert_eq!(
            quotas(&format!("{kind}:0,50%;cpu,*"), &devices, &zero),
            pairs(&[(&zero, 5.0), ("cpu", 5.0)])
        );
        assert_eq!(
            quotas(
                &format!("{kind}:0,150%;{kind}:1,50%;cpu,*"),
                &devices,
                &zero
            ),
            pairs(&[(&zero, 7.5), (&one, 2.5)])
        );
        assert_eq!(
            quotas(&format!("{kind}:0,0%;cpu,*"), &devices, &zero),
            pairs(&[("cpu", 10.0)])
        );
        assert_eq!(
            bad(&format!("{kind}:0,0%;cpu,0%"), &devices),
            [("zero_ratio", kind.len() + 3)]
        );
    });
}

#[test]
fn fractions() {
    each(|kind, devices| {
        let zero = format!("{kind}:0");
        let text = format!("{kind}:0,0.1;cpu,0.5");
        let quotas = quotas(&text, &devices, &zero);
        assert_eq!(quotas[0].0, zero);
        // 2.4 GiB, to the byte.
        assert!((quotas[0].1 - 2.4).abs() < 1e-9);
        assert_eq!(quotas[1], ("cpu".to_owned(), 32.0));
        assert!(good(&text, &devices).warnings.is_empty());
    });
    // More than the device has is odd, and says what may be meant.
    let expert = good("cuda:0,2;cpu,*", &machine("cuda"));
    assert_eq!(expert.warnings[0].code, "above_device");
    assert_eq!(expert.items[0].1, Amount::Fraction(Decimal::whole(2)));
}

#[test]
fn the_mode_is_that_of_the_values() {
    let devices = devices(&[
        ("cpu", 32),
        ("mps", 32),
        ("mlu:0", 16),
        ("directml:0", 1),
        ("corex:0", 8),
    ]);
    for device in ["mps", "mlu:0", "directml:0", "corex:0"] {
        let expert = good(&format!("{device},0.5;cpu,0.5"), &devices);
        assert!(matches!(expert.items[0].1, Amount::Fraction(_)), "{device}");
        let expert = good(&format!("{device},40%;cpu,60%"), &devices);
        assert!(matches!(expert.items[0].1, Amount::Percent(_)), "{device}");
        let expert = good(&format!("{device},1g;cpu,*"), &devices);
        assert_eq!(expert.items[0].1, Amount::Bytes(GIB), "{device}");
    }
    assert_eq!(
        quotas("mps,0.5;cpu,0.5", &devices, "mps"),
        pairs(&[("mps", 16.0), ("cpu", 16.0)])
    );
    // A plain number is what the others are.
    assert_eq!(
        good("mps,1g;cpu,50", &devices).items[1].1,
        Amount::Bytes(50)
    );
    assert_eq!(
        good("mps,25%;cpu,75", &devices).items[1].1,
        Amount::Percent(Decimal::whole(75))
    );
    assert!(matches!(
        good("mps,25;cpu,*", &devices).items[0].1,
        Amount::Fraction(_)
    ));
}

#[test]
fn spaces_are_free() {
    let devices = machine("cuda");
    let tight = good("cuda:0,2.5gb;cuda:1,3g;cpu,5gb*", &devices);
    let loose = good(
        "  cuda:0 , 2.5 gb ;\n cuda:1\t,3 G;  cpu , 5 GiB * ; ",
        &devices,
    );
    assert_eq!(loose.items, tight.items);
    assert_eq!(loose.wildcard, tight.wildcard);
    assert!(good("cuda:0,0.5; cuda:1,0.5", &devices).items[1].0 == "cuda:1");
    assert_eq!(good("CUDA:0,1g", &devices).items[0].0, "cuda:0");
}

#[test]
fn units_of_every_spelling() {
    let devices = machine("cuda");
    let bytes = |amount: &str| good(&format!("cuda:0,{amount};cpu,*"), &devices).items[0].1;
    for unit in ["g", "gb", "gib", "G", "GB", "GiB", "gB"] {
        assert_eq!(bytes(&format!("1.5{unit}")), Amount::Bytes(3 * GIB / 2));
    }
    for unit in ["m", "mb", "mib", "MiB"] {
        assert_eq!(bytes(&format!("2{unit}")), Amount::Bytes(2 * MIB));
    }
    for unit in ["k", "kb", "kib", "KB"] {
        assert_eq!(bytes(&format!("2{unit}")), Amount::Bytes(2048));
    }
    assert_eq!(bytes("7b"), Amount::Bytes(7));
    assert_eq!(bytes(".5g"), Amount::Bytes(GIB / 2));
    assert_eq!(bytes("5.g"), Amount::Bytes(5 * GIB));
    assert_eq!(bytes("0g"), Amount::Bytes(0));
    // Exact: 0.1 GiB is 107374182.4 bytes; the last of these fills 64 bits.
    assert_eq!(bytes("0.1g"), Amount::Bytes(107_374_182));
    assert_eq!(bytes("18446744073709551615b"), Amount::Bytes(u64::MAX));
    assert_eq!(
        bytes("0.00000000093132257461547851562500000000000000000001g"),
        Amount::Bytes(0)
    );
    assert_eq!(bytes("0.000000000931322575g"), Amount::Bytes(1));
}

#[test]
fn unknown_devices_are_listed() {
    each(|kind, devices| {
        let text = format!("cpu,*; {kind}:7,1g;gpu,1g");
        let errors = parse_expert(&text, &devices).unwrap_err();
        assert_eq!(errors.len(), 2);
        assert_eq!(
            (errors[0].code, errors[0].position),
            (ExpertCode::UnknownDevice, 7)
        );
        assert_eq!(errors[1].position, text.find("gpu").unwrap());
        assert_eq!(
            errors[1].to_string(),
            format!(
                "unknown_device at {}: unknown device \"gpu\"; the devices are {kind}:0, {kind}:1, cpu",
                errors[1].position
            )
        );
    });
    let errors = parse_expert("cpu,1g", &[]).unwrap_err();
    assert_eq!(errors[0].code, ExpertCode::UnknownDevice);
}

#[test]
fn bad_amounts() {
    each(|kind, devices| {
        let start = kind.len() + 3;
        let absurd = [
            "-1g",
            "xg",
            "1e3m",
            "",
            " ",
            ".",
            ".g",
            "1..5g",
            "1.2.3",
            "+1g",
            "1tb",
            "1gg",
            "1gbb",
            "1g b",
            "**",
            "*5g",
            "5*g",
            "5%*",
            "%",
            "1 0g",
            "1_000",
            "0x10",
            "NaN",
            "inf",
            "١g",
            "1g**",
            "18446744073709551616b",
            "18446744073709551616",
            "17179869184g",
            "99999999999999999999999999999999999999999999999999g",
            "1000000001%",
        ];
        for amount in absurd {
            let found = bad(&format!("{kind}:0,{amount};cpu,*"), &devices);
            let spaces = amount.len() - amount.trim_start().len();
            assert_eq!(found, [("bad_amount", start + spaces)], "{amount:?}");
        }
    });
    let errors = parse_expert("cuda:0,xg", &machine("cuda")).unwrap_err();
    assert_eq!(
        errors[0].message,
        "\"xg\" is not an amount: it must start with a number; right are 2.5g, 500mb, 25%, 0.5 and *"
    );
}

#[test]
fn bad_items() {
    let devices = machine("sim");
    assert_eq!(bad("sim:0,0.5,0.2", &devices), [("bad_item", 9)]);
    assert_eq!(bad("sim:0", &devices), [("bad_item", 0)]);
    assert_eq!(bad("sim:0,1g;;cpu,*", &devices), [("bad_item", 9)]);
    assert_eq!(bad(";", &devices), [("bad_item", 0)]);
    assert_eq!(bad(";sim:0,1g", &devices), [("bad_item", 0)]);
    assert_eq!(bad("sim:0,1g; ;", &devices), [("bad_item", 10)]);
    assert_eq!(bad(" ,1g", &devices), [("bad_item", 3 - 2)]);
    let errors = parse_expert("sim:0 1g", &devices).unwrap_err();
    assert_eq!(
        errors[0].message,
        "\"sim:0 1g\" is not a device and an amount; each item is DEVICE,AMOUNT as in sim:0,2.5g;cpu,*"
    );
}

#[test]
fn modes_are_not_mixed() {
    each(|kind, devices| {
        let text = format!("{kind}:0,2g;cpu,50%");
        assert_eq!(
            bad(&text, &devices),
            [("mixed_modes", text.find("50%").unwrap())]
        );
    });
}

#[test]
fn devices_are_named_once() {
    each(|kind, devices| {
        let text = format!("{kind}:0,2g;{kind}:0,3g;cpu,*");
        assert_eq!(bad(&text, &devices), [("duplicate_device", kind.len() + 6)]);
    });
    assert_eq!(
        bad("cpu,*;cpu,1g", &machine("sim")),
        [("duplicate_device", 6)]
    );
}

#[test]
fn all_problems_at_once() {
    let text = "cuda:9,2g;cuda:0,50%;cuda:0,-3;nothing;cpu,1,2";
    assert_eq!(
        bad(text, &machine("cuda")),
        [
            ("unknown_device", 0),
            ("mixed_modes", 17),
            ("duplicate_device", 21),
            ("bad_amount", 28),
            ("bad_item", 31),
            ("bad_item", 44),
        ]
    );
    // A text that is something else does not give a book of errors.
    assert_eq!(
        parse_expert(&";".repeat(100_000), &[]).unwrap_err().len(),
        100
    );
    let long = format!("{},1g", "ä".repeat(10_000));
    assert!(parse_expert(&long, &[]).unwrap_err()[0].message.len() < 200);
}

#[test]
fn too_little_goes_to_main_memory() {
    let devices = machine("sim");
    let units: Vec<_> = (0..10).map(|i| unit(&format!("{i}"), GIB)).collect();
    // 2.4 and 1.2 GiB of 10.
    let expert = good("sim:0,0.1;sim:1,0.1", &devices);
    let plan = distribute(&units, "sim:0", &Placement::Expert(expert), &devices, false);
    assert_eq!(plan.quotas.iter().sum::<u64>(), 10 * GIB);
    assert_eq!(plan.of, [2, 2, 2, 2, 2, 2, 2, 1, 0, 0]);
    assert_eq!(plan.orphans, [0]);
    assert!(
        plan.warnings[0]
            .starts_with("underallocated: the amounts leave 6.4 GiB of the model's 10 GiB")
    );
    // Somebody was named to take it.
    let expert = good("sim:0,0.1;sim:1,*", &devices);
    let plan = distribute(&units, "sim:0", &Placement::Expert(expert), &devices, false);
    assert!(plan.warnings.is_empty());
}

#[test]
fn nothing_is_no_placement() {
    let devices = machine("sim");
    assert_eq!(parse_expert("", &devices), Ok(None));
    assert_eq!(parse_expert(" \t\n", &devices), Ok(None));
}

#[test]
fn the_last_star_wins() {
    let devices = machine("sim");
    let expert = good("sim:0,*;sim:1,1g;cpu,*", &devices);
    assert_eq!(expert.wildcard.as_deref(), Some("cpu"));
    assert_eq!(expert.items[0].1, Amount::Bytes(0));
    assert_eq!(expert.warnings[0].code, "second_wildcard");
    assert_eq!(
        quotas("sim:1,*", &devices, "sim:0"),
        pairs(&[("sim:1", 10.0)])
    );
}

#[test]
fn later_devices_get_what_is_left() {
    let devices = machine("sim");
    assert_eq!(
        quotas("sim:1,8g;sim:0,8g", &devices, "sim:0"),
        pairs(&[("sim:0", 2.0), ("sim:1", 8.0)])
    );
}
