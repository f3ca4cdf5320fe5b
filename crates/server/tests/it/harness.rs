//! A server in a temporary folder, asked without a socket.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use fresco_engine::store::{JobStore, Limits as StoreLimits, StorePath};
use fresco_engine::{Engine, EngineConfig, ExecutorConfig, LiveRegistry, Strategy, WorkerConfig};
use fresco_files::{Dirs, Folders};
use fresco_graph::{Listings, NodeRegistry, PromptLimits, Value, json};
use fresco_memory::ModelRegistry;
use fresco_server::serve::{Plain, serve};
use fresco_server::{App, Config, Hub, LogRing, Metrics, ModelDescription, Parts, app};
use tower::ServiceExt;

use crate::model_room::Room;

/// `models/TYPE` from the folders, nothing else.
struct Disk(Folders);

impl Listings for Disk {
    fn list(&self, source: &str) -> Vec<String> {
        let folder = source.strip_prefix("models/").unwrap_or(source);
        self.0.list(folder).map(|n| n.to_vec()).unwrap_or_default()
    }
}

pub struct Rig {
    pub app: App,
    pub base: PathBuf,
    pub dirs: Arc<Dirs>,
    _folder: tempfile::TempDir,
}

/// An answer with its whole body.
pub struct HttpAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl HttpAnswer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        json::parse(self.text()).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self
    }
}

pub fn rig() -> Rig {
    rig_with(|_, _| {})
}

/// A rig whose settings the closure may change; it gets the base folder.
pub fn rig_with(edit: impl FnOnce(&mut Config, &std::path::Path)) -> Rig {
    rig_limited(StoreLimits::default(), edit)
}

/// A rig with these models.
pub fn rig_models(models: ModelRegistry) -> Rig {
    build(StoreLimits::default(), models, |_, _| {})
}

pub fn rig_limited(limits: StoreLimits, edit: impl FnOnce(&mut Config, &std::path::Path)) -> Rig {
    let models = ModelRegistry::new(fresco_memory::Settings::default(), Vec::new());
    build(limits, models, edit)
}

fn build(
    limits: StoreLimits,
    models: ModelRegistry,
    edit: impl FnOnce(&mut Config, &std::path::Path),
) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    let dirs = Arc::new(Dirs::under(&base));
    for dir in [&dirs.input, &dirs.output, &dirs.temp] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let mut config = Config::default();
    edit(&mut config, &base);
    let folders = Folders::new(&dirs);
    let metrics = Arc::new(Metrics::default());
    let hub = Hub::new(&config.limits, metrics.clone());
    let listener = hub.clone();
    models.on_event(Arc::new(move |event| listener.memory_event(event)));
    let mut registry = NodeRegistry::new();
    registry.add(crate::nodes::NODES);
    let store = JobStore::open(&StorePath::Memory, limits).unwrap();
    let engine = Engine::start(EngineConfig {
        executor: ExecutorConfig {
            registry: LiveRegistry::new(registry),
            resources: Arc::default(),
            memory: Arc::new(Room(models.clone())),
            sink: hub.clone(),
            cache: Strategy::Classic,
            preview_method: "none".into(),
            disable_smart_memory: false,
            max_prompt_memory: u64::MAX,
        },
        workers: vec![WorkerConfig::local()],
        listings: Arc::new(Disk(folders.clone())),
        jobs: Arc::new(store.clone()),
        limits: PromptLimits::default(),
        hang_grace: Duration::from_secs(5),
    })
    .unwrap();
    let app = App::new(Parts {
        far: None,
        config,
        engine,
        store,
        models: models.into(),
        hub,
        metrics,
        dirs: dirs.clone(),
        folders,
        logs: LogRing::default(),
        memory: fresco_files::MemoryGuard::default(),
        describe_model: Arc::new(|path: &std::path::Path| {
            let name = path.to_string_lossy();
            if name.contains("whole") {
                return Ok(ModelDescription {
                    family: "SDXL".to_owned(),
                    has_text: true,
                    has_vae: true,
                });
            }
            Err(format!("{name} is no model"))
        }),
        packs: Arc::new(fresco_server::NoPacks),
    });
    Rig {
        app,
        base,
        dirs,
        _folder: folder,
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.app.engine.stop(Duration::from_secs(5));
    }
}

impl Rig {
    pub async fn send(&self, request: Request<Body>) -> HttpAnswer {
        let answer = app(self.app.clone()).oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        HttpAnswer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.to_vec(),
        }
    }

    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> HttpAnswer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> HttpAnswer {
        self.ask("GET", path, &[], Body::empty()).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Body>) -> HttpAnswer {
        self.ask("POST", path, &[], body).await
    }

    /// Queues a prompt; answers its id.
    pub async fn queue(&self, prompt: &str, client: Option<&str>) -> String {
        let client = client
            .map(|c| format!(",\"client_id\":\"{c}\""))
            .unwrap_or_default();
        let body = format!("{{\"prompt\":{prompt}{client}}}");
        let got = self.post("/prompt", body).await.expect(200);
        got.json()
            .get("prompt_id")
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Follows a job to its end; answers its history entry.
    pub async fn finish(&self, id: &str) -> Value {
        // The event stream ends with the job, so reading it whole is waiting for the end.
        self.get(&format!("/api/jobs/{id}/events"))
            .await
            .expect(200);
        let history = self.get(&format!("/history/{id}")).await.expect(200).json();
        history.get(id).cloned().unwrap()
    }

    /// The body of an answer that may not have ended yet.
    pub async fn open(&self, path: &str) -> Body {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = app(self.app.clone()).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body()
    }

    /// Waits for an event of a job.
    pub async fn until_event(&self, id: &str, event: &str) {
        use http_body_util::BodyExt;
        let mut body = self.open(&format!("/api/jobs/{id}/events")).await;
        let wanted = format!("event: {event}\n");
        let mut seen = String::new();
        while let Some(frame) = body.frame().await {
            seen += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
            if seen.contains(&wanted) {
                return;
            }
        }
        panic!("the job ended without {event}: {seen}");
    }

    /// Puts the server on a port of its own.
    pub async fn listen(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = self.app.clone();
        tokio::spawn(serve(
            vec![listener],
            Arc::new(Plain),
            app,
            std::future::pending(),
        ));
        address
    }
}

/// `{"1": Number, "2": Show}`.
pub fn picture(value: i64) -> String {
    chain(value, "Show")
}

pub fn chain(value: i64, class: &str) -> String {
    format!(
        r#"{{"1":{{"class_type":"Number","inputs":{{"value":{value}}}}},"2":{{"class_type":"{class}","inputs":{{"value":["1",0]}}}}}}"#
    )
}

/// A form with text fields and one file.
pub fn form(fields: &[(&str, &str)], file: Option<(&str, &[u8])>) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    if let Some((name, bytes)) = file {
        let head = format!(
            "--BB\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\r\n"
        );
        body.extend(head.as_bytes());
        body.extend(bytes);
        body.extend(b"\r\n");
    }
    for (name, value) in fields {
        let part =
            format!("--BB\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend(part.as_bytes());
    }
    body.extend(b"--BB--\r\n");
    ("multipart/form-data; boundary=BB".to_owned(), body)
}
