//! Decoding picture files the way the reference sees them (it uses Pillow): modes, transparency, frames, orientation.
//!
//! Untrusted files are expected. Sizes are checked against [`Limits`] before memory is taken, memory is asked for with
//! what the decoded samples take, and a file that ends early gives the picture up to there, the rest black, as long as its
//! header is intact.

mod bands;
mod gif;
mod png;
mod reduce;
mod still;
mod tiff;
mod webp;

use std::time::Instant;

pub use bands::{Bands, SmallerThan, decode_reduced};

use crate::memory::{MemoryClaim, MemoryGuard, NoMemory};

use crate::exif;
use crate::metadata::read_metadata;

/// What a file may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the file.
    pub bytes: usize,
    /// Pixels over all frames together.
    pub pixels: u64,
    pub frames: usize,
    /// Only the first frame is wanted; further ones are not looked at.
    pub first_only: bool,
    /// When whoever asked has lost patience.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            pixels: 200_000_000,
            frames: 10_000,
            first_only: false,
            deadline: None,
        }
    }
}

/// A picture could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the picture file is empty")]
    Empty,
    #[error("the file is not a picture of a known format")]
    UnknownFormat,
    #[error("{format} pictures cannot be read here: save the picture as PNG, JPEG or WebP")]
    NotRead { format: &'static str },
    #[error("the picture file has {bytes} bytes, over the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error(
        "the picture has {pixels} pixels ({width} x {height}, {frames} frames), over the limit of {limit}"
    )]
    TooManyPixels {
        width: u32,
        height: u32,
        frames: usize,
        pixels: u64,
        limit: u64,
    },
    #[error("the picture has over {limit} frames")]
    TooManyFrames { limit: usize },
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    #[error("reading the picture takes too long")]
    TooSlow,
    #[error("the picture file cannot be read")]
    Io(#[from] std::io::Error),
    #[error("the {format} picture is damaged: {what}")]
    Corrupt { format: &'static str, what: String },
    #[error("{format} pictures with {what} cannot be read")]
    Unsupported { format: &'static str, what: String },
}

/// File formats told apart by their first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Png,
    Jpeg,
    Webp,
    Gif,
    Bmp,
    Tiff,
}

impl Format {
    /// The format of a file by its first bytes; its name does not matter.
    pub fn guess(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Some(Self::Webp),
            [b'G', b'I', b'F', b'8', ..] => Some(Self::Gif),
            [b'B', b'M', ..] => Some(Self::Bmp),
            [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Some(Self::Tiff),
            _ => None,
        }
    }
}

/// Why nothing is known of a file: formats that people have and that nobody here decodes are called by name.
fn unknown(bytes: &[u8]) -> ImageError {
    const BRANDS: [(&[u8; 4], &str); 7] = [
        (b"avif", "AVIF"),
        (b"avis", "AVIF"),
        (b"heic", "HEIC"),
        (b"heix", "HEIC"),
        (b"hevc", "HEIC"),
        (b"mif1", "HEIC"),
        (b"jxl ", "JPEG XL"),
    ];
    let named = match bytes {
        [0xff, 0x0a, ..] | [_, _, _, _, b'J', b'X', b'L', b' ', ..] => Some("JPEG XL"),
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => {
            // The first name, and those that the file is also to be read as.
            let list = brand.get(..64.min(brand.len())).unwrap_or_default();
            let listed = |known: &[u8; 4]| list.chunks_exact(4).any(|name| name == known);
            let found = BRANDS.iter().find(|(known, _)| listed(known));
            found.map(|(_, name)| *name)
        }
        _ => None,
    };
    named.map_or(ImageError::UnknownFormat, |format| ImageError::NotRead {
        format,
    })
}

/// How the file stored a frame, by Pillow's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `1`: black and white.
    Bilevel,
    /// `L`: grey.
    L,
    /// `LA`: grey with alpha.
    La,
    /// `P`: palette.
    P,
    Rgb,
    Rgba,
    /// `I;16`: 16-bit grey; values above 255 are cut to 255, not scaled.
    I16,
    /// `I`: 32-bit integers; scaled by 1/255 first.
    I32,
    /// `F`: floating point; cut to 0..255.
    F32,
    Cmyk,
}

