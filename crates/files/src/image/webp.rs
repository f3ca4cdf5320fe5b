//! WEBP: the container is taken apart here, and its bitstreams go to a decoder without any C, one by one.
//!
//! The decoder sees files of our own making with nothing but a bitstream: damaged metadata cannot spoil a picture.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::{Budget, Frame, ImageError, Mode, Raw, corrupt};
use crate::metadata::{chunk_list, riff_chunks};

const FORMAT: &str = "WEBP";
const ANIMATED: u8 = 0x02;
const ALPHA: u8 = 0x10;

pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    let mut raw = Raw::default();
    let mut header = None;
    for (at, (kind, data)) in riff_chunks(bytes).into_iter().flatten().enumerate() {
        match kind {
            b"VP8X" if at == 0 => header = Some(Header::read(data)?),
            b"EXIF" => raw.exif = Some(data.to_vec()),
            b"XMP " => raw.xmp = Some(data.to_vec()),
            _ => {}
        }
    }
    match header {
        Some(header) if header.flags & ANIMATED != 0 => {
            animation(bytes, &header, budget, &mut raw)?;
        }
        header => {
            let frame = still(bytes, header.as_ref(), budget)?;
            raw.frames.push(frame);
        }
    }
    Ok(raw)
}

/// What an extended file says of itself before anything else.
struct Header {
    flags: u8,
    width: u32,
    height: u32,
}

impl Header {
    fn read(data: &[u8]) -> Result<Self, ImageError> {
        if data.len() < 10 {
            return Err(corrupt(FORMAT, "its header cannot be read"));
        }
        Ok(Self {
            flags: data[0],
            width: u24(&data[4..]) as u32 + 1,
            height: u24(&data[7..]) as u32 + 1,
        })
    }
}

fn still(bytes: &[u8], header: Option<&Header>, budget: &mut Budget) -> Result<Frame, ImageError> {
    let file = as_still(bytes.get(12..).unwrap_or_default());
    let bitstream =
        Bitstream::open(&file).ok_or_else(|| corrupt(FORMAT, "its header cannot be read"))?;
    let (width, height) = bitstream.0.dimensions();
    if header.is_some_and(|header| (header.width, header.height) != (width, height)) {
        return Err(corrupt(FORMAT, "its picture is not as large as it says"));
    }
    budget.frame(width, height)?;
    // The decoder's own, what it gives, and our copy.
    budget.claim(width, height, 12)?;
    let lossless = bitstream.1;
    let (pixels, has_alpha) = bitstream
        .decode()
        .ok_or_else(|| corrupt(FORMAT, "its picture cannot be decoded"))?;
    if has_alpha {
        return Ok(Frame::from_rgba(width, height, &pixels));
    }
    // A lossless bitstream knows about its own alpha; of a lossy one the header says that it has some.
    let opaque = header.is_some_and(|header| header.flags & ALPHA != 0) && !lossless;
    let alpha = opaque.then(|| vec![255; pixels.len() / 3]);
    let mode = if opaque { Mode::Rgba } else { Mode::Rgb };
    Ok(Frame::new(width, height, mode, pixels, alpha))
}

/// One picture, opened but not decoded, and whether it is lossless.
struct Bitstream<'a>(WebPDecoder<Cursor<&'a [u8]>>, bool);

impl<'a> Bitstream<'a> {
    fn open(file: &'a [u8]) -> Option<Self> {
        let mut decoder = WebPDecoder::new(Cursor::new(file)).ok()?;
        let (width, height) = decoder.dimensions();
        let lossless = !decoder.is_lossy();
        (width > 0 && height > 0).then_some(Self(decoder, lossless))
    }

    /// RGB or, with true, RGBA.
    fn decode(mut self) -> Option<(Vec<u8>, bool)> {
        let mut pixels = vec![0; self.0.output_buffer_size()?];
        self.0.read_image(&mut pixels).ok()?;
        Some((pixels, self.0.has_alpha()))
    }
}

fn u24(b: &[u8]) -> usize {
    usize::from(b[0]) | usize::from(b[1]) << 8 | usize::from(b[2]) << 16
}

