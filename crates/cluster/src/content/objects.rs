//! The object store as this room sees it: bytes by content.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use fresco_files::write::TempFile;

use super::id::ContentId;

/// Why the object store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error("{id} is not in the object store: it was never put there, or it is older than what is kept")]
    Missing { id: ContentId },
    #[error("the object store has no room for {bytes} bytes")]
    Full { bytes: u64, source: io::Error },
    #[error("cannot {action} {id} in the object store")]
    Failed {
        action: &'static str,
        id: ContentId,
        source: io::Error,
    },
}

/// Bytes by content. Calls block until they are done.
pub trait Objects: Send + Sync {
    fn has(&self, id: &ContentId) -> Result<bool, ObjectsError>;

    /// Stores what the reader gives; the caller says truly what its content is, receivers check it.
    fn put(&self, id: &ContentId, from: &mut dyn Read, size: u64) -> Result<(), ObjectsError>;

    /// Writes the object to `to` and gives its length. What `to` refuses ends the transfer.
    fn get(&self, id: &ContentId, to: &mut dyn Write) -> Result<u64, ObjectsError>;

    fn delete(&self, id: &ContentId) -> Result<(), ObjectsError>;
}

/// Objects as files of a folder: for tests, and for machines that share a disk.
#[derive(Debug)]
pub struct FolderObjects {
    folder: PathBuf,
}

impl FolderObjects {
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_path_buf(),
        })
    }

    fn path(&self, id: &ContentId) -> PathBuf {
        self.folder.join(id.as_str())
    }
}

fn failed(action: &'static str, id: &ContentId) -> impl FnOnce(io::Error) -> ObjectsError {
    let id = id.clone();
    move |source| match source.kind() {
        io::ErrorKind::NotFound => ObjectsError::Missing { id },
        _ => ObjectsError::Failed { action, id, source },
    }
}

impl Objects for FolderObjects {
    fn has(&self, id: &ContentId) -> Result<bool, ObjectsError> {
        Ok(self.path(id).is_file())
    }

    fn put(&self, id: &ContentId, from: &mut dyn Read, _size: u64) -> Result<(), ObjectsError> {
        let store = || {
            let mut temp = TempFile::create(&self.folder)?;
            io::copy(from, temp.file()?)?;
            temp.replace(&self.path(id))
        };
        store().map_err(failed("put", id))
    }

    fn get(&self, id: &ContentId, to: &mut dyn Write) -> Result<u64, ObjectsError> {
        let mut file = File::open(self.path(id)).map_err(failed("get", id))?;
        io::copy(&mut file, to).map_err(failed("get", id))
    }

    fn delete(&self, id: &ContentId) -> Result<(), ObjectsError> {
        match fs::remove_file(self.path(id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("delete", id)(e)),
            _ => Ok(()),
        }
    }
}
