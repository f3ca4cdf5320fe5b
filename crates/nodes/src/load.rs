//! Nodes that read files of the user, and what they share: containment, change tokens, decoding.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fresco_files::MemoryGuard;
use fresco_files::annotated;
use fresco_files::dirs::{DirType, Dirs};
use fresco_files::image::{DecodedImage, Frame, ImageError, Limits, decode_within};
use fresco_graph::{Args, Cx, NodeEntry, NodeError, Value, Verdict, entry};
use fresco_tensor::{Buffer, Tensor, answer_within, with_memory};
use sha2::{Digest, Sha256};

mod folder;
mod image;
mod latent;
mod painter;
mod scene;

pub static NODES: &[NodeEntry] = &[
    entry::<image::LoadImage>(),
    entry::<image::LoadImageMask>(),
    entry::<image::LoadImageOutput>(),
    entry::<image::WebcamCapture>(),
    entry::<painter::Painter>(),
    entry::<latent::LoadLatent>(),
    entry::<folder::LoadImageDataSetFromFolder>(),
    entry::<folder::LoadImageTextDataSetFromFolder>(),
    entry::<scene::Load3D>(),
    entry::<scene::Preview3D>(),
];

/// The path behind a name as the user gave it, inside the named directory (input when none is named).
pub(crate) fn resolve(cx: &Cx, name: &str) -> Result<PathBuf, NodeError> {
    let dirs = cx.resource::<Dirs>()?;
    let path = annotated::path(&dirs, name, DirType::Input)
        .map_err(|e| NodeError::value_error(format!("{name}: {e}")))?;
    refuse_pipe(&path)?;
    Ok(path)
}

/// A pipe or a device would be read without end, and the queue would wait for it.
fn refuse_pipe(path: &Path) -> Result<(), NodeError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => Err(NodeError::value_error(format!(
            "{} is not a file",
            path.display()
        ))),
        _ => Ok(()),
    }
}

fn io_error(path: &Path, error: &std::io::Error) -> NodeError {
    let shown = path.display();
    match error.kind() {
        ErrorKind::NotFound => {
            NodeError::file_not_found(format!("[Errno 2] No such file or directory: '{shown}'"))
        }
        ErrorKind::PermissionDenied => NodeError::failed(
            "PermissionError",
            format!("[Errno 13] Permission denied: '{shown}'"),
        ),
        ErrorKind::IsADirectory => NodeError::failed(
            "IsADirectoryError",
            format!("[Errno 21] Is a directory: '{shown}'"),
        ),
        _ => NodeError::failed("OSError", format!("{shown}: {error}")),
    }
}

/// The bytes of a picture file, unless there are too many of them.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, NodeError> {
    let size = fs::metadata(path).map_err(|e| io_error(path, &e))?.len();
    if size > most as u64 {
        return Err(NodeError::value_error(format!(
            "{} has {size} bytes; more than {most} are not read",
            path.display()
        )));
    }
    with_memory(size, || fs::read(path))?.map_err(|e| io_error(path, &e))
}

fn open_image(cx: &Cx, path: &Path) -> Result<DecodedImage, NodeError> {
    let limits = Limits::default();
    let bytes = read(path, limits.bytes)?;
    // The decoder asks for its memory itself, as soon as it knows the size.
    let memory = cx.resources.get::<MemoryGuard>().unwrap_or_default();
    let decoded = with_memory(0, || decode_within(&bytes, &limits, &memory))?;
    decoded.map_err(|e| {
        let kind = match e {
            ImageError::NoMemory(_) => "MemoryError",
            _ => "PIL.UnidentifiedImageError",
        };
        NodeError::failed(kind, format!("cannot load {}: {e}", path.display()))
    })
}

/// 8-bit values as `shape`, 0..1.
fn unit(shape: &[usize], bytes: &[u8]) -> Result<Tensor, NodeError> {
    let values = Buffer::collect(bytes.iter().map(|b| f32::from(*b) / 255.0))?;
    Ok(Tensor::from_buffer(shape, values)?)
}

/// `(1, h, w, 3)`.
fn rgb(frame: &Frame) -> Result<Tensor, NodeError> {
    let (w, h) = (frame.width as usize, frame.height as usize);
    unit(&[1, h, w, 3], frame.rgb8())
}

/// Bytes of the largest file that is read to see whether it changed.
const LARGEST_READ: u64 = 1 << 30;

/// SHA-256 of the file in hexadecimal: the token by which a change on disk is noticed. Of a very large one, its time.
pub(crate) fn file_token(cx: &Cx, args: &Args, input: &str) -> Result<Value, NodeError> {
    let Some(name) = args.get(input).and_then(Value::as_str) else {
        return Ok(Value::Null);
    };
    let path = resolve(cx, name)?;
    let mut file = fs::File::open(&path).map_err(|e| io_error(&path, &e))?;
    let size = file.metadata().map_err(|e| io_error(&path, &e))?.len();
    if size > LARGEST_READ {
        return file_time(cx, args, input);
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = std::io::Read::read(&mut file, &mut buffer).map_err(|e| io_error(&path, &e))?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
    }
    let mut hex = String::with_capacity(64);
    for byte in hasher.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(hex.into())
}

/// When the file was last changed, in seconds: a token for files too large to be read for one.
pub(crate) fn file_time(cx: &Cx, args: &Args, input: &str) -> Result<Value, NodeError> {
    let Some(name) = args.get(input).and_then(Value::as_str) else {
        return Ok(Value::Null);
    };
    let path = resolve(cx, name)?;
    let data = fs::metadata(&path).map_err(|e| io_error(&path, &e))?;
    let time = data.modified().ok();
    let time = time.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    Ok(time.map_or(Value::Null, |t| t.as_secs_f64().into()))
}

/// How long a disk may take to say whether it has a file before a prompt that names the file is refused.
const ANSWER: Duration = Duration::from_secs(5);

/// Whether the named file exists; a linked input is judged when it has run.
pub(crate) fn file_verdict(cx: &Cx, args: &Args, input: &str, what: &str) -> Verdict {
    let name = match args.get(input) {
        None | Some(Value::Null) => return Verdict::Ok,
        Some(Value::Str(name)) => name.clone(),
        Some(other) => fresco_graph::json::python_text(other).into(),
    };
    let Ok(dirs) = cx.resource::<Dirs>() else {
        return Verdict::Because("this build has no input directory".into());
    };
    let wanted = name.clone();
    match answer_within(ANSWER, move || annotated::exists(&dirs, &wanted)) {
        Some(true) => Verdict::Ok,
        Some(false) => Verdict::Because(format!("Invalid {what} file: {name}")),
        None => Verdict::Because(format!(
            "the disk or the network share that has the {what} file {name} does not answer; see that it answers again"
        )),
    }
}

#[cfg(test)]
mod tests;
