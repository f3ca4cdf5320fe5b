//! Networks whose weights the memory room moves: how nodes get at them.
//!
//! A value on a link holds a [`Hold`]: a handle of the registry. Whoever computes takes a lease first; the lease brings the
//! weights where the plan wants them, and an allocation that fails meanwhile is answered by making room and trying again.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use fresco_graph::{Cx, NodeError};
use fresco_memory::{
    BoxError, ContentKey, EjectOthers, FileStamp, Handle, HandleOptions, Lease, MemoryError,
    ModelRegistry, Need, Placement, Policy, PolicySource, Settings, Unit, VramState, Weights,
    WeightsId, Who,
};
use fresco_models::network::Network;
use fresco_models::store::WeightStore;
use fresco_models::{BaseModel, ModelError, PatchSet};
use fresco_tensor::{Device, TensorError, on_reader_thread};

use crate::sampling::run::failure;

/// What a loader was told beside its file.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it computes; none: where its kind of network does by default.
    pub compute: Option<Device>,
    /// Where its weights wait; none: by default.
    pub offload: Option<Device>,
    pub placement: Option<Placement>,
    pub eject_others: EjectOthers,
    pub policy: Policy,
    pub source: PolicySource,
    /// Whether the weights that a LoRA changes are kept in eight bits where most of the model's own are.
    pub low_precision_loras: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            compute: None,
            offload: None,
            placement: None,
            eject_others: EjectOthers::None,
            policy: Policy::Auto,
            source: PolicySource::Default,
            low_precision_loras: false,
        }
    }
}

/// Kinds of networks that have their own default devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Diffusion,
    Text,
    Vae,
    Vision,
    Hearing,
    Style,
    Control,
    Upscale,
    Lora,
}

impl Component {
    /// As content keys call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Diffusion => "diffusion",
            Self::Text => "clip",
            Self::Vae => "vae",
            Self::Vision => "vision",
            Self::Hearing => "hearing",
            Self::Style => "style",
            Self::Control => "control",
            Self::Upscale => "upscale",
            Self::Lora => "lora",
        }
    }

    /// Where it computes by default.
    pub fn compute(self, registry: &ModelRegistry) -> Device {
        let settings = registry.settings();
        let primary = registry.primary();
        let roomy = matches!(
            settings.state,
            VramState::HighVram | VramState::NormalVram | VramState::Shared
        );
        let stays = match self {
            Self::Diffusion | Self::Control | Self::Upscale => false,
            Self::Vae => settings.cpu_vae,
            Self::Text | Self::Vision | Self::Hearing | Self::Style => !settings.gpu_only && !roomy,
            Self::Lora => true,
        };
        if stays { Device::cpu() } else { primary }
    }

    /// Where its weights wait by default.
    pub fn offload(self, registry: &ModelRegistry) -> Device {
        let settings = registry.settings();
        let on_device = match self {
            Self::Diffusion | Self::Control => settings.state == VramState::HighVram,
            Self::Text | Self::Vae | Self::Vision | Self::Hearing | Self::Style | Self::Upscale => {
                settings.gpu_only
            }
            Self::Lora => false,
        };
        if on_device {
            registry.primary()
        } else {
            Device::cpu()
        }
    }
}

/// For contexts without a registry of their own: main memory, no limits.
static ALONE: LazyLock<ModelRegistry> =
    LazyLock::new(|| ModelRegistry::new(Settings::default(), Vec::new()));

/// The registry of this program.
pub fn registry(cx: &Cx) -> ModelRegistry {
    cx.resource::<ModelRegistry>()
        .map_or_else(|_| ALONE.clone(), |registry| (*registry).clone())
}

/// Who asks.
pub fn who(cx: &Cx) -> Who {
    Who {
        client: cx.client.clone(),
        prompt: cx.prompt_id.clone(),
        node: cx.node_id.clone(),
    }
}

/// What the files of a component are called by their content.
pub(crate) fn content(
    paths: &[&Path],
    component: Component,
    options: &str,
) -> Result<ContentKey, NodeError> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let stamps = move || -> Result<Vec<FileStamp>, NodeError> {
        paths.iter().map(|path| stamp(path)).collect()
    };
    Ok(ContentKey {
        files: on_reader_thread(stamps)??,
        component: component.name().to_owned(),
        options: options.to_owned(),
    })
}

