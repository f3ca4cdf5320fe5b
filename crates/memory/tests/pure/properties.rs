//! What holds for every input: 10,000 random cases each.

use std::collections::BTreeSet;

use fresco_memory::{
    Amount, Budget, DeviceTotal, Order, Placement, Reserves, Unit, VramState, budget, distribute,
    parse_expert, shrink, split, split_in,
};
use proptest::prelude::*;

/// Sizes of all magnitudes, and the extremes.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..40,
        4 => 0u64..10_000,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

fn units(most: usize) -> impl Strategy<Value = Vec<Unit>> {
    let one = (size(), 0u64..60, any::<u8>(), prop::option::of(0u32..6));
    (prop::collection::vec(one, 0..most), any::<bool>()).prop_map(|(list, small)| {
        list.into_iter()
            .enumerate()
            .map(|(i, (bytes, extra, flags, block))| {
                // Small ones meet limits and quotas more often.
                let bytes = if small { bytes % 20 } else { bytes };
                make(i, bytes, extra, flags, block)
            })
            .collect()
    })
}

fn make(i: usize, bytes: u64, extra: u64, flags: u8, block: Option<u32>) -> Unit {
    Unit {
        name: match flags & 7 {
            0 => format!("embed.{i}").into(),
            1 => "same".into(),
            _ => format!("layer.{i}").into(),
        },
        bytes,
        cost: bytes.saturating_add(if flags & 8 == 0 { 0 } else { extra }),
        embedding: flags & 7 == 2,
        biased: flags & 0x30 != 0,
        castable: flags & 0xc0 != 0,
        own: flags & 0x80 != 0,
        block,
    }
}

const NAMES: [&str; 6] = ["cpu", "sim:0", "sim:1", "sim:2", "sim:10", "mps"];

fn machine() -> impl Strategy<Value = Vec<DeviceTotal>> {
    prop::collection::vec(size(), NAMES.len()).prop_map(|totals| {
        let named = NAMES.iter().zip(totals);
        named
            .map(|(name, total)| DeviceTotal {
                name: (*name).to_owned(),
                total,
            })
            .collect()
    })
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned)
}

/// Texts in the grammar, most of them right.
fn text() -> impl Strategy<Value = String> {
    let amount = prop_oneof![
        (
            0u64..50,
            0u64..100,
            prop::sample::select(vec!["b", "k", "", "%", "b*"])
        )
            .prop_map(|(whole, part, unit)| format!("{whole}.{part}{unit}")),
        Just("*".to_owned()),
    ];
    prop::collection::vec((name(), amount), 1..5).prop_map(|items| {
        let items: Vec<String> = items
            .into_iter()
            .map(|(name, amount)| format!("{name},{amount}"))
            .collect();
        items.join(";")
    })
}

fn placement() -> impl Strategy<Value = Placement> {
    let lend = (
        any::<f64>(),
        0.0..3e-5,
        any::<bool>(),
        prop::collection::vec(name(), 0..4),
    )
        .prop_map(|(wild, tame, absurd, donors)| Placement::Virtual {
            gb: if absurd { wild } else { tame },
            donors,
        });
    let swap =
        (0u32..9, name(), any::<u32>()).prop_map(|(blocks, device, ahead)| Placement::Swap {
            blocks,
            device,
            ahead,
        });
    let texts = text().prop_filter_map("right texts", |text| {
        let devices: Vec<DeviceTotal> = NAMES
            .iter()
            .map(|name| DeviceTotal {
                name: (*name).to_owned(),
                total: 0,
            })
            .collect();
        parse_expert(&text, &devices)
            .ok()
            .flatten()
            .map(Placement::Expert)
    });
    prop_oneof![2 => lend, 3 => texts, 1 => swap]
}

fn sum(units: &[Unit], list: &[usize]) -> u128 {
    list.iter().map(|i| u128::from(units[*i].bytes)).sum()
}

