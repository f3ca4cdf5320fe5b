//! The container of `.mp4` and its relatives.

pub(crate) mod copy;
pub(crate) mod read;
pub(crate) mod write;

/// One box: its size, its name, its content.
pub(crate) fn wrap(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 8);
    out.extend((content.len() as u32 + 8).to_be_bytes());
    out.extend(name);
    out.extend(content);
    out
}

/// A box with a version and flags before its content.
pub(crate) fn full(name: &[u8], version: u8, flags: u32, content: &[u8]) -> Vec<u8> {
    let mut inner = Vec::with_capacity(content.len() + 4);
    inner.extend((u32::from(version) << 24 | flags).to_be_bytes());
    inner.extend(content);
    wrap(name, &inner)
}
