//! Model listings, metadata and previews.

use std::io::Cursor;
use std::sync::Arc;

use axum::http::StatusCode;
use fresco_files::folders::split_extension;
use fresco_files::safetensors::{self, METADATA_LIMIT, Preview};
use fresco_files::{
    ImageError, Picture, Pixels, SmallerThan, WebpOptions, decode_reduced, encode_webp,
};
use fresco_graph::json;
use serde::Serialize;

use crate::App;
use crate::http::blocking::blocking;
use crate::http::error::ApiError;
use crate::http::query::query_struct;
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::routes::static_files;
use crate::routes::view::ENCODING_ALPHA;
use crate::services::pictures::{self, Desk, Encoded, Key};

query_struct! {
    /// Query of requests about one model file.
    ModelFileQuery {
        filename: Option<String> = "filename", "file of that type";
    }
}

/// What one model file is; none of a family that this program knows, and why.
#[derive(Serialize)]
#[serde(untagged)]
enum FileDescription {
    Known {
        family: String,
        parts: Vec<&'static str>,
    },
    Unknown {
        family: (),
        reason: String,
    },
}

#[derive(Serialize)]
struct TypeFolders {
    name: String,
    folders: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BrowseEntry {
    name: String,
    path_index: usize,
    modified: Option<f64>,
    created: Option<f64>,
    size: Option<u64>,
}

/// Paths as clients read them.
pub(crate) fn path_texts(list: &[std::path::PathBuf]) -> Vec<String> {
    let paths = list.iter();
    paths.map(|p| p.to_string_lossy().into_owned()).collect()
}

/// File names of a type, as the inputs of nodes offer them: a disk that does not answer is not waited for longer than there.
async fn file_names(app: &App, folder: &str) -> Result<Vec<String>, ApiError> {
    let listings = Arc::clone(app.engine.listings());
    let source = format!("models/{folder}");
    blocking(move || listings.list(&source)).await
}

/// `GET /embeddings`.
pub(crate) async fn embeddings(request: Request) -> Answer {
    let names = file_names(&request.app, "embeddings").await?;
    let names = names.iter().map(|name| split_extension(name).0);
    Ok(response::typed(&names.collect::<Vec<_>>()))
}

/// `GET /models`.
pub(crate) async fn types(request: Request) -> Answer {
    Ok(response::typed(&request.app.folders.types()))
}

/// `GET /models/{folder}`; legacy names are not folders here.
pub(crate) async fn list(request: Request) -> Answer {
    let folder = request.param(0);
    if !request.app.folders.is_type(folder) {
        return Err(ApiError::NOT_FOUND);
    }
    let names = if request.app.folders.of_folders(folder) {
        Vec::new()
    } else {
        file_names(&request.app, folder).await?
    };
    Ok(response::typed(&names))
}

/// `GET /fresco/models/{folder}`: what one file is. Only its names are read.
pub(crate) async fn describe(request: Request) -> Answer {
    let app = request.app.clone();
    let folder = request.param(0).to_owned();
    let name = ModelFileQuery::of(&request)
        .filename
        .ok_or(ApiError::BAD_REQUEST)?;
    let found = blocking(move || {
        let path = app.folders.full_path(&folder, &name)?;
        Some((app.describe_model)(&path))
    })
    .await?
    .ok_or(ApiError::NOT_FOUND)?;
    Ok(response::typed(&match found {
        Ok(model) => {
            let parts = [
                ("diffusion", true),
                ("text", model.has_text),
                ("vae", model.has_vae),
            ];
            let parts = parts.into_iter().filter(|(_, has)| *has);
            FileDescription::Known {
                family: model.family,
                parts: parts.map(|(part, _)| part).collect(),
            }
        }
        Err(reason) => FileDescription::Unknown { family: (), reason },
    }))
}

/// `GET /view_metadata/{folder_name}`.
pub(crate) async fn metadata(request: Request) -> Answer {
    let folders = request.app.folders.clone();
    let folder = request.param(0).to_owned();
    let name = ModelFileQuery::of(&request)
        .filename
        .filter(|n| n.ends_with(".safetensors"))
        .ok_or(ApiError::NOT_FOUND)?;
    let text = blocking(move || {
        let path = folders.full_path(&folder, &name)?;
        let entries = match safetensors::metadata(&path, METADATA_LIMIT) {
            Ok(entries) => entries?,
            Err(error) => {
                tracing::debug!(%error, "no metadata");
                return None;
            }
        };
        let mut out = String::from("{");
        for (i, (key, value)) in entries.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            json::write_string(&mut out, key, false);
            out.push(':');
            out.push_str(&value.to_string());
        }
        out.push('}');
        Some(out)
    })
    .await?;
    text.map(response::json_text).ok_or(ApiError::NOT_FOUND)
}

