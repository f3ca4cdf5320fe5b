//! `/system_stats`, `/features`, `/interrupt`.

use axum::response::Response;
use fresco_cluster::protocol::fronts::FrontRequest;
use fresco_graph::{Map, Value};
use fresco_memory::DeviceReport;
use serde::Serialize;

use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::far::ClusterStats;
use crate::services::config::Config;
use crate::services::logs::{HIDDEN, without_secret};

/// The reference's version: front-ends and packs decide by it.
pub const REFERENCE_VERSION: &str = "0.7.0";

pub(crate) async fn stats(request: Request) -> Answer {
    let config = &request.app.config;
    let versions = &config.versions;
    let (total, free) = request
        .app
        .models
        .first()
        .registry
        .host()
        .map_or((0, 0), |host| (host.total, host.available));
    let os = match std::env::consts::OS {
        "macos" => "darwin",
        "windows" => "win32",
        other => other,
    };
    let without = |what: &Option<String>| {
        let none = || format!("none (Fresco {})", config.version);
        what.clone().unwrap_or_else(none)
    };
    let models = request.app.models.clone();
    let snapshot = blocking(move || models.snapshot()).await?;
    // Models go to the first; clients show that one.
    let accelerators = snapshot.devices.into_iter();
    let accelerators = accelerators.filter(|device| device.kind != "cpu");
    let mut devices: Vec<DeviceStats> = accelerators.map(DeviceStats::from).collect();
    devices.push(DeviceStats {
        name: "cpu".to_owned(),
        kind: "cpu",
        index: None,
        vram_total: total,
        vram_free: free,
        torch_vram_total: total,
        torch_vram_free: free,
    });
    Ok(response::typed(&SystemStats {
        system: SystemInfo {
            os,
            ram_total: total,
            ram_free: free,
            comfyui_version: REFERENCE_VERSION,
            required_frontend_version: versions.required_frontend.as_deref(),
            installed_templates_version: versions.installed_templates.as_deref(),
            required_templates_version: versions.required_templates.as_deref(),
            python_version: without(&versions.python),
            pytorch_version: without(&versions.torch),
            embedded_python: false,
            argv: shown_arguments(&config.argv, config.token.as_deref()),
            cluster: ClusterStats::of(request.app.far.as_ref()),
        },
        devices,
    }))
}

#[derive(Serialize)]
struct SystemStats<'a> {
    system: SystemInfo<'a>,
    devices: Vec<DeviceStats>,
}

#[derive(Serialize)]
struct SystemInfo<'a> {
    os: &'a str,
    ram_total: u64,
    ram_free: u64,
    comfyui_version: &'a str,
    required_frontend_version: Option<&'a str>,
    installed_templates_version: Option<&'a str>,
    required_templates_version: Option<&'a str>,
    python_version: String,
    pytorch_version: String,
    embedded_python: bool,
    argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterStats>,
}

/// A device under the names that clients know.
#[derive(Serialize)]
struct DeviceStats {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    index: Option<u32>,
    vram_total: u64,
    vram_free: u64,
    torch_vram_total: u64,
    torch_vram_free: u64,
}

impl From<DeviceReport> for DeviceStats {
    fn from(device: DeviceReport) -> Self {
        Self {
            name: device.device,
            kind: device.kind,
            index: device.index,
            vram_total: device.total,
            vram_free: device.free,
            torch_vram_total: device.allocator_reserved,
            torch_vram_free: device.allocator_free,
        }
    }
}

/// The command line as people paste it into error reports: without the token, however it was given.
fn shown_arguments(argv: &[String], token: Option<&str>) -> Vec<String> {
    let mut hide = false;
    argv.iter()
        .map(|argument| {
            if std::mem::replace(&mut hide, argument == "--token") {
                return HIDDEN.to_owned();
            }
            match (argument.split_once('='), token) {
                (Some(("--token", _)), _) => format!("--token={HIDDEN}"),
                (_, Some(token)) => without_secret(argument, token),
                _ => argument.clone(),
            }
        })
        .collect()
}

/// What this server can do; also the answer to a socket's first message.
#[derive(Serialize)]
pub(crate) struct FeatureFlags {
    supports_preview_metadata: bool,
    supports_memory_events: bool,
    supports_fresco_events: bool,
    max_upload_size: Value,
    extension: Extensions,
}

#[derive(Serialize)]
struct Extensions {
    manager: ManagerFlags,
}

#[derive(Serialize)]
struct ManagerFlags {
    supports_v4: bool,
}

impl FeatureFlags {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            supports_preview_metadata: true,
            supports_memory_events: true,
            supports_fresco_events: true,
            max_upload_size: if config.max_upload_given {
                Value::Float(config.max_upload as f64)
            } else {
                Value::from(config.max_upload)
            },
            extension: Extensions {
                manager: ManagerFlags { supports_v4: true },
            },
        }
    }
}

pub(crate) async fn features(request: Request) -> Answer {
    Ok(response::typed(&FeatureFlags::of(&request.app.config)))
}

pub(crate) async fn interrupt(mut request: Request) -> Answer {
    let body = match request.try_json().await? {
        Ok(Value::Map(map)) => std::sync::Arc::unwrap_or_clone(map),
        Ok(_) => return Err(ApiError::trouble("the request body is not a JSON object")),
        Err(_) => Map::new(),
    };
    let id = body
        .get("prompt_id")
        .filter(|v| v.truthy())
        .map(fresco_graph::json::python_text);
    let found = request.app.engine.interrupt(id.as_deref());
    if !found || id.is_none() {
        let what = FrontRequest::Interrupt {
            prompt_id: id.map(Into::into),
        };
        crate::routes::fronts::tell(&request, what).await;
    }
    Ok(empty())
}

fn empty() -> Response {
    response::empty()
}
