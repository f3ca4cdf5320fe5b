//! `/api/health`: whether the server answers, and with `?ready=1` whether it takes work. Open without a token, so it says
//! nothing else.

use axum::http::StatusCode;
use fresco_graph::map;

use crate::request::Request;
use crate::response;
use crate::route::Answer;

/// Plain, it is a probe of life: it answers 200 until the program ends. With `ready` it is a probe of readiness: 503 once the
/// program was told to stop and lets what runs come to its end.
pub(crate) async fn get(request: Request) -> Answer {
    let version = &request.app.config.version;
    let draining = request.app.engine.is_draining();
    let asks = request
        .query("ready")
        .is_some_and(|v| !matches!(v.as_str(), "" | "0" | "false"));
    let status = if draining { "draining" } else { "ok" };
    let code = if draining && asks {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    let answer = map! {"status" => status, "version" => version};
    Ok(response::json_status(code, &answer.into()))
}
