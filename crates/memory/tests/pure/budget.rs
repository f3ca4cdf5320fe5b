//! Reserves and budgets.

use fresco_memory::amount::{GIB, MIB, gib};
use fresco_memory::{Budget, ReserveRule, Reserves, VramState, budget, headroom};

const STATES: [VramState; 6] = [
    VramState::Disabled,
    VramState::NoVram,
    VramState::LowVram,
    VramState::NormalVram,
    VramState::HighVram,
    VramState::Shared,
];

#[test]
fn reserves_are_those_of_the_system() {
    assert_eq!(ReserveRule::OTHER.extra(8 * GIB), 400 * MIB);
    assert_eq!(ReserveRule::OTHER.extra(u64::MAX), 400 * MIB);
    assert_eq!(ReserveRule::WINDOWS.extra(8 * GIB), 600 * MIB);
    assert_eq!(ReserveRule::WINDOWS.extra(15 * GIB), 600 * MIB);
    assert_eq!(ReserveRule::WINDOWS.extra(15 * GIB + 1), 700 * MIB);
    let plain = Reserves::default();
    assert_eq!(plain.extra, 400 * MIB);
    assert_eq!(plain.minimum(), 858_993_459 + 400 * MIB);
    assert_eq!(plain.ratio, 0.0);
    assert_eq!(Reserves::new(ReserveRule::OTHER, 0, false).ratio, 0.4);
    assert_eq!(
        plain.maximum_weights(10 * GIB),
        10 * GIB * 88 / 100 - plain.minimum()
    );
    assert_eq!(plain.maximum_weights(0), 0);
}

#[test]
fn a_flag_sets_the_reserve() {
    let plain = Reserves::default();
    assert_eq!(plain.with_reserve(2.5).unwrap().extra, 5 * GIB / 2);
    assert_eq!(plain.with_reserve(0.0).unwrap().extra, 0);
    assert_eq!(plain.with_reserve(1e300).unwrap().minimum(), u64::MAX);
    for bad in [f64::NAN, -1.0, -0.001, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(plain.with_reserve(bad), None, "{bad}");
    }
}

#[test]
fn gigabytes_are_exact() {
    assert_eq!(gib(0.1), Some(107_374_182));
    assert_eq!(gib(1.0), Some(GIB));
    assert_eq!(gib(-0.0), Some(0));
    assert_eq!(gib(f64::MIN_POSITIVE), Some(0));
    assert_eq!(gib(5e-324), Some(0));
    assert_eq!(gib(17_179_869_183.0), Some(u64::MAX - (GIB - 1)));
    assert_eq!(gib(17_179_869_184.0), Some(u64::MAX));
    assert_eq!(gib(f64::MAX), Some(u64::MAX));
}

#[test]
fn a_load_asks_for_room_to_compute() {
    let reserves = Reserves::default();
    let least = reserves.minimum();
    // Small needs are covered by the minimum.
    let demand = reserves.demand(0, None);
    assert_eq!((demand.expected, demand.floor), (least, least));
    let demand = reserves.demand(2 * GIB, None);
    assert_eq!(
        (demand.expected, demand.floor),
        (2 * GIB + 400 * MIB, 2 * GIB + 400 * MIB)
    );
    let demand = reserves.demand(2 * GIB, Some(GIB));
    assert_eq!(
        (demand.expected, demand.floor),
        (2 * GIB + 400 * MIB, GIB + 400 * MIB)
    );
    let demand = reserves.demand(2 * GIB, Some(0));
    assert_eq!(demand.floor, least);
    assert_eq!(demand.with_weights(10), 11 + 2 * GIB + 400 * MIB);
    assert_eq!(headroom(1), 2);
    assert_eq!(headroom(u64::MAX), u64::MAX);
    assert_eq!(reserves.demand(u64::MAX, Some(u64::MAX)).floor, u64::MAX);
}

