//! The golden table of the placement pass, and shrinking.

use fresco_memory::amount::MIB;
use fresco_memory::{Order, Split, Unit, shrink, split, split_in};

use crate::{mib, unit};

fn twenty() -> Vec<Unit> {
    (0..20).map(|i| mib(&format!("b{i:02}"), 100)).collect()
}

fn seven() -> Vec<Unit> {
    let sizes = [600, 500, 400, 300, 200, 100, 50];
    sizes
        .iter()
        .zip('a'..)
        .map(|(size, name)| mib(&name.to_string(), *size))
        .collect()
}

fn names(units: &[Unit], list: &[usize]) -> String {
    let names: Vec<&str> = list.iter().map(|i| &*units[*i].name).collect();
    names.join(" ")
}

#[track_caller]
fn check(
    units: &[Unit],
    streams: usize,
    limit: u64,
    resident: &str,
    used: u64,
    buffer: u64,
) -> Split {
    let split = split(units, Some(limit * MIB), streams);
    assert_eq!(names(units, &split.resident), resident);
    assert_eq!((split.used, split.buffer), (used * MIB, buffer * MIB));
    assert_eq!(split.resident.len() + split.offloaded.len(), units.len());
    assert!(!split.full);
    split
}

#[test]
fn golden_equal_units() {
    check(&twenty(), 2, 1000, "b19 b18 b17 b16 b15 b14", 600, 300);
    check(
        &twenty(),
        0,
        1000,
        "b19 b18 b17 b16 b15 b14 b13 b12",
        800,
        100,
    );
}

#[test]
fn golden_falling_units() {
    check(&seven(), 2, 1500, "", 0, 1500);
    check(&seven(), 2, 1900, "d g", 350, 1500);
    check(&seven(), 2, 2100, "b g", 550, 1500);
    check(&seven(), 0, 1500, "a d g", 950, 500);
    check(&seven(), 0, 2100, "a b c e g", 1750, 300);
}

#[test]
fn golden_units_that_are_cast() {
    let mut units = seven();
    for unit in &mut units {
        unit.cost = 3 * unit.bytes;
    }
    check(&units, 2, 2100, "", 0, 2700);
}

#[test]
fn golden_shrink() {
    let units = twenty();
    let split = split(&units, Some(1000 * MIB), 2);
    let shrunk = shrink(&units, &split.resident, 250 * MIB, split.buffer, 2);
    assert_eq!(names(&units, &shrunk.units), "b14 b15 b16");
    assert_eq!((shrunk.freed, shrunk.buffer), (300 * MIB, 300 * MIB));
}

#[test]
fn shrinking_frees_more_than_asked() {
    let units = twenty();
    let all: Vec<usize> = (0..20).collect();
    // As much as asked is not enough.
    assert_eq!(
        shrink(&units, &all, 100 * MIB, 300 * MIB, 2).freed,
        200 * MIB
    );
    assert_eq!(shrink(&units, &all, 0, 300 * MIB, 2).freed, 100 * MIB);
    // A model that was whole needs a buffer now, which counts against what comes free: 0 + 300 + 100 are needed.
    let shrunk = shrink(&units, &all, 100 * MIB, 0, 2);
    assert_eq!((shrunk.freed, shrunk.buffer), (500 * MIB, 300 * MIB));
    let everything = shrink(&units, &all, u64::MAX, 0, 2);
    assert_eq!(everything.freed, 2000 * MIB);
    assert_eq!(shrink(&units, &[], 1, 7, 2).units, [0; 0]);
    // Positions that are none, or twice the same, change nothing.
    assert_eq!(
        shrink(&units, &[3, 3, 99, usize::MAX], u64::MAX, 0, 2).units,
        [3]
    );
}

#[test]
fn a_patched_unit_that_cannot_be_streamed_stays() {
    let mut units = twenty();
    units[0].castable = false;
    units[1].castable = false;
    units[1].own = true;
    let shrunk = shrink(&units, &[0, 1, 2], u64::MAX, 0, 0);
    assert_eq!(names(&units, &shrunk.units), "b00 b02");
}

#[test]
fn everything_is_resident_below_the_limit() {
    let units = seven();
    for limit in [None, Some(u64::MAX), Some(2150 * MIB + 1)] {
        let split = split(&units, limit, 2);
        assert_eq!(names(&units, &split.resident), "a b c d e f g");
        assert_eq!(
            (split.used, split.buffer, split.full),
            (2150 * MIB, 0, true)
        );
        assert!(split.offloaded.is_empty());
    }
    assert!(!split(&units, Some(2150 * MIB), 2).full);
}

fn costly(list: &[(&str, u64, u64)]) -> Vec<Unit> {
    let unit = |(name, bytes, cost): &(&str, u64, u64)| Unit {
        cost: *cost,
        ..unit(name, *bytes)
    };
    list.iter().map(unit).collect()
}

#[test]
fn a_growing_buffer_does_not_pass_the_limit() {
    // The first fits beside its own need (1 + 10 + 1 < 13), then streaming the second needs 9 + 8.
    let units = costly(&[("a", 1, 10), ("b", 1, 9), ("c", 8, 8), ("d", 8, 8)]);
    let split = split(&units, Some(13), 1);
    assert_eq!(names(&units, &split.offloaded), "a b d c");
    assert_eq!((split.used, split.buffer), (0, 17));
}

#[test]
fn residents_come_largest_first() {
    let units = costly(&[
        ("a", 1, 40),
        ("b", 5, 30),
        ("c", 3, 20),
        ("d", 90, 90),
        ("e", 3, 3),
    ]);
    let split = split(&units, Some(100), 0);
    assert_eq!(names(&units, &split.resident), "b c a");
    assert_eq!(names(&units, &split.offloaded), "d e");
}

#[test]
fn a_small_buffer_is_shared_by_the_streams() {
    let units = twenty();
    let all: Vec<usize> = (0..20).collect();
    // Two streams had 10 of 30 each: 100 + 20. Then 100 + 10 + 100, then 100 + 200.
    for (to_free, freed, buffer) in [(0, 100, 120), (50, 400, 300)] {
        let shrunk = shrink(&units, &all, to_free * MIB, 30 * MIB, 2);
        assert_eq!((shrunk.freed / MIB, shrunk.buffer / MIB), (freed, buffer));
    }
}

#[test]
fn extremes_have_an_answer() {
    let empty = split(&[], Some(0), 2);
    assert!(empty.resident.is_empty() && empty.offloaded.is_empty());
    assert!(split(&[], None, usize::MAX).full);
    let huge: Vec<Unit> = (0..5).map(|i| unit(&format!("u{i}"), u64::MAX)).collect();
    let one = split(&huge, Some(u64::MAX), usize::MAX);
    assert_eq!((one.resident.len(), one.used, one.buffer), (0, 0, u64::MAX));
    assert_eq!(split(&huge, None, 3).used, u64::MAX);
    let all: Vec<usize> = (0..5).collect();
    assert_eq!(
        shrink(&huge, &all, u64::MAX, u64::MAX, usize::MAX).freed,
        u64::MAX
    );
    // An order of other units is not used.
    assert_eq!(
        split_in(&huge, &Order::of(&seven()), None, 1),
        split(&huge, None, 1)
    );
}

#[test]
fn the_order_can_be_kept() {
    let units = seven();
    let order = Order::of(&units);
    for limit in [0, 1, 500 * MIB, 1900 * MIB] {
        assert_eq!(
            split_in(&units, &order, Some(limit), 2),
            split(&units, Some(limit), 2)
        );
    }
}
