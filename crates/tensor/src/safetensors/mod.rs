//! Safetensors files: an 8-byte length, a JSON header, then the bytes of all tensors without gaps.
//!
//! Files come from strangers, so the header is checked completely before any of it is used.

mod header;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::TensorError;
use crate::tensor::Tensor;

pub use crate::dtype::Dtype;

/// Longest header that is read.
pub const MAX_HEADER: u64 = 100_000_000;

#[derive(Debug, thiserror::Error)]
pub enum SafeTensorsError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{path} is not a valid safetensors file: {problem}")]
    Malformed { path: PathBuf, problem: Problem },
    #[error("{path} has no tensor {name:?}")]
    Missing { path: PathBuf, name: String },
    #[error("{path}: tensor {name:?} cannot be used")]
    Tensor {
        path: PathBuf,
        name: String,
        source: TensorError,
    },
}

/// What is wrong with a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the file ends inside the header")]
    Truncated,
    #[error("the header of {length} bytes is too long")]
    HeaderTooLong { length: u64 },
    #[error("the header is not UTF-8")]
    NotUtf8,
    #[error("unexpected text at byte {at} of the header")]
    Syntax { at: usize },
    #[error("the name {name:?} occurs twice")]
    Duplicate { name: String },
    #[error("tensor {name:?} lacks a dtype, shape or position")]
    Incomplete { name: String },
    #[error("tensor {name:?} has the unknown dtype {dtype:?}")]
    Dtype { name: String, dtype: String },
    #[error("tensor {name:?}: its shape and its position do not agree")]
    Size { name: String },
    #[error("tensor {name:?} overlaps another or leaves a gap")]
    Layout { name: String },
    #[error("the tensors need {expected} bytes, the file has {actual}")]
    Length { expected: u64, actual: u64 },
}

/// One entry of the header. `start..end` are bytes after the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub start: u64,
    pub end: u64,
}

/// A header that passed every check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// In the order of the bytes.
    pub tensors: Vec<TensorInfo>,
    /// The text pairs of `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
}

/// An open file; tensors are read when asked for.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    header: Header,
    by_name: BTreeMap<String, usize>,
    data_start: u64,
    file: Mutex<File>,
}

impl SafeTensors {
    /// Opens a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafeTensorsError> {
        let path = path.as_ref().to_path_buf();
        let read = |source| SafeTensorsError::Read {
            path: path.clone(),
            source,
        };
        let malformed = |problem| SafeTensorsError::Malformed {
            path: path.clone(),
            problem,
        };
        let mut file = File::open(&path).map_err(read)?;
        let size = file.metadata().map_err(read)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => malformed(Problem::Truncated),
            _ => read(e),
        })?;
        let length = u64::from_le_bytes(prefix);
        if length > MAX_HEADER {
            return Err(malformed(Problem::HeaderTooLong { length }));
        }
        let data_start = length + 8;
        if data_start > size {
            return Err(malformed(Problem::Truncated));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(read)?;
        let header = header::parse(&text, size - data_start).map_err(malformed)?;
        let by_name = header.tensors.iter().enumerate();
        let by_name = by_name.map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self {
            path,
            header,
            by_name,
            data_start,
            file: Mutex::new(file),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Tensor names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.header.tensors[i])
    }

    /// One value of the metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        let pair = self.header.metadata.iter().find(|(k, _)| k == key)?;
        Some(&pair.1)
    }

    /// The bytes of a tensor as they are in the file.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, SafeTensorsError> {
        let info = self.info(name).ok_or_else(|| SafeTensorsError::Missing {
            path: self.path.clone(),
            name: name.to_owned(),
        })?;
        let mut bytes = vec![0; (info.end - info.start) as usize];
        // A poisoned lock only means that another reader panicked; every read seeks first.
        let mut file = self
            .file
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + info.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| SafeTensorsError::Read {
                path: self.path.clone(),
                source,
            })?;
        Ok(bytes)
    }

    /// A tensor, converted to f32 whatever its dtype.
    pub fn tensor(&self, name: &str) -> Result<Tensor, SafeTensorsError> {
        let bytes = self.bytes(name)?;
        let info = self.info(name).expect("bytes found the name");
        Tensor::from_vec(info.shape.clone(), info.dtype.to_f32(&bytes)).map_err(|source| {
            SafeTensorsError::Tensor {
                path: self.path.clone(),
                name: name.to_owned(),
                source,
            }
        })
    }
}

