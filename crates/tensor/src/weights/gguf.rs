//! GGUF files, versions 2 and 3: metadata, a list of tensors, then their bytes, aligned.
//!
//! The format counts dimensions from the innermost; shapes here are row-major as everywhere. Diffusion models keep the
//! true shape of a tensor that had to be flattened for its blocks in `comfy.gguf.orig_shape.<name>`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::input::Input;
use super::{WeightError, WeightFile, WeightInfo};
use crate::dtype::Dtype;
use crate::elements::element_count;
use crate::positioned::{FilePart, PositionedFile};
use crate::stored::Stored;

const MAGIC: [u8; 4] = *b"GGUF";

/// Longest name of a tensor or metadata entry.
const MAX_NAME: u64 = 65_535;
/// Longest text of a metadata entry that is kept; longer ones are passed over.
const MAX_TEXT: u64 = 16 << 20;
/// Longest array of a metadata entry that is kept: the shapes are wanted, the word lists of language models are not.
const MAX_ARRAY: u64 = 64;
/// Arrays inside arrays.
const MAX_DEPTH: usize = 4;
const MAX_DIMS: u32 = 8;
/// All metadata and tensor descriptions together.
const MAX_HEADER: u64 = 512 << 20;

pub(super) const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// Why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} is not a valid GGUF file: {problem}")]
pub struct GgufError {
    pub path: PathBuf,
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{0}")]
    Read(io::Error),
    #[error("it ends inside its header")]
    Truncated,
    #[error("it does not start with GGUF")]
    Magic,
    #[error("it was written on a big-endian machine")]
    BigEndian,
    #[error("version {0} is not known")]
    Version(u32),
    #[error("it claims to hold {count} {what}, more than fit in it")]
    TooMany { what: &'static str, count: u64 },
    #[error("the name {name:?} occurs twice")]
    Duplicate { name: String },
    #[error("a name of {length} bytes is too long")]
    NameTooLong { length: u64 },
    #[error("metadata {key:?} has the unknown type {kind}")]
    ValueType { key: String, kind: u32 },
    #[error("metadata {key:?} nests arrays too deeply")]
    Depth { key: String },
    #[error("the alignment {0} is not a power of two")]
    Alignment(u64),
    #[error("tensor {name:?} has {dims} dimensions")]
    Dims { name: String, dims: u32 },
    #[error("tensor {name:?} has the impossible shape {shape:?}")]
    Shape { name: String, shape: Vec<u64> },
    #[error("tensor {name:?}: its original shape {shape:?} has another number of elements")]
    OriginalShape { name: String, shape: Vec<i64> },
    #[error("tensor {name:?} is not aligned")]
    Misaligned { name: String },
    #[error("tensor {name:?} reaches behind the end of the file")]
    Outside { name: String },
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap { first: String, second: String },
}

fn read_problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Problem::Truncated,
        _ => Problem::Read(error),
    }
}

type Result<T, E = Problem> = std::result::Result<T, E>;

/// A type of tensors: its number, name, elements and bytes of a block, and the format if it can be read.
struct Kind {
    number: u32,
    name: &'static str,
    block: (u64, u64),
    dtype: Option<Dtype>,
}

const fn kind(number: u32, name: &'static str, block: (u64, u64), dtype: Option<Dtype>) -> Kind {
    Kind {
        number,
        name,
        block,
        dtype,
    }
}

