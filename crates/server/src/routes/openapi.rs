//! The OpenAPI document, made from the route table.

use std::sync::{Arc, OnceLock};

use fresco_graph::{Map, Value, json, map};

use crate::http::request::Request;
use crate::http::response;
use crate::http::route::{Answer, Route, Verb};

/// `GET /openapi.json`.
pub(crate) async fn get(request: Request) -> Answer {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        json::to_string(&document(request.app.routes, &request.app.config.version))
    });
    Ok(response::json_text(text.clone()))
}

/// The form clients should use: under `/api`, except where a route exists only once.
fn public_path(route: &Route) -> String {
    let path = route.path.replace(":.*}", "}");
    if route.twice && !path.starts_with("/api/") {
        format!("/api{path}")
    } else {
        path
    }
}

fn document(routes: &[Route], version: &str) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path: Arc<str> = public_path(route).into();
        let mut item = match paths.shift_remove(&path) {
            Some(Value::Map(item)) => Arc::unwrap_or_clone(item),
            _ => Map::new(),
        };
        let verb = match route.verb {
            Verb::Delete => "delete",
            Verb::Get => "get",
            Verb::Patch => "patch",
            Verb::Post => "post",
        };
        item.insert(verb.into(), operation(route));
        paths.insert(path, item.into());
    }
    let description = "Runs ComfyUI workflows. Every path under /api also exists without that prefix; GET answers HEAD.";
    let bearer = map! {"type" => "http", "scheme" => "bearer"};
    map! {
        "openapi" => "3.1.0",
        "info" => map! {"title" => "Fresco", "version" => version, "description" => description},
        "paths" => paths,
        "components" => map! {"securitySchemes" => map! {"token" => bearer}},
        "security" => vec![Value::from(map! {"token" => Vec::<Value>::new()}), Map::new().into()],
    }
    .into()
}

fn operation(route: &Route) -> Value {
    let text = map! {"type" => "string"};
    let mut parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|s| s.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            let name = name.trim_end_matches(":.*");
            map! {"name" => name, "in" => "path", "required" => true, "schema" => text.clone()}
                .into()
        })
        .collect();
    parameters.extend(route.query.iter().copied().flatten().map(|(name, meaning)| {
        Value::from(map! {"name" => *name, "in" => "query", "description" => *meaning, "schema" => text.clone()})
    }));
    let answers: Map = route
        .answers
        .iter()
        .map(|(status, meaning)| {
            (
                status.to_string().into(),
                map! {"description" => *meaning}.into(),
            )
        })
        .collect();
    let id = format!(
        "{}{}",
        route.verb.as_str().to_lowercase(),
        route.path.replace(|c: char| !c.is_alphanumeric(), "_")
    );
    let mut out = map! {"operationId" => id, "summary" => route.summary};
    if !parameters.is_empty() {
        out.insert("parameters".into(), parameters.into());
    }
    if let Some(body) = route.body {
        let kind = if body.starts_with("multipart") {
            "multipart/form-data"
        } else if body == "the file" {
            "application/octet-stream"
        } else {
            "application/json"
        };
        let content = map! {kind => map! {"schema" => Map::new()}};
        out.insert(
            "requestBody".into(),
            map! {"description" => body, "content" => content}.into(),
        );
    }
    out.insert("responses".into(), answers.into());
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::table::ROUTES;

    #[test]
    fn every_row_is_described() {
        let document = document(ROUTES, "1");
        let paths = document.get("paths").unwrap();
        for route in ROUTES {
            let item = paths.get(&public_path(route)).unwrap();
            assert!(
                item.get(&route.verb.as_str().to_lowercase()).is_some(),
                "{}",
                route.path
            );
        }
        assert!(paths.get("/api/prompt").unwrap().get("post").is_some());
        assert!(paths.get("/api/jobs/{job_id}/events").is_some());
        assert!(paths.get("/internal/logs").is_some());
    }
}
