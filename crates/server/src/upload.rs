//! `/upload/image` and `/upload/mask`.

use std::path::{Path, PathBuf};

use axum::http::{StatusCode, header};
use bytes::Bytes;
use fresco_files::folders::split_extension;
use fresco_files::png_write::LEVEL_SAVE;
use fresco_files::upload::{UploadError, store_upload};
use fresco_files::{
    DirType, Dirs, ImageError, Limits as ImageLimits, PathError, Picture, Pixels, WebpOptions,
    annotated, contain_file, decode, encode_jpeg, encode_png, encode_webp,
};
use fresco_graph::{Value, json, map};

use crate::error::{ApiError, Code};
use crate::multipart::{self, Part};
use crate::request::Request;
use crate::response;
use crate::route::{Answer, blocking, rendering};

/// The fields of an upload form.
struct Form {
    data: Bytes,
    filename: String,
    overwrite: bool,
    kind: DirType,
    subfolder: String,
    original: Option<String>,
}

impl Form {
    fn read(parts: Vec<Part>) -> Result<Self, ApiError> {
        let text = |name: &str| {
            let part = parts
                .iter()
                .find(|p| p.name == name && p.filename.is_none())?;
            Some(String::from_utf8_lossy(&part.data).into_owned())
        };
        let overwrite = text("overwrite").is_some_and(|v| v == "true" || v == "1");
        let kind = text("type").unwrap_or_else(|| "input".to_owned());
        let subfolder = text("subfolder").unwrap_or_default();
        let original = text("original_ref");
        let image = parts
            .into_iter()
            .find(|p| p.name == "image")
            .ok_or(ApiError::BAD_REQUEST)?;
        let filename = image
            .filename
            .filter(|f| !f.is_empty())
            .ok_or(ApiError::BAD_REQUEST)?;
        let kind = DirType::parse(&kind).ok_or_else(|| {
            ApiError::coded(
                Code::BadUpload,
                format!("'{kind}' is not input, output or temp"),
            )
        })?;
        Ok(Self {
            data: image.data,
            filename,
            overwrite,
            kind,
            subfolder,
            original,
        })
    }
}

async fn form(request: &mut Request) -> Result<Form, ApiError> {
    let kind = request
        .header(header::CONTENT_TYPE.as_str())
        .unwrap_or_default()
        .to_owned();
    let body = request.bytes().await?;
    let parts = multipart::parse(&kind, &body)
        .map_err(|e| ApiError::coded(Code::BadUpload, e.to_string()))?;
    Form::read(parts)
}

/// `POST /upload/image`.
pub(crate) async fn image(mut request: Request) -> Answer {
    let form = form(&mut request).await?;
    let dirs = request.app.dirs.clone();
    blocking(move || place(&dirs, &form, form.data.to_vec())).await?
}

/// `POST /upload/mask`: the original with the alpha of what was uploaded.
pub(crate) async fn mask(mut request: Request) -> Answer {
    let form = form(&mut request).await?;
    let dirs = request.app.dirs.clone();
    let limits = ImageLimits {
        pixels: request.app.config.limits.pixels,
        ..ImageLimits::default()
    };
    rendering(move || {
        let original = original(&dirs, form.original.as_deref())?;
        let content = combine(&original, &form, &limits)?;
        place(&dirs, &form, content)
    })
    .await?
}

fn place(dirs: &Dirs, form: &Form, content: Vec<u8>) -> Answer {
    let base = dirs.get(form.kind);
    let (folder, name) = (&form.subfolder, &form.filename);
    let stored = store_upload(base, folder, name, form.overwrite, &form.data, |_| content);
    let stored = stored.map_err(|error| match error {
        UploadError::Name { source } => ApiError::coded(Code::BadName, source.to_string()),
        UploadError::NoName { .. } => ApiError::coded(Code::BadName, error.to_string()),
        UploadError::Io { ref source, .. } => {
            ApiError::trouble(format!("cannot write the upload: {source}"))
        }
    })?;
    let body = map! {
        "name" => stored.name,
        "subfolder" => &form.subfolder,
        "type" => form.kind.as_str(),
    };
    Ok(response::json(&body.into()))
}

