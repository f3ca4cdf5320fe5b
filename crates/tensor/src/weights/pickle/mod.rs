//! Files that `torch.save` wrote (`.ckpt`, `.pt`, `.pth`, `.bin`), read without running anything in them.
//!
//! Two layouts exist: a zip archive with one pickle and one entry for each storage, and, before torch 1.6, a row of
//! pickles with the storages behind them. In both the pickle says which tensors there are; their bytes are read when asked
//! for.

mod machine;
mod node;
mod torch;
mod value;
mod zip;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use machine::Machine;
use node::{Id, Node, View};
use torch::Storage;
pub use value::{PickleKind, PickleValue};
use zip::Archive;

use super::input::Input;
use super::{WeightError, WeightFile, WeightInfo};
use crate::elements::element_count;
use crate::positioned::PositionedFile;
use crate::stored::Stored;

/// Longest pickle that is read.
const MAX_PICKLE: u64 = 64 << 20;

/// The number with which the older layout starts, as a pickle stores it.
const MAGIC: [u8; 10] = [0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19];

/// Why such a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read as a file of torch: {problem}")]
pub struct PickleError {
    pub path: PathBuf,
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{0}")]
    Read(io::Error),
    #[error("it ends early")]
    Truncated,
    #[error("the zip archive is damaged: {0}")]
    Zip(&'static str),
    #[error("it is a zip archive, but not one that torch wrote")]
    NotTorch,
    #[error("it is a pickle, but not one that torch wrote")]
    NotTorchPickle,
    #[error("{name:?} is compressed, which torch never does")]
    Compressed { name: String },
    #[error("it was written on a big-endian machine")]
    BigEndian,
    #[error("the pickle is refused at byte {at}: {what}")]
    Pickle { what: &'static str, at: u64 },
    #[error("the pickle is refused at byte {at}: opcode {name} ({opcode:#04x}) is not allowed")]
    Opcode {
        name: &'static str,
        opcode: u8,
        at: u64,
    },
    #[error("the storage {key:?} is missing")]
    NoStorage { key: String },
    #[error("the storage {key:?} is shorter than its tensors")]
    ShortStorage { key: String },
    #[error("it holds no named tensors")]
    NoTensors,
}

fn read_problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Problem::Truncated,
        _ => Problem::Read(error),
    }
}

/// An open file: all values of the pickle, with tensors still in the file.
#[derive(Debug)]
pub struct Pickle {
    path: PathBuf,
    file: PositionedFile,
    nodes: Vec<Node>,
    storages: Vec<Storage>,
    root: Id,
}

/// Opens a file of either layout.
pub fn load(path: impl AsRef<Path>) -> Result<Pickle, PickleError> {
    let path = path.as_ref().to_path_buf();
    let open = || {
        let file = PositionedFile::open(&path).map_err(Problem::Read)?;
        let mut start = [0; 4];
        file.read_exact_at(&mut start, 0).map_err(read_problem)?;
        let (nodes, storages, root) = if start.starts_with(b"PK") {
            load_zip(&file)?
        } else {
            load_row(&file)?
        };
        Ok((file, nodes, storages, root))
    };
    match open() {
        Ok((file, nodes, storages, root)) => Ok(Pickle {
            path,
            file,
            nodes,
            storages,
            root,
        }),
        Err(problem) => Err(PickleError { path, problem }),
    }
}

type Loaded = (Vec<Node>, Vec<Storage>, Id);

fn load_zip(file: &PositionedFile) -> Result<Loaded, Problem> {
    let archive = Archive::open(file)?;
    let (name, entry) = archive
        .entries
        .iter()
        .find(|(name, _)| *name == "data.pkl" || name.ends_with("/data.pkl"))
        .ok_or(Problem::NotTorch)?;
    let folder = name.strip_suffix("data.pkl").unwrap_or_default();
    let order = format!("{folder}byteorder");
    if let Some(entry) = archive.entries.get(&order) {
        let start = Archive::locate(file, &order, entry)?;
        let text = file.read_range(start, entry.size.min(8));
        if text.map_err(read_problem)? == b"big" {
            return Err(Problem::BigEndian);
        }
    }
    let start = Archive::locate(file, name, entry)?;
    let mut input = Input::new(file, start, start + entry.size.min(MAX_PICKLE));
    let mut machine = Machine::new(&mut input);
    let root = machine.run()?;
    let (nodes, mut storages) = (machine.nodes, machine.storages.list);
    for storage in &mut storages {
        let name = format!("{folder}data/{}", storage.key);
        let entry = archive.entries.get(&name).ok_or_else(|| no(storage))?;
        if storage.bytes().is_none_or(|bytes| bytes > entry.size) {
            return Err(short(storage));
        }
        storage.start = Archive::locate(file, &name, entry)?;
    }
    Ok((nodes, storages, root))
}

fn no(storage: &Storage) -> Problem {
    Problem::NoStorage {
        key: storage.key.to_string(),
    }
}

fn short(storage: &Storage) -> Problem {
    Problem::ShortStorage {
        key: storage.key.to_string(),
    }
}