/// Writes f32 tensors, completely or not at all: the file gets its name only when it is whole.
pub fn write(
    path: impl AsRef<Path>,
    tensors: &[(&str, &Tensor)],
    metadata: &[(String, String)],
) -> Result<(), SafeTensorsError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let path = path.as_ref();
    let failed = |source| SafeTensorsError::Write {
        path: path.to_path_buf(),
        source,
    };
    let mut sorted: Vec<_> = tensors.to_vec();
    sorted.sort_by_key(|(name, _)| *name);
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(SafeTensorsError::Malformed {
            path: path.to_path_buf(),
            problem: Problem::Duplicate {
                name: pair[0].0.to_owned(),
            },
        });
    }
    let text = header::render(&sorted, metadata);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{unique}.tmp", std::process::id()));
    let draft = path.with_file_name(name);
    let result = write_all(&draft, &text, &sorted).and_then(|()| fs::rename(&draft, path));
    if result.is_err() {
        // The first error is the one to report; a draft that was never made cannot be removed.
        let _ = fs::remove_file(&draft);
    }
    result.map_err(failed)
}

/// Writes the content of such a file to anything; the caller sees to its name and its wholeness. Of tensors of the same
/// name a reader will refuse the file.
pub fn write_to(
    out: &mut impl Write,
    tensors: &[(&str, &Tensor)],
    metadata: &[(String, String)],
) -> io::Result<()> {
    let mut sorted: Vec<_> = tensors.to_vec();
    sorted.sort_by_key(|(name, _)| *name);
    write_parts(out, &header::render(&sorted, metadata), &sorted)
}

fn write_parts(out: &mut impl Write, header: &str, tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (_, tensor) in tensors {
        for chunk in tensor.data().chunks(4096) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|v| v.to_le_bytes()).collect();
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

fn write_all(draft: &Path, header: &str, tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    let file = File::create_new(draft)?;
    let mut out = io::BufWriter::new(file);
    write_parts(&mut out, header, tensors)?;
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.latent");
        let a = Tensor::from_fn([1, 2, 3], |i| i as f32 - 2.5).unwrap();
        let empty = Tensor::zeros([0]).unwrap();
        let metadata = [(
            "prompt".to_owned(),
            "{\"a\": \"\\u00e9\n\"}\u{1}é".to_owned(),
        )];
        write(&path, &[("z", &a), ("a\"b", &empty)], &metadata).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        assert_eq!(file.names().collect::<Vec<_>>(), ["a\"b", "z"]);
        assert_eq!(file.tensor("z").unwrap(), a);
        assert_eq!(file.tensor("a\"b").unwrap(), empty);
        assert_eq!(file.header().metadata, metadata);
        assert_eq!(file.metadata("prompt"), Some(&*metadata[0].1));
        assert!(matches!(
            file.tensor("nope"),
            Err(SafeTensorsError::Missing { .. })
        ));
        let bytes = fs::read(&path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(length % 8, 0);
        assert!(bytes[8..].starts_with(b"{\"__metadata__\":{\"prompt\":\""));
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no draft is left"
        );
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let t = Tensor::scalar(1.0);
        let inside = dir.path().join("none").join("x");
        assert!(write(inside, &[("a", &t)], &[]).is_err());
        assert!(write(dir.path().join("x"), &[("a", &t), ("a", &t)], &[]).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[track_caller]
    fn check_file(bytes: &[u8], problem: &Problem) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, bytes).unwrap();
        match SafeTensors::open(&path) {
            Err(SafeTensorsError::Malformed { problem: found, .. }) => assert_eq!(found, *problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn broken_files() {
        check_file(b"", &Problem::Truncated);
        check_file(&[1, 0, 0], &Problem::Truncated);
        check_file(&[9, 0, 0, 0, 0, 0, 0, 0, b'{'], &Problem::Truncated);
        check_file(
            &u64::MAX.to_le_bytes(),
            &Problem::HeaderTooLong { length: u64::MAX },
        );
        check_file(
            &[4, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFE, b'{', b'}'],
            &Problem::NotUtf8,
        );
        check_file(&[0; 8], &Problem::Syntax { at: 0 });
    }
}
