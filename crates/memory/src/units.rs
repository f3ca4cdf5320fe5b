//! Where the units of one model go: decided once, for loads that are carried out, for loads that are only thought of, and for admission.
//! Pure.

use crate::{Reserves, Unit, VramState, budget, shrink, split};

/// What a device gives a model beside what computing needs.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    pub state: VramState,
    pub reserves: Reserves,
    /// Free bytes without which nothing can be computed.
    pub floor: u64,
    /// The whole model is asked for.
    pub full: bool,
    /// How many further units are fetched while one is used.
    pub streams: usize,
}

/// One model and the devices, before its units are placed. Devices are positions in one list, whose first is the main memory.
#[derive(Debug, Clone, Copy)]
pub struct UnitScene<'a> {
    pub units: &'a [Unit],
    /// Where each unit is; none: in its file only.
    pub homes: &'a [Option<usize>],
    pub compute: usize,
    /// Where units are kept for which the compute device has no room.
    pub offload: usize,
    /// Where a placement wants each unit; none: where it computes.
    pub targets: Option<&'a [usize]>,
    /// Free bytes by device.
    pub free: &'a [u64],
    /// Bytes that the model holds for streaming now.
    pub buffer: u64,
    pub allowance: Allowance,
    /// The limit of another try, after the compute device has refused more.
    pub limit: Option<u64>,
}

/// Where the units go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitPlan {
    /// By unit.
    pub spots: Vec<usize>,
    /// Units that leave the compute device, in order.
    pub leave: Vec<usize>,
    /// Units that come to the compute device or stay there, in order.
    pub come: Vec<usize>,
    /// Units that their device has no room for: they go to main memory.
    pub refused: Vec<usize>,
    /// Bytes that the model may have on the compute device; none: all.
    pub limit: Option<u64>,
    /// Bytes to keep for streaming.
    pub buffer: u64,
    /// Bytes of the units meant for the compute device that are there already.
    pub loaded: u64,
    /// Free bytes by device, afterwards.
    pub free: Vec<u64>,
    /// More goes to the compute device than is free there: it will refuse, unless others can be made to leave.
    pub overfull: bool,
}

/// Decides for every unit.
pub fn plan_units(scene: &UnitScene<'_>) -> UnitPlan {
    let UnitScene {
        units,
        homes,
        compute,
        ..
    } = *scene;
    let target = |unit: usize| scene.targets.map_or(compute, |targets| targets[unit]);
    let mut plan = UnitPlan {
        spots: (0..units.len()).map(target).collect(),
        free: scene.free.to_vec(),
        ..UnitPlan::default()
    };
    for (unit, spot) in plan.spots.iter_mut().enumerate() {
        if *spot == compute || *spot == 0 || homes[unit] == Some(*spot) {
            continue;
        }
        if let Some(left) = plan.free[*spot].checked_sub(units[unit].bytes) {
            plan.free[*spot] = left;
        } else {
            plan.refused.push(unit);
            *spot = 0;
        }
    }
    if compute != 0 {
        plan_compute(scene, &mut plan);
    }
    plan
}