/// One frame as 8-bit RGB, with alpha apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub width: u32,
    pub height: u32,
    pub mode: Mode,
    rgb: Vec<u8>,
    alpha: Option<Vec<u8>>,
    /// Transparency by a single colour: counts when converting to RGBA, but is not an alpha channel.
    key_alpha: Option<Vec<u8>>,
}

impl Frame {
    pub(crate) fn new(
        width: u32,
        height: u32,
        mode: Mode,
        rgb: Vec<u8>,
        alpha: Option<Vec<u8>>,
    ) -> Self {
        debug_assert_eq!(rgb.len(), width as usize * height as usize * 3);
        Self {
            width,
            height,
            mode,
            rgb,
            alpha,
            key_alpha: None,
        }
    }

    fn with_key_alpha(mut self, key_alpha: Option<Vec<u8>>) -> Self {
        self.key_alpha = key_alpha;
        self
    }

    /// Colour, alpha dropped.
    pub fn rgb8(&self) -> &[u8] {
        &self.rgb
    }

    /// Takes the colour without copying it.
    pub fn into_rgb8(self) -> Vec<u8> {
        self.rgb
    }

    /// The alpha channel, or the transparency of a palette; none where the frame has neither. This is what a mask is
    /// made of.
    pub fn alpha8(&self) -> Option<&[u8]> {
        self.alpha.as_deref()
    }

    pub fn has_alpha(&self) -> bool {
        self.alpha.is_some()
    }

    /// The alpha that [`Frame::rgba8`] has, if it is not all opaque.
    fn shown_alpha8(&self) -> Option<&[u8]> {
        self.alpha.as_deref().or(self.key_alpha.as_deref())
    }

    /// Black with the alpha of [`Frame::rgba8`].
    pub fn black_rgba8(&self) -> Vec<u8> {
        let mut out = vec![0; self.rgb.len() / 3 * 4];
        let pixels = out.chunks_exact_mut(4);
        match self.shown_alpha8() {
            Some(alpha) => pixels.zip(alpha).for_each(|(p, a)| p[3] = *a),
            None => pixels.for_each(|p| p[3] = 255),
        }
        out
    }

    /// Colour with alpha, opaque where there is none.
    pub fn rgba8(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.rgb.len() / 3 * 4);
        match self.shown_alpha8() {
            Some(alpha) => {
                for (c, a) in self.rgb.chunks_exact(3).zip(alpha) {
                    out.extend_from_slice(&[c[0], c[1], c[2], *a]);
                }
            }
            None => {
                for c in self.rgb.chunks_exact(3) {
                    out.extend_from_slice(&[c[0], c[1], c[2], 255]);
                }
            }
        }
        out
    }

    /// Splits interleaved RGBA.
    pub(crate) fn from_rgba(width: u32, height: u32, rgba: &[u8]) -> Self {
        let rgb = rgba
            .chunks_exact(4)
            .flat_map(|p| [p[0], p[1], p[2]])
            .collect();
        let alpha = rgba.chunks_exact(4).map(|p| p[3]).collect();
        Self::new(width, height, Mode::Rgba, rgb, Some(alpha))
    }

    /// Some of its rows, from the top.
    pub fn rows(&self, from: u32, count: u32) -> Self {
        let cut = |plane: &[u8], channels: usize| {
            let row = self.width as usize * channels;
            plane[from as usize * row..(from + count) as usize * row].to_vec()
        };
        Self {
            width: self.width,
            height: count,
            mode: self.mode,
            rgb: cut(&self.rgb, 3),
            alpha: self.alpha.as_ref().map(|a| cut(a, 1)),
            key_alpha: self.key_alpha.as_ref().map(|a| cut(a, 1)),
        }
    }

    fn orient(&mut self, orientation: u8) {
        if !(2..=8).contains(&orientation) {
            return;
        }
        let (w, h) = (self.width as usize, self.height as usize);
        self.rgb = turn(&self.rgb, w, h, 3, orientation);
        for plane in [&mut self.alpha, &mut self.key_alpha].into_iter().flatten() {
            *plane = turn(plane, w, h, 1, orientation);
        }
        if orientation >= 5 {
            std::mem::swap(&mut self.width, &mut self.height);
        }
    }
}

