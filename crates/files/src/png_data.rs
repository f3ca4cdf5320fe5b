//! The image data of a PNG: rows filtered and compressed, in bands that all threads work on.
//!
//! A band is compressed with the end of the one before it as its dictionary, so little is lost against one stream. Bands are cut by
//! the size of the picture alone: the bytes do not depend on the number of threads.

use std::cell::RefCell;

use flate2::{Compress, Compression, FlushCompress, Status};
use rayon::prelude::*;

use crate::png_write::{EncodeError, LEVEL_PREVIEW, Picture};

/// Whether the picture is still wanted; asked now and then, by any thread.
pub(crate) type Wanted<'a> = &'a (dyn Fn() -> bool + Sync);

/// Bytes of rows in a band, more or less.
const BAND: usize = 256 << 10;

/// What the format can look back.
const WINDOW: usize = 32 << 10;

/// Bytes that are compressed between two questions whether that is still wanted.
const PIECE: usize = 4 << 20;

/// The largest prime below 2^16, by which checksums are taken.
const ADLER: u32 = 65_521;

thread_local! {
    /// One compressor per thread: setting one up costs more than compressing a small preview.
    static COMPRESSOR: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
}

pub(crate) fn compress(
    picture: &Picture,
    level: u8,
    wanted: Wanted<'_>,
) -> Result<Vec<u8>, EncodeError> {
    let stride = picture.width as usize * picture.pixels.channels();
    let rows = (BAND / (stride + 1)).max(1);
    let band = rows * (stride + 1);
    let mut filtered = vec![0; (stride + 1) * picture.height as usize];
    in_bands(
        filtered.chunks_mut(band).enumerate().collect(),
        |(at, out)| filter(picture, level, at * rows, out, wanted),
    )?;
    if level == LEVEL_PREVIEW {
        // A compressor made for filtered pictures: several times faster than level 1 of the general one.
        return Ok(fdeflate::compress_to_vec(&filtered));
    }
    let level = level.min(9);
    let starts: Vec<usize> = (0..filtered.len()).step_by(band).collect();
    let parts = in_bands(starts, |start| {
        let end = (start + band).min(filtered.len());
        let dictionary = &filtered[start.saturating_sub(WINDOW)..start];
        let rows = &filtered[start..end];
        let part = deflate(rows, dictionary, end == filtered.len(), level, wanted)?;
        Ok((part, Checksum::of(rows)))
    })?;
    let size: usize = parts.iter().map(|(part, _)| part.len()).sum();
    let mut out = Vec::with_capacity(size + 6);
    // A window of 32 KiB; the second byte is a check of both.
    out.extend([0x78, if level < 6 { 0x5E } else { 0x9C }]);
    let mut sum = Checksum::of(&[]);
    for (part, own) in &parts {
        out.extend(part);
        sum = sum.followed_by(own);
    }
    out.extend(sum.value().to_be_bytes());
    Ok(out)
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

/// One band, ending at a whole byte so that the next can follow.
fn deflate(
    band: &[u8],
    dictionary: &[u8],
    last: bool,
    level: u8,
    wanted: Wanted<'_>,
) -> Result<Vec<u8>, EncodeError> {
    let failed = |what: String| EncodeError::Encoder { what };
    COMPRESSOR.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(l, _)| *l != level) {
            *slot = Some((level, Compress::new(Compression::new(level.into()), false)));
        }
        let (_, compressor) = slot.as_mut().expect("filled above");
        compressor.reset();
        if !dictionary.is_empty() {
            let set = compressor.set_dictionary(dictionary);
            set.map_err(|error| failed(error.to_string()))?;
        }
        let mut out = Vec::with_capacity(band.len() / 2 + 256);
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
            let status = compressor.compress_vec(piece, &mut out, flush);
            let all = compressor.total_in() as usize == band.len();
            match status.map_err(|error| failed(error.to_string()))? {
                Status::StreamEnd => return Ok(out),
                // With room left over, all that was asked for is written.
                Status::Ok if out.len() < out.capacity() => {
                    if all && !last && flush == end {
                        return Ok(out);
                    }
                }
                Status::Ok | Status::BufError => out.reserve(out.capacity().max(4096)),
            }
        }
    })
}

/// The checksum of the format, of parts that can be joined.
struct Checksum {
    low: u32,
    high: u32,
    len: usize,
}

