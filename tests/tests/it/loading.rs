//! The way of weights from their files to a GPU: how often their bytes are touched, how much main memory it takes, and what becomes of
//! a load that is disturbed. An emulated card is needed (`cargo xtask gpu`); its kernels do nothing here, so that networks of full
//! width take seconds.

use std::{
    env, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use fresco_tests::{
    Server, StartOptions,
    memory::MIB,
    quantised::{self, Kind},
    templates::{files, networks::Network, networks::TEXT},
    tiny::{self, Format, Keys, Tiny},
};
use serde_json::{Value, json};

/// Flux.1 of full width and few blocks.
pub(super) fn flux() -> Keys {
    flux_of(2)
}

/// Flux.1 of full width with so many blocks of its second kind.
fn flux_of(singles: usize) -> Keys {
    let list = include_str!("../../../tools/synth/lists/flux1.txt");
    let mut network = Network::listed(list)
        .inputs("vector_in.in_layer.weight", TEXT)
        .inputs("txt_in.weight", TEXT);
    network.keys.retain(|key, _| {
        let kept = ["double_blocks.0.", "single_blocks.0."];
        !key.contains("_blocks.") || kept.iter().any(|block| key.starts_with(block))
    });
    network.blocks("single_blocks", singles).keys
}

/// As published "scaled" files: matrices of blocks in 8 bits with a scale each.
fn scaled(mut keys: Keys) -> (Keys, impl Fn(&str) -> Format) {
    let matrix = |key: &str| key.contains("blocks.") && key.ends_with(".weight");
    let scales: Vec<String> = keys
        .keys()
        .filter(|key| matrix(key))
        .map(|key| key.replace(".weight", ".scale_weight"))
        .collect();
    keys.extend(scales.into_iter().map(|key| (key, Vec::new())));
    keys.insert("scaled_fp8".to_owned(), vec![0]);
    let format = move |key: &str| match key {
        "scaled_fp8" => tiny::F8,
        _ if matrix(key) => tiny::F8,
        _ if key.ends_with(".scale_weight") => tiny::F32,
        _ => tiny::BF16,
    };
    (keys, format)
}

/// Flux.1 with text encoders and an autoencoder that are small.
pub(super) fn flux_prompt(seed: u64) -> Value {
    json!({
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux.safetensors", "weight_dtype": "default"}},
        "2": {"class_type": "DualCLIPLoader", "inputs":
            {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp16.safetensors", "type": "flux"}},
        "3": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}},
        "4": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
        "5": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["2", 0]}},
        "6": {"class_type": "ConditioningZeroOut", "inputs": {"conditioning": ["5", 0]}},
        "7": {"class_type": "KSampler", "inputs": {
            "seed": seed, "steps": 1, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
            "model": ["1", 0], "positive": ["5", 0], "negative": ["6", 0], "latent_image": ["4", 0]}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["7", 0], "vae": ["3", 0]}},
        "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "p"}},
    })
}

/// The folder of models of a new base folder, with what a prompt of Flux.1 needs beside its network.
pub(super) fn flux_base() -> tempfile::TempDir {
    let base = tempfile::tempdir().unwrap();
    let models = base.path().join("models");
    for (folder, name) in [
        ("text_encoders", "clip_l.safetensors"),
        ("text_encoders", "t5xxl_fp16.safetensors"),
        ("vae", "ae.safetensors"),
    ] {
        files::write(&models, folder, name).unwrap().unwrap();
    }
    fs::create_dir_all(models.join("diffusion_models")).unwrap();
    base
}

pub(super) fn flux_file(base: &Path) -> std::path::PathBuf {
    base.join("models/diffusion_models/flux.safetensors")
}

/// Whether the tests of this file can run here: the driver of an emulated card is loaded for them by `cargo xtask gpu`.
pub(super) fn has_card() -> bool {
    let device = env::var_os("FRESCO_TEST_DEVICE");
    let chosen = device.is_some_and(|device| device.to_string_lossy().starts_with("cuda"));
    if !chosen {
        eprintln!("skipped: FRESCO_TEST_DEVICE names no card");
    }
    chosen
}

