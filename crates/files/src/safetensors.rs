//! The header of safetensors files: metadata and cover pictures, without touching the weights.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::{Map, Value};

use crate::contain::{contain, contain_file};
use crate::folders::split_extension;
use crate::mime::MediaClass;

/// Header limit for metadata requests.
pub const METADATA_LIMIT: u64 = 1 << 20;
/// Header limit for cover pictures, which are stored in it.
pub const COVER_LIMIT: u64 = 8 << 20;

/// A header could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: header of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        path: PathBuf,
        bytes: u64,
        limit: u64,
    },
    #[error("{path} is not a safetensors file: {what}")]
    Malformed { path: PathBuf, what: String },
}

/// The whole header object.
pub fn header(path: &Path, limit: u64) -> Result<Map<String, Value>, HeaderError> {
    let io = |source| HeaderError::Io {
        path: path.to_path_buf(),
        source,
    };
    let malformed = |what: String| HeaderError::Malformed {
        path: path.to_path_buf(),
        what,
    };
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut length = [0; 8];
    if size < 8 {
        return Err(malformed(format!("it has only {size} bytes")));
    }
    file.read_exact(&mut length).map_err(io)?;
    let bytes = u64::from_le_bytes(length);
    if bytes > limit {
        return Err(HeaderError::TooLarge {
            path: path.to_path_buf(),
            bytes,
            limit,
        });
    }
    if bytes > size - 8 {
        return Err(malformed("the header is cut off".to_owned()));
    }
    let mut text = vec![0; bytes as usize];
    file.read_exact(&mut text).map_err(io)?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(malformed("the header is not an object".to_owned())),
        Err(e) => Err(malformed(e.to_string())),
    }
}

/// The `__metadata__` object, if there is one.
pub fn metadata(path: &Path, limit: u64) -> Result<Option<Map<String, Value>>, HeaderError> {
    match header(path, limit)?.remove("__metadata__") {
        Some(Value::Object(map)) => Ok(Some(map)),
        _ => Ok(None),
    }
}

/// Cover pictures trainers put into the metadata: a JSON array of base64 texts, as text.
fn covers(path: &Path) -> Vec<Vec<u8>> {
    let Ok(Some(map)) = metadata(path, COVER_LIMIT) else {
        return Vec::new();
    };
    let Some(Value::String(text)) = map.get("ssmd_cover_images") else {
        return Vec::new();
    };
    let Ok(Value::Array(items)) = serde_json::from_str(text) else {
        return Vec::new();
    };
    let decode = |v: &Value| {
        let text = v.as_str()?.trim();
        STANDARD
            .decode(text)
            .or_else(|_| STANDARD_NO_PAD.decode(text))
            .ok()
    };
    items.iter().filter_map(decode).collect()
}

/// Where the preview of a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preview {
    File(PathBuf),
    /// Encoded picture from the header.
    Bytes(Vec<u8>),
}

/// The preview of the model `filename` below `root`: a picture beside it (`name.png`, `name.preview.png`), else the
/// first cover picture in its header.
pub fn preview(root: &Path, filename: &str) -> Option<Preview> {
    let path = contain(root, filename).ok()?;
    let folder = path.parent()?;
    let file = path.file_name()?.to_str()?;
    let stem = split_extension(file).0;
    let with_preview = format!("{stem}.preview");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| {
            n.strip_prefix(stem)
                .is_some_and(|rest| rest.starts_with('.'))
        })
        .collect();
    names.sort_unstable();
    let is_picture = |n: &&String| {
        let base = split_extension(n).0;
        MediaClass::of(n) == Some(MediaClass::Image) && (base == stem || base == with_preview)
    };
    let inside = |n: &&String| {
        let path = folder.join(n);
        let name = path.strip_prefix(root).ok().and_then(Path::to_str);
        name.is_some_and(|name| contain_file(root, name).is_ok())
    };
    if let Some(name) = names.iter().filter(is_picture).find(inside) {
        return Some(Preview::File(folder.join(name)));
    }
    let model = names.iter().find(|n| n.ends_with(".safetensors"))?;
    covers(&folder.join(model))
        .into_iter()
        .next()
        .map(Preview::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, header: &str) {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn metadata_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("a.safetensors");
        write(
            &p,
            r#"{"__metadata__":{"z":"1","a":"2"},"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#,
        );
        let map = metadata(&p, METADATA_LIMIT).unwrap().unwrap();
        assert_eq!(map.keys().collect::<Vec<_>>(), ["z", "a"]);
        write(&p, "{}");
        assert!(metadata(&p, METADATA_LIMIT).unwrap().is_none());
    }

    #[test]
    fn bad_headers() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("a.safetensors");
        assert!(matches!(header(&p, 100), Err(HeaderError::Io { .. })));
        for bytes in [
            &b""[..],
            b"1234567",
            b"\x05\0\0\0\0\0\0\0{}",
            b"\x02\0\0\0\0\0\0\0[]",
            b"\x02\0\0\0\0\0\0\0{x",
        ] {
            std::fs::write(&p, bytes).unwrap();
            assert!(
                matches!(header(&p, 100), Err(HeaderError::Malformed { .. })),
                "{bytes:?}"
            );
        }
        std::fs::write(&p, [0xff; 8]).unwrap();
        assert!(matches!(header(&p, 100), Err(HeaderError::TooLarge { .. })));
        // Deep nesting must not exhaust the stack.
        write(&p, &"[".repeat(100_000));
        assert!(header(&p, METADATA_LIMIT).is_err());
    }

    #[test]
    fn previews() {
        let dir = tempfile::tempdir().unwrap();
        let r = dir.path();
        let model = r.join("s/m.v1.safetensors");
        std::fs::create_dir(r.join("s")).unwrap();
        write(
            &model,
            r#"{"__metadata__":{"ssmd_cover_images":"[\"AQI=\", \"Aw==\"]"}}"#,
        );
        let name = "s/m.v1.safetensors";
        assert_eq!(preview(r, name), Some(Preview::Bytes(vec![1, 2])));
        std::fs::write(r.join("s/m.v1.extra.png"), "").unwrap();
        assert_eq!(preview(r, name), Some(Preview::Bytes(vec![1, 2])));
        std::fs::write(r.join("s/m.v1.preview.png"), "").unwrap();
        assert_eq!(
            preview(r, name),
            Some(Preview::File(r.join("s/m.v1.preview.png")))
        );
        std::fs::write(r.join("s/m.v1.jpg"), "").unwrap();
        assert_eq!(preview(r, name), Some(Preview::File(r.join("s/m.v1.jpg"))));
        assert_eq!(preview(r, "s/none.safetensors"), None);
        assert_eq!(preview(&r.join("s"), "../s/m.v1.safetensors"), None);
        assert_eq!(preview(r, "/etc/passwd"), None);
        write(
            &r.join("n.safetensors"),
            r#"{"__metadata__":{"ssmd_cover_images":"nonsense"}}"#,
        );
        assert_eq!(preview(r, "n.safetensors"), None);
    }
}
