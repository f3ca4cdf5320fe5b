//! The object store as this room sees it: bytes by content.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use async_nats::jetstream::object_store::DeleteErrorKind;
use fresco_files::write::write_atomic;

use crate::connection::{ANSWER, Broker, BrokerError, chain};
use crate::objects::ContentHash;

/// Takes a piece of an object.
pub type WritePiece<'a> = dyn FnMut(&[u8]) -> io::Result<()> + Send + 'a;

/// Bytes by content. Calls block until they are done.
pub trait Objects: Send + Sync {
    /// Stores a file whose content is known, if it is not there yet.
    fn put_file(&self, path: &Path, hash: &ContentHash) -> Result<(), BrokerError>;

    /// Stores bytes, if they are not there yet.
    fn put_bytes(&self, bytes: &[u8]) -> Result<ContentHash, BrokerError>;

    /// Gives an object to `write` piece by piece. An error if it has more than `largest` bytes or is not what its name says; what
    /// was written is to be thrown away then.
    fn read(
        &self,
        hash: &ContentHash,
        largest: u64,
        write: &mut WritePiece<'_>,
    ) -> Result<u64, BrokerError>;

    /// Removes an object; one that is not there is as good as removed.
    fn delete(&self, hash: &ContentHash) -> Result<(), BrokerError>;
}

impl Objects for Broker {
    fn put_file(&self, path: &Path, hash: &ContentHash) -> Result<(), BrokerError> {
        Broker::put_file(self, path, hash)
    }

    fn put_bytes(&self, bytes: &[u8]) -> Result<ContentHash, BrokerError> {
        Broker::put_bytes(self, bytes)
    }

    fn read(
        &self,
        hash: &ContentHash,
        largest: u64,
        write: &mut WritePiece<'_>,
    ) -> Result<u64, BrokerError> {
        self.read_content(hash, largest, write)
    }

    fn delete(&self, hash: &ContentHash) -> Result<(), BrokerError> {
        let files = self.bucket()?;
        let what = format!("remove content {hash}");
        let remove = async {
            match files.delete(hash.to_string()).await {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == DeleteErrorKind::NotFound => Ok(()),
                Err(error) => Err(BrokerError::failed(&what, chain(&error))),
            }
        };
        self.wait(&what, ANSWER, remove)
    }
}

/// Objects as files of a folder: for tests.
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

    fn path(&self, hash: &ContentHash) -> PathBuf {
        self.folder.join(hash.to_string())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        fs::read_dir(&self.folder).map_or(0, Iterator::count)
    }
}

impl Objects for FolderObjects {
    fn put_file(&self, path: &Path, hash: &ContentHash) -> Result<(), BrokerError> {
        let bytes = fs::read(path).map_err(|e| BrokerError::failed("store a file", e))?;
        write_atomic(&self.path(hash), &bytes).map_err(|e| BrokerError::failed("store a file", e))
    }

    fn put_bytes(&self, bytes: &[u8]) -> Result<ContentHash, BrokerError> {
        let hash = ContentHash::of(bytes);
        let stored = write_atomic(&self.path(&hash), bytes);
        stored.map_err(|e| BrokerError::failed("store bytes", e))?;
        Ok(hash)
    }

    fn read(
        &self,
        hash: &ContentHash,
        largest: u64,
        write: &mut WritePiece<'_>,
    ) -> Result<u64, BrokerError> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => BrokerError::NoContent {
                what: "fetch a file".to_owned(),
                hash: hash.to_string(),
            },
            _ => BrokerError::failed("fetch a file", e),
        };
        let mut bytes = Vec::new();
        let mut file = File::open(self.path(hash)).map_err(failed)?;
        file.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > largest || ContentHash::of(&bytes) != *hash {
            return Err(BrokerError::failed("fetch a file", "it is another one"));
        }
        write(&bytes).map_err(failed)?;
        Ok(bytes.len() as u64)
    }

    fn delete(&self, hash: &ContentHash) -> Result<(), BrokerError> {
        match fs::remove_file(self.path(hash)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(BrokerError::failed("remove a file", e))
            }
            _ => Ok(()),
        }
    }
}
