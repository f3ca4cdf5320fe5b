//! Texts in files of films and sound.

use std::str;

type Reader = fn(&[u8], &mut dyn FnMut(String, &[u8])) -> Option<()>;

fn reader(bytes: &[u8]) -> Option<Reader> {
    match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Some(mp4),
        [0x1a, 0x45, 0xdf, 0xa3, ..] => Some(webm),
        [b'f', b'L', b'a', b'C', ..] => Some(flac),
        [b'O', b'g', b'g', b'S', ..] => Some(ogg),
        [b'I', b'D', b'3', ..] => Some(id3),
        _ => None,
    }
}

pub(super) fn is_known(bytes: &[u8]) -> bool {
    reader(bytes).is_some()
}

/// Calls for each text of a file in order, up to where it cannot be read.
pub(super) fn texts(bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) {
    if let Some(read) = reader(bytes) {
        read(bytes, add);
    }
}

/// The boxes in some bytes; stops at the first that is cut off.
fn boxes(mut data: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (size, rest) = data.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_first_chunk::<4>()?;
        let (content, rest) = match u32::from_be_bytes(*size) as usize {
            0 => (rest, &rest[rest.len()..]),
            1 => {
                let (size, rest) = rest.split_first_chunk::<8>()?;
                let size = usize::try_from(u64::from_be_bytes(*size)).ok()?;
                rest.split_at_checked(size.checked_sub(16)?)?
            }
            size => rest.split_at_checked(size.checked_sub(8)?)?,
        };
        data = rest;
        Some((*name, content))
    })
}

fn find<'a>(data: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    boxes(data).find(|(found, _)| found == name).map(|b| b.1)
}

/// Free keys and their texts in `moov/udta/meta`, or in `moov/meta`.
fn mp4(bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    let movie = find(bytes, b"moov")?;
    let user = find(movie, b"udta").unwrap_or_default();
    let in_user = find(user, b"meta").and_then(|m| m.get(4..));
    // QuickTime has it here, without a version.
    let meta = in_user.or_else(|| find(movie, b"meta"))?;
    let keys = find(meta, b"keys")?.get(8..)?;
    let keys: Vec<String> = boxes(keys)
        .take(1 << 12)
        .map(|(_, key)| String::from_utf8_lossy(key).into_owned())
        .collect();
    for (number, item) in boxes(find(meta, b"ilst")?) {
        let number = (u32::from_be_bytes(number) as usize).wrapping_sub(1);
        let text = find(item, b"data").and_then(|d| d.get(8..));
        if let (Some(key), Some(text)) = (keys.get(number), text) {
            add(key.clone(), text);
        }
    }
    Some(())
}

/// The elements in some bytes, with their names; one without a known size holds all that follows.
fn elements(mut data: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    std::iter::from_fn(move || {
        let (first, _) = data.split_first()?;
        let width = first.leading_zeros() as usize + 1;
        if width > 4 {
            return None;
        }
        let (name, rest) = data.split_at_checked(width)?;
        let id = name.iter().fold(0, |id, b| id << 8 | u32::from(*b));
        let (first, _) = rest.split_first()?;
        let width = first.leading_zeros() as usize + 1;
        if width > 8 {
            return None;
        }
        let (size, rest) = rest.split_at_checked(width)?;
        let value = size.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let value = value & ((1u64 << (7 * width)) - 1);
        let unknown = value == (1u64 << (7 * width)) - 1;
        let length = if unknown {
            rest.len()
        } else {
            usize::try_from(value).ok()?.min(rest.len())
        };
        data = &rest[length..];
        Some((id, &rest[..length]))
    })
}

