//! The image data of a PNG: rows made, filtered and compressed in bands that all threads work on.
//!
//! A band is compressed with the end of the one before it as its dictionary, so little is lost against one stream. That end is made
//! and filtered once more, so that no thread waits for another and the filtered picture is never in memory. Bands are cut by the size
//! of the picture alone: the bytes do not depend on the number of threads.

use std::cell::RefCell;
use std::ops::Range;

use flate2::{Compress, Compression, FlushCompress, Status};
use rayon::prelude::*;

use crate::deflate::Deflater;
use crate::png_filter::{self, PaddedRow};
use crate::png_write::{EncodeError, LEVEL_PREVIEW, OpenChunk, RowPicture};

/// Whether the picture is still wanted; asked now and then, by any thread.
pub(crate) type Wanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// Bytes of rows in a band, more or less.
const BAND: usize = 128 << 10;

/// Bytes before a band that its compressor knows, more or less. The format could look back twice as far, for 0.1 % of the size.
const DICTIONARY: usize = 16 << 10;

/// Bytes that are compressed between two questions whether that is still wanted.
const PIECE: usize = 4 << 20;

/// The largest prime below 2^16, by which checksums are taken.
const ADLER: u32 = 65_521;

/// Levels that the compressor for pictures takes the place of.
const FAST_LEVELS: Range<u8> = 2..5;

/// What a thread needs for a band. It is kept: setting up a compressor costs more than compressing a small picture.
#[derive(Default)]
struct Workshop {
    filtered: Vec<u8>,
    fast: Option<Deflater>,
}

thread_local! {
    static WORKSHOP: RefCell<Workshop> = RefCell::default();
}

/// The rows of a picture as bytes of the format.
struct Layout {
    /// Bytes of a filtered row.
    row: usize,
    height: usize,
    /// Rows of a band.
    band: usize,
}

impl Layout {
    fn of(picture: &RowPicture) -> Self {
        let row = picture.stride() + 1;
        Self {
            row,
            height: picture.height as usize,
            band: (BAND / row).max(1),
        }
    }

    fn bands(&self) -> usize {
        self.height.div_ceil(self.band)
    }

    fn rows_of(&self, band: usize) -> Range<usize> {
        let first = band * self.band;
        first..(first + self.band).min(self.height)
    }
}

/// The chunks of image data that a picture has: the number of each is given to `open`, which begins it.
pub(crate) fn compress(
    picture: &RowPicture,
    level: u8,
    open: &(dyn Fn(usize) -> OpenChunk + Sync),
    wanted: Wanted<'_>,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let layout = Layout::of(picture);
    if level == LEVEL_PREVIEW {
        let mut chunk = open(0);
        // A compressor made for filtered pictures, and faster still.
        let filtered = filter_all(picture, &layout, wanted)?;
        chunk.data().extend(fdeflate::compress_to_vec(&filtered));
        return Ok(vec![chunk.close()]);
    }
    let level = level.min(9);
    let last = layout.bands() - 1;
    let bands = (0..=last).collect();
    let parts = in_bands(bands, |band| {
        let mut chunk = open(band);
        if band == 0 {
            // A window of 32 KiB; the second byte is a check of both.
            let check = if level < 6 { 0x5E } else { 0x9C };
            chunk.data().extend([0x78, check]);
        }
        let rows = layout.rows_of(band);
        let sum = compress_band(picture, &layout, rows, level, chunk.data(), wanted)?;
        // The last one waits for the checksum of all.
        let chunk = if band == last {
            BandChunk::Open(chunk)
        } else {
            BandChunk::Closed(chunk.close())
        };
        Ok((chunk, sum))
    })?;
    let mut sum = Checksum::of(&[]);
    let mut chunks = Vec::with_capacity(parts.len());
    for (chunk, own) in parts {
        sum = sum.followed_by(&own);
        chunks.push(match chunk {
            BandChunk::Closed(bytes) => bytes,
            BandChunk::Open(mut chunk) => {
                chunk.data().extend(sum.value().to_be_bytes());
                chunk.close()
            }
        });
    }
    Ok(chunks)
}

/// The chunk of one band.
enum BandChunk {
    Open(OpenChunk),
    Closed(Vec<u8>),
}