fn all(units: &[Unit]) -> u128 {
    units.iter().map(|unit| u128::from(unit.bytes)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        max_local_rejects: 10_000_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Residents and buffer stay below the limit, and every unit is in one place.
    #[test]
    fn a_split_stays_below_its_limit(
        units in units(30), limit in prop::option::of(size()), part in prop::option::of(0u64..110), streams in 0usize..5,
    ) {
        // Mostly a part of the model, which is where there is something to choose.
        let part = part.map(|percent| u64::try_from(all(&units) * u128::from(percent) / 100).unwrap_or(u64::MAX));
        let limit = part.or(limit);
        let split = split(&units, limit, streams);
        let mut places: Vec<usize> = split.resident.iter().chain(&split.offloaded).copied().collect();
        places.sort_unstable();
        prop_assert_eq!(places, (0..units.len()).collect::<Vec<_>>());
        prop_assert_eq!(split.full, limit.is_none_or(|limit| u128::from(limit) > all(&units)));
        if split.full {
            prop_assert!(split.offloaded.is_empty());
        } else {
            let limit = u128::from(limit.unwrap());
            let used = sum(&units, &split.resident);
            prop_assert_eq!(u128::from(split.used), used);
            prop_assert!(split.resident.is_empty() || used + u128::from(split.buffer) < limit);
            // Whatever is streamed has its room.
            for i in &split.offloaded {
                prop_assert!(units[*i].cost <= split.buffer);
            }
        }
        prop_assert_eq!(&split_in(&units, &Order::of(&units), limit, streams), &split);
    }

    /// The definition, written down slowly, gives the same where costs are sizes.
    #[test]
    fn a_split_is_the_specified_one(mut units in units(20), limit in size(), streams in 0usize..5) {
        for (i, unit) in units.iter_mut().enumerate() {
            unit.cost = unit.bytes;
            unit.name = format!("{i:03}").into();
        }
        let mut order: Vec<usize> = (0..units.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse((units[*i].cost, units[*i].bytes, units[*i].name.clone())));
        let (mut used, mut buffer) = (0u128, 0u128);
        let mut resident = Vec::new();
        let full = u128::from(limit) > all(&units);
        for (place, i) in order.iter().enumerate() {
            let next: u128 = order.iter().skip(place + 1).take(streams).map(|i| u128::from(units[*i].bytes)).sum();
            let need = buffer.max(u128::from(units[*i].cost) + next);
            let bytes = u128::from(units[*i].bytes);
            if full || used + bytes + need < u128::from(limit) {
                used += bytes;
                resident.push(*i);
            } else {
                buffer = need;
            }
        }
        let split = split(&units, Some(limit), streams);
        prop_assert_eq!(&split.resident, &resident);
        prop_assert_eq!(u128::from(split.buffer), buffer.min(u128::from(u64::MAX)));
    }

    /// More room never means less of the model on the device, where units are alike.
    #[test]
    fn more_room_holds_more(count in 0usize..30, bytes in 1u64..50, limit in 0u64..1500, more in 0u64..200, streams in 0usize..4) {
        let units: Vec<Unit> = (0..count).map(|i| crate::unit(&format!("{i}"), bytes)).collect();
        let small = split(&units, Some(limit), streams);
        let large = split(&units, Some(limit + more), streams);
        prop_assert!(small.used <= large.used);
    }

    /// Shrinking frees more than asked, its own cost included, or everything that may move; and no unit too many.
    #[test]
    fn shrinking_frees_enough(
        units in units(30),
        picks in prop::collection::vec(any::<bool>(), 30),
        to_free in size(),
        buffer in size(),
        streams in 0usize..5,
    ) {
        let resident: Vec<usize> = (0..units.len()).filter(|i| picks[*i]).collect();
        let movable: BTreeSet<usize> =
            resident.iter().copied().filter(|i| units[*i].castable || !units[*i].own).collect();
        let shrunk = shrink(&units, &resident, to_free, buffer, streams);
        let gone: BTreeSet<usize> = shrunk.units.iter().copied().collect();
        prop_assert_eq!(gone.len(), shrunk.units.len());
        prop_assert!(gone.is_subset(&movable));
        let freed = sum(&units, &shrunk.units);
        prop_assert_eq!(u128::from(shrunk.freed), freed.min(u128::from(u64::MAX)));
        prop_assert!(shrunk.buffer >= buffer);
        let enough = |freed: u128, after: u64| freed > u128::from(to_free) + u128::from(after - buffer);
        prop_assert!(gone == movable || enough(freed, shrunk.buffer));
        // One unit fewer would not have been enough. (A buffer of more than 64 bits is not shown as it is.)
        if shrunk.buffer < u64::MAX
            && let Some((_, before)) = shrunk.units.split_last()
        {
            let freed = sum(&units, before);
            prop_assert!(freed <= u128::from(to_free) + u128::from(shrunk.buffer - buffer));
        }
        for i in &shrunk.units {
            prop_assert!(units[*i].cost <= shrunk.buffer);
        }
    }

    /// Every unit has one device, quotas hold but for what the rules put on top, and nothing depends on the order of
    /// the devices.
    #[test]
    fn units_are_distributed_once(
        units in units(25),
        devices in machine(),
        compute in name(),
        placement in placement(),
        text_encoder in any::<bool>(),
        turn in 0usize..6,
    ) {
        let plan = distribute(&units, &compute, &placement, &devices, text_encoder);
        let mut other = devices.clone();
        other.rotate_left(turn);
        other.swap(0, turn);
        prop_assert_eq!(&distribute(&units, &compute, &placement, &other, text_encoder), &plan);

        prop_assert_eq!(plan.of.len(), units.len());
        prop_assert_eq!(plan.quotas.len(), plan.devices.len());
        prop_assert!(plan.of.iter().all(|place| *place < plan.devices.len()));
        let total = all(&units);
        let embedding = |unit: &Unit| text_encoder && (unit.embedding || unit.name.contains("embed"));
        let fixed = |unit: &Unit| {
            embedding(unit) || !unit.biased || unit.bytes == 0 || u128::from(unit.bytes) * 10_000 < total.min(u64::MAX.into())
        };
        let swap = matches!(placement, Placement::Swap { .. });
        let mut held = vec![0u128; plan.devices.len()];
        for (i, unit) in units.iter().enumerate() {
            if !swap && fixed(unit) {
                prop_assert_eq!(plan.device(i), Some(&*compute));
                prop_assert!(!plan.orphans.contains(&i));
            } else if !plan.orphans.contains(&i) {
                held[plan.of[i]] += u128::from(unit.bytes);
            }
        }
        for (held, quota) in held.iter().zip(&plan.quotas) {
            // A sum that needs more than 64 bits is shown as the largest number.
            prop_assert!(*held <= u128::from(*quota) || *quota == u64::MAX);
        }
        prop_assert!(plan.orphans.is_sorted());
    }

    /// Any text has an answer; places are in it.
    #[test]
    fn any_text_has_an_answer(text in "\\PC{0,60}", devices in machine()) {
        if let Err(errors) = parse_expert(&text, &devices) {
            prop_assert!(!errors.is_empty());
            prop_assert!(errors.iter().all(|error| text.is_char_boundary(error.position)));
            prop_assert!(errors.is_sorted_by_key(|error| error.position));
        }
    }

    /// The same for texts that are nearly right.
    #[test]
    fn nearly_right_texts_have_an_answer(text in "((cpu|sim:[0-9]|mps| )?(,| ,|)?([0-9.*%;-]|[gGmMkKbBiI]| |é){0,5};?){0,5}", devices in machine()) {
        match parse_expert(&text, &devices) {
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                prop_assert!(errors.iter().all(|error| text.is_char_boundary(error.position)));
            }
            Ok(None) => prop_assert!(text.trim().is_empty()),
            Ok(Some(expert)) => {
                let names: BTreeSet<&String> = expert.items.iter().map(|(name, _)| name).collect();
                prop_assert_eq!(names.len(), expert.items.len());
                prop_assert!(names.iter().all(|name| NAMES.contains(&name.as_str())));
            }
        }
    }

    /// Amounts of accepted texts are for all of the model: exactly, but for parts of devices, which may be more.
    #[test]
    fn amounts_sum_up(text in text(), devices in machine(), sizes in prop::collection::vec(1u64..1000, 1..10)) {
        let Ok(Some(expert)) = parse_expert(&text, &devices) else { return Ok(()) };
        let units: Vec<Unit> = sizes.iter().enumerate().map(|(i, size)| crate::unit(&format!("{i}"), *size)).collect();
        let parts = expert.items.iter().any(|(_, amount)| matches!(amount, Amount::Fraction(_)));
        let rests = expert.items.iter().filter(|(_, amount)| *amount == Amount::Rest).count();
        prop_assert_eq!(rests, usize::from(expert.wildcard.is_some()));
        let plan = distribute(&units, "sim:0", &Placement::Expert(expert), &devices, false);
        let quotas: u128 = plan.quotas.iter().map(|quota| u128::from(*quota)).sum();
        let total: u128 = all(&units);
        if parts {
            prop_assert!(quotas >= total);
        } else {
            prop_assert_eq!(quotas, total);
        }
    }

    /// A budget never gives away what computing needs at the least, and is never over what there is.
    #[test]
    fn budgets_leave_room(
        free in size(), loaded in size(), minimum in size(), extra in size(), inference in size(), ratio in 0.0f64..1.0,
    ) {
        let reserves = Reserves { extra, inference, ratio };
        match budget(VramState::NormalVram, free, loaded, minimum, &reserves, false) {
            Budget::Unlimited => prop_assert!(false),
            Budget::Bytes(bytes) => {
                let after = i128::from(loaded) + i128::from(bytes);
                let all = i128::from(free) + i128::from(loaded);
                prop_assert!(after >= 0 || bytes == i64::MIN);
                let least = i128::from(minimum.min(reserves.minimum()));
                prop_assert!(after == 0 || after <= all - least || bytes == i64::MIN);
            }
        }
    }
}
