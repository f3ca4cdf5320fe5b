//! Formats with one picture a file: JPEG and BMP.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::{ColorType, DynamicImage, ImageDecoder};

use super::{Budget, Frame, ImageError, Mode, Raw, corrupt, grey};

pub(super) fn decode_jpeg(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    const FORMAT: &str = "JPEG";
    let mut decoder = JpegDecoder::new(Cursor::new(bytes)).map_err(|e| corrupt(FORMAT, e))?;
    let (width, height) = decoder.dimensions();
    budget.frame(width, height)?;
    // Three bytes, and as many for grey ones while they are widened; a progressive file keeps its coefficients until the
    // end, two bytes of each component.
    let kept = if is_progressive(bytes) { 8 } else { 0 };
    budget.claim(width, height, 4 + kept)?;
    let exif = decoder.exif_metadata().ok().flatten();
    let xmp = decoder.xmp_metadata().ok().flatten();
    let colour = decoder.original_color_type();
    let mut buffer = vec![0; decoder.total_bytes() as usize];
    let is_grey = decoder.color_type() == ColorType::L8;
    // The decoder fills what is missing at the end of a file by itself.
    decoder
        .read_image(&mut buffer)
        .map_err(|e| corrupt(FORMAT, e))?;
    let frame = if is_grey {
        Frame::new(width, height, Mode::L, grey(buffer.into_iter()), None)
    } else {
        let mode = match colour {
            image::ExtendedColorType::Cmyk8 => Mode::Cmyk,
            _ => Mode::Rgb,
        };
        Frame::new(width, height, mode, buffer, None)
    };
    Ok(Raw {
        frames: vec![frame],
        exif,
        xmp,
        truncated: !ends_with_marker(bytes),
    })
}

/// Whether the picture comes in several passes: said by the marker before its size.
fn is_progressive(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some([0xff, kind, high, low]) = bytes.get(at..at + 4) {
        match kind {
            0xff => at += 1,
            0xc0 | 0xc1 | 0xc3 | 0xda => return false,
            0xc2 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => return true,
            _ => at += 2 + usize::from(u16::from_be_bytes([*high, *low])),
        }
    }
    // Not found where it should be: the larger guess.
    true
}

/// Whether the end-of-image marker is there; some programs write padding after it.
fn ends_with_marker(bytes: &[u8]) -> bool {
    bytes.windows(2).rev().take(4096).any(|w| w == [0xff, 0xd9])
}

pub(super) fn decode_bmp(bytes: &[u8], budget: &mut Budget) -> Result<Raw, ImageError> {
    const FORMAT: &str = "BMP";
    let decoder = BmpDecoder::new(Cursor::new(bytes)).map_err(|e| corrupt(FORMAT, e))?;
    let (width, height) = decoder.dimensions();
    budget.frame(width, height)?;
    // The picture and its copy in our form.
    budget.claim(width, height, 8)?;
    let mut truncated = false;
    let picture = match DynamicImage::from_decoder(decoder) {
        Ok(p) => p,
        Err(e) => {
            // Rows that are missing read as zeros if the file is made long enough.
            truncated = true;
            budget.claim(width, height, 4)?;
            let row = (u64::from(width) * 4 + 4).saturating_mul(u64::from(height));
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().saturating_add(row as usize), 0);
            let again = BmpDecoder::new(Cursor::new(padded)).and_then(DynamicImage::from_decoder);
            again.map_err(|_| corrupt(FORMAT, e))?
        }
    };
    let frame = if picture.color().has_alpha() {
        Frame::from_rgba(width, height, &picture.into_rgba8())
    } else {
        Frame::new(
            width,
            height,
            Mode::Rgb,
            picture.into_rgb8().into_raw(),
            None,
        )
    };
    Ok(Raw {
        frames: vec![frame],
        truncated,
        ..Raw::default()
    })
}
