//! Weight files: names, shapes and formats at once, bytes when asked for.

pub(crate) mod block_encode;
pub(crate) mod blocks;
pub mod gguf;
mod gguf_writer;
mod in_memory;
mod input;
pub(crate) mod iq;
mod iq_tables;
mod markers;
pub mod pickle;
mod quantised;
mod quantised_parts;
mod recast;
mod shards;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::error::TensorError;
use crate::positioned::is_changed;
use crate::readers::on_reader_thread;
use crate::safetensors::{SafeTensors, SafeTensorsError};
use crate::stored::Stored;

pub use gguf::{Gguf, GgufError};
pub use gguf_writer::{GgufWriteError, has_gguf_kind, write_gguf};
pub use in_memory::InMemory;
pub use pickle::{PickleError, PickleWeights};
pub use quantised::{Quantised, with_formats, with_fp8_products};
pub use quantised_parts::quantised_parts;
pub use recast::Recast;
pub use shards::shards_of;

/// Why a weight file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Pickle(#[from] PickleError),
    #[error("cannot open {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path} is damaged or is not a model file: {looks}")]
    Unknown { path: PathBuf, looks: &'static str },
    #[error("{path}: tensor {name:?} cannot be read")]
    Read {
        path: PathBuf,
        name: String,
        source: io::Error,
    },
    #[error("{path}: tensor {name:?} has the number format {format}, which is not supported")]
    Format {
        path: PathBuf,
        name: String,
        format: String,
    },
    #[error(
        "{path} was changed on disk after it was loaded; run the prompt again to load the new file"
    )]
    Changed { path: PathBuf },
    #[error("{path}: quantised tensor {name:?} cannot be used: {reason}")]
    Quantised {
        path: PathBuf,
        name: String,
        reason: String,
    },
    #[error("{path} has no tensor {name:?}")]
    Missing { path: PathBuf, name: String },
    #[error("{path}: tensor {name:?} cannot be used")]
    Tensor {
        path: PathBuf,
        name: String,
        source: TensorError,
    },
}

impl WeightError {
    /// Of a tensor that was inside the file when it was opened.
    fn read(path: &Path, name: &str, source: io::Error) -> Self {
        let (path, name) = (path.to_path_buf(), name.to_owned());
        if is_changed(&source) {
            return Self::Changed { path };
        }
        Self::Read { path, name, source }
    }
}

/// What a file says about one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightInfo {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

/// An open file of named tensors.
pub trait WeightFile: Send + Sync {
    fn path(&self) -> &Path;

    /// In alphabetical order.
    fn names(&self) -> Vec<String>;

    fn info(&self, name: &str) -> Option<WeightInfo>;

    fn read(&self, name: &str) -> Result<Stored, WeightError>;

    /// A tensor whose bytes are read when they are first wanted: for GPUs, which get them without a stop in main memory. None
    /// where they have to be read for it to be known.
    fn later(&self, _name: &str) -> Option<Stored> {
        None
    }

    /// Several tensors at once, read by all threads; answers come in the order of the names.
    fn read_many(&self, names: &[&str]) -> Vec<Result<Stored, WeightError>> {
        names.par_iter().map(|name| self.read(name)).collect()
    }

    /// Text pairs that came with the file.
    fn metadata(&self) -> &[(String, String)];

    /// What is in a small file beside this one: `model.NAME` beside `model.safetensors`, else `NAME`. None if there is
    /// neither.
    fn beside(&self, name: &str) -> Result<Option<Vec<u8>>, WeightError> {
        read_beside(self.path(), name)
    }
}

/// Bytes that a file beside a weight file may have.
const MAX_BESIDE: u64 = 64 << 20;

fn read_beside(path: &Path, name: &str) -> Result<Option<Vec<u8>>, WeightError> {
    let places = [path.with_extension(name), path.with_file_name(name)];
    let read = on_reader_thread(move || read_first(places));
    read.map_err(|source| WeightError::Open {
        path: path.to_path_buf(),
        source,
    })?
}

