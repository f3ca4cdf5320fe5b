//! Text stored in pictures, films and sound: where workflows are found again.

use std::io::Read;

use flate2::read::ZlibDecoder;

use crate::exif;

mod media;

/// One entry and all entries together may not be larger than this, however well they compress.
const MAX_ENTRY: usize = 16 << 20;
const MAX_TOTAL: usize = 64 << 20;

const PNG_SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Keyed texts of a file in their order: PNG `tEXt`, `zTXt`, `iTXt` and `comf` chunks, EXIF texts `key:value` of WEBP, free keys
/// of MP4, tags of WebM (in small letters), comments of FLAC and Ogg, user texts of MP3. What cannot be read is left out; a
/// file without text, or of another kind, has none.
pub fn read_metadata(bytes: &[u8]) -> Vec<(String, String)> {
    let mut budget = MAX_TOTAL;
    let mut out = Vec::new();
    let mut add = |entry: Option<(String, String)>| {
        if let Some((key, value)) = entry
            && value.len() <= budget
        {
            budget -= value.len();
            out.push((key, value));
        }
    };
    if let Some(chunks) = png_chunks(bytes) {
        // What is unpacked counts, kept or not: a file can hold thousands of texts that are only large when unpacked.
        let mut work = MAX_TOTAL;
        for (kind, data) in chunks {
            match kind {
                b"tEXt" | b"comf" => add(plain(data)),
                b"zTXt" => add(compressed(data, &mut work)),
                b"iTXt" => add(international(data, &mut work)),
                _ => {}
            }
        }
    } else if let Some(mut chunks) = riff_chunks(bytes) {
        // The format has one such chunk; more are not looked at.
        if let Some((_, data)) = chunks.find(|(kind, _)| *kind == b"EXIF") {
            // Written from the highest tag down, so that is the order of the keys.
            for (_, text) in exif::texts(data).into_iter().rev() {
                add(text
                    .split_once(':')
                    .map(|(k, v)| (k.to_owned(), v.to_owned())));
            }
        }
    } else {
        media::texts(bytes, &mut |key, text| {
            let fits = text.len() <= MAX_ENTRY;
            let text = fits.then(|| std::str::from_utf8(text).ok()).flatten();
            add(text.map(|text| (key, text.to_owned())));
        });
    }
    out
}

/// Whether the bytes begin as those of a film or of sound do that may carry texts.
pub fn is_film_or_sound(bytes: &[u8]) -> bool {
    media::is_known(bytes)
}

/// The chunks of a PNG; none if it is not one. Stops at the first that is cut off.
pub(crate) fn png_chunks(bytes: &[u8]) -> Option<impl Iterator<Item = (&[u8; 4], &[u8])>> {
    let mut rest = bytes.strip_prefix(PNG_SIGNATURE)?;
    Some(std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (kind, after) = after.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let data = after.get(..length)?;
        rest = after.get(length + 4..).unwrap_or_default();
        Some((kind, data))
    }))
}

/// The chunks of a WEBP; none if it is not one. Stops at the first that is cut off.
pub(crate) fn riff_chunks(bytes: &[u8]) -> Option<impl Iterator<Item = (&[u8; 4], &[u8])>> {
    let rest = bytes
        .strip_prefix(b"RIFF")?
        .get(4..)?
        .strip_prefix(b"WEBP")?;
    Some(chunk_list(rest))
}

/// Chunks in the form RIFF uses, without a header before them.
pub(crate) fn chunk_list(mut rest: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (kind, after) = rest.split_first_chunk::<4>()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        let data = after.get(..length)?;
        rest = after
            .get(length.checked_add(length % 2)?..)
            .unwrap_or_default();
        Some((kind, data))
    })
}

fn split_nul(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = data.iter().position(|&b| b == 0)?;
    Some((&data[..at], &data[at + 1..]))
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| char::from(b)).collect()
}

fn plain(data: &[u8]) -> Option<(String, String)> {
    let (key, value) = split_nul(data)?;
    (value.len() <= MAX_ENTRY).then(|| (latin1(key), latin1(value)))
}

/// Unpacks an entry; `work` is how many bytes of all of them may still be unpacked.
fn inflate(data: &[u8], work: &mut usize) -> Option<Vec<u8>> {
    /// Beginning costs something too.
    const LEAST: usize = 1024;
    *work = work.checked_sub(LEAST)?;
    let most = MAX_ENTRY.min(*work);
    let mut out = Vec::new();
    let read = ZlibDecoder::new(data)
        .take(most as u64 + 1)
        .read_to_end(&mut out);
    *work = work.saturating_sub(out.len());
    read.ok()?;
    (out.len() <= most).then_some(out)
}

fn compressed(data: &[u8], work: &mut usize) -> Option<(String, String)> {
    let (key, rest) = split_nul(data)?;
    let (&method, rest) = rest.split_first()?;
    (method == 0).then_some(())?;
    Some((latin1(key), latin1(&inflate(rest, work)?)))
}

