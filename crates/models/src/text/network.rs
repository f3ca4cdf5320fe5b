//! A text network as encoders see it, whichever kind it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fresco_tensor::weights::Recast;
use fresco_tensor::{Device, Dtype, Tensor, WeightFile};

use super::tokens::{EmbeddingSource, Tokens};
use crate::error::Result;
use crate::network::Network;
use crate::store::{Origin, UnitOrder, WeightStore};

/// A kind of text network: its name, and how to find and open it.
pub struct TextKind {
    /// As keys of models, embeddings and patches call it.
    pub name: &'static str,
    /// The weights of one under a prefix of a file, by their names here; empty if there are none.
    pub keys: fn(&dyn WeightFile, &str) -> BTreeMap<String, Origin>,
    /// In which order the memory room sees them.
    pub units: &'static UnitOrder,
    /// The format its weights are kept in, whatever the file has.
    pub kept_in: Option<Dtype>,
    /// The network over its weights, which are read when the first prompt comes.
    pub open: fn(Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>>,
}

impl TextKind {
    /// The weights under a prefix of a file, if there are any.
    pub fn store(
        &self,
        file: &Arc<dyn WeightFile>,
        prefix: &str,
        device: &Device,
    ) -> Option<Arc<WeightStore>> {
        let keys = (self.keys)(&**file, prefix);
        if keys.is_empty() {
            return None;
        }
        let file: Arc<dyn WeightFile> = match self.kept_in {
            Some(dtype) => Arc::new(Recast::new(Arc::clone(file), dtype)),
            None => Arc::clone(file),
        };
        Some(WeightStore::mapped(file, keys, device.clone()).with_units(self.units))
    }
}

impl PartialEq for TextKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for TextKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Recognises the text network in a file of its own.
pub type FindText = fn(&dyn WeightFile) -> Option<&'static TextKind>;

/// Which layer's output a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerRule {
    /// When nobody chooses: counted from the end, -2 for the last but one; none for the last with its norm.
    pub usual: Option<i64>,
    /// Whether other layers than the last get the final norm.
    pub norm: bool,
}

/// What a text network makes of a prompt.
#[derive(Debug, Clone)]
pub struct TextOutput {
    /// `(1, n, c)`: the last layer after the final norm, or the layer that was asked for.
    pub hidden: Tensor,
    /// `(1, c)`: one vector for all of it, where the network has one.
    pub pooled: Option<Tensor>,
}

/// One network of a text encoder with its tokenizer.
pub trait TextNetwork: Network {
    fn kind(&self) -> &'static TextKind;

    fn store(&self) -> &Arc<WeightStore>;

    fn tokenize(&self, text: &str, embeddings: &dyn EmbeddingSource) -> Result<Tokens>;

    /// `chosen` is the layer of CLIPSetLastLayer: -1 for the last one, -2 for the one before.
    fn encode(&self, tokens: &Tokens, rule: LayerRule, chosen: Option<i64>) -> Result<TextOutput>;
}
