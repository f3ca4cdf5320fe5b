//! Pictures in bands of rows: a large PNG is looked through without ever being in memory as a whole.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

use super::png::Rows;
use super::reduce::Reducer;
use super::{Budget, Format, Frame, ImageError, Limits, Raw, decode_within};
use crate::memory::MemoryGuard;
use crate::metadata::{png_chunks, read_metadata};

/// Rows of a decoded picture that are handed over at once.
const ROWS: u32 = 64;
/// Chunks of a PNG that are looked at for its orientation, and bytes of them.
const MAX_CHUNKS: usize = 100_000;
const MAX_SKIMMED: u64 = 8 << 20;
const SIGNATURE: u64 = 8;

/// The first picture of a file, upright, from its first row to its last.
pub struct Bands<R: Read + Seek> {
    width: u32,
    height: u32,
    limits: Limits,
    source: Source<R>,
}

enum Source<R: Read + Seek> {
    Rows(Box<Rows<BufReader<R>>>),
    Whole(Box<Frame>, u32),
}

impl<R: Read + Seek> Bands<R> {
    /// Opens a picture. One that can be read row by row is; of others the whole is decoded here, and its memory asked for.
    pub fn open(from: R, limits: &Limits, memory: &MemoryGuard) -> Result<Self, ImageError> {
        let limits = Limits {
            first_only: true,
            ..*limits
        };
        let mut from = BufReader::with_capacity(64 << 10, from);
        let size = from.seek(SeekFrom::End(0))?;
        if size == 0 {
            return Err(ImageError::Empty);
        }
        if size > limits.bytes as u64 {
            return Err(ImageError::TooLarge {
                bytes: size as usize,
                limit: limits.bytes,
            });
        }
        from.rewind()?;
        if Format::guess(from.fill_buf()?) == Some(Format::Png) && comes_in_order(&mut from)? {
            from.rewind()?;
            let rows = Rows::open(from)?;
            let (width, height) = (rows.info.width, rows.info.height);
            let mut budget = Budget::new(&limits, memory);
            budget.frame(width, height)?;
            // Some rows and what the decoder keeps.
            budget.claim(width, 16, 16)?;
            return Ok(Self {
                width,
                height,
                limits,
                source: Source::Rows(Box::new(rows)),
            });
        }
        from.rewind()?;
        let _claim = memory.claim(size, "the picture file")?;
        let mut bytes = Vec::with_capacity(size as usize);
        from.read_to_end(&mut bytes)?;
        let frame = decode_within(&bytes, &limits, memory)?
            .frames
            .swap_remove(0);
        Ok(Self {
            width: frame.width,
            height: frame.height,
            limits,
            source: Source::Whole(Box::new(frame), 0),
        })
    }

    pub fn width(&self) -> u32 {
        self.width
    }

    pub fn height(&self) -> u32 {
        self.height
    }

    /// The next rows; none after the last.
    pub fn next_band(&mut self) -> Result<Option<Frame>, ImageError> {
        Budget::new(&self.limits, &MemoryGuard::default()).on_time()?;
        Ok(match &mut self.source {
            Source::Rows(rows) => rows.band(),
            Source::Whole(frame, done) => {
                let count = ROWS.min(frame.height - *done);
                let band = (count > 0).then(|| frame.rows(*done, count));
                *done += count;
                band
            }
        })
    }
}

/// How large a reduced picture may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallerThan {
    pub pixels: u64,
    /// Longest edge.
    pub edge: u32,
}

impl SmallerThan {
    /// The smallest whole number by which a picture is divided to fit.
    fn factor(self, width: u32, height: u32) -> u32 {
        let mut factor = width.max(height).div_ceil(self.edge.max(1)).max(1);
        let fits = |factor: u32| {
            let (w, h) = (width.div_ceil(factor), height.div_ceil(factor));
            u64::from(w) * u64::from(h) <= self.pixels.max(1)
        };
        while !fits(factor) {
            factor += 1;
        }
        factor
    }
}

/// The first picture of a file, made smaller by a whole number if it is larger than wanted.
pub fn decode_reduced(
    from: impl Read + Seek,
    limits: &Limits,
    memory: &MemoryGuard,
    wanted: SmallerThan,
) -> Result<Frame, ImageError> {
    let mut bands = Bands::open(from, limits, memory)?;
    let factor = wanted.factor(bands.width, bands.height);
    let bands = match bands.source {
        Source::Whole(frame, _) if factor == 1 => return Ok(*frame),
        source => {
            bands.source = source;
            &mut bands
        }
    };
    let small = u64::from(bands.width.div_ceil(factor)) * u64::from(bands.height.div_ceil(factor));
    let _claim = memory.claim(small * 4, "the reduced picture")?;
    let mut reducer = Reducer::new(bands.width, bands.height, factor);
    while let Some(band) = bands.next_band()? {
        reducer.push(&band);
    }
    Ok(reducer.finish())
}

