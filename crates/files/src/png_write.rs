//! PNG and animated PNG writer: 8-bit RGB and RGBA with text chunks where the reference puts them.
//!
//! Written by hand rather than through the `png` crate because the order of private chunks and frame chunks is part of
//! the format other programs read, and because small previews must cost next to nothing.

use std::io::{self, Write};

use flate2::Crc;

use crate::png_data::{self, Wanted};

const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];
/// Compression level of saved pictures.
pub const LEVEL_SAVE: u8 = 4;
/// Compression level of previews.
pub const LEVEL_PREVIEW: u8 = 1;

/// A picture could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("cannot encode a picture of {width} x {height} pixels")]
    Size { width: u32, height: u32 },
    #[error("picture data has {got} bytes, {want} expected")]
    Data { got: usize, want: usize },
    #[error("an animation needs at least one frame")]
    NoFrames,
    #[error("metadata key {key:?} is not 1 to 79 printable Latin-1 characters")]
    Key { key: String },
    #[error("encoder failed: {what}")]
    Encoder { what: String },
    #[error("stopped: the picture is not wanted any more")]
    Stopped,
}

/// Channels of the pixel data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pixels {
    Rgb,
    Rgba,
}

impl Pixels {
    pub fn channels(self) -> usize {
        match self {
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }

    /// 3 channels are RGB, 4 are RGBA; nothing else can be saved.
    pub fn from_channels(channels: usize) -> Option<Self> {
        match channels {
            3 => Some(Self::Rgb),
            4 => Some(Self::Rgba),
            _ => None,
        }
    }
}

/// Pixels to encode: row-major, 8 bits a channel, no padding.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    pub width: u32,
    pub height: u32,
    pub pixels: Pixels,
    pub data: &'a [u8],
}

impl<'a> Picture<'a> {
    /// Checks that the data fits the size.
    pub fn new(
        width: u32,
        height: u32,
        pixels: Pixels,
        data: &'a [u8],
    ) -> Result<Self, EncodeError> {
        let want = width as usize * height as usize * pixels.channels();
        if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
            return Err(EncodeError::Size { width, height });
        }
        if data.len() != want {
            return Err(EncodeError::Data {
                got: data.len(),
                want,
            });
        }
        Ok(Self {
            width,
            height,
            pixels,
            data,
        })
    }
}

/// Where the pixels of a picture come from.
#[derive(Clone, Copy)]
enum Rows<'a> {
    Stored(&'a [u8]),
    Made(&'a (dyn Fn(usize, &mut [u8]) + Sync)),
}

/// A picture whose rows may be made when they are encoded, so that it is never in memory in 8 bits.
#[derive(Clone, Copy)]
pub struct RowPicture<'a> {
    pub width: u32,
    pub height: u32,
    pub pixels: Pixels,
    rows: Rows<'a>,
}

impl<'a> RowPicture<'a> {
    /// `row` writes a row, by its number from above, in 8 bits a channel. Any thread asks for any row, and for some of them twice.
    pub fn new(
        width: u32,
        height: u32,
        pixels: Pixels,
        row: &'a (dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Result<Self, EncodeError> {
        if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
            return Err(EncodeError::Size { width, height });
        }
        Ok(Self {
            width,
            height,
            pixels,
            rows: Rows::Made(row),
        })
    }

    /// Bytes of a row.
    pub(crate) fn stride(&self) -> usize {
        self.width as usize * self.pixels.channels()
    }

    pub(crate) fn row(&self, at: usize, out: &mut [u8]) {
        match self.rows {
            Rows::Stored(data) => out.copy_from_slice(&data[at * out.len()..][..out.len()]),
            Rows::Made(row) => row(at, out),
        }
    }
}

impl<'a> From<&Picture<'a>> for RowPicture<'a> {
    fn from(picture: &Picture<'a>) -> Self {
        Self {
            width: picture.width,
            height: picture.height,
            pixels: picture.pixels,
            rows: Rows::Stored(picture.data),
        }
    }
}

/// A whole PNG file in memory, in the pieces in which threads made it.
#[derive(Debug)]
pub struct PngFile {
    pieces: Vec<Vec<u8>>,
}

