//! A text network as encoders see it, whichever kind it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fresco_tensor::weights::Recast;
use fresco_tensor::{Device, Dtype, Tensor, WeightFile};

use super::tokens::Tokens;
use super::vocabulary::Vocabulary;
use super::writing::WritingRule;
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::store::{Origin, UnitOrder, WeightStore};

/// A kind of text network: its name, and how to find and open it.
pub struct TextKind {
    /// For messages; the networks of a set have names of their own.
    pub name: &'static str,
    /// The weights of one under a prefix of a file, by their names here; empty if there are none.
    pub keys: fn(&dyn WeightFile, &str) -> BTreeMap<String, Origin>,
    /// In which order the memory room sees them.
    pub units: &'static UnitOrder,
    pub kept_in: KeptIn,
    /// The network over its weights, which are read when the first prompt comes.
    pub open: fn(Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>>,
}

/// The format that weights are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptIn {
    /// This one, whatever the file has.
    Always(Dtype),
    /// That of the file, but not in more than sixteen bits.
    Short,
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
        let file: Arc<dyn WeightFile> = Arc::new(match self.kept_in {
            KeptIn::Always(dtype) => Recast::new(Arc::clone(file), dtype),
            KeptIn::Short => Recast::narrowed(Arc::clone(file), Dtype::F16),
        });
        let store = WeightStore::mapped(file, keys, device.clone());
        // Encoders multiply with whole inputs, whatever the format of their weights says.
        Some(store.with_units(self.units).full_precision())
    }
}

/// Where a file has the vocabulary of the network under a prefix: beside the network's weights, or further up, where
/// checkpoints have it.
pub(super) fn words_origin(file: &dyn WeightFile, prefix: &str, key: &str) -> Option<Origin> {
    let mut place = prefix;
    loop {
        let name = format!("{place}{key}");
        if file.info(&name).is_some() {
            return Some(Origin::Whole(name));
        }
        let above = place.strip_suffix('.')?.rfind('.')?;
        place = &place[..=above];
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

impl LayerRule {
    /// The last layer with its norm.
    pub const LAST: Self = Self {
        usual: None,
        norm: true,
    };

    /// A layer counted from the end, without the norm.
    pub const fn bare(layer: i64) -> Self {
        Self {
            usual: Some(layer),
            norm: false,
        }
    }

    /// The layer to take, if it is not the last with its norm. `chosen` is that of CLIPSetLastLayer.
    pub fn choose(self, chosen: Option<i64>, layers: usize) -> Option<i64> {
        match chosen {
            // More than there are means the last.
            Some(index) if index.unsigned_abs() as usize > layers => None,
            None => self.usual,
            chosen => chosen,
        }
    }
}

/// Which of the states inside a network are its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// One layer's.
    One(LayerRule),
    /// Those that enter these layers, one after the other for each token; what would enter the layer after the last is the
    /// output of the network.
    Entering(&'static [usize]),
    /// What enters each layer, and the output, each by itself: `(1, layers + 1, n, c)`.
    All,
}

/// Tokens with a meaning for the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Specials {
    pub start: Option<u32>,
    pub end: Option<u32>,
    pub pad: u32,
}

/// How a model runs a text network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeRule {
    pub states: States,
    /// Whether the vector for all of a prompt goes through the network's projection.
    pub projected: bool,
    /// Whether no token looks at padding.
    pub masked: bool,
    /// Whether the rows of padding are zero at the end.
    pub zero_masked: bool,
    /// The position that all padding has; none if it is counted like words.
    pub pads_at: Option<u32>,
    /// What an empty prompt consists of, and which token ends one. Networks that know it by themselves do not look here.
    pub specials: Specials,
}

impl EncodeRule {
    /// One layer, no mask.
    pub const fn layer(layer: LayerRule, specials: Specials) -> Self {
        Self {
            states: States::One(layer),
            projected: true,
            masked: false,
            zero_masked: false,
            pads_at: None,
            specials,
        }
    }
}

/// What a text network makes of a prompt.
#[derive(Debug, Clone)]
pub struct TextOutput {
    /// `(1, n, c)`, or `(1, s, n, c)` for all states.
    pub hidden: Tensor,
    /// `(1, c)`: one vector for all of it, where the network has one.
    pub pooled: Option<Tensor>,
    /// `(1, n)`: 1 for tokens of the prompt, 0 for padding.
    pub mask: Option<Tensor>,
    /// First rows and numbers of rows of pictures.
    pub pictures: Vec<(usize, usize)>,
}

/// One network of a text encoder with its vocabulary.
pub trait TextNetwork: Network {
    fn kind(&self) -> &'static TextKind;

    fn store(&self) -> &Arc<WeightStore>;

    /// The same network over other weights.
    fn over(&self, store: Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>>;

    fn vocabulary(&self) -> Result<Arc<dyn Vocabulary>>;

    /// Numbers of a token in embeddings for this network.
    fn width(&self) -> usize;

    /// How many tokens it can read at once, where that is fixed by its weights.
    fn positions(&self) -> Option<usize> {
        None
    }

    /// `chosen` is the layer of CLIPSetLastLayer: -1 for the last one, -2 for the one before.
    fn encode(&self, tokens: &Tokens, rule: &EncodeRule, chosen: Option<i64>)
    -> Result<TextOutput>;

    /// Goes on with a text: the tokens that follow it, those that end it left out. `each` is told how many there are.
    fn write(
        &self,
        tokens: &Tokens,
        rule: &WritingRule,
        each: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let (_, _, _) = (tokens, rule, each);
        Err(ModelError::unsupported(
            self.store().file(),
            format!("{} reads prompts, but cannot write", self.kind().name),
        ))
    }
}
