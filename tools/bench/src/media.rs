//! Long films: read, taken apart, put together and saved again without being in memory.

use std::{fs::File, io::BufWriter, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use fresco_media::{Rate, VideoCodec, VideoSpec, VideoWriter};
use fresco_tests::{Server, StartOptions};
use serde_json::json;

use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] = &[("film", film)];

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
    let id = server.queue(&prompt, None);
    // Longer than tests wait for an answer.
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
