//! `fresco quantize`: a smaller file from a larger one, tensor by tensor.
//!
//! One tensor is in memory at a time. The parts of quantised layers go to a spool file first, because a safetensors file has
//! them in another order than they are made in; a GGUF file is written at once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use fresco_tensor::formats::{GridKind, Levels, RowFormat, RowKind};
use fresco_tensor::safetensors::{self, Entry};
use fresco_tensor::weights::{has_gguf_kind, quantised_parts, write_gguf};
use fresco_tensor::{Dtype, Stored, WeightFile, WeightInfo, open_weights};

use crate::cli::QuantizeArgs;
use crate::settings::UsageError;

/// Columns that are rotated together.
const ROTATION: usize = 256;

/// Formats of safetensors files by their names here.
const FORMATS: &[(&str, RowKind, usize)] = &[
    ("fp8_e4m3", RowKind::F8E4M3, 0),
    ("fp8_e5m2", RowKind::F8E5M2, 0),
    ("int8", RowKind::Int8, 0),
    ("int8_convrot", RowKind::Int8, ROTATION),
    ("nvfp4", RowKind::Nvfp4, 0),
    ("mxfp8", RowKind::Mxfp8, 0),
    (
        "w4a8",
        RowKind::Grid(GridKind {
            bits: 4,
            group: 16,
            wide_scales: false,
            levels: Levels::Usual,
            corrected: false,
        }),
        ROTATION,
    ),
    ("int4", RowKind::Int4 { wide_input: false }, ROTATION),
];

/// Names of parts of layers that are tables, whose rows are looked up and not multiplied.
const TABLES: [&str; 3] = ["shared", "wte", "wpe"];

/// Metadata that describes the old file and not the model.
const OF_THE_FILE: [&str; 3] = [
    "_quantization_metadata",
    "general.quantization_version",
    "general.alignment",
];

/// What layers are written as.
#[derive(Clone, Copy)]
enum Target {
    Rows(RowKind, usize),
    Block(Dtype),
}

impl Target {
    fn parse(name: &str) -> Result<Self, UsageError> {
        if let Some((_, kind, rotation)) = FORMATS.iter().find(|(n, ..)| *n == name) {
            return Ok(Self::Rows(*kind, *rotation));
        }
        let block = Dtype::parse_block(&name.to_ascii_uppercase());
        if let Some(dtype) = block.filter(|dtype| dtype.is_writable()) {
            return Ok(Self::Block(dtype));
        }
        let ours: Vec<&str> = FORMATS.iter().map(|(name, ..)| *name).collect();
        Err(UsageError(format!(
            "--format {name}: not a format that is written; there are {} for safetensors, and Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, \
             Q4_K, Q5_K, Q6_K for GGUF",
            ours.join(", ")
        )))
    }

    /// The format of a layer with rows of so many values; none where they do not fit.
    fn of(self, rows: usize, columns: usize) -> Option<Dtype> {
        match self {
            Self::Rows(kind, rotation) => {
                let whole = match kind {
                    RowKind::Nvfp4 => rows.is_multiple_of(16) && columns.is_multiple_of(16),
                    RowKind::Mxfp8 => columns.is_multiple_of(32),
                    _ => true,
                };
                let format = RowFormat::new(kind, columns, rotation).or_else(|| {
                    // Bytes do without the rotation where rows cannot be divided.
                    let plain = kind == RowKind::Int8;
                    plain.then(|| RowFormat::new(kind, columns, 0)).flatten()
                });
                format.filter(|_| whole).map(Dtype::Rows)
            }
            Self::Block(dtype) => [dtype, Dtype::Q8_0]
                .into_iter()
                .find(|dtype| columns.is_multiple_of(dtype.block().0)),
        }
    }
}

/// One tensor of the old file, and what becomes of it.
struct Item {
    name: String,
    info: WeightInfo,
    target: Option<Dtype>,
}