impl PngFile {
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        self.pieces
            .iter()
            .try_for_each(|piece| out.write_all(piece))
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.pieces.concat()
    }
}

/// Encodes one picture; `text` becomes `tEXt` chunks before the image data, in the given order.
pub fn encode_png(
    picture: &Picture,
    text: &[(String, String)],
    level: u8,
) -> Result<Vec<u8>, EncodeError> {
    encode_png_while(picture, text, level, &|| true)
}

/// As [`encode_png`], as long as it is `wanted`: a large picture takes its time.
pub fn encode_png_while(
    picture: &Picture,
    text: &[(String, String)],
    level: u8,
    wanted: Wanted<'_>,
) -> Result<Vec<u8>, EncodeError> {
    Ok(encode_rows_while(&picture.into(), text, level, wanted)?.into_bytes())
}

/// As [`encode_png_while`], for a file that need not be one piece.
pub fn encode_rows_while(
    picture: &RowPicture,
    text: &[(String, String)],
    level: u8,
    wanted: Wanted<'_>,
) -> Result<PngFile, EncodeError> {
    let mut head = Vec::new();
    header(&mut head, picture.width, picture.height, picture.pixels);
    for (key, value) in text {
        chunk(&mut head, *b"tEXt", &keyed(key, value)?);
    }
    let mut pieces = vec![head];
    let open = |_| OpenChunk::new(*b"IDAT");
    pieces.extend(png_data::compress(picture, level, &open, wanted)?);
    let mut end = Vec::new();
    chunk(&mut end, *b"IEND", &[]);
    pieces.push(end);
    Ok(PngFile { pieces })
}

/// Encodes an animation with full frames; `text` becomes private `comf` chunks after the image data. A single frame
/// gives an ordinary PNG.
pub fn encode_apng(
    frames: &[Picture],
    duration_ms: u32,
    text: &[(String, String)],
    level: u8,
) -> Result<Vec<u8>, EncodeError> {
    encode_apng_while(frames, duration_ms, text, level, &|| true)
}

/// As [`encode_apng`], as long as it is `wanted`.
pub fn encode_apng_while(
    frames: &[Picture],
    duration_ms: u32,
    text: &[(String, String)],
    level: u8,
    wanted: Wanted<'_>,
) -> Result<Vec<u8>, EncodeError> {
    let first = frames.first().ok_or(EncodeError::NoFrames)?;
    let mut out = Vec::new();
    header(&mut out, first.width, first.height, first.pixels);
    let animated = frames.len() > 1;
    if animated {
        let mut actl = (frames.len() as u32).to_be_bytes().to_vec();
        actl.extend([0; 4]); // plays for ever
        chunk(&mut out, *b"acTL", &actl);
    }
    let mut sequence = 0u32;
    for (i, frame) in frames.iter().enumerate() {
        if (frame.width, frame.height, frame.pixels) != (first.width, first.height, first.pixels) {
            return Err(EncodeError::Size {
                width: frame.width,
                height: frame.height,
            });
        }
        if animated {
            let mut fctl = Vec::with_capacity(26);
            for n in [sequence, frame.width, frame.height, 0, 0] {
                fctl.extend(n.to_be_bytes());
            }
            let (num, den) = delay(duration_ms);
            fctl.extend(num.to_be_bytes());
            fctl.extend(den.to_be_bytes());
            fctl.extend([0, 0]); // keep the frame, replace what is under it
            chunk(&mut out, *b"fcTL", &fctl);
            sequence += 1;
        }
        let open = |part: usize| {
            if i == 0 {
                return OpenChunk::new(*b"IDAT");
            }
            // Frames after the first have numbers of their chunks before the data.
            let mut numbered = OpenChunk::new(*b"fdAT");
            let number = sequence + part as u32;
            numbered.data().extend(number.to_be_bytes());
            numbered
        };
        let chunks = png_data::compress(&frame.into(), level, &open, wanted)?;
        if i > 0 {
            sequence += chunks.len() as u32;
        }
        out.extend(chunks.iter().flatten());
    }
    for (key, value) in text {
        chunk(&mut out, *b"comf", &keyed(key, value)?);
    }
    chunk(&mut out, *b"IEND", &[]);
    Ok(out)
}

