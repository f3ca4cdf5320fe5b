//! Decoding against what Pillow 13 sees (`pictures/expected.json`, made by `pictures/make.py`) and the LoadImage goldens.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fresco_files::image::{DecodedImage, ImageError, Limits, Mode, decode};
use serde_json::Value;

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures")
}

fn load(name: &str) -> DecodedImage {
    let bytes = fs::read(here().join(name)).unwrap();
    decode(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn hex(v: &Value) -> Option<Vec<u8>> {
    let text = v.as_str()?;
    let pairs = text.as_bytes().chunks_exact(2);
    Some(
        pairs
            .map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap())
            .collect(),
    )
}

fn worst(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| a.abs_diff(*b))
        .max()
        .unwrap_or(0)
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Bilevel => "1",
        Mode::L => "L",
        Mode::La => "LA",
        Mode::P => "P",
        Mode::Rgb => "RGB",
        Mode::Rgba => "RGBA",
        Mode::I16 => "I;16",
        Mode::I32 => "I",
        Mode::F32 => "F",
        Mode::Cmyk => "CMYK",
    }
}

/// How far from Pillow a file may be, where the arithmetic is not exact.
fn tolerance(name: &str) -> u8 {
    match name {
        // Another inverse transform and chroma filter than libjpeg-turbo.
        "odd/rot6.jpg" | "odd/grey.jpg" | "odd/subsampled.jpg" | "odd/cut.jpg" => 4,
        "odd/cmyk.jpg" => 6,
        _ => 0,
    }
}

