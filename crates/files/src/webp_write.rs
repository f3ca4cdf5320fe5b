//! WEBP and JPEG writers: stills for previews, animations with metadata for saving.

use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::exif;
use crate::metadata::chunk_list;
use crate::png_write::{EncodeError, Picture, Pixels};

/// Largest edge the format can hold.
const MAX_EDGE: u32 = 16_383;
/// EXIF tag of the first text; further ones count down from [`EXTRA_TAG`].
const PROMPT_TAG: u16 = 0x0110;
const EXTRA_TAG: u16 = 0x010f;

/// How to compress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WebpOptions {
    pub lossless: bool,
    /// 0 to 100; with `lossless` it is effort, not quality.
    pub quality: f32,
    /// 0 (fast) to 6 (small).
    pub method: u8,
}

impl Default for WebpOptions {
    fn default() -> Self {
        Self {
            lossless: false,
            quality: 80.0,
            method: 4,
        }
    }
}

/// Encodes one picture without metadata.
pub fn encode_webp(picture: &Picture, options: WebpOptions) -> Result<Vec<u8>, EncodeError> {
    if picture.width > MAX_EDGE || picture.height > MAX_EDGE {
        return Err(EncodeError::Size {
            width: picture.width,
            height: picture.height,
        });
    }
    let failed = |what: String| EncodeError::Encoder { what };
    let mut config =
        webp::WebPConfig::new().map_err(|()| failed("it cannot be set up".to_owned()))?;
    config.lossless = options.lossless.into();
    config.quality = options.quality.clamp(0.0, 100.0);
    config.method = options.method.min(6).into();
    // Keep colours under full transparency: they are data to a workflow.
    config.exact = 1;
    let encoder = match picture.pixels {
        Pixels::Rgb => webp::Encoder::from_rgb(picture.data, picture.width, picture.height),
        Pixels::Rgba => webp::Encoder::from_rgba(picture.data, picture.width, picture.height),
    };
    let encoded = encoder
        .encode_advanced(&config)
        .map_err(|e| failed(format!("WEBP error {e:?}")))?;
    Ok(encoded.to_vec())
}

/// Encodes an animation that plays for ever; a single frame gives a still. The first text (the prompt) goes to its own
/// EXIF tag, the others to the tags below, each as `key:value`.
pub fn encode_webp_animation(
    frames: &[Picture],
    duration_ms: u32,
    text: &[(String, String)],
    options: WebpOptions,
) -> Result<Vec<u8>, EncodeError> {
    encode_webp_animation_while(frames, duration_ms, text, options, &|| true)
}

