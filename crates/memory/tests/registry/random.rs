//! Random sequences of everything that can be asked of the registry, against what must hold after every one of them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fresco_memory::{
    EjectOthers, FreeRequest, Lease, ModelId, ModelReport, Need, Placement, Policy, Settings,
    State, VramState,
};
use proptest::prelude::*;

use crate::harness::*;

const FILES: usize = 4;
const PROMPTS: usize = 3;

#[derive(Debug, Clone)]
enum Op {
    Load {
        file: usize,
        node: usize,
        prompt: usize,
        policy: usize,
        device: usize,
        extra: u8,
    },
    Patch {
        model: usize,
        own: usize,
    },
    Drop {
        model: usize,
    },
    Start {
        prompt: usize,
    },
    Lease {
        models: Vec<usize>,
        prompt: usize,
        required: u64,
    },
    Unlease {
        lease: usize,
    },
    End {
        prompt: usize,
    },
    Free {
        bits: u8,
        device: usize,
    },
    Policy {
        model: usize,
        policy: usize,
    },
    Remove {
        model: usize,
        force: bool,
    },
    Relieve {
        lease: usize,
        wanted: u64,
    },
    Unload {
        prompt: usize,
    },
    Break {
        model: usize,
        bits: u8,
    },
    Pass {
        seconds: u64,
    },
    Ram {
        gib: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let some = 0usize..8;
    prop_oneof![
        4 => (0..FILES, 0usize..3, 0..PROMPTS, 0usize..6, 0usize..3, any::<u8>()).prop_map(
            |(file, node, prompt, policy, device, extra)| Op::Load { file, node, prompt, policy, device, extra }
        ),
        1 => (some.clone(), 0usize..6).prop_map(|(model, own)| Op::Patch { model, own }),
        1 => some.clone().prop_map(|model| Op::Drop { model }),
        2 => (0..PROMPTS).prop_map(|prompt| Op::Start { prompt }),
        6 => (proptest::collection::vec(0usize..8, 1..4), 0..PROMPTS, 0u64..6).prop_map(
            |(models, prompt, gib)| Op::Lease { models, prompt, required: gib * GIB }
        ),
        3 => some.clone().prop_map(|lease| Op::Unlease { lease }),
        3 => (0..PROMPTS).prop_map(|prompt| Op::End { prompt }),
        2 => (any::<u8>(), 0usize..4).prop_map(|(bits, device)| Op::Free { bits, device }),
        1 => (some.clone(), 0usize..6).prop_map(|(model, policy)| Op::Policy { model, policy }),
        1 => (some.clone(), any::<bool>()).prop_map(|(model, force)| Op::Remove { model, force }),
        1 => (some.clone(), 0u64..4).prop_map(|(lease, gib)| Op::Relieve { lease, wanted: gib * GIB }),
        1 => (0..PROMPTS).prop_map(|prompt| Op::Unload { prompt }),
        1 => (some, any::<u8>()).prop_map(|(model, bits)| Op::Break { model, bits }),
        1 => (0u64..100).prop_map(|seconds| Op::Pass { seconds }),
        1 => (8u64..64).prop_map(|gib| Op::Ram { gib }),
    ]
}

fn policy(number: usize) -> Option<Policy> {
    [
        None,
        Some(Policy::Auto),
        Some(Policy::EjectAfter),
        Some(Policy::Keep),
        Some(Policy::Pin),
        Some(Policy::Ttl(Duration::from_secs(30))),
    ][number]
}

/// What happened to a model in one step, as far as its state may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// A prompt used it: it was loaded, or that failed.
    Used,
    /// Handles on it came or went, or a use of it ended: it is seen as the handle sees it that used it last. Or one of them
    /// computes in main memory: then leaving a device is coming home.
    Handles,
    /// Neither: it can only leave.
    None,
}

/// All moves of a model that nobody uses in a step and whose handles stay: it leaves, and never comes by itself.
const MOVES: &[(State, &[State])] = &[
    (
        State::Resident,
        &[
            State::Partial,
            State::Offloaded,
            State::Released,
            State::ReleaseFailed,
        ],
    ),
    (
        State::Partial,
        &[State::Offloaded, State::Released, State::ReleaseFailed],
    ),
    (State::Offloaded, &[State::Released, State::ReleaseFailed]),
    (State::ReleaseFailed, &[State::Released]),
    // What was only named cannot be dropped either, where dropping fails.
    (State::Released, &[State::ReleaseFailed]),
];

fn may_move(from: State, to: State, touch: Touch) -> bool {
    let in_memory = |state| matches!(state, State::Resident | State::Partial | State::Offloaded);
    let leaves = MOVES
        .iter()
        .any(|(state, next)| *state == from && next.contains(&to));
    match touch {
        _ if from == to || leaves => true,
        // What was dropped is read again; what could not be dropped is used as it is.
        Touch::Used => in_memory(to) || to == State::ReleaseFailed,
        Touch::Handles => in_memory(from) && in_memory(to),
        Touch::None => false,
    }
}

