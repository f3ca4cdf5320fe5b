//! Writing safetensors files, without holding them in memory.

use std::io::{self, Write};
use std::path::Path;

use super::{Dtype, Problem, SafeTensorsError, header};
use crate::cancel::CancellableWriter;
use crate::draft;
use crate::stored::Stored;
use crate::tensor::Tensor;

/// One tensor of a file that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl Entry {
    pub(super) fn bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&s| s as u64).product();
        elements * self.dtype.size() as u64
    }

    /// Whether a reader would take it.
    fn check(&self) -> Result<(), Problem> {
        if self.dtype.is_block() {
            return Err(Problem::Dtype {
                name: self.name.clone(),
                dtype: self.dtype.name().to_owned(),
            });
        }
        crate::element_count(&self.shape)
            .map(drop)
            .map_err(|_| Problem::Size {
                name: self.name.clone(),
            })
    }
}

/// What can be written as a tensor.
pub trait Content {
    fn dtype(&self) -> Dtype;

    fn shape(&self) -> &[usize];

    /// Writes the values as little-endian bytes.
    fn write_bytes(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl Content for Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_bytes(&self, out: &mut dyn Write) -> io::Result<()> {
        for chunk in self.data().chunks(1 << 14) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|v| v.to_le_bytes()).collect();
            out.write_all(&bytes)?;
        }
        Ok(())
    }
}

impl Content for Stored {
    fn dtype(&self) -> Dtype {
        Self::dtype(self)
    }

    fn shape(&self) -> &[usize] {
        Self::shape(self)
    }

    fn write_bytes(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.bytes())
    }
}

/// Tensors in the order of the reference library: the widest format first, so that every tensor is aligned to its
/// elements, then by name.
fn arrange<'a, T: Content + ?Sized>(tensors: &[(&str, &'a T)]) -> (Vec<Entry>, Vec<&'a T>) {
    let mut sorted = tensors.to_vec();
    sorted.sort_by(|a, b| (b.1.dtype(), a.0).cmp(&(a.1.dtype(), b.0)));
    let entry = |(name, tensor): &(&str, &T)| Entry {
        name: (*name).to_owned(),
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
    };
    (
        sorted.iter().map(entry).collect(),
        sorted.iter().map(|t| t.1).collect(),
    )
}

/// Writes tensors, completely or not at all: the file gets its name only when it is whole and on the disk.
pub fn write<T: Content + ?Sized>(
    path: impl AsRef<Path>,
    tensors: &[(&str, &T)],
    metadata: &[(String, String)],
) -> Result<(), SafeTensorsError> {
    let path = path.as_ref();
    let (entries, contents) = arrange(tensors);
    write_file(path, &entries, metadata, |index, out| {
        contents[index]
            .write_bytes(out)
            .map_err(|e| failed(path, e))
    })
}

/// As [`write()`], of tensors that are made one by one: `produce` is asked for each in the order of the file, and what it
/// answers is dropped once it is written.
pub fn write_streamed<E: From<SafeTensorsError>>(
    path: impl AsRef<Path>,
    mut entries: Vec<Entry>,
    metadata: &[(String, String)],
    mut produce: impl FnMut(&Entry) -> Result<Stored, E>,
) -> Result<(), E> {
    let path = path.as_ref();
    entries.sort_by(|a, b| (b.dtype, &a.name).cmp(&(a.dtype, &b.name)));
    write_file(path, &entries, metadata, |index, out| {
        let entry = &entries[index];
        let stored = produce(entry)?;
        if stored.dtype() != entry.dtype || stored.shape() != entry.shape {
            let name = entry.name.clone();
            return Err(unwritable(path, Problem::Size { name }).into());
        }
        Ok(out.write_all(stored.bytes()).map_err(|e| failed(path, e))?)
    })
}

/// Writes the content of such a file to anything; the caller sees to its name and its wholeness. Of tensors of the same
/// name a reader will refuse the file.
pub fn write_to<T: Content + ?Sized>(
    out: &mut impl Write,
    tensors: &[(&str, &T)],
    metadata: &[(String, String)],
) -> io::Result<()> {
    let (entries, contents) = arrange(tensors);
    let out = &mut CancellableWriter::new(out);
    write_header(out, &entries, metadata)?;
    contents
        .iter()
        .try_for_each(|tensor| tensor.write_bytes(out))
}

/// As [`write_streamed`], to anything; the caller sees to its name and its wholeness.
pub fn write_streamed_to(
    out: &mut impl Write,
    mut entries: Vec<Entry>,
    metadata: &[(String, String)],
    mut produce: impl FnMut(&Entry) -> io::Result<Stored>,
) -> io::Result<()> {
    entries.sort_by(|a, b| (b.dtype, &a.name).cmp(&(a.dtype, &b.name)));
    check(&entries, metadata).map_err(io::Error::other)?;
    let out = &mut CancellableWriter::new(out);
    write_header(out, &entries, metadata)?;
    for entry in &entries {
        let stored = produce(entry)?;
        if stored.dtype() != entry.dtype || stored.shape() != entry.shape {
            let name = entry.name.clone();
            return Err(io::Error::other(Problem::Size { name }));
        }
        out.write_all(stored.bytes())?;
    }
    Ok(())
}