fn animation(
    bytes: &[u8],
    header: &Header,
    budget: &mut Budget,
    raw: &mut Raw,
) -> Result<(), ImageError> {
    let (width, height) = (header.width as usize, header.height as usize);
    let has_alpha = header.flags & ALPHA != 0;
    budget.frame(header.width, header.height)?;
    budget.frames -= 1;
    // The canvas, and what a decoder of one frame takes.
    budget.claim(header.width, header.height, 4 + 8)?;
    let mut canvas = vec![[0; 4]; width * height];
    let mut dispose: Option<Area> = None;
    for (kind, data) in riff_chunks(bytes).into_iter().flatten() {
        if kind != b"ANMF" {
            continue;
        }
        budget.frame(header.width, header.height)?;
        budget.claim(header.width, header.height, 4)?;
        let Some((head, body)) = data.split_at_checked(16) else {
            raw.truncated = true;
            break;
        };
        let area = Area {
            x: u24(head) * 2,
            y: u24(&head[3..]) * 2,
            w: u24(&head[6..]) + 1,
            h: u24(&head[9..]) + 1,
        };
        let (replace, clear) = (head[15] & 2 != 0, head[15] & 1 != 0);
        if area.x + area.w > width || area.y + area.h > height {
            return Err(corrupt(FORMAT, "a frame lies outside the picture"));
        }
        // What the frame claims to be decides how much memory the decoder takes.
        let still = as_still(body);
        let picture = Bitstream::open(&still)
            .filter(|b| b.0.dimensions() == (area.w as u32, area.h as u32))
            .and_then(Bitstream::decode);
        let Some((picture, alpha)) = picture else {
            raw.truncated = true;
            break;
        };
        if let Some(area) = dispose.take() {
            area.each(width, |at, _| canvas[at] = [0; 4]);
        }
        let channels = if alpha { 4 } else { 3 };
        area.each(width, |at, i| {
            let p = &picture[i * channels..(i + 1) * channels];
            let src = [p[0], p[1], p[2], p.get(3).copied().unwrap_or(255)];
            canvas[at] = if replace { src } else { over(src, canvas[at]) };
        });
        dispose = clear.then_some(area);
        let rgb = canvas.iter().flat_map(|p| [p[0], p[1], p[2]]).collect();
        let alpha = has_alpha.then(|| canvas.iter().map(|p| p[3]).collect());
        let mode = if has_alpha { Mode::Rgba } else { Mode::Rgb };
        raw.frames
            .push(Frame::new(width as u32, height as u32, mode, rgb, alpha));
        if budget.limits.first_only {
            break;
        }
    }
    if raw.frames.is_empty() {
        return Err(corrupt(FORMAT, "none of its frames can be decoded"));
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Area {
    x: usize,
    y: usize,
    w: usize,
    h: usize,
}

impl Area {
    /// Calls `f` with the place of every pixel on a canvas of this width and its place in the area.
    fn each(self, canvas_width: usize, mut f: impl FnMut(usize, usize)) {
        for y in 0..self.h {
            for x in 0..self.w {
                f((self.y + y) * canvas_width + self.x + x, y * self.w + x);
            }
        }
    }
}

/// The bitstream among these chunks as a file of its own; the first one counts.
fn as_still(chunks: &[u8]) -> Vec<u8> {
    let find = |kinds: &[&[u8; 4]]| chunk_list(chunks).find(|(kind, _)| kinds.contains(kind));
    let picture = find(&[b"VP8 ", b"VP8L"]);
    let alpha = find(&[b"ALPH"]).filter(|_| matches!(picture, Some((b"VP8 ", _))));
    let mut out = b"RIFF\0\0\0\0WEBP".to_vec();
    if alpha.is_some()
        && let Some((_, data)) = picture
    {
        out.extend(b"VP8X\x0a\0\0\0\x10\0\0\0");
        for edge in lossy_size(data) {
            out.extend(&edge.wrapping_sub(1).to_le_bytes()[..3]);
        }
    }
    for (kind, data) in alpha.into_iter().chain(picture) {
        out.extend(kind);
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
        out.resize(out.len().next_multiple_of(2), 0);
    }
    let size = (out.len() - 8) as u32;
    out[4..8].copy_from_slice(&size.to_le_bytes());
    out
}

/// Width and height in the head of a lossy bitstream; zero where there is none.
fn lossy_size(data: &[u8]) -> [u32; 2] {
    let edge = |at: usize| {
        let two = data.get(at..at + 2).unwrap_or(&[0, 0]);
        u32::from(u16::from_le_bytes([two[0], two[1]]) & 0x3fff)
    };
    [edge(6), edge(8)]
}

/// A pixel over another, neither premultiplied, in the integer arithmetic of libwebp.
fn over(src: [u8; 4], dst: [u8; 4]) -> [u8; 4] {
    let a = u32::from(src[3]);
    if a == 0 {
        return dst;
    }
    let below = (u32::from(dst[3]) * (256 - a)) >> 8;
    let sum = a + below;
    let scale = (1 << 24) / sum;
    let channel = |i: usize| {
        let mixed = u64::from(u32::from(src[i]) * a + u32::from(dst[i]) * below);
        ((mixed * u64::from(scale)) >> 24).min(255) as u8
    };
    [channel(0), channel(1), channel(2), sum.min(255) as u8]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Limits, decode as decode_file};
    use crate::png_write::{Picture, Pixels};
    use crate::webp_write::{WebpOptions, encode_webp, encode_webp_animation};

    /// A picture with soft and hard edges, noise, and all kinds of transparency.
    fn picture(width: usize, height: usize, channels: usize, seed: usize) -> Vec<u8> {
        let mut state = seed as u32;
        let mut out = Vec::new();
        for y in 0..height {
            for x in 0..width {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 27) as usize;
                let stripe = if (x / 5 + y / 3) % 2 == 0 { 200 } else { 20 };
                let pixel = [x * 7 + noise, stripe + noise, y * 11 + seed, x * 16 + y];
                out.extend(pixel[..channels].iter().map(|v| *v as u8));
            }
        }
        out
    }

    fn files() -> Vec<Vec<u8>> {
        let mut files = Vec::new();
        for (width, height) in [(1, 1), (2, 3), (16, 16), (17, 33), (64, 40), (101, 7)] {
            for (pixels, channels) in [(Pixels::Rgb, 3), (Pixels::Rgba, 4)] {
                for (lossless, quality, method) in [
                    (true, 75.0, 4),
                    (true, 0.0, 0),
                    (false, 5.0, 0),
                    (false, 50.0, 4),
                    (false, 95.0, 6),
                ] {
                    let data = picture(width, height, channels, files.len());
                    let still = Picture::new(width as u32, height as u32, pixels, &data).unwrap();
                    let options = WebpOptions {
                        lossless,
                        quality,
                        method,
                    };
                    files.push(encode_webp(&still, options).unwrap());
                    let text = [("prompt".to_owned(), "{}".to_owned())];
                    files.push(encode_webp_animation(&[still], 1, &text, options).unwrap());
                }
            }
        }
        files
    }

    /// The decoder that was used before, in C, is what the reference has.
    #[test]
    fn stills_are_those_of_libwebp() {
        for (n, file) in files().iter().enumerate() {
            let theirs = webp::Decoder::new(file).decode().unwrap();
            let ours = decode_file(file, &Limits::default()).unwrap();
            let frame = ours.first();
            assert_eq!(
                (frame.width, frame.height),
                (theirs.width(), theirs.height())
            );
            assert_eq!(frame.has_alpha(), theirs.is_alpha(), "file {n}");
            let same = if theirs.is_alpha() {
                frame.rgba8() == theirs.to_vec()
            } else {
                frame.rgb8() == &*theirs
            };
            assert!(
                same,
                "file {n}: {} bytes differ",
                difference(frame, &theirs)
            );
        }
    }

    fn difference(frame: &Frame, theirs: &[u8]) -> usize {
        let ours = if frame.has_alpha() {
            frame.rgba8()
        } else {
            frame.rgb8().to_vec()
        };
        ours.iter().zip(theirs).filter(|(a, b)| a != b).count()
    }

    /// Each frame replaces all of the picture, so it must be what a still of it is.
    #[test]
    fn animations_are_those_of_libwebp() {
        for (pixels, channels) in [(Pixels::Rgb, 3), (Pixels::Rgba, 4)] {
            for lossless in [true, false] {
                let options = WebpOptions {
                    lossless,
                    ..WebpOptions::default()
                };
                let data: Vec<_> = (0..3).map(|i| picture(33, 20, channels, i)).collect();
                let stills: Vec<_> = data
                    .iter()
                    .map(|d| Picture::new(33, 20, pixels, d).unwrap())
                    .collect();
                let file = encode_webp_animation(&stills, 40, &[], options).unwrap();
                let ours = decode_file(&file, &Limits::default()).unwrap();
                assert_eq!((ours.frames.len(), ours.truncated), (3, false));
                for (frame, still) in ours.frames.iter().zip(stills) {
                    let file = encode_webp(&still, options).unwrap();
                    let theirs = webp::Decoder::new(&file).decode().unwrap();
                    let picture = if theirs.is_alpha() {
                        frame.rgba8()
                    } else {
                        frame.rgb8().to_vec()
                    };
                    assert!(picture == theirs.to_vec(), "{pixels:?} {lossless}");
                }
            }
        }
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let limits = Limits::default();
        for file in files().iter().step_by(7) {
            for cut in [0, 5, 12, 15, 20, 25, 30, 40, file.len() / 2] {
                assert!(decode_file(&file[..cut.min(file.len() - 2)], &limits).is_err());
            }
            for at in 0..file.len().min(300) {
                let mut damaged = file.clone();
                damaged[at] ^= 0x55;
                // Some bits are only colours.
                let _ = decode_file(&damaged, &limits);
            }
        }
    }

    #[test]
    fn metadata_that_is_announced_and_missing_spoils_nothing() {
        let data = picture(9, 9, 3, 1);
        let still = Picture::new(9, 9, Pixels::Rgb, &data).unwrap();
        let options = WebpOptions::default();
        let mut file = encode_webp_animation(&[still], 1, &[], options).unwrap();
        // EXIF, XMP, a colour profile, and alpha that is not there.
        file[20] = 0x3c;
        let frame = decode_file(&file, &limits_of_one()).unwrap();
        assert_eq!(frame.first().alpha8(), Some(&[255; 81][..]));
    }

    fn limits_of_one() -> Limits {
        Limits {
            first_only: true,
            ..Limits::default()
        }
    }
}
