//! The functions of torch that a state dict calls, and the storages that its tensors view.

use std::collections::BTreeMap;

use super::node::{Id, Node, View};
use crate::dtype::Dtype;
use crate::elements::element_count;

/// Memory of one or more tensors, named by a key.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub(super) key: Box<str>,
    /// None for numbers that are not read: no model here has them.
    pub(super) dtype: Option<Dtype>,
    /// Bytes of an element.
    pub(super) size: u64,
    /// Elements that the pickle says it has.
    pub(super) count: u64,
    /// Position in the file; known once the pickle is read.
    pub(super) start: u64,
}

impl Storage {
    pub(super) fn bytes(&self) -> Option<u64> {
        self.count.checked_mul(self.size)
    }
}

#[derive(Debug, Default)]
pub(super) struct Storages {
    pub(super) list: Vec<Storage>,
    by_key: BTreeMap<Box<str>, usize>,
}

impl Storages {
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }
}

/// What a call gives.
pub(super) enum Called {
    /// A value that exists already.
    Same(Id),
    New(Node),
    Unknown,
}

type Result<T> = std::result::Result<T, &'static str>;

const STORAGES: &[(&str, Dtype)] = &[
    ("FloatStorage", Dtype::F32),
    ("HalfStorage", Dtype::F16),
    ("BFloat16Storage", Dtype::Bf16),
    ("DoubleStorage", Dtype::F64),
    ("ByteStorage", Dtype::U8),
    ("CharStorage", Dtype::I8),
    ("ShortStorage", Dtype::I16),
    ("IntStorage", Dtype::I32),
    ("LongStorage", Dtype::I64),
    ("BoolStorage", Dtype::Bool),
    // Bytes; the tensor says what they are.
    ("UntypedStorage", Dtype::U8),
];

/// Storages that are only passed over, with the bytes of their elements.
const UNREAD: &[(&str, u64)] = &[
    ("ComplexFloatStorage", 8),
    ("ComplexDoubleStorage", 16),
    ("QInt8Storage", 1),
    ("QUInt8Storage", 1),
    ("QInt32Storage", 4),
];

const DTYPES: &[(&str, Dtype)] = &[
    ("torch.float32", Dtype::F32),
    ("torch.float16", Dtype::F16),
    ("torch.bfloat16", Dtype::Bf16),
    ("torch.float64", Dtype::F64),
    ("torch.float8_e4m3fn", Dtype::F8E4M3),
    ("torch.float8_e5m2", Dtype::F8E5M2),
    ("torch.uint8", Dtype::U8),
    ("torch.int8", Dtype::I8),
    ("torch.uint16", Dtype::U16),
    ("torch.int16", Dtype::I16),
    ("torch.uint32", Dtype::U32),
    ("torch.int32", Dtype::I32),
    ("torch.uint64", Dtype::U64),
    ("torch.int64", Dtype::I64),
    ("torch.bool", Dtype::Bool),
];

fn node(nodes: &[Node], id: Id) -> &Node {
    &nodes[id as usize]
}

/// The storage that a persistent id names: `("storage", type, key, place, elements)`.
pub(super) fn storage(nodes: &[Node], storages: &mut Storages, id: Id) -> Result<Node> {
    let Node::Tuple(parts) = node(nodes, id) else {
        return Err("a storage is not named by a tuple");
    };
    let part = |i: usize| parts.get(i).map(|&id| node(nodes, id));
    match part(0) {
        Some(Node::Text(kind)) if &**kind == "storage" => {}
        // Source code that old versions saved with a module.
        Some(Node::Text(kind)) if &**kind == "module" => {
            return Ok(Node::Object(Box::default()));
        }
        _ => return Err("it refers to something that is not a storage"),
    }
    let (Some(Node::Global(class)), Some(Node::Text(key)), Some(Node::Int(count))) =
        (part(1), part(2), part(4))
    else {
        return Err("the name of a storage is incomplete");
    };
    let class = class.rsplit('.').next().unwrap_or(class);
    let dtype = STORAGES.iter().find(|(name, _)| *name == class);
    let dtype = dtype.map(|&(_, dtype)| dtype);
    let size = match dtype {
        Some(dtype) => dtype.size() as u64,
        None => match UNREAD.iter().find(|(name, _)| *name == class) {
            Some(&(_, size)) => size,
            None => return Err("a storage is of an unknown type"),
        },
    };
    let count = u64::try_from(*count).map_err(|_| "a storage has a negative size")?;
    // Views of other storages were written by versions before 0.4 only.
    if let Some(Node::Tuple(_)) = part(5) {
        return Err("a storage is a view of another one");
    }
    if let Some(known) = storages.find(key) {
        let other = &storages.list[known];
        if (other.dtype, other.count) != (dtype, count) {
            return Err("a storage has two sizes");
        }
        return Ok(Node::Storage(known));
    }
    let index = storages.list.len();
    storages.by_key.insert(key.clone(), index);
    storages.list.push(Storage {
        key: key.clone(),
        dtype,
        size,
        count,
        start: 0,
    });
    Ok(Node::Storage(index))
}

