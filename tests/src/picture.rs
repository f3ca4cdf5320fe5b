//! Whether a picture on disk or from `/view` is whole.

use std::{fs::File, io::BufReader, path::Path};

use anyhow::{Context, Result};

pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub pixels: Vec<u8>,
    /// Text chunks in file order.
    pub texts: Vec<(String, String)>,
}

pub fn read_file(path: &Path) -> Result<Picture> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    read(BufReader::new(file)).with_context(|| format!("{} is not whole", path.display()))
}

/// Decodes to the very end, so that a missing tail or a wrong checksum is seen.
pub fn read(reader: impl std::io::BufRead + std::io::Seek) -> Result<Picture> {
    let mut reader = png::Decoder::new(reader).read_info()?;
    let size = reader
        .output_buffer_size()
        .context("the picture is too large")?;
    let mut pixels = vec![0; size];
    let info = reader.next_frame(&mut pixels)?;
    pixels.truncate(info.buffer_size());
    reader.finish()?;
    let texts = reader
        .info()
        .uncompressed_latin1_text
        .iter()
        .map(|chunk| (chunk.keyword.clone(), chunk.text.clone()))
        .collect();
    Ok(Picture {
        width: info.width,
        height: info.height,
        pixels,
        texts,
    })
}

/// A picture with colours that change from place to place and a hole, as a PNG.
pub fn sample(width: u32, height: u32) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    let hole = |at: u32, size: u32| at > size / 4 && at < size / 2;
    let pixels = (0..width * height).flat_map(|i| {
        let (x, y) = (i % width, i / width);
        let opaque = if hole(x, width) && hole(y, height) {
            0
        } else {
            255
        };
        [
            (x * 255 / width) as u8,
            (y * 255 / height) as u8,
            ((x + y) * 7 % 256) as u8,
            opaque,
        ]
    });
    writer.write_image_data(&pixels.collect::<Vec<u8>>())?;
    writer.finish()?;
    Ok(bytes)
}