fn stamp(path: &Path) -> Result<FileStamp, NodeError> {
    let unreadable = |e: std::io::Error| {
        NodeError::file_not_found(format!("cannot read {}: {e}", path.display()))
    };
    let path = path.canonicalize().map_err(unreadable)?;
    let data = path.metadata().map_err(unreadable)?;
    Ok(FileStamp {
        size: data.len(),
        modified: data.modified().ok(),
        path,
    })
}

/// All networks over the same weights. They share layers, so they forget them together.
#[derive(Default)]
pub(crate) struct WeightSharers {
    networks: Mutex<Vec<Weak<dyn Network>>>,
    /// Variants with the addresses of their stores. Equal patches make one store, so they are one variant.
    variants: Mutex<Vec<(Vec<usize>, Weak<Hold>)>>,
}

/// Nothing is left half done under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WeightSharers {
    fn members(&self) -> MutexGuard<'_, Vec<Weak<dyn Network>>> {
        lock(&self.networks)
    }

    fn join(&self, network: &Arc<dyn Network>) {
        let mut members = self.members();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(network));
    }

    fn each(&self, act: impl Fn(&dyn Network)) {
        let members: Vec<_> = self.members().iter().filter_map(Weak::upgrade).collect();
        for member in members {
            act(&*member);
        }
    }

    /// Those that stand on one of these stores: equal patches of two loaders are two networks on one store.
    fn each_on(&self, stores: &[Arc<WeightStore>], act: impl Fn(&dyn Network)) {
        let on = |store: &Arc<WeightStore>| stores.iter().any(|s| s.address() == store.address());
        self.each(|network| {
            if network.stores().iter().any(on) {
                act(network);
            }
        });
    }
}

/// A network's stores as the registry sees them.
pub(crate) struct StoreWeights {
    network: Arc<dyn Network>,
    stores: Vec<Arc<WeightStore>>,
    units: Arc<[Unit]>,
    /// Of each unit: the store it is in, and its name there.
    places: Vec<(usize, String)>,
    family: Arc<WeightSharers>,
    /// A variant: its own weights are known only to those who stand on the same stores.
    variant: bool,
    on_the_fly: usize,
}

impl StoreWeights {
    fn new(
        network: Arc<dyn Network>,
        family: &Arc<WeightSharers>,
        variant: bool,
        on_the_fly: usize,
    ) -> Self {
        let stores = network.stores();
        let (mut units, mut places) = (Vec::new(), Vec::new());
        for (number, store) in stores.iter().enumerate() {
            for unit in store.units() {
                let name: Arc<str> = if stores.len() == 1 {
                    unit.name.as_str().into()
                } else {
                    format!("{number}.{}", unit.name).into()
                };
                units.push(Unit {
                    name,
                    bytes: unit.bytes,
                    // Weights are decoded in the cache and merged in place: using one from elsewhere takes its bytes.
                    cost: unit.bytes,
                    embedding: unit.embedding,
                    biased: unit.biased,
                    castable: unit.castable,
                    own: unit.own,
                    block: unit.block,
                });
                places.push((number, unit.name));
            }
        }
        Self {
            network,
            stores,
            units: units.into(),
            places,
            family: Arc::clone(family),
            variant,
            on_the_fly,
        }
    }

    /// Everyone who has layers of these weights.
    fn users(&self, act: impl Fn(&dyn Network)) {
        if self.variant {
            self.family.each_on(&self.stores, &act);
        } else {
            self.family.each(&act);
        }
        act(&*self.network);
    }

    fn read_bytes(&self) -> u64 {
        self.stores.iter().map(|store| store.read_bytes()).sum()
    }
}

impl Weights for StoreWeights {
    fn units(&self) -> Arc<[Unit]> {
        Arc::clone(&self.units)
    }

    fn home(&self, unit: usize) -> Option<Device> {
        let (store, name) = self.places.get(unit)?;
        self.stores[*store].home(name)
    }

