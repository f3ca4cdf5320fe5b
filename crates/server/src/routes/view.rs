//! `/view`: files of the input, output and temp directories, as they are or as pictures of one kind.

use std::path::{Path, PathBuf};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use fresco_files::{
    Bands, DirType, Dirs, EncodeError, Frame, ImageError, PathError, Picture, Pixels, PngRows,
    SmallerThan, WebpOptions, annotated, contain, contain_file, decode_reduced, encode_jpeg,
    encode_webp, mime,
};

use crate::App;
use crate::http::blocking::blocking;
use crate::http::body::{Sink, Stored, sink_error};
use crate::http::error::{ApiError, Code};
use crate::http::query::query_struct;
use crate::http::request::Request;
use crate::http::response::{self, disposition};
use crate::http::route::Answer;
use crate::routes::static_files;
use crate::services::pictures::{self, Desk, Encoded, Key};

query_struct! {
    /// Query of `GET /view`.
    ViewQuery {
        filename: Option<String> = "filename", "name, may carry [output], [input] or [temp]";
        kind: Option<String> = "type", "output, input or temp";
        subfolder: String = "subfolder", "folder below the type's";
        preview: Option<String> = "preview", "webp or jpeg, with ;quality; at most 16 million pixels";
        channel: String = "channel", "rgb, a or rgba";
    }
}

/// What is shown of the file.
enum Form {
    Raw,
    Preview { jpeg: bool, quality: u8, rgb: bool },
    Rgb,
    Alpha,
}

