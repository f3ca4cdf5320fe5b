//! Properties of the planner over random scenes, and its speed.

use std::time::Duration;

use fresco_memory::plan::{self, EvictionRank, Item, Room, Scene};
use fresco_memory::{Action, EvictionPlan, FreeRequest, ModelId, Origin, Policy, SetBy, WeightsId};
use proptest::prelude::*;

const DEVICES: usize = 4;

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        4 => Just(Policy::Auto),
        1 => Just(Policy::EjectAfter),
        1 => Just(Policy::Ttl(Duration::from_mins(1))),
        3 => Just(Policy::Keep),
        1 => Just(Policy::Pin),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let flags = proptest::array::uniform8(any::<bool>());
    let bytes = proptest::collection::vec(prop_oneof![Just(0u64), 1u64..1000], DEVICES);
    (policy(), flags, bytes, 0u64..500, 0u64..20, any::<bool>()).prop_map(
        |(policy, flags, bytes, offloaded, used, own)| {
            let [orphan, ejected, held, needed, touched, eject, removed, _] = flags;
            Item {
                weights: WeightsId::new("x"),
                model: own.then_some(ModelId(1)),
                policy,
                set_by: SetBy::default(),
                orphan: orphan && !held && policy == Policy::Auto,
                ejected,
                held,
                needed: needed && used % 3 == 0,
                touched,
                eject,
                removed: (removed && used % 4 == 0).then_some(Origin::Program),
                size: bytes.iter().sum::<u64>() + offloaded,
                bytes,
                offloaded,
                last_used: used,
            }
        },
    )
}

fn scene() -> impl Strategy<Value = Scene> {
    proptest::collection::vec(item(), 0..12).prop_map(|mut items| {
        for (index, item) in items.iter_mut().enumerate() {
            item.weights = WeightsId::new(&format!("w{index:02}"));
        }
        Scene {
            devices: ["cpu", "sim:0", "sim:1", "sim:2"]
                .map(str::to_owned)
                .to_vec(),
            items,
        }
    })
}

/// What carrying a plan out leaves. Parts leave in units, so a little more than asked may go; here it is exact.
fn after(scene: &Scene, plan: &EvictionPlan) -> Scene {
    let mut scene = scene.clone();
    for step in &plan.steps {
        let device = step
            .device
            .as_ref()
            .map(|name| scene.devices.iter().position(|d| d == name).unwrap());
        let item = scene
            .items
            .iter_mut()
            .find(|item| item.weights == step.weights && item.model == step.model)
            .unwrap();
        match step.action {
            Action::Release => item.bytes.fill(0),
            Action::Evict => {
                let device = device.unwrap();
                item.bytes[0] += item.bytes[device];
                item.bytes[device] = 0;
            }
            Action::Demote { bytes } => {
                let device = device.unwrap();
                item.bytes[0] += bytes;
                item.bytes[device] -= bytes;
            }
            Action::Keep | Action::Defer | Action::Load { .. } => {}
        }
    }
    scene
}

