//! `/system_stats`, `/features`, `/interrupt`.

use axum::response::Response;
use fresco_cluster::protocol::fronts::FrontRequest;
use fresco_graph::{Map, Value, map};

use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
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
    let mut system = map! {
        "os" => os,
        "ram_total" => total,
        "ram_free" => free,
        "comfyui_version" => REFERENCE_VERSION,
        "required_frontend_version" => versions.required_frontend.clone(),
        "installed_templates_version" => versions.installed_templates.clone(),
        "required_templates_version" => versions.required_templates.clone(),
        "python_version" => versions.python.clone().unwrap_or_else(|| format!("none (Fresco {})", config.version)),
        "pytorch_version" => versions.torch.clone().unwrap_or_else(|| format!("none (Fresco {})", config.version)),
        "embedded_python" => false,
        "argv" => shown_arguments(&config.argv, config.token.as_deref()),
    };
    if let Some(cluster) = crate::routes::far::described(request.app.far.as_ref()) {
        system.insert("cluster".into(), cluster.into());
    }
    let device = map! {
        "name" => "cpu",
        "type" => "cpu",
        "index" => Value::Null,
        "vram_total" => total,
        "vram_free" => free,
        "torch_vram_total" => total,
        "torch_vram_free" => free,
    };
    let models = request.app.models.clone();
    let snapshot = blocking(move || models.snapshot()).await?;
    // Models go to the first; clients show that one.
    let mut devices: Vec<Value> = snapshot
        .devices
        .into_iter()
        .filter(|device| device.kind != "cpu")
        .map(|device| {
            Value::from(map! {
                "name" => device.device,
                "type" => device.kind,
                "index" => device.index,
                "vram_total" => device.total,
                "vram_free" => device.free,
                "torch_vram_total" => device.allocator_reserved,
                "torch_vram_free" => device.allocator_free,
            })
        })
        .collect();
    devices.push(device.into());
    Ok(response::json(
        &map! {"system" => system, "devices" => devices}.into(),
    ))
}

/// The command line as people paste it into error reports: without the token, however it was given.
fn shown_arguments(argv: &[String], token: Option<&str>) -> Vec<Value> {
    let mut hide = false;
    argv.iter()
        .map(|argument| {
            if std::mem::replace(&mut hide, argument == "--token") {
                return HIDDEN.into();
            }
            match (argument.split_once('='), token) {
                (Some(("--token", _)), _) => format!("--token={HIDDEN}").into(),
                (_, Some(token)) => without_secret(argument, token).into(),
                _ => argument.into(),
            }
        })
        .collect()
}

/// What this server can do; also the answer to a socket's first message.
pub(crate) fn feature_flags(config: &Config) -> Value {
    let limit = if config.max_upload_given {
        Value::Float(config.max_upload as f64)
    } else {
        Value::from(config.max_upload)
    };
    map! {
        "supports_preview_metadata" => true,
        "supports_memory_events" => true,
        "supports_fresco_events" => true,
        "max_upload_size" => limit,
        "extension" => map! {"manager" => map! {"supports_v4" => true}},
    }
    .into()
}

pub(crate) async fn features(request: Request) -> Answer {
    Ok(response::json(&feature_flags(&request.app.config)))
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
