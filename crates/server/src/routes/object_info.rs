//! `/object_info`. Rendered once; only classes whose combos follow the disk are rendered for each request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderValue, StatusCode, header};
use fresco_graph::{Listings, NodeClass, NodeRegistry, Schema, json, lock, object_info};
use sha2::{Digest as _, Sha256};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::request::Request;
use crate::http::response;
use crate::http::response::has_tag;
use crate::http::route::Answer;
use crate::routes::pack_host;

/// A stretch of the answer.
enum Piece {
    /// Classes that never change, with the commas between them.
    Fixed(String),
    /// A class to render now.
    Live(Arc<dyn NodeClass>),
}

/// The answer with gaps for what follows the disk or belongs to another process, and the list of classes it is about.
type Rendered = (Arc<NodeRegistry>, Arc<Vec<Piece>>);

#[derive(Default)]
pub(crate) struct Cache(Mutex<Option<Rendered>>);

impl Cache {
    /// What has to be rendered for these classes; made anew when they are others than last time.
    fn pieces(&self, registry: &Arc<NodeRegistry>) -> Arc<Vec<Piece>> {
        let mut cached = lock(&self.0);
        if let Some((known, pieces)) = &*cached
            && Arc::ptr_eq(known, registry)
        {
            return pieces.clone();
        }
        let pieces = Arc::new(build(registry));
        *cached = Some((registry.clone(), pieces.clone()));
        pieces
    }

    fn render(&self, registry: &Arc<NodeRegistry>, listings: &Arc<dyn Listings>) -> String {
        let pieces = self.pieces(registry);
        let pinned = Pinned::new(listings);
        let mut out = String::with_capacity(1 << 20);
        out.push('{');
        for piece in pieces.iter() {
            let before = out.len();
            if before > 1 {
                out.push(',');
            }
            let written = match piece {
                Piece::Fixed(text) => {
                    out.push_str(text);
                    true
                }
                Piece::Live(class) => write_live(&mut out, &**class, &pinned),
            };
            if !written {
                out.truncate(before);
            }
        }
        out.push('}');
        out
    }
}

/// Renders a class as it is now; false if it cannot say what it declares, which leaves it out until it can.
fn write_live(out: &mut String, class: &dyn NodeClass, listings: &dyn Listings) -> bool {
    match class.describe() {
        Ok(declared) => {
            write_class(out, &declared.schema, listings);
            true
        }
        Err(error) => {
            let id = class.schema().id.clone();
            tracing::warn!(class = %id, "left out of /object_info: {}", error.message());
            false
        }
    }
}

fn build(registry: &NodeRegistry) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    for class in registry.iter() {
        let schema = class.schema();
        if class.owner().is_some() || schema.has_listings() {
            if !text.is_empty() {
                pieces.push(Piece::Fixed(std::mem::take(&mut text)));
            }
            pieces.push(Piece::Live(class.clone()));
        } else {
            if !text.is_empty() {
                text.push(',');
            }
            write_class(&mut text, &schema, &fresco_graph::NoListings);
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Fixed(text));
    }
    pieces
}

fn write_class(out: &mut String, schema: &Schema, listings: &dyn Listings) {
    json::write_string(out, &schema.id, false);
    out.push(':');
    json::write(out, &object_info::node_info(schema, listings), json::WIRE);
}

/// Asks for each listing once per request: dozens of classes share a few.
pub(crate) struct Pinned {
    listings: Arc<dyn Listings>,
    seen: Mutex<BTreeMap<String, Vec<String>>>,
}

impl Pinned {
    pub(crate) fn new(listings: &Arc<dyn Listings>) -> Self {
        Self {
            listings: Arc::clone(listings),
            seen: Mutex::default(),
        }
    }
}

impl Listings for Pinned {
    fn list(&self, source: &str) -> Vec<String> {
        let mut seen = lock(&self.seen);
        seen.entry(source.to_owned())
            .or_insert_with(|| self.listings.list(source))
            .clone()
    }

    fn renewed(&self, source: &str) -> Option<Vec<String>> {
        self.listings.renewed(source)
    }

    fn trouble(&self, source: &str) -> Option<String> {
        self.listings.trouble(source)
    }

    fn preset(&self, source: &str) -> Option<String> {
        self.listings.preset(source)
    }
}

/// `GET /object_info`. Half a megabyte that rarely changes: whoever has it already only hears that it is still the same.
pub(crate) async fn all(request: Request) -> Answer {
    let app: App = request.app;
    let (text, tag) = blocking(move || {
        let text = app
            .object_info
            .render(&app.engine.registry(), app.engine.listings());
        let tag = tag_of(&text);
        (text, tag)
    })
    .await?;
    let mut answer = if has_tag(&request.head.headers, &tag) == Some(true) {
        response::status(StatusCode::NOT_MODIFIED)
    } else {
        response::json_text(text)
    };
    let headers = answer.headers_mut();
    // Weak, because the same text may be sent packed.
    if let Ok(tag) = HeaderValue::from_str(&format!("W/{tag}")) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// An entity tag that changes with the text.
fn tag_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    format!("\"{}\"", hex::encode(&digest[..16]))
}

/// `GET /object_info/{node_class}`.
pub(crate) async fn one(request: Request) -> Answer {
    let app = request.app.clone();
    let name = request.param(0).to_owned();
    if app.packs.is_starting() && app.engine.registry().get(&name).is_none() {
        pack_host::wait_ready(&app.packs).await;
    }
    let text = blocking(move || {
        let mut out = String::from("{");
        if let Some(class) = app.engine.registry().get(&name) {
            write_live(&mut out, &**class, &**app.engine.listings());
        }
        out.push('}');
        out
    })
    .await?;
    Ok(response::json_text(text))
}