pub(crate) fn quantize(args: &QuantizeArgs) -> anyhow::Result<()> {
    let target = Target::parse(&args.format)?;
    check_paths(args, target)?;
    let file = open_weights(&args.input)?;
    let items = plan(&*file, target, &args.keep)?;
    let metadata = metadata(&*file, target, args.architecture.as_deref());
    let mut report = Report::default();
    print(
        "error    format  tensor  shape  (the error is relative: 0.01 is 1 % of what the weights are, 0 is exact)",
    )?;
    match target {
        Target::Rows(..) => safetensors(&file, &items, &metadata, &args.output, &mut report)?,
        Target::Block(_) => gguf(&file, &items, &metadata, &args.output, &mut report)?,
    }
    report.end(&args.input, &args.output, items.len())
}

fn check_paths(args: &QuantizeArgs, target: Target) -> anyhow::Result<()> {
    let output = &args.output;
    let ending = output.extension().and_then(|e| e.to_str()).unwrap_or("");
    let wanted: &[&str] = match target {
        Target::Rows(..) => &["safetensors", "sft"],
        Target::Block(_) => &["gguf"],
    };
    if !wanted.contains(&ending.to_ascii_lowercase().as_str()) {
        bail!(UsageError(format!(
            "{}: a file of format {} must end in .{}",
            output.display(),
            args.format,
            wanted[0]
        )));
    }
    let same = |a: &Path, b: &Path| fs::canonicalize(a).ok().zip(fs::canonicalize(b).ok());
    if same(&args.input, output).is_some_and(|(a, b)| a == b) {
        bail!("{} cannot be written over itself", output.display());
    }
    if output.exists() && !args.force {
        bail!("{} exists; --force replaces it", output.display());
    }
    Ok(())
}

/// Whether a layer's weight is a table of rows.
fn is_table(name: &str) -> bool {
    let mut parts = name.split('.');
    parts.any(|part| part.contains("emb") || TABLES.contains(&part))
}

/// What becomes of every tensor: matrices are quantised; biases, norms, tables, kernels and what fits no block stay.
fn plan(file: &dyn WeightFile, target: Target, keep: &[String]) -> anyhow::Result<Vec<Item>> {
    let path = file.path().display().to_string();
    let mut items = Vec::new();
    for name in file.names() {
        let info = file.info(&name).context("a name of the file is in it")?;
        if info.dtype.is_block() {
            bail!(
                "{path}: {name} has the format {} already; quantising again would only add errors, start from the original file",
                info.dtype.name()
            );
        }
        let plain = matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        let kept = is_table(&name) || keep.iter().any(|text| name.contains(text.as_str()));
        let target = match *info.shape.as_slice() {
            [rows, columns] if plain && !kept && name.ends_with(".weight") && rows > 0 => {
                target.of(rows, columns)
            }
            _ => None,
        };
        items.push(Item { name, info, target });
    }
    if items.iter().all(|item| item.target.is_none()) {
        bail!("{path} has no matrix of f32, f16 or bf16 that could get this format");
    }
    Ok(items)
}

fn metadata(
    file: &dyn WeightFile,
    target: Target,
    architecture: Option<&str>,
) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = file
        .metadata()
        .iter()
        .filter(|(key, _)| !OF_THE_FILE.contains(&key.as_str()))
        .filter(|(key, _)| !key.starts_with("comfy.gguf."))
        .cloned()
        .collect();
    if let Target::Block(_) = target {
        const KEY: &str = "general.architecture";
        let known = pairs.iter().any(|(key, _)| key == KEY);
        if architecture.is_some() || !known {
            pairs.retain(|(key, _)| key != KEY);
            let name = architecture.unwrap_or("unknown").to_owned();
            pairs.insert(0, (KEY.to_owned(), name));
        }
    }
    pairs
}

