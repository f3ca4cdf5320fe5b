//! A registry with one model on simulated devices, behind the engine's seam.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fresco_engine::{FreeNote, FreeRequest, MemoryRoom, RoomReport, Unload};
use fresco_memory::{
    BoxError, ContentKey, FileStamp, Handle, HandleOptions, ModelRegistry, Need, Placement, Policy,
    PolicySource, Settings, Unit, Weights, Who,
};
use fresco_tensor::device::Allocation;
use fresco_tensor::{Device, TensorError};

/// Layers of the model, and bytes of each.
pub const COUNT: usize = 10;
pub const BYTES: u64 = 1 << 20;
/// Layers that its placement leaves in main memory.
pub const DONATED: usize = 4;
/// What each device has.
pub const CAPACITY: u64 = 64 << 20;

/// The registry as the engine knows it, as far as these tests need it.
pub struct Room(pub ModelRegistry);

impl MemoryRoom for Room {
    fn prompt_started(&self, prompt_id: &str) {
        self.0.prompt_started(prompt_id);
    }

    fn after_prompt(&self, prompt_id: &str) {
        self.0.prompt_ended(prompt_id);
    }

    fn unload_all(&self, _: &str, _: Unload) {}

    fn free(&self, request: &FreeRequest, running: Option<&str>) -> Option<RoomReport> {
        Some(fresco_server::room_report(&self.0.free(request, running)))
    }

    fn note_free(&self, note: FreeNote<'_>) {
        self.0.note_free(note);
    }

    fn release_caches(&self) {}

    fn tick(&self) {
        self.0.tick();
    }

    fn next_tick(&self) -> Option<Instant> {
        self.0.next_tick()
    }

    fn resident_ram(&self) -> Option<u64> {
        Some(1 << 20)
    }
}

/// Layers that take the room they say.
#[derive(Default)]
pub struct Layers(Mutex<Vec<Option<Allocation>>>);

impl Layers {
    /// Moves a layer behind the registry's back.
    pub fn steal(&self, layer: usize) {
        let memory = Device::cpu().allocate(BYTES).unwrap();
        self.0.lock().unwrap()[layer] = Some(memory);
    }
}

impl Weights for Layers {
    fn units(&self) -> Arc<[Unit]> {
        let unit = |i| Unit {
            name: format!("layers.{i}").into(),
            bytes: BYTES,
            cost: BYTES,
            embedding: false,
            biased: true,
            castable: true,
            own: false,
            block: None,
        };
        (0..COUNT).map(unit).collect()
    }

    fn home(&self, unit: usize) -> Option<Device> {
        let homes = self.0.lock().unwrap();
        let memory = homes.get(unit)?.as_ref()?;
        Some(memory.device().clone())
    }

    fn load(&self, _: &Device) -> Result<u64, BoxError> {
        let mut homes = self.0.lock().unwrap();
        homes.clear();
        for _ in 0..COUNT {
            homes.push(Some(Device::cpu().allocate(BYTES)?));
        }
        Ok(BYTES * COUNT as u64)
    }

    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError> {
        let memory = device.allocate(BYTES)?;
        self.0.lock().unwrap()[unit] = Some(memory);
        Ok(())
    }

    fn release(&self) -> Result<(), BoxError> {
        self.0.lock().unwrap().clear();
        Ok(())
    }

    fn set_ahead(&self, _: usize) {}
    fn drop_ahead(&self) {}
}

/// One model, to be kept, of which a part is in main memory.
pub struct Furnished {
    pub registry: ModelRegistry,
    pub handle: Handle,
    pub layers: Arc<Layers>,
    /// The device it computes on, and another one with a smaller number.
    pub primary: Device,
    pub other: Device,
}

impl Furnished {
    pub fn id(&self) -> &str {
        self.handle.id().as_str()
    }

    /// Its path in the API.
    pub fn path(&self) -> String {
        let id = self.id().replace('#', "%23").replace('@', "%40");
        format!("/memory/models/{id}")
    }

    /// A prompt begins, and computes with the model once.
    pub fn begin(&self, prompt: &str) {
        self.registry.prompt_started(prompt);
        let handles = [&self.handle];
        let lease = self.registry.lease(&who(prompt), &handles, Need::default());
        drop(lease.unwrap());
    }
}

pub fn who(prompt: &str) -> Who {
    Who {
        client: "me".into(),
        prompt: prompt.into(),
        node: "4".into(),
    }
}

pub fn furnished() -> Furnished {
    // No other test of this process may have the same devices.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(4, Ordering::Relaxed);
    let primary = Device::register_sim(number + 3, CAPACITY).unwrap();
    let other = Device::register_sim(number, CAPACITY).unwrap();
    let mut settings = Settings::default();
    settings.reserves.extra = 0;
    settings.reserves.inference = 0;
    let registry = ModelRegistry::new(settings, vec![primary.clone(), other.clone()]);
    let key = ContentKey {
        files: vec![FileStamp {
            path: "/models/sd15.safetensors".into(),
            size: BYTES * COUNT as u64,
            modified: None,
        }],
        component: "diffusion".into(),
        options: String::new(),
    };
    let layers: Arc<Layers> = Arc::default();
    let weights: Arc<dyn Weights> = layers.clone();
    let make = || Ok::<_, BoxError>((Arc::new(()), weights));
    let opened = registry.open(&who("p"), &key, "diffusion SD1", make);
    let options = HandleOptions {
        compute: primary.clone(),
        placement: Some(Placement::Virtual {
            gb: (DONATED as u64 * BYTES) as f64 / f64::from(1 << 30),
            donors: vec!["cpu".to_owned()],
        }),
        policy: Policy::Keep,
        source: PolicySource::NodeInput,
        ..HandleOptions::default()
    };
    let handle = registry.handle(&who("p"), &opened.unwrap().id, options);
    let furnished = Furnished {
        registry,
        handle,
        layers,
        primary,
        other,
    };
    furnished.begin("p");
    furnished.registry.prompt_ended("p");
    furnished
}
