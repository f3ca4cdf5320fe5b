//! Taking values apart for another process, and putting them together again.
//!
//! Plain values (texts, numbers, lists, objects) say all of themselves. An opaque one is known to the room that made it
//! only; that room hands in a [`Codec`] through the [`Resources`](crate::Resources), and whoever talks to other processes
//! needs to know neither the room nor its types. `T` is what numbers are handed over in: a tensor, which is shared and not
//! copied.

use std::sync::Arc;

use crate::{Map, Opaque, Value};

/// An opaque value in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts<T> {
    /// Which kind of value; [`Codec::join`] goes by it.
    pub kind: Arc<str>,
    /// Everything but the numbers, in plain values.
    pub plain: Map,
    pub tensors: Vec<T>,
}

/// Why parts do not make a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("unknown kind of value {kind:?}")]
    Unknown { kind: Arc<str> },
    #[error("a value of kind {kind:?} has {problem}")]
    Parts { kind: Arc<str>, problem: String },
}

/// Knows the opaque values of some room.
pub trait Codec<T>: Send + Sync {
    /// The parts of a value; nothing if it cannot leave the process (a model, a sampler).
    fn split(&self, object: &dyn Opaque) -> Option<Parts<T>>;

    /// The value that these parts make.
    fn join(&self, parts: Parts<T>) -> Result<Value, CodecError>;
}

/// One of the [`Resources`](crate::Resources) of an engine.
#[derive(Clone)]
pub struct ValueCodec<T: 'static>(pub Arc<dyn Codec<T>>);