/// The units that are meant for the compute device: as many as there is room for.
fn plan_compute(scene: &UnitScene<'_>, plan: &mut UnitPlan) {
    let UnitScene {
        units,
        homes,
        compute,
        allowance,
        ..
    } = *scene;
    let here: Vec<usize> = (0..units.len())
        .filter(|unit| plan.spots[*unit] == compute)
        .collect();
    let resident: Vec<usize> = (here.iter().copied())
        .filter(|unit| homes[*unit] == Some(compute))
        .collect();
    let bytes = |among: &[usize]| -> u64 { among.iter().map(|unit| units[*unit].bytes).sum() };
    let loaded = bytes(&resident);
    plan.loaded = loaded;
    let room = plan.free[compute].saturating_add(loaded);
    let allowed = budget(
        allowance.state,
        plan.free[compute],
        loaded,
        allowance.floor,
        &allowance.reserves,
        allowance.full,
    );
    plan.limit = scene.limit.or(allowed.limit(loaded));
    if scene.limit.is_none() && allowed.excess() > 0 {
        let less = shrink(
            units,
            &resident,
            allowed.excess(),
            scene.buffer,
            allowance.streams,
        );
        for unit in here {
            if homes[unit] != Some(compute) {
                plan.spots[unit] = homes[unit].unwrap_or(scene.offload);
            }
        }
        plan.leave = less.units;
        plan.buffer = less.buffer;
    } else {
        let list: Vec<Unit> = here.iter().map(|unit| units[*unit].clone()).collect();
        let split = split(&list, plan.limit, allowance.streams);
        plan.leave = split.offloaded.iter().map(|at| here[*at]).collect();
        plan.come = split.resident.iter().map(|at| here[*at]).collect();
        plan.buffer = split.buffer;
    }
    for unit in &plan.leave {
        plan.spots[*unit] = scene.offload;
    }
    let used: u64 = (plan.spots.iter().zip(units))
        .filter(|(spot, _)| **spot == compute)
        .map(|(_, unit)| unit.bytes)
        .sum();
    plan.overfull = used > room;
    plan.free[compute] = room.saturating_sub(used);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amount::{GIB, MIB};

    fn units(count: usize, bytes: u64) -> Vec<Unit> {
        let unit = |number: usize| Unit {
            name: format!("{number}.weight").into(),
            bytes,
            cost: bytes,
            embedding: false,
            biased: true,
            castable: true,
            own: false,
            block: None,
        };
        (0..count).map(unit).collect()
    }

    fn scene<'a>(units: &'a [Unit], homes: &'a [Option<usize>], free: &'a [u64]) -> UnitScene<'a> {
        UnitScene {
            units,
            homes,
            compute: 1,
            offload: 0,
            targets: None,
            free,
            buffer: 0,
            allowance: Allowance {
                state: VramState::NormalVram,
                reserves: Reserves::default(),
                floor: GIB,
                full: false,
                streams: 2,
            },
            limit: None,
        }
    }

    #[test]
    fn what_fits_comes_whole_and_what_does_not_is_streamed() {
        let units = units(10, 100 * MIB);
        let homes = vec![Some(0); 10];
        let plan = plan_units(&scene(&units, &homes, &[u64::MAX, 24 * GIB]));
        assert_eq!(plan.spots, [1; 10]);
        assert_eq!((plan.come.len(), plan.leave.len()), (10, 0));
        assert!(!plan.overfull);
        let plan = plan_units(&scene(&units, &homes, &[u64::MAX, GIB + 800 * MIB]));
        assert!(!plan.leave.is_empty() && !plan.come.is_empty());
        assert_eq!(plan.come.len() + plan.leave.len(), 10);
        assert!(plan.buffer > 0);
        let used = plan.come.len() as u64 * 100 * MIB;
        assert_eq!(plan.free[1], GIB + 800 * MIB - used);
        assert!(plan.leave.iter().all(|unit| plan.spots[*unit] == 0));
    }

    #[test]
    fn a_device_with_too_little_gives_units_back_and_takes_none() {
        let units = units(10, 100 * MIB);
        let homes: Vec<Option<usize>> = (0..10).map(|n| Some(usize::from(n < 8))).collect();
        let plan = plan_units(&scene(&units, &homes, &[u64::MAX, 512 * MIB]));
        assert!(!plan.leave.is_empty() && plan.come.is_empty());
        assert_eq!(plan.spots[8..], [0, 0]);
        assert!(plan.leave.iter().all(|unit| homes[*unit] == Some(1)));
    }

    #[test]
    fn a_refusal_is_followed_by_a_smaller_plan() {
        let units = units(10, 100 * MIB);
        let homes = vec![Some(0); 10];
        let mut scene = scene(&units, &homes, &[u64::MAX, 300 * MIB]);
        scene.allowance.full = true;
        let plan = plan_units(&scene);
        assert!(plan.overfull && plan.limit.is_none());
        scene.limit = Some(300 * MIB);
        let plan = plan_units(&scene);
        assert!(!plan.overfull && plan.come.len() < 3, "{plan:?}");
        assert_eq!(plan.limit, Some(300 * MIB));
    }

    #[test]
    fn a_placement_counts_as_far_as_its_devices_have_room() {
        let units = units(4, 100 * MIB);
        let homes = [None, Some(2), None, None];
        let targets = [2, 2, 2, 1];
        let free = [u64::MAX, 24 * GIB, 150 * MIB];
        let plan = plan_units(&UnitScene {
            targets: Some(&targets),
            ..scene(&units, &homes, &free)
        });
        assert_eq!(plan.spots, [2, 2, 0, 1]);
        assert_eq!(plan.refused, [2]);
        assert_eq!(plan.free[2], 50 * MIB);
    }
}