    fn unread_bytes(&self, unit: usize) -> u64 {
        let place = self.places.get(unit);
        place.map_or(0, |(store, name)| self.stores[*store].unread_bytes(name))
    }

    fn load(&self, compute: &Device) -> Result<u64, BoxError> {
        for store in &self.stores {
            store.build_for(compute);
        }
        let before = self.read_bytes();
        self.network.build()?;
        Ok(self.read_bytes().saturating_sub(before))
    }

    fn late_bytes(&self, compute: &Device) -> u64 {
        if !compute.is_gpu() {
            return 0;
        }
        self.stores.iter().map(|store| store.late_bytes()).sum()
    }

    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError> {
        match self.places.get(unit) {
            Some((store, name)) => self.stores[*store].move_unit(name, device),
            None => Ok(()),
        }
    }

    fn finish_moves(&self) -> Result<(), TensorError> {
        self.stores
            .iter()
            .try_for_each(|store| store.finish_moves())
    }

    fn release(&self) -> Result<(), BoxError> {
        self.users(|network| network.forget());
        for store in &self.stores {
            store.forget();
        }
        Ok(())
    }

    fn set_ahead(&self, count: usize) {
        for store in &self.stores {
            store.group().set_ahead(count);
        }
    }

    fn drop_ahead(&self) {
        self.users(|network| network.rest());
        for store in &self.stores {
            store.group().drop_ahead();
        }
    }

    fn drop_spare(&self) {
        self.users(|network| network.shed());
        for store in &self.stores {
            store.group().drop_ahead();
        }
    }

    fn on_the_fly(&self) -> usize {
        self.on_the_fly
    }
}

/// Weights that are shared by content, with the networks over them.
pub(crate) struct SharedNetwork<N: ?Sized, X = ()> {
    pub(crate) network: Arc<N>,
    /// What else its loader found out.
    pub(crate) extra: X,
    family: Arc<WeightSharers>,
}

impl<N: Network + 'static, X> SharedNetwork<N, X> {
    /// The parts that [`ModelRegistry::open`] keeps.
    pub(crate) fn new(network: N, extra: X) -> (Arc<Self>, Arc<dyn Weights>) {
        let network = Arc::new(network);
        Self::with(network.clone(), network, extra)
    }

    /// A network over the same weights, made with stores of its own view, that forgets with the others.
    pub(crate) fn joined<M: Network + 'static>(&self, network: M) -> Arc<M> {
        let network = Arc::new(network);
        let any: Arc<dyn Network> = network.clone();
        self.family.join(&any);
        network
    }
}

impl<N: ?Sized, X> SharedNetwork<N, X> {
    /// The same network twice: as its loader knows it, and as the memory room does.
    fn with(network: Arc<N>, any: Arc<dyn Network>, extra: X) -> (Arc<Self>, Arc<dyn Weights>) {
        let family = Arc::new(WeightSharers::default());
        let weights = StoreWeights::new(any, &family, false, 0);
        let shared = Self {
            network,
            extra,
            family,
        };
        (Arc::new(shared), Arc::new(weights))
    }
}

impl<X> SharedNetwork<dyn BaseModel, X> {
    /// A diffusion model, of whatever family. Its weights must be ones that the memory room can move.
    pub(crate) fn model(
        model: Arc<dyn BaseModel>,
        extra: X,
    ) -> Result<(Arc<Self>, Arc<dyn Weights>), ModelError> {
        let any = memory_view(&model)?;
        Ok(Self::with(model, any, extra))
    }

    /// The same model computing on another device, which forgets with the others.
    pub(crate) fn model_on(&self, device: Device) -> Result<Arc<dyn BaseModel>, ModelError> {
        let store = self
            .network
            .store()
            .ok_or_else(|| unmovable(&self.network))?;
        let model = self.network.with_store(store.on(device))?;
        self.family.join(&memory_view(&model)?);
        Ok(model)
    }
}

fn unmovable(model: &Arc<dyn BaseModel>) -> ModelError {
    ModelError::unsupported(model.name(), "the weights of this model cannot be moved")
}

fn memory_view(model: &Arc<dyn BaseModel>) -> Result<Arc<dyn Network>, ModelError> {
    let view = Arc::clone(model).as_network();
    view.ok_or_else(|| unmovable(model))
}

