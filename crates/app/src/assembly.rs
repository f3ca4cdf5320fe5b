//! What every command that knows nodes stands on: folders, registry, listings, resources.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use fresco_cluster::content::ClusterModels;
use fresco_engine::{EventSink, ExecutorConfig, LiveRegistry};
use fresco_files::{Dirs, Folders, Saver};
use fresco_graph::ui::NodeDefs;
use fresco_graph::{
    CallScope, Listings, Map, NodeRegistry, Resources, Value, Versions, object_info,
};
use fresco_memory::ModelRegistry;
use fresco_models::detect::Families;
use fresco_nodes::loaders::Fp8Products;
use fresco_nodes::lora::{LoraOptions, MergeDtype, PatchMode};
use fresco_nodes::sampling::preview::PreviewSize;
use fresco_nodes::save::SaveOptions;
use fresco_tensor::{Device, on_reader_thread};

use crate::cli::MergeChoice;
use crate::listings::DiskListings;
use crate::memory_room::Room;
use crate::settings::{ExecSettings, FolderSettings};
use crate::starter;
use crate::value_codec::value_codec;

pub(crate) struct Assembly {
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) folders: Folders,
    /// Where the starter model is, if it is searched.
    pub(crate) starter: Option<PathBuf>,
    pub(crate) registry: Arc<LiveRegistry>,
    pub(crate) listings: Arc<dyn Listings>,
    /// What workers on other machines have, where there may be some.
    pub(crate) cluster: Option<ClusterModels>,
}

impl Assembly {
    /// Resolves directories and model folders; nothing is created or deleted.
    pub(crate) fn open(settings: &FolderSettings) -> anyhow::Result<Self> {
        let dirs = Arc::new(Dirs::resolve(&settings.dirs)?);
        let folders = Folders::new(&dirs);
        let own = dirs.program.join("extra_model_paths.yaml");
        let own = own.is_file().then_some(own);
        let variable = |name: &str| crate::env_vars::text(name);
        for file in own.iter().chain(&settings.extra_paths) {
            folders.add_extra_paths(file, &variable)?;
        }
        folders.add_output_roots(&dirs);
        if let Some(starter) = &settings.starter {
            folders.add_models(&starter::models(starter));
        }
        let mut registry = NodeRegistry::new();
        registry.add(&fresco_nodes::all());
        let listings = Arc::new(DiskListings::new(dirs.clone(), folders.clone()));
        Ok(Self {
            dirs,
            folders,
            starter: settings.starter.clone(),
            registry: LiveRegistry::new(registry),
            listings,
            cluster: None,
        })
    }

    /// How the engine runs nodes here, with these models.
    pub(crate) fn executor(
        &self,
        settings: &ExecSettings,
        memory: ModelRegistry,
        sink: Arc<dyn EventSink>,
    ) -> anyhow::Result<ExecutorConfig> {
        describe(&memory);
        let mut resources = Resources::default();
        resources.insert((*self.dirs).clone());
        resources.insert(self.folders.clone());
        resources.insert(Saver::new());
        resources.insert(crate::memory_guard::memory_guard());
        resources.insert(crate::media::reader(settings.use_ffmpeg));
        resources.insert(SaveOptions {
            disable_metadata: settings.disable_metadata,
        });
        resources.insert(LoraOptions {
            mode: if settings.memory.lora_on_the_fly {
                PatchMode::OnTheFly
            } else {
                PatchMode::Merged
            },
        });
        resources.insert(match settings.memory.merge_dtype {
            MergeChoice::Auto => MergeDtype::Auto,
            MergeChoice::Fp16 => MergeDtype::Fp16,
            MergeChoice::Fp32 => MergeDtype::Fp32,
        });
        resources.insert(Fp8Products(settings.memory.fp8_products));
        resources.insert(memory.clone());
        let families = Families::default();
        resources.insert(families.clone());
        resources.insert(value_codec());
        resources.insert(PreviewSize(settings.preview_size));
        let folders = self.folders.clone();
        resources.insert(Versions(Arc::new(move |source, entry| {
            let (folders, source, entry) = (folders.clone(), source.to_owned(), entry.to_owned());
            let version = on_reader_thread(move || model_version(&folders, &source, &entry));
            version.ok().flatten()
        })));
        resources.insert(CallScope(Arc::new(|cancelled, work| {
            fresco_tensor::cancel::with(cancelled, work);
        })));
        let log = settings.memory.log.as_deref();
        let room = self.room(memory, log, families)?;
        Ok(ExecutorConfig {
            registry: self.registry.clone(),
            resources: Arc::new(resources),
            memory: Arc::new(room),
            sink,
            cache: settings.cache,
            preview_method: settings.preview_method.into(),
            disable_smart_memory: !settings.memory.smart,
            max_prompt_memory: settings.max_prompt_memory,
        })
    }

