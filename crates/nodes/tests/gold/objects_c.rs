//! Test objects of the files, audio, misc and vae_conditioning areas.

use fresco_graph::{Map, Registry, Value};

use crate::store::Case;

/// An input object, or nothing if it is not of this file.
pub(crate) fn build(_kind: &str, _spec: &Map, _registry: &Registry) -> Option<Value> {
    None
}

/// What a golden would write down of an output object, with tensors as they are; nothing if it is not of this file.
pub(crate) fn describe(_case: &Case, _value: &Value) -> Option<Value> {
    None
}