/// Milliseconds as the smallest fraction of seconds that fits two 16-bit numbers.
fn delay(ms: u32) -> (u16, u16) {
    let mut a = ms;
    let mut b = 1000;
    while b != 0 {
        (a, b) = (b, a % b);
    }
    match (u16::try_from(ms / a), u16::try_from(1000 / a)) {
        (Ok(num), Ok(den)) => (num, den),
        // Over a minute; nobody misses the milliseconds.
        _ => (u16::try_from(ms / 1000).unwrap_or(u16::MAX), 1),
    }
}

fn header(out: &mut Vec<u8>, width: u32, height: u32, pixels: Pixels) {
    out.extend(SIGNATURE);
    let mut ihdr = Vec::with_capacity(13);
    ihdr.extend(width.to_be_bytes());
    ihdr.extend(height.to_be_bytes());
    let colour = match pixels {
        Pixels::Rgb => 2,
        Pixels::Rgba => 6,
    };
    ihdr.extend([8, colour, 0, 0, 0]);
    chunk(out, *b"IHDR", &ihdr);
}

/// Writes a picture whose rows come one after the other, as quickly as a preview.
pub struct PngRows<W: Write> {
    compressor: fdeflate::Compressor<ImageChunks<W>>,
    above: Vec<u8>,
    filtered: Vec<u8>,
}

impl<W: Write> PngRows<W> {
    pub fn new(mut out: W, width: u32, height: u32, pixels: Pixels) -> io::Result<Self> {
        let mut head = Vec::new();
        header(&mut head, width, height, pixels);
        out.write_all(&head)?;
        let chunks = ImageChunks {
            out,
            data: Vec::new(),
        };
        Ok(Self {
            compressor: fdeflate::Compressor::new(chunks)?,
            above: vec![0; width as usize * pixels.channels()],
            filtered: Vec::new(),
        })
    }

    /// Adds whole rows.
    pub fn rows(&mut self, data: &[u8]) -> io::Result<()> {
        for row in data.chunks_exact(self.above.len().max(1)) {
            self.filtered.resize(row.len() + 1, 0);
            self.filtered[0] = 2;
            for ((out, x), b) in self.filtered[1..].iter_mut().zip(row).zip(&self.above) {
                *out = x.wrapping_sub(*b);
            }
            self.compressor.write_data(&self.filtered)?;
            self.above.copy_from_slice(row);
        }
        Ok(())
    }

    /// Ends the file. The caller has added as many rows as it promised.
    pub fn finish(self) -> io::Result<W> {
        let mut chunks = self.compressor.finish()?;
        chunks.flush_chunk()?;
        let mut end = Vec::new();
        chunk(&mut end, *b"IEND", &[]);
        chunks.out.write_all(&end)?;
        Ok(chunks.out)
    }
}

/// Puts compressed data into chunks of the file.
struct ImageChunks<W> {
    out: W,
    data: Vec<u8>,
}

impl<W: Write> ImageChunks<W> {
    const SIZE: usize = 256 << 10;

    fn flush_chunk(&mut self) -> io::Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        let mut out = Vec::with_capacity(self.data.len() + 12);
        chunk(&mut out, *b"IDAT", &self.data);
        self.data.clear();
        self.out.write_all(&out)
    }
}

impl<W: Write> Write for ImageChunks<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.data.extend(bytes);
        if self.data.len() >= Self::SIZE {
            self.flush_chunk()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    let mut chunk = OpenChunk::new(kind);
    chunk.data().extend(data);
    out.extend(chunk.close());
}

/// A chunk whose data is still being added. Chunks of more than 4 GiB do not exist: nothing that is encoded in one is that large.
pub(crate) struct OpenChunk(Vec<u8>);

impl OpenChunk {
    /// Bytes of the length before the name.
    const LENGTH: usize = 4;

    pub(crate) fn new(kind: [u8; 4]) -> Self {
        let mut bytes = vec![0; Self::LENGTH];
        bytes.extend(kind);
        Self(bytes)
    }

