//! The little of EXIF that matters here: orientation, and text tags used to carry workflows in WEBP files.

/// Tag of the orientation, 1 to 8.
const ORIENTATION: u16 = 0x0112;
/// Entries looked at in one directory; real files have a few dozen.
const MAX_ENTRIES: usize = 512;
/// Bytes of all texts together. Entries may point at the same bytes, so a file can hold far more text than it has bytes.
const MAX_TEXTS: usize = 64 << 20;

/// The orientation (1 to 8) in an EXIF block, with or without its `Exif\0\0` mark; 1 if there is none.
pub fn orientation(exif: &[u8]) -> u8 {
    let Some(tiff) = Tiff::open(exif) else {
        return 1;
    };
    tiff.entries()
        .find(|e| e.tag == ORIENTATION && e.kind == 3)
        .and_then(|e| tiff.u16(e.value_at))
        .and_then(|v| u8::try_from(v).ok())
        .filter(|v| (1..=8).contains(v))
        .unwrap_or(1)
}

/// The orientation in an XMP packet, which some programs write instead.
pub fn xmp_orientation(xmp: &[u8]) -> u8 {
    let text = String::from_utf8_lossy(xmp);
    let after = |mark: &str| {
        text.split_once(mark)
            .and_then(|(_, rest)| rest.bytes().next())
    };
    after("tiff:Orientation=\"")
        .or_else(|| after("tiff:Orientation>"))
        .filter(|b| (b'1'..=b'8').contains(b))
        .map_or(1, |b| b - b'0')
}

/// Text tags of the first directory, in file order. Those beyond a size that no honest file has are left out.
pub fn texts(exif: &[u8]) -> Vec<(u16, String)> {
    let Some(tiff) = Tiff::open(exif) else {
        return Vec::new();
    };
    let mut left = MAX_TEXTS;
    tiff.entries()
        .filter(|e| e.kind == 2)
        .filter_map(|e| {
            let at = if e.count <= 4 {
                e.value_at
            } else {
                tiff.u32(e.value_at)? as usize
            };
            let bytes = tiff.data.get(at..at.checked_add(e.count)?)?;
            left = left.checked_sub(e.count)?;
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            Some((e.tag, String::from_utf8_lossy(&bytes[..end]).into_owned()))
        })
        .collect()
}

/// An EXIF block (without mark) holding text tags; the format wants them in ascending order.
pub fn build(tags: &[(u16, String)]) -> Vec<u8> {
    let mut tags: Vec<&(u16, String)> = tags.iter().collect();
    tags.sort_by_key(|t| t.0);
    let mut out = b"II*\0\x08\0\0\0".to_vec();
    out.extend((tags.len() as u16).to_le_bytes());
    let mut data = Vec::new();
    let data_at = 8 + 2 + tags.len() * 12 + 4;
    for (tag, text) in tags {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        out.extend(tag.to_le_bytes());
        out.extend(2u16.to_le_bytes());
        out.extend((bytes.len() as u32).to_le_bytes());
        if bytes.len() <= 4 {
            bytes.resize(4, 0);
            out.extend(bytes);
        } else {
            out.extend(((data_at + data.len()) as u32).to_le_bytes());
            data.extend(bytes);
            if data.len() % 2 == 1 {
                data.push(0);
            }
        }
    }
    out.extend([0; 4]); // no further directory
    out.extend(data);
    out
}

struct Tiff<'a> {
    data: &'a [u8],
    big: bool,
    first: usize,
}

struct ExifEntry {
    tag: u16,
    kind: u16,
    count: usize,
    value_at: usize,
}

impl<'a> Tiff<'a> {
    fn open(exif: &'a [u8]) -> Option<Self> {
        let data = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        let big = match data.get(..4)? {
            b"II*\0" => false,
            b"MM\0*" => true,
            _ => return None,
        };
        let mut tiff = Self {
            data,
            big,
            first: 0,
        };
        tiff.first = tiff.u32(4)? as usize;
        Some(tiff)
    }