static KINDS: &[Kind] = &[
    kind(0, "F32", (1, 4), Some(Dtype::F32)),
    kind(1, "F16", (1, 2), Some(Dtype::F16)),
    kind(2, "Q4_0", (32, 18), Some(Dtype::Q4_0)),
    kind(3, "Q4_1", (32, 20), Some(Dtype::Q4_1)),
    kind(6, "Q5_0", (32, 22), Some(Dtype::Q5_0)),
    kind(7, "Q5_1", (32, 24), Some(Dtype::Q5_1)),
    kind(8, "Q8_0", (32, 34), Some(Dtype::Q8_0)),
    kind(9, "Q8_1", (32, 36), None),
    kind(10, "Q2_K", (256, 84), Some(Dtype::Q2K)),
    kind(11, "Q3_K", (256, 110), Some(Dtype::Q3K)),
    kind(12, "Q4_K", (256, 144), Some(Dtype::Q4K)),
    kind(13, "Q5_K", (256, 176), Some(Dtype::Q5K)),
    kind(14, "Q6_K", (256, 210), Some(Dtype::Q6K)),
    kind(15, "Q8_K", (256, 292), Some(Dtype::Q8K)),
    kind(16, "IQ2_XXS", (256, 66), Some(Dtype::Iq2Xxs)),
    kind(17, "IQ2_XS", (256, 74), Some(Dtype::Iq2Xs)),
    kind(18, "IQ3_XXS", (256, 98), Some(Dtype::Iq3Xxs)),
    kind(19, "IQ1_S", (256, 50), Some(Dtype::Iq1S)),
    kind(20, "IQ4_NL", (32, 18), Some(Dtype::Iq4Nl)),
    kind(21, "IQ3_S", (256, 110), Some(Dtype::Iq3S)),
    kind(22, "IQ2_S", (256, 82), Some(Dtype::Iq2S)),
    kind(23, "IQ4_XS", (256, 136), Some(Dtype::Iq4Xs)),
    kind(24, "I8", (1, 1), Some(Dtype::I8)),
    kind(25, "I16", (1, 2), Some(Dtype::I16)),
    kind(26, "I32", (1, 4), Some(Dtype::I32)),
    kind(27, "I64", (1, 8), Some(Dtype::I64)),
    kind(28, "F64", (1, 8), Some(Dtype::F64)),
    kind(29, "IQ1_M", (256, 56), Some(Dtype::Iq1M)),
    kind(30, "BF16", (1, 2), Some(Dtype::Bf16)),
    kind(34, "TQ1_0", (256, 54), Some(Dtype::Tq1_0)),
    kind(35, "TQ2_0", (256, 66), Some(Dtype::Tq2_0)),
    kind(39, "MXFP4", (32, 17), Some(Dtype::Mxfp4)),
    kind(40, "NVFP4", (64, 36), Some(Dtype::GgmlNvfp4)),
    kind(41, "Q1_0", (128, 18), None),
];

/// The number of a type by its format; none where files have no such tensors.
pub(super) fn kind_number(dtype: Dtype) -> Option<u32> {
    let kind = KINDS.iter().find(|kind| kind.dtype == Some(dtype));
    kind.map(|kind| kind.number)
}

/// The type of a tensor; one that is not read keeps its name for the message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    Known(Dtype),
    Other(String),
}

#[derive(Debug)]
struct GgufEntry {
    format: Format,
    shape: Vec<usize>,
    /// From the start of the file.
    start: u64,
    bytes: u64,
}

/// An open file; tensors are read when asked for.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: Arc<PositionedFile>,
    tensors: BTreeMap<String, GgufEntry>,
    metadata: Vec<(String, String)>,
}

impl Gguf {
    /// Opens a file and checks its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        let path = path.as_ref().to_path_buf();
        let open = || {
            let file = PositionedFile::open(&path).map_err(Problem::Read)?;
            let (tensors, metadata) = parse(&file)?;
            Ok((file, tensors, metadata))
        };
        match open() {
            Ok((file, tensors, metadata)) => Ok(Self {
                path,
                file: Arc::new(file),
                tensors,
                metadata,
            }),
            Err(problem) => Err(GgufError { path, problem }),
        }
    }

    /// One value of the metadata, as text; `general.architecture` is `sd1`, `sdxl`, `flux`, ...
    pub fn value(&self, key: &str) -> Option<&str> {
        let pair = self.metadata.iter().find(|(k, _)| k == key)?;
        Some(&pair.1)
    }
}

impl WeightFile for Gguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    /// A tensor whose type is not read is shown as F32, so that the kind of model can still be told by its shapes.
    fn info(&self, name: &str) -> Option<WeightInfo> {
        let entry = self.tensors.get(name)?;
        Some(WeightInfo {
            dtype: match entry.format {
                Format::Known(dtype) => dtype,
                Format::Other(_) => Dtype::F32,
            },
            shape: entry.shape.clone(),
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let path = || self.path.clone();
        let entry = self.tensors.get(name).ok_or_else(|| WeightError::Missing {
            path: path(),
            name: name.to_owned(),
        })?;
        let dtype = match &entry.format {
            Format::Known(dtype) => *dtype,
            Format::Other(kind) => {
                return Err(WeightError::Format {
                    path: path(),
                    name: name.to_owned(),
                    format: kind.clone(),
                });
            }
        };
        let bytes = self
            .file
            .read_range(entry.start, entry.bytes)
            .map_err(|source| WeightError::read(&self.path, name, source))?;
        Stored::new(dtype, entry.shape.as_slice(), bytes).map_err(|source| WeightError::Tensor {
            path: path(),
            name: name.to_owned(),
            source,
        })
    }

    fn later(&self, name: &str) -> Option<Stored> {
        let entry = self.tensors.get(name)?;
        let Format::Known(dtype) = entry.format else {
            return None;
        };
        let place = (entry.start, entry.bytes);
        let part = FilePart::new(&self.file, (&self.path, name), place)?;
        Stored::later(dtype, entry.shape.as_slice(), part).ok()
    }

    fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }
}

/// What metadata says about the rest of the header.
#[derive(Default)]
struct Facts {
    alignment: Option<u64>,
    original_shapes: BTreeMap<String, Vec<i64>>,
}

