//! The values that cross node boundaries, in the reference's layouts.
//!
//! IMAGE is `(batch, height, width, channels)` f32 in 0..1, MASK `(batch, height, width)`, SIGMAS one dimension. LATENT is a
//! dictionary with `samples`, CONDITIONING a list of `[tokens, options]`, as the reference has them, so that entries a node
//! does not know travel on untouched.

use std::sync::Arc;

use fresco_graph::{FromValue, Map, NodeError, Opaque, Pieces, Value, wrong_kind};
use fresco_tensor::Tensor;

use crate::frames::StreamedImage;

/// A tensor on a link.
pub struct TensorValue(pub Tensor);

impl Opaque for TensorValue {
    fn describe(&self) -> String {
        format!("tensor{:?}", self.0.shape())
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64 * 4
    }

    fn pieces(&self, pieces: &mut Pieces) {
        add_tensor(pieces, &self.0);
    }
}

/// Adds the memory of a tensor.
pub(crate) fn add_tensor(pieces: &mut Pieces, t: &Tensor) {
    pieces.add(t.storage_address(), t.len() as u64 * 4);
}

/// A tensor as a link value.
pub fn tensor(t: Tensor) -> Value {
    Value::object(TensorValue(t))
}

/// The tensor in a link value, if it is one. Frames that are not in memory are put there.
pub fn as_tensor(value: &Value) -> Option<&Tensor> {
    match value.downcast::<TensorValue>() {
        Some(t) => Some(&t.0),
        None => value.downcast::<StreamedImage>()?.tensor().ok(),
    }
}

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $name:ident $io:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name(pub Tensor);

        impl FromValue for $name {
            const IO: &'static str = $io;
            fn from_value(value: Value) -> Result<Self, String> {
                // Why frames cannot be read is said, and not that they are of a wrong kind.
                if let Some(streamed) = value.downcast::<StreamedImage>() {
                    let whole = streamed.tensor().cloned().map(Self);
                    return whole.map_err(|e| e.message().to_owned());
                }
                as_tensor(&value).cloned().map(Self).ok_or_else(|| wrong_kind($io, &value))
            }
        }

        impl From<$name> for Value {
            fn from(v: $name) -> Self {
                tensor(v.0)
            }
        }
    )*};
}

tensor_types! {
    /// `(b, h, w, c)`.
    Image "IMAGE";
    /// `(b, h, w)`; some nodes also make `(h, w)`.
    Mask "MASK";
    /// `(n)`, falling.
    Sigmas "SIGMAS";
}

/// Tensors in one place of a latent, sampled together: a video and its sound, or masks of both.
#[derive(Clone, Debug)]
pub struct Nested(pub Vec<Tensor>);

impl Opaque for Nested {
    fn describe(&self) -> String {
        let shapes: Vec<String> = self.0.iter().map(|t| format!("{:?}", t.shape())).collect();
        format!("tensors {}", shapes.join(" and "))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|t| t.len() as u64 * 4).sum()
    }

    fn pieces(&self, pieces: &mut Pieces) {
        for t in &self.0 {
            add_tensor(pieces, t);
        }
    }
}

/// A dictionary with at least `samples`.
#[derive(Clone, Debug)]
pub struct Latent(pub Arc<Map>);

impl Latent {
    pub fn new(samples: Tensor) -> Self {
        Self(Arc::new(fresco_graph::map! {"samples" => tensor(samples)}))
    }

    /// Of several parts.
    pub fn nested(parts: Vec<Tensor>) -> Self {
        let parts = Value::object(Nested(parts));
        Self(Arc::new(fresco_graph::map! {"samples" => parts}))
    }

    /// The parts of a latent that has several.
    pub fn parts(&self) -> Option<&[Tensor]> {
        self.parts_of("samples")
    }

    /// The same of another entry: a mask of each.
    pub fn parts_of(&self, key: &str) -> Option<&[Tensor]> {
        let nested = self.0.get(key)?.downcast::<Nested>()?;
        Some(&nested.0)
    }