/// A call of a global.
pub(super) fn call(
    nodes: &[Node],
    storages: &Storages,
    name: &str,
    arguments: &[Id],
) -> Result<Called> {
    Ok(match name {
        "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => {
            tensor(nodes, storages, arguments, None)?
        }
        "torch._utils._rebuild_tensor_v3" => {
            let dtype = arguments.get(6).map(|&id| node(nodes, id));
            let Some(Node::Global(dtype)) = dtype else {
                return Err("a tensor has no dtype");
            };
            match DTYPES.iter().find(|(name, _)| **name == **dtype) {
                Some(&(_, dtype)) => tensor(nodes, storages, arguments, Some(dtype))?,
                None => Called::Unknown,
            }
        }
        "torch._utils._rebuild_parameter"
        | "torch._utils._rebuild_parameter_with_state"
        | "torch.nn.parameter.Parameter"
        | "torch.Size" => match arguments.first() {
            Some(&id) => Called::Same(id),
            None => return Err("a tensor is put together without its parts"),
        },
        "collections.OrderedDict" => ordered(nodes, arguments)?,
        "collections.defaultdict" | "builtins.dict" | "__builtin__.dict" => {
            Called::New(Node::Dict(Vec::new()))
        }
        _ => Called::Unknown,
    })
}

/// `OrderedDict()`, or of pairs as Python 2 wrote it.
fn ordered(nodes: &[Node], arguments: &[Id]) -> Result<Called> {
    let Some(&pairs) = arguments.first() else {
        return Ok(Called::New(Node::Dict(Vec::new())));
    };
    let Node::List(pairs) = node(nodes, pairs) else {
        return Err("an ordered dictionary is not made of pairs");
    };
    let pair = |&id: &Id| match node(nodes, id) {
        Node::List(pair) | Node::Tuple(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
        _ => Err("an ordered dictionary is not made of pairs"),
    };
    let items = pairs.iter().map(pair).collect::<Result<_>>()?;
    Ok(Called::New(Node::Dict(items)))
}

fn numbers(nodes: &[Node], id: Id) -> Result<Vec<u64>> {
    let (Node::Tuple(items) | Node::List(items)) = node(nodes, id) else {
        return Err("the shape of a tensor is not a tuple");
    };
    let number = |&id: &Id| match node(nodes, id) {
        Node::Int(n) => u64::try_from(*n).map_err(|_| "the shape of a tensor is negative"),
        _ => Err("the shape of a tensor is not of numbers"),
    };
    items.iter().map(number).collect()
}

/// `(storage, offset, shape, strides, ..)` as a tensor, if every element lies in the storage.
fn tensor(
    nodes: &[Node],
    storages: &Storages,
    arguments: &[Id],
    dtype: Option<Dtype>,
) -> Result<Called> {
    let [storage, offset, shape, strides, ..] = *arguments else {
        return Err("a tensor is put together without its parts");
    };
    let Node::Storage(storage) = *node(nodes, storage) else {
        return Err("a tensor has no storage");
    };
    let from = &storages.list[storage];
    let Some(dtype) = dtype.or(from.dtype) else {
        return Ok(Called::Unknown);
    };
    let Node::Int(offset) = node(nodes, offset) else {
        return Err("the position of a tensor is not a number");
    };
    let offset = u64::try_from(*offset).map_err(|_| "the position of a tensor is negative")?;
    let shape = numbers(nodes, shape)?;
    let strides = numbers(nodes, strides)?;
    if shape.len() != strides.len() {
        return Err("a tensor has more sizes than strides");
    }
    let sizes: Vec<usize> = shape.iter().map(|&s| s as usize).collect();
    let count = element_count(&sizes).map_err(|_| "a tensor is too large")?;
    let last = shape
        .iter()
        .zip(&strides)
        .try_fold(offset, |at, (&size, &stride)| {
            at.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        });
    let available = from.bytes().map(|bytes| bytes / dtype.size() as u64);
    let fits = count == 0 || matches!((last, available), (Some(last), Some(n)) if last < n);
    if !fits {
        return Err("a tensor reaches behind the end of its storage");
    }
    Ok(Called::New(Node::Tensor(Box::new(View {
        storage,
        dtype,
        offset,
        shape: sizes,
        strides,
    }))))
}
