//! The planner: what is where and why something is done now, in; what leaves, out. Pure, and over sums of bytes, so
//! that it costs the same however many layers models have.

use std::cmp::Reverse;

use crate::{
    Action, EvictionPlan, FreeRequest, MemoryFlag, ModelId, Origin, PlanStep, Policy, Reason,
    SetBy, WeightsId, Wish,
};

/// Weights that handles share, or what one patched handle has of its own, as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub weights: WeightsId,
    /// The handle whose own part this is; none: what handles share.
    pub model: Option<ModelId>,
    /// The policy that counts, and whose it is.
    pub policy: Policy,
    pub set_by: SetBy,
    /// No handle, no claim that keeps it, no prompt that holds it.
    pub orphan: bool,
    /// Its prompt is over and said so; somebody else still held it.
    pub ejected: bool,
    /// Whether a prompt holds it.
    pub held: bool,
    /// Whether the load that is being planned needs it: then it is never touched.
    pub needed: bool,
    /// The prompt that ends used it or claimed it.
    pub touched: bool,
    /// The prompt that ends wants it gone.
    pub eject: bool,
    /// Somebody asked for it to go, whatever is claimed.
    pub removed: Option<Origin>,
    /// Bytes by device; the first is the main memory.
    pub bytes: Vec<u64>,
    /// Bytes that would be on a device if there were room.
    pub offloaded: u64,
    pub size: u64,
    /// Larger is later.
    pub last_used: u64,
}

/// Who goes first when room is needed, the first of these before the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvictionRank {
    /// Nothing refers to it.
    Unreferenced,
    /// Its prompt is over and said that it goes.
    Ejected,
    /// No prompt holds it, and nobody asked for it to stay.
    Idle,
    /// A prompt holds it, but does not compute with it now.
    Held,
    /// Somebody asked for it to stay.
    Kept,
    /// The same, and a prompt holds it.
    KeptAndHeld,
    Pinned,
}

impl EvictionRank {
    /// The highest rank that the ordinary need of room may touch.
    pub const ORDINARY: Self = Self::KeptAndHeld;
}

impl Item {
    /// None: part of the current load.
    pub fn rank(&self) -> Option<EvictionRank> {
        use EvictionRank as Rank;
        Some(match (self.policy, self.held) {
            _ if self.needed => return None,
            (Policy::Pin, _) => Rank::Pinned,
            (_, false) if self.orphan => Rank::Unreferenced,
            (_, false) if self.ejected || self.removed.is_some() => Rank::Ejected,
            (Policy::Auto | Policy::EjectAfter, false) => Rank::Idle,
            (Policy::Auto | Policy::EjectAfter, true) => Rank::Held,
            (Policy::Ttl(_) | Policy::Keep, false) => Rank::Kept,
            (Policy::Ttl(_) | Policy::Keep, true) => Rank::KeptAndHeld,
        })
    }

    fn wish(&self) -> Wish {
        Wish {
            policy: self.policy,
            set_by: self.set_by.clone(),
        }
    }

    fn on(&self, device: usize) -> u64 {
        self.bytes.get(device).copied().unwrap_or(0)
    }

    fn on_accelerators(&self) -> u64 {
        self.bytes.iter().skip(1).sum()
    }

