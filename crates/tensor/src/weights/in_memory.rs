//! Named tensors in memory that are used like a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{WeightError, WeightFile, WeightInfo};
use crate::stored::Stored;

/// Tensors by name, and text pairs.
pub struct InMemory {
    /// For messages.
    name: PathBuf,
    tensors: BTreeMap<String, Stored>,
    metadata: Vec<(String, String)>,
}

impl InMemory {
    /// `name` stands in messages for the path.
    pub fn new(
        name: impl Into<PathBuf>,
        tensors: BTreeMap<String, Stored>,
        metadata: Vec<(String, String)>,
    ) -> Self {
        Self {
            name: name.into(),
            tensors,
            metadata,
        }
    }
}

impl WeightFile for InMemory {
    fn path(&self) -> &Path {
        &self.name
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let stored = self.tensors.get(name)?;
        Some(WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let found = self.tensors.get(name).cloned();
        found.ok_or_else(|| WeightError::Missing {
            path: self.name.clone(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}