#[test]
fn states_decide_whether_there_is_a_budget() {
    let reserves = Reserves::default();
    let of = |state, full| budget(state, 8 * GIB, 0, 2 * GIB, &reserves, full);
    assert_eq!(of(VramState::NormalVram, false), Budget::Bytes(6 << 30));
    assert_eq!(of(VramState::LowVram, false), Budget::Bytes(6 << 30));
    assert_eq!(of(VramState::NoVram, false), Budget::Bytes(0));
    // The flag beats a full load.
    assert_eq!(of(VramState::NoVram, true), Budget::Bytes(0));
    for state in [VramState::Disabled, VramState::HighVram, VramState::Shared] {
        assert_eq!(of(state, false), Budget::Unlimited);
    }
    assert_eq!(of(VramState::NormalVram, true), Budget::Unlimited);
    assert_eq!(VramState::NormalVram.on(true), VramState::Disabled);
    assert_eq!(VramState::LowVram.on(false), VramState::LowVram);
}

#[test]
fn what_is_loaded_counts_as_free_for_itself() {
    let reserves = Reserves::default();
    let of = |free, loaded, minimum| {
        budget(
            VramState::NormalVram,
            free,
            loaded,
            minimum,
            &reserves,
            false,
        )
    };
    // 1 free and 4 loaded, 2 wanted: one must leave.
    assert_eq!(of(GIB, 4 * GIB, 2 * GIB), Budget::Bytes(-(1 << 30)));
    assert_eq!(of(GIB, 4 * GIB, 2 * GIB).excess(), GIB);
    // Nothing is left: all leaves.
    assert_eq!(of(0, GIB, 8 * GIB), Budget::Bytes(-(1 << 30)));
    // Exactly as much as is there.
    assert_eq!(of(2 * GIB, 4 * GIB, 2 * GIB), Budget::Bytes(0));
    assert_eq!(
        of(2 * GIB, 4 * GIB, 2 * GIB).limit(4 * GIB),
        Some(4 * GIB + 1)
    );
    assert_eq!(Budget::Bytes(5).limit(10), Some(15));
    assert_eq!(Budget::Bytes(-15).limit(10), Some(0));
    assert_eq!(Budget::Unlimited.limit(10), None);
    assert_eq!(Budget::Bytes(i64::MAX).limit(u64::MAX), Some(u64::MAX));
}

#[test]
fn a_part_is_for_weights_where_streaming_is_slow() {
    let reserves = Reserves::new(ReserveRule::OTHER, 0, false);
    let of = |free, minimum| budget(VramState::NormalVram, free, 0, minimum, &reserves, false);
    // 0.4 of 10 GiB is more than 10 - 8.
    assert_eq!(of(10 * GIB, 8 * GIB), Budget::Bytes(4 << 30));
    // But the minimum to compute stays free: 1.5 GiB less 1.19 GiB.
    let free = 3 * GIB / 2;
    assert_eq!(
        of(free, 8 * GIB),
        Budget::Bytes((free - reserves.minimum()) as i64)
    );
    assert_eq!(of(GIB / 2, 8 * GIB), Budget::Bytes(0));
}

#[test]
fn absurd_numbers_have_an_answer() {
    let values = [0, 1, GIB, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let ratios = [0.0, 0.4, 1.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX];
    for state in STATES {
        for free in values {
            for loaded in values {
                for minimum in values {
                    for ratio in ratios {
                        let reserves = Reserves {
                            extra: minimum,
                            inference: loaded,
                            ratio,
                        };
                        let budget = budget(state, free, loaded, minimum, &reserves, false);
                        if let Some(limit) = budget.limit(loaded) {
                            let total = u128::from(free) + u128::from(loaded);
                            assert!(
                                u128::from(limit) <= total + 1,
                                "{free} {loaded} {minimum} {ratio}"
                            );
                        }
                    }
                }
            }
        }
    }
}
