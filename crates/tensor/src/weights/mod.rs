//! Weight files: names, shapes and formats at once, bytes when asked for.

pub(crate) mod blocks;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use crate::dtype::Dtype;
use crate::error::TensorError;
use crate::safetensors::{SafeTensors, SafeTensorsError};
use crate::stored::Stored;

/// Why a weight file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    #[error(transparent)]
    SafeTensors(#[from] SafeTensorsError),
    #[error("{path} has no tensor {name:?}")]
    Missing { path: PathBuf, name: String },
    #[error("{path}: tensor {name:?} cannot be used")]
    Tensor {
        path: PathBuf,
        name: String,
        source: TensorError,
    },
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

    /// Several tensors at once, read by all threads; answers come in the order of the names.
    fn read_many(&self, names: &[&str]) -> Vec<Result<Stored, WeightError>> {
        names.par_iter().map(|name| self.read(name)).collect()
    }

    /// Text pairs that came with the file.
    fn metadata(&self) -> &[(String, String)];
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

    fn metadata(&self) -> &[(String, String)] {
        &self.header().metadata
    }
}

/// Opens a weight file, whatever its kind.
pub fn open_weights(path: impl AsRef<Path>) -> Result<Arc<dyn WeightFile>, WeightError> {
    Ok(Arc::new(SafeTensors::open(path)?))
}
