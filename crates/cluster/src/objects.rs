//! Files in the server's object store, named by what is in them.
//!
//! Whoever puts a content that is there already puts nothing. Whoever gets one checks it against its name before it has a place on disk.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::object_store;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;

use crate::connection::{ANSWER, Broker, BrokerError, chain, publish_error};
use crate::streams::FILES_AGE;

/// SHA-256 of a content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash([u8; 32]);

impl ContentHash {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Arc::<str>::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("it is not a hash of 64 digits"))
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads a file once. `go_on` is asked every few megabytes.
pub fn hash_file(path: &Path, mut go_on: impl FnMut() -> bool) -> std::io::Result<ContentHash> {
    let mut file = std::fs::File::open(path)?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 4 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(ContentHash(sum.finalize().into()));
        }
        if !go_on() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        sum.update(&buffer[..read]);
    }
}

/// How long moving a file may take: its size at a slow rate, and something to begin with.
fn patience(bytes: u64) -> Duration {
    Duration::from_secs(30 + bytes / (1 << 20))
}

impl Broker {
    /// Whether a content is there and stays for a while.
    pub fn has_content(&self, hash: &ContentHash) -> Result<bool, BrokerError> {
        let files = self.bucket()?;
        let what = format!("look for content {hash}");
        let look = async {
            match files.info(hash.to_string()).await {
                Ok(info) => {
                    #[expect(
                        clippy::redundant_closure_for_method_calls,
                        reason = "the type is of a crate that is not ours to name"
                    )]
                    let age = info.modified.map(|at| at.unix_timestamp());
                    let now = std::time::SystemTime::now()
                        .duration_since(std::time::UNIX_EPOCH)
                        .map_or(0, |time| time.as_secs() as i64);
                    let limit = (FILES_AGE / 2).as_secs() as i64;
                    Ok(!info.deleted && age.is_some_and(|at| now - at < limit))
                }
                Err(error) if error.kind() == object_store::InfoErrorKind::NotFound => Ok(false),
                Err(error) => Err(BrokerError::failed(&what, chain(&error))),
            }
        };
        self.wait(&what, ANSWER, look)
    }

    /// Stores bytes, if they are not there yet.
    pub fn put_bytes(&self, bytes: &[u8]) -> Result<ContentHash, BrokerError> {
        let hash = ContentHash::of(bytes);
        if self.has_content(&hash)? {
            return Ok(hash);
        }
        let files = self.bucket()?;
        let what = format!("store {} bytes", bytes.len());
        let put = async {
            let mut from = bytes;
            let stored = files.put(hash.to_string().as_str(), &mut from).await;
            stored.map_err(|error| publish_error(&what, &chain(&error)))
        };
        self.wait(&what, patience(bytes.len() as u64), put)?;
        Ok(hash)
    }

    /// Stores a file whose hash is known, if it is not there yet.
    pub fn put_file(&self, path: &Path, hash: &ContentHash) -> Result<(), BrokerError> {
        if self.has_content(hash)? {
            return Ok(());
        }
        let files = self.bucket()?;
        let what = format!("store {}", path.display());
        let size = std::fs::metadata(path).map_or(0, |meta| meta.len());
        let put = async {
            let mut from = tokio::fs::File::open(path)
                .await
                .map_err(|e| BrokerError::failed(&what, e))?;
            let stored = files.put(hash.to_string().as_str(), &mut from).await;
            stored
                .map(drop)
                .map_err(|error| publish_error(&what, &chain(&error)))
        };
        self.wait(&what, patience(size), put)
    }

    /// Gives a content to `write` piece by piece. An error if it is not what its name says; what was written is to be thrown away then.
    pub fn read_content(
        &self,
        hash: &ContentHash,
        largest: u64,
        mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<u64, BrokerError> {
        let files = self.bucket()?;
        let what = format!("fetch content {hash}");
        let get = async {
            let mut object = files.get(hash.to_string()).await.map_err(|error| {
                if error.kind() == object_store::GetErrorKind::NotFound {
                    return BrokerError::NoContent {
                        what: "fetch a file".to_owned(),
                        hash: hash.to_string(),
                    };
                }
                BrokerError::failed(&what, chain(&error))
            })?;
            let mut sum = Sha256::new();
            let (mut total, mut buffer) = (0_u64, vec![0; 256 << 10]);
            loop {
                // Each piece has its own patience: a large file is no reason to give up.
                let read = tokio::time::timeout(Duration::from_secs(30), object.read(&mut buffer))
                    .await
                    .map_err(|_| BrokerError::failed(&what, "nothing came for 30 s"))?
                    .map_err(|e| BrokerError::failed(&what, e))?;
                if read == 0 {
                    break;
                }
                total += read as u64;
                if total > largest {
                    return Err(BrokerError::failed(
                        &what,
                        format!("it has more than {largest} bytes"),
                    ));
                }
                sum.update(&buffer[..read]);
                write(&buffer[..read]).map_err(|e| BrokerError::failed(&what, e))?;
            }
            let found = ContentHash(sum.finalize().into());
            if found != *hash {
                return Err(BrokerError::failed(
                    &what,
                    format!("what came has the hash {found}"),
                ));
            }
            Ok(total)
        };
        self.runtime.block_on(get)
    }

    /// A content of few bytes.
    pub fn get_bytes(&self, hash: &ContentHash, largest: u64) -> Result<Vec<u8>, BrokerError> {
        let mut bytes = Vec::new();
        self.read_content(hash, largest, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_64_digits() {
        let hash = ContentHash::of(b"abc");
        let text = hash.to_string();
        assert!(text.starts_with("ba7816bf"), "{text}");
        assert_eq!(ContentHash::parse(&text), Some(hash));
        assert_eq!(ContentHash::parse(&text.to_uppercase()), Some(hash));
        assert_eq!(ContentHash::parse(&text[1..]), None);
        assert_eq!(ContentHash::parse(&"é".repeat(32)), None);
    }

    #[test]
    fn a_file_has_the_hash_of_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(hash_file(&path, || true).unwrap(), ContentHash::of(b"abc"));
        assert!(hash_file(&path, || false).is_err());
    }
}
