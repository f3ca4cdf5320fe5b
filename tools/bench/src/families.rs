//! Families of models: how fast a file is recognised, and how much memory a picture takes beside the files it is made with.

use std::{collections::BTreeSet, fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use fresco_models::detect_checkpoint;
use fresco_models::flux::FluxNetwork;
use fresco_models::store::Layout;
use fresco_models::{DiffusionNetwork, detect::Checkpoint};
use fresco_synth::list::{self, Values};
use fresco_tensor::open_weights;
use fresco_tests::templates::files::{find, write_network};
use fresco_tests::templates::networks::Network;
use fresco_tests::tiny::{self, Keys};
use fresco_tests::{Server, StartOptions};
use serde_json::{Value, json};

use crate::transformers::flux_config;
use crate::{Measurement, process, table::Table};

pub(crate) const MEASUREMENTS: &[Measurement] =
    &[("detect", detect), ("memory", memory), ("narrow", narrow)];

/// Bytes that this process asked the kernel to read so far.
fn asked_for() -> Result<u64> {
    let about = fs::read_to_string("/proc/self/io")?;
    let line = about.lines().find_map(|line| line.strip_prefix("rchar:"));
    Ok(line.context("no rchar line")?.trim().parse()?)
}

/// The names and shapes of a full-size model, without what is counted and no weight.
fn listed(name: &str) -> Result<Keys> {
    let items = list::load(name)?.into_iter();
    let weights = items.filter(|item| item.values == Values::Made);
    Ok(weights.map(|item| (item.name, item.shape)).collect())
}

fn recognised(path: &Path) -> Result<Checkpoint> {
    Ok(detect_checkpoint(&open_weights(path)?)?)
}

/// Full-size files whose weights are a hole: opened and recognised by names and shapes.
fn detect(table: &mut Table) -> Result<()> {
    let base = tempfile::tempdir()?;
    let names = [
        "sdxl",
        "z_image",
        "lumina2",
        "newbie",
        "krea2",
        "anima",
        "flux3_klein",
        "omnigen2",
        "kandinsky5_image",
        "hidream_i1",
        "hunyuan_image21",
    ];
    let mut models: Vec<(String, Keys)> = Vec::new();
    for name in names {
        models.push((name.to_owned(), listed(name)?));
    }
    let flux = Layout::of(|weights| FluxNetwork::new(weights, &flux_config(19, 38)))?;
    models.push((
        "flux1_dev".to_owned(),
        flux.items().iter().cloned().collect(),
    ));
    let (mut beyond, mut all) = (0, 0.0);
    for (name, keys) in &models {
        let path = base.path().join(format!("{name}.safetensors"));
        tiny::write_hollow(&path, keys, tiny::F32)?;
        let header = fs::File::open(&path).and_then(|mut file| {
            let mut length = [0; 8];
            std::io::Read::read_exact(&mut file, &mut length)?;
            Ok(u64::from_le_bytes(length) + 8)
        })?;
        let before = asked_for()?;
        let found = recognised(&path)?;
        let read = asked_for()? - before;
        beyond = beyond.max(read.saturating_sub(header));
        // The middle of some, not the best: it is what somebody waits for.
        let mut times = Vec::new();
        for _ in 0..15 {
            let began = Instant::now();
            recognised(&path)?;
            times.push(began.elapsed().as_secs_f64() * 1000.0);
        }
        times.sort_by(f64::total_cmp);
        let what = format!(
            "{}: {} tensors, opened and recognised",
            found.family,
            keys.len()
        );
        table.row(what, times[times.len() / 2], "ms", Some(20.0), "");
        all += times[times.len() / 2];
        fs::remove_file(&path)?;
    }
    table.row("all of them", all, "ms", None, "");
    // What the kernel tells about the process is read, too.
    table.row(
        "most bytes read of one beside its header",
        beyond as f64 / 1e6,
        "MB",
        Some(0.1),
        "",
    );
    Ok(())
}

/// A network with as many blocks as wanted; the last one stays what it was.
fn deepened(network: Network, start: &str, count: usize) -> Network {
    let begins = format!("{start}.");
    let number = |key: &str| {
        key.strip_prefix(&begins)?
            .split('.')
            .next()?
            .parse::<usize>()
            .ok()
    };
    let numbers: BTreeSet<usize> = network.keys.keys().filter_map(|key| number(key)).collect();
    let Some(last) = numbers.last().copied().filter(|last| *last + 1 < count) else {
        return network;
    };
    let own = format!("{start}.{last}.");
    let moved = format!("{start}.{}.", count - 1);
    let kept: Keys = network
        .keys
        .iter()
        .filter_map(|(key, shape)| {
            Some((format!("{moved}{}", key.strip_prefix(&own)?), shape.clone()))
        })
        .collect();
    let mut network = network.blocks(start, count).without(&moved);
    network.keys.extend(kept);
    network
}

/// A family: its file and the lists of blocks that grow, the loader of its encoders, its latent and its VAE.
struct Family {
    name: &'static str,
    model: &'static str,
    blocks: &'static [(&'static str, usize)],
    encoders: &'static [&'static str],
    kind: &'static str,
    latent: &'static str,
    vae: &'static str,
}

