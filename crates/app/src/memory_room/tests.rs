//! The registry through the engine's eyes.

use std::sync::Mutex;

use fresco_engine::{FreeRequest, LoadRequest, LoadSubject, NoSink, PlannedUnit, Unload};
use fresco_memory::{
    BoxError, ContentKey, HandleOptions, PolicySource, Settings, VramState, Weights,
};
use fresco_tensor::{Device, TensorError};

use super::*;

/// Ten layers of a megabyte that are wherever they were put.
#[derive(Default)]
struct Layers {
    homes: Mutex<Vec<Option<Device>>>,
}

const COUNT: usize = 10;
const BYTES: u64 = 1 << 20;

impl Weights for Layers {
    fn units(&self) -> Arc<[Unit]> {
        let one = |i| unit(&planned_unit(&format!("layers.{i}")));
        (0..COUNT).map(one).collect()
    }

    fn home(&self, unit: usize) -> Option<Device> {
        self.homes.lock().unwrap().get(unit).cloned().flatten()
    }

    fn load(&self) -> Result<u64, BoxError> {
        *self.homes.lock().unwrap() = vec![Some(Device::cpu()); COUNT];
        Ok(BYTES * COUNT as u64)
    }

    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError> {
        self.homes.lock().unwrap()[unit] = Some(device.clone());
        Ok(())
    }

    fn release(&self) -> Result<(), BoxError> {
        self.homes.lock().unwrap().clear();
        Ok(())
    }

    fn set_ahead(&self, _: usize) {}
    fn drop_ahead(&self) {}
}

fn planned_unit(name: &str) -> PlannedUnit {
    PlannedUnit {
        name: name.into(),
        bytes: BYTES,
        embedding: false,
        biased: true,
        castable: true,
        block: None,
    }
}

