//! A film as it is, with other texts.

use std::io::{Read, Seek, SeekFrom, Write};

use super::read::{boxes, find};
use super::wrap;
use super::write::tag_box;
use crate::container::{Bytes, read_exact};
use crate::error::{MediaError, Result};
use crate::packet::Tags;

/// The largest index that is rewritten.
const LARGEST: u64 = 128 << 20;

/// Copies a file and adds texts; those of the file stay unless there is a new one of the same name.
///
/// The old index is left where it is, under a name that says it is free space: positions of coded data do not change. A film
/// of fragments, whose index has to come first, is copied without the texts.
pub fn copy_mp4(
    source: &mut (impl Read + Seek),
    out: &mut (impl Write + Seek),
    tags: &Tags,
) -> Result<()> {
    let end = source.seek(SeekFrom::End(0))?;
    let (mut index, mut fragments) = (None, false);
    let mut position = 0;
    while position + 8 <= end {
        source.seek(SeekFrom::Start(position))?;
        let head = read_exact(source, 8, "a box")?;
        let mut size = u64::from(Bytes(&head).u32()?);
        let mut header = 8;
        if size == 1 {
            size = Bytes(&read_exact(source, 8, "a box")?).u64()?;
            header = 16;
        } else if size == 0 {
            size = end - position;
        }
        let length = size
            .checked_sub(header)
            .ok_or_else(|| MediaError::damaged("a box is smaller than its header"))?;
        match &head[4..] {
            b"moov" if length <= LARGEST => {
                index = Some((position, read_exact(source, length, "the index")?));
            }
            b"moof" => fragments = true,
            _ => {}
        }
        position = position
            .checked_add(size)
            .ok_or_else(|| MediaError::damaged("a box without end"))?;
    }
    source.seek(SeekFrom::Start(0))?;
    std::io::copy(source, out)?;
    let Some((at, old)) = index.filter(|_| !fragments && !tags.is_empty()) else {
        out.flush()?;
        return Ok(());
    };
    let mut content = Vec::new();
    let mut kept = Vec::new();
    for (name, part) in boxes(&old) {
        if &name == b"udta" {
            kept = read_tags(part);
        } else {
            content.extend(wrap(&name, part));
        }
    }
    kept.retain(|(key, _)| tags.iter().all(|(new, _)| new != key));
    kept.extend(tags.iter().cloned());
    content.extend(wrap(b"udta", &tag_box(&kept)));
    out.write_all(&wrap(b"moov", &content))?;
    out.seek(SeekFrom::Start(at + 4))?;
    out.write_all(b"free")?;
    out.flush()?;
    Ok(())
}

/// The texts with free keys.
fn read_tags(user: &[u8]) -> Tags {
    let Some(meta) = find(user, &[b"meta"]).and_then(|m| m.get(4..)) else {
        return Tags::new();
    };
    let keys = find(meta, &[b"keys"])
        .and_then(|k| k.get(8..))
        .unwrap_or_default();
    let keys: Vec<String> = boxes(keys)
        .map(|(_, key)| String::from_utf8_lossy(key).into_owned())
        .collect();
    let items = find(meta, &[b"ilst"]).unwrap_or_default();
    boxes(items)
        .filter_map(|(number, item)| {
            let number = (u32::from_be_bytes(number) as usize).checked_sub(1)?;
            let text = find(item, &[b"data"])?.get(8..)?;
            let text = std::str::from_utf8(text).ok()?.to_owned();
            Some((keys.get(number)?.clone(), text))
        })
        .collect()
}