    pub fn samples(&self) -> Result<&Tensor, NodeError> {
        if self.parts().is_some() {
            return Err(NodeError::value_error(
                "this latent is a video together with its sound, of which only one can be used here: take them apart with \
                 LTXVSeparateAVLatent first",
            ));
        }
        self.tensor("samples")
            .ok_or_else(|| NodeError::failed("KeyError", "'samples'"))
    }

    /// The latent of pictures: the first part, or all of it.
    pub fn pictures(&self) -> Result<&Tensor, NodeError> {
        match self.parts().and_then(<[Tensor]>::first) {
            Some(first) => Ok(first),
            None => self.samples(),
        }
    }

    /// The latent of sound: the last part, or all of it.
    pub fn sound(&self) -> Result<&Tensor, NodeError> {
        match self.parts().and_then(<[Tensor]>::last) {
            Some(last) => Ok(last),
            None => self.samples(),
        }
    }

    /// A tensor entry, `noise_mask` say.
    pub fn tensor(&self, key: &str) -> Option<&Tensor> {
        self.0.get(key).and_then(as_tensor)
    }

    /// The same dictionary with one entry replaced or added.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        Arc::make_mut(&mut self.0).insert(key.into(), value.into());
        self
    }

    pub fn with_tensor(self, key: &str, t: Tensor) -> Self {
        self.with(key, tensor(t))
    }

    pub fn without(mut self, key: &str) -> Self {
        Arc::make_mut(&mut self.0).shift_remove(key);
        self
    }
}

impl FromValue for Latent {
    const IO: &'static str = "LATENT";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Map(m) => Ok(Self(m)),
            other => Err(wrong_kind("LATENT", &other)),
        }
    }
}

impl From<Latent> for Value {
    fn from(v: Latent) -> Self {
        Self::Map(v.0)
    }
}

/// One entry of a CONDITIONING: tokens and what goes with them.
#[derive(Clone, Debug)]
pub struct Cond {
    /// Usually a tensor `(1, tokens, width)`; kept as a value because some nodes make entries without one.
    pub tokens: Value,
    pub options: Map,
}

impl Cond {
    pub fn tensor(&self) -> Result<&Tensor, NodeError> {
        as_tensor(&self.tokens)
            .ok_or_else(|| NodeError::type_error(wrong_kind("conditioning tokens", &self.tokens)))
    }
}

/// A list of [`Cond`].
#[derive(Clone, Debug)]
pub struct Conditioning(pub Vec<Cond>);

impl Conditioning {
    /// Sets `key` in every entry.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        for cond in &mut self.0 {
            cond.options.insert(key.into(), value.clone());
        }
        self
    }

    /// Appends `value` to the list under `key` in every entry.
    pub fn append(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        for cond in &mut self.0 {
            let mut list = cond
                .options
                .get(key)
                .and_then(Value::as_list)
                .map(<[Value]>::to_vec)
                .unwrap_or_default();
            list.push(value.clone());
            cond.options.insert(key.into(), Value::List(Arc::new(list)));
        }
        self
    }
}

impl FromValue for Conditioning {
    const IO: &'static str = "CONDITIONING";
    fn from_value(value: Value) -> Result<Self, String> {
        let list = value
            .as_list()
            .ok_or_else(|| wrong_kind("CONDITIONING", &value))?;
        list.iter()
            .map(|entry| match entry.as_list() {
                Some([tokens, Value::Map(options)]) => Ok(Cond {
                    tokens: tokens.clone(),
                    options: (**options).clone(),
                }),
                _ => Err(wrong_kind("a conditioning entry [tokens, options]", entry)),
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl From<Conditioning> for Value {
    fn from(v: Conditioning) -> Self {
        v.0.into_iter()
            .map(|c| Value::from(vec![c.tokens, c.options.into()]))
            .collect::<Vec<_>>()
            .into()
    }
}
