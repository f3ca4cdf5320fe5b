//! Golden tests of LoRA: name maps and merge results of the reference, and files that are not as they should be.

#![expect(
    clippy::unwrap_used,
    reason = "a golden file without the expected part is a failed test"
)]

mod files;
mod formulas;
mod merge;
mod names;
mod quantised;
mod rows;
mod ways;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_models::lora::LoraFile;
use fresco_tensor::{Stored, Tensor, WeightError, WeightFile, WeightInfo, synthetic};

/// A file of the golden numbers.
fn gold(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/gold")
        .join(name)
}

fn gold_json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(gold(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A weight file that is only in memory.
struct MemoryFile(BTreeMap<String, Stored>);

impl WeightFile for MemoryFile {
    fn path(&self) -> &Path {
        Path::new("memory.safetensors")
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.0.get(name).map(|stored| WeightInfo {
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let missing = || WeightError::Missing {
            path: self.path().to_path_buf(),
            name: name.to_owned(),
        };
        self.0.get(name).cloned().ok_or_else(missing)
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// A LoRA of these tensors. Equal names mean equal content here.
fn lora_file(tensors: &[(String, Tensor)]) -> LoraFile {
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    let identity = synthetic::fnv1a64(names.join(" ").as_bytes());
    let tensors = tensors.iter().map(|(n, t)| (n.clone(), Stored::from(t)));
    LoraFile::new(Arc::new(MemoryFile(tensors.collect())), identity).unwrap()
}