    fn room(
        &self,
        memory: ModelRegistry,
        log: Option<&Path>,
        families: Families,
    ) -> anyhow::Result<Room> {
        let room = Room::new(memory, log)?.admitting(self.folders.clone(), families);
        Ok(match &self.cluster {
            None => room,
            Some(models) => room.in_cluster(models.clone(), self.registry.clone()),
        })
    }

    /// The same for a further worker, with models of its own.
    pub(crate) fn another(
        &self,
        first: &ExecutorConfig,
        settings: &ExecSettings,
        memory: ModelRegistry,
    ) -> anyhow::Result<ExecutorConfig> {
        describe(&memory);
        // Whoever saves files, counts and checks paths is the same for all.
        let mut resources = (*first.resources).clone();
        resources.insert(memory.clone());
        let families = Families::clone(&*resources.get::<Families>().unwrap_or_default());
        let log = settings.memory.log.as_deref();
        let room = self.room(memory, log, families)?;
        Ok(ExecutorConfig {
            resources: Arc::new(resources),
            memory: Arc::new(room),
            ..first.clone()
        })
    }

    /// What `/object_info` says.
    pub(crate) fn object_info(&self) -> Map {
        let entry = |class: &Arc<dyn fresco_graph::NodeClass>| {
            let schema = class.schema();
            (
                schema.id.clone(),
                object_info::node_info(&schema, &*self.listings),
            )
        };
        self.registry.snapshot().iter().map(entry).collect()
    }

    /// What the converter asks about classes.
    pub(crate) fn node_defs(&self) -> NodeDefs {
        let (registry, listings) = (self.registry.snapshot(), Arc::clone(&self.listings));
        NodeDefs::asking(move |class| {
            let schema = registry.get(class)?.schema();
            Some(object_info::node_info(&schema, &*listings))
        })
    }

    pub(crate) fn node_info(&self, class: &str) -> Option<Value> {
        let schema = self.registry.snapshot().get(class)?.schema();
        Some(object_info::node_info(&schema, &*self.listings))
    }
}

/// A model's file as it is now: a loader whose file was replaced runs again.
fn model_version(folders: &Folders, source: &str, entry: &str) -> Option<String> {
    let folder = match source.split_once('/')? {
        ("models" | "gguf", folder) => folder,
        ("vae", _) => "vae",
        _ => return None,
    };
    let data = folders.full_path(folder, entry)?.metadata().ok()?;
    let time = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    data.is_file()
        .then(|| format!("{} {}", data.len(), time.as_nanos()))
}