pub(super) fn start(base: &Path, environment: &[(&str, &str)]) -> Server {
    let mut environment = environment.to_vec();
    environment.push(("FRESCO_EMULATED_IDLE", "1"));
    Server::start_with(StartOptions {
        base: Some(base),
        environment,
        ..StartOptions::default()
    })
}

/// Runs a prompt to its end, which must be a success.
#[track_caller]
pub(super) fn succeeds(server: &Server, prompt: &Value) {
    let id = server.queue(prompt, None);
    let entry = server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
}

/// The books agree with the weights and with the card.
#[track_caller]
pub(super) fn consistent(server: &Server) {
    let answer = server.get("/memory/check").expect_status(200).json();
    assert_eq!(answer["consistent"], true, "{answer:#}");
}

/// Bytes of a model that are in some memory.
pub(super) fn held(model: &Value) -> u64 {
    let places = model["residency"].as_object().unwrap().values();
    let there: u64 = places.filter_map(Value::as_u64).sum();
    there + model["host_bytes"].as_u64().unwrap()
}

/// What a prompt ended with that failed.
#[track_caller]
pub(super) fn failure(server: &Server, id: &str) -> String {
    let entry = server.wait_for(id);
    assert_eq!(entry["status"]["status_str"], "error", "{entry}");
    let messages = entry["status"]["messages"].as_array().unwrap();
    let error = messages
        .iter()
        .find(|message| message[0] == "execution_error");
    let error = error.unwrap_or_else(|| panic!("no error in {entry}"));
    error[1]["exception_message"].as_str().unwrap().to_owned()
}

/// Nothing of the network is left anywhere, and the books are right.
#[track_caller]
pub(super) fn nothing_stays(server: &Server) {
    consistent(server);
    let memory = server.get("/memory").expect_status(200).json();
    let models = memory["models"].as_array().unwrap().iter();
    for model in models.filter(|model| model["component"] == "diffusion") {
        assert_eq!(held(model), 0, "{model}");
    }
    let own = own_memory(server.pid());
    assert!(own < 450 * MIB, "{own} bytes of main memory");
}

/// What the server says it did with bytes of weights.
fn traffic(server: &Server, work: &str) -> f64 {
    let text = server.get("/metrics").expect_status(200).text();
    let name = format!("fresco_weight_bytes_total{{work=\"{work}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|value| value.parse().ok()).expect(&name)
}

/// Anonymous memory of a process.
pub(super) fn own_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}

/// The most anonymous memory of a process while some work is done.
fn most_memory(pid: u32, work: impl FnOnce()) -> u64 {
    let (most, over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let watch = {
        let (most, over) = (Arc::clone(&most), Arc::clone(&over));
        thread::spawn(move || {
            while !over.load(Relaxed) {
                most.fetch_max(own_memory(pid), Relaxed);
                thread::park_timeout(Duration::from_millis(2));
            }
        })
    };
    work();
    over.store(true, Relaxed);
    watch.join().unwrap();
    most.load(Relaxed)
}

fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let sizes = entries.map(|entry| {
        let about = entry.metadata().unwrap();
        if about.is_dir() {
            size_of(&entry.path())
        } else {
            about.len()
        }
    });
    sizes.sum()
}

/// Each byte of the files is read once and hardly anything is done with it in main memory, which never holds the model.
#[track_caller]
fn touched_once(server: &Server, base: &Path, prompt: &Value) {
    let files = size_of(&base.join("models")) as f64;
    let most = most_memory(server.pid(), || succeeds(server, prompt));
    let [read, copied, converted] =
        ["read", "copied", "converted"].map(|work| traffic(server, work));
    eprintln!(
        "{files} bytes: {read} read, {copied} copied, {converted} converted; {most} of memory"
    );
    assert!(read <= 1.02 * files, "{read} bytes read of {files}");
    assert!(read >= 0.9 * files, "{read} bytes read of {files}");
    // The text encoders and the autoencoder bring 26 MB of it, whatever the format of the model and however small its file.
    let most_touched = (0.05 * files).max(28e6);
    let touched = copied + converted;
    assert!(
        touched <= most_touched,
        "{copied} copied, {converted} converted of {files}"
    );
    assert!(most < 450 * MIB, "{most} bytes of main memory");
    consistent(server);
}

