//! Whole files of made-up weights, written as fast as memory takes them: every tensor is cut from a pool of numbers of its kind.
//!
//! Unlike `fresco_tensor::synthetic`, whose values follow from the name alone, these only have the deviations of real weights, so that
//! a pass stays finite. That is enough to measure with.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result};
use fresco_tensor::{Dtype, Stored, synthetic};
use serde_json::{Map, json};

use crate::list::{Item, Values};

/// In what numbers a file keeps its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    Plain(Dtype),
    /// Matrices of blocks in e4m3 with a scale each, as published "scaled" files have them; everything else in bf16.
    ScaledFp8,
}

/// Numbers of a pool. It is prime, so that no matrix has the same row twice within a pool's length.
const POOL: usize = 4_194_301;
/// The largest number of e4m3.
const MOST_FP8: f32 = 448.0;

struct Part {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    content: Content,
}

enum Content {
    /// Numbers around an offset with a deviation.
    Drawn {
        offset: f32,
        deviation: f32,
    },
    Bytes(Vec<u8>),
}

impl Part {
    fn drawn(name: &str, shape: &[usize], dtype: Dtype, offset: f32, deviation: f32) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            content: Content::Drawn { offset, deviation },
        }
    }

    fn bytes(name: String, shape: Vec<usize>, dtype: Dtype, bytes: Vec<u8>) -> Self {
        Self {
            name,
            shape,
            dtype,
            content: Content::Bytes(bytes),
        }
    }

    fn len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// Whether published fp8 files keep a tensor in 8 bits: the large matrices of blocks.
fn is_block_matrix(name: &str, shape: &[usize]) -> bool {
    const OTHERS: &[&str] = &[
        "embed",
        "shared",
        "relative",
        "modulation",
        "_mod.",
        "adaLN",
        "img_in",
        "txt_in",
        "time",
        "final",
        "norm_out",
        "vector_in",
        "guidance_in",
        "byt5_in",
        "vision_in",
        "lm_head",
        "visual.",
        "head.",
        "cond_type",
    ];
    let &[rows, columns] = shape else {
        return false;
    };
    let large = rows.min(columns) >= 1024 && rows % 16 == 0 && columns % 16 == 0;
    large
        && name.ends_with(".weight")
        && name != "proj_out.weight"
        && !OTHERS.iter().any(|other| name.contains(other))
}

/// Offset and deviation of a tensor's numbers.
fn spread(name: &str, shape: &[usize]) -> (f32, f32) {
    let last = name.rsplit('.').next().unwrap_or(name);
    let vector = shape.len() <= 1;
    if last == "gamma" || (vector && !last.contains("bias") && !last.ends_with("_token")) {
        return (1.0, 0.05);
    }
    if vector || last.contains("bias") && !name.contains("relative_attention_bias") {
        return (0.0, 0.02);
    }
    if name.contains("relative_attention_bias") {
        return (0.0, 0.1);
    }
    if last == "modulation" || name.contains("pad_token") || name.contains("position_embedding") {
        return (0.0, 0.02);
    }
    if name.contains("shared.weight") || name.contains("embed") && shape[0] > 20_000 {
        return (0.0, 0.05);
    }
    let inputs: usize = shape[1..].iter().product();
    (0.0, (inputs as f32).sqrt().recip())
}

fn parts(items: &[Item], numbers: Numbers, extra: &[(&str, Vec<u8>)]) -> Vec<Part> {
    let mut parts = Vec::new();
    for item in items {
        let (name, shape) = (&item.name, &item.shape);
        if item.values == Values::Counted {
            let count = shape.iter().product::<usize>() as i64;
            let bytes = (0..count).flat_map(i64::to_le_bytes).collect();
            parts.push(Part::bytes(name.clone(), shape.clone(), Dtype::I64, bytes));
            continue;
        }
        let (offset, deviation) = spread(name, shape);
        let dtype = match numbers {
            Numbers::Plain(dtype) => dtype,
            Numbers::ScaledFp8 if is_block_matrix(name, shape) => {
                // Uniform numbers that use the whole range of the codes; the scale brings them to the deviation.
                let codes = MOST_FP8 / 3f32.sqrt();
                parts.push(Part::drawn(name, shape, Dtype::F8E4M3, 0.0, codes));
                let scale = (deviation / codes).to_le_bytes().to_vec();
                let scale_name = name.trim_end_matches("weight").to_owned() + "scale_weight";
                parts.push(Part::bytes(scale_name, Vec::new(), Dtype::F32, scale));
                continue;
            }
            Numbers::ScaledFp8 => Dtype::Bf16,
        };
        parts.push(Part::drawn(name, shape, dtype, offset, deviation));
    }
    if numbers == Numbers::ScaledFp8 {
        let marker = "scaled_fp8".to_owned();
        parts.push(Part::bytes(marker, vec![0], Dtype::F8E4M3, Vec::new()));
    }
    for (name, bytes) in extra {
        let shape = vec![bytes.len()];
        let bytes = bytes.clone();
        parts.push(Part::bytes((*name).to_owned(), shape, Dtype::U8, bytes));
    }
    parts
}

