//! A network with its tokenizer, and how prompts of several chunks and weights come together.

use std::sync::Arc;

use fresco_tensor::Tensor;

use super::network::{ClipConfig, ClipLayer, ClipOutput, ClipText, Sequence};
use super::{ClipKind, ClipTokenizer, Words, bpe};
use crate::error::{ModelError, Result};
use crate::network::{Lazy, Network};
use crate::store::WeightStore;
use crate::text::vocabulary::Vocabulary;
use crate::text::{
    EncodeRule, LayerRule, States, TextKind, TextNetwork, TextOutput, Token, Tokens, Weighted,
};

/// Sequences that run at once; more would only take memory.
const BATCH: usize = 8;

/// One network with its tokenizer.
pub struct ClipEncoder {
    kind: ClipKind,
    store: Arc<WeightStore>,
    config: ClipConfig,
    tokenizer: ClipTokenizer,
    /// Built when the first prompt comes.
    network: Lazy<ClipText>,
}

impl ClipEncoder {
    /// Weights under internal names; `config` is usually [`ClipConfig::detect`]ed.
    pub fn new(kind: ClipKind, store: Arc<WeightStore>, config: ClipConfig) -> Result<Self> {
        let (weights, sizes) = (Arc::clone(&store), config.clone());
        let build = move || ClipText::new(&weights, &sizes);
        Ok(Self {
            kind,
            tokenizer: ClipTokenizer::with_length(kind, config.positions)?,
            config,
            network: Lazy::new(vec![Arc::clone(&store)], Box::new(build)),
            store,
        })
    }

    pub(super) fn open(kind: ClipKind, store: Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>> {
        let config = ClipConfig::detect(&store, kind)?;
        Ok(Arc::new(Self::new(kind, store, config)?))
    }

    pub fn tokenizer(&self) -> &ClipTokenizer {
        &self.tokenizer
    }

    /// Chunks one after the other `(1, n, c)`, and the pooled token of the first `(1, c)`.
    pub fn encode(&self, chunks: &[Vec<Weighted>], layer: ClipLayer) -> Result<ClipOutput> {
        self.encode_with(chunks, layer, false)
    }

    /// The same; `masked` for models whose tokens do not look at padding, which is then made of further ends.
    fn encode_with(
        &self,
        chunks: &[Vec<Weighted>],
        layer: ClipLayer,
        masked: bool,
    ) -> Result<ClipOutput> {
        let network = &*self.network.get()?;
        let pad = if masked { bpe::END } else { self.kind.pad() };
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
        let (mut hidden, first) = self.run(network, &sequences, layer, masked)?;
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
        masked: bool,
    ) -> Result<(Vec<Tensor>, ClipOutput)> {
        let mut hidden = Vec::with_capacity(sequences.len());
        let mut first = None;
        for batch in sequences.chunks(BATCH) {
            let output = network.forward(batch, layer, masked)?;
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

    fn layer(&self, rule: LayerRule, chosen: Option<i64>) -> ClipLayer {
        let chosen = rule.choose(chosen, self.config.layers);
        let norm = rule.norm;
        chosen.map_or(ClipLayer::Last, |index| ClipLayer::Hidden { index, norm })
    }
}

impl TextNetwork for ClipEncoder {
    fn kind(&self) -> &'static TextKind {
        self.kind.row()
    }

    fn store(&self) -> &Arc<WeightStore> {
        &self.store
    }

    fn over(&self, store: Arc<WeightStore>) -> Result<Arc<dyn TextNetwork>> {
        Self::open(self.kind, store)
    }

    fn vocabulary(&self) -> Result<Arc<dyn Vocabulary>> {
        Ok(Arc::new(Words))
    }

    fn width(&self) -> usize {
        self.kind.width()
    }

    fn positions(&self) -> Option<usize> {
        Some(self.config.positions)
    }

    fn encode(
        &self,
        tokens: &Tokens,
        rule: &EncodeRule,
        chosen: Option<i64>,
    ) -> Result<TextOutput> {
        let States::One(layer) = rule.states else {
            let reason = "only one layer of a CLIP text encoder can be taken";
            return Err(ModelError::invalid("text encoder", reason));
        };
        let layer = self.layer(layer, chosen);
        let output = self.encode_with(&tokens.chunks, layer, rule.masked)?;
        Ok(TextOutput {
            hidden: output.hidden,
            pooled: Some(if rule.projected {
                output.projected
            } else {
                output.pooled
            }),
            mask: None,
            pictures: Vec::new(),
        })
    }
}

impl Network for ClipEncoder {
    fn stores(&self) -> Vec<Arc<WeightStore>> {
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