#[test]
fn same_as_pillow() {
    let text = fs::read_to_string(here().join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let mut bad = Vec::new();
    for (name, frames) in &expected {
        if name == "odd/palette.tif" {
            continue;
        }
        let got = load(name);
        let frames = frames.as_array().unwrap();
        let mut problems = Vec::new();
        if got.frames.len() != frames.len() {
            problems.push(format!("{} frames, not {}", got.frames.len(), frames.len()));
        }
        for (i, (g, w)) in got.frames.iter().zip(frames).enumerate() {
            let size = [
                w["size"][0].as_u64().unwrap() as u32,
                w["size"][1].as_u64().unwrap() as u32,
            ];
            if [g.width, g.height] != size {
                problems.push(format!("{i}: {}x{}, not {size:?}", g.width, g.height));
                continue;
            }
            let (want, mode) = (w["mode"].as_str().unwrap(), mode_name(g.mode));
            // Pillow opens some grey and palette files in an equivalent mode.
            let alike = matches!(
                (mode, want),
                ("LA", "RGBA") | ("RGB", "L" | "1" | "P" | "CMYK") | ("P", "RGB" | "RGBA")
            );
            if mode != want && !alike {
                problems.push(format!("{i}: mode {mode}, not {want}"));
            }
            let limit = tolerance(name);
            // The decoders differ in what they make of the row of blocks at the cut and of nothing below it.
            let rows = if name == "odd/cut.jpg" { 24 } else { g.height } as usize;
            let n = rows * g.width as usize;
            let rgb = worst(&g.rgb8()[..n * 3], &hex(&w["rgb"]).unwrap()[..n * 3]);
            let rgba = worst(&g.rgba8()[..n * 4], &hex(&w["rgba"]).unwrap()[..n * 4]);
            if rgb > limit || rgba > limit {
                problems.push(format!("{i}: differs by {rgb} in RGB, {rgba} in RGBA"));
            }
            if g.alpha8() != hex(&w["alpha"]).as_deref() {
                problems.push(format!("{i}: alpha differs (has {})", g.has_alpha()));
            }
        }
        if !problems.is_empty() {
            bad.push(format!("{name}: {}", problems.join("; ")));
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
    assert!(expected.len() > 70);
}

#[test]
fn what_cannot_be_read_is_named() {
    let bytes = fs::read(here().join("odd/palette.tif")).unwrap();
    let error = decode(&bytes, &Limits::default()).unwrap_err();
    assert!(
        matches!(error, ImageError::Unsupported { format: "TIFF", .. }),
        "{error}"
    );
}

#[test]
fn cut_files_say_so() {
    for name in ["odd/cut.jpg", "odd/cut.png"] {
        assert!(load(name).truncated, "{name}");
    }
    assert!(!load("load/rgb.png").truncated);
    assert!(!load("odd/rot6.jpg").truncated);
}

/// The tensors of a safetensors file as f32.
fn goldens() -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gold/nodes/files.safetensors");
    let bytes = fs::read(path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    let data = &bytes[8 + n..];
    header
        .into_iter()
        .filter(|(_, v)| v["dtype"] == "F32")
        .map(|(k, v)| {
            let ends: Vec<usize> = v["data_offsets"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_u64().unwrap() as usize)
                .collect();
            let shape = v["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_u64().unwrap() as usize);
            let values = data[ends[0]..ends[1]].chunks_exact(4);
            let values = values
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            (k, (shape.collect(), values))
        })
        .collect()
}

#[test]
fn load_image_goldens() {
    let gold = goldens();
    let names = [
        "anim.gif",
        "anim.png",
        "bilevel.png",
        "exif_rot3_rgba.png",
        "exif_rot6.png",
        "gray.png",
        "gray16.png",
        "gray_alpha.png",
        "lossless.webp",
        "palette.png",
        "palette_trns.png",
        // q95.jpg cannot be made from its result.
        "",
        "rgb.bmp",
        "rgb.png",
        "rgba.png",
    ];
    for (i, name) in names.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
        let image = load(&format!("load/{name}"));
        let (shape, want) = &gold[&format!("LoadImage/{i}/0.0")];
        let frames: Vec<_> = image.batch().collect();
        assert_eq!(
            shape[..],
            [
                frames.len(),
                image.first().height as usize,
                image.first().width as usize,
                3
            ],
            "{name}"
        );
        let got: Vec<f32> = frames
            .iter()
            .flat_map(|f| f.rgb8())
            .map(|&v| f32::from(v) / 255.0)
            .collect();
        assert_eq!(&got, want, "{name}");
        match gold.get(&format!("LoadImage/{i}/1.0")) {
            Some((_, mask)) => {
                let alpha = image
                    .first()
                    .alpha8()
                    .unwrap_or_else(|| panic!("{name} has no alpha"));
                let got: Vec<f32> = alpha.iter().map(|&v| 1.0 - f32::from(v) / 255.0).collect();
                assert_eq!(&got, mask, "{name}");
            }
            None => assert!(image.frames.iter().all(|f| !f.has_alpha()), "{name}"),
        }
    }
}

#[test]
fn load_image_mask_goldens() {
    let gold = goldens();
    let names = [
        "rgb.png",
        "rgba.png",
        "gray_alpha.png",
        "palette_trns.png",
        "gray16.png",
        "exif_rot6.png",
    ];
    let mut checked = 0;
    for (i, name) in names.iter().enumerate() {
        let rgba = load(&format!("load/{name}")).first().rgba8();
        // Channels in the order of the cases; alpha is inverted.
        for (j, channel) in [3, 0, 1, 2].into_iter().enumerate() {
            let Some((_, want)) = gold.get(&format!("LoadImageMask/{}/0.0", i * 4 + j)) else {
                // A constant result: opaque everywhere.
                assert!(rgba.chunks_exact(4).all(|p| p[channel] == 255), "{name}");
                continue;
            };
            let value = |p: &[u8]| f32::from(p[channel]) / 255.0;
            let got: Vec<f32> = rgba
                .chunks_exact(4)
                .map(|p| {
                    if channel == 3 {
                        1.0 - value(p)
                    } else {
                        value(p)
                    }
                })
                .collect();
            assert_eq!(&got, want, "{name} {channel}");
            checked += 1;
        }
    }
    assert!(checked > 18);
}

/// Every file, cut at every length and with bytes changed: an answer or an error, never a panic.
#[test]
fn damaged_files_do_not_panic() {
    let limits = Limits {
        pixels: 1_000_000,
        frames: 50,
        ..Limits::default()
    };
    for folder in ["load", "odd"] {
        for entry in fs::read_dir(here().join(folder)).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            for cut in (0..bytes.len()).step_by(1 + bytes.len() / 25) {
                let _ = decode(&bytes[..cut], &limits);
            }
            let mut x = 1u32;
            for _ in 0..30 {
                let mut damaged = bytes.clone();
                for _ in 0..3 {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let at = (x >> 8) as usize % damaged.len();
                    damaged[at] = x as u8;
                }
                let _ = decode(&damaged, &limits);
            }
        }
    }
}
