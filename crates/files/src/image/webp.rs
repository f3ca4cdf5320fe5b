//! WEBP: stills through libwebp, animations taken apart here and their frames decoded one by one.
//!
//! The animation decoder of the `webp` crate is not used: it never returns on a damaged frame.

use webp::{BitstreamFeatures, Decoder};

use super::{Budget, Frame, ImageError, Mode, Raw, corrupt};
use crate::metadata::{chunk_list, riff_chunks};

const FORMAT: &str = "WEBP";

pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    let features = BitstreamFeatures::new(bytes)
        .ok_or_else(|| corrupt(FORMAT, "its header cannot be read"))?;
    let mut raw = Raw::default();
    for (kind, data) in riff_chunks(bytes).into_iter().flatten() {
        match kind {
            b"EXIF" => raw.exif = Some(data.to_vec()),
            b"XMP " => raw.xmp = Some(data.to_vec()),
            _ => {}
        }
    }
    if features.has_animation() {
        animation(bytes, &features, budget, &mut raw)?;
    } else {
        budget.frame(features.width(), features.height())?;
        // The decoder's own, what it gives, and our copy.
        budget.claim(features.width(), features.height(), 12)?;
        let picture = Decoder::new(bytes)
            .decode()
            .ok_or_else(|| corrupt(FORMAT, "its picture cannot be decoded"))?;
        raw.frames.push(if picture.is_alpha() {
            Frame::from_rgba(picture.width(), picture.height(), &picture)
        } else {
            Frame::new(
                picture.width(),
                picture.height(),
                Mode::Rgb,
                picture.to_vec(),
                None,
            )
        });
    }
    Ok(raw)
}

fn u24(b: &[u8]) -> usize {
    usize::from(b[0]) | usize::from(b[1]) << 8 | usize::from(b[2]) << 16
}

fn animation(
    bytes: &[u8],
    features: &BitstreamFeatures,
    budget: &mut Budget,
    raw: &mut Raw,
) -> Result<(), ImageError> {
    let (width, height) = (features.width() as usize, features.height() as usize);
    let has_alpha = features.has_alpha();
    budget.frame(features.width(), features.height())?;
    budget.frames -= 1;
    // The canvas, and what a decoder of one frame takes.
    budget.claim(features.width(), features.height(), 4 + 8)?;
    let mut canvas = vec![[0; 4]; width * height];
    let mut dispose: Option<Area> = None;
    for (kind, data) in riff_chunks(bytes).into_iter().flatten() {
        if kind != b"ANMF" {
            continue;
        }
        budget.frame(features.width(), features.height())?;
        budget.claim(features.width(), features.height(), 4)?;
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
        let still = as_still(body, area);
        let fits = BitstreamFeatures::new(&still)
            .is_some_and(|f| (f.width() as usize, f.height() as usize) == (area.w, area.h));
        let Some(picture) = fits.then(|| Decoder::new(&still).decode()).flatten() else {
            raw.truncated = true;
            break;
        };
        if let Some(area) = dispose.take() {
            area.each(width, |at, _| canvas[at] = [0; 4]);
        }
        let channels = if picture.is_alpha() { 4 } else { 3 };
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

/// The chunks of a frame as a file of their own.
fn as_still(body: &[u8], area: Area) -> Vec<u8> {
    let mut out = b"RIFF\0\0\0\0WEBP".to_vec();
    let has_alpha = chunk_list(body).any(|(kind, _)| kind == b"ALPH");
    if has_alpha {
        out.extend(b"VP8X\x0a\0\0\0\x10\0\0\0");
        out.extend(&((area.w - 1) as u32).to_le_bytes()[..3]);
        out.extend(&((area.h - 1) as u32).to_le_bytes()[..3]);
    }
    for (kind, data) in chunk_list(body) {
        if [b"ALPH", b"VP8 ", b"VP8L"].contains(&kind) {
            out.extend(kind);
            out.extend((data.len() as u32).to_le_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(2), 0);
        }
    }
    let size = (out.len() - 8) as u32;
    out[4..8].copy_from_slice(&size.to_le_bytes());
    out
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
