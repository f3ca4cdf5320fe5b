//! HTTP and WebSocket: routes, wire shapes, who may call. The only room that knows what clients see.
//!
//! [`app`] makes the router; tests call it without a socket, [`serve::serve`] puts it on the network. A request passes
//! `guard` (token, host, origin), finds its row in the route table, and its handler turns wire JSON into calls of the
//! engine. Events go the other way through [`Hub`], which the engine calls.
//!
//! Arrows inside point one way: `routes` know `services`, and both know `http`; only [`App`], which every request carries, knows all.

mod http;
mod routes;
mod services;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use fresco_cluster::Front;
use fresco_engine::{Engine, JobStore};
use fresco_files::{Dirs, Folders, MemoryGuard};
use fresco_memory::Registries;

use http::{body, route};
use routes::{middleware, object_info, packs, table};
use services::{memory_guard, pictures, throttle, users};

pub use http::error::{ApiError, Code};
pub use http::uri_text::encode_segment;
pub use http::{multipart, range};
pub use routes::fronts::answer_front;
pub use routes::guard::COOKIE;
pub use routes::pack_host::{NoPacks, Packs};
pub use routes::serve;
pub use routes::system::REFERENCE_VERSION;
pub use services::config::{Config, FrontEnd, Limits, Templates, Versions};
pub use services::hub::Hub;
pub use services::logs::{LogEntry, LogRing};
pub use services::memory_json::{event_line, memory_reply, room_report};
pub use services::memory_words::log_memory_event;
pub use services::metrics::Metrics;
pub use services::relay;

/// Everything handlers share. Clones are cheap.
#[derive(Clone)]
pub struct App(Arc<AppState>);

/// See [`App`].
pub struct AppState {
    pub config: Config,
    pub engine: Engine,
    /// The engine's queue and history.
    pub store: JobStore,
    /// Where models are and how long they stay.
    pub models: Registries,
    pub hub: Arc<Hub>,
    pub dirs: Arc<Dirs>,
    pub folders: Folders,
    pub logs: LogRing,
    pub metrics: Arc<Metrics>,
    users: users::Users,
    throttle: throttle::Throttle,
    bodies: Arc<body::Bodies>,
    memory: memory_guard::RequestMemory,
    pictures: pictures::Pictures,
    object_info: object_info::Cache,
    describe_model: DescribeModel,
    /// What Python packs add.
    pub packs: Arc<dyn Packs>,
    pub(crate) routes: &'static [route::Route],
    /// Workers on other machines.
    pub(crate) far: Option<Arc<Front>>,
    i18n: OnceLock<Arc<str>>,
    subgraphs: OnceLock<packs::Subgraphs>,
}

/// What an [`App`] is made from. The hub is made first because the engine needs it as its event sink.
pub struct Parts {
    pub config: Config,
    pub engine: Engine,
    pub store: JobStore,
    pub models: Registries,
    pub hub: Arc<Hub>,
    pub metrics: Arc<Metrics>,
    pub dirs: Arc<Dirs>,
    pub folders: Folders,
    pub logs: LogRing,
    /// Asked before a request takes much main memory.
    pub memory: MemoryGuard,
    pub describe_model: DescribeModel,
    pub packs: Arc<dyn Packs>,
    /// Workers on other machines, where there may be some.
    pub far: Option<Arc<Front>>,
}

/// What a model file is, as far as the names in it say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDescription {
    /// "SDXL".
    pub family: String,
    /// What is in the file beside the diffusion network.
    pub has_text: bool,
    pub has_vae: bool,
}

/// Looks into a model file; an error says why it holds no model that runs here.
pub type DescribeModel =
    Arc<dyn Fn(&std::path::Path) -> Result<ModelDescription, String> + Send + Sync>;

impl App {
    /// Must be called inside the runtime that serves it.
    pub fn new(parts: Parts) -> Self {
        let Parts {
            config,
            engine,
            store,
            models,
            hub,
            metrics,
            dirs,
            folders,
            logs,
            memory,
            describe_model,
            packs,
            far,
        } = parts;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(logs.clone().pump(Arc::downgrade(&hub)));
        }
        if far.is_some() {
            hub.join_cluster();
        }
        let bodies = body::Bodies::new(&dirs.temp, config.max_upload_total);
        let memory = memory_guard::RequestMemory::new(config.limits.picture_memory, memory);
        let users = users::Users::load(&dirs.user, config.multi_user);
        Self(Arc::new(AppState {
            users,
            config,
            engine,
            store,
            models,
            hub,
            dirs,
            folders,
            logs,
            metrics,
            throttle: throttle::Throttle::default(),
            bodies,
            memory,
            pictures: pictures::Pictures::default(),
            object_info: object_info::Cache::default(),
            describe_model,
            packs,
            routes: table::ROUTES,
            far,
            i18n: OnceLock::new(),
            subgraphs: OnceLock::new(),
        }))
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// The whole server as one service. Routing is by our own table: the path rules of the API (encoded slashes, `Allow` of
/// overlapping resources, a static root that answers everything) are not those of the framework's router.
pub fn app(state: App) -> Router {
    Router::new()
        .fallback(middleware::handle)
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}