/// Does something with every band: by all threads, or here where there is but one, so that small previews wait for nobody.
fn in_bands<T: Send, R: Send>(
    mut bands: Vec<T>,
    work: impl Fn(T) -> Result<R, EncodeError> + Sync,
) -> Result<Vec<R>, EncodeError> {
    match bands.pop() {
        Some(only) if bands.is_empty() => Ok(vec![work(only)?]),
        Some(last) => {
            bands.push(last);
            bands.into_par_iter().map(&work).collect()
        }
        None => Ok(Vec::new()),
    }
}

/// All rows, filtered for a preview.
fn filter_all(
    picture: &RowPicture,
    layout: &Layout,
    wanted: Wanted<'_>,
) -> Result<Vec<u8>, EncodeError> {
    let mut filtered = vec![0; layout.row * layout.height];
    let bands = filtered.chunks_mut(layout.row * layout.band).enumerate();
    in_bands(bands.collect(), |(band, out)| {
        filter(picture, LEVEL_PREVIEW, layout.rows_of(band), out, wanted)
    })?;
    Ok(filtered)
}

/// Appends the rows of a band, filtered and compressed, and gives the checksum of what was compressed.
fn compress_band(
    picture: &RowPicture,
    layout: &Layout,
    rows: Range<usize>,
    level: u8,
    out: &mut Vec<u8>,
    wanted: Wanted<'_>,
) -> Result<Checksum, EncodeError> {
    WORKSHOP.with_borrow_mut(|workshop| {
        let before = DICTIONARY.div_ceil(layout.row).min(rows.start);
        let start = before * layout.row;
        let last = rows.end == layout.height;
        let rows = rows.start - before..rows.end;
        workshop.filtered.resize(layout.row * rows.len(), 0);
        filter(picture, level, rows, &mut workshop.filtered, wanted)?;
        out.reserve((workshop.filtered.len() - start) / 2 + 64);
        if FAST_LEVELS.contains(&level) {
            let fast = workshop.fast.get_or_insert_with(Deflater::new);
            if !fast.deflate(&workshop.filtered, start, last, out, wanted) {
                return Err(EncodeError::Stopped);
            }
        } else {
            let (dictionary, band) = workshop.filtered.split_at(start);
            deflate(level, (dictionary, band), last, out, wanted)?;
        }
        let sum = Checksum::of(&workshop.filtered[start..]);
        // A picture of few, very long rows is no reason to keep so much for the next.
        if workshop.filtered.capacity() > 2 * (BAND + DICTIONARY) {
            workshop.filtered = Vec::new();
        }
        Ok(sum)
    })
}

/// One band, ending at a whole byte so that the next can follow, by the general compressor.
fn deflate(
    level: u8,
    (dictionary, band): (&[u8], &[u8]),
    last: bool,
    out: &mut Vec<u8>,
    wanted: Wanted<'_>,
) -> Result<(), EncodeError> {
    let failed = |what: String| EncodeError::Encoder { what };
    // A new one for each: what one that was used before makes of the same rows depends on the rows before them.
    let mut compressor = Compress::new(Compression::new(level.into()), false);
    if !dictionary.is_empty() {
        let set = compressor.set_dictionary(dictionary);
        set.map_err(|error| failed(error.to_string()))?;
    }
    let end = if last {
        FlushCompress::Finish
    } else {
        FlushCompress::Sync
    };
    loop {
        if !wanted() {
            return Err(EncodeError::Stopped);
        }
        let left = &band[compressor.total_in() as usize..];
        let (piece, flush) = match left.get(..PIECE) {
            Some(piece) => (piece, FlushCompress::None),
            None => (left, end),
        };
        let status = compressor.compress_vec(piece, out, flush);
        let all = compressor.total_in() as usize == band.len();
        match status.map_err(|error| failed(error.to_string()))? {
            Status::StreamEnd => return Ok(()),
            // With room left over, all that was asked for is written.
            Status::Ok if out.len() < out.capacity() => {
                if all && !last && flush == end {
                    return Ok(());
                }
            }
            Status::Ok | Status::BufError => out.reserve(out.capacity().max(4096)),
        }
    }
}

/// The checksum of the format, of parts that can be joined.
struct Checksum {
    low: u32,
    high: u32,
    len: usize,
}

impl Checksum {
    fn of(bytes: &[u8]) -> Self {
        let sum = simd_adler32::adler32(&bytes);
        Self {
            low: sum & 0xFFFF,
            high: sum >> 16,
            len: bytes.len(),
        }
    }

