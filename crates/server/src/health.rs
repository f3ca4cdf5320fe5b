//! `/api/health`: whether the server answers. Open without a token, so it says nothing else.

use fresco_graph::map;

use crate::request::Request;
use crate::response;
use crate::route::Answer;

pub(crate) async fn get(request: Request) -> Answer {
    let version = &request.app.config.version;
    Ok(response::json(
        &map! {"status" => "ok", "version" => version}.into(),
    ))
}