const FAMILIES: &[Family] = &[
    Family {
        name: "Flux.1",
        model: "flux1-dev.safetensors",
        blocks: &[("double_blocks", 60), ("single_blocks", 60)],
        encoders: &["clip_l.safetensors", "t5xxl.safetensors"],
        kind: "flux",
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
    },
    Family {
        name: "Chroma",
        model: "chroma.safetensors",
        blocks: &[("double_blocks", 19), ("single_blocks", 38)],
        encoders: &["t5xxl.safetensors"],
        kind: "chroma",
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
    },
    Family {
        name: "Flux.2 klein",
        model: "flux-2-klein.safetensors",
        blocks: &[("double_blocks", 60), ("single_blocks", 60)],
        encoders: &["qwen_3_4b.safetensors"],
        kind: "flux2",
        latent: "EmptyFlux2LatentImage",
        vae: "flux2-vae.safetensors",
    },
    Family {
        name: "Z-Image",
        model: "z_image.safetensors",
        blocks: &[("layers", 60)],
        encoders: &["qwen_3_4b.safetensors"],
        kind: "lumina2",
        latent: "EmptySD3LatentImage",
        vae: "ae.safetensors",
    },
    Family {
        name: "Qwen-Image",
        model: "qwen_image.safetensors",
        blocks: &[("transformer_blocks", 100)],
        encoders: &["qwen_2.5_vl_7b.safetensors"],
        kind: "qwen_image",
        latent: "EmptySD3LatentImage",
        vae: "qwen_image_vae.safetensors",
    },
    Family {
        name: "Krea 2",
        model: "krea2.safetensors",
        blocks: &[("blocks", 100)],
        encoders: &["qwen3vl_4b.safetensors"],
        kind: "krea2",
        latent: "EmptySD3LatentImage",
        vae: "qwen_image_vae.safetensors",
    },
];

fn prompt(family: &Family) -> Value {
    let text = |words: &str| json!({"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": words}});
    let encoders = match family.encoders {
        [one] => {
            json!({"class_type": "CLIPLoader", "inputs": {"clip_name": one, "type": family.kind}})
        }
        [one, two, ..] => json!({"class_type": "DualCLIPLoader", "inputs": {
            "clip_name1": one, "clip_name2": two, "type": family.kind}}),
        [] => Value::Null,
    };
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": family.model, "weight_dtype": "default"}},
        "2": encoders,
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": family.vae}},
        "4": text("a red apple on a table"),
        "5": text("blurry"),
        "6": {"class_type": family.latent, "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "7": {"class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
            "seed": 3, "steps": 2, "cfg": 2.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "family"}},
    })
}

/// As the reference was measured.
const FLUX_2X2: Family = Family {
    name: "Flux.1 of 2 + 2 blocks with a T5 of two",
    model: "flux_2x2.safetensors",
    blocks: &[],
    encoders: &["clip_l.safetensors", "t5xxl_2layer.safetensors"],
    kind: "flux",
    latent: "EmptySD3LatentImage",
    vae: "ae.safetensors",
};

