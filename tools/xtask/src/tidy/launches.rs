//! What Rust knows of the parameters of kernels was made from the kernels as they are.
//!
//! `cargo xtask cuda --check` makes it again; this rule compares a hash of the sources, for which nothing has to be installed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tree;

const KERNELS: &str = "crates/tensor/src/cuda/kernels";
const LAUNCHES: &str = "crates/tensor/src/cuda/launches.rs";

pub(crate) fn check() -> Result<Vec<String>> {
    let root = tree::root();
    let hash = hash_of(&root.join(KERNELS))?;
    let made = fs::read_to_string(root.join(LAUNCHES)).context(LAUNCHES)?;
    let complaint = (!says(&made, hash)).then(|| {
        format!(
            "{LAUNCHES} is not made from {KERNELS} as they are: run `cargo xtask cuda --launches`"
        )
    });
    Ok(complaint.into_iter().collect())
}

fn says(made: &str, hash: u64) -> bool {
    let line = format!("//! Sources: {hash:016x}");
    made.lines().take(3).any(|found| found == line)
}

/// FNV-1a of the names and contents of all files, as `source_hash` of tools/cuda/launches.py has it.
fn hash_of(folder: &Path) -> Result<u64> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort_unstable();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for name in names {
        let content = fs::read(folder.join(&name)).with_context(|| name.clone())?;
        for &byte in [name.as_bytes(), &content]
            .iter()
            .flat_map(|part| part.iter().chain(&[0]))
        {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.cu"), "int a;").unwrap();
        let before = hash_of(folder.path()).unwrap();
        let made = format!("//! Parameters.\n//! Sources: {before:016x}\n");
        assert!(says(&made, before));
        fs::write(folder.path().join("a.cu"), "int b;").unwrap();
        assert!(!says(&made, hash_of(folder.path()).unwrap()));
        fs::write(folder.path().join("a.cu"), "int a;").unwrap();
        assert_eq!(hash_of(folder.path()).unwrap(), before);
    }
}