/// The first of these files that is there.
fn read_first(places: [PathBuf; 2]) -> Result<Option<Vec<u8>>, WeightError> {
    for path in places {
        let read = || -> io::Result<Vec<u8>> {
            let mut data = Vec::new();
            File::open(&path)?
                .take(MAX_BESIDE + 1)
                .read_to_end(&mut data)?;
            Ok(data)
        };
        match read() {
            Ok(data) if data.len() as u64 <= MAX_BESIDE => return Ok(Some(data)),
            Ok(_) => {
                let looks = "it is far too large for what its name says";
                return Err(WeightError::Unknown { path, looks });
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(WeightError::Open { path, source }),
        }
    }
    Ok(None)
}

impl WeightFile for SafeTensors {
    fn path(&self) -> &Path {
        Self::path(self)
    }

    fn names(&self) -> Vec<String> {
        Self::names(self).map(str::to_owned).collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        Self::info(self, name).map(|info| WeightInfo {
            dtype: info.dtype,
            shape: info.shape.clone(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let bytes = self.bytes(name)?;
        let info = Self::info(self, name).expect("bytes found the name");
        Stored::new(info.dtype, info.shape.clone(), bytes).map_err(|source| WeightError::Tensor {
            path: Self::path(self).to_path_buf(),
            name: name.to_owned(),
            source,
        })
    }

    fn later(&self, name: &str) -> Option<Stored> {
        let info = Self::info(self, name)?;
        Stored::later(info.dtype, info.shape.clone(), self.part(name)?).ok()
    }

    fn metadata(&self) -> &[(String, String)] {
        &self.header().metadata
    }
}

/// Opens a weight file, or all files of a model that is in several, whichever of them is named. Quantised layers are one tensor
/// each, whatever they are made of in the file.
pub fn open_weights(path: impl AsRef<Path>) -> Result<Arc<dyn WeightFile>, WeightError> {
    let path = path.as_ref().to_path_buf();
    let unopened = path.clone();
    let open = move || match shards_of(&path).as_slice() {
        [_] => with_formats(open_one(&path)?),
        shards => with_formats(Arc::new(shards::Shards::open(&path, shards)?)),
    };
    on_reader_thread(open).map_err(|source| WeightError::Open {
        path: unopened,
        source,
    })?
}

/// Opens one file. Its kind is told by its content: names lie, and a renamed file is still a good file.
fn open_one(path: &Path) -> Result<Arc<dyn WeightFile>, WeightError> {
    let unknown = |looks| WeightError::Unknown {
        path: path.to_path_buf(),
        looks,
    };
    let start = start_of(path).map_err(|source| WeightError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(match &start[..] {
        [b'G', b'G', b'U', b'F', ..] => Arc::new(Gguf::open(path)?),
        // Before torch: the length of a header may begin like a pickle.
        [_, _, _, _, 0, 0, 0, 0, b'{', ..] => Arc::new(SafeTensors::open(path)?),
        [b'P', b'K', 3, 4, ..] | [0x80, 2..=5, ..] => Arc::new(PickleWeights::open(path)?),
        [_, _, _, _, _, _, _, _, b'{', ..] => Arc::new(SafeTensors::open(path)?),
        [] => return Err(unknown("it is empty")),
        [b'<', ..] => return Err(unknown("it looks like a web page, not a download")),
        text if text.starts_with(b"version https://git-lfs") => {
            return Err(unknown(
                "it only points to a file that git-lfs did not fetch",
            ));
        }
        zeros if zeros.iter().all(|&b| b == 0) => {
            return Err(unknown("it starts with zeros, like an unfinished download"));
        }
        _ => return Err(unknown("neither safetensors nor GGUF nor a file of torch")),
    })
}

/// The first bytes, as many as there are.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(32).read_to_end(&mut start)?;
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn kinds_are_told_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.ckpt");
        let a = Tensor::ones([2]).unwrap();
        crate::safetensors::write(&path, &[("a", &a)], &[]).unwrap();
        assert_eq!(open_weights(&path).unwrap().names(), ["a"]);
        // The length of a header may look like the start of a pickle.
        let looks = |length: usize| {
            let long = [("k".to_owned(), "x".repeat(length))];
            crate::safetensors::write(&path, &[("a", &a)], &long).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            bytes[0] == 0x80 && (2..=5).contains(&bytes[1])
        };
        assert!((500..1500).step_by(8).any(looks));
        assert_eq!(open_weights(&path).unwrap().names(), ["a"]);
        let mut zeros = vec![0; 4096];
        for (content, part) in [
            (&b""[..], "it is empty"),
            (b"<!DOCTYPE html><html>", "web page"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                "git-lfs",
            ),
            (&*zeros, "zeros"),
            (b"hello, this is text", "neither"),
            (b"GGUF", "it ends inside its header"),
            (b"PK\x03\x04", "it ends early"),
            (&[0xFF, 0, 0, 0, 0, 0, 0, 0, b'{'], "ends inside the header"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = open_weights(&path).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.contains("model.ckpt"), "{error}");
        }
        zeros[0] = 1;
        std::fs::write(&path, &zeros).unwrap();
        assert!(open_weights(&path).is_err());
        assert!(open_weights(dir.path()).is_err());
        let none = open_weights(dir.path().join("none")).err().unwrap();
        assert!(matches!(none, WeightError::Open { .. }), "{none}");
    }

    #[test]
    fn what_is_read_later_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let a = Tensor::from_fn([300, 7], |i| i as f32 * 0.5).unwrap();
        crate::safetensors::write(&path, &[("a", &a), ("b", &a)], &[]).unwrap();
        let file = open_weights(&path).unwrap();
        let later = file.later("a").unwrap();
        assert_eq!((later.byte_len(), later.len()), (8400, 2100));
        let shared = later.clone();
        let piece = &shared.in_file().unwrap().codes()[0];
        let part = piece.fill(40, vec![0; 100], 0..100).unwrap();
        assert_eq!(later, file.read("a").unwrap());
        assert_eq!(part, later.bytes()[40..140]);
        assert!(shared.in_file().is_none());
        assert!(file.later("none").is_none());
        let late = file.later("b").unwrap();
        std::fs::write(&path, b"something else").unwrap();
        let error = late.in_file().unwrap().read().unwrap_err().to_string();
        assert!(error.contains("changed on disk"), "{error}");
        let part = late.in_file().unwrap().codes()[0].fill(0, vec![0; 64], 0..64);
        assert!(part.unwrap_err().to_string().contains("changed on disk"));
        // What was read before is there.
        assert_eq!(later.to_f32().unwrap(), a);
    }

    #[test]
    fn planes_of_a_tensor_that_is_read_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        // More than one thread's share: 2.4 MB.
        let a = Tensor::from_fn([300, 111, 3, 2, 3], |i| i as f32).unwrap();
        crate::safetensors::write(&path, &[("a", &a)], &[]).unwrap();
        let file = open_weights(&path).unwrap();
        let whole = file.later("a").unwrap();
        let shape = [300, 111, 2, 3];
        let planes = whole.unread_planes(18, 3, &shape).unwrap();
        assert_eq!(planes.len(), 3);
        // In any order, and again.
        for (tap, plane) in [2, 0, 1, 1].map(|tap| (tap, &planes[tap])) {
            assert_eq!(plane.byte_len(), a.len() / 3 * 4);
            let wanted = a.narrow(2, tap, 1).unwrap().reshape(shape).unwrap();
            if let Some(unread) = plane.in_file() {
                assert!(unread.plain().is_none() && unread.rows(300, 0, 1).is_none());
                let bytes = unread.read().unwrap();
                assert_eq!(bytes, Stored::from(&wanted).bytes(), "{tap}");
            }
            assert_eq!(plane.to_f32().unwrap(), wanted, "{tap}");
        }
        for (run, count) in [(0, 1), (18, 0), (18, 4), (7, 7), (usize::MAX, 1)] {
            assert!(whole.unread_planes(run, count, &[1]).is_none());
        }
    }

    #[test]
    fn many_tensors_come_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let tensors: Vec<_> = (0..50u8)
            .map(|i| {
                (
                    format!("t{i}"),
                    Tensor::full([i.into()], f32::from(i)).unwrap(),
                )
            })
            .collect();
        let pairs: Vec<_> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        crate::safetensors::write(&path, &pairs, &[]).unwrap();
        let file = open_weights(&path).unwrap();
        let mut names: Vec<_> = pairs.iter().map(|p| p.0).collect();
        names.push("none");
        let mut read = file.read_many(&names);
        assert!(read.pop().unwrap().is_err());
        for (found, (_, wanted)) in read.into_iter().zip(&tensors) {
            assert_eq!(found.unwrap().to_f32().unwrap(), *wanted);
        }
    }
}