    /// What was added so far, after length and name.
    pub(crate) fn data(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The chunk with its length and checksum.
    pub(crate) fn close(self) -> Vec<u8> {
        let mut bytes = self.0;
        let length = (bytes.len() - Self::LENGTH - 4) as u32;
        bytes[..Self::LENGTH].copy_from_slice(&length.to_be_bytes());
        let mut crc = Crc::new();
        crc.update(&bytes[Self::LENGTH..]);
        bytes.extend(crc.sum().to_be_bytes());
        bytes
    }
}

/// `key NUL value` in Latin-1; characters beyond it become `?` (JSON text is escaped and has none).
fn keyed(key: &str, value: &str) -> Result<Vec<u8>, EncodeError> {
    let printable = |c: char| matches!(c as u32, 0x20..=0x7e | 0xa1..=0xff);
    let count = key.chars().count();
    if !(1..=79).contains(&count) || !key.chars().all(printable) {
        return Err(EncodeError::Key {
            key: key.to_owned(),
        });
    }
    let mut out = Vec::with_capacity(key.len() + value.len() + 1);
    let latin = |c: char| u8::try_from(c as u32).unwrap_or(b'?');
    out.extend(key.chars().map(latin));
    out.push(0);
    if value.is_ascii() {
        out.extend(value.as_bytes());
    } else {
        out.extend(value.chars().map(latin));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize) -> Vec<u8> {
        let mut x = 0x2545_f491_4f6c_dd1d_u64;
        (0..n)
            .map(|i| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                // Half smooth, half random, so that every filter wins somewhere.
                if (i / 97) % 2 == 0 {
                    (i / 5) as u8
                } else {
                    x as u8
                }
            })
            .collect()
    }

    fn kinds(png: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut at = 8;
        let mut out = Vec::new();
        while at < png.len() {
            let n = u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
            let kind = String::from_utf8(png[at + 4..at + 8].to_vec()).unwrap();
            out.push((kind, png[at + 8..at + 8 + n].to_vec()));
            at += n + 12;
        }
        out
    }

