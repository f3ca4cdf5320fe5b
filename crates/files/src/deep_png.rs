//! PNG files of kinds that [`crate::png_write`] does not write: grey ones, and those of 16 bits a channel.

use std::io::Write as _;

use crate::png_write::EncodeError;

/// Values of all pixels, row by row, channels together.
#[derive(Debug, Clone, Copy)]
pub enum Samples<'a> {
    Eight(&'a [u8]),
    Sixteen(&'a [u16]),
}

impl Samples<'_> {
    fn len(self) -> usize {
        match self {
            Self::Eight(values) => values.len(),
            Self::Sixteen(values) => values.len(),
        }
    }
}

/// Encodes a picture of 1, 3 or 4 channels; `text` becomes `tEXt` chunks before the image data. Ends early when it is not
/// `wanted` any more.
pub fn encode(
    width: u32,
    height: u32,
    channels: usize,
    samples: Samples<'_>,
    text: &[(String, String)],
    wanted: &dyn Fn() -> bool,
) -> Result<Vec<u8>, EncodeError> {
    let color = match channels {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        4 => png::ColorType::Rgba,
        _ => {
            return Err(EncodeError::Encoder {
                what: format!("a picture of {channels} channels cannot be a PNG"),
            });
        }
    };
    let want = width as usize * height as usize * channels;
    if width == 0 || height == 0 || width > i32::MAX as u32 || height > i32::MAX as u32 {
        return Err(EncodeError::Size { width, height });
    }
    if samples.len() != want {
        return Err(EncodeError::Data {
            got: samples.len(),
            want,
        });
    }
    let failed = |e: png::EncodingError| EncodeError::Encoder {
        what: e.to_string(),
    };
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    encoder.set_depth(match samples {
        Samples::Eight(_) => png::BitDepth::Eight,
        Samples::Sixteen(_) => png::BitDepth::Sixteen,
    });
    for (key, value) in text {
        encoder
            .add_text_chunk(key.clone(), value.clone())
            .map_err(failed)?;
    }
    let mut writer = encoder.write_header().map_err(failed)?;
    let mut rows = writer.stream_writer().map_err(failed)?;
    let stride = width as usize * channels;
    let mut bytes = Vec::with_capacity(stride * 2);
    for y in 0..height as usize {
        if !wanted() {
            return Err(EncodeError::Stopped);
        }
        bytes.clear();
        let row = y * stride..(y + 1) * stride;
        match samples {
            Samples::Eight(values) => bytes.extend(&values[row]),
            Samples::Sixteen(values) => {
                bytes.extend(values[row].iter().flat_map(|v| v.to_be_bytes()));
            }
        }
        rows.write_all(&bytes).map_err(|e| failed(e.into()))?;
    }
    rows.finish().map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (png::OutputInfo, Vec<u8>, Vec<(String, String)>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        let text = &reader.info().uncompressed_latin1_text;
        let text = text.iter().map(|t| (t.keyword.clone(), t.text.clone()));
        (info, pixels, text.collect())
    }

    #[test]
    fn every_kind_comes_back() {
        let text = vec![("prompt".to_owned(), "{}".to_owned())];
        for channels in [1, 3, 4] {
            let deep: Vec<u16> = (0..6 * channels as u16).map(|v| v * 2801).collect();
            let bytes = encode(3, 2, channels, Samples::Sixteen(&deep), &text, &|| true).unwrap();
            let (info, pixels, found) = read(&bytes);
            assert_eq!(info.bit_depth, png::BitDepth::Sixteen);
            let wanted: Vec<u8> = deep.iter().flat_map(|v| v.to_be_bytes()).collect();
            assert_eq!(pixels, wanted);
            assert_eq!(found, text);
            let flat: Vec<u8> = (0..6 * channels as u8).collect();
            let bytes = encode(3, 2, channels, Samples::Eight(&flat), &[], &|| true).unwrap();
            assert_eq!(read(&bytes).1, flat);
        }
    }

    #[test]
    fn wrong_sizes_are_told() {
        let three = [0u8; 3];
        for (width, height, channels) in [(0, 1, 3), (1, 1, 2), (2, 1, 3)] {
            let data = Samples::Eight(&three);
            assert!(encode(width, height, channels, data, &[], &|| true).is_err());
        }
        assert!(matches!(
            encode(1, 1, 3, Samples::Eight(&three), &[], &|| false),
            Err(EncodeError::Stopped)
        ));
    }
}
