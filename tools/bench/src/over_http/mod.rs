//! What a person waits for: the first prompt of a running server with full-size files that it never read, then warm ones, over HTTP
//! and WebSocket.
//!
//! Files of made-up weights are written to `FRESCO_BENCH_FILES` (memory-backed storage in place of that) and removed again, unless
//! `FRESCO_BENCH_KEEP` is set. `FRESCO_OLD` names an older program that takes turns with the present one. With
//! `FRESCO_BENCH_FROM_DISK` the files leave the system's cache before the first prompt.

mod watch;
mod work;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use fresco_synth::{full, list};
use fresco_tensor::Dtype;
use fresco_tests::{Server, Socket, StartOptions, server::program};
use serde_json::json;

use self::{
    watch::{Peaks, Watch},
    work::{Ids, ModelFile, Work},
};
use crate::{
    Measurement, process,
    run::{self, CLIENT, Run},
    table::Table,
};

pub(crate) const MEASUREMENTS: &[Measurement] = &[
    ("sd15", |table| measure(table, &work::SD15)),
    ("sdxl", |table| measure(table, &work::SDXL)),
    ("z-image", |table| measure(table, &work::Z_IMAGE)),
    ("flux-bf16", |table| measure(table, &work::FLUX_BF16)),
    ("flux-lora", |table| measure(table, &work::FLUX_LORA)),
    ("flux-half", |table| measure(table, &work::FLUX_HALF)),
    ("flux-fp8", |table| measure(table, &work::FLUX_FP8)),
    ("hunyuan15", |table| measure(table, &work::HUNYUAN15)),
    ("qwen-fp8", |table| measure(table, &work::QWEN_FP8)),
    ("wan-fp8", |table| measure(table, &work::WAN_FP8)),
    ("flux2-fp8", |table| measure(table, &work::FLUX2_FP8)),
    ("sd15-cpu", |table| measure(table, &work::SD15_CPU)),
    ("z-image-cpu", |table| measure(table, &work::Z_IMAGE_CPU)),
    ("z-image-gguf-cpu", |table| {
        measure(table, &work::Z_IMAGE_GGUF_CPU)
    }),
];

/// Names the folder for the files.
const FILES: &str = "FRESCO_BENCH_FILES";
const KEEP: &str = "FRESCO_BENCH_KEEP";
const FROM_DISK: &str = "FRESCO_BENCH_FROM_DISK";
const OLD: &str = "FRESCO_OLD";
/// Prompts of one server: a cold one, and warm ones.
const TURNS: usize = 3;
/// A cold prompt takes at most so much of the reference's time.
const SHARE_OF_REFERENCE: f64 = 0.7;

/// Megabytes of a GiB.
const MB_OF_A_GIB: f64 = 1_073.741_824;

/// What one prompt took.
struct Turn {
    run: Run,
    ids: Ids,
    peaks: Peaks,
    cpu_s: f64,
}

fn measure(table: &mut Table, work: &Work) -> Result<()> {
    let base = files_folder()?;
    let models = base.join("models");
    let begun = Instant::now();
    let mut size = 0;
    for (number, file) in work.files.iter().enumerate() {
        let written = write(&models, file)?;
        size = if number == 0 { written } else { size };
    }
    if work.lora {
        write_lora(&models, work)?;
    }
    if let Some(format) = work.blocks {
        size = convert(&models, &work.files[0], format)?;
    }
    eprintln!("  files written in {:.1} s", begun.elapsed().as_secs_f64());
    let mut programs = vec![("", None)];
    if let Some(old) = env::var_os(OLD) {
        programs.insert(0, (", old program", Some(PathBuf::from(old))));
    }
    for (who, program) in programs {
        let title = format!("{}{who}", work.title);
        measure_program(table, work, &title, (&base, size), program.as_deref())?;
    }
    if env::var_os(KEEP).is_none() {
        for file in work.files {
            fs::remove_file(path_of(&models, file))?;
        }
        if work.blocks.is_some() {
            fs::remove_file(path_of(&models, &work.files[0]).with_extension("gguf"))?;
        }
    }
    Ok(())
}