/// Networks of full width in f16, as the reference was measured with, whose weights are a hole in the file and take the same
/// room in memory as others; a picture of 64x64 pixels: what stays in memory, and the most there was.
fn memory(table: &mut Table) -> Result<()> {
    let flux = [
        ("diffusion_models", "flux_2x2"),
        ("text_encoders", "clip_l"),
        ("text_encoders", "t5xxl_2layer"),
        ("vae", "ae"),
    ];
    let mut sdxl = prompt(&FLUX_2X2);
    sdxl["1"] = json!({"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sdxl.safetensors"}});
    for (node, input, output) in [("4", "clip", 1), ("5", "clip", 1), ("8", "vae", 2)] {
        sdxl[node]["inputs"][input] = json!(["1", output]);
    }
    if let Some(nodes) = sdxl.as_object_mut() {
        nodes.retain(|id, _| id != "2" && id != "3");
    }
    sdxl["6"]["class_type"] = json!("EmptyLatentImage");
    let cases = [
        (FLUX_2X2.name, flux.to_vec(), prompt(&FLUX_2X2)),
        ("SDXL", vec![("checkpoints", "sdxl")], sdxl),
    ];
    for (name, files, prompt) in cases {
        let base = tempfile::tempdir()?;
        let mut bytes = 0;
        for (folder, list) in files {
            let folder = base.path().join("models").join(folder);
            fs::create_dir_all(&folder)?;
            let path = folder.join(format!("{list}.safetensors"));
            tiny::write_hollow(&path, &listed(list)?, tiny::F16)?;
            bytes += fs::metadata(&path)?.len();
        }
        let used = run_and_measure(base.path(), name, &prompt)?;
        let files = bytes as f64 / 1e6;
        let what = format!("{name}: files of {files:.0} MB, memory after a picture");
        table.row(what, used.stays / files, "x files", Some(1.1), "");
        let what = format!("{name}: the most there was, with what is computed");
        table.row(what, used.peak / files, "x files", None, "");
    }
    Ok(())
}

/// Megabytes more than an idle server has.
struct Used {
    stays: f64,
    peak: f64,
}

fn run_and_measure(base: &Path, name: &str, prompt: &Value) -> Result<Used> {
    let server = Server::start_with(StartOptions {
        base: Some(base),
        ..StartOptions::default()
    });
    let idle = process::memory_mb(server.pid())?;
    let id = server.queue(prompt, None);
    let entry = server.wait_for(&id);
    let status = &entry["status"];
    ensure!(status["status_str"] == "success", "{name}: {status}");
    Ok(Used {
        stays: process::memory_mb(server.pid())? - idle,
        peak: process::peak_mb(server.pid())? - idle,
    })
}

/// Narrow networks with many blocks, bf16: what there is beside the files, which is much the same whatever their size.
fn narrow(table: &mut Table) -> Result<()> {
    for family in FAMILIES {
        let base = tempfile::tempdir()?;
        let models = base.path().join("models");
        let mut bytes = 0;
        let mut put = |folder: &str, name: &str, blocks: &[(&str, usize)]| -> Result<()> {
            let kind =
                find(folder, name).with_context(|| format!("{folder}/{name} is not known"))?;
            let mut network = kind.network();
            for (start, count) in blocks {
                network = deepened(network, start, *count);
            }
            write_network(&models, folder, name, &network)?;
            bytes += fs::metadata(models.join(folder).join(name))?.len();
            Ok(())
        };
        put("diffusion_models", family.model, family.blocks)?;
        for name in family.encoders {
            put("text_encoders", name, &[])?;
        }
        put("vae", family.vae, &[])?;
        let name = family.name;
        let used = run_and_measure(base.path(), name, &prompt(family))?;
        let files = bytes as f64 / 1e6;
        let what = format!("{name}: memory beside files of {files:.0} MB after a picture");
        table.row(what, used.stays - files, "MB", None, "");
        let what = format!("{name}: the same when most was computed");
        table.row(what, used.peak - files, "MB", None, "");
    }
    Ok(())
}