    /// Of both parts together.
    fn followed_by(&self, next: &Self) -> Self {
        let times = (next.len % ADLER as usize) as u64;
        // The first sum begins with one in each part, and counts once.
        let before = u64::from(self.low + ADLER - 1) * times % u64::from(ADLER);
        Self {
            low: (self.low + next.low + ADLER - 1) % ADLER,
            high: (self.high + next.high + before as u32) % ADLER,
            len: self.len + next.len,
        }
    }

    fn value(&self) -> u32 {
        self.high << 16 | self.low
    }
}

/// Makes rows and filters them: at level 0 not at all, at the preview level with one cheap filter, otherwise with the best.
fn filter(
    picture: &RowPicture,
    level: u8,
    rows: Range<usize>,
    out: &mut [u8],
    wanted: Wanted<'_>,
) -> Result<(), EncodeError> {
    let (stride, pixel) = (picture.stride(), picture.pixels.channels());
    let mut above = PaddedRow::new(stride, pixel);
    let mut row = above.clone();
    if let Some(before) = rows.start.checked_sub(1) {
        picture.row(before, above.pixels());
    }
    for (at, out) in rows.zip(out.chunks_exact_mut(stride + 1)) {
        if !wanted() {
            return Err(EncodeError::Stopped);
        }
        picture.row(at, row.pixels());
        match level {
            0 => png_filter::plain(&row, out),
            LEVEL_PREVIEW => png_filter::up(&row, &above, out),
            _ => png_filter::best(&row, &above, out),
        }
        std::mem::swap(&mut row, &mut above);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::png_write::{Picture, Pixels};

    fn stream(picture: &RowPicture, level: u8) -> Result<Vec<u8>, EncodeError> {
        let chunks = compress(picture, level, &|_| OpenChunk::new(*b"IDAT"), &|| true)?;
        // Each chunk has four bytes for its length, four for its name and four for its checksum.
        let data = chunks.iter().map(|chunk| &chunk[8..chunk.len() - 4]);
        Ok(data.collect::<Vec<_>>().concat())
    }

    #[test]
    fn bands_are_one_stream_whose_bytes_do_not_depend_on_threads() {
        // Several bands, with much that repeats across their borders, and a last row alone.
        let (width, height) = (700, 1179);
        let data: Vec<u8> = (0..width * height * 3_usize)
            .map(|i| (i / 9 % 251) as u8 ^ (i * i / 65_537) as u8)
            .collect();
        let picture = Picture::new(width as u32, height as u32, Pixels::Rgb, &data).unwrap();
        let made =
            |at: usize, out: &mut [u8]| out.copy_from_slice(&data[at * width * 3..][..out.len()]);
        let picture = RowPicture::from(&picture);
        let same = RowPicture::new(width as u32, height as u32, Pixels::Rgb, &made).unwrap();
        let layout = Layout::of(&picture);
        assert_eq!(layout.rows_of(layout.bands() - 1).len(), 1);
        for level in [0, 1, 4, 6, 9] {
            let one = rayon::ThreadPoolBuilder::new()
                .num_threads(1)
                .build()
                .unwrap();
            let alone = one.install(|| stream(&picture, level)).unwrap();
            assert!(alone == stream(&picture, level).unwrap(), "level {level}");
            assert!(alone == stream(&same, level).unwrap(), "level {level}");
            let mut plain = Vec::new();
            let mut decoder = flate2::read::ZlibDecoder::new(&alone[..]);
            std::io::copy(&mut decoder, &mut plain).unwrap();
            let mut filtered = vec![0; height * (3 * width + 1)];
            filter(&picture, level, 0..height, &mut filtered, &|| true).unwrap();
            assert!(plain == filtered, "level {level}");
        }
        let stopped = compress(&picture, 4, &|_| OpenChunk::new(*b"IDAT"), &|| false);
        assert!(matches!(stopped, Err(EncodeError::Stopped)));
    }

    #[test]
    fn checksums_of_parts_are_those_of_the_whole() {
        let data: Vec<u8> = (0..70_000_u32).map(|i| (i * 7 / 3) as u8).collect();
        let whole = Checksum::of(&data).value();
        for at in [0, 1, 5552, 65_521, 69_999, 70_000] {
            let (a, b) = data.split_at(at);
            let joined = Checksum::of(a).followed_by(&Checksum::of(b));
            assert_eq!(joined.value(), whole, "{at}");
        }
        assert_eq!(Checksum::of(b"Wikipedia").value(), 0x11E6_0398);
    }
}