/// Says at the start what there is to compute with.
fn describe(memory: &ModelRegistry) {
    let settings = memory.settings();
    let megabytes = |bytes: u64| bytes >> 20;
    let accelerators = &memory.devices()[1..];
    let vram: u64 = accelerators.iter().filter_map(Device::capacity).sum();
    let ram = fresco_tensor::total_memory().unwrap_or(0);
    tracing::info!(
        "Total VRAM {} MB, total RAM {} MB",
        megabytes(vram),
        megabytes(ram)
    );
    tracing::info!("Set vram state to: {}", settings.state.name());
    let primary = memory.primary();
    if accelerators.is_empty() {
        tracing::info!("Device: {primary}; no accelerator is used");
        return;
    }
    let mut others: Vec<String> = memory.devices().iter().map(Device::name).collect();
    others.retain(|name| *name != primary.name());
    let ahead = match settings.streams {
        0 => "nothing is fetched ahead".to_owned(),
        1 => "1 layer is fetched ahead".to_owned(),
        n => format!("{n} layers are fetched ahead"),
    };
    tracing::info!(
        "Device: {primary}, beside {}; of models that do not fit, {ahead}",
        others.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fresco_files::DirOptions;

    use super::*;

    pub(crate) fn assembly(base: &Path) -> Assembly {
        let dirs = DirOptions {
            program: base.into(),
            base: Some(base.into()),
            ..DirOptions::default()
        };
        Assembly::open(&FolderSettings {
            dirs,
            extra_paths: Vec::new(),
            starter: None,
        })
        .unwrap()
    }

    #[test]
    fn listings_follow_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "input/b.png",
            "input/a.JPG",
            "input/film.mp4",
            "input/song.mp3",
            "input/x.latent",
            "input/note.txt",
            "input/3d/one.glb",
            "input/3d/deep/two.OBJ",
            "input/3d/no.txt",
            "models/vae/v.safetensors",
            "models/unet/u.GGUF",
            "models/unet/u.safetensors",
            "models/diffusers/d/model_index.json",
            "models/vae_approx/taesd_encoder.pth",
            "models/vae_approx/taesd_decoder.pth",
            "models/vae_approx/taef1_decoder.pth",
            "models/vae_approx/taef2_decoder.safetensors",
            "models/vae_approx/taef2_encoder.safetensors",
            "models/vae_approx/lighttaew2_1.safetensors",
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let assembly = assembly(dir.path());
        let list = |source: &str| assembly.listings.list(source).join(" ");
        assert_eq!(list("input/image"), "a.JPG b.png");
        assert_eq!(list("input/video"), "film.mp4");
        assert_eq!(list("input/audio"), "film.mp4 song.mp3");
        assert_eq!(list("input/latent"), "x.latent");
        assert_eq!(list("input/3d"), "3d/deep/two.OBJ 3d/one.glb");
        assert_eq!(list("input/folders"), "3d 3d/deep");
        assert_eq!(list("models/vae"), "v.safetensors");
        assert_eq!(
            list("vae/all"),
            "v.safetensors taesd taef2 lighttaew2_1.safetensors pixel_space"
        );
        assert_eq!(list("gguf/diffusion_models"), "u.GGUF");
        assert_eq!(list("models/diffusers"), "d");
        assert_eq!(list("models/nothing"), "");
    }

    #[test]
    fn devices_are_listed_by_number_behind_the_main_memory() {
        for number in [902, 7, 10] {
            Device::register_sim(number, 1).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let assembly = assembly(dir.path());
        let names = assembly.listings.list("devices/all");
        assert_eq!(names[0], "cpu");
        let numbers: Vec<u32> = names[1..]
            .iter()
            .map(|name| name.strip_prefix("sim:").unwrap().parse().unwrap())
            .collect();
        assert!(numbers.is_sorted(), "{names:?}");
        assert!([7, 10, 902].iter().all(|n| numbers.contains(n)));
        assert_eq!(
            assembly.listings.preset("devices/all").as_ref(),
            names.get(1)
        );
        assert_eq!(assembly.listings.preset("models/vae"), None);
    }

    #[test]
    fn extra_paths_beside_the_models_are_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("more")).unwrap();
        fs::write(dir.path().join("more/l.safetensors"), "").unwrap();
        fs::write(
            dir.path().join("extra_model_paths.yaml"),
            "x:\n  loras: more\n",
        )
        .unwrap();
        assert_eq!(
            assembly(dir.path()).listings.list("models/loras"),
            ["l.safetensors"]
        );
    }
}
