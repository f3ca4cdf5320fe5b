//! Safetensors files: an 8-byte length, a JSON header, then the bytes of all tensors without gaps.
//!
//! Files come from strangers, so the header is checked completely before any of it is used.

mod header;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::TensorError;
use crate::positioned::{FilePart, PositionedFile, is_changed};
use crate::tensor::Tensor;

pub use crate::dtype::Dtype;
pub use writer::{Content, Entry, write, write_streamed, write_streamed_to, write_to};

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
    #[error("{path} cannot be written: {problem}")]
    Unwritable { path: PathBuf, problem: Problem },
    #[error("{path} has no tensor {name:?}")]
    Missing { path: PathBuf, name: String },
    #[error(
        "{path} was changed on disk after it was loaded; run the prompt again to load the new file"
    )]
    Changed { path: PathBuf },
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

/// Checks the header of a file of which only the first bytes are at hand: `start` holds at least the length and the
/// header, `size` is the length of the whole file.
pub fn parse_header(start: &[u8], size: u64) -> Result<Header, Problem> {
    let (prefix, rest) = start.split_first_chunk().ok_or(Problem::Truncated)?;
    let length = header_length(*prefix, size)?;
    let text = rest.get(..length as usize).ok_or(Problem::Truncated)?;
    header::parse(text, size - length - 8)
}

fn header_length(prefix: [u8; 8], size: u64) -> Result<u64, Problem> {
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER {
        return Err(Problem::HeaderTooLong { length });
    }
    if length + 8 > size {
        return Err(Problem::Truncated);
    }
    Ok(length)
}

/// An open file; tensors are read when asked for, by any number of threads at once.
#[derive(Debug)]
pub struct SafeTensors {
    path: PathBuf,
    header: Header,
    by_name: BTreeMap<String, usize>,
    data_start: u64,
    file: Arc<PositionedFile>,
}

impl SafeTensors {
    /// Opens a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafeTensorsError> {
        let path = path.as_ref().to_path_buf();
        let read = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof => SafeTensorsError::Malformed {
                path: path.clone(),
                problem: Problem::Truncated,
            },
            _ => SafeTensorsError::Read {
                path: path.clone(),
                source,
            },
        };
        let malformed = |problem| SafeTensorsError::Malformed {
            path: path.clone(),
            problem,
        };
        let file = PositionedFile::open(&path).map_err(read)?;
        let mut prefix = [0; 8];
        file.read_exact_at(&mut prefix, 0).map_err(read)?;
        let length = header_length(prefix, file.len()).map_err(malformed)?;
        let data_start = length + 8;
        let text = file.read_range(8, length).map_err(read)?;
        let header = header::parse(&text, file.len() - data_start).map_err(malformed)?;
        let by_name = header.tensors.iter().enumerate();
        let by_name = by_name.map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self {
            path,
            header,
            by_name,
            data_start,
            file: Arc::new(file),
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
        self.file
            .read_range(self.data_start + info.start, info.end - info.start)
            .map_err(|source| {
                let path = self.path.clone();
                if is_changed(&source) {
                    return SafeTensorsError::Changed { path };
                }
                SafeTensorsError::Read { path, source }
            })
    }

    /// Where a tensor is, to be read later.
    pub(crate) fn part(&self, name: &str) -> Option<FilePart> {
        let info = self.info(name)?;
        let place = (self.data_start + info.start, info.end - info.start);
        FilePart::new(&self.file, (&self.path, name), place)
    }

    /// A tensor, converted to f32 whatever its dtype.
    pub fn tensor(&self, name: &str) -> Result<Tensor, SafeTensorsError> {
        let bytes = self.bytes(name)?;
        let info = self.info(name).expect("bytes found the name");
        let mut tensor =
            Tensor::zeros(info.shape.clone()).map_err(|source| SafeTensorsError::Tensor {
                path: self.path.clone(),
                name: name.to_owned(),
                source,
            })?;
        info.dtype.to_f32_into(&bytes, tensor.data_mut());
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let a = Tensor::ones([4]).unwrap();
        write(&path, &[("a", &a), ("b", &a)], &[]).unwrap();
        let file = SafeTensors::open(&path).unwrap();
        let length = fs::metadata(&path).unwrap().len();
        let handle = fs::OpenOptions::new().write(true).open(&path).unwrap();
        handle.set_len(length - 1).unwrap();
        for name in ["a", "b"] {
            let error = file.tensor(name).unwrap_err();
            assert!(
                matches!(&error, SafeTensorsError::Changed { .. }),
                "{error}"
            );
        }
        handle.set_len(3).unwrap();
        assert!(file.tensor("a").is_err());
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
