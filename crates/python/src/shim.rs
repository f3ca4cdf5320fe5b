//! The Python side of the room, which is part of the program and is written next to its caches when it is first needed.

use std::io;
use std::path::{Path, PathBuf};

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Two folders that belong on the path of the interpreter: our package, and the names that packs import.
pub(crate) struct Unpacked {
    pub(crate) package: PathBuf,
    pub(crate) host: PathBuf,
}

/// Writes the package below `folder`, once for each version of it.
pub(crate) fn unpack(folder: &Path) -> io::Result<Unpacked> {
    let root = folder.join(format!("{:016x}", fingerprint()));
    let unpacked = Unpacked {
        host: root.join("host"),
        package: root.clone(),
    };
    let complete = root.join("complete");
    if complete.is_file() {
        return Ok(unpacked);
    }
    for (name, content) in FILES {
        let path = root.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, content)?;
    }
    std::fs::write(complete, "")?;
    Ok(unpacked)
}

/// Another number for another package.
fn fingerprint() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, content) in FILES {
        for byte in name.bytes().chain(content.iter().copied()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let unpacked = unpack(dir.path()).unwrap();
        let main = unpacked.package.join("fresco_host/__main__.py");
        assert!(main.is_file() && unpacked.host.join("folder_paths.py").is_file());
        std::fs::write(&main, "changed").unwrap();
        unpack(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&main).unwrap(), "changed");
    }
}