    /// Whether this goes before another of its rank: most of it away already, then longest unused, then smallest.
    fn order(&self) -> impl Ord + '_ {
        (
            Reverse(self.offloaded),
            self.last_used,
            self.size,
            &self.weights,
            self.model,
        )
    }

    fn step(&self, device: Option<(&Scene, usize)>, action: Action, reason: Reason) -> PlanStep {
        PlanStep {
            weights: self.weights.clone(),
            model: self.model,
            bytes: match device {
                Some((_, device)) => self.on(device),
                None => self.bytes.iter().sum(),
            },
            device: device.map(|(scene, device)| scene.devices[device].clone()),
            action,
            policy: self.policy,
            set_by: self.set_by.clone(),
            origin: None,
            reason,
        }
    }

    /// What its policy decides.
    fn by_policy(
        &self,
        device: Option<(&Scene, usize)>,
        action: Action,
        reason: Reason,
    ) -> PlanStep {
        PlanStep {
            origin: Some(self.set_by.origin()),
            ..self.step(device, action, reason)
        }
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scene {
    /// `cpu` first.
    pub devices: Vec<String>,
    pub items: Vec<Item>,
}

/// A wish for room on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Its place in [`Scene::devices`].
    pub device: usize,
    pub to_free: u64,
    /// The highest rank that may be touched.
    pub most: EvictionRank,
    /// Nothing leaves in parts, and all without a wish to stay leave, needed or not.
    pub whole: bool,
}

impl Scene {
    /// The items with bytes on a device that may be touched, in the order they go.
    fn candidates(&self, device: usize, most: EvictionRank) -> Vec<(EvictionRank, &Item)> {
        let ranked = |item| Some((Item::rank(item)?, item));
        let mut list: Vec<(EvictionRank, &Item)> = self
            .items
            .iter()
            .filter(|item| item.on(device) > 0)
            .filter_map(ranked)
            .filter(|(rank, _)| *rank <= most)
            .collect();
        list.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.order().cmp(&b.1.order())));
        list
    }
}

/// What leaves a device so that so much comes free, in order; as much as there is if that is not enough.
pub fn room(scene: &Scene, wish: Room) -> EvictionPlan {
    let Room { device, .. } = wish;
    let mut freed = 0u64;
    let mut steps = Vec::new();
    for (rank, item) in scene.candidates(device, wish.most) {
        let missing = wish.to_free.saturating_sub(freed);
        if missing == 0 && !(wish.whole && rank < EvictionRank::Kept) {
            break;
        }
        let there = item.on(device);
        let (place, action) = match rank {
            EvictionRank::Unreferenced | EvictionRank::Ejected => (None, Action::Release),
            // Whole: what nobody uses comes back in one go, or not at all.
            EvictionRank::Idle => (Some((scene, device)), Action::Evict),
            _ if missing < there && !wish.whole => {
                (Some((scene, device)), Action::Demote { bytes: missing })
            }
            _ => (Some((scene, device)), Action::Evict),
        };
        freed = freed.saturating_add(match action {
            Action::Demote { bytes } => bytes,
            _ => there,
        });
        let reason = Reason::Room {
            rank,
            device: scene.devices[device].clone(),
            missing,
        };
        steps.push(item.step(place, action, reason));
    }
    EvictionPlan { steps }
}

/// What leaves the main memory so that so much comes free there. `desperate`: what is kept goes too (its claim stays and
/// it is read again at its next use). Never what a prompt holds, never what is pinned.
pub fn host(scene: &Scene, to_free: u64, desperate: bool) -> EvictionPlan {
    let most = if desperate {
        EvictionRank::Kept
    } else {
        EvictionRank::Idle
    };
    let mut freed = 0u64;
    let mut steps = Vec::new();
    for (rank, item) in scene.candidates(0, most) {
        if freed >= to_free {
            break;
        }
        if item.held {
            continue;
        }
        freed = freed.saturating_add(item.on(0));
        steps.push(item.step(None, Action::Release, Reason::MainMemory { rank }));
    }
    EvictionPlan { steps }
}

/// Everything that is not part of a load leaves a device (none: every accelerator), except what is pinned.
pub fn eject(scene: &Scene, only: Option<usize>) -> EvictionPlan {
    let mut steps = Vec::new();
    for device in 1..scene.devices.len() {
        if only.is_some_and(|only| only != device) {
            continue;
        }
        for (rank, item) in scene.candidates(device, EvictionRank::Pinned) {
            let place = Some((scene, device));
            steps.push(if rank == EvictionRank::Pinned {
                item.by_policy(place, Action::Keep, Reason::Pinned)
            } else {
                item.step(place, Action::Evict, Reason::EjectedByLoader)
            });
        }
    }
    EvictionPlan { steps }
}

