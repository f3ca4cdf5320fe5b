//! Writing GGUF files, version 3, without holding them in memory.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::gguf::{ORIGINAL_SHAPE, kind_number};
use crate::draft;
use crate::dtype::Dtype;
use crate::safetensors::Entry;
use crate::stored::Stored;

/// Most dimensions that readers of the format take.
const MOST_DIMS: usize = 4;
/// Where tensors begin.
const ALIGNMENT: u64 = 32;

/// Why a GGUF file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum GgufWriteError {
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{path}: tensor {name:?} cannot be written as {format} of shape {shape:?}")]
    Tensor {
        path: PathBuf,
        name: String,
        format: &'static str,
        shape: Vec<usize>,
    },
    #[error("{path}: the name {name:?} occurs twice")]
    Duplicate { path: PathBuf, name: String },
}

/// A tensor in the file.
struct Place {
    name: String,
    kind: u32,
    /// Outermost first.
    shape: Vec<usize>,
    /// As it was, where it had to be flattened.
    original: Option<Vec<usize>>,
    bytes: u64,
    offset: u64,
}

/// Writes tensors, completely or not at all. `produce` is asked for each in the order of the entries, and what it answers is
/// dropped once it is written.
pub fn write_gguf<E: From<GgufWriteError>>(
    path: impl AsRef<Path>,
    entries: &[Entry],
    metadata: &[(String, String)],
    mut produce: impl FnMut(&Entry) -> Result<Stored, E>,
) -> Result<(), E> {
    let path = path.as_ref();
    let places = places(path, entries)?;
    let fail = |source| GgufWriteError::Write {
        path: path.to_path_buf(),
        source,
    };
    draft::write(path, fail, |out| {
        let head = header(&places, metadata);
        out.write_all(&head).map_err(fail)?;
        pad(out, head.len() as u64).map_err(fail)?;
        for (entry, place) in entries.iter().zip(&places) {
            let stored = produce(entry)?;
            if stored.dtype() != entry.dtype || stored.bytes().len() as u64 != place.bytes {
                return Err(unwritable(path, entry).into());
            }
            out.write_all(stored.bytes()).map_err(fail)?;
            pad(out, place.bytes).map_err(fail)?;
        }
        Ok(())
    })
}

fn unwritable(path: &Path, entry: &Entry) -> GgufWriteError {
    GgufWriteError::Tensor {
        path: path.to_path_buf(),
        name: entry.name.clone(),
        format: entry.dtype.name(),
        shape: entry.shape.clone(),
    }
}

fn places(path: &Path, entries: &[Entry]) -> Result<Vec<Place>, GgufWriteError> {
    let mut names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(GgufWriteError::Duplicate {
            path: path.to_path_buf(),
            name: pair[0].to_owned(),
        });
    }
    let mut offset = 0;
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries {
        let bad = || unwritable(path, entry);
        let count = crate::element_count(&entry.shape).map_err(|_| bad())?;
        let bytes = entry.dtype.bytes_for(count).ok_or_else(bad)? as u64;
        let block = entry.dtype.block().0;
        let last = entry.shape.last().copied().unwrap_or(1);
        // Blocks do not span rows: kernels of convolutions become rows of all their values.
        let flat = entry.shape.len() > MOST_DIMS || !last.is_multiple_of(block);
        let rows = entry.shape.first().copied().unwrap_or(1);
        let shape = if flat {
            vec![rows, count.checked_div(rows).unwrap_or(0)]
        } else {
            entry.shape.clone()
        };
        if !shape.last().unwrap_or(&1).is_multiple_of(block) {
            return Err(bad());
        }
        places.push(Place {
            name: entry.name.clone(),
            kind: kind_number(entry.dtype).ok_or_else(bad)?,
            shape,
            original: flat.then(|| entry.shape.clone()),
            bytes,
            offset,
        });
        offset = (offset + bytes).next_multiple_of(ALIGNMENT);
    }
    Ok(places)
}

fn pad(out: &mut dyn Write, written: u64) -> io::Result<()> {
    let more = written.next_multiple_of(ALIGNMENT) - written;
    out.write_all(&[0; ALIGNMENT as usize][..more as usize])
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}

fn header(places: &[Place], metadata: &[(String, String)]) -> Vec<u8> {
    const U32: u32 = 4;
    const I32: u32 = 5;
    const TEXT: u32 = 8;
    const ARRAY: u32 = 9;
    let mut values = Vec::new();
    let mut count = 0u64;
    for (key, value) in metadata {
        text(&mut values, key);
        values.extend(TEXT.to_le_bytes());
        text(&mut values, value);
        count += 1;
    }
    text(&mut values, "general.quantization_version");
    values.extend(U32.to_le_bytes());
    values.extend(2u32.to_le_bytes());
    count += 1;
    for place in places {
        let Some(original) = &place.original else {
            continue;
        };
        text(&mut values, &format!("{ORIGINAL_SHAPE}{}", place.name));
        values.extend(ARRAY.to_le_bytes());
        values.extend(I32.to_le_bytes());
        values.extend((original.len() as u64).to_le_bytes());
        for size in original {
            values.extend((*size as i32).to_le_bytes());
        }
        count += 1;
    }
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((places.len() as u64).to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(values);
    for place in places {
        text(&mut out, &place.name);
        out.extend((place.shape.len() as u32).to_le_bytes());
        for size in place.shape.iter().rev() {
            out.extend((*size as u64).to_le_bytes());
        }
        out.extend(place.kind.to_le_bytes());
        out.extend(place.offset.to_le_bytes());
    }
    out
}

/// Whether files can have tensors of this format.
pub fn has_gguf_kind(dtype: Dtype) -> bool {
    kind_number(dtype).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;
    use crate::weights::{Gguf, WeightFile as _};

    #[test]
    fn what_is_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        let entry = |name: &str, dtype, shape: &[usize]| Entry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        };
        let entries = [
            entry("a", Dtype::Q4K, &[3, 512]),
            entry("conv", Dtype::Q8_0, &[2, 32, 3, 3]),
            entry("b", Dtype::F32, &[5]),
            entry("c", Dtype::Bf16, &[2, 1, 1, 2, 3]),
        ];
        let metadata = [("general.architecture".to_owned(), "test".to_owned())];
        let make = |entry: &Entry| -> Result<Stored, GgufWriteError> {
            let plain = synthetic::value(&entry.name, &entry.shape, 1.0).unwrap();
            Ok(Stored::from_f32(&plain, entry.dtype).unwrap())
        };
        write_gguf(&path, &entries, &metadata, make).unwrap();
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.value("general.architecture"), Some("test"));
        for entry in &entries {
            assert_eq!(file.read(&entry.name).unwrap(), make(entry).unwrap());
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let refused = [
            [
                entry("x", Dtype::Q4K, &[2, 100]),
                entry("y", Dtype::F32, &[1]),
            ],
            [entry("x", Dtype::F32, &[1]), entry("x", Dtype::F32, &[1])],
            [entry("x", Dtype::U64, &[1]), entry("y", Dtype::F32, &[1])],
        ];
        for entries in refused {
            assert!(write_gguf(dir.path().join("y"), &entries, &[], make).is_err());
        }
    }
}