/// Rearranges pixels so that a picture stored with this EXIF orientation stands upright.
fn turn(data: &[u8], w: usize, h: usize, channels: usize, orientation: u8) -> Vec<u8> {
    let (out_w, out_h) = if orientation >= 5 { (h, w) } else { (w, h) };
    let mut out = Vec::with_capacity(data.len());
    for y in 0..out_h {
        for x in 0..out_w {
            let (sx, sy) = match orientation {
                2 => (w - 1 - x, y),
                3 => (w - 1 - x, h - 1 - y),
                4 => (x, h - 1 - y),
                5 => (y, x),
                6 => (y, h - 1 - x),
                7 => (w - 1 - y, h - 1 - x),
                _ => (w - 1 - y, x),
            };
            let at = (sy * w + sx) * channels;
            out.extend(&data[at..at + channels]);
        }
    }
    out
}

/// A decoded file: at least one frame.
#[derive(Debug, Clone)]
pub struct DecodedImage {
    pub format: Format,
    /// All frames, upright. They may differ in size (pages of a TIFF).
    pub frames: Vec<Frame>,
    /// Keyed texts of the file.
    pub text: Vec<(String, String)>,
    /// The file ended early or was damaged; what was missing is black.
    pub truncated: bool,
}

impl DecodedImage {
    pub fn first(&self) -> &Frame {
        self.frames.first().expect("a decoded file has a frame")
    }

    /// Frames of the size of the first: what a batch is made of.
    pub fn batch(&self) -> impl Iterator<Item = &Frame> {
        let size = (self.first().width, self.first().height);
        self.frames
            .iter()
            .filter(move |f| (f.width, f.height) == size)
    }
}

/// Decodes a picture file.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<DecodedImage, ImageError> {
    decode_within(bytes, limits, &MemoryGuard::default())
}

/// As [`decode`], asking for the memory of what is decoded before it is taken.
pub fn decode_within(
    bytes: &[u8],
    limits: &Limits,
    memory: &MemoryGuard,
) -> Result<DecodedImage, ImageError> {
    if bytes.is_empty() {
        return Err(ImageError::Empty);
    }
    if bytes.len() > limits.bytes {
        return Err(ImageError::TooLarge {
            bytes: bytes.len(),
            limit: limits.bytes,
        });
    }
    let format = Format::guess(bytes).ok_or_else(|| unknown(bytes))?;
    let mut budget = Budget::new(limits, memory);
    let text = read_metadata(bytes);
    let raw = match format {
        Format::Png => png::decode(bytes, &mut budget)?,
        Format::Jpeg => still::decode_jpeg(bytes, &mut budget)?,
        Format::Bmp => still::decode_bmp(bytes, &mut budget)?,
        Format::Webp => webp::decode(bytes, &mut budget)?,
        Format::Gif => gif::decode(bytes, &mut budget)?,
        Format::Tiff => tiff::decode(bytes, &mut budget)?,
    };
    let orientation = raw.orientation(&text);
    let mut frames = raw.frames;
    for frame in &mut frames {
        if (2..=8).contains(&orientation) {
            budget.claim(frame.width, frame.height, 4)?;
        }
        frame.orient(orientation);
    }
    Ok(DecodedImage {
        format,
        frames,
        text,
        truncated: raw.truncated,
    })
}