/// Where the files go: memory-backed storage where the system has it.
fn files_folder() -> Result<PathBuf> {
    let memory = Path::new("/dev/shm");
    let folder = match env::var_os(FILES) {
        Some(folder) => PathBuf::from(folder),
        None if memory.is_dir() => memory.join("fresco-bench"),
        None => PathBuf::from("target/bench/over-http"),
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

fn path_of(models: &Path, file: &ModelFile) -> PathBuf {
    let name = format!("{}.safetensors", file.name);
    models.join(file.folder).join(name)
}

fn write(models: &Path, file: &ModelFile) -> Result<u64> {
    let path = path_of(models, file);
    if let Ok(about) = fs::metadata(&path) {
        return Ok(about.len());
    }
    fs::create_dir_all(models.join(file.folder))?;
    let mut extra = Vec::new();
    if file.list.starts_with("mistral") {
        extra.push(("tekken_model", vocabulary()));
    }
    full::write(&path, &list::load(file.list)?, file.numbers, &extra)
}

/// Converts a file to a format of GGUF, beside it, and answers the new one's size.
fn convert(models: &Path, file: &ModelFile, format: &str) -> Result<u64> {
    let from = path_of(models, file);
    let to = from.with_extension("gguf");
    if !to.exists() {
        let ended = Command::new(program())
            .arg("quantize")
            .args([&from, &to])
            .args(["--format", format, "--architecture", file.list])
            .stdout(Stdio::null())
            .status()?;
        ensure!(ended.success(), "{} was not converted", from.display());
    }
    Ok(fs::metadata(&to)?.len())
}

/// A small vocabulary in the form of Mistral's files: single bytes, and the special words of prompts.
fn vocabulary() -> Vec<u8> {
    let special = [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
        "[SYSTEM_PROMPT]",
        "[/SYSTEM_PROMPT]",
        "[TOOL_CONTENT]",
    ];
    let special: Vec<_> = (0..1000)
        .map(|rank| {
            let unnamed = || format!("<SPECIAL_{rank}>");
            let word = special
                .get(rank)
                .map_or_else(unnamed, |word| (*word).to_owned());
            json!({"rank": rank, "token_str": word, "is_control": true})
        })
        .collect();
    let words: Vec<_> = (0..=255u8)
        .map(|byte| json!({"rank": byte, "token_bytes": base64(byte), "token_str": null}))
        .collect();
    let pattern =
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let config = json!({
        "pattern": pattern, "num_vocab_tokens": 256, "default_vocab_size": 131_072,
        "default_num_special_tokens": 1000, "version": "v3",
    });
    let all = json!({"config": config, "vocab": words, "special_tokens": special});
    all.to_string().into_bytes()
}

/// One byte in base 64.
fn base64(byte: u8) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let [first, second] =
        [byte >> 2, (byte & 3) << 4].map(|at| char::from(LETTERS[usize::from(at)]));
    format!("{first}{second}==")
}

/// A LoRA of rank 16 on every matrix of the model's blocks.
fn write_lora(models: &Path, work: &Work) -> Result<()> {
    const RANK: usize = 16;
    let mut items = Vec::new();
    for item in list::load(work.files[0].list)? {
        let (Some(name), &[rows, columns]) = (item.name.strip_suffix(".weight"), &item.shape[..])
        else {
            continue;
        };
        if !name.contains("blocks.") {
            continue;
        }
        for (part, shape) in [("lora_A", [RANK, columns]), ("lora_B", [rows, RANK])] {
            items.push(list::Item {
                name: format!("diffusion_model.{name}.{part}.weight"),
                shape: shape.to_vec(),
                values: list::Values::Made,
            });
        }
    }
    ensure!(!items.is_empty(), "{} has no blocks", work.title);
    let folder = models.join("loras");
    fs::create_dir_all(&folder)?;
    let numbers = full::Numbers::Plain(Dtype::Bf16);
    full::write(&folder.join("lora.safetensors"), &items, numbers, &[])?;
    Ok(())
}

fn measure_program(
    table: &mut Table,
    work: &Work,
    title: &str,
    (base, size): (&Path, u64),
    program: Option<&Path>,
) -> Result<()> {
    let gigabytes = size as f64 / 1e9;
    let from_disk = env::var_os(FROM_DISK).is_some();
    let mut direct = Vec::new();
    if from_disk {
        // Before and after: the disk may have a cache of its own.
        direct.push(direct_rate(&path_of(&base.join("models"), &work.files[0]))?);
        leave_cache(&base.join("models"), work)?;
    }
    let mut arguments = vec!["--disable-metadata", "--database-url", "sqlite:///:memory:"];
    arguments.extend(work.arguments);
    let server = Server::start_with(StartOptions {
        arguments,
        base: Some(base),
        program,
        ..StartOptions::default()
    });
    let mut socket = server.socket(CLIENT);
    let watch = Watch::start(server.pid());
    let mut turns = Vec::new();
    for turn in 0..TURNS {
        let done = one_turn(&server, &mut socket, &watch, work, turn);
        turns.push(done.with_context(|| format!("{title}: prompt {turn}"))?);
    }
    drop(watch);
    let (cold, warm) = (&turns[0], &turns[TURNS - 1]);
    let mut row = |what: &str, value: f64, unit: &'static str, most: Option<f64>| {
        table.row(format!("{title}: {what}"), value, unit, most, "");
    };
    let most = work.reference.map(|time| time * SHARE_OF_REFERENCE);
    row("cold prompt", cold.run.end, "s", most);
    let first_step = cold.first_step()?;
    row("cold first step", first_step, "s", None);
    row("warm step", 1000.0 * warm.run.step()?, "ms", None);
    let loading = first_step - warm.run.step()?;
    row("loading, at least", gigabytes / loading, "GB/s", None);
    for (what, turn) in [("cold", cold), ("warm", warm)] {
        // A text that was encoded for an earlier prompt is remembered.
        let texts = turn.ids.texts.iter();
        let text: f64 = texts.filter_map(|id| turn.run.node(id).ok()).sum();
        row(&format!("{what} text"), 1000.0 * text, "ms", None);
        let decode = turn.run.node(&turn.ids.decode)?;
        row(&format!("{what} decoding"), 1000.0 * decode, "ms", None);
    }
    let save = warm.run.node(&warm.ids.save)?;
    row("warm saving", 1000.0 * save, "ms", Some(20.0));
    row("warm prompt", warm.run.end, "s", None);
    let own = turns
        .iter()
        .map(|turn| turn.peaks.own_mb)
        .fold(0.0, f64::max);
    row(
        "main memory of its own",
        own / MB_OF_A_GIB,
        "GiB",
        Some(1.2),
    );
    let peaks = turns.iter().filter_map(|turn| turn.peaks.card_mb);
    if let Some(peak) = peaks.reduce(f64::max) {
        let peak = peak / MB_OF_A_GIB;
        row("memory of the card", peak, "GiB", work.reference_card);
    }
    row("processor time of the cold prompt", cold.cpu_s, "s", None);
    if from_disk {
        direct.push(direct_rate(&path_of(&base.join("models"), &work.files[0]))?);
        for (when, rate) in ["before", "after"].into_iter().zip(direct) {
            let what = format!("direct reading of the file, {when}");
            row(&what, rate, "GB/s", None);
        }
    }
    let check = server.get("/memory/check");
    ensure!(
        check.status == 200,
        "memory is not consistent: {}",
        check.text()
    );
    Ok(())
}