/// Names are upper case in these files.
fn webm(bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    const SEGMENT: u32 = 0x1853_8067;
    const TAGS: u32 = 0x1254_C367;
    const TAG: u32 = 0x7373;
    const SIMPLE: u32 = 0x67C8;
    const NAME: u32 = 0x45A3;
    const TEXT: u32 = 0x4487;
    for (_, segment) in elements(bytes).filter(|(id, _)| *id == SEGMENT) {
        for (_, tags) in elements(segment).filter(|(id, _)| *id == TAGS) {
            for (_, tag) in elements(tags).filter(|(id, _)| *id == TAG) {
                for (_, simple) in elements(tag).filter(|(id, _)| *id == SIMPLE) {
                    let part = |wanted| elements(simple).find(|(id, _)| *id == wanted);
                    if let (Some((_, name)), Some((_, text))) = (part(NAME), part(TEXT)) {
                        let name = String::from_utf8_lossy(name).to_lowercase();
                        add(name, text);
                    }
                }
            }
        }
    }
    Some(())
}

/// `key=value`, each with its size before it; behind who wrote it.
fn comments(data: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    let piece = |data: &mut &[u8]| -> Option<Vec<u8>> {
        let (size, rest) = data.split_first_chunk::<4>()?;
        let (piece, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
        *data = rest;
        Some(piece.to_vec())
    };
    let mut data = data;
    piece(&mut data)?;
    let (count, rest) = data.split_first_chunk::<4>()?;
    data = rest;
    for _ in 0..u32::from_le_bytes(*count).min(1 << 12) {
        let entry = piece(&mut data)?;
        let at = entry.iter().position(|b| *b == b'=')?;
        // Names have no case; clients look for small letters.
        let key = String::from_utf8_lossy(&entry[..at]).to_lowercase();
        add(key, &entry[at + 1..]);
    }
    Some(())
}

fn flac(bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    let mut rest = bytes.get(4..)?;
    loop {
        let (head, behind) = rest.split_first_chunk::<4>()?;
        let size = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        let (content, behind) = behind.split_at_checked(size)?;
        if head[0] & 0x7f == 4 {
            return comments(content, add);
        }
        if head[0] & 0x80 != 0 {
            return None;
        }
        rest = behind;
    }
}

/// The second packet of the first stream.
fn ogg(mut bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    /// A workflow larger than that would not be taken anyway.
    const MOST: usize = 64 << 20;
    let mut packet = Vec::new();
    let mut number = 0;
    while bytes.starts_with(b"OggS") && packet.len() < MOST {
        let count = usize::from(*bytes.get(26)?);
        let lacing = bytes.get(27..27 + count)?;
        let size: usize = lacing.iter().map(|b| usize::from(*b)).sum();
        let mut content = bytes.get(27 + count..27 + count + size)?;
        for length in lacing {
            let (piece, rest) = content.split_at(usize::from(*length));
            content = rest;
            if number == 1 {
                packet.extend(piece);
            }
            if *length < 255 {
                if number == 1 {
                    let data = packet
                        .strip_prefix(b"OpusTags")
                        .or_else(|| packet.strip_prefix(b"\x03vorbis"))?;
                    return comments(data, add);
                }
                number += 1;
            }
        }
        bytes = &bytes[27 + count + size..];
    }
    None
}

/// User texts.
fn id3(bytes: &[u8], add: &mut dyn FnMut(String, &[u8])) -> Option<()> {
    let version = *bytes.get(3)?;
    let syncsafe = |b: &[u8]| b.iter().fold(0usize, |v, b| v << 7 | usize::from(b & 0x7f));
    let size = syncsafe(bytes.get(6..10)?);
    let mut rest = bytes.get(10..)?;
    rest = &rest[..size.min(rest.len())];
    while let Some((head, behind)) = rest.split_first_chunk::<10>() {
        let size = if version >= 4 {
            syncsafe(&head[4..8])
        } else {
            u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize
        };
        let (content, behind) = behind.split_at_checked(size)?;
        rest = behind;
        // In UTF-8, or in letters that are the same there.
        if head.starts_with(b"TXXX")
            && let [0 | 3, text @ ..] = content
            && let Some(at) = text.iter().position(|b| *b == 0)
            && let Ok(key) = str::from_utf8(&text[..at])
        {
            add(key.to_owned(), &text[at + 1..]);
        }
    }
    Some(())
}