    fn u16(&self, at: usize) -> Option<u16> {
        let b: [u8; 2] = self.data.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big {
            u16::from_be_bytes(b)
        } else {
            u16::from_le_bytes(b)
        })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let b: [u8; 4] = self.data.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big {
            u32::from_be_bytes(b)
        } else {
            u32::from_le_bytes(b)
        })
    }

    fn entries(&self) -> impl Iterator<Item = ExifEntry> + '_ {
        let n = self.u16(self.first).map_or(0, usize::from).min(MAX_ENTRIES);
        (0..n).map_while(|i| {
            let at = self.first + 2 + i * 12;
            Some(ExifEntry {
                tag: self.u16(at)?,
                kind: self.u16(at + 2)?,
                count: self.u32(at + 4)? as usize,
                value_at: at + 8,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_orientation(big: bool, value: u16) -> Vec<u8> {
        let h16 = if big {
            u16::to_be_bytes
        } else {
            u16::to_le_bytes
        };
        let h32 = if big {
            u32::to_be_bytes
        } else {
            u32::to_le_bytes
        };
        let mut v = if big {
            b"MM\0*".to_vec()
        } else {
            b"II*\0".to_vec()
        };
        v.extend(h32(8));
        v.extend(h16(1));
        v.extend(h16(ORIENTATION));
        v.extend(h16(3));
        v.extend(h32(1));
        v.extend(h16(value));
        v.extend([0; 6]);
        v
    }

    #[test]
    fn both_byte_orders() {
        assert_eq!(orientation(&with_orientation(false, 6)), 6);
        assert_eq!(orientation(&with_orientation(true, 3)), 3);
        let mut marked = b"Exif\0\0".to_vec();
        marked.extend(with_orientation(true, 8));
        assert_eq!(orientation(&marked), 8);
        assert_eq!(orientation(&with_orientation(false, 9)), 1);
        assert_eq!(orientation(b""), 1);
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), 1);
        let cut = &with_orientation(false, 6)[..15];
        assert_eq!(orientation(cut), 1);
    }

    #[test]
    fn xmp() {
        assert_eq!(xmp_orientation(b"<x tiff:Orientation=\"6\"/>"), 6);
        assert_eq!(
            xmp_orientation(b"<tiff:Orientation>3</tiff:Orientation>"),
            3
        );
        assert_eq!(
            xmp_orientation(b"<tiff:Orientation>9</tiff:Orientation>"),
            1
        );
        assert_eq!(xmp_orientation(b"\xff\xfe"), 1);
    }

    #[test]
    fn texts_round_trip() {
        let tags = vec![
            (0x0110, "prompt:{\"a\": 1}".to_owned()),
            (0x010f, "workflow:{}".to_owned()),
            (0x010e, "x:y".to_owned()),
        ];
        let block = build(&tags);
        let mut back = texts(&block);
        assert!(back.is_sorted());
        back.reverse();
        assert_eq!(back, tags);
        for cut in 0..block.len() {
            texts(&block[..cut]); // no panic
        }
    }

    #[test]
    fn entries_that_share_their_bytes_do_not_multiply() {
        let long = "x".repeat(MAX_TEXTS / 4);
        let mut block = build(&[(1, "short".to_owned()), (2, long)]);
        // The length and the place of the long text, in ten more entries.
        let entry = block[8 + 2 + 12..][..12].to_vec();
        let count = 10_u16;
        let at = 8 + 2 + 24;
        let grown = usize::from(count) * 12;
        block[8..10].copy_from_slice(&(2 + count).to_le_bytes());
        block.splice(at..at, entry.repeat(count.into()));
        for i in 0..usize::from(2 + count) {
            let place = 8 + 2 + i * 12 + 8;
            let old = u32::from_le_bytes(block[place..place + 4].try_into().unwrap());
            let new = old + grown as u32;
            block[place..place + 4].copy_from_slice(&new.to_le_bytes());
        }
        let found = texts(&block);
        assert_eq!(found[0], (1, "short".to_owned()));
        // With the end of each text, the fourth is one byte too many.
        assert_eq!(found.len(), 1 + 3);
    }
}