/// What the end of a prompt does: `eject` items go unless somebody wants them more or still holds them, everything else
/// the prompt touched stays and says why. `whole`: nothing stays on a device without a wish.
pub fn prompt_end(scene: &Scene, whole: bool) -> EvictionPlan {
    let mut items: Vec<&Item> = scene.items.iter().collect();
    items.sort_by_key(|item| (&item.weights, item.model));
    let mut steps = Vec::new();
    for item in items {
        let ejected = (item.eject || item.ejected) && item.policy <= Policy::EjectAfter;
        if item.removed.is_some() || ejected {
            let origin = item.removed.clone();
            let origin = Some(origin.unwrap_or_else(|| item.set_by.origin()));
            let (action, reason) = if item.held && item.removed.is_none() {
                (Action::Defer, Reason::HeldByOther(Some(item.wish())))
            } else if item.held {
                (Action::Defer, Reason::HeldByOther(None))
            } else if item.removed.is_some() {
                (Action::Release, Reason::ReleaseWasDeferred)
            } else {
                (Action::Release, Reason::Policy(item.wish()))
            };
            steps.push(PlanStep {
                origin,
                ..item.step(None, action, reason)
            });
        } else if whole
            && !item.held
            && item.policy <= Policy::EjectAfter
            && item.on_accelerators() > 0
        {
            for device in 1..scene.devices.len() {
                if item.on(device) > 0 {
                    let reason = Reason::SmartMemoryOff;
                    steps.push(PlanStep {
                        origin: Some(Origin::Flag {
                            flag: MemoryFlag::DisableSmartMemory,
                        }),
                        ..item.step(Some((scene, device)), Action::Evict, reason)
                    });
                }
            }
        } else if item.touched {
            steps.push(item.by_policy(None, Action::Keep, Reason::Policy(item.wish())));
        }
    }
    EvictionPlan { steps }
}

/// What a request to free does. `selected`: whether weights are among those it names.
pub fn free(
    scene: &Scene,
    request: &FreeRequest,
    selected: impl Fn(&WeightsId) -> bool,
) -> EvictionPlan {
    let mut items: Vec<&Item> = scene
        .items
        .iter()
        .filter(|i| selected(&i.weights))
        .collect();
    items.sort_by_key(|item| (&item.weights, item.model));
    let mut steps = Vec::new();
    if request.is_noop() {
        return EvictionPlan { steps };
    }
    for item in items {
        let places: Vec<usize> = (0..scene.devices.len())
            .filter(|d| item.on(*d) > 0)
            .collect();
        let here = |device: &usize| request.names_device(&scene.devices[*device]);
        // A list of devices limits what goes: what is also elsewhere only leaves those that are named.
        let all = places.iter().all(here) && (request.devices.is_none() || !places.is_empty());
        if !all && !places.iter().any(here) {
            continue;
        }
        let whole = request.free_memory && all;
        if !whole && !places.iter().any(|d| *d > 0 && here(d)) {
            continue;
        }
        if item.policy == Policy::Pin && !request.force {
            steps.push(item.by_policy(None, Action::Keep, Reason::Pinned));
        } else if request.respect
            && item.policy >= Policy::Ttl(std::time::Duration::ZERO)
            && !request.force
        {
            steps.push(item.by_policy(None, Action::Keep, Reason::RetentionRespected(item.wish())));
        } else if item.held {
            steps.push(item.step(None, Action::Defer, Reason::Held));
        } else if whole {
            steps.push(item.step(None, Action::Release, Reason::FreeMemoryRequest));
        } else {
            for device in places.into_iter().filter(|d| *d > 0 && here(d)) {
                let reason = Reason::UnloadRequest;
                steps.push(item.step(Some((scene, device)), Action::Evict, reason));
            }
        }
    }
    EvictionPlan { steps }
}
