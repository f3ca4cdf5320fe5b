//! Real packs, as they lie in a folder: whether the program loads them, and whether our workflows for them run.

mod base;
mod report;
mod rig;
mod workflow;

pub use base::Base;
pub use report::{PackResult, RunResult, Table};
pub use rig::{Limits, Rig};
pub use workflow::{Expectation, Workflow, WorkflowResult, read_workflows};

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The packs of a folder, in order: folders with an `__init__.py`, and single `.py` files.
pub fn find_packs(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder of packs {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in list {
        let path = entry?.path();
        let single = path.extension().is_some_and(|ending| ending == "py");
        if single || path.join("__init__.py").is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The name of a pack, which its folder has and our folder of workflows for it.
pub fn pack_name(path: &Path) -> String {
    let name = path.file_stem().filter(|_| path.is_file());
    let name = name.or_else(|| path.file_name()).unwrap_or_default();
    name.to_string_lossy().into_owned()
}