/// As [`encode_webp_animation`], as long as it is `wanted`: asked before each frame.
pub fn encode_webp_animation_while(
    frames: &[Picture],
    duration_ms: u32,
    text: &[(String, String)],
    options: WebpOptions,
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<u8>, EncodeError> {
    let first = frames.first().ok_or(EncodeError::NoFrames)?;
    let mut body = Vec::new();
    let mut flags = 0u8;
    if first.pixels == Pixels::Rgba {
        flags |= 0x10;
    }
    if frames.len() > 1 {
        flags |= 0x02;
        chunk(&mut body, *b"ANIM", &[0; 6]);
    }
    for frame in frames {
        if (frame.width, frame.height, frame.pixels) != (first.width, first.height, first.pixels) {
            return Err(EncodeError::Size {
                width: frame.width,
                height: frame.height,
            });
        }
        if !wanted() {
            return Err(EncodeError::Stopped);
        }
        let file = encode_webp(frame, options)?;
        let mut data = Vec::with_capacity(file.len() + 16);
        if frames.len() > 1 {
            data.extend([0; 6]); // at the upper left corner
            data.extend(&(frame.width - 1).to_le_bytes()[..3]);
            data.extend(&(frame.height - 1).to_le_bytes()[..3]);
            data.extend(&duration_ms.min(0xff_ffff).to_le_bytes()[..3]);
            data.push(0x02); // replaces what is under it
        }
        for (kind, part) in chunk_list(&file[12..]) {
            if [b"ALPH", b"VP8 ", b"VP8L"].contains(&kind) {
                chunk(&mut data, *kind, part);
            }
        }
        if frames.len() > 1 {
            chunk(&mut body, *b"ANMF", &data);
        } else {
            body.extend(data);
        }
    }
    if !text.is_empty() {
        flags |= 0x08;
        chunk(&mut body, *b"EXIF", &exif::build(&tags(text)));
    }
    let mut head = vec![flags, 0, 0, 0];
    head.extend(&(first.width - 1).to_le_bytes()[..3]);
    head.extend(&(first.height - 1).to_le_bytes()[..3]);
    let mut out = b"RIFF\0\0\0\0WEBP".to_vec();
    chunk(&mut out, *b"VP8X", &head);
    out.extend(body);
    let size = (out.len() - 8) as u32;
    out[4..8].copy_from_slice(&size.to_le_bytes());
    Ok(out)
}

/// `prompt` has a tag of its own, everything else counts down.
fn tags(text: &[(String, String)]) -> Vec<(u16, String)> {
    let mut extra = EXTRA_TAG;
    text.iter()
        .map(|(key, value)| {
            let tag = if key == "prompt" {
                PROMPT_TAG
            } else {
                extra -= 1;
                extra + 1
            };
            (tag, format!("{key}:{value}"))
        })
        .collect()
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    out.extend(kind);
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    if data.len() % 2 == 1 {
        out.push(0);
    }
}

/// Encodes a JPEG of quality 1 to 100; alpha is dropped.
pub fn encode_jpeg(picture: &Picture, quality: u8) -> Result<Vec<u8>, EncodeError> {
    let rgb: Vec<u8>;
    let data = match picture.pixels {
        Pixels::Rgb => picture.data,
        Pixels::Rgba => {
            rgb = picture
                .data
                .chunks_exact(4)
                .flat_map(|p| [p[0], p[1], p[2]])
                .collect();
            &rgb
        }
    };
    let mut out = Vec::new();
    JpegEncoder::new_with_quality(&mut out, quality.clamp(1, 100))
        .encode(data, picture.width, picture.height, ExtendedColorType::Rgb8)
        .map_err(|e| EncodeError::Encoder {
            what: e.to_string(),
        })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Limits, Mode, decode};
    use crate::metadata::{read_metadata, riff_chunks};

    fn noise(n: usize, seed: u32) -> Vec<u8> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 24) as u8
            })
            .collect()
    }

    const LOSSLESS: WebpOptions = WebpOptions {
        lossless: true,
        quality: 80.0,
        method: 4,
    };

    #[test]
    fn lossless_animation_round_trips_with_metadata() {
        for pixels in [Pixels::Rgb, Pixels::Rgba] {
            let data: Vec<_> = (0..3)
                .map(|i| noise(23 * 19 * pixels.channels(), i))
                .collect();
            let frames: Vec<_> = data
                .iter()
                .map(|d| Picture::new(23, 19, pixels, d).unwrap())
                .collect();
            let text = vec![
                ("prompt".to_owned(), "{\"a\": 1}".to_owned()),
                ("workflow".to_owned(), "{}".to_owned()),
                ("other".to_owned(), "[\"x:y\"]".to_owned()),
            ];
            let file = encode_webp_animation(&frames, 166, &text, LOSSLESS).unwrap();
            assert_eq!(read_metadata(&file), text);
            let back = decode(&file, &Limits::default()).unwrap();
            assert_eq!(back.frames.len(), 3);
            for (f, d) in back.frames.iter().zip(&data) {
                match pixels {
                    Pixels::Rgb => assert!(f.rgb8() == d && !f.has_alpha()),
                    Pixels::Rgba => assert!(f.rgba8() == *d && f.has_alpha()),
                }
            }
            let exif = riff_chunks(&file)
                .unwrap()
                .find(|c| c.0 == b"EXIF")
                .unwrap()
                .1;
            let tags = exif::texts(exif);
            let numbers: Vec<_> = tags.iter().map(|t| t.0).collect();
            assert_eq!(numbers, [270, 271, 272]);
            assert_eq!(tags[2].1, "prompt:{\"a\": 1}");
        }
    }

    #[test]
    fn one_frame_is_a_still() {
        let data = noise(4 * 4 * 3, 1);
        let frame = Picture::new(4, 4, Pixels::Rgb, &data).unwrap();
        let text = vec![("prompt".to_owned(), "{}".to_owned())];
        let file = encode_webp_animation(&[frame], 1, &text, LOSSLESS).unwrap();
        assert_eq!(read_metadata(&file), text);
        let back = decode(&file, &Limits::default()).unwrap();
        assert_eq!((back.frames.len(), back.first().rgb8()), (1, &data[..]));
    }

    #[test]
    fn lossy_is_close_and_small() {
        let data: Vec<u8> = (0..64 * 64)
            .flat_map(|i| [(i % 64 * 4) as u8, (i / 64 * 4) as u8, 128])
            .collect();
        let p = Picture::new(64, 64, Pixels::Rgb, &data).unwrap();
        for file in [
            encode_webp(&p, WebpOptions::default()).unwrap(),
            encode_jpeg(&p, 90).unwrap(),
        ] {
            assert!(file.len() < 4000, "{}", file.len());
            let back = decode(&file, &Limits::default()).unwrap();
            assert_eq!(back.first().mode, Mode::Rgb);
            let worst = back
                .first()
                .rgb8()
                .iter()
                .zip(&data)
                .map(|(a, b)| a.abs_diff(*b))
                .max()
                .unwrap();
            assert!(worst < 40, "{worst}");
        }
        let rgba = [1, 2, 3, 4];
        let p = Picture::new(1, 1, Pixels::Rgba, &rgba).unwrap();
        assert!(encode_jpeg(&p, 0).is_ok());
    }

    #[test]
    fn too_large_is_an_error() {
        let data = vec![0; 16_384 * 3];
        let p = Picture::new(16_384, 1, Pixels::Rgb, &data).unwrap();
        assert!(matches!(
            encode_webp(&p, LOSSLESS),
            Err(EncodeError::Size { .. })
        ));
        assert!(matches!(
            encode_webp_animation(&[], 1, &[], LOSSLESS),
            Err(EncodeError::NoFrames)
        ));
    }
}