/// A tensor in its new format.
fn converted(file: &dyn WeightFile, item: &Item, report: &mut Report) -> anyhow::Result<Stored> {
    let stored = file.read(&item.name)?;
    let Some(dtype) = item.target else {
        report.kept(&stored);
        return Ok(stored);
    };
    let what = || format!("{}: {}", file.path().display(), item.name);
    let plain = stored.to_f32().with_context(what)?;
    drop(stored);
    let new = Stored::from_f32(&plain, dtype).with_context(what)?;
    report.layer(&item.name, plain.data(), &new)?;
    Ok(new)
}

fn gguf(
    file: &Arc<dyn WeightFile>,
    items: &[Item],
    metadata: &[(String, String)],
    output: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    for item in items {
        let dtype = item.target.unwrap_or(item.info.dtype);
        if !has_gguf_kind(dtype) {
            let path = file.path().display();
            bail!(
                "{path}: {} is {}, which GGUF has not",
                item.name,
                dtype.name()
            );
        }
    }
    let entries: Vec<Entry> = items
        .iter()
        .map(|item| Entry {
            name: item.name.clone(),
            dtype: item.target.unwrap_or(item.info.dtype),
            shape: item.info.shape.clone(),
        })
        .collect();
    let mut next = items.iter();
    write_gguf(output, &entries, metadata, |_| -> anyhow::Result<Stored> {
        let item = next
            .next()
            .context("there are as many tensors as entries")?;
        converted(&**file, item, report)
    })
}

fn safetensors(
    file: &Arc<dyn WeightFile>,
    items: &[Item],
    metadata: &[(String, String)],
    output: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut spool = Spool::new(output)?;
    for item in items {
        let stored = converted(&**file, item, report)?;
        if item.target.is_none() {
            spool.put(item.name.clone(), &stored)?;
            continue;
        }
        let layer = item.name.strip_suffix("weight").unwrap_or(&item.name);
        for (part, stored) in quantised_parts(&stored)? {
            spool.put(format!("{layer}{part}"), &stored)?;
        }
    }
    spool.finish()?;
    let entries = spool.entries();
    safetensors::write_streamed(
        output,
        entries,
        metadata,
        |entry| -> anyhow::Result<Stored> { spool.get(&entry.name) },
    )
}

/// Tensors on disk in the order they were made. The file goes when this does.
struct Spool {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    places: BTreeMap<String, (Entry, u64, u64)>,
    end: u64,
}

impl Spool {
    fn new(output: &Path) -> anyhow::Result<Self> {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.parts.tmp", std::process::id()));
        let path = output.with_file_name(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path,
            file: Some(BufWriter::with_capacity(1 << 16, file)),
            places: BTreeMap::new(),
            end: 0,
        })
    }

    fn file(&mut self) -> anyhow::Result<&mut BufWriter<File>> {
        self.file
            .as_mut()
            .context("the spool is open while it is used")
    }

    fn put(&mut self, name: String, stored: &Stored) -> anyhow::Result<()> {
        let path = self.path.display().to_string();
        let written = self.file()?.write_all(stored.bytes());
        written.with_context(|| format!("cannot write {path}"))?;
        let entry = Entry {
            name: name.clone(),
            dtype: stored.dtype(),
            shape: stored.shape().to_vec(),
        };
        let bytes = stored.bytes().len() as u64;
        if self
            .places
            .insert(name.clone(), (entry, self.end, bytes))
            .is_some()
        {
            bail!("{name} would be in the file twice");
        }
        self.end += bytes;
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        let path = self.path.display().to_string();
        let flushed = self.file()?.flush();
        flushed.with_context(|| format!("cannot write {path}"))
    }

    fn entries(&self) -> Vec<Entry> {
        let entries = self.places.values().map(|(entry, ..)| entry.clone());
        entries.collect()
    }

    fn get(&mut self, name: &str) -> anyhow::Result<Stored> {
        let (entry, start, bytes) = self.places.get(name).cloned().context("it was put there")?;
        let path = self.path.display().to_string();
        let mut read = || -> std::io::Result<Vec<u8>> {
            let Some(file) = &mut self.file else {
                return Err(std::io::ErrorKind::NotFound.into());
            };
            let file = file.get_mut();
            file.seek(SeekFrom::Start(start))?;
            let mut buffer = Vec::new();
            file.take(bytes).read_to_end(&mut buffer)?;
            Ok(buffer)
        };
        let bytes = read().with_context(|| format!("cannot read {path}"))?;
        Ok(Stored::new(entry.dtype, entry.shape, bytes)?)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // Windows removes no file that is open.
        drop(self.file.take());
        let _ = fs::remove_file(&self.path);
    }
}

