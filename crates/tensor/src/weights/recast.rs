//! A weight file with its numbers in another format.

use std::path::Path;
use std::sync::Arc;

use super::{WeightError, WeightFile, WeightInfo};
use crate::dtype::Dtype;
use crate::stored::Stored;

/// Every floating-point tensor of a file, rounded to one format as it is read. Integers and the blocks of quantised files
/// stay as they are.
pub struct Recast {
    file: Arc<dyn WeightFile>,
    dtype: Dtype,
    /// Whether only matrices are rounded, and only those that take more room.
    narrowing: bool,
}

impl Recast {
    pub fn new(file: Arc<dyn WeightFile>, dtype: Dtype) -> Self {
        Self {
            file,
            dtype,
            narrowing: false,
        }
    }

    /// Only matrices are rounded, and only those that take more room than this format: what says how others are scaled,
    /// and the weights of norms, stay as they are.
    pub fn narrowed(file: Arc<dyn WeightFile>, dtype: Dtype) -> Self {
        Self {
            narrowing: true,
            ..Self::new(file, dtype)
        }
    }

    fn changes(&self, name: &str, dtype: Dtype, shape: &[usize]) -> bool {
        let matrix = shape.len() > 1 && name.ends_with(".weight");
        let stays = self.narrowing && (!matrix || dtype.size() <= self.dtype.size());
        dtype != self.dtype
            && !stays
            && matches!(
                dtype,
                Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 | Dtype::F8E4M3 | Dtype::F8E5M2
            )
    }
}

impl WeightFile for Recast {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn names(&self) -> Vec<String> {
        self.file.names()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        let mut info = self.file.info(name)?;
        if self.changes(name, info.dtype, &info.shape) {
            info.dtype = self.dtype;
        }
        Some(info)
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let stored = self.file.read(name)?;
        if !self.changes(name, stored.dtype(), stored.shape()) {
            return Ok(stored);
        }
        let rounded = stored
            .to_f32()
            .and_then(|t| Stored::from_f32(&t, self.dtype));
        rounded.map_err(|source| WeightError::Tensor {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
            source,
        })
    }

    fn later(&self, name: &str) -> Option<Stored> {
        let stored = self.file.later(name)?;
        if !self.changes(name, stored.dtype(), stored.shape()) {
            return Some(stored);
        }
        stored.rounded_later(self.dtype)
    }

    fn metadata(&self) -> &[(String, String)] {
        self.file.metadata()
    }
}