/// A handle on weights, as values on links hold it.
pub struct Hold {
    handle: Handle,
    family: Arc<WeightSharers>,
    options: HandleOptions,
}

impl Hold {
    /// Claims weights for a loader.
    pub(crate) fn claim<N: ?Sized, X>(
        cx: &Cx,
        shared: &SharedNetwork<N, X>,
        id: &WeightsId,
        component: Component,
        options: &LoadOptions,
    ) -> Arc<Self> {
        let registry = registry(cx);
        let options = HandleOptions {
            compute: compute_device(&registry, component, options),
            offload: options
                .offload
                .clone()
                .unwrap_or_else(|| component.offload(&registry)),
            placement: options.placement.clone(),
            eject_others: options.eject_others,
            policy: options.policy,
            source: options.source,
            text_encoder: component == Component::Text,
            full: false,
        };
        Self::with(cx, id, &shared.family, options)
    }

    fn with(
        cx: &Cx,
        id: &WeightsId,
        family: &Arc<WeightSharers>,
        options: HandleOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            handle: registry(cx).handle(&who(cx), id, options.clone()),
            family: Arc::clone(family),
            options,
        })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn compute(&self) -> &Device {
        &self.options.compute
    }

    /// The same weights placed in another way.
    pub(crate) fn placed(&self, cx: &Cx, placement: Placement) -> Arc<Self> {
        let options = HandleOptions {
            placement: Some(placement),
            ..self.options.clone()
        };
        Self::with(cx, self.handle.id(), &self.family, options)
    }

    /// The weights of a variant with patches. Equal patches share them, unless another hold wants them elsewhere.
    pub(crate) fn patched(
        &self,
        patches: &PatchSet,
        base: &Arc<WeightStore>,
        prefix: &str,
    ) -> Arc<WeightStore> {
        let store = patches.store(base, prefix);
        let address = store.address();
        let variants = lock(&self.family.variants);
        let mut same = variants.iter().filter(|(at, _)| at.contains(&address));
        let taken = same.any(|(_, hold)| hold.upgrade().is_some_and(|hold| !hold.like(self)));
        drop(variants);
        if taken {
            patches.own_store(base, prefix)
        } else {
            store
        }
    }

    /// A variant with patches. `network` stands on a patched store over this handle's weights.
    pub(crate) fn derive(&self, network: &Arc<dyn Network>, patches: usize) -> Arc<Self> {
        let stores = network.stores();
        let addresses: Vec<usize> = stores.iter().map(|store| store.address()).collect();
        let on_the_fly = stores.iter().map(|store| store.on_the_fly_units()).sum();
        self.family.join(network);
        let mut variants = lock(&self.family.variants);
        variants.retain(|(_, hold)| hold.strong_count() > 0);
        let mut known = variants.iter().filter(|(at, _)| *at == addresses);
        let known = known.find_map(|(_, hold)| hold.upgrade().filter(|hold| hold.like(self)));
        if let Some(hold) = known {
            return hold;
        }
        let weights = StoreWeights::new(Arc::clone(network), &self.family, true, on_the_fly);
        let hold = Arc::new(Self {
            handle: self.handle.derive(Arc::new(weights), patches),
            family: Arc::clone(&self.family),
            options: self.options.clone(),
        });
        variants.push((addresses, Arc::downgrade(&hold)));
        hold
    }

    /// Whether both want the same of their weights.
    fn like(&self, other: &Self) -> bool {
        let (a, b) = (&self.options, &other.options);
        a.compute == b.compute && a.placement == b.placement && a.policy == b.policy
    }
}

fn compute_device(registry: &ModelRegistry, component: Component, options: &LoadOptions) -> Device {
    options
        .compute
        .clone()
        .unwrap_or_else(|| component.compute(registry))
}

/// Who may ask the registry, apart from a running node's context.
#[derive(Clone)]
pub(crate) struct Asker {
    registry: ModelRegistry,
    who: Who,
}

impl Asker {
    pub(crate) fn of(cx: &Cx) -> Self {
        Self {
            registry: registry(cx),
            who: who(cx),
        }
    }

