//! The registry through the engine's eyes.

use std::sync::Mutex;

use fresco_engine::placement::{DeviceBytes, StepAction};
use fresco_engine::{FreeRequest, Unload};
use fresco_memory::{
    BoxError, ContentKey, HandleOptions, Need, Policy, PolicySource, Settings, Unit, VramState,
    Weights,
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
        let one = |i| Unit {
            name: format!("layers.{i}").into(),
            bytes: BYTES,
            cost: BYTES,
            embedding: false,
            biased: true,
            castable: true,
            own: false,
            block: None,
        };
        (0..COUNT).map(one).collect()
    }

    fn home(&self, unit: usize) -> Option<Device> {
        self.homes.lock().unwrap().get(unit).cloned().flatten()
    }

    fn load(&self, _: &Device) -> Result<u64, BoxError> {
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

/// A room on a device of its own with one model there that is to be kept.
fn furnished(number: u32) -> (Room, fresco_memory::Handle) {
    let device = Device::register_sim(number, 64 << 20).unwrap();
    let registry = ModelRegistry::new(settings(), vec![device.clone()]);
    let room = Room::new(registry.clone(), None).unwrap();
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
    (room, handle)
}

#[test]
fn prompts_hold_models_until_their_end() {
    let (room, _handle) = furnished(7101);
    let leases = || room.registry.snapshot().models[0].leases.clone();
    assert_eq!(leases(), ["p".into()]);
    room.after_prompt("p");
    assert!(leases().is_empty());
    let events = room.registry.events(0, &[], usize::MAX);
    let ended = events.iter().any(|e| e.kind == "cleanup.completed");
    assert!(ended, "{events:?}");
}

#[test]
fn requests_reach_the_registry() {
    let (room, handle) = furnished(7102);
    room.after_prompt("p");
    let unload = FreeRequest {
        unload_models: true,
        ..FreeRequest::default()
    };
    let respectful = FreeRequest {
        respect: true,
        ..unload.clone()
    };
    let free = |request: &FreeRequest| room.free(request, None).unwrap();
    let there = |place: &str| DeviceBytes::from([(place.into(), 10 << 20)]);
    let kept = free(&respectful);
    assert!(kept.plan.iter().all(|s| s.action == StepAction::Keep));
    let report = free(&unload);
    assert_eq!(&*report.models[0].weights_id, handle.id().as_str());
    assert_eq!(report.models[0].before, there("sim:7102"));
    assert_eq!(report.models[0].after, there("cpu"));
    room.note_free(engine::FreeNote::Noop);
    room.note_free(engine::FreeNote::Deferred { prompt_id: "q" });
    room.cache_reset();
    room.unload_all("p", Unload::OutOfMemory);
    room.unload_all("p", Unload::PromptDone);
    room.release_caches();
    room.tick();
    room.shutdown();
    let events = room.registry.events(0, &[], usize::MAX);
    for kind in ["free.applied", "free.noop", "free.deferred", "cache.reset"] {
        assert!(events.iter().any(|e| e.kind == kind), "{kind}");
    }
}

#[test]
fn prompts_are_looked_at_before_they_run() {
    let registry = ModelRegistry::new(settings(), Vec::new());
    let room = Room::new(registry, None)
        .unwrap()
        .admitting(folders(), Families::default());
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
fn the_log_is_appended_one_event_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.jsonl");
    std::fs::write(&path, "before\n").unwrap();
    let registry = ModelRegistry::new(Settings::default(), Vec::new());
    let room = Room::new(registry, Some(&path)).unwrap();
    room.note_free(engine::FreeNote::Noop);
    room.cache_reset();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3);
    let event = fresco_graph::json::parse(lines[1]).unwrap();
    assert_eq!(event.get("kind"), Some(&"free.noop".into()));
    assert_eq!(event.get("seq"), Some(&1.into()));
    let folder = ModelRegistry::new(Settings::default(), Vec::new());
    let error = Room::new(folder, Some(dir.path())).err();
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
    let error = Room::new(registry, Some(&pipe)).err();
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
