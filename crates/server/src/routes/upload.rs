//! `/upload/image` and `/upload/mask`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use axum::http::{StatusCode, header};
use fresco_files::folders::split_extension;
use fresco_files::png_write::LEVEL_SAVE;
use fresco_files::upload::{UploadError, store_upload};
use fresco_files::{
    Content, DirType, Dirs, ImageError, Limits as ImageLimits, PathError, Picture, Pixels,
    WebpOptions, annotated, contain_file, decode_within, encode_jpeg, encode_png, encode_webp,
};
use fresco_graph::{Value, json};
use serde::Serialize;

use crate::http::blocking::blocking;
use crate::http::body::{BodyPart, Stored};
use crate::http::error::{ApiError, Code, disk_error};
use crate::http::multipart::{self, FileSource, MultipartError, Section};
use crate::http::request::Request;
use crate::http::response;
use crate::http::route::Answer;
use crate::services::pictures::{self, Desk};

/// Longest text field of a form.
const MAX_FIELD: u64 = 64 << 10;

/// The fields of an upload form.
struct Form {
    data: BodyPart,
    filename: String,
    overwrite: bool,
    kind: DirType,
    subfolder: String,
    original: Option<String>,
    /// What `data` is a part of.
    _body: Stored,
}

impl Form {
    fn read(body: Stored, content_type: &str) -> Result<Self, ApiError> {
        let bad = |text: String| ApiError::coded(Code::BadUpload, text);
        let sections = match body.whole() {
            BodyPart::Memory(bytes) => multipart::sections(content_type, &mut &bytes[..]),
            BodyPart::Disk(part) => {
                multipart::sections(content_type, &mut FileSource::new(&*part.file))
            }
        };
        let sections = sections.map_err(|e| match e {
            MultipartError::Io(e) => disk_error("read the request body back", &e),
            e => bad(e.to_string()),
        })?;
        let text = |name: &str| -> Result<Option<String>, ApiError> {
            let field = |s: &&Section| s.name == name && s.filename.is_none();
            let Some(field) = sections.iter().find(field) else {
                return Ok(None);
            };
            if field.size > MAX_FIELD {
                return Err(bad(format!(
                    "the field '{name}' is longer than {MAX_FIELD} bytes"
                )));
            }
            let bytes = body.part(field.start, field.size).load();
            let bytes = bytes.map_err(|e| disk_error("read the request body back", &e))?;
            Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
        };
        let overwrite = text("overwrite")?.is_some_and(|v| v == "true" || v == "1");
        let kind = text("type")?.unwrap_or_else(|| "input".to_owned());
        let subfolder = text("subfolder")?.unwrap_or_default();
        let original = text("original_ref")?;
        let image = sections
            .iter()
            .find(|s| s.name == "image")
            .ok_or(ApiError::BAD_REQUEST)?;
        let filename = image
            .filename
            .clone()
            .filter(|f| !f.is_empty())
            .ok_or(ApiError::BAD_REQUEST)?;
        let kind = DirType::parse(&kind)
            .ok_or_else(|| bad(format!("'{kind}' is not input, output or temp")))?;
        Ok(Self {
            data: body.part(image.start, image.size),
            filename,
            overwrite,
            kind,
            subfolder,
            original,
            _body: body,
        })
    }
}

async fn form(request: &mut Request) -> Result<Form, ApiError> {
    let kind = request
        .header(header::CONTENT_TYPE.as_str())
        .unwrap_or_default()
        .to_owned();
    let body = request.body().await?;
    blocking(move || Form::read(body, &kind)).await?
}

/// `POST /upload/image`.
pub(crate) async fn image(mut request: Request) -> Answer {
    let form = form(&mut request).await?;
    let dirs = request.app.dirs.clone();
    blocking(move || place(&dirs, &form, &form.data)).await?
}

/// `POST /upload/mask`: the original with the alpha of what was uploaded.
pub(crate) async fn mask(mut request: Request) -> Answer {
    let form = form(&mut request).await?;
    let dirs = request.app.dirs.clone();
    pictures::work(&request.app, move |desk| {
        let original = original(&dirs, form.original.as_deref())?;
        let content = combine(&original, &form, desk)?;
        place(&dirs, &form, &&content[..])
    })
    .await
}

fn place(dirs: &Dirs, form: &Form, content: &dyn Content) -> Answer {
    let base = dirs.get(form.kind);
    let (folder, name) = (&form.subfolder, &form.filename);
    let stored = store_upload(base, folder, name, form.overwrite, &form.data, content);
    let stored = stored.map_err(|error| match error {
        UploadError::Name {
            source: PathError::Io { ref source, .. },
        } => disk_error("make the folder for the upload", source),
        UploadError::Name { source } => ApiError::coded(Code::BadName, source.to_string()),
        UploadError::NoName { .. } => ApiError::coded(Code::BadName, error.to_string()),
        UploadError::Io { ref source, .. } => disk_error("store the upload", source),
    })?;
    Ok(response::typed(&UploadAnswer {
        name: stored.name,
        subfolder: &form.subfolder,
        kind: form.kind.as_str(),
    }))
}

/// Where a file was stored.
#[derive(Serialize)]
struct UploadAnswer<'a> {
    name: String,
    subfolder: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
}

/// The file a mask belongs to.
fn original(dirs: &Dirs, reference: Option<&str>) -> Result<PathBuf, ApiError> {
    let bad = |text: &str| ApiError::coded(Code::BadUpload, text);
    let reference = reference.ok_or_else(|| bad("'original_ref' is missing"))?;
    let reference = json::parse_within(reference, json::FOREIGN_BYTES)
        .map_err(|e| bad(&format!("'original_ref' is not JSON: {e}")))?;
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

/// What combining and encoding take for a pixel: both in one, the filtered rows, and what they are packed to.
const COMBINING: u64 = 12;

fn combine(original: &Path, form: &Form, desk: &Desk) -> Result<Vec<u8>, ApiError> {
    let unreadable = |e: ImageError| match &e {
        ImageError::Corrupt { .. }
        | ImageError::Unsupported { .. }
        | ImageError::UnknownFormat
        | ImageError::NotRead { .. }
        | ImageError::Empty => ApiError::coded(Code::BadUpload, e.to_string()),
        _ => desk.refusal(&e),
    };
    let limits = ImageLimits {
        first_only: true,
        ..desk.limits
    };
    let guard = desk.share.guard();
    let mut file = pictures::open(original)?;
    let size = file.metadata().map_err(|_| ApiError::NOT_FOUND)?.len();
    let _files = desk.take(size + form.data.size())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|_| ApiError::NOT_FOUND)?;
    let base = decode_within(&bytes, &limits, &guard).map_err(unreadable)?;
    let data = form.data.load();
    let data = data.map_err(|e| disk_error("read the request body back", &e))?;
    let mask = decode_within(&data, &limits, &guard).map_err(unreadable)?;
    let (frame, alpha) = (base.first(), mask.first());
    if (frame.width, frame.height) != (alpha.width, alpha.height) {
        let text = format!(
            "the mask is {} x {}, the picture {} x {}",
            alpha.width, alpha.height, frame.width, frame.height
        );
        return Err(ApiError::coded(Code::BadUpload, text));
    }
    let size = u64::from(frame.width) * u64::from(frame.height);
    let _combining = desk.take(size * COMBINING)?;
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