#[test]
fn a_transformer_in_bf16_is_read_once() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    tiny::write_hollow(&flux_file(base.path()), &flux(), tiny::BF16).unwrap();
    let server = start(base.path(), &[]);
    touched_once(&server, base.path(), &flux_prompt(1));
}

#[test]
fn a_transformer_in_scaled_fp8_is_read_once() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    let (keys, format) = scaled(flux());
    tiny::write_hollow_in(&flux_file(base.path()), &keys, format).unwrap();
    let server = start(base.path(), &[]);
    touched_once(&server, base.path(), &flux_prompt(1));
}

/// A transformer whose matrices are in some kind of codes, which the card puts together with their scales.
#[track_caller]
fn quantised_is_read_once(kind: Kind) {
    if !has_card() {
        return;
    }
    let base = flux_base();
    quantised::write_hollow(&flux_file(base.path()), &flux(), kind).unwrap();
    let server = start(base.path(), &[]);
    touched_once(&server, base.path(), &flux_prompt(1));
}

#[test]
fn a_transformer_in_int8_is_read_once() {
    quantised_is_read_once(Kind::Int8);
}

#[test]
fn a_transformer_in_int4_is_read_once() {
    quantised_is_read_once(Kind::Int4);
}

#[test]
fn a_transformer_in_nvfp4_is_read_once() {
    quantised_is_read_once(Kind::Nvfp4);
}

#[test]
fn a_transformer_in_mxfp8_is_read_once() {
    quantised_is_read_once(Kind::Mxfp8);
}

#[test]
fn a_transformer_in_w4a8_is_read_once() {
    quantised_is_read_once(Kind::Grid);
}

#[test]
fn a_transformer_in_corrected_w6a8_is_read_once() {
    quantised_is_read_once(Kind::CorrectedGrid);
}

#[test]
fn a_transformer_in_w4a16_is_read_once() {
    quantised_is_read_once(Kind::Affine);
}

/// CLIP's weights are kept in f16 whatever its file has: the card rounds them.
#[test]
fn a_text_encoder_in_f32_is_rounded_on_the_card() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    tiny::write_hollow(&flux_file(base.path()), &flux(), tiny::BF16).unwrap();
    let list = include_str!("../../../tools/synth/lists/clip_l.txt");
    let encoder = Network::listed(list).keys;
    let path = base.path().join("models/text_encoders/clip_l.safetensors");
    fs::remove_file(&path).unwrap();
    tiny::write_hollow(&path, &encoder, tiny::F32).unwrap();
    let server = start(base.path(), &[]);
    touched_once(&server, base.path(), &flux_prompt(1));
}

/// Weights in eight bits because the loader says so: the card rounds them, except for the smallest.
#[test]
fn a_network_that_a_loader_wants_in_eight_bits_is_rounded_on_the_card() {
    if !has_card() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let wide = Tiny {
        channels: 192,
        ..Tiny::default()
    };
    for (folder, keys) in [
        ("diffusion_models", wide.unet()),
        ("text_encoders", wide.text()),
        ("vae", wide.vae()),
    ] {
        let folder = base.path().join("models").join(folder);
        fs::create_dir_all(&folder).unwrap();
        tiny::write_hollow(&folder.join("wide.safetensors"), &keys, tiny::BF16).unwrap();
    }
    // Its kernels compute: whether numbers may be rounded there is seen there.
    let server = Server::start_with(StartOptions {
        base: Some(base.path()),
        ..StartOptions::default()
    });
    let prompt = |weights: &str| {
        let mut prompt = flux_prompt(1);
        prompt["1"]["inputs"] = json!({"unet_name": "wide.safetensors", "weight_dtype": weights});
        prompt["2"] = json!({"class_type": "CLIPLoader", "inputs":
            {"clip_name": "wide.safetensors", "type": "stable_diffusion"}});
        prompt["3"]["inputs"] = json!({"vae_name": "wide.safetensors"});
        prompt["4"]["class_type"] = json!("EmptyLatentImage");
        prompt
    };
    let file = base.path().join("models/diffusion_models/wide.safetensors");
    let file = fs::metadata(file).unwrap().len() as f64;
    let touched = |weights: &str| {
        let before = [traffic(&server, "copied"), traffic(&server, "converted")];
        succeeds(&server, &prompt(weights));
        let after = [traffic(&server, "copied"), traffic(&server, "converted")];
        after[0] - before[0] + after[1] - before[1]
    };
    // What the text encoder and the autoencoder bring, and what the format of the file does.
    let plain = touched("default");
    let rounded = touched("fp8_e4m3fn");
    eprintln!("of {file} bytes {plain} are touched as they are, {rounded} in eight bits");
    assert!(rounded <= plain + 0.05 * file, "{rounded} bytes of {file}");
    consistent(&server);
}