/// What is told about the layers.
#[derive(Default)]
struct Report {
    layers: usize,
    /// Squares of what is off, and of the weights.
    off: f64,
    of: f64,
    kept_bytes: u64,
}

impl Report {
    fn kept(&mut self, stored: &Stored) {
        self.kept_bytes += stored.bytes().len() as u64;
    }

    fn layer(&mut self, name: &str, plain: &[f32], new: &Stored) -> anyhow::Result<()> {
        /// Values that are read back at a time.
        const SOME: usize = 1 << 20;
        let (per_block, size) = new.dtype().block();
        let blocks = (SOME / per_block).max(1);
        let (mut off, mut of) = (0.0, 0.0);
        for (plain, bytes) in plain
            .chunks(blocks * per_block)
            .zip(new.bytes().chunks(blocks * size))
        {
            let back = new.dtype().to_f32(bytes);
            for (a, b) in back.iter().zip(plain) {
                off += (f64::from(*a) - f64::from(*b)).powi(2);
                of += f64::from(*b).powi(2);
            }
        }
        self.layers += 1;
        self.off += off;
        self.of += of;
        let sizes: Vec<String> = new.shape().iter().map(usize::to_string).collect();
        let format = new.dtype().name();
        let error = relative(off, of);
        print(&format!(
            "{error:.5}  {format}  {name}  {}",
            sizes.join("x")
        ))
    }

    fn end(&self, input: &Path, output: &Path, tensors: usize) -> anyhow::Result<()> {
        let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        let (before, after) = (size(input), size(output));
        let share = after as f64 / (before as f64).max(1.0) * 100.0;
        print(&format!(
            "{:.5}  all {} layers of {tensors} tensors; {before} bytes became {after} ({share:.1} %), {} of them as they were",
            relative(self.off, self.of),
            self.layers,
            self.kept_bytes
        ))
    }
}

/// Relative L2 error.
fn relative(off: f64, of: f64) -> f64 {
    if off == 0.0 { 0.0 } else { (off / of).sqrt() }
}

fn print(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_told_by_name() {
        for name in [
            "x_embedder.weight",
            "text.embed_tokens.weight",
            "shared.weight",
            "time_embed.0.weight",
        ] {
            assert!(is_table(name), "{name}");
        }
        for name in ["blocks.0.attn.qkv.weight", "shared_expert.up.weight"] {
            assert!(!is_table(name), "{name}");
        }
    }

    #[test]
    fn formats_fit_or_have_another() {
        let of = |name: &str, rows, columns| {
            let dtype = Target::parse(name).ok()?.of(rows, columns)?;
            Some(dtype.name())
        };
        assert_eq!(of("int8_convrot", 8, 512), Some("int8_convrot"));
        assert_eq!(of("int8_convrot", 8, 320), Some("int8"));
        assert_eq!(of("w4a8", 8, 320), None);
        assert_eq!(of("nvfp4", 8, 320), None);
        assert_eq!(of("nvfp4", 16, 320), Some("nvfp4"));
        assert_eq!(of("q4_k", 8, 320), Some("Q8_0"));
        assert_eq!(of("Q4_K", 8, 512), Some("Q4_K"));
        assert_eq!(of("Q4_0", 8, 33), None);
        assert!(Target::parse("IQ1_S").is_err() && Target::parse("f16").is_err());
    }
}
