//! The whole server in this process, with all nodes, a database in memory and an empty folder.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use fresco_engine::store::{JobStore, Limits, StorePath};
use fresco_engine::{
    Engine, EngineConfig, ExecutorConfig, LiveRegistry, NoModels, Strategy, WorkerConfig,
};
use fresco_files::{Dirs, Folders, MemoryGuard};
use fresco_graph::{NoListings, NodeRegistry, PromptLimits};
use fresco_memory::{ModelRegistry, Settings};
use fresco_server::{App, Config, Hub, LogRing, Metrics, NoPacks, Parts};
use tokio::runtime::{Builder, Runtime};

struct Rig {
    runtime: Runtime,
    app: App,
}

static RIG: LazyLock<Rig> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let base = std::env::temp_dir().join(format!("fresco-fuzz-{}", std::process::id()));
    let dirs = Arc::new(Dirs::under(&base));
    for dir in [&dirs.input, &dirs.output, &dirs.temp] {
        std::fs::create_dir_all(dir).expect("the folder takes folders");
    }
    let config = Config::default();
    let metrics = Arc::new(Metrics::default());
    let hub = Hub::new(&config.limits, metrics.clone());
    let mut registry = NodeRegistry::new();
    registry.add(&fresco_nodes::all());
    let engine = Engine::start(EngineConfig {
        executor: ExecutorConfig {
            registry: LiveRegistry::new(registry),
            resources: Arc::default(),
            memory: Arc::new(NoModels),
            sink: hub.clone(),
            cache: Strategy::Classic,
            preview_method: "none".into(),
            disable_smart_memory: false,
            max_prompt_memory: u64::MAX,
        },
        workers: vec![WorkerConfig::local()],
        listings: Arc::new(NoListings),
        store: JobStore::open(&StorePath::Memory, Limits::default()).expect("a database in memory"),
        limits: PromptLimits::default(),
        hang_grace: Duration::from_secs(5),
    })
    .expect("the engine starts");
    let app = App::new(Parts {
        config,
        engine,
        models: ModelRegistry::new(Settings::default(), Vec::new()).into(),
        hub,
        metrics,
        folders: Folders::new(&dirs),
        dirs,
        logs: LogRing::default(),
        memory: MemoryGuard::default(),
        describe_model: Arc::new(|path: &std::path::Path| {
            Err(format!("{} is no model", path.display()))
        }),
        packs: Arc::new(NoPacks),
    });
    Rig { runtime, app }
});

/// Runs one input to its end.
pub fn run<F: Future<Output = ()>>(work: impl FnOnce(App) -> F) {
    RIG.runtime.block_on(work(RIG.app.clone()));
}
