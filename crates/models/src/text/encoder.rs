//! Text encoders as model families use them: which CLIP networks, which of their layers, and how prompts of several chunks
//! and weights come together.

use std::sync::Arc;

use fresco_tensor::weights::Recast;
use fresco_tensor::{Device, Dtype, Tensor, WeightFile};

use super::clip::{ClipConfig, ClipLayer, ClipOutput, ClipText, Sequence};
use super::layout;
use super::{ClipKind, ClipTokenizer, EmbeddingSource, Token, Tokens, Weighted, bpe};
use crate::error::{ModelError, Result};
use crate::network::{Lazy, Network};
use crate::store::Store;

/// Sequences that run at once; more would only take memory.
const BATCH: usize = 8;

/// The sets of CLIP networks that families use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    Sd1,
    Sd2,
    Sdxl,
    SdxlRefiner,
}

impl Stack {
    pub fn kinds(self) -> &'static [ClipKind] {
        match self {
            Self::Sd1 => &[ClipKind::L],
            Self::Sd2 => &[ClipKind::H],
            Self::Sdxl => &[ClipKind::L, ClipKind::G],
            Self::SdxlRefiner => &[ClipKind::G],
        }
    }

    /// The layer taken when nobody chooses one, and whether other layers get the final norm.
    fn layer(self) -> (ClipLayer, bool) {
        let hidden = |norm| (ClipLayer::Hidden { index: -2, norm }, norm);
        match self {
            Self::Sd1 => (ClipLayer::Last, true),
            Self::Sd2 => hidden(true),
            Self::Sdxl | Self::SdxlRefiner => hidden(false),
        }
    }

    /// Where checkpoints have the networks: for each kind, the prefixes to look at.
    fn prefixes(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Sd1 => &[&["cond_stage_model.transformer."]],
            Self::Sd2 => &[&["cond_stage_model.model.", "conditioner.embedders.0.model."]],
            Self::Sdxl => &[
                &["conditioner.embedders.0.transformer."],
                &["conditioner.embedders.1.model."],
            ],
            Self::SdxlRefiner => &[&["conditioner.embedders.0.model."]],
        }
    }
}

/// One network with its tokenizer.
pub struct ClipEncoder {
    kind: ClipKind,
    store: Arc<Store>,
    config: ClipConfig,
    tokenizer: ClipTokenizer,
    /// Built when the first prompt comes.
    network: Lazy<ClipText>,
}

impl ClipEncoder {
    /// Weights under internal names; `config` is usually [`ClipConfig::detect`]ed.
    pub fn new(kind: ClipKind, store: Arc<Store>, config: ClipConfig) -> Result<Self> {
        let (weights, sizes) = (Arc::clone(&store), config.clone());
        let build = move || ClipText::new(&weights, sizes.clone());
        Ok(Self {
            kind,
            tokenizer: ClipTokenizer::with_length(kind, config.positions)?,
            config,
            network: Lazy::new(vec![Arc::clone(&store)], Box::new(build)),
            store,
        })
    }

    pub fn tokenizer(&self) -> &ClipTokenizer {
        &self.tokenizer
    }

    /// Chunks one after the other `(1, n, c)`, and the pooled token of the first `(1, c)`.
    pub fn encode(&self, chunks: &[Vec<Weighted>], layer: ClipLayer) -> Result<ClipOutput> {
        let network = &*self.network.get()?;
        let pad = self.kind.pad();
        let embed = |tokens: &[Token]| network.embed(tokens, pad);
        let mut sequences = Vec::with_capacity(chunks.len() + 1);
        for chunk in chunks {
            let tokens: Vec<Token> = chunk.iter().map(|t| t.token.clone()).collect();
            sequences.push(embed(&tokens)?);
        }
        let weighted = chunks.iter().flatten().any(|t| t.weight != 1.0);
        if weighted || chunks.is_empty() {
            let longest = chunks.iter().map(Vec::len).max().unwrap_or(0);
            let mut empty = vec![Token::Id(bpe::START), Token::Id(bpe::END)];
            empty.resize(longest.max(2), Token::Id(pad));
            sequences.push(embed(&empty)?);
        }
        let (mut hidden, first) = self.run(network, &sequences, layer)?;
        if weighted {
            let empty = hidden.pop().expect("the empty sequence was the last");
            for (z, chunk) in hidden.iter_mut().zip(chunks) {
                weigh(z, &empty, chunk);
            }
        }
        let rows: Vec<&Tensor> = hidden.iter().collect();
        Ok(ClipOutput {
            hidden: Tensor::cat(&rows, 0)?.unsqueeze(0)?,
            pooled: first.pooled.narrow(0, 0, 1)?,
            projected: first.projected.narrow(0, 0, 1)?,
        })
    }