/// What the test holds.
struct World {
    bench: Bench,
    models: Vec<Model>,
    /// All that were made and may still be somewhere.
    fakes: Vec<Weak<Fake>>,
    /// With the models they are about.
    leases: Vec<(usize, Lease, Vec<String>)>,
    running: BTreeMap<usize, u32>,
    count: u32,
}

impl World {
    fn prompt(&self, prompt: usize) -> Option<String> {
        self.running
            .get(&prompt)
            .map(|count| format!("p{prompt}-{count}"))
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Load {
                file,
                node,
                prompt,
                policy: number,
                device,
                extra,
            } => {
                let Some(name) = self.prompt(*prompt) else {
                    return;
                };
                let donor = self.bench.name(1);
                let told = LoaderSettings {
                    policy: policy(*number),
                    device: Some(*device % 2),
                    cpu: *device == 2,
                    eject: if extra & 1 == 1 {
                        EjectOthers::ComputeDevice
                    } else {
                        EjectOthers::None
                    },
                    placement: (extra & 6 == 6).then(|| Placement::Virtual {
                        gb: 2.0,
                        donors: vec![donor],
                    }),
                    edition: u64::from(extra & 0x18 == 0x18),
                    ..LoaderSettings::default()
                };
                let units = even(6 + file * 3, GIB / 2);
                let model = self.bench.load(
                    &who(&name, &format!("n{node}")),
                    &format!("f{file}"),
                    &units,
                    &told,
                );
                self.fakes.push(Arc::downgrade(&model.fake));
                self.models.push(model);
                if self.models.len() > 12 {
                    self.models.remove(0);
                }
            }
            Op::Patch { model, own } => {
                if let Some(from) = pick(&self.models, *model) {
                    let patched = self.bench.patch(from, *own);
                    self.fakes.push(Arc::downgrade(&patched.fake));
                    self.models.push(patched);
                }
            }
            Op::Drop { model } => {
                if !self.models.is_empty() {
                    let at = model % self.models.len();
                    self.models.remove(at);
                }
            }
            Op::Start { prompt } => {
                if self.prompt(*prompt).is_none() {
                    self.count += 1;
                    self.running.insert(*prompt, self.count);
                    self.bench
                        .registry
                        .prompt_started(&self.prompt(*prompt).unwrap());
                }
            }
            Op::Lease {
                models,
                prompt,
                required,
            } => {
                let Some(name) = self.prompt(*prompt) else {
                    return;
                };
                let chosen: Vec<&Model> = models
                    .iter()
                    .filter_map(|m| pick(&self.models, *m))
                    .collect();
                let handles: Vec<_> = chosen.iter().map(|model| &model.handle).collect();
                let need = Need {
                    required: *required,
                    ..Need::default()
                };
                // An error is an answer too: what was broken, or main memory that is too small.
                if let Ok(lease) = self.bench.registry.lease(&who(&name, "s"), &handles, need) {
                    let ids = chosen.iter().map(|model| model.id()).collect();
                    self.leases.push((*prompt, lease, ids));
                }
            }
            Op::Unlease { lease } => {
                if !self.leases.is_empty() {
                    let at = lease % self.leases.len();
                    self.leases.remove(at);
                }
            }
            Op::End { prompt } => {
                if let Some(name) = self.prompt(*prompt) {
                    self.leases.retain(|(of, ..)| of != prompt);
                    self.bench.registry.prompt_ended(&name);
                    self.running.remove(prompt);
                }
            }
            Op::Free { bits, device } => {
                let request = FreeRequest {
                    unload_models: bits & 1 > 0,
                    free_memory: bits & 2 > 0,
                    respect: bits & 4 > 0,
                    force: bits & 8 > 0,
                    devices: (*device < 2).then(|| vec![self.bench.name(*device)]),
                    models: None,
                };
                let prompt = self
                    .running
                    .keys()
                    .next()
                    .and_then(|prompt| self.prompt(*prompt));
                let planned = self.bench.registry.free_plan(&request);
                let report = self
                    .bench
                    .registry
                    .free(&request, prompt.as_deref().filter(|_| bits & 16 > 0));
                assert_eq!(report.plan, planned);
            }
            Op::Policy {
                model,
                policy: number,
            } => {
                if let Some(model) = pick(&self.models, *model) {
                    let policy = policy(*number).unwrap_or(Policy::Auto);
                    let _ = self.bench.registry.set_policy(&model.id(), policy);
                }
            }
            Op::Remove { model, force } => {
                if let Some(model) = pick(&self.models, *model) {
                    let _ = self.bench.registry.remove(&model.id(), *force);
                }
            }
            Op::Relieve { lease, wanted } => {
                if !self.leases.is_empty() {
                    let (_, lease, _) = &self.leases[lease % self.leases.len()];
                    self.bench
                        .registry
                        .relieve(lease, &self.bench.name(0), *wanted);
                }
            }
            Op::Unload { prompt } => {
                if let Some(name) = self.prompt(*prompt) {
                    self.bench.registry.unload_in_node(&who(&name, "n"));
                }
            }
            Op::Break { model, bits } => {
                if let Some(model) = pick(&self.models, *model) {
                    model.fake.fail_load.store(bits & 1 > 0, SeqCst);
                    model.fake.fail_release.store(bits & 6 == 6, SeqCst);
                    model.fake.fail_move.store(bits & 0x18 == 0x18, SeqCst);
                }
            }
            Op::Pass { seconds } => {
                self.bench.pass(Duration::from_secs(*seconds));
                self.bench.registry.tick();
            }
            Op::Ram { gib } => self.bench.ram.store(gib * GIB, SeqCst),
        }
    }

    /// State and handles of each model, and whether one of those computes in main memory.
    fn states(&self) -> BTreeMap<String, (State, Vec<ModelId>, bool)> {
        let models = self.bench.registry.snapshot().models.into_iter();
        let of = |model: ModelReport| {
            let handles = model.handles.iter().map(|handle| handle.model).collect();
            let at_home = model.handles.iter().any(|h| h.compute_device == "cpu");
            (model.weights.to_string(), (model.state, handles, at_home))
        };
        models.map(of).collect()
    }

    /// The models that a step uses, or whose use it ends.
    fn touched_by(&self, op: &Op) -> (Touch, Vec<String>) {
        match op {
            Op::Lease { models, .. } => {
                let chosen = models.iter().filter_map(|m| pick(&self.models, *m));
                (Touch::Used, chosen.map(Model::id).collect())
            }
            Op::Unlease { lease } if !self.leases.is_empty() => {
                let (_, _, ids) = &self.leases[lease % self.leases.len()];
                (Touch::Handles, ids.clone())
            }
            Op::End { prompt } => {
                let ended = self.leases.iter().filter(|(of, ..)| of == prompt);
                let ids = ended.flat_map(|(_, _, ids)| ids.clone());
                (Touch::Handles, ids.collect())
            }
            _ => (Touch::None, Vec::new()),
        }
    }

    /// What must hold, whatever happened.
    fn holds(&self) {
        let problems = self.bench.registry.check();
        assert!(problems.is_empty(), "{problems:#?}");
        for device in &self.bench.devices {
            assert!(device.used() <= device.capacity().unwrap());
        }
        for (_, _, ids) in &self.leases {
            for id in ids {
                // In use: all of it is somewhere in memory.
                let (report, _) = self.bench.registry.model(id).unwrap();
                let there = report.host_bytes
                    + report.residency.iter().map(|(_, bytes)| bytes).sum::<u64>();
                assert!(there >= report.bytes_total, "{report:#?}");
            }
        }
    }
}