type Pools = Mutex<BTreeMap<(Dtype, u32, u32), Arc<Vec<u8>>>>;

fn pool(pools: &Pools, dtype: Dtype, offset: f32, deviation: f32) -> Result<Arc<Vec<u8>>> {
    let mut pools = pools.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (dtype, offset.to_bits(), deviation.to_bits());
    if let Some(pool) = pools.get(&key) {
        return Ok(Arc::clone(pool));
    }
    let values = synthetic::value("pool", &[POOL], deviation * 3f32.sqrt())?.add_scalar(offset);
    let pool = Arc::new(Stored::from_f32(&values, dtype)?.bytes().to_vec());
    pools.insert(key, Arc::clone(&pool));
    Ok(pool)
}

/// Writes a file of these tensors, and of further ones whose bytes are given. Answers its size.
pub fn write(
    path: &Path,
    items: &[Item],
    numbers: Numbers,
    extra: &[(&str, Vec<u8>)],
) -> Result<u64> {
    let parts = parts(items, numbers, extra);
    let mut header = Map::new();
    let mut places = Vec::new();
    let mut end = 0;
    for part in &parts {
        places.push(end as u64);
        let offsets = [end, end + part.len()];
        let about =
            json!({"dtype": part.dtype.name(), "shape": part.shape, "data_offsets": offsets});
        header.insert(part.name.clone(), about);
        end += part.len();
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let start = 8 + header.len() as u64;
    let draft = path.with_extension("part");
    let mut file =
        File::create(&draft).with_context(|| format!("cannot make {}", draft.display()))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len(start + end as u64)?;
    let (pools, next) = (Pools::default(), AtomicUsize::new(0));
    let work = || -> Result<()> {
        let mut file = File::options().write(true).open(&draft)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(number) else {
                return Ok(());
            };
            file.seek(SeekFrom::Start(start + places[number]))?;
            put(&mut file, part, &pools).with_context(|| format!("cannot write {}", part.name))?;
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.collect::<Result<Vec<()>>>()
    })?;
    fs::rename(&draft, path)?;
    Ok(start + end as u64)
}

fn put(file: &mut File, part: &Part, pools: &Pools) -> Result<()> {
    let (offset, deviation) = match &part.content {
        Content::Bytes(bytes) => return Ok(file.write_all(bytes)?),
        Content::Drawn { offset, deviation } => (*offset, *deviation),
    };
    let pool = pool(pools, part.dtype, offset, deviation)?;
    let size = part.dtype.size();
    let mut at = synthetic::fnv1a64(part.name.as_bytes()) as usize % POOL * size;
    let mut left = part.len();
    while left > 0 {
        let count = left.min(pool.len() - at);
        file.write_all(&pool[at..at + count])?;
        left -= count;
        at = (at + count) % pool.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fresco_tensor::open_weights;

    use super::*;

    fn item(name: &str, shape: &[usize]) -> Item {
        Item {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: Values::Made,
        }
    }

    #[test]
    fn scaled_files_have_codes_scales_and_the_deviation_of_weights() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let items = [
            item("blocks.0.q.weight", &[4096, 2048]),
            item("blocks.0.q.bias", &[4096]),
            item("time_in.weight", &[2048, 2048]),
        ];
        let extra = [("spiece_model", vec![1, 2, 3])];
        let size = write(&path, &items, Numbers::ScaledFp8, &extra).unwrap();
        assert_eq!(size, fs::metadata(&path).unwrap().len());
        let file = open_weights(&path).unwrap();
        // Codes and their scale are read as one tensor.
        let weight = file.read("blocks.0.q.weight").unwrap();
        assert!(matches!(weight.dtype(), Dtype::Rows(_)), "{weight:?}");
        let values = weight.to_f32().unwrap();
        let squares = values.data().iter().map(|v| f64::from(*v).powi(2));
        let deviation = (squares.sum::<f64>() / values.data().len() as f64).sqrt();
        let wanted = 1.0 / 2048f64.sqrt();
        assert!(
            (deviation / wanted - 1.0).abs() < 0.02,
            "{deviation} {wanted}"
        );
        assert_ne!(values.data()[..2048], values.data()[2048..4096]);
        for (name, dtype) in [
            ("time_in.weight", Dtype::Bf16),
            ("blocks.0.q.bias", Dtype::Bf16),
            ("spiece_model", Dtype::U8),
        ] {
            assert_eq!(file.read(name).unwrap().dtype(), dtype, "{name}");
        }
        assert_eq!(file.read("spiece_model").unwrap().bytes(), [1, 2, 3]);
    }
}