/// Whether the rows of a PNG come in the order in which they are shown: it is neither interlaced nor turned. Its picture
/// data is skipped; one with too many chunks is decoded as a whole.
fn comes_in_order(from: &mut (impl BufRead + Seek)) -> Result<bool, ImageError> {
    let mut kept = vec![0; SIGNATURE as usize];
    from.read_exact(&mut kept)?;
    for _ in 0..MAX_CHUNKS {
        let mut head = [0; 8];
        if from.read_exact(&mut head).is_err() {
            // A file that is cut off ends here.
            return Ok(orientation(&kept) == 1);
        }
        let [a, b, c, d, kind @ ..] = head;
        let length = u64::from(u32::from_be_bytes([a, b, c, d])) + 4;
        let told = matches!(&kind, b"IHDR" | b"eXIf" | b"tEXt" | b"zTXt" | b"iTXt");
        if told && kept.len() as u64 + length <= MAX_SKIMMED {
            kept.extend(head);
            from.by_ref().take(length).read_to_end(&mut kept)?;
            // Signature, length and kind, then twelve bytes of the header before its last.
            if kind == *b"IHDR" && kept.get(28) != Some(&0) {
                return Ok(false);
            }
        } else if kind == *b"IEND" {
            return Ok(orientation(&kept) == 1);
        } else {
            from.seek_relative(length as i64)?;
        }
    }
    Ok(false)
}

fn orientation(chunks: &[u8]) -> u8 {
    let exif = png_chunks(chunks)
        .into_iter()
        .flatten()
        .find(|(kind, _)| *kind == b"eXIf")
        .map(|(_, data)| data.to_vec());
    let raw = Raw {
        exif,
        ..Raw::default()
    };
    match raw.orientation(&read_metadata(chunks)) {
        turned @ 2..=8 => turned,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use png::{BitDepth, ColorType, Encoder};

    use super::*;
    use crate::image::decode;

    /// A PNG of these samples.
    fn file(width: u32, height: u32, colour: ColorType, depth: BitDepth, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette((0..=255).flat_map(|i| [i, 255 - i, 7]).collect::<Vec<u8>>());
            encoder.set_trns((0..=255).collect::<Vec<u8>>());
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(data).unwrap();
        writer.finish().unwrap();
        out
    }

    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..bytes).map(next).collect()
    }

    #[track_caller]
    fn together(bytes: &[u8]) -> Frame {
        let grant = MemoryGuard::default();
        let mut bands = Bands::open(Cursor::new(bytes), &Limits::default(), &grant).unwrap();
        let (width, height) = (bands.width(), bands.height());
        let (mut rgba, mut rows) = (Vec::new(), 0);
        while let Some(band) = bands.next_band().unwrap() {
            rows += band.height;
            rgba.extend(band.rgba8());
        }
        assert_eq!(rows, height);
        Frame::from_rgba(width, height, &rgba)
    }

    #[test]
    fn bands_are_the_picture() {
        use BitDepth::{Eight, One, Sixteen};
        for (colour, depth, bytes_a_row) in [
            (ColorType::Rgba, Sixteen, 700 * 8),
            (ColorType::Rgb, Eight, 700 * 3),
            (ColorType::Grayscale, One, 88),
            (ColorType::GrayscaleAlpha, Eight, 700 * 2),
            (ColorType::Indexed, Eight, 700),
        ] {
            let bytes = file(700, 900, colour, depth, &noise(bytes_a_row * 900));
            let whole = decode(&bytes, &Limits::default()).unwrap();
            assert!(!whole.truncated);
            let bands = together(&bytes);
            assert!(
                bands.rgba8() == whole.first().rgba8(),
                "{colour:?} {depth:?}"
            );
            // Half of the file: the rest is black in both.
            let cut = &bytes[..bytes.len() / 2];
            let whole = decode(cut, &Limits::default()).unwrap();
            assert!(whole.truncated);
            assert!(together(cut).rgba8() == whole.first().rgba8());
        }
    }

    #[test]
    fn reduced_by_the_smallest_number_that_fits() {
        let wanted = SmallerThan {
            pixels: 10_000,
            edge: 300,
        };
        for (width, height, factor) in
            [(100, 100, 1), (101, 100, 2), (900, 10, 3), (1000, 1000, 10)]
        {
            assert_eq!(wanted.factor(width, height), factor, "{width} {height}");
        }
        let bytes = file(101, 100, ColorType::Rgb, BitDepth::Eight, &noise(30_300));
        let grant = MemoryGuard::default();
        let limits = Limits::default();
        let small = decode_reduced(Cursor::new(&bytes), &limits, &grant, wanted).unwrap();
        assert_eq!((small.width, small.height), (51, 50));
        let whole = decode(&bytes, &limits).unwrap();
        let mut reducer = Reducer::new(101, 100, 2);
        reducer.push(whole.first());
        assert_eq!(small, reducer.finish());
    }

    #[test]
    fn memory_is_asked_for_in_bytes() {
        struct Most(u64);
        impl crate::memory::MemorySource for Most {
            fn claim(&self, bytes: u64) -> Result<Box<dyn std::any::Any + Send>, u64> {
                if bytes > self.0 {
                    return Err(bytes - self.0);
                }
                Ok(Box::new(()))
            }
        }
        let wide = file(
            900,
            900,
            ColorType::Rgba,
            BitDepth::Sixteen,
            &noise(900 * 900 * 8),
        );
        let memory = MemoryGuard::new(Most(1_000_000));
        let refused = decode_within(&wide, &Limits::default(), &memory);
        assert!(matches!(refused, Err(ImageError::NoMemory(_))));
        // Row by row it fits.
        assert!(Bands::open(Cursor::new(&wide), &Limits::default(), &memory).is_ok());
        let late = Limits {
            deadline: std::time::Instant::now().checked_sub(std::time::Duration::from_secs(1)),
            ..Limits::default()
        };
        let slow = Bands::open(Cursor::new(&wide), &late, &memory).err();
        assert!(matches!(slow, Some(ImageError::TooSlow)));
    }
}
