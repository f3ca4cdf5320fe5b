//! Random ids.

use std::fmt::Write as _;

fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // No entropy source: ids must only be distinct, not secret.
        use std::hash::{BuildHasher, RandomState};
        for (i, part) in bytes.chunks_mut(8).enumerate() {
            part.copy_from_slice(&RandomState::new().hash_one(i).to_le_bytes());
        }
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// 32 hex digits.
pub(crate) fn hex_id() -> String {
    random().iter().fold(String::with_capacity(32), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// A version 4 UUID with dashes.
pub(crate) fn uuid() -> String {
    let hex = hex_id();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form() {
        let id = uuid();
        assert_eq!(id.len(), 36);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
        assert_ne!(uuid(), id);
        assert!(
            hex_id()
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        );
    }
}
