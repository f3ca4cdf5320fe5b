//! What says that two files are the same: the SHA-256 of their bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes read at once; a stop is heeded between two of these.
const CHUNK: usize = 1 << 20;

/// A SHA-256 in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentId(Arc<str>);

#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not a SHA-256 in lower-case hexadecimal")]
pub struct NotAContentId {
    text: String,
}

impl ContentId {
    pub fn parse(text: &str) -> Result<Self, NotAContentId> {
        let digits = text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if text.len() == 64 && digits {
            Ok(Self(text.into()))
        } else {
            Err(NotAContentId {
                text: text.chars().take(80).collect(),
            })
        }
    }

    pub fn of(bytes: &[u8]) -> Self {
        Self::from_digest(&Sha256::digest(bytes))
    }

    fn from_digest(digest: &[u8]) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let text: String = digest
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| DIGITS[usize::from(digit)] as char)
            .collect();
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ContentId {
    type Error = NotAContentId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<ContentId> for String {
    fn from(id: ContentId) -> Self {
        id.0.as_ref().to_owned()
    }
}

/// Hashes bytes on their way to somewhere else.
#[derive(Default)]
pub(crate) struct Hasher {
    digest: Sha256,
    bytes: u64,
}

impl Hasher {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn finish(self) -> ContentId {
        ContentId::from_digest(&self.digest.finalize())
    }
}

/// The content of what a reader gives, and its length. `Interrupted` if `stop` is raised.
pub fn hash_reader(from: &mut dyn Read, stop: &AtomicBool) -> io::Result<(ContentId, u64)> {
    let mut buffer = vec![0; CHUNK];
    let mut hasher = Hasher::default();
    loop {
        if stop.load(Ordering::Relaxed) {
            // Not `Interrupted`, which readers take as a reason to try again.
            return Err(io::Error::other("hashing was stopped"));
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => hasher.add(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let bytes = hasher.bytes();
    Ok((hasher.finish(), bytes))
}

/// The content of a file, and its length.
pub fn hash_file(path: &Path) -> io::Result<(ContentId, u64)> {
    hash_reader(&mut File::open(path)?, &AtomicBool::new(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sha256() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(ContentId::of(b"").as_str(), empty);
        assert_eq!(ContentId::parse(empty).unwrap(), ContentId::of(b""));
        for bad in ["", "abc", &empty.to_uppercase(), &format!("{empty}0")] {
            assert!(ContentId::parse(bad).is_err(), "{bad}");
        }
        let stop = AtomicBool::new(false);
        let (id, bytes) = hash_reader(&mut &b"abc"[..], &stop).unwrap();
        assert_eq!((id, bytes), (ContentId::of(b"abc"), 3));
        stop.store(true, Ordering::Relaxed);
        assert!(hash_reader(&mut &b"abc"[..], &stop).is_err());
    }
}
