//! `/api/health`: whether the server answers, and with `?ready=1` whether it takes work. Open without a token, so it says
//! nothing else; with workers on other machines, also whether the way to them is open.

use axum::http::StatusCode;
use fresco_graph::map;

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
    let mut answer = map! {"status" => status, "version" => version};
    if let Some(far) = &request.app.far {
        let word = if far.trouble().is_some() {
            "trouble"
        } else {
            "ok"
        };
        answer.insert("nats".into(), word.into());
    }
    Ok(response::json_status(code, &answer.into()))
}