    pub(crate) fn lease(&self, handles: &[&Handle], need: Need) -> Result<InUse, MemoryError> {
        let lease = self.registry.lease(&self.who, handles, need)?;
        Ok(InUse {
            registry: self.registry.clone(),
            lease,
        })
    }
}

/// Models in use. Their weights are where they should be until this is dropped.
pub struct InUse {
    registry: ModelRegistry,
    lease: Lease,
}

impl InUse {
    pub fn of(cx: &Cx, handles: &[&Handle], need: Need) -> Result<Self, NodeError> {
        Asker::of(cx).lease(handles, need).map_err(memory_failure)
    }

    /// Computes; where memory ran out, again after some was freed. `body` must be able to start over.
    pub fn run<R>(&self, mut body: impl FnMut() -> Result<R, ModelError>) -> Result<R, ModelError> {
        loop {
            let error = match body() {
                Ok(result) => return Ok(result),
                Err(error) => error,
            };
            let Some((device, wanted)) = refused(&error) else {
                return Err(error);
            };
            if !self.registry.relieve(&self.lease, &device, wanted) {
                let advice = self.registry.explain(&self.lease, &device);
                return Err(ModelError::NoRoom {
                    reason: format!("{error}. {advice}"),
                });
            }
        }
    }
}

/// The device that had no room, and for how much.
pub(crate) fn refused(error: &ModelError) -> Option<(String, u64)> {
    let (ModelError::Tensor(tensor) | ModelError::Layer { source: tensor, .. }) = error else {
        return None;
    };
    match tensor {
        TensorError::DeviceFull { device, wanted, .. } => Some((device.clone(), *wanted)),
        TensorError::NoMemory { .. } => Some(("cpu".to_owned(), 0)),
        _ => None,
    }
}

/// Whether memory was missing. Anything else went wrong with a file, a device, or because the prompt was interrupted.
fn is_shortage(error: &TensorError) -> bool {
    matches!(
        error,
        TensorError::DeviceFull { .. }
            | TensorError::NoMemory { .. }
            | TensorError::NoRoom(_)
            | TensorError::TooLarge { .. }
    )
}

/// What the memory room refuses, as the engine reports it.
pub(crate) fn memory_failure(error: MemoryError) -> NodeError {
    match error {
        MemoryError::Load { weights, source } => match source.downcast::<ModelError>() {
            Ok(error) => failure(*error),
            Err(error) => NodeError::runtime(format!("cannot load {weights}: {error}")),
        },
        MemoryError::Device(error) if !is_shortage(&error) => failure(error.into()),
        other => NodeError::OutOfMemory {
            message: other.to_string(),
        },
    }
}

/// The same in the words of the model room, for what runs inside of it.
pub(crate) fn model_failure(error: MemoryError) -> ModelError {
    match error {
        MemoryError::Load { weights, source } => match source.downcast::<ModelError>() {
            Ok(error) => *error,
            Err(error) => ModelError::unsupported(weights.to_string(), error.to_string()),
        },
        MemoryError::Device(error) if !is_shortage(&error) => error.into(),
        other => ModelError::NoRoom {
            reason: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_memory_is_reported_as_such() {
        let full = || TensorError::DeviceFull {
            device: "cuda:0".to_owned(),
            wanted: 2,
            free: 1,
            capacity: 8,
        };
        let unread = || TensorError::Invalid {
            op: "read",
            reason: "the file has changed on disk".to_owned(),
        };
        let report = |error: TensorError| memory_failure(MemoryError::Device(error));
        assert!(matches!(report(full()), NodeError::OutOfMemory { .. }));
        assert!(matches!(
            report(TensorError::Cancelled),
            NodeError::Interrupted
        ));
        let said = report(unread());
        assert!(!matches!(said, NodeError::OutOfMemory { .. }), "{said:?}");
        assert!(format!("{said:?}").contains("changed on disk"), "{said:?}");
        let inside = |error: TensorError| model_failure(MemoryError::Device(error));
        assert!(matches!(inside(full()), ModelError::NoRoom { .. }));
        assert!(matches!(inside(unread()), ModelError::Tensor(_)));
    }
}