type Parsed = (BTreeMap<String, GgufEntry>, Vec<(String, String)>);

fn parse(file: &PositionedFile) -> Result<Parsed> {
    let mut input = Input::new(file, 0, MAX_HEADER);
    if input.array().map_err(read_problem)? != MAGIC {
        return Err(Problem::Magic);
    }
    match input.u32().map_err(read_problem)? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 2 | 3) => return Err(Problem::BigEndian),
        version => return Err(Problem::Version(version)),
    }
    let tensor_count = input.u64().map_err(read_problem)?;
    let value_count = input.u64().map_err(read_problem)?;
    // The shortest description of a tensor has 24 bytes, the shortest metadata entry 13.
    for (what, count, size) in [
        ("tensors", tensor_count, 24),
        ("metadata entries", value_count, 13),
    ] {
        if count > input.left() / size {
            return Err(Problem::TooMany { what, count });
        }
    }
    let mut facts = Facts::default();
    let mut metadata = Vec::new();
    for _ in 0..value_count {
        let key = name(&mut input)?;
        let kind = input.u32().map_err(read_problem)?;
        let value = value(&mut input, &key, kind, 0)?;
        note(&mut facts, &key, &value)?;
        if let Some(text) = value.text() {
            metadata.push((key, text));
        }
    }
    let mut descriptions = Vec::new();
    for _ in 0..tensor_count {
        descriptions.push(description(&mut input)?);
    }
    let alignment = facts.alignment.unwrap_or(32);
    let data_start = input.at().next_multiple_of(alignment);
    let tensors = place(descriptions, &facts, data_start, alignment, file.len())?;
    Ok((tensors, metadata))
}

fn name(input: &mut Input<'_>) -> Result<String> {
    let length = input.u64().map_err(read_problem)?;
    if length > MAX_NAME {
        return Err(Problem::NameTooLong { length });
    }
    let bytes = input.bytes(length).map_err(read_problem)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A metadata value, as far as it is kept.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Int(i64),
    /// Above the range of `Int`.
    Large(u64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Value>),
    /// Too long to be kept.
    Skipped,
}

