//! A file for readers that want a path, in memory where the system has such a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    folder.join(format!("fresco-fuzz-{}", std::process::id()))
});

/// Writes the file anew.
pub fn file(data: &[u8]) -> &'static Path {
    fs::write(&*PATH, data).expect("the folder takes files");
    &PATH
}