    /// The output `(n, c)` of each sequence, and all of the first batch.
    fn run(
        &self,
        network: &ClipText,
        sequences: &[Sequence],
        layer: ClipLayer,
    ) -> Result<(Vec<Tensor>, ClipOutput)> {
        let mut hidden = Vec::with_capacity(sequences.len());
        let mut first = None;
        for batch in sequences.chunks(BATCH) {
            let output = network.forward(batch, layer)?;
            let finite = |t: &Tensor| t.data().iter().all(|v| v.is_finite());
            if !finite(&output.hidden) || !finite(&output.projected) {
                return Err(ModelError::unsupported(
                    self.store.file(),
                    format!(
                        "{} gives values that are not numbers; the file, or an embedding of the prompt, is damaged",
                        self.kind.name()
                    ),
                ));
            }
            for i in 0..batch.len() {
                hidden.push(output.hidden.select(0, i)?);
            }
            first = first.or(Some(output));
        }
        let first = first.expect("there is at least the empty sequence");
        Ok((hidden, first))
    }
}

/// Moves tokens away from, or towards, what an empty prompt gives at the same place.
fn weigh(z: &mut Tensor, empty: &Tensor, chunk: &[Weighted]) {
    let width = z.shape().last().copied().unwrap_or(1).max(1);
    let rows = z.data_mut().chunks_exact_mut(width);
    for ((row, base), token) in rows.zip(empty.data().chunks_exact(width)).zip(chunk) {
        if token.weight != 1.0 {
            let weight = token.weight as f32;
            for (v, b) in row.iter_mut().zip(base) {
                *v = (*v - b) * weight + b;
            }
        }
    }
}

/// A prompt for every network of an encoder.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PromptTokens(pub Vec<(ClipKind, Tokens)>);

impl PromptTokens {
    pub fn get(&self, kind: ClipKind) -> Option<&Tokens> {
        self.0.iter().find(|(k, _)| *k == kind).map(|(_, t)| t)
    }

    pub fn get_mut(&mut self, kind: ClipKind) -> Option<&mut Tokens> {
        self.0.iter_mut().find(|(k, _)| *k == kind).map(|(_, t)| t)
    }

    /// Embeddings that could not be found, each once.
    pub fn missing(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .0
            .iter()
            .flat_map(|(_, t)| t.missing.iter().map(String::as_str))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// An encoded prompt.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `(1, tokens, width)`.
    pub cond: Tensor,
    /// `(1, width)`.
    pub pooled: Option<Tensor>,
}

/// See the [module](self). Networks are built when the first prompt comes.
pub struct TextEncoder {
    stack: Stack,
    parts: Vec<ClipEncoder>,
}

impl TextEncoder {
    /// The encoder of a checkpoint; none if the file brings no text encoder.
    pub fn from_checkpoint(
        file: &Arc<dyn WeightFile>,
        stack: Stack,
        device: &Device,
    ) -> Result<Option<Self>> {
        let mut parts = Vec::new();
        for (kind, prefixes) in stack.kinds().iter().zip(stack.prefixes()) {
            let found = prefixes.iter().map(|p| layout::keys(&**file, p));
            let Some(keys) = found.into_iter().find(|keys| !keys.is_empty()) else {
                continue;
            };
            let store = Store::mapped(halved(file), keys, device.clone());
            parts.push((*kind, store));
        }
        if parts.is_empty() {
            return Ok(None);
        }
        Self::from_stores(stack, parts).map(Some)
    }

    /// The encoder that files of their own make: one by itself, or the two of SDXL in any order.
    pub fn from_files(files: &[Arc<dyn WeightFile>], device: &Device) -> Result<Self> {
        let mut parts = Vec::new();
        for file in files {
            let keys = layout::keys(&**file, "");
            let kind = layout::kind(&keys).ok_or_else(|| {
                let found = layout::other_kind(&**file);
                let reason = match found {
                    Some(found) => format!("{found} text encoders are not supported yet"),
                    None => "no text encoder is known with its tensors".to_owned(),
                };
                ModelError::unsupported(file.path().display().to_string(), reason)
            })?;
            let store = Store::mapped(halved(file), keys, device.clone());
            parts.push((kind, store));
        }
        let kinds: Vec<ClipKind> = parts.iter().map(|(kind, _)| *kind).collect();
        let stack = match kinds[..] {
            [ClipKind::L] => Stack::Sd1,
            [ClipKind::H] => Stack::Sd2,
            [ClipKind::G] => Stack::SdxlRefiner,
            [ClipKind::L, ClipKind::G] | [ClipKind::G, ClipKind::L] => Stack::Sdxl,
            _ => {
                let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
                let reason = format!("no model uses {} together", names.join(" and "));
                let files: Vec<_> = files
                    .iter()
                    .map(|f| f.path().display().to_string())
                    .collect();
                return Err(ModelError::unsupported(files.join(", "), reason));
            }
        };
        Self::from_stores(stack, parts)
    }

