//! A starter folder with an untrained model of the starter model's layout: halves everywhere, the token table in eight bits,
//! and metadata that says how to show its latents.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Map, json};

use crate::{
    server::program,
    tiny::{Keys, Tiny, synthetic},
};

/// The files' names.
pub const CHECKPOINT: &str = "little.safetensors";
const DECODER: &str = "little-preview";

/// Colours of four channels, and what is added.
const COLOURS: &str = "[[0.3,0,0],[0,0.3,0],[0,0,0.3],[0.1,0.1,0.1],[0,0,0.2]]";

/// As the starter model, narrower.
pub fn layout() -> Tiny {
    Tiny {
        attention: vec![false, true, true],
        ..Tiny::default()
    }
}

/// Writes the checkpoint into the model folders of a starter folder.
pub fn write(starter: &Path) -> Result<()> {
    let folder = starter.join("models/checkpoints");
    fs::create_dir_all(&folder)?;
    let metadata = [
        ("modelspec.title", "Little"),
        ("fresco.preview", DECODER),
        ("fresco.latent_rgb", COLOURS),
    ];
    let keys = layout().checkpoint();
    write_small(&folder.join(CHECKPOINT), &keys, &metadata)
}

/// Writes the decoder for previews that the checkpoint names.
pub fn write_decoder(starter: &Path) -> Result<()> {
    write_decoder_of(starter, &decoder())
}

/// The layout of that decoder.
pub fn decoder() -> Keys {
    let mut keys = Keys::new();
    keys.insert("decoder.1.weight".into(), vec![16, 4, 3, 3]);
    keys.insert("decoder.1.bias".into(), vec![16]);
    // No bias: the size doubles before.
    for (number, to) in [(4, 16), (6, 8), (8, 8)] {
        let from = if number == 8 { 8 } else { 16 };
        keys.insert(format!("decoder.{number}.weight"), vec![to, from, 3, 3]);
    }
    keys.insert("decoder.9.weight".into(), vec![3, 8, 3, 3]);
    keys.insert("decoder.9.bias".into(), vec![3]);
    keys
}

/// Writes another decoder under the name that the checkpoint has for its own.
pub fn write_decoder_of(starter: &Path, keys: &Keys) -> Result<()> {
    let folder = starter.join("models/vae_approx");
    fs::create_dir_all(&folder)?;
    write_small(&folder.join(format!("{DECODER}.safetensors")), keys, &[])
}

/// The program under another path, as if it had been installed there. The folder is on the disk of the program, so that a
/// link does.
pub fn install(folder: &Path) -> PathBuf {
    let from = program();
    let to = folder.join(from.file_name().expect("a program has a name"));
    fs::create_dir_all(folder).expect("a temporary folder can be made");
    fs::hard_link(&from, &to)
        .or_else(|_| fs::copy(&from, &to).map(drop))
        .expect("a temporary file can be written");
    to
}

/// Synthetic weights as a safetensors file of halves, the token table in eight bits.
fn write_small(path: &Path, keys: &Keys, metadata: &[(&str, &str)]) -> Result<()> {
    let pairs = metadata.iter().map(|(k, v)| ((*k).to_owned(), json!(v)));
    let mut header = Map::new();
    header.insert(
        "__metadata__".to_owned(),
        pairs.collect::<Map<_, _>>().into(),
    );
    let mut at = 0;
    for (key, shape) in keys {
        let (dtype, size) = if is_table(key) {
            ("F8_E4M3", 1)
        } else {
            ("F16", 2)
        };
        let end = at + shape.iter().product::<usize>() * size;
        header.insert(
            key.clone(),
            json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = serde_json::to_vec(&header)?;
    let mut out = BufWriter::new(File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (key, shape) in keys {
        let eight = is_table(key);
        for value in synthetic(key, shape) {
            if eight {
                out.write_all(&[narrowed(value, 3, 7) as u8])?;
            } else {
                out.write_all(&narrowed(value, 10, 15).to_le_bytes())?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn is_table(key: &str) -> bool {
    key.ends_with("token_embedding.weight")
}

/// A number below two as a narrow float with so many bits behind the point and such a bias: cut, not rounded, and what is
/// too small for the format's normal numbers is zero. A synthetic weight need be no particular number.
fn narrowed(value: f32, mantissa: u32, bias: i32) -> u16 {
    let bits = value.to_bits();
    let exponent = ((bits >> 23) & 0xFF) as i32 - 127 + bias;
    let width = if mantissa == 3 { 7 } else { 15 };
    let sign = (bits >> 31) << width;
    if exponent <= 0 {
        return sign as u16;
    }
    let fraction = (bits & 0x7F_FFFF) >> (23 - mantissa);
    (sign | ((exponent as u32) << mantissa) | fraction) as u16
}

#[cfg(test)]
mod tests {
    use super::narrowed;

    #[test]
    fn narrow_numbers() {
        for (value, half, eighth) in [
            (1.0, 0x3C00, 0x38),
            (-1.5, 0xBE00, 0xBC),
            (0.125, 0x3000, 0x20),
            (1e-9, 0, 0),
            (-0.0, 0x8000, 0x80),
        ] {
            assert_eq!(narrowed(value, 10, 15), half);
            assert_eq!(narrowed(value, 3, 7), eighth);
        }
    }
}
