//! The values of a pickle. They lie in one list and name each other by index, because a pickle may share and even nest
//! values in themselves: nothing here follows such references on its own.

/// Position in the list of values.
pub(super) type Id = u32;

/// What a global that is no part of torch becomes when it is called: a record of the call, without effect.
#[derive(Debug, Default)]
pub(super) struct Object {
    pub(super) class: Box<str>,
    pub(super) state: Option<Id>,
    pub(super) items: Vec<(Id, Id)>,
    pub(super) elements: Vec<Id>,
}

/// A view of a storage. Checked: every element lies in the storage.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) storage: usize,
    pub(super) dtype: crate::Dtype,
    /// In elements.
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    /// In elements.
    pub(super) strides: Vec<u64>,
}

#[derive(Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that does not fit in 64 bits: little-endian two's complement.
    Long(Box<[u8]>),
    Float(f64),
    Text(Box<str>),
    Bytes(Box<[u8]>),
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// `module.name`, never looked up.
    Global(Box<str>),
    Object(Box<Object>),
    /// Position in the list of storages.
    Storage(usize),
    Tensor(Box<View>),
}