fn pick(models: &[Model], number: usize) -> Option<&Model> {
    (!models.is_empty()).then(|| &models[number % models.len()])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_holds_after_everything(
        ops in proptest::collection::vec(op(), 1..60),
        state in prop_oneof![Just(VramState::NormalVram), Just(VramState::HighVram), Just(VramState::NoVram)],
        smart in any::<bool>(),
    ) {
        let settings = Settings { state, smart, unload_after: Some(Duration::from_secs(50)), ..Settings::default() };
        let mut world = World {
            bench: Bench::with(settings, &[6 * GIB, 4 * GIB]),
            models: Vec::new(),
            fakes: Vec::new(),
            leases: Vec::new(),
            running: BTreeMap::new(),
            count: 0,
        };
        for op in &ops {
            let (before, (touch, touched)) = (world.states(), world.touched_by(op));
            world.step(op);
            world.holds();
            for (id, (now, handles, at_home)) in world.states() {
                let Some((was, had, _)) = before.get(&id) else {
                    continue;
                };
                let touch = match () {
                    () if touched.contains(&id) => touch,
                    () if *had != handles || at_home => Touch::Handles,
                    () => Touch::None,
                };
                prop_assert!(may_move(*was, now, touch), "{} went from {:?} to {:?} ({:?}) by {:?}", id, was, now, touch, op);
            }
        }
        // Mended, ended and freed: nothing is left anywhere.
        for fake in world.fakes.iter().filter_map(Weak::upgrade) {
            for flag in [&fake.fail_load, &fake.fail_release, &fake.fail_move] {
                flag.store(false, SeqCst);
            }
        }
        world.leases.clear();
        for prompt in 0..PROMPTS {
            world.step(&Op::End { prompt });
        }
        world.models.clear();
        world.bench.registry.free(&FreeRequest { free_memory: true, force: true, ..FreeRequest::default() }, None);
        prop_assert_eq!(world.bench.listed(), Vec::<String>::new());
        prop_assert_eq!(world.bench.host.load(SeqCst), 0);
        prop_assert_eq!(world.bench.devices[0].used() + world.bench.devices[1].used(), 0);
    }
}