/// The older layout: pickles of a magic number, a version, facts about the machine, the object and the list of storage
/// keys; then for each key the number of elements and their bytes.
fn load_row(file: &PositionedFile) -> Result<Loaded, Problem> {
    let mut input = Input::new(file, 0, MAX_PICKLE);
    let mut machine = Machine::new(&mut input);
    let magic = machine.run()?;
    match &machine.nodes[magic as usize] {
        Node::Long(bytes) if **bytes == MAGIC => {}
        _ => return Err(Problem::NotTorchPickle),
    }
    let version = machine.run()?;
    if !matches!(machine.nodes[version as usize], Node::Int(1001)) {
        return Err(Problem::NotTorchPickle);
    }
    let system = machine.run()?;
    if is_big_endian(&machine.nodes, system) {
        return Err(Problem::BigEndian);
    }
    let root = machine.run()?;
    let keys = machine.run()?;
    let (nodes, mut storages) = (machine.nodes, machine.storages);
    let Node::List(keys) = &nodes[keys as usize] else {
        return Err(Problem::NotTorchPickle);
    };
    let mut input = Input::new(file, input.at(), file.len());
    for &key in keys {
        let Node::Text(key) = &nodes[key as usize] else {
            return Err(Problem::NotTorchPickle);
        };
        let index = storages.find(key).ok_or_else(|| Problem::NoStorage {
            key: key.to_string(),
        })?;
        let count = input.u64().map_err(read_problem)?;
        let storage = &mut storages.list[index];
        if count != storage.count {
            return Err(short(storage));
        }
        storage.start = input.at();
        let bytes = storage.bytes().ok_or_else(|| short(storage))?;
        input.skip(bytes).map_err(read_problem)?;
    }
    // No storage is at the start of the file.
    if let Some(missing) = storages.list.iter().find(|storage| storage.start == 0) {
        return Err(no(missing));
    }
    Ok((nodes, storages.list, root))
}

fn is_big_endian(nodes: &[Node], system: Id) -> bool {
    let Node::Dict(items) = &nodes[system as usize] else {
        return false;
    };
    items.iter().any(|&(key, value)| {
        let key = &nodes[key as usize];
        matches!(key, Node::Text(t) if &**t == "little_endian")
            && matches!(nodes[value as usize], Node::Bool(false))
    })
}

impl Pickle {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value that was saved.
    pub fn root(&self) -> PickleValue<'_> {
        PickleValue::new(self, self.root)
    }

    /// The tensors that the reference would find by name: those of `state_dict`, or of the only dictionary in a dictionary,
    /// or of the whole.
    pub fn state_dict(&self) -> BTreeMap<String, PickleValue<'_>> {
        let root = self.root();
        let dict = root.get("state_dict").unwrap_or_else(|| {
            let mut entries = root.entries();
            match (entries.next(), entries.next()) {
                (Some((_, only)), None) if only.is_dict() => only,
                _ => root,
            }
        });
        dict.entries()
            .filter(|(_, value)| value.tensor_info().is_some())
            .filter_map(|(key, value)| Some((key.text()?.to_owned(), value)))
            .collect()
    }

    /// The elements of a view, gathered in row-major order.
    fn read_view(&self, view: &View) -> io::Result<Vec<u8>> {
        let size = view.dtype.size();
        let count = element_count(&view.shape).map_err(io::Error::other)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let start = self.storages[view.storage].start + view.offset * size as u64;
        if is_contiguous(&view.shape, &view.strides) {
            return self.file.read_range(start, (count * size) as u64);
        }
        // From the first to the last element that is used, and out of that what is wanted.
        let sizes = || view.shape.iter().zip(&view.strides);
        let last: u64 = sizes().map(|(&n, &stride)| (n as u64 - 1) * stride).sum();
        let span = self.file.read_range(start, (last + 1) * size as u64)?;
        let wanted = (count * size) as u64;
        let _claim = crate::room::claim(wanted).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut out = Vec::with_capacity(count * size);
        let mut index = vec![0; view.shape.len()];
        let mut at = 0;
        for _ in 0..count {
            out.extend_from_slice(&span[at * size..(at + 1) * size]);
            for dim in (0..index.len()).rev() {
                let stride = view.strides[dim] as usize;
                index[dim] += 1;
                at += stride;
                if index[dim] < view.shape[dim] {
                    break;
                }
                at -= stride * index[dim];
                index[dim] = 0;
            }
        }
        Ok(out)
    }

    fn read(&self, name: &str, view: &View) -> Result<Stored, WeightError> {
        let bytes = self
            .read_view(view)
            .map_err(|source| WeightError::read(&self.path, name, source))?;
        Stored::new(view.dtype, view.shape.as_slice(), bytes).map_err(|source| {
            WeightError::Tensor {
                path: self.path.clone(),
                name: name.to_owned(),
                source,
            }
        })
    }
}

/// Whether elements follow each other in row-major order; the stride of a single element does not matter.
fn is_contiguous(shape: &[usize], strides: &[u64]) -> bool {
    let mut wanted = 1;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 && stride != wanted {
            return false;
        }
        wanted *= size as u64;
    }
    true
}

/// The named tensors of a pickle.
#[derive(Debug)]
pub struct PickleWeights {
    pickle: Pickle,
    by_name: BTreeMap<String, Id>,
}

impl PickleWeights {
    /// Opens a file that holds a state dict.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PickleError> {
        let pickle = load(path)?;
        let by_name: BTreeMap<_, _> = pickle
            .state_dict()
            .into_iter()
            .map(|(name, value)| (name, value.id()))
            .collect();
        if by_name.is_empty() {
            return Err(PickleError {
                path: pickle.path,
                problem: Problem::NoTensors,
            });
        }
        Ok(Self { pickle, by_name })
    }

    fn value(&self, name: &str) -> Option<PickleValue<'_>> {
        let id = self.by_name.get(name)?;
        Some(PickleValue::new(&self.pickle, *id))
    }
}

impl WeightFile for PickleWeights {
    fn path(&self) -> &Path {
        &self.pickle.path
    }

    fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.value(name)?.tensor_info()
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let value = self.value(name);
        match value.and_then(PickleValue::view) {
            Some(view) => self.pickle.read(name, view),
            None => Err(WeightError::Missing {
                path: self.pickle.path.clone(),
                name: name.to_owned(),
            }),
        }
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}