/// Blocks have their scales with them, and go as they are.
#[test]
fn a_transformer_in_gguf_is_read_once() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    let path = flux_file(base.path()).with_extension("gguf");
    let q4_k = (12, 256, 144);
    quantised::write_hollow_gguf(&path, &flux(), q4_k).unwrap();
    let server = start(base.path(), &[]);
    let mut prompt = flux_prompt(1);
    prompt["1"] = json!({"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": "flux.gguf"}});
    touched_once(&server, base.path(), &prompt);
}

#[test]
fn a_checkpoint_with_convolutions_is_read_once() {
    if !has_card() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("models/checkpoints");
    fs::create_dir_all(&folder).unwrap();
    let wide = Tiny {
        channels: 320,
        levels: vec![1, 2, 4, 4],
        attention: vec![true, true, true, false],
        context: 768,
        vae_channels: 128,
        ..Tiny::default()
    };
    tiny::write_hollow(
        &folder.join("wide.safetensors"),
        &wide.checkpoint(),
        tiny::F16,
    )
    .unwrap();
    let server = start(base.path(), &[]);
    let prompt = fresco_tests::workflow::text_to_image(&fresco_tests::workflow::TextToImage {
        checkpoint: "wide.safetensors",
        steps: 1,
        ..Default::default()
    });
    touched_once(&server, base.path(), &prompt);
}

/// A LoRA of rank 16 on every matrix of the blocks.
fn lora() -> Keys {
    let mut keys = Keys::new();
    for (key, shape) in flux() {
        let (Some(layer), &[rows, columns]) = (key.strip_suffix(".weight"), &shape[..]) else {
            continue;
        };
        if key.contains("_blocks.") {
            let name = |part: &str| format!("diffusion_model.{layer}.lora_{part}.weight");
            keys.insert(name("A"), vec![16, columns]);
            keys.insert(name("B"), vec![rows, 16]);
        }
    }
    keys
}

/// A card merges it: main memory sees neither the weights nor the changed ones.
#[test]
fn a_network_with_a_lora_is_read_once() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    tiny::write_hollow(&flux_file(base.path()), &flux(), tiny::BF16).unwrap();
    let loras = base.path().join("models/loras");
    fs::create_dir_all(&loras).unwrap();
    tiny::write_hollow(&loras.join("lora.safetensors"), &lora(), tiny::BF16).unwrap();
    let server = start(base.path(), &[]);
    let mut prompt = flux_prompt(1);
    prompt["20"] = json!({"class_type": "LoraLoaderModelOnly", "inputs": {
        "model": ["1", 0], "lora_name": "lora.safetensors", "strength_model": 0.8}});
    prompt["7"]["inputs"]["model"] = json!(["20", 0]);
    touched_once(&server, base.path(), &prompt);
    // What the LoRA replaces was never read there.
    let memory = server.get("/memory").expect_status(200).json();
    let models = memory["models"].as_array().unwrap().iter();
    let network = models.filter(|model| model["component"] == "diffusion");
    let host: u64 = network
        .filter_map(|model| model["host_bytes"].as_u64())
        .sum();
    assert!(host < 8 * MIB, "{host} bytes of the network in main memory");
}