/// The file a mask belongs to.
fn original(dirs: &Dirs, reference: Option<&str>) -> Result<PathBuf, ApiError> {
    let bad = |text: &str| ApiError::coded(Code::BadUpload, text);
    let reference = reference.ok_or_else(|| bad("'original_ref' is missing"))?;
    let reference =
        json::parse(reference).map_err(|e| bad(&format!("'original_ref' is not JSON: {e}")))?;
    let field = |key: &str| reference.get(key).and_then(Value::as_str);
    let name = field("filename").ok_or_else(|| bad("'original_ref' has no filename"))?;
    let (name, marked) = annotated::split(name);
    if name.is_empty() || name.starts_with('/') || name.contains("..") {
        return Err(bad("'original_ref' has a bad filename"));
    }
    let kind = match marked {
        Some(kind) => kind,
        None => DirType::parse(field("type").unwrap_or("output"))
            .ok_or_else(|| bad("'original_ref' has a bad type"))?,
    };
    let name = name.rsplit('/').next().unwrap_or(name);
    let user = match field("subfolder").unwrap_or("") {
        "" => name.to_owned(),
        folder => format!("{folder}/{name}"),
    };
    contain_file(dirs.get(kind), &user).map_err(|e| match e {
        PathError::Missing { .. } | PathError::NotAFile { .. } => ApiError::NOT_FOUND,
        _ => ApiError::text(StatusCode::FORBIDDEN, e.to_string()),
    })
}

pub(crate) fn image_error(error: &ImageError) -> ApiError {
    match error {
        ImageError::TooManyPixels { .. }
        | ImageError::TooLarge { .. }
        | ImageError::TooManyFrames { .. } => {
            ApiError::coded(Code::TooManyPixels, error.to_string())
        }
        _ => ApiError::trouble(error.to_string()),
    }
}

fn combine(original: &Path, form: &Form, limits: &ImageLimits) -> Result<Vec<u8>, ApiError> {
    let unreadable = |e: ImageError| match &e {
        ImageError::TooManyPixels { .. } => image_error(&e),
        _ => ApiError::coded(Code::BadUpload, e.to_string()),
    };
    let bytes = std::fs::read(original).map_err(|_| ApiError::NOT_FOUND)?;
    let base = decode(&bytes, limits).map_err(unreadable)?;
    let mask = decode(&form.data, limits).map_err(unreadable)?;
    let (frame, alpha) = (base.first(), mask.first());
    if (frame.width, frame.height) != (alpha.width, alpha.height) {
        let text = format!(
            "the mask is {} x {}, the picture {} x {}",
            alpha.width, alpha.height, frame.width, frame.height
        );
        return Err(ApiError::coded(Code::BadUpload, text));
    }
    let mut pixels = frame.rgba8();
    match alpha.alpha8() {
        Some(mask) => pixels
            .chunks_exact_mut(4)
            .zip(mask)
            .for_each(|(p, a)| p[3] = *a),
        None => pixels.chunks_exact_mut(4).for_each(|p| p[3] = 255),
    }
    let picture = Picture::new(frame.width, frame.height, Pixels::Rgba, &pixels);
    let encode = |picture: &Picture| match split_extension(&form.filename)
        .1
        .to_ascii_lowercase()
        .as_str()
    {
        ".jpg" | ".jpeg" => encode_jpeg(picture, 75),
        ".webp" => encode_webp(picture, WebpOptions::default()),
        _ => encode_png(picture, &base.text, LEVEL_SAVE),
    };
    let encoded = picture.and_then(|p| encode(&p));
    encoded.map_err(|e| ApiError::coded(Code::BadUpload, e.to_string()))
}
