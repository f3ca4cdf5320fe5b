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