/// What has no room on a card comes straight from its file, until it is in main memory.
#[test]
fn a_network_that_streams_is_not_waited_for() {
    if !has_card() {
        return;
    }
    let base = flux_base();
    tiny::write_hollow(&flux_file(base.path()), &flux(), tiny::BF16).unwrap();
    let server = start(base.path(), &[]);
    let mut prompt = flux_prompt(1);
    let half = 0.6;
    prompt["1"] = json!({"class_type": "UNETLoaderDisTorch2MultiGPU", "inputs": {
        "unet_name": "flux.safetensors", "weight_dtype": "default", "compute_device": "cuda:0",
        "virtual_vram_gb": half, "donor_device": "cpu", "expert_mode_allocations": "", "eject_models": false}});
    let files = size_of(&base.path().join("models")) as f64;
    let half = half * 1024.0 * MIB as f64;
    let bounded = |prompt: &Value| {
        let most = most_memory(server.pid(), || succeeds(&server, prompt));
        assert!(most < 550 * MIB + half as u64, "{most} bytes of memory");
        traffic(&server, "read")
    };
    let mut read = bounded(&prompt);
    eprintln!("the first step: {read} bytes read of {files}");
    assert!(read <= 1.02 * files + half, "{read} bytes read of {files}");
    // Sooner or later a prompt reads nothing.
    let deadline = Instant::now() + Duration::from_mins(1);
    for seed in 2.. {
        prompt["7"]["inputs"]["seed"] = json!(seed);
        let before = std::mem::replace(&mut read, bounded(&prompt));
        if read == before {
            break;
        }
        assert!(Instant::now() < deadline, "prompts go on reading");
    }
    consistent(&server);
}

/// A load that takes some seconds because the link to the card is slow.
struct SlowLoad {
    base: tempfile::TempDir,
    server: Server,
}

impl SlowLoad {
    fn start(environment: &[(&str, &str)]) -> Self {
        Self::with(&flux(), environment)
    }

    fn with(keys: &Keys, environment: &[(&str, &str)]) -> Self {
        let base = flux_base();
        tiny::write_hollow(&flux_file(base.path()), keys, tiny::BF16).unwrap();
        let mut environment = environment.to_vec();
        environment.push(("FRESCO_EMULATED_LINK", "250"));
        let server = start(base.path(), &environment);
        Self { base, server }
    }

    /// Queues the prompt and waits until a part of the network was read.
    fn begun(&self) -> String {
        let id = self.server.queue(&flux_prompt(1), None);
        let deadline = Instant::now() + Duration::from_mins(2);
        while traffic(&self.server, "read") < (200 * MIB) as f64 {
            assert!(
                Instant::now() < deadline,
                "the load did not begin: {}",
                self.server.log()
            );
            thread::park_timeout(Duration::from_millis(5));
        }
        id
    }

    /// The same prompt works once the file is as it was.
    #[track_caller]
    fn works_again(&self) {
        tiny::write_hollow(&flux_file(self.base.path()), &flux(), tiny::BF16).unwrap();
        succeeds(&self.server, &flux_prompt(2));
        consistent(&self.server);
    }
}

#[test]
fn an_interrupt_ends_a_load_within_a_second() {
    if !has_card() {
        return;
    }
    let load = SlowLoad::start(&[]);
    let id = load.begun();
    let before = traffic(&load.server, "read");
    let begun = Instant::now();
    load.server
        .post("/interrupt", &json!({}))
        .expect_status(200);
    let entry = load.server.wait_for(&id);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "it took {took:?}");
    // What the link carries in a second, and the pieces that wait for it.
    let more = traffic(&load.server, "read") - before;
    assert!(more < (350 * MIB) as f64, "{more} bytes read: {entry}");
    let messages = entry["status"]["messages"].to_string();
    assert!(messages.contains("execution_interrupted"), "{entry}");
    nothing_stays(&load.server);
    load.works_again();
}

