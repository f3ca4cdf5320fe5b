//! The list of contents of a zip archive, as far as torch needs it: entries that are stored, not compressed.

use std::collections::BTreeMap;
use std::io;

use super::Problem;
use crate::positioned::PositionedFile;
use crate::weights::input::Input;

/// Longest list of contents that is read; a model of 10,000 tensors has about 1 MB.
const MAX_DIRECTORY: u64 = 64 << 20;

const END: [u8; 4] = *b"PK\x05\x06";
const END_SIZE: u64 = 22;
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const LOCATOR64_SIZE: u64 = 20;
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZipEntry {
    /// Position of its local header.
    header: u64,
    pub(super) size: u64,
    method: u16,
    encrypted: bool,
}

#[derive(Debug)]
pub(super) struct Archive {
    pub(super) entries: BTreeMap<String, ZipEntry>,
}

fn broken(what: &'static str) -> Problem {
    Problem::Zip(what)
}

/// An archive whose end is missing is the usual half-downloaded file.
fn cut(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => broken("it ends early"),
        _ => Problem::Read(error),
    }
}

impl Archive {
    pub(super) fn open(file: &PositionedFile) -> Result<Self, Problem> {
        let (count, size, start) = directory(file)?;
        if size > MAX_DIRECTORY {
            return Err(broken("its list of contents is too long"));
        }
        let end = start.checked_add(size).filter(|&end| end <= file.len());
        let end = end.ok_or_else(|| broken("its list of contents is not inside the file"))?;
        let mut input = Input::new(file, start, end);
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let (name, entry) = central(&mut input)?;
            if entries.insert(name, entry).is_some() {
                return Err(broken("a name occurs twice"));
            }
        }
        Ok(Self { entries })
    }

    /// Where the bytes of an entry are.
    pub(super) fn locate(
        file: &PositionedFile,
        name: &str,
        entry: &ZipEntry,
    ) -> Result<u64, Problem> {
        if entry.encrypted {
            return Err(broken("an entry is encrypted"));
        }
        if entry.method != 0 {
            return Err(Problem::Compressed {
                name: name.to_owned(),
            });
        }
        let head = file.read_range(entry.header, 30).map_err(cut)?;
        if !head.starts_with(&LOCAL) {
            return Err(broken("an entry is not where the list says"));
        }
        let name_len = u16::from_le_bytes([head[26], head[27]]);
        let extra_len = u16::from_le_bytes([head[28], head[29]]);
        let start = entry.header + 30 + u64::from(name_len) + u64::from(extra_len);
        match start.checked_add(entry.size) {
            Some(end) if end <= file.len() => Ok(start),
            _ => Err(broken("an entry reaches behind the end of the file")),
        }
    }
}

/// Number of entries, size and position of the list of contents.
fn directory(file: &PositionedFile) -> Result<(u64, u64, u64), Problem> {
    // The end record is the last thing but for a comment of at most 65,535 bytes.
    let tail = file.len().min(END_SIZE + 65_535);
    let start = file.len() - tail;
    let bytes = file.read_range(start, tail).map_err(cut)?;
    let at = (0..bytes.len().saturating_sub(END_SIZE as usize - 1))
        .rev()
        .find(|&at| bytes[at..].starts_with(&END))
        .ok_or_else(|| broken("it ends early"))?;
    let u16_at = |i: usize| u64::from(u16::from_le_bytes([bytes[at + i], bytes[at + i + 1]]));
    let u32_at = |i: usize| u16_at(i) | u16_at(i + 2) << 16;
    let (count, size, offset) = (u16_at(10), u32_at(12), u32_at(16));
    let end = start + at as u64;
    if count != 0xFFFF && size != 0xFFFF_FFFF && offset != 0xFFFF_FFFF {
        return Ok((count, size, offset));
    }
    // Numbers that do not fit are in a second record, found by a locator before the first.
    let Some(locator) = end.checked_sub(LOCATOR64_SIZE) else {
        return Ok((count, size, offset));
    };
    let mut input = Input::new(file, locator, end);
    if input.array().map_err(cut)? != LOCATOR64 {
        return Ok((count, size, offset));
    }
    input.skip(4).map_err(cut)?;
    let record = input.u64().map_err(cut)?;
    let mut input = Input::new(file, record, locator);
    if input.array().map_err(cut)? != END64 {
        return Err(broken("the record of its size is not where it should be"));
    }
    input.skip(28).map_err(cut)?;
    let count = input.u64().map_err(cut)?;
    let size = input.u64().map_err(cut)?;
    let offset = input.u64().map_err(cut)?;
    Ok((count, size, offset))
}

/// One entry of the list of contents.
fn central(input: &mut Input<'_>) -> Result<(String, ZipEntry), Problem> {
    if input.array().map_err(cut)? != CENTRAL {
        return Err(broken("its list of contents is damaged"));
    }
    input.skip(4).map_err(cut)?;
    let flags = input.u16().map_err(cut)?;
    let method = input.u16().map_err(cut)?;
    input.skip(8).map_err(cut)?;
    let stored = u64::from(input.u32().map_err(cut)?);
    let mut size = u64::from(input.u32().map_err(cut)?);
    let name_len = input.u16().map_err(cut)?;
    let extra_len = input.u16().map_err(cut)?;
    let comment_len = input.u16().map_err(cut)?;
    input.skip(8).map_err(cut)?;
    let mut header = u64::from(input.u32().map_err(cut)?);
    let name = input.bytes(name_len.into()).map_err(cut)?;
    let extra = input.bytes(extra_len.into()).map_err(cut)?;
    input.skip(comment_len.into()).map_err(cut)?;
    // The extra field 1 holds, in this order, those numbers that did not fit above.
    let mut wide = extra_field(&extra, 1).unwrap_or_default();
    for value in [
        (size == 0xFFFF_FFFF).then_some(&mut size),
        (stored == 0xFFFF_FFFF).then_some(&mut 0),
        (header == 0xFFFF_FFFF).then_some(&mut header),
    ]
    .into_iter()
    .flatten()
    {
        if let Some((number, rest)) = wide.split_first_chunk() {
            *value = u64::from_le_bytes(*number);
            wide = rest;
        }
    }
    let entry = ZipEntry {
        header,
        size,
        method,
        encrypted: flags & 1 != 0,
    };
    Ok((String::from_utf8_lossy(&name).into_owned(), entry))
}

fn extra_field(mut extra: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((head, rest)) = extra.split_first_chunk::<4>() {
        let id = u16::from_le_bytes([head[0], head[1]]);
        let len = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let content = rest.get(..len)?;
        if id == wanted {
            return Some(content);
        }
        extra = &rest[len..];
    }
    None
}