fn write_header(
    out: &mut (impl Write + ?Sized),
    entries: &[Entry],
    metadata: &[(String, String)],
) -> io::Result<()> {
    let text = header::render(entries, metadata);
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(text.as_bytes())
}

fn failed(path: &Path, source: io::Error) -> SafeTensorsError {
    SafeTensorsError::Write {
        path: path.to_path_buf(),
        source,
    }
}

fn unwritable(path: &Path, problem: Problem) -> SafeTensorsError {
    SafeTensorsError::Unwritable {
        path: path.to_path_buf(),
        problem,
    }
}

/// The frame around all tensors: a draft beside the file, synced, then renamed.
fn write_file<E: From<SafeTensorsError>>(
    path: &Path,
    entries: &[Entry],
    metadata: &[(String, String)],
    mut body: impl FnMut(usize, &mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    check(entries, metadata).map_err(|problem| unwritable(path, problem))?;
    let fail = |e| failed(path, e);
    draft::write(path, fail, |out| {
        write_header(out, entries, metadata).map_err(fail)?;
        for index in 0..entries.len() {
            body(index, out)?;
        }
        Ok(())
    })
}

fn check(entries: &[Entry], metadata: &[(String, String)]) -> Result<(), Problem> {
    let mut names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    if !metadata.is_empty() {
        names.push("__metadata__");
    }
    for mut names in [names, metadata.iter().map(|(k, _)| k.as_str()).collect()] {
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let name = pair[0].to_owned();
            return Err(Problem::Duplicate { name });
        }
    }
    entries.iter().try_for_each(Entry::check)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::SafeTensors;
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
        let twice = ["k", "k"].map(|k| (k.to_owned(), String::new()));
        assert!(write(dir.path().join("x"), &[("a", &t)], &twice).is_err());
        assert!(write(dir.path().join("x"), &[("__metadata__", &t)], &twice[..1]).is_err());
        let entry = |dtype, shape: &[usize]| Entry {
            name: "a".to_owned(),
            dtype,
            shape: shape.to_vec(),
        };
        let stored = Stored::from(&t);
        for entry in [
            entry(Dtype::F16, &[]),
            entry(Dtype::F32, &[2]),
            entry(Dtype::Q8_0, &[32]),
            entry(Dtype::F32, &[usize::MAX, 2]),
        ] {
            let result: Result<(), SafeTensorsError> =
                write_streamed(dir.path().join("x"), vec![entry], &[], |_| {
                    Ok(stored.clone())
                });
            assert!(matches!(result, Err(SafeTensorsError::Unwritable { .. })));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_format_is_written_aligned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        let formats = [
            ("b8", Dtype::F8E4M3),
            ("a8", Dtype::U8),
            ("half", Dtype::F16),
            ("brain", Dtype::Bf16),
            ("single", Dtype::F32),
            ("long", Dtype::I64),
            ("double", Dtype::F64),
        ];
        let stored: Vec<_> = formats
            .iter()
            .map(|(name, dtype)| {
                let bytes = (0..3 * dtype.size() as u8).collect();
                (*name, Stored::new(*dtype, [3], bytes).unwrap())
            })
            .collect();
        let entries = stored.iter().map(|(name, s)| Entry {
            name: (*name).to_owned(),
            dtype: s.dtype(),
            shape: s.shape().to_vec(),
        });
        let mut asked = Vec::new();
        let find = |entry: &Entry| {
            asked.push(entry.name.clone());
            let found = stored.iter().find(|(name, _)| *name == entry.name);
            Ok::<_, SafeTensorsError>(found.unwrap().1.clone())
        };
        write_streamed(&path, entries.collect(), &[], find).unwrap();
        assert_eq!(
            asked,
            ["long", "double", "single", "brain", "half", "b8", "a8"]
        );
        let file = SafeTensors::open(&path).unwrap();
        for (name, tensor) in &stored {
            assert_eq!(file.bytes(name).unwrap(), tensor.bytes());
            let info = file.info(name).unwrap();
            assert_eq!((info.dtype, &*info.shape), (tensor.dtype(), tensor.shape()));
            assert_eq!(info.start % info.dtype.size() as u64, 0);
        }
        let direct = dir.path().join("y.safetensors");
        let pairs: Vec<_> = stored.iter().map(|(name, s)| (*name, s)).collect();
        write(&direct, &pairs, &[]).unwrap();
        assert_eq!(fs::read(direct).unwrap(), fs::read(path).unwrap());
    }
}