    fn text(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn every_level_round_trips_through_another_decoder() {
        for (pixels, w, h) in [
            (Pixels::Rgb, 53, 37),
            (Pixels::Rgba, 64, 64),
            (Pixels::Rgb, 1, 1),
            (Pixels::Rgba, 1, 300),
        ] {
            let data = noise((w * h) as usize * pixels.channels());
            for level in 0..=9 {
                let png =
                    encode_png(&Picture::new(w, h, pixels, &data).unwrap(), &[], level).unwrap();
                let mut reader = png::Decoder::new(std::io::Cursor::new(&png))
                    .read_info()
                    .unwrap();
                let mut back = vec![0; reader.output_buffer_size().unwrap()];
                reader.next_frame(&mut back).unwrap();
                assert_eq!(back, data, "{pixels:?} {w}x{h} level {level}");
            }
        }
    }

    #[test]
    fn large_noise_needs_more_room_than_guessed() {
        let mut x = 1u32;
        let data: Vec<u8> = (0..300 * 300 * 3)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) as u8
            })
            .collect();
        let png = encode_png(&Picture::new(300, 300, Pixels::Rgb, &data).unwrap(), &[], 4).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&png))
            .read_info()
            .unwrap();
        let mut back = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut back).unwrap();
        assert_eq!(back, data);
    }

    #[test]
    fn text_comes_before_the_data_in_order() {
        let data = [0; 3];
        let png = encode_png(
            &Picture::new(1, 1, Pixels::Rgb, &data).unwrap(),
            &text(&[("prompt", "{}"), ("workflow", "é漢")]),
            4,
        )
        .unwrap();
        let c = kinds(&png);
        let names: Vec<_> = c.iter().map(|c| c.0.as_str()).collect();
        assert_eq!(names, ["IHDR", "tEXt", "tEXt", "IDAT", "IEND"]);
        assert_eq!(c[1].1, b"prompt\0{}");
        assert_eq!(c[2].1, b"workflow\0\xe9?");
    }

    #[test]
    fn animation_has_the_chunks_of_the_reference() {
        let data: Vec<Vec<u8>> = (0..3u8).map(|i| vec![i; 23 * 19 * 3]).collect();
        let frames: Vec<_> = data
            .iter()
            .map(|d| Picture::new(23, 19, Pixels::Rgb, d).unwrap())
            .collect();
        let png = encode_apng(
            &frames,
            166,
            &text(&[("prompt", "{}"), ("workflow", "[]")]),
            4,
        )
        .unwrap();
        let c = kinds(&png);
        let names: Vec<_> = c.iter().map(|c| c.0.as_str()).collect();
        assert_eq!(
            names,
            [
                "IHDR", "acTL", "fcTL", "IDAT", "fcTL", "fdAT", "fcTL", "fdAT", "comf", "comf",
                "IEND"
            ]
        );
        let hex = |b: &[u8]| b.iter().fold(String::new(), |s, b| s + &format!("{b:02x}"));
        assert_eq!(hex(&c[1].1), "0000000300000000");
        assert_eq!(
            hex(&c[2].1),
            "0000000000000017000000130000000000000000005301f40000"
        );
        assert_eq!(
            hex(&c[4].1),
            "0000000100000017000000130000000000000000005301f40000"
        );
        assert_eq!(
            hex(&c[6].1),
            "0000000300000017000000130000000000000000005301f40000"
        );
        assert_eq!(c[8].1, b"prompt\0{}");
        let one = encode_apng(&frames[..1], 41, &[], 0).unwrap();
        let names: Vec<_> = kinds(&one).into_iter().map(|c| c.0).collect();
        assert_eq!(names, ["IHDR", "IDAT", "IEND"]);
    }

    #[test]
    fn rows_one_by_one_make_the_same_picture() {
        for (pixels, width, height) in [(Pixels::Rgb, 301, 400), (Pixels::Rgba, 1, 7)] {
            let size = width as usize * height as usize * pixels.channels();
            let data: Vec<u8> = (0..size).map(|i| (i * i / 7) as u8).collect();
            let mut writer = PngRows::new(Vec::new(), width, height, pixels).unwrap();
            for band in data.chunks(width as usize * pixels.channels() * 3) {
                writer.rows(band).unwrap();
            }
            let bytes = writer.finish().unwrap();
            let decoded = crate::decode(&bytes, &crate::Limits::default()).unwrap();
            assert!(!decoded.truncated);
            let frame = decoded.first();
            let same = match pixels {
                Pixels::Rgb => frame.rgb8() == data,
                Pixels::Rgba => frame.rgba8() == data,
            };
            assert!(same, "{pixels:?}");
        }
    }

    #[test]
    fn delays_fit() {
        assert_eq!(delay(166), (83, 500));
        assert_eq!(delay(1000), (1, 1));
        assert_eq!(delay(0), (0, 1));
        assert_eq!(delay(100_001), (100, 1));
        assert_eq!(delay(u32::MAX), (u16::MAX, 1));
    }

    #[test]
    fn wrong_arguments_are_errors() {
        assert!(matches!(
            Picture::new(0, 1, Pixels::Rgb, &[]),
            Err(EncodeError::Size { .. })
        ));
        assert!(matches!(
            Picture::new(2, 1, Pixels::Rgb, &[0; 5]),
            Err(EncodeError::Data { got: 5, want: 6 })
        ));
        assert!(matches!(
            encode_apng(&[], 1, &[], 4),
            Err(EncodeError::NoFrames)
        ));
        let p = Picture::new(1, 1, Pixels::Rgb, &[0; 3]).unwrap();
        for key in ["", "a\0b", "漢", &"k".repeat(80)] {
            assert!(matches!(
                encode_png(&p, &text(&[(key, "")]), 4),
                Err(EncodeError::Key { .. })
            ));
        }
        let q = Picture::new(1, 1, Pixels::Rgba, &[0; 4]).unwrap();
        assert!(encode_apng(&[p, q], 1, &[], 4).is_err());
        assert!(Pixels::from_channels(1).is_none());
    }
}
