//! Long films: read, taken apart, put together and saved again without being in memory.

use std::{fs::File, io::BufWriter, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use fresco_media::{Rate, VideoCodec, VideoSpec, VideoWriter};
use fresco_tests::{Server, StartOptions, tiny};
use serde_json::json;

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] =
    &[("film", film), ("decoded", decoded), ("tiles", tiles)];

const FRAMES: u64 = 1000;
const WIDTH: usize = 1280;
const HEIGHT: usize = 720;

/// Bars that move over a slope.
fn picture(number: usize, rgb: &mut Vec<u8>) {
    rgb.clear();
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            let bar = if ((x + number * 4) / 64).is_multiple_of(2) {
                60
            } else {
                0
            };
            rgb.extend([
                (x / 8) as u8 + bar,
                (y / 4) as u8,
                ((x + y) / 16) as u8 + bar,
            ]);
        }
    }
}

fn write_film(path: &Path) -> Result<f64> {
    let spec = VideoSpec {
        width: WIDTH,
        height: HEIGHT,
        rate: Rate::from_fps(24.0).context("a rate")?,
        codec: VideoCodec::H264,
        tags: Vec::new(),
    };
    let began = Instant::now();
    let mut writer = VideoWriter::new(BufWriter::new(File::create(path)?), spec, None)?;
    let mut rgb = Vec::new();
    for number in 0..FRAMES as usize {
        picture(number, &mut rgb);
        writer.frame(&rgb)?;
    }
    writer.finish()?;
    Ok(began.elapsed().as_secs_f64())
}

/// A thousand frames of 720p, which would be 11 GB as numbers.
fn film(table: &mut Table) -> Result<()> {
    let base = tempfile::tempdir()?;
    let input = base.path().join("input");
    std::fs::create_dir_all(&input)?;
    let seconds = write_film(&input.join("long.mp4"))?;
    table.row(
        "encoding 1,000 frames of 720p as H.264",
        seconds,
        "s",
        None,
        "",
    );
    let server = Server::start_with(StartOptions {
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let idle = process::memory_mb(server.pid())?;
    let prompt = json!({
        "1": {"class_type": "LoadVideo", "inputs": {"file": "long.mp4"}},
        "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}},
        "3": {"class_type": "CreateVideo", "inputs": {"images": ["2", 0], "fps": 24.0}},
        "4": {"class_type": "SaveVideo", "inputs":
            {"video": ["3", 0], "filename_prefix": "long", "format": "auto", "codec": "auto"}},
    });
    let began = Instant::now();
    finish(&server, &prompt)?;
    let seconds = began.elapsed().as_secs_f64();
    let peak = process::peak_mb(server.pid())?;
    let saved = std::fs::metadata(base.path().join("output/long_00001_.mp4"))?.len();
    ensure!(saved > 0, "nothing was saved");
    table.row(
        "1,000 frames of 720p loaded, taken apart and saved",
        seconds,
        "s",
        None,
        "",
    );
    table.row(
        "the same: memory above an idle server",
        peak - idle,
        "MB",
        Some(1200.0),
        "",
    );
    Ok(())
}

/// Runs a prompt to its end, which may take longer than tests wait for an answer.
fn finish(server: &Server, prompt: &serde_json::Value) -> Result<()> {
    let id = server.queue(prompt, None);
    let entry = loop {
        let history = server.get(&format!("/history/{id}")).json();
        if !history[&id].is_null() {
            break history[&id].clone();
        }
        std::thread::park_timeout(std::time::Duration::from_millis(200));
    };
    ensure!(
        entry["status"]["status_str"] == "success",
        "failed: {}",
        entry["status"]
    );
    Ok(())
}

/// Decodes a latent of 1,001 frames of 720p with a narrow autoencoder (eight channels at full size in place of 96) and saves
/// the film: nothing of its 11 GB is in memory for longer than it takes.
fn decode(table: &mut Table, vae: &str, latent: &str, node: serde_json::Value) -> Result<()> {
    let base = tempfile::tempdir()?;
    let folder = base.path().join("models/vae");
    std::fs::create_dir_all(&folder)?;
    tiny::write(&folder.join("vae.safetensors"), &tiny::golden(vae, &[])?)?;
    let weights = std::fs::metadata(folder.join("vae.safetensors"))?.len() as f64 / 1e6;
    let server = Server::start_with(StartOptions {
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let idle = process::memory_mb(server.pid())?;
    let prompt = json!({
        "1": {"class_type": "VAELoader", "inputs": {"vae_name": "vae.safetensors"}},
        "2": {"class_type": latent, "inputs":
            {"width": WIDTH, "height": HEIGHT, "length": FRAMES + 1, "batch_size": 1}},
        "3": node,
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["3", 0], "fps": 24.0}},
        "5": {"class_type": "SaveVideo", "inputs":
            {"video": ["4", 0], "filename_prefix": "made", "format": "auto", "codec": "auto"}},
    });
    let began = Instant::now();
    finish(&server, &prompt)?;
    let seconds = began.elapsed().as_secs_f64();
    let peak = process::peak_mb(server.pid())?;
    let saved = std::fs::metadata(base.path().join("output/made_00001_.mp4"))?.len();
    ensure!(saved > 0, "nothing was saved");
    let what = node_name(&prompt);
    table.row(
        format!("{vae}, {what}: 1,001 frames of 720p decoded from a latent and saved"),
        seconds,
        "s",
        None,
        "",
    );
    table.row(
        format!("{vae}, {what}: memory above an idle server and the weights"),
        peak - idle - weights,
        "MB",
        Some(1200.0),
        "",
    );
    Ok(())
}

fn node_name(prompt: &serde_json::Value) -> String {
    let class = prompt["3"]["class_type"].as_str();
    class.unwrap_or_default().to_owned()
}

fn decoded(table: &mut Table) -> Result<()> {
    let node = json!({"class_type": "VAEDecode", "inputs": {"samples": ["2", 0], "vae": ["1", 0]}});
    decode(
        table,
        "wan_vae_tiled_small",
        "EmptyHunyuanLatentVideo",
        node,
    )
}

/// The same in tiles, which any autoencoder of films can do.
fn tiles(table: &mut Table) -> Result<()> {
    let node = json!({"class_type": "VAEDecodeTiled", "inputs": {"samples": ["2", 0], "vae": ["1", 0],
        "tile_size": 512, "overlap": 64, "temporal_size": 32, "temporal_overlap": 8}});
    decode(
        table,
        "wan_vae_tiled_small",
        "EmptyHunyuanLatentVideo",
        node,
    )
}
