//! TIFF: every page is a frame. Palettes and YCbCr are beyond the decoder and refused.

use std::io::Cursor;

use tiff::ColorType;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

use super::{Budget, Frame, ImageError, Mode, Raw, cmyk, corrupt, grey};

const FORMAT: &str = "TIFF";

pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    let mut limits = Limits::default();
    // Pixels are counted here; samples of a pixel take 16 bytes at most.
    let most = (budget.limits.pixels as usize).saturating_mul(16);
    limits.decoding_buffer_size = most;
    limits.intermediate_buffer_size = most;
    let mut decoder = Decoder::new(Cursor::new(bytes))
        .map_err(|e| corrupt(FORMAT, e))?
        .with_limits(limits);
    let mut raw = Raw::default();
    loop {
        match page(&mut decoder, budget) {
            Ok(frame) => raw.frames.push(frame),
            // A damaged later page does not take away the ones before it.
            Err(ImageError::Corrupt { .. } | ImageError::Unsupported { .. })
                if !raw.frames.is_empty() =>
            {
                raw.truncated = true;
                break;
            }
            Err(e) => return Err(e),
        }
        if budget.limits.first_only || !decoder.more_images() {
            break;
        }
        if decoder.next_image().is_err() {
            raw.truncated = true;
            break;
        }
    }
    Ok(raw)
}

fn page(decoder: &mut Decoder<Cursor<&[u8]>>, budget: &mut Budget) -> Result<Frame, ImageError> {
    let failed = |e: tiff::TiffError| match e {
        tiff::TiffError::UnsupportedError(what) => ImageError::Unsupported {
            format: FORMAT,
            what: what.to_string(),
        },
        e => corrupt(FORMAT, e),
    };
    let (width, height) = decoder.dimensions().map_err(failed)?;
    if width == 0 || height == 0 {
        return Err(corrupt(FORMAT, "it has no pixels"));
    }
    budget.frame(width, height)?;
    let colour = decoder.colortype().map_err(failed)?;
    let unsupported = || ImageError::Unsupported {
        format: FORMAT,
        what: format!("pixels of type {colour:?}"),
    };
    // The samples as the file has them, again with fewer bits, and the frame.
    let bits = u64::from(colour.bit_depth()) * u64::from(colour.num_samples());
    budget.claim(width, height, 2 * bits.div_ceil(8) + 4)?;
    let orientation: Option<u8> = decoder
        .find_tag_unsigned(Tag::Orientation)
        .map_err(failed)?;
    let premultiplied = decoder
        .find_tag_unsigned_vec::<u16>(Tag::ExtraSamples)
        .map_err(failed)?
        .is_some_and(|v| v.first() == Some(&1));
    let data = decoder.read_image().map_err(failed)?;
    let pixels = width as usize * height as usize;
    let (mode, rgb, alpha) = match (colour, &data) {
        (ColorType::Gray(1), DecodingResult::U8(v)) => {
            let stride = (width as usize).div_ceil(8);
            let bits = v.chunks(stride).flat_map(|row| {
                (0..width as usize)
                    .map(|x| row.get(x / 8).is_some_and(|b| b >> (7 - x % 8) & 1 == 1))
            });
            (
                Mode::Bilevel,
                grey(bits.map(|b| if b { 255 } else { 0 })),
                None,
            )
        }
        (ColorType::Gray(8), DecodingResult::U8(v)) => (Mode::L, grey(v.iter().copied()), None),
        (ColorType::Gray(16), DecodingResult::U16(v)) => {
            (Mode::I16, grey(v.iter().map(|v| (*v).min(255) as u8)), None)
        }
        (ColorType::Gray(32), DecodingResult::U32(v)) => (
            Mode::I32,
            grey(v.iter().map(|v| (v / 255).min(255) as u8)),
            None,
        ),
        (ColorType::Gray(32), DecodingResult::I32(v)) => (
            Mode::I32,
            grey(v.iter().map(|v| (v / 255).clamp(0, 255) as u8)),
            None,
        ),
        // The cast cuts to 0..255.
        (ColorType::Gray(32), DecodingResult::F32(v)) => {
            (Mode::F32, grey(v.iter().map(|v| *v as u8)), None)
        }
        _ => {
            // The rest has samples of 8 bits, or of 16 of which the high half counts.
            let bytes: Vec<u8> = match data {
                DecodingResult::U8(v) => v,
                DecodingResult::U16(v) => v.into_iter().map(|v| (v >> 8) as u8).collect(),
                _ => return Err(unsupported()),
            };
            match colour {
                ColorType::GrayA(8 | 16) => (
                    Mode::La,
                    grey(bytes.iter().step_by(2).copied()),
                    Some(bytes.iter().skip(1).step_by(2).copied().collect()),
                ),
                ColorType::RGB(8 | 16) => (Mode::Rgb, bytes, None),
                ColorType::RGBA(8 | 16) => {
                    let straight = |c: u8, a: u8| match a {
                        0 | 255 => c,
                        a if premultiplied => (255 * u32::from(c) / u32::from(a)).min(255) as u8,
                        _ => c,
                    };
                    let rgb = bytes
                        .chunks_exact(4)
                        .flat_map(|p| {
                            [
                                straight(p[0], p[3]),
                                straight(p[1], p[3]),
                                straight(p[2], p[3]),
                            ]
                        })
                        .collect();
                    (
                        Mode::Rgba,
                        rgb,
                        Some(bytes.chunks_exact(4).map(|p| p[3]).collect()),
                    )
                }
                ColorType::CMYK(8 | 16) => {
                    let rgb = bytes
                        .chunks_exact(4)
                        .flat_map(|p| cmyk(p[0], p[1], p[2], p[3]))
                        .collect();
                    (Mode::Cmyk, rgb, None)
                }
                _ => return Err(unsupported()),
            }
        }
    };
    let fits =
        rgb.len() == pixels * 3 && alpha.as_ref().is_none_or(|a: &Vec<u8>| a.len() == pixels);
    if !fits {
        return Err(corrupt(FORMAT, "pixels are missing"));
    }
    let mut frame = Frame::new(width, height, mode, rgb, alpha);
    if orientation.is_some_and(|o| o > 1) {
        budget.claim(width, height, 4)?;
    }
    frame.orient(orientation.unwrap_or(1));
    Ok(frame)
}