fn international(data: &[u8], work: &mut usize) -> Option<(String, String)> {
    let (key, rest) = split_nul(data)?;
    let (&[packed, method], rest) = rest.split_first_chunk::<2>()?;
    let (_language, rest) = split_nul(rest)?;
    let (_translated, rest) = split_nul(rest)?;
    let text = match (packed, method) {
        (0, _) if rest.len() <= MAX_ENTRY => rest.to_vec(),
        (1, 0) => inflate(rest, work)?,
        _ => return None,
    };
    Some((latin1(key), String::from_utf8(text).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write;

    fn chunk(kind: [u8; 4], data: &[u8]) -> Vec<u8> {
        let mut v = (data.len() as u32).to_be_bytes().to_vec();
        v.extend(kind);
        v.extend(data);
        v.extend([0; 4]);
        v
    }

    fn zip(data: &[u8]) -> Vec<u8> {
        let mut e = ZlibEncoder::new(Vec::new(), Compression::fast());
        e.write_all(data).unwrap();
        e.finish().unwrap()
    }

    fn png(chunks: &[Vec<u8>]) -> Vec<u8> {
        let mut v = PNG_SIGNATURE.to_vec();
        v.extend(chunks.iter().flatten());
        v
    }

    fn pair(k: &str, v: &str) -> (String, String) {
        (k.to_owned(), v.to_owned())
    }

    #[test]
    fn every_kind_of_png_text() {
        let file = png(&[
            chunk(*b"IHDR", &[0; 13]),
            chunk(*b"tEXt", b"prompt\0{\xe9}"),
            chunk(*b"zTXt", &[b"z\0\0".to_vec(), zip(b"zip")].concat()),
            chunk(*b"iTXt", "i\0\0\0en\0x\0漢".as_bytes()),
            chunk(
                *b"iTXt",
                &[b"j\0\x01\0\0\0".to_vec(), zip("ü".as_bytes())].concat(),
            ),
            chunk(*b"IDAT", &[]),
            chunk(*b"comf", b"workflow\0[]"),
            chunk(*b"IEND", &[]),
        ]);
        let want = [
            pair("prompt", "{é}"),
            pair("z", "zip"),
            pair("i", "漢"),
            pair("j", "ü"),
            pair("workflow", "[]"),
        ];
        assert_eq!(read_metadata(&file), want);
        for cut in 0..file.len() {
            assert!(read_metadata(&file[..cut]).len() <= want.len());
        }
    }

    #[test]
    fn bombs_and_nonsense_are_left_out() {
        let bomb = zip(&vec![b'x'; MAX_ENTRY + 1]);
        let file = png(&[
            chunk(*b"zTXt", &[b"z\0\0".to_vec(), bomb].concat()),
            chunk(*b"zTXt", b"z\0\x01data"),
            chunk(*b"iTXt", b"k\0\0\0\0\0\xff\xfe"),
            chunk(*b"tEXt", b"no separator"),
            chunk(*b"tEXt", b"k\0v"),
        ]);
        assert_eq!(read_metadata(&file), [pair("k", "v")]);
        assert!(read_metadata(b"").is_empty());
        assert!(read_metadata(b"RIFF\xff\xff\xff\xffWEBPEXIF\xff\xff\xff\xff").is_empty());
    }

    #[test]
    fn many_bombs_are_not_all_unpacked() {
        let bomb = zip(&vec![b'x'; MAX_ENTRY + 1]);
        let bad = chunk(*b"zTXt", &[b"z\0\0".to_vec(), bomb].concat());
        let good = chunk(*b"zTXt", &[b"k\0\0".to_vec(), zip(b"v")].concat());
        let few = png(&[vec![bad.clone(); 3].concat(), good.clone()]);
        assert_eq!(read_metadata(&few), [pair("k", "v")]);
        // Beyond the limit nothing is unpacked any more; what needs no unpacking is still read.
        let plain = chunk(*b"tEXt", b"p\0q");
        let many = png(&[vec![bad; 5].concat(), good, plain]);
        assert_eq!(read_metadata(&many), [pair("p", "q")]);
        let mut work = 0;
        assert_eq!(inflate(&zip(b"v"), &mut work), None);
    }

    #[test]
    fn sound_and_films_cut_off_anywhere_are_no_trouble() {
        let element = |id: &[u8], content: &[u8]| {
            let size = (1u32 << 28 | content.len() as u32).to_be_bytes();
            [id, &size, content].concat()
        };
        let simple = [
            element(&[0x45, 0xa3], b"PROMPT"),
            element(&[0x44, 0x87], b"{}"),
        ];
        let tag = element(&[0x73, 0x73], &element(&[0x67, 0xc8], &simple.concat()));
        let tags = element(&[0x12, 0x54, 0xc3, 0x67], &tag);
        let webm = [
            element(&[0x1a, 0x45, 0xdf, 0xa3], b""),
            element(&[0x18, 0x53, 0x80, 0x67], &tags),
        ]
        .concat();
        let mut comments = vec![1, 0, 0, 0, b'x', 1, 0, 0, 0, 9, 0, 0, 0];
        comments.extend(b"PROMPT={}");
        let mut flac = b"fLaC\x84\0\0".to_vec();
        flac.push(comments.len() as u8);
        flac.extend(&comments);
        let id3 = b"ID3\x04\0\0\0\0\0\x14TXXX\0\0\0\x0a\0\0\x03prompt\0{}".to_vec();
        for file in [webm, flac, id3] {
            assert_eq!(read_metadata(&file), [pair("prompt", "{}")]);
            for cut in 0..file.len() {
                assert!(read_metadata(&file[..cut]).len() <= 1);
            }
        }
    }

    #[test]
    fn webp_exif() {
        let block = exif::build(&[
            (0x0110, "prompt:{\"a\": 1}".into()),
            (0x010f, "workflow:[]".into()),
        ]);
        let mut file = b"RIFF\0\0\0\0WEBPEXIF".to_vec();
        file.extend((block.len() as u32).to_le_bytes());
        file.extend(block);
        assert_eq!(
            read_metadata(&file),
            [pair("prompt", "{\"a\": 1}"), pair("workflow", "[]")]
        );
    }
}