impl Form {
    fn read(query: &ViewQuery) -> Self {
        let channel = &query.channel;
        if let Some(preview) = &query.preview {
            let (format, quality) = preview.split_once(';').unwrap_or((preview, ""));
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
    let query = ViewQuery::of(&request);
    let form = Form::read(&query);
    let (dirs, place) = (request.app.dirs.clone(), FileName::read(query)?);
    let path = blocking(move || place.find(&dirs)).await??;
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
    let mut answer = if response::has_tag(request.headers(), &tag) == Some(true) {
        response::status(StatusCode::NOT_MODIFIED)
    } else {
        let key = Key {
            path,
            version: static_files::version(&meta),
            form: form.name(),
        };
        made(&request.app, key, form).await?
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    Ok(answer)
}

/// What was made of a file.
enum Made {
    Small(Encoded),
    /// On disk until it was sent.
    Large(&'static str, Stored),
}

/// The file in another form, as it was made before or made now.
async fn made(app: &App, key: Key, form: Form) -> Answer {
    let known = app.pictures.remembered(&key);
    let made = if let Some(known) = known {
        Made::Small(known)
    } else {
        let shared = app.clone();
        pictures::work(app, move |desk| {
            // Whoever waited for a place may have waited for this very picture.
            if let Some(known) = shared.pictures.remembered(&key) {
                return Ok(Made::Small(known));
            }
            let made = render(&shared, &key.path, &form, desk)?;
            if let Made::Small(encoded) = &made {
                shared.pictures.remember(key, encoded);
            }
            Ok(made)
        })
        .await?
    };
    match made {
        Made::Small(encoded) => Ok(response::bytes(
            StatusCode::OK,
            encoded.kind(),
            encoded.bytes,
        )),
        Made::Large(kind, stored) => {
            static_files::made(stored, HeaderValue::from_static(kind)).await
        }
    }
}

/// A file as the client names it.
struct FileName {
    kind: DirType,
    subfolder: String,
    name: String,
}

impl FileName {
    fn read(query: ViewQuery) -> Result<Self, ApiError> {
        let filename = query.filename.ok_or(ApiError::NOT_FOUND)?;
        let (name, marked) = annotated::split(&filename);
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
            let kind = query.kind.unwrap_or_else(|| "output".to_owned());
            DirType::parse(&kind).ok_or_else(|| bad("the type is not output, input or temp"))?
        };
        Ok(Self {
            kind,
            subfolder: query.subfolder,
            // Directories inside the name are dropped, as clients rely on.
            name: name.rsplit('/').next().unwrap_or(name).to_owned(),
        })
    }

    /// Where the file is. Asks the disk.
    fn find(&self, dirs: &Dirs) -> Result<PathBuf, ApiError> {
        let base = dirs.get(self.kind);
        let Self {
            subfolder, name, ..
        } = self;
        if !subfolder.is_empty() {
            contain(base, subfolder).map_err(|_| ApiError::FORBIDDEN)?;
        }
        if name.is_empty() {
            return Err(ApiError::NOT_FOUND);
        }
        let user = if subfolder.is_empty() {
            name.clone()
        } else {
            format!("{subfolder}/{name}")
        };
        contain_file(base, &user).map_err(|e| match e {
            PathError::Escape { .. } => ApiError::FORBIDDEN,
            _ => ApiError::NOT_FOUND,
        })
    }
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

/// Pixels of a preview. Pictures beyond are shown smaller: no screen has more, and encoders take memory for each.
const PREVIEW_PIXELS: u64 = 1 << 24;
/// Longest edge that the formats of previews can have.
const WEBP_EDGE: u32 = 16_383;
const JPEG_EDGE: u32 = 65_535;
/// What the encoder takes for a pixel: WEBP packs alpha apart, in a way that takes much.
const ENCODING: u64 = 16;
pub(crate) const ENCODING_ALPHA: u64 = 32;

fn render(app: &App, path: &Path, form: &Form, desk: &Desk) -> Result<Made, ApiError> {
    let file = pictures::open(path)?;
    let (kind, stored) = match form {
        Form::Preview { jpeg, quality, rgb } => {
            let (kind, encoded) = preview(file, desk, *jpeg, *quality, *rgb)?;
            if encoded.len() <= pictures::LARGEST {
                let bytes = encoded.into();
                return Ok(Made::Small(Encoded { kind, bytes }));
            }
            // Many clients that read slowly would hold many of these.
            let mut sink = Sink::new(&app.bodies, u64::MAX);
            sink.add(&encoded)?;
            (kind, sink.finish())
        }
        Form::Alpha => ("image/png", channels(app, file, desk, true)?),
        Form::Rgb | Form::Raw => ("image/png", channels(app, file, desk, false)?),
    };
    Ok(match stored.in_memory() {
        Some(bytes) => Made::Small(Encoded {
            kind,
            bytes: bytes.clone(),
        }),
        None => Made::Large(kind, stored),
    })
}

fn preview(
    file: std::fs::File,
    desk: &Desk,
    jpeg: bool,
    quality: u8,
    rgb: bool,
) -> Result<(&'static str, Vec<u8>), ApiError> {
    let wanted = SmallerThan {
        pixels: PREVIEW_PIXELS,
        edge: if jpeg { JPEG_EDGE } else { WEBP_EDGE },
    };
    let frame = decode_reduced(file, &desk.limits, &desk.share.guard(), wanted);
    let frame = frame.map_err(|e| desk.refusal(&e))?;
    let pixels = u64::from(frame.width) * u64::from(frame.height);
    let alpha = !rgb && frame.has_alpha();
    let _encoding = desk.take(pixels * if alpha { ENCODING_ALPHA } else { ENCODING })?;
    let encoded = if jpeg {
        picture(&frame, false, |p| encode_jpeg(p, quality))
    } else {
        let options = WebpOptions {
            quality: f32::from(quality),
            ..WebpOptions::default()
        };
        picture(&frame, alpha, |p| encode_webp(p, options))
    };
    let encoded = encoded.map_err(|e| ApiError::trouble(e.to_string()))?;
    Ok((if jpeg { "image/jpeg" } else { "image/webp" }, encoded))
}

/// Colour or alpha in full size: masks are painted on it. Rows go through as they come.
fn channels(app: &App, file: std::fs::File, desk: &Desk, alpha: bool) -> Result<Stored, ApiError> {
    let refusal = |e: &ImageError| desk.refusal(e);
    let bands = Bands::open(file, &desk.limits, &desk.share.guard());
    let mut bands = bands.map_err(|e| refusal(&e))?;
    let pixels = if alpha { Pixels::Rgba } else { Pixels::Rgb };
    let sink = Sink::new(&app.bodies, u64::MAX);
    let out = PngRows::new(sink, bands.width(), bands.height(), pixels);
    let mut out = out.map_err(sink_error)?;
    while let Some(band) = bands.next_band().map_err(|e| refusal(&e))? {
        let done = if alpha {
            out.rows(&band.black_rgba8())
        } else {
            out.rows(band.rgb8())
        };
        done.map_err(sink_error)?;
    }
    Ok(out.finish().map_err(sink_error)?.finish())
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