impl Value {
    /// As text; none for what was not kept.
    fn text(&self) -> Option<String> {
        Some(match self {
            Self::Int(value) => value.to_string(),
            Self::Large(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => text.clone(),
            Self::Array(values) => {
                let parts: Option<Vec<_>> = values.iter().map(Self::text).collect();
                format!("[{}]", parts?.join(", "))
            }
            Self::Skipped => return None,
        })
    }
}

/// Bytes of a number type; none for text, arrays and what is unknown.
fn width(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

const TEXT: u32 = 8;
const ARRAY: u32 = 9;

fn value(input: &mut Input<'_>, key: &str, kind: u32, depth: usize) -> Result<Value> {
    if depth > MAX_DEPTH {
        return Err(Problem::Depth {
            key: key.to_owned(),
        });
    }
    let mut number = || -> io::Result<Value> {
        Ok(match kind {
            0 => Value::Int(input.u8()?.into()),
            1 => Value::Int((input.u8()? as i8).into()),
            2 => Value::Int(input.u16()?.into()),
            3 => Value::Int((input.u16()? as i16).into()),
            4 => Value::Int(input.u32()?.into()),
            5 => Value::Int((input.u32()? as i32).into()),
            6 => Value::Float(f32::from_bits(input.u32()?).into()),
            7 => Value::Bool(input.u8()? != 0),
            10 => {
                let value = input.u64()?;
                i64::try_from(value).map_or(Value::Large(value), Value::Int)
            }
            11 => Value::Int(input.u64()? as i64),
            12 => Value::Float(f64::from_bits(input.u64()?)),
            TEXT => {
                let length = input.u64()?;
                if length > MAX_TEXT {
                    input.skip(length)?;
                    return Ok(Value::Skipped);
                }
                let bytes = input.bytes(length)?;
                Value::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => Value::Skipped,
        })
    };
    match kind {
        ARRAY => array(input, key, depth),
        TEXT => number().map_err(read_problem),
        _ if width(kind).is_some() => number().map_err(read_problem),
        _ => Err(Problem::ValueType {
            key: key.to_owned(),
            kind,
        }),
    }
}

fn array(input: &mut Input<'_>, key: &str, depth: usize) -> Result<Value> {
    let kind = input.u32().map_err(read_problem)?;
    let count = input.u64().map_err(read_problem)?;
    // An array has a type and a count of its own, a text a length.
    let smallest = match kind {
        ARRAY => 12,
        TEXT => 8,
        _ => width(kind).unwrap_or(1),
    };
    if count > input.left() / smallest {
        let what = "elements of an array";
        return Err(Problem::TooMany { what, count });
    }
    if count > MAX_ARRAY
        && let Some(width) = width(kind)
    {
        input.skip(count * width).map_err(read_problem)?;
        return Ok(Value::Skipped);
    }
    let mut values = Vec::new();
    for _ in 0..count {
        let value = value(input, key, kind, depth + 1)?;
        if count <= MAX_ARRAY {
            values.push(value);
        }
    }
    Ok(if count <= MAX_ARRAY {
        Value::Array(values)
    } else {
        Value::Skipped
    })
}

fn note(facts: &mut Facts, key: &str, value: &Value) -> Result<()> {
    if key == "general.alignment" {
        let alignment = match value {
            Value::Int(value) => u64::try_from(*value).unwrap_or(0),
            _ => 0,
        };
        if !alignment.is_power_of_two() || alignment > 1 << 30 {
            return Err(Problem::Alignment(alignment));
        }
        facts.alignment = Some(alignment);
    }
    if let (Some(name), Value::Array(values)) = (key.strip_prefix(ORIGINAL_SHAPE), value) {
        let size = |value: &Value| match value {
            Value::Int(size) => *size,
            _ => -1,
        };
        let shape = values.iter().map(size).collect();
        facts.original_shapes.insert(name.to_owned(), shape);
    }
    Ok(())
}

/// A tensor as the header describes it.
struct Description {
    name: String,
    /// Outermost first.
    shape: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn description(input: &mut Input<'_>) -> Result<Description> {
    let name = name(input)?;
    let dims = input.u32().map_err(read_problem)?;
    if dims > MAX_DIMS {
        return Err(Problem::Dims { name, dims });
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        shape.push(input.u64().map_err(read_problem)?);
    }
    shape.reverse();
    Ok(Description {
        name,
        shape,
        kind: input.u32().map_err(read_problem)?,
        offset: input.u64().map_err(read_problem)?,
    })
}

/// Checks where the tensors are and what shapes they have.
fn place(
    descriptions: Vec<Description>,
    facts: &Facts,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<BTreeMap<String, GgufEntry>> {
    let mut tensors = BTreeMap::new();
    for description in descriptions {
        let entry = entry(&description, facts, data_start, alignment, file_len)?;
        let name = description.name;
        if tensors.contains_key(&name) {
            return Err(Problem::Duplicate { name });
        }
        tensors.insert(name, entry);
    }
    let mut order: Vec<_> = tensors.iter().filter(|(_, e)| e.bytes > 0).collect();
    order.sort_by_key(|(_, entry)| entry.start);
    for pair in order.windows(2) {
        let [(first, a), (second, b)] = [pair[0], pair[1]];
        if a.start + a.bytes > b.start {
            return Err(Problem::Overlap {
                first: first.clone(),
                second: second.clone(),
            });
        }
    }
    Ok(tensors)
}

fn entry(
    description: &Description,
    facts: &Facts,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<GgufEntry> {
    let name = || description.name.clone();
    let impossible = || Problem::Shape {
        name: name(),
        shape: description.shape.clone(),
    };
    let sizes: Vec<usize> = description.shape.iter().map(|&s| s as usize).collect();
    let count = element_count(&sizes).map_err(|_| impossible())?;
    let kind = KINDS.iter().find(|k| k.number == description.kind);
    // The size of a type that nobody knows is nobody's business until it is read.
    let (format, bytes) = match kind {
        None => (Format::Other(format!("type {}", description.kind)), 0),
        Some(kind) => {
            let (elements, size) = kind.block;
            // Blocks do not span rows.
            let row = description.shape.last().copied().unwrap_or(1);
            if !row.is_multiple_of(elements) {
                return Err(impossible());
            }
            let format = match kind.dtype {
                Some(dtype) => Format::Known(dtype),
                None => Format::Other(kind.name.to_owned()),
            };
            (format, count as u64 / elements * size)
        }
    };
    if !description.offset.is_multiple_of(alignment) {
        return Err(Problem::Misaligned { name: name() });
    }
    let start = data_start.checked_add(description.offset);
    let end = start.and_then(|start| start.checked_add(bytes));
    let (Some(start), Some(_)) = (start, end.filter(|&end| end <= file_len)) else {
        return Err(Problem::Outside { name: name() });
    };
    let shape = match facts.original_shapes.get(&description.name) {
        None => sizes,
        Some(shape) => original_shape(shape, count).ok_or_else(|| Problem::OriginalShape {
            name: name(),
            shape: shape.clone(),
        })?,
    };
    Ok(GgufEntry {
        format,
        shape,
        start,
        bytes,
    })
}

fn original_shape(shape: &[i64], count: usize) -> Option<Vec<usize>> {
    let sizes: Option<Vec<usize>> = shape.iter().map(|&s| usize::try_from(s).ok()).collect();
    sizes.filter(|sizes| element_count(sizes) == Ok(count))
}