/// `GET /experiment/models`.
pub(crate) async fn browse_types(request: Request) -> Answer {
    let entry = |(name, roots): (String, Vec<std::path::PathBuf>)| TypeFolders {
        name,
        folders: path_texts(&roots),
    };
    let types = request.app.folders.browsable().into_iter();
    Ok(response::typed(&types.map(entry).collect::<Vec<_>>()))
}

/// `GET /experiment/models/{folder}`.
pub(crate) async fn browse(request: Request) -> Answer {
    let folders = request.app.folders.clone();
    let folder = request.param(0).to_owned();
    let files = blocking(move || folders.browse(&folder))
        .await?
        .ok_or(ApiError::NOT_FOUND)?;
    let entries = files.into_iter().map(|file| BrowseEntry {
        name: file.name,
        path_index: file.path_index,
        modified: file.facts.map(|f| f.modified),
        created: file.facts.map(|f| f.created),
        size: file.facts.map(|f| f.size),
    });
    Ok(response::typed(&entries.collect::<Vec<_>>()))
}

/// `GET /experiment/models/preview/{folder}/{path_index}/{filename:.*}`.
pub(crate) async fn preview(request: Request) -> Answer {
    let app = request.app.clone();
    let folder = request.param(0).to_owned();
    let index: usize = request.param(1).parse().map_err(|_| ApiError::NOT_FOUND)?;
    let name = request.param(2).to_owned();
    if !app.folders.is_type(&folder) {
        return Err(ApiError::NOT_FOUND);
    }
    let shared = app.clone();
    let picture = pictures::work(&app, move |desk| {
        cover(&shared, desk, &folder, index, &name)
    });
    let picture = picture.await?;
    Ok(response::bytes(
        StatusCode::OK,
        picture.kind(),
        picture.bytes,
    ))
}

/// Pixels of a preview: it is shown on a card.
const COVER: SmallerThan = SmallerThan {
    pixels: 1 << 22,
    edge: 8192,
};

fn cover(
    app: &App,
    desk: &Desk,
    folder: &str,
    index: usize,
    name: &str,
) -> Result<Encoded, ApiError> {
    let roots = app.folders.roots(folder).unwrap_or_default();
    let root = roots.get(index).ok_or(ApiError::NOT_FOUND)?;
    let found = safetensors::preview(root, name).ok_or(ApiError::NOT_FOUND)?;
    let guard = desk.share.guard();
    let (key, frame) = match found {
        Preview::File(path) => {
            let file = pictures::open(&path)?;
            let meta = file.metadata().map_err(|_| ApiError::NOT_FOUND)?;
            let key = Key {
                path,
                version: static_files::version(&meta),
                form: "cover".to_owned(),
            };
            if let Some(known) = app.pictures.remembered(&key) {
                return Ok(known);
            }
            (Some(key), decode_reduced(file, &desk.limits, &guard, COVER))
        }
        Preview::Bytes(bytes) => (
            None,
            decode_reduced(Cursor::new(bytes), &desk.limits, &guard, COVER),
        ),
    };
    let frame = frame.map_err(|e| match e {
        ImageError::NoMemory(_) | ImageError::TooSlow => desk.refusal(&e),
        _ => ApiError::NOT_FOUND,
    })?;
    let _encoding = desk.take(u64::from(frame.width) * u64::from(frame.height) * ENCODING_ALPHA)?;
    let (pixels, data) = if frame.has_alpha() {
        (Pixels::Rgba, frame.rgba8())
    } else {
        (Pixels::Rgb, frame.rgb8().to_vec())
    };
    let picture = Picture::new(frame.width, frame.height, pixels, &data);
    let encoded = picture.and_then(|p| encode_webp(&p, WebpOptions::default()));
    let encoded = Encoded {
        kind: "image/webp",
        bytes: encoded.map_err(|_| ApiError::NOT_FOUND)?.into(),
    };
    if let Some(key) = key {
        app.pictures.remember(key, &encoded);
    }
    Ok(encoded)
}
