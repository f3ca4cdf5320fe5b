//! `/api/health`: whether the server answers, and with `?ready=1` whether it takes work. Open without a token, so it says
//! nothing else; with workers on other machines, also whether the way to them is open.

use axum::http::StatusCode;
use serde::Serialize;

use crate::http::query::{Switch, query_struct};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;

query_struct! {
    /// Query of `GET /health`.
    HealthQuery {
        ready: Switch = "ready", "1: whether it takes work";
    }
}

#[derive(Serialize)]
struct HealthAnswer<'a> {
    status: &'a str,
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nats: Option<&'a str>,
}

/// Plain, it is a probe of life: it answers 200 until the program ends. With `ready` it is a probe of readiness: 503 once the
/// program was told to stop and lets what runs come to its end.
pub(crate) async fn get(request: Request) -> Answer {
    let version = &request.app.config.version;
    let draining = request.app.engine.is_draining();
    let asks = HealthQuery::of(&request).ready.0;
    let status = if draining { "draining" } else { "ok" };
    let code = if draining && asks {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    let nats = request.app.far.as_ref().map(|far| match far.trouble() {
        Some(_) => "trouble",
        None => "ok",
    });
    let answer = HealthAnswer {
        status,
        version,
        nats,
    };
    Ok(response::typed_status(code, &answer))
}