/// What a decoder hands over.
#[derive(Debug, Default)]
struct Raw {
    frames: Vec<Frame>,
    exif: Option<Vec<u8>>,
    xmp: Option<Vec<u8>>,
    truncated: bool,
}

impl Raw {
    fn orientation(&self, text: &[(String, String)]) -> u8 {
        let find = |key: &str| text.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let from_exif = match &self.exif {
            Some(exif) => exif::orientation(exif),
            None => find("Raw profile type exif").map_or(1, |t| exif::orientation(&raw_profile(t))),
        };
        if from_exif != 1 {
            return from_exif;
        }
        match &self.xmp {
            Some(xmp) => exif::xmp_orientation(xmp),
            None => find("XML:com.adobe.xmp").map_or(1, |t| exif::xmp_orientation(t.as_bytes())),
        }
    }
}

/// ImageMagick's way to put EXIF into a PNG text: three lines of heading, then hexadecimal.
fn raw_profile(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .skip(3)
        .flat_map(str::chars)
        .filter_map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect()
}

/// Pixels, frames and memory still allowed.
struct Budget<'a> {
    limits: Limits,
    pixels: u64,
    frames: usize,
    memory: &'a MemoryGuard,
    /// Held until all is decoded, and so written to.
    claims: Vec<MemoryClaim>,
}

impl<'a> Budget<'a> {
    fn new(limits: &Limits, memory: &'a MemoryGuard) -> Self {
        Self {
            limits: *limits,
            pixels: 0,
            frames: 0,
            memory,
            claims: Vec::new(),
        }
    }

    /// Asks for the memory of a picture before it is taken: all that stands at the same time while it is decoded.
    fn claim(&mut self, width: u32, height: u32, bytes_a_pixel: u64) -> Result<(), ImageError> {
        self.on_time()?;
        let bytes = (u64::from(width) * u64::from(height)).saturating_mul(bytes_a_pixel);
        let what = format!("a picture of {width} x {height} pixels");
        self.claims.push(self.memory.claim(bytes, &what)?);
        Ok(())
    }

    fn on_time(&self) -> Result<(), ImageError> {
        match self.limits.deadline {
            Some(deadline) if Instant::now() > deadline => Err(ImageError::TooSlow),
            _ => Ok(()),
        }
    }

    /// Accounts for one more frame, before memory is taken for it.
    fn frame(&mut self, width: u32, height: u32) -> Result<(), ImageError> {
        self.frames += 1;
        self.pixels = self
            .pixels
            .saturating_add(u64::from(width) * u64::from(height));
        if self.frames > self.limits.frames {
            return Err(ImageError::TooManyFrames {
                limit: self.limits.frames,
            });
        }
        if self.pixels > self.limits.pixels {
            return Err(ImageError::TooManyPixels {
                width,
                height,
                frames: self.frames,
                pixels: self.pixels,
                limit: self.limits.pixels,
            });
        }
        Ok(())
    }
}

fn corrupt(format: &'static str, what: impl ToString) -> ImageError {
    ImageError::Corrupt {
        format,
        what: what.to_string(),
    }
}

/// Grey values as RGB.
fn grey(values: impl Iterator<Item = u8>) -> Vec<u8> {
    values.flat_map(|v| [v; 3]).collect()
}

/// CMYK by simple subtraction, as Pillow does without a colour profile.
fn cmyk(c: u8, m: u8, y: u8, k: u8) -> [u8; 3] {
    let k = u32::from(255 - k);
    [c, m, y].map(|v| {
        let t = u32::from(v) * k + 128;
        (k - (((t >> 8) + t) >> 8).min(k)) as u8
    })
}

/// A mix of two values by a mask, rounded like Pillow's.
fn mix(src: u8, dst: u8, mask: u8) -> u8 {
    let t = u32::from(src) * u32::from(mask) + u32::from(dst) * u32::from(255 - mask) + 128;
    (((t >> 8) + t) >> 8) as u8
}

#[cfg(test)]
mod tests;