/// Keeps the kinds of memory events.
#[derive(Default)]
struct Kinds(Mutex<Vec<&'static str>>);

impl EventSink for Kinds {
    fn emit(&self, event: engine::Event) {
        if let EventKind::Memory(event) = event.kind {
            self.0.lock().unwrap().push(event.kind);
        }
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.reserves.extra = 0;
    settings.reserves.inference = 0;
    settings
}

/// Nothing is there.
fn folders() -> Folders {
    Folders::new(&fresco_files::Dirs::under(Path::new("/does/not/exist")))
}

/// A room on a device of its own with one model in main memory that is to be kept.
fn furnished(number: u32) -> (Room, ModelRegistry, fresco_memory::Handle, Arc<Kinds>) {
    let device = Device::register_sim(number, 64 << 20).unwrap();
    let registry = ModelRegistry::new(settings(), vec![device.clone()]);
    let kinds: Arc<Kinds> = Arc::default();
    let room = Room::new(registry.clone(), kinds.clone(), None).unwrap();
    let who = Who {
        client: "me".into(),
        prompt: "p".into(),
        node: "4".into(),
    };
    let key = ContentKey {
        files: Vec::new(),
        component: "diffusion".into(),
        options: String::new(),
    };
    let weights: Arc<dyn Weights> = Arc::new(Layers::default());
    let opened = registry
        .open(&who, &key, "diffusion Test", || {
            Ok::<_, BoxError>((Arc::new(()), weights))
        })
        .unwrap();
    let options = HandleOptions {
        compute: device,
        policy: Policy::Keep,
        source: PolicySource::NodeInput,
        ..HandleOptions::default()
    };
    let handle = registry.handle(&who, &opened.id, options);
    room.prompt_started("p");
    drop(registry.lease(&who, &[&handle], Need::default()).unwrap());
    (room, registry, handle, kinds)
}

#[test]
fn reports_are_the_registry_s_own() {
    let (room, registry, handle, kinds) = furnished(7101);
    let snapshot = room.snapshot();
    let names: Vec<_> = snapshot
        .devices
        .iter()
        .map(|d| (d.device.as_str(), d.index))
        .collect();
    assert_eq!(names, [("cpu", None), ("sim:7101", Some(7101))]);
    let accelerator = &snapshot.devices[1];
    assert_eq!(
        accelerator.allocator_reserved,
        accelerator.total - accelerator.free
    );
    let [model] = &snapshot.models[..] else {
        panic!("{snapshot:?}")
    };
    assert_eq!(model.weights_id, handle.id().as_str());
    assert_eq!(model.residency, [("sim:7101".to_owned(), 10 << 20)]);
    assert_eq!(
        (model.policy.as_str(), model.policy_source),
        ("keep", "node_input")
    );
    assert_eq!(&*model.claims[0].node, "4");
    assert_eq!(&*model.leases[0], "p");
    assert_eq!(model.handles[0].compute_device, "sim:7101");

    let detail = room.model(&model.weights_id).unwrap();
    assert_eq!(detail.units.len(), COUNT);
    assert_eq!(detail.units[0].device.as_deref(), Some("sim:7101"));
    assert_eq!(room.model(&handle.model().to_string()), Some(detail));
    assert_eq!(room.model("gone"), None);

    room.after_prompt("p");
    assert!(room.snapshot().models[0].leases.is_empty());
    let events = room.events(0, &[], 10_000);
    assert_eq!(events.len() as u64, room.last_seq());
    let same: Vec<_> = events.iter().map(|e| e.kind).collect();
    assert_eq!(*kinds.0.lock().unwrap(), same);
    for kind in ["model.registered", "model.loaded", "cleanup.completed"] {
        assert!(same.contains(&kind), "{kind} is not in {same:?}");
    }
    let loaded = events.iter().find(|e| e.kind == "model.loaded").unwrap();
    assert_eq!(loaded.prompt_id.as_deref(), Some("p"));
    assert_eq!(loaded.weights_id.as_deref(), Some(handle.id().as_str()));
    drop(registry);
}

#[test]
fn requests_reach_the_registry() {
    let (room, _registry, handle, kinds) = furnished(7102);
    room.after_prompt("p");
    let id = handle.id().as_str();
    let unload = FreeRequest {
        unload_models: true,
        ..FreeRequest::default()
    };
    let respectful = FreeRequest {
        respect: true,
        ..unload.clone()
    };
    assert!(
        room.free_plan(&respectful)
            .steps
            .iter()
            .all(|s| s.action == "keep")
    );
    let plan = room.free_plan(&unload);
    assert_eq!(plan.steps[0].action, "evict");
    assert_eq!(plan.steps[0].policy, "keep");
    let report = room.free(&unload, None);
    assert_eq!(report.models[0].before, [("sim:7102".to_owned(), 10 << 20)]);
    assert_eq!(report.models[0].after, [("cpu".to_owned(), 10 << 20)]);
    room.note_free(engine::FreeNote::Noop);
    room.note_free(engine::FreeNote::Deferred { prompt_id: "q" });
    room.cache_reset();
    {
        let kinds = kinds.0.lock().unwrap();
        for kind in ["free.applied", "free.noop", "free.deferred", "cache.reset"] {
            assert!(kinds.contains(&kind), "{kind}");
        }
    }

    assert_eq!(room.set_policy(id, "pin").unwrap().policy, "pin");
    let bad = room.set_policy(id, "always").unwrap_err();
    assert!(bad.to_string().contains("ttl:SECONDS"), "{bad}");
    let gone = room.set_policy("gone", "keep").unwrap_err();
    assert_eq!(gone, MemoryProblem::Unknown { id: "gone".into() });
    let pinned = MemoryProblem::Pinned { id: id.into() };
    assert_eq!(room.remove(id, false), Err(pinned));
    assert_eq!(room.remove(id, true), Ok(engine::Removed::Done));
    assert_eq!(room.check(), [""; 0]);
    room.unload_all("p", Unload::OutOfMemory);
    room.unload_all("p", Unload::PromptDone);
    room.release_caches();
    room.tick();
    room.shutdown();
}

fn thought_of(expert: Option<&str>, gb: Option<f64>) -> LoadRequest {
    let units = (0..COUNT).map(|i| planned_unit(&format!("layers.{i}")));
    LoadRequest {
        subject: LoadSubject::Units(units.collect()),
        devices: Some(vec![("cuda:0".into(), 64 << 20), ("cpu".into(), 1 << 30)]),
        compute_device: None,
        virtual_vram_gb: gb,
        donor_device: None,
        expert: expert.map(Into::into),
        eject_models: false,
        text_encoder: false,
        required: 0,
    }
}

#[test]
fn prompts_are_looked_at_before_they_run() {
    let registry = ModelRegistry::new(settings(), Vec::new());
    let room = Room::new(registry, Arc::new(NoSink), None)
        .unwrap()
        .admitting(folders());
    let text = r#"{"1":{"class_type":"CheckpointLoaderSimple","inputs":{"ckpt_name":"gone.safetensors"}}}"#;
    let prompt = fresco_graph::json::parse(text).unwrap();
    let prompt = Arc::new(prompt.as_map().unwrap().clone());
    let arriving = engine::Arriving {
        prompt_id: "p",
        client: None,
        prompt: &prompt,
        outputs: &["1".into()],
        cached: &[],
    };
    // A file that is not there is for its loader to say.
    assert_eq!(room.admit(&arriving), engine::Admission::Ok);
}

#[test]
fn loads_can_be_thought_of() {
    let registry = ModelRegistry::new(settings(), Vec::new());
    let room = Room::new(registry, Arc::new(NoSink), None).unwrap();
    let plan = room.plan_load(&thought_of(None, None)).unwrap();
    assert!(plan.fits);
    assert_eq!(plan.units.len(), COUNT);
    let expert = room
        .plan_load(&thought_of(Some("cuda:0,4mb;cpu,*"), None))
        .unwrap();
    let there = expert.units.iter().filter(|(_, d)| d == "cuda:0").count();
    assert_eq!(there, 4, "{:?}", expert.units);
    let donated = room
        .plan_load(&thought_of(None, Some(4.0 / 1024.0)))
        .unwrap();
    let there = donated.units.iter().filter(|(_, d)| d == "cpu").count();
    assert_eq!(there, 4, "{:?}", donated.units);
    assert!(donated.allocation.is_some());

    let bad = room
        .plan_load(&thought_of(Some("cuda:7,1g;cuda:0,xg"), None))
        .unwrap_err()
        .to_string();
    assert!(
        bad.contains("unknown_device") && bad.contains("bad_amount"),
        "{bad}"
    );
    let unknown = LoadRequest {
        donor_device: Some("cuda:1".into()),
        ..thought_of(None, Some(1.0))
    };
    let bad = room.plan_load(&unknown).unwrap_err().to_string();
    assert!(
        bad.contains("no device \"cuda:1\"; there are cuda:0, cpu"),
        "{bad}"
    );
    let gone = LoadRequest {
        subject: LoadSubject::Weights { id: "gone".into() },
        ..thought_of(None, None)
    };
    let gone = room.plan_load(&gone).unwrap_err();
    assert_eq!(gone, MemoryProblem::Unknown { id: "gone".into() });
}

#[test]
fn the_log_is_appended_one_event_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.jsonl");
    std::fs::write(&path, "before\n").unwrap();
    let registry = ModelRegistry::new(Settings::default(), Vec::new());
    let room = Room::new(registry, Arc::new(NoSink), Some(&path)).unwrap();
    room.note_free(engine::FreeNote::Noop);
    room.cache_reset();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    let event = fresco_graph::json::parse(lines[1]).unwrap();
    assert_eq!(event.get("kind"), Some(&"free.noop".into()));
    assert_eq!(event.get("seq"), Some(&1.into()));
    let folder = ModelRegistry::new(Settings::default(), Vec::new());
    let error = Room::new(folder, Arc::new(NoSink), Some(dir.path())).err();
    assert!(error.unwrap().to_string().contains("memory log"));
}

/// Opened for writing, a pipe waits until somebody reads it.
#[test]
#[cfg(unix)]
fn a_pipe_is_no_memory_log() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let registry = ModelRegistry::new(Settings::default(), Vec::new());
    let error = Room::new(registry, Arc::new(NoSink), Some(&pipe)).err();
    assert!(error.unwrap().to_string().contains("is not a file"));
}

#[test]
fn without_an_accelerator_the_state_is_disabled() {
    let registry = ModelRegistry::new(
        Settings {
            state: VramState::NormalVram.on(true),
            ..Settings::default()
        },
        Vec::new(),
    );
    assert_eq!(registry.settings().state, VramState::Disabled);
    assert!(registry.primary().is_cpu());
}