    /// From weights under internal names, one store for each kind of the stack, in any order.
    pub fn from_stores(stack: Stack, stores: Vec<(ClipKind, Arc<Store>)>) -> Result<Self> {
        let file = stores
            .first()
            .map_or("text encoder", |(_, s)| s.file())
            .to_owned();
        let parts = stack.kinds().iter().map(|kind| {
            let found = stores.iter().find(|(k, _)| k == kind);
            let (_, store) = found.ok_or_else(|| {
                let reason = format!("the text encoder {} is missing", kind.name());
                ModelError::unsupported(&*file, reason)
            })?;
            let config = ClipConfig::detect(store, *kind)?;
            ClipEncoder::new(*kind, Arc::clone(store), config)
        });
        Ok(Self {
            stack,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    /// The same encoder with other weights: for each network, those made from its prefix in [`Self::keys`] and its store.
    pub fn with_stores(&self, change: impl Fn(&str, &Arc<Store>) -> Arc<Store>) -> Result<Self> {
        let parts = self.stores().map(|(kind, prefix, store)| {
            let store = change(&prefix, store);
            let config = ClipConfig::detect(&store, kind)?;
            ClipEncoder::new(kind, store, config)
        });
        Ok(Self {
            stack: self.stack,
            parts: parts.collect::<Result<_>>()?,
        })
    }

    pub fn stack(&self) -> Stack {
        self.stack
    }

    /// The networks' weights, with the prefix their keys have in [`Self::keys`].
    pub fn stores(&self) -> impl Iterator<Item = (ClipKind, String, &Arc<Store>)> {
        self.parts
            .iter()
            .map(|part| (part.kind, prefix(part.kind), &part.store))
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
        self.parts.iter().map(|part| part.store.bytes()).sum()
    }

    pub fn tokenize(&self, text: &str, embeddings: &dyn EmbeddingSource) -> Result<PromptTokens> {
        let each = self.parts.iter().map(|part| {
            let tokens = part.tokenizer.tokenize(text, embeddings)?;
            Ok((part.kind, tokens))
        });
        each.collect::<Result<_>>().map(PromptTokens)
    }

    /// `layer` is that of CLIPSetLastLayer: -1 for the last layer, -2 for the one before.
    pub fn encode(&self, tokens: &PromptTokens, layer: Option<i64>) -> Result<Encoded> {
        let mut outputs = Vec::new();
        for part in &self.parts {
            let chunks = tokens.get(part.kind).map_or(&[][..], |t| &t.chunks);
            outputs.push(part.encode(chunks, self.layer(part, layer))?);
        }
        let lengths = outputs.iter().map(|o| o.hidden.shape()[1]);
        let shortest = lengths.min().unwrap_or(0);
        let conds: Result<Vec<Tensor>, _> = outputs
            .iter()
            .map(|o| o.hidden.narrow(1, 0, shortest))
            .collect();
        let conds = conds?;
        Ok(Encoded {
            cond: Tensor::cat(&conds.iter().collect::<Vec<_>>(), 2)?,
            // The last network is the one whose pooled token models read.
            pooled: outputs.pop().map(|o| o.projected),
        })
    }

    fn layer(&self, part: &ClipEncoder, chosen: Option<i64>) -> ClipLayer {
        let (default, norm) = self.stack.layer();
        match chosen {
            None => default,
            Some(index) if index.unsigned_abs() as usize > part.config.layers => ClipLayer::Last,
            Some(index) => ClipLayer::Hidden { index, norm },
        }
    }
}

impl Network for ClipEncoder {
    fn stores(&self) -> Vec<Arc<Store>> {
        self.network.stores()
    }

    fn build(&self) -> Result<()> {
        self.network.build()
    }

    fn is_built(&self) -> bool {
        self.network.is_built()
    }

    fn forget(&self) {
        self.network.forget();
    }
}

impl Network for TextEncoder {
    fn stores(&self) -> Vec<Arc<Store>> {
        self.parts.iter().flat_map(Network::stores).collect()
    }

    fn build(&self) -> Result<()> {
        self.parts.iter().try_for_each(Network::build)
    }

    fn is_built(&self) -> bool {
        self.parts.iter().all(Network::is_built)
    }

    fn forget(&self) {
        self.parts.iter().for_each(Network::forget);
    }
}

impl std::fmt::Debug for TextEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextEncoder")
            .field("stack", &self.stack)
            .field(
                "parts",
                &self.parts.iter().map(|p| &p.config).collect::<Vec<_>>(),
            )
            .finish()
    }
}

/// The reference keeps text encoders of this kind in f16, whatever the file has, and pictures depend on it.
fn halved(file: &Arc<dyn WeightFile>) -> Arc<dyn WeightFile> {
    Arc::new(Recast::new(Arc::clone(file), Dtype::F16))
}

fn prefix(kind: ClipKind) -> String {
    format!("{}.transformer.", kind.name())
}