impl Turn {
    /// From the sampler's start to the end of its first step.
    fn first_step(&self) -> Result<f64> {
        let begun = self
            .run
            .nodes
            .iter()
            .find(|(id, _)| *id == self.ids.sampler);
        let (_, begun) = begun.context("the sampler did not run")?;
        let first = self.run.steps.first().context("no step ended")?;
        Ok(first - begun)
    }
}

fn one_turn(
    server: &Server,
    socket: &mut Socket,
    watch: &Watch,
    work: &Work,
    turn: usize,
) -> Result<Turn> {
    let (prompt, ids) = work.prompt(turn);
    watch.take();
    let cpu = process::cpu_ms(server.pid())?;
    let run = run::run(
        server,
        socket,
        (&prompt, &json!({})),
        &ids.sampler,
        |_, _| {},
    )?;
    Ok(Turn {
        run,
        ids,
        peaks: watch.take(),
        cpu_s: (process::cpu_ms(server.pid())? - cpu) / 1000.0,
    })
}

/// The system forgets what it has of the files.
fn leave_cache(models: &Path, work: &Work) -> Result<()> {
    for file in work.files {
        let path = path_of(models, file);
        fs::File::open(&path)?.sync_all()?;
        let ended = Command::new("dd")
            .arg(format!("if={}", path.display()))
            .args(["iflag=nocache", "count=0", "status=none"])
            .status()?;
        ensure!(ended.success(), "dd could not drop {}", path.display());
    }
    Ok(())
}

/// GB/s of `dd` with direct reads.
fn direct_rate(path: &Path) -> Result<f64> {
    let begun = Instant::now();
    let ended = Command::new("dd")
        .arg(format!("if={}", path.display()))
        .args(["of=/dev/null", "iflag=direct", "bs=16M", "status=none"])
        .status()?;
    ensure!(ended.success(), "dd could not read {}", path.display());
    Ok(fs::metadata(path)?.len() as f64 / 1e9 / begun.elapsed().as_secs_f64())
}