fn on(scene: &Scene, device: usize) -> u64 {
    scene.items.iter().map(|item| item.bytes[device]).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn room_is_made(
        scene in scene(),
        device in 1usize..DEVICES,
        to_free in prop_oneof![Just(0u64), 0u64..3000, Just(u64::MAX)],
        most in prop_oneof![
            Just(EvictionRank::Held),
            Just(EvictionRank::ORDINARY),
            Just(EvictionRank::Pinned),
        ],
        whole in any::<bool>(),
        turn in 0usize..12,
    ) {
        let wish = Room { device, to_free, most, whole };
        let plan = plan::room(&scene, wish);
        let left = after(&scene, &plan);
        let freed = on(&scene, device) - on(&left, device);

        // Enough comes free wherever there is enough that may go.
        let may_go = |item: &&Item| item.rank().is_some_and(|rank| rank <= most);
        let evictable: u64 = scene.items.iter().filter(may_go).map(|item| item.bytes[device]).sum();
        prop_assert!(freed >= to_free.min(evictable));

        let touched = |item: &Item| plan.steps.iter().find(|s| s.weights == item.weights && s.model == item.model);
        for (item, now) in scene.items.iter().zip(&left.items) {
            if let Some(step) = touched(item) {
                // Never what the load needs, what is pinned only where it may, what is held is never released.
                prop_assert!(!item.needed);
                prop_assert!(item.policy != Policy::Pin || most >= EvictionRank::Pinned);
                prop_assert!(!(item.held && step.action == Action::Release));
                prop_assert!(item.bytes[device] > 0);
                // Nobody of a lower rank is left whole.
                for other in &scene.items {
                    let lower = other.rank().is_some_and(|rank| rank < item.rank().unwrap());
                    if lower && other.bytes[device] > 0 {
                        prop_assert!(touched(other).is_some());
                    }
                }
            }
            // Other devices are only touched by a release.
            for other in (1..DEVICES).filter(|other| *other != device) {
                let same = item.bytes[other] == now.bytes[other];
                prop_assert!(same || touched(item).is_some_and(|step| step.action == Action::Release));
            }
        }
        // Without need nobody with a wish goes; within a rank the longest unused of equal ones goes first.
        if to_free == 0 && !whole {
            prop_assert!(plan.steps.is_empty());
        }
        // Only the last one leaves in part.
        for step in plan.steps.iter().rev().skip(1) {
            let part = matches!(step.action, Action::Demote { .. });
            prop_assert!(!part);
        }

        // The order of what is given does not matter.
        let mut turned = scene.clone();
        if !turned.items.is_empty() {
            let count = turned.items.len();
            turned.items.rotate_left(turn % count);
            turned.items.reverse();
        }
        prop_assert_eq!(&plan::room(&turned, wish), &plan);

        // What was done need not be done again.
        let again = Room { to_free: to_free.saturating_sub(freed), ..wish };
        if freed >= to_free {
            prop_assert!(plan::room(&left, again).steps.is_empty());
        } else {
            let rest: Vec<_> = plan::room(&left, again).steps;
            prop_assert!(rest.is_empty(), "{rest:?}");
        }
    }

    #[test]
    fn the_end_of_a_prompt(scene in scene(), whole in any::<bool>()) {
        let plan = plan::prompt_end(&scene, whole);
        for item in &scene.items {
            let steps: Vec<_> = plan.steps.iter().filter(|s| s.weights == item.weights).collect();
            let released = steps.iter().any(|step| step.action == Action::Release);
            // Only what asked for it goes, and never while somebody holds it.
            let asked = item.removed.is_some() || ((item.eject || item.ejected) && item.policy <= Policy::EjectAfter);
            prop_assert_eq!(released, asked && !item.held);
            // What was used and stays says so.
            if item.touched && !asked && !whole {
                prop_assert_eq!(steps.len(), 1);
                prop_assert_eq!(steps[0].action, Action::Keep);
            }
            if item.policy >= Policy::Keep && item.removed.is_none() {
                prop_assert!(steps.iter().all(|step| step.action == Action::Keep));
            }
        }
    }

    #[test]
    fn host_room_is_made(scene in scene(), to_free in 0u64..5000, desperate in any::<bool>()) {
        let plan = plan::host(&scene, to_free, desperate);
        let left = after(&scene, &plan);
        let may_go = |item: &&Item| {
            item.rank().is_some_and(|rank| rank <= if desperate { EvictionRank::Kept } else { EvictionRank::Idle }) && !item.held
        };
        let evictable: u64 = scene.items.iter().filter(may_go).map(|item| item.bytes[0]).sum();
        prop_assert!(on(&scene, 0) - on(&left, 0) >= to_free.min(evictable));
        for step in &plan.steps {
            let item = scene.items.iter().find(|i| i.weights == step.weights && i.model == step.model).unwrap();
            prop_assert!(!item.held && !item.needed && item.policy != Policy::Pin);
            prop_assert!(desperate || item.policy < Policy::Ttl(Duration::ZERO) || item.ejected || item.removed.is_some());
        }
    }

    #[test]
    fn freeing(scene in scene(), unload in any::<bool>(), all in any::<bool>(), respect in any::<bool>(), force in any::<bool>()) {
        let request = FreeRequest { unload_models: unload, free_memory: all, respect, force, ..FreeRequest::default() };
        let plan = plan::free(&scene, &request, |_| true);
        let left = after(&scene, &plan);
        for (item, now) in scene.items.iter().zip(&left.items) {
            let spared = item.held
                || (item.policy == Policy::Pin && !force)
                || (respect && !force && item.policy >= Policy::Ttl(Duration::ZERO));
            if spared || !(unload || all) {
                prop_assert_eq!(&item.bytes, &now.bytes);
            } else {
                prop_assert!(now.bytes[1..].iter().all(|bytes| *bytes == 0));
                prop_assert_eq!(now.bytes[0] == 0, all || item.bytes.iter().all(|bytes| *bytes == 0));
            }
        }
    }
}

#[test]
fn ranks_in_order() {
    let base = Item {
        weights: WeightsId::new("w"),
        model: None,
        policy: Policy::Auto,
        set_by: SetBy::default(),
        orphan: false,
        ejected: false,
        held: false,
        needed: false,
        touched: false,
        eject: false,
        removed: None,
        bytes: vec![0, 10],
        offloaded: 0,
        size: 10,
        last_used: 0,
    };
    let named = |name: &str, item: Item| Item {
        weights: WeightsId::new(name),
        ..item
    };
    let keep = Item {
        policy: Policy::Keep,
        ..base.clone()
    };
    let scene = Scene {
        devices: vec!["cpu".to_owned(), "sim:0".to_owned()],
        items: vec![
            named(
                "6",
                Item {
                    policy: Policy::Pin,
                    ..base.clone()
                },
            ),
            named(
                "5",
                Item {
                    held: true,
                    ..keep.clone()
                },
            ),
            named("4", keep),
            named(
                "3",
                Item {
                    held: true,
                    ..base.clone()
                },
            ),
            named(
                "2d",
                Item {
                    last_used: 3,
                    ..base.clone()
                },
            ),
            named(
                "2c",
                Item {
                    last_used: 2,
                    size: 20,
                    ..base.clone()
                },
            ),
            named(
                "2b",
                Item {
                    last_used: 2,
                    ..base.clone()
                },
            ),
            named(
                "2a",
                Item {
                    last_used: 9,
                    offloaded: 5,
                    ..base.clone()
                },
            ),
            named(
                "1",
                Item {
                    ejected: true,
                    ..base.clone()
                },
            ),
            named(
                "0",
                Item {
                    orphan: true,
                    ..base.clone()
                },
            ),
            named(
                "-",
                Item {
                    needed: true,
                    ..base
                },
            ),
        ],
    };
    let wish = Room {
        device: 1,
        to_free: u64::MAX,
        most: EvictionRank::Pinned,
        whole: false,
    };
    let order: Vec<String> = plan::room(&scene, wish)
        .steps
        .iter()
        .map(|step| step.weights.to_string())
        .collect();
    assert_eq!(
        order,
        ["0", "1", "2a", "2b", "2c", "2d", "3", "4", "5", "6"]
    );
    let part = Room {
        to_free: 73,
        most: EvictionRank::ORDINARY,
        ..wish
    };
    let last = plan::room(&scene, part).steps.pop().unwrap();
    assert_eq!(
        (last.weights.as_str(), last.action),
        ("4", Action::Demote { bytes: 3 })
    );
}
