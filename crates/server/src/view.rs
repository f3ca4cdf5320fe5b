//! `/view`: files of the input, output and temp directories, as they are or as pictures of one kind.

use std::path::{Path, PathBuf};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use fresco_files::png_write::LEVEL_PREVIEW;
use fresco_files::{
    DirType, Dirs, EncodeError, Frame, Limits as ImageLimits, PathError, Picture, Pixels,
    WebpOptions, annotated, contain, contain_file, decode, encode_jpeg, encode_png, encode_webp,
    mime,
};

use crate::error::{ApiError, Code};
use crate::request::Request;
use crate::response::{self, disposition};
use crate::route::{Answer, rendering};
use crate::static_files;
use crate::upload::image_error;

/// What is shown of the file.
enum Form {
    Raw,
    Preview { jpeg: bool, quality: u8, rgb: bool },
    Rgb,
    Alpha,
}

impl Form {
    fn read(request: &Request) -> Self {
        let channel = request.query("channel").unwrap_or_default();
        if let Some(preview) = request.query("preview") {
            let (format, quality) = preview.split_once(';').unwrap_or((&preview, ""));
            let last = preview.rsplit(';').next().unwrap_or(quality);
            let digits = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit());
            let quality = if digits {
                last.parse::<u8>().unwrap_or(100).min(100)
            } else {
                90
            };
            let jpeg = format == "jpeg" && !channel.contains('a');
            return Self::Preview {
                jpeg,
                quality,
                rgb: jpeg || channel == "rgb",
            };
        }
        match channel.as_str() {
            "rgb" => Self::Rgb,
            "a" => Self::Alpha,
            _ => Self::Raw,
        }
    }

    /// Tells the forms of a file apart.
    fn name(&self) -> String {
        match self {
            Self::Raw => "raw".to_owned(),
            Self::Rgb => "rgb".to_owned(),
            Self::Alpha => "a".to_owned(),
            Self::Preview { jpeg, quality, rgb } => {
                let kind = if *jpeg { "jpeg" } else { "webp" };
                let channels = if *rgb { "rgb" } else { "rgba" };
                format!("{kind}-{quality}-{channels}")
            }
        }
    }
}

/// `GET /view`.
pub(crate) async fn get(request: Request) -> Answer {
    let filename = request.query("filename").ok_or(ApiError::NOT_FOUND)?;
    let form = Form::read(&request);
    let path = find(&request, &filename)?;
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut answer = match form {
        Form::Raw => static_files::file(&path, request.headers(), mime::view_type(&name)).await?,
        form => rendered(&request, path, form).await?,
    };
    seal(&mut answer, &name);
    // The name of a deleted file is given to a new one; without this the old picture might be shown in its place.
    answer
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// The file in another form; a client that has it already is only told so.
async fn rendered(request: &Request, path: PathBuf, form: Form) -> Answer {
    let meta = tokio::fs::metadata(&path).await;
    let meta = meta.map_err(|_| ApiError::NOT_FOUND)?;
    let tag = format!("\"{}-{}\"", static_files::version(&meta), form.name());
    let mut answer = if static_files::has_tag(request.headers(), &tag) == Some(true) {
        response::status(StatusCode::NOT_MODIFIED)
    } else {
        let limits = ImageLimits {
            pixels: request.app.config.limits.pixels,
            ..ImageLimits::default()
        };
        rendering(move || render(&path, &form, &limits)).await??
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    Ok(answer)
}

fn find(request: &Request, filename: &str) -> Result<PathBuf, ApiError> {
    let dirs: &Dirs = &request.app.dirs;
    let (name, marked) = annotated::split(filename);
    let bad = |text: &str| ApiError::coded(Code::BadName, text);
    if name.is_empty() {
        return Err(bad("the filename is empty"));
    }
    if name.starts_with('/') || name.contains("..") {
        return Err(bad("the filename starts with / or contains .."));
    }
    let kind = if let Some(kind) = marked {
        kind
    } else {
        let kind = request.query("type").unwrap_or_else(|| "output".to_owned());
        DirType::parse(&kind).ok_or_else(|| bad("the type is not output, input or temp"))?
    };
    let base = dirs.get(kind);
    let subfolder = request.query("subfolder").unwrap_or_default();
    if !subfolder.is_empty() {
        contain(base, &subfolder).map_err(|_| ApiError::FORBIDDEN)?;
    }
    // Directories inside the name are dropped, as clients rely on.
    let name = name.rsplit('/').next().unwrap_or(name);
    if name.is_empty() {
        return Err(ApiError::NOT_FOUND);
    }
    let user = if subfolder.is_empty() {
        name.to_owned()
    } else {
        format!("{subfolder}/{name}")
    };
    contain_file(base, &user).map_err(|e| match e {
        PathError::Escape { .. } => ApiError::FORBIDDEN,
        _ => ApiError::NOT_FOUND,
    })
}

/// Headers for content that somebody else made: it may be shown, but not act. What a browser would run or lay out as a
/// page is offered for download; pictures, drawings included, still work in pages.
pub(crate) fn seal(answer: &mut Response, name: &str) {
    let kind = mime::media_type(name);
    let runs = kind != mime::view_type(name) || kind == "application/xml" || kind == "text/xml";
    let policy = if kind == "image/svg+xml" {
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    } else {
        "sandbox"
    };
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(policy),
    );
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition(runs.then_some("attachment"), name),
    );
}

fn render(path: &Path, form: &Form, limits: &ImageLimits) -> Answer {
    let bytes = std::fs::read(path).map_err(|_| ApiError::NOT_FOUND)?;
    let decoded = decode(&bytes, limits).map_err(|e| image_error(&e))?;
    let frame = decoded.first();
    let (kind, encoded) = match form {
        Form::Preview {
            jpeg: true,
            quality,
            ..
        } => (
            "image/jpeg",
            picture(frame, false, |p| encode_jpeg(p, *quality)),
        ),
        Form::Preview { quality, rgb, .. } => {
            let options = WebpOptions {
                quality: f32::from(*quality),
                ..WebpOptions::default()
            };
            (
                "image/webp",
                picture(frame, !rgb && frame.has_alpha(), |p| {
                    encode_webp(p, options)
                }),
            )
        }
        Form::Alpha => {
            let mut pixels = frame.rgba8();
            pixels.chunks_exact_mut(4).for_each(|p| p[..3].fill(0));
            let picture = Picture::new(frame.width, frame.height, Pixels::Rgba, &pixels);
            (
                "image/png",
                picture.and_then(|p| encode_png(&p, &[], LEVEL_PREVIEW)),
            )
        }
        Form::Rgb | Form::Raw => (
            "image/png",
            picture(frame, false, |p| encode_png(p, &[], LEVEL_PREVIEW)),
        ),
    };
    let encoded = encoded.map_err(|e| ApiError::trouble(e.to_string()))?;
    Ok(response::bytes(
        StatusCode::OK,
        HeaderValue::from_static(kind),
        encoded,
    ))
}

fn picture(
    frame: &Frame,
    alpha: bool,
    encode: impl FnOnce(&Picture) -> Result<Vec<u8>, EncodeError>,
) -> Result<Vec<u8>, EncodeError> {
    if alpha {
        let pixels = frame.rgba8();
        encode(&Picture::new(
            frame.width,
            frame.height,
            Pixels::Rgba,
            &pixels,
        )?)
    } else {
        encode(&Picture::new(
            frame.width,
            frame.height,
            Pixels::Rgb,
            frame.rgb8(),
        )?)
    }
}
