//! Looking at the values of a pickle from outside.

use std::fmt;

use super::Pickle;
use super::node::{Id, Node, View};
use crate::stored::Stored;
use crate::weights::{WeightError, WeightInfo};

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PickleKind<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List,
    Tuple,
    Dict,
    Tensor,
    /// Anything else, by the name of its class: it was not made, and nothing ran.
    Object(&'a str),
}

/// A value of an open pickle. Values may hold each other in circles, so a walk over them needs a limit.
#[derive(Clone, Copy)]
pub struct PickleValue<'a> {
    pickle: &'a Pickle,
    id: Id,
}

impl<'a> PickleValue<'a> {
    pub(super) fn new(pickle: &'a Pickle, id: Id) -> Self {
        Self { pickle, id }
    }

    pub(super) fn id(self) -> Id {
        self.id
    }

    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id as usize]
    }

    pub fn kind(self) -> PickleKind<'a> {
        match self.node() {
            Node::None => PickleKind::None,
            Node::Bool(value) => PickleKind::Bool(*value),
            Node::Int(value) => PickleKind::Int(*value),
            Node::Long(_) => PickleKind::Object("int"),
            Node::Float(value) => PickleKind::Float(*value),
            Node::Text(text) => PickleKind::Text(text),
            Node::Bytes(bytes) => PickleKind::Bytes(bytes),
            Node::List(_) => PickleKind::List,
            Node::Tuple(_) => PickleKind::Tuple,
            Node::Dict(_) => PickleKind::Dict,
            Node::Tensor(_) => PickleKind::Tensor,
            Node::Global(name) => PickleKind::Object(name),
            Node::Object(object) => PickleKind::Object(&object.class),
            Node::Storage(_) => PickleKind::Object("storage"),
        }
    }

    pub fn text(self) -> Option<&'a str> {
        match self.node() {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn int(self) -> Option<i64> {
        match self.node() {
            Node::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn is_dict(self) -> bool {
        matches!(self.node(), Node::Dict(_))
    }

    /// Keys and values of a dictionary, or of an object that had some set; later entries replace earlier ones of the
    /// same key.
    pub fn entries(self) -> impl Iterator<Item = (Self, Self)> {
        let items: &[(Id, Id)] = match self.node() {
            Node::Dict(items) => items,
            Node::Object(object) => &object.items,
            _ => &[],
        };
        let of = move |id| Self::new(self.pickle, id);
        items.iter().map(move |&(key, value)| (of(key), of(value)))
    }

    /// The value of a text key.
    pub fn get(self, key: &str) -> Option<Self> {
        let found = self.entries().filter(|(k, _)| k.text() == Some(key));
        found.last().map(|(_, value)| value)
    }

    /// Elements of a list or tuple.
    pub fn elements(self) -> impl Iterator<Item = Self> {
        let items: &[Id] = match self.node() {
            Node::List(items) | Node::Tuple(items) => items,
            Node::Object(object) => &object.elements,
            _ => &[],
        };
        items.iter().map(move |&id| Self::new(self.pickle, id))
    }

    /// What an object was to be filled with, usually a dictionary of its fields.
    pub fn state(self) -> Option<Self> {
        match self.node() {
            Node::Object(object) => object.state.map(|id| Self::new(self.pickle, id)),
            _ => None,
        }
    }

    pub(super) fn view(self) -> Option<&'a View> {
        match self.node() {
            Node::Tensor(view) => Some(view),
            _ => None,
        }
    }

    /// Format and shape, if this is a tensor.
    pub fn tensor_info(self) -> Option<WeightInfo> {
        self.view().map(|view| WeightInfo {
            dtype: view.dtype,
            shape: view.shape.clone(),
        })
    }

    /// Reads a tensor; `name` is for messages.
    pub fn read(self, name: &str) -> Result<Stored, WeightError> {
        match self.view() {
            Some(view) => self.pickle.read(name, view),
            None => Err(WeightError::Missing {
                path: self.pickle.path.clone(),
                name: name.to_owned(),
            }),
        }
    }
}

impl fmt::Debug for PickleValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind().fmt(f)
    }
}