#[test]
fn a_file_that_is_cut_off_while_it_is_read() {
    if !has_card() {
        return;
    }
    let load = SlowLoad::start(&[]);
    let id = load.begun();
    let file = fs::File::options()
        .write(true)
        .open(flux_file(load.base.path()))
        .unwrap();
    file.set_len(300 * MIB).unwrap();
    let message = failure(&load.server, &id);
    assert!(
        message.contains("flux.safetensors") && message.contains("changed on disk"),
        "{message}"
    );
    nothing_stays(&load.server);
    load.works_again();
}

#[test]
fn a_file_that_grows_while_it_is_read() {
    if !has_card() {
        return;
    }
    let load = SlowLoad::start(&[]);
    let id = load.begun();
    let path = flux_file(load.base.path());
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(fs::metadata(&path).unwrap().len() + 4096)
        .unwrap();
    let message = failure(&load.server, &id);
    assert!(
        message.contains("flux.safetensors") && message.contains("changed on disk"),
        "{message}"
    );
    nothing_stays(&load.server);
    load.works_again();
}

/// The opened file stays readable under its name's new owner.
#[test]
fn a_file_that_is_replaced_while_it_is_read() {
    if !has_card() {
        return;
    }
    let load = SlowLoad::start(&[]);
    let id = load.begun();
    let path = flux_file(load.base.path());
    let other = path.with_extension("other");
    fs::write(&other, "not a model").unwrap();
    fs::rename(&other, &path).unwrap();
    let entry = load.server.wait_for(&id);
    assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    // The next prompt sees the new one.
    let id = load.server.queue(&flux_prompt(3), None);
    let message = failure(&load.server, &id);
    assert!(message.contains("flux.safetensors"), "{message}");
    consistent(&load.server);
    load.works_again();
}

#[test]
fn two_prompts_that_want_the_same_file_read_it_once() {
    if !has_card() {
        return;
    }
    let load = SlowLoad::start(&[]);
    let first = load.begun();
    let second = load.server.queue(&flux_prompt(2), None);
    for id in [first, second] {
        let entry = load.server.wait_for(&id);
        assert_eq!(entry["status"]["status_str"], "success", "{entry}");
    }
    let files = size_of(&load.base.path().join("models")) as f64;
    let read = traffic(&load.server, "read");
    assert!(read <= 1.02 * files, "{read} bytes read of {files}");
    consistent(&load.server);
}

/// What no longer fits the card computes from main memory, or the prompt says why it cannot.
#[test]
fn another_program_takes_the_card_while_a_file_is_read() {
    if !has_card() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    fs::write(&taken, "0").unwrap();
    let load = SlowLoad::start(&[("FRESCO_EMULATED_OTHERS", &taken.to_string_lossy())]);
    let id = load.begun();
    fs::write(&taken, "7900").unwrap();
    let entry = load.server.wait_for(&id);
    let status = entry["status"]["status_str"].as_str().unwrap().to_owned();
    if status == "error" {
        let message = failure(&load.server, &id);
        assert!(message.contains("memory"), "{message}");
    }
    eprintln!("{status}");
    consistent(&load.server);
    fs::write(&taken, "0").unwrap();
    load.works_again();
}

/// Main memory is not asked for room for what a card takes straight from its file.
#[test]
fn a_model_larger_than_main_memory_reaches_a_card() {
    if !has_card() {
        return;
    }
    let about = fs::read_to_string("/proc/meminfo").unwrap();
    let total = about
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    });
    let total = total.unwrap() * 1024;
    let block = 282 * MIB;
    let load = SlowLoad::with(
        &flux_of((total / block) as usize + 8),
        &[("FRESCO_EMULATED_MEMORY", "4000000")],
    );
    let id = load.begun();
    load.server
        .post("/interrupt", &json!({}))
        .expect_status(200);
    let entry = load.server.wait_for(&id);
    let messages = entry["status"]["messages"].to_string();
    assert!(messages.contains("execution_interrupted"), "{entry}");
    assert!(size_of(&load.base.path().join("models")) > total);
    nothing_stays(&load.server);
}
