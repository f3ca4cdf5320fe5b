//! One model in several files, as large ones are published: `model-00001-of-00003.safetensors` and so on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{WeightError, WeightFile, WeightInfo, open_one};
use crate::stored::Stored;

/// More files than any model has.
const MOST: usize = 1000;

/// The parts of such a name: what stands before the number, how many files there are, and what stands behind.
fn numbered(name: &str) -> Option<(&str, usize, &str)> {
    let at = name.rfind("-of-")?;
    let (before, after) = (&name[..at], &name[at + 4..]);
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let (stem, number) = before.rsplit_once('-')?;
    let total = after.get(..5)?;
    if !digits(number) || !digits(total) {
        return None;
    }
    let count: usize = total.parse().ok()?;
    (1..=MOST)
        .contains(&count)
        .then_some((stem, count, &after[5..]))
}

/// All files of a model, if the path is one of several; else the path alone.
pub fn shards_of(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some((stem, count, ending)) = name.and_then(numbered) else {
        return vec![path.to_path_buf()];
    };
    let one = |n: usize| path.with_file_name(format!("{stem}-{n:05}-of-{count:05}{ending}"));
    (1..=count).map(one).collect()
}

/// Several files as one.
pub(super) struct Shards {
    path: PathBuf,
    files: Vec<Arc<dyn WeightFile>>,
    /// Which file has a tensor.
    places: BTreeMap<String, usize>,
}

impl Shards {
    /// Every file must be there: a part of a model is none.
    pub(super) fn open(path: &Path, paths: &[PathBuf]) -> Result<Self, WeightError> {
        let files: Vec<Arc<dyn WeightFile>> = paths
            .iter()
            .map(|path| open_one(path))
            .collect::<Result<_, _>>()?;
        let mut places = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            places.extend(file.names().into_iter().map(|name| (name, number)));
        }
        Ok(Self {
            path: path.to_path_buf(),
            files,
            places,
        })
    }

    fn file(&self, name: &str) -> Option<&Arc<dyn WeightFile>> {
        self.places.get(name).and_then(|at| self.files.get(*at))
    }
}

impl WeightFile for Shards {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.file(name)?.info(name)
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let file = self.file(name).ok_or_else(|| WeightError::Missing {
            path: self.path.clone(),
            name: name.to_owned(),
        })?;
        file.read(name)
    }

    fn later(&self, name: &str) -> Option<Stored> {
        self.file(name)?.later(name)
    }

    fn metadata(&self) -> &[(String, String)] {
        self.files.first().map_or(&[], |file| file.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;
    use crate::weights::open_weights;

    #[test]
    fn names_say_how_many_there_are() {
        assert_eq!(
            numbered("model-00002-of-00010.safetensors"),
            Some(("model", 10, ".safetensors"))
        );
        for name in [
            "model.safetensors",
            "best-of-show.safetensors",
            "model-2-of-3.safetensors",
            "model-00001-of-00000.safetensors",
            "model-00001-of-99999.safetensors",
            "-of-00001",
        ] {
            assert_eq!(numbered(name), None, "{name}");
        }
    }

    #[test]
    fn files_are_read_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: usize| dir.path().join(format!("net-{n:05}-of-00002.safetensors"));
        for (n, name) in [(1, "b"), (2, "a")] {
            let values = Tensor::full([2], n as f32).unwrap();
            crate::safetensors::write(path(n), &[(name, &values)], &[]).unwrap();
        }
        for n in [1, 2] {
            let file = open_weights(path(n)).unwrap();
            assert_eq!(file.names(), ["a", "b"]);
            let a = file.read("a").unwrap().to_f32().unwrap();
            assert_eq!(a.data(), [2.0, 2.0]);
            assert_eq!(file.info("b").unwrap().shape, [2]);
            assert!(file.read("c").is_err());
        }
        std::fs::remove_file(path(2)).unwrap();
        let error = open_weights(path(1)).err().unwrap().to_string();
        assert!(error.contains("net-00002-of-00002"), "{error}");
    }
}