impl Checksum {
    fn of(bytes: &[u8]) -> Self {
        let (mut low, mut high) = (1, 0);
        // So many sums fit 32 bits.
        for part in bytes.chunks(5552) {
            for byte in part {
                low += u32::from(*byte);
                high += low;
            }
            low %= ADLER;
            high %= ADLER;
        }
        Self {
            low,
            high,
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

/// Filters the rows that `out` has room for, from one on: at level 0 not at all, at the preview level with one cheap filter,
/// otherwise with the one of five whose bytes, read as signed, have the smallest sum.
fn filter(
    picture: &Picture,
    level: u8,
    first_row: usize,
    out: &mut [u8],
    wanted: Wanted<'_>,
) -> Result<(), EncodeError> {
    let bpp = picture.pixels.channels();
    let stride = picture.width as usize * bpp;
    let zero = vec![0; stride];
    let mut trial = vec![0; stride];
    let mut above = match first_row.checked_sub(1) {
        Some(before) => &picture.data[before * stride..first_row * stride],
        None => &zero[..],
    };
    let rows = picture.data[first_row * stride..].chunks_exact(stride);
    for (out, row) in out.chunks_exact_mut(stride + 1).zip(rows) {
        if !wanted() {
            return Err(EncodeError::Stopped);
        }
        let (kind, best) = out.split_at_mut(1);
        match level {
            0 => best.copy_from_slice(row),
            LEVEL_PREVIEW => {
                kind[0] = 2;
                for ((out, x), b) in best.iter_mut().zip(row).zip(above) {
                    *out = x.wrapping_sub(*b);
                }
            }
            _ => {
                best.copy_from_slice(row);
                let mut least = cost(best);
                for k in 1..=4 {
                    if least == 0 {
                        break;
                    }
                    apply(k, row, above, bpp, &mut trial);
                    let c = cost(&trial);
                    if c < least {
                        (least, kind[0]) = (c, k);
                        best.copy_from_slice(&trial);
                    }
                }
            }
        }
        above = row;
    }
    Ok(())
}

/// Writes filter `kind` of `row` to `out`. Pixels before the row count as 0.
fn apply(kind: u8, row: &[u8], above: &[u8], bpp: usize, out: &mut [u8]) {
    let n = row.len();
    let (head, tail) = out.split_at_mut(bpp);
    let (x0, x) = row.split_at(bpp);
    let (b0, b) = above.split_at(bpp);
    let a = &row[..n - bpp];
    let c = &above[..n - bpp];
    match kind {
        1 => {
            head.copy_from_slice(x0);
            for ((o, x), a) in tail.iter_mut().zip(x).zip(a) {
                *o = x.wrapping_sub(*a);
            }
        }
        2 => {
            for ((o, x), b) in head.iter_mut().zip(x0).zip(b0) {
                *o = x.wrapping_sub(*b);
            }
            for ((o, x), b) in tail.iter_mut().zip(x).zip(b) {
                *o = x.wrapping_sub(*b);
            }
        }
        3 => {
            for ((o, x), b) in head.iter_mut().zip(x0).zip(b0) {
                *o = x.wrapping_sub(b / 2);
            }
            for (((o, x), a), b) in tail.iter_mut().zip(x).zip(a).zip(b) {
                *o = x.wrapping_sub(a.midpoint(*b));
            }
        }
        _ => {
            for ((o, x), b) in head.iter_mut().zip(x0).zip(b0) {
                *o = x.wrapping_sub(*b);
            }
            for ((((o, x), a), b), c) in tail.iter_mut().zip(x).zip(a).zip(b).zip(c) {
                *o = x.wrapping_sub(paeth(*a, *b, *c));
            }
        }
    }
}

/// The neighbour nearest to `a + b - c`.
fn paeth(a: u8, b: u8, c: u8) -> u8 {
    let (x, y, z) = (i16::from(a), i16::from(b), i16::from(c));
    let (pa, pb, pc) = ((y - z).abs(), (x - z).abs(), (x + y - 2 * z).abs());
    let bc = if pb <= pc { b } else { c };
    if pa <= pb && pa <= pc { a } else { bc }
}

fn cost(row: &[u8]) -> u64 {
    // Summed in short pieces of 32 bits, which the compiler turns into vector code.
    row.chunks(1 << 16)
        .map(|part| {
            let sum: u32 = part
                .iter()
                .map(|&b| u32::from((b as i8).unsigned_abs()))
                .sum();
            u64::from(sum)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::png_write::Pixels;

    fn picture(data: &[u8], width: u32) -> Picture<'_> {
        let height = data.len() as u32 / 3 / width;
        Picture::new(width, height, Pixels::Rgb, data).unwrap()
    }

    #[test]
    fn bands_are_one_stream_whose_bytes_do_not_depend_on_threads() {
        // Several bands, with much that repeats across their borders, and a last row alone.
        let (width, height) = (700, 1201);
        let data: Vec<u8> = (0..width * height * 3_usize)
            .map(|i| (i / 9 % 251) as u8 ^ (i * i / 65_537) as u8)
            .collect();
        let picture = picture(&data, width as u32);
        for level in [0, 1, 4, 6, 9] {
            let one = rayon::ThreadPoolBuilder::new()
                .num_threads(1)
                .build()
                .unwrap();
            let alone = one.install(|| compress(&picture, level, &|| true)).unwrap();
            let many = compress(&picture, level, &|| true).unwrap();
            assert!(alone == many, "level {level}");
            let mut plain = Vec::new();
            let mut decoder = flate2::read::ZlibDecoder::new(&many[..]);
            std::io::copy(&mut decoder, &mut plain).unwrap();
            let mut filtered = vec![0; height * (3 * width + 1)];
            filter(&picture, level, 0, &mut filtered, &|| true).unwrap();
            assert!(plain == filtered, "level {level}");
        }
        let stopped = compress(&picture, 4, &|| false);
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
