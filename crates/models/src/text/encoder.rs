//! Text encoders as models use them: which networks, which of their layers, and how their outputs come together.

use std::fmt;
use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use super::network::{LayerRule, TextKind, TextNetwork, TextOutput};
use super::tokens::{EmbeddingSource, PromptTokens, Tokens};
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::store::WeightStore;

/// How checkpoints of a family have the weights of a text network.
#[derive(Debug, PartialEq, Eq)]
pub enum SavedAs {
    /// Under their own names behind a prefix, but for those that are left out.
    Plain {
        prefix: &'static str,
        without: &'static [&'static str],
    },
    /// In the layout of OpenCLIP, whose attentions have one matrix for queries, keys and values, behind a prefix.
    Joined { prefix: &'static str },
}

/// One network of a set.
#[derive(Debug)]
pub struct StackPart {
    pub kind: &'static TextKind,
    /// Where checkpoints have it: the first prefix that holds one counts.
    pub prefixes: &'static [&'static str],
    pub layer: LayerRule,
    pub saved: SavedAs,
}

/// A set of text networks that models use together.
pub struct TextStack {
    /// For reports.
    pub name: &'static str,
    pub parts: &'static [StackPart],
    /// Types of loader nodes for which networks like these are something else than this.
    pub other_types: &'static [&'static str],
    /// What the outputs of all networks, in their order, make together.
    pub join: fn(Vec<TextOutput>) -> Result<Encoded>,
}

impl PartialEq for TextStack {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for TextStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Widths next to each other, cut to the shortest; the last network's vector.
pub fn join_widths(mut outputs: Vec<TextOutput>) -> Result<Encoded> {
    let lengths = outputs.iter().map(|o| o.hidden.shape()[1]);
    let shortest = lengths.min().unwrap_or(0);
    let cut = outputs.iter().map(|o| o.hidden.narrow(1, 0, shortest));
    let conds = cut.collect::<Result<Vec<Tensor>, _>>()?;
    Ok(Encoded {
        cond: Tensor::cat(&conds.iter().collect::<Vec<_>>(), 2)?,
        pooled: outputs.pop().and_then(|o| o.pooled),
    })
}

/// An encoded prompt.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `(1, tokens, width)`.
    pub cond: Tensor,
    /// `(1, width)`.
    pub pooled: Option<Tensor>,
}

/// Networks are built when the first prompt comes.
pub struct TextEncoder {
    stack: &'static TextStack,
    parts: Vec<Arc<dyn TextNetwork>>,
}

impl TextEncoder {
    /// The encoder of a checkpoint; none if the file brings no text encoder.
    pub fn from_checkpoint(
        file: &Arc<dyn WeightFile>,
        stack: &'static TextStack,
        device: &Device,
    ) -> Result<Option<Self>> {
        let mut stores = Vec::new();
        for part in stack.parts {
            let mut prefixes = part.prefixes.iter();
            let store = prefixes.find_map(|prefix| part.kind.store(file, prefix, device));
            stores.extend(store.map(|store| (part.kind, store)));
        }
        if stores.is_empty() {
            return Ok(None);
        }
        Self::from_stores(stack, stores).map(Some)
    }

    /// From weights under the names they have here, one store for each kind of the stack, in any order.
    pub fn from_stores(
        stack: &'static TextStack,
        stores: Vec<(&'static TextKind, Arc<WeightStore>)>,
    ) -> Result<Self> {
        let file = stores
            .first()
            .map_or("text encoder", |(_, s)| s.file())
            .to_owned();
        let parts = stack.parts.iter().map(|part| {
            let found = stores.iter().find(|(kind, _)| *kind == part.kind);
            let (kind, store) = found.ok_or_else(|| {
                let reason = format!("the text encoder {} is missing", part.kind.name);
                ModelError::unsupported(&*file, reason)
            })?;
            (kind.open)(Arc::clone(store))
        });
        Ok(Self {
            stack,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    /// The same encoder with other weights: for each network, those made from its prefix in [`Self::keys`] and its store.
    pub fn with_stores(
        &self,
        change: impl Fn(&str, &Arc<WeightStore>) -> Arc<WeightStore>,
    ) -> Result<Self> {
        let parts = self.stores().map(|(kind, prefix, store)| {
            let store = change(&prefix, store);
            (kind.open)(store)
        });
        Ok(Self {
            stack: self.stack,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    pub fn stack(&self) -> &'static TextStack {
        self.stack
    }

    /// The networks' weights, with the prefix their keys have in [`Self::keys`].
    pub fn stores(&self) -> impl Iterator<Item = (&'static TextKind, String, &Arc<WeightStore>)> {
        self.parts.iter().map(|part| {
            let kind = part.kind();
            (kind, prefix(kind), part.store())
        })
    }

    /// The keys of all weights, as LoRA files and patches mean them:
    /// `clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight`.
    pub fn keys(&self) -> Vec<String> {
        self.stores()
            .flat_map(|(_, prefix, store)| {
                let keys = store.keys().into_iter();
                keys.map(move |key| format!("{prefix}{key}"))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Memory held by the layers built so far.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.store().bytes()).sum()
    }

    pub fn tokenize(&self, text: &str, embeddings: &dyn EmbeddingSource) -> Result<PromptTokens> {
        let each = self.parts.iter().map(|part| {
            let tokens = part.tokenize(text, embeddings)?;
            Ok((part.kind().name, tokens))
        });
        each.collect::<Result<_>>().map(PromptTokens)
    }

    /// `layer` is that of CLIPSetLastLayer: -1 for the last layer, -2 for the one before.
    pub fn encode(&self, tokens: &PromptTokens, layer: Option<i64>) -> Result<Encoded> {
        let none = Tokens::default();
        let mut outputs = Vec::new();
        for (part, place) in self.parts.iter().zip(self.stack.parts) {
            let tokens = tokens.get(place.kind.name).unwrap_or(&none);
            outputs.push(part.encode(tokens, place.layer, layer)?);
        }
        (self.stack.join)(outputs)
    }
}

impl Network for TextEncoder {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
        self.parts.iter().flat_map(|part| part.stores()).collect()
    }

    fn build(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.build())
    }

    fn is_built(&self) -> bool {
        self.parts.iter().all(|part| part.is_built())
    }

    fn forget(&self) {
        self.parts.iter().for_each(|part| part.forget());
    }

    fn rest(&self) {
        self.parts.iter().for_each(|part| part.rest());
    }
}

impl fmt::Debug for TextEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextEncoder")
            .field("stack", &self.stack)
            .finish_non_exhaustive()
    }
}

fn prefix(kind: &TextKind) -> String {
    format!("{}.transformer.", kind.name)
}
