//! The CLIP text network (Radford et al. 2021, section 2.4): a causal transformer over tokens with learned positions.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, LayerNorm, Linear, Mask};
use fresco_tensor::{Device, Tensor};

use super::ClipKind;
use super::bpe;
use super::tokenizer::MIN_LENGTH;
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::text::Token;
use crate::transformer::{
    AttentionLayers, EncoderBlock, EncoderLayers, HeadNorm, Heads, MlpLayers, NormPlace, QkvLayers,
    Rotation,
};

const EPS: f32 = 1e-5;
/// More layers than any encoder of this kind has; a file that says otherwise is not one.
const MAX_LAYERS: usize = 256;

/// Sizes, read from the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipConfig {
    pub hidden: usize,
    /// Width of the layer between.
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Rows of the table of tokens.
    pub vocabulary: usize,
    pub positions: usize,
    /// Whether the end token goes through a matrix of its own.
    pub projected: bool,
    pub act: Act,
}

impl ClipConfig {
    pub fn detect(store: &WeightStore, kind: ClipKind) -> Result<Self> {
        let matrix = |key: &str| match store.shape(key) {
            Some(&[rows, columns]) => Ok((rows, columns)),
            Some(found) => Err(ModelError::Shape {
                file: store.file().to_owned(),
                key: key.to_owned(),
                expected: "a matrix".to_owned(),
                found: found.to_vec(),
            }),
            None => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        let (vocabulary, hidden) = matrix("text_model.embeddings.token_embedding.weight")?;
        let (positions, _) = matrix("text_model.embeddings.position_embedding.weight")?;
        let fc1 = |i: usize| format!("text_model.encoder.layers.{i}.mlp.fc1.weight");
        let layers = (0..MAX_LAYERS).take_while(|i| store.has(&fc1(*i))).count();
        let inner = store.shape(&fc1(0)).and_then(|shape| shape.first());
        let heads = (hidden / 64).max(1);
        let wrong = if vocabulary < bpe::VOCABULARY {
            format!(
                "a CLIP text encoder knows {} tokens, this one {vocabulary}",
                bpe::VOCABULARY
            )
        } else if layers == 0 {
            "its text encoder has no layers".to_owned()
        } else if positions < MIN_LENGTH {
            format!("{positions} positions leave no room for a prompt")
        } else if hidden == 0 || !hidden.is_multiple_of(heads) {
            format!("{hidden} numbers for a token do not divide into heads of 64")
        } else {
            return Ok(Self {
                hidden,
                inner: inner.copied().unwrap_or(0),
                layers,
                heads,
                vocabulary,
                positions,
                projected: store.has("text_projection.weight"),
                act: kind.act(),
            });
        };
        Err(ModelError::unsupported(store.file(), wrong))
    }
}

fn block(weights: &Walk<'_>, config: &ClipConfig) -> Result<EncoderBlock> {
    let hidden = config.hidden;
    let heads = Heads::new(config.heads, hidden / config.heads, HeadNorm::None);
    let qkv = QkvLayers::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]);
    let layers = EncoderLayers {
        attention: AttentionLayers::new(qkv, "self_attn.out_proj", hidden, heads),
        mlp: MlpLayers::Plain(["mlp.fc1", "mlp.fc2"], config.act),
        inner: config.inner,
        norms: ["layer_norm1", "layer_norm2"],
        place: NormPlace::Before,
        eps: EPS,
        scales: None,
    };
    EncoderBlock::new(weights, &layers)
}

/// What one run gives.
#[derive(Debug, Clone)]
pub struct ClipOutput {
    /// `(b, n, c)`: the last layer after the final norm, or the layer that was asked for.
    pub hidden: Tensor,
    /// `(b, c)`: the end token after the final norm.
    pub pooled: Tensor,
    /// The same through the projection; equal to it in encoders without one.
    pub projected: Tensor,
}

/// Which layer's output to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipLayer {
    /// The last, after the final norm.
    Last,
    /// This one, counted from 0, or from the end when negative; with or without the final norm.
    Hidden { index: i64, norm: bool },
}

/// A sequence ready for the network.
pub(super) struct Sequence {
    /// `(n, c)`.
    embedded: Tensor,
    /// Where the end token is.
    end: usize,
}

/// What is added to scores so that tokens look neither ahead nor at what comes after the end: (b, 1, n, n).
fn hiding(batch: &[Sequence], n: usize) -> Result<Tensor> {
    let mask = Tensor::from_fn([batch.len(), 1, n, n], |at| {
        let (item, query, key) = (at / (n * n), at / n % n, at % n);
        let seen = key <= query && key <= batch[item].end;
        if seen { 0.0 } else { -f32::MAX }
    });
    Ok(mask?)
}

/// See the [module](self).
pub(super) struct ClipText {
    config: ClipConfig,
    device: Device,
    token_embedding: Arc<Embedding>,
    position_embedding: Arc<Embedding>,
    layers: Vec<EncoderBlock>,
    final_layer_norm: Arc<LayerNorm>,
    text_projection: Option<Arc<Linear>>,
}

impl ClipText {
    pub(super) fn new(store: &WeightStore, config: &ClipConfig) -> Result<Self> {
        store.build("the text encoder", |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &ClipConfig) -> Result<Self> {
        let hidden = config.hidden;
        let model = weights.at("text_model");
        let tables = model.at("embeddings");
        let layers = model.at("encoder.layers");
        Ok(Self {
            token_embedding: tables.embedding("token_embedding", config.vocabulary, hidden)?,
            position_embedding: tables.embedding("position_embedding", config.positions, hidden)?,
            layers: layers.each(config.layers, |weights| block(weights, config))?,
            final_layer_norm: model.layer_norm("final_layer_norm", hidden, EPS)?,
            text_projection: config
                .projected
                .then(|| weights.matrix("text_projection", hidden, hidden))
                .transpose()?,
            device: weights.device().clone(),
            config: config.clone(),
        })
    }

    /// Looks tokens up. Vectors of another width are left out, and `pad` fills up at the end.
    pub(super) fn embed(&self, tokens: &[Token], pad: u32) -> Result<Sequence> {
        let width = self.config.hidden;
        let fits = |token: &&Token| match token {
            Token::Id(_) => true,
            Token::Vector(v) => v.len() == width,
            Token::Picture(_) | Token::Sound(_) => false,
        };
        let kept: Vec<&Token> = tokens.iter().filter(fits).collect();
        let ids: Vec<u32> = kept
            .iter()
            .map(|token| match token {
                Token::Id(id) => *id,
                Token::Vector(_) | Token::Picture(_) | Token::Sound(_) => pad, // replaced below
            })
            .chain(std::iter::repeat_n(pad, tokens.len() - kept.len()))
            .collect();
        let mut embedded = self.token_embedding.lookup_on(&ids, &self.device)?; // (n, c)
        for (row, token) in kept.iter().enumerate() {
            if let Token::Vector(v) = token {
                let vector = Tensor::from_vec([1, width], v.to_vec())?.to(&self.device)?;
                embedded.paste(&[row, 0], &vector)?;
            }
        }
        // Vectors count wherever they stand, ids up to the first end.
        let end = kept.iter().position(|t| matches!(t, Token::Id(bpe::END)));
        let counted = kept.iter().enumerate().filter(|(at, token)| {
            matches!(token, Token::Vector(_)) || end.is_none_or(|end| *at <= end)
        });
        let counted = counted.count();
        Ok(Sequence {
            embedded,
            // Counting from the end when nothing counts, as the reference does.
            end: counted
                .checked_sub(1)
                .unwrap_or(ids.len().saturating_sub(1)),
        })
    }

    /// Runs sequences of one length as a batch. The results are in main memory. `masked`: nobody looks at what comes after
    /// the end.
    pub(super) fn forward(
        &self,
        batch: &[Sequence],
        layer: ClipLayer,
        masked: bool,
    ) -> Result<ClipOutput> {
        let rows: Vec<&Tensor> = batch.iter().map(|s| &s.embedded).collect();
        let x = Tensor::stack(&rows, 0)?; // (b, n, c)
        let [_, n, _] = x.dims3()?;
        if n > self.config.positions {
            let reason = format!("{n} tokens are more than its {}", self.config.positions);
            return Err(ModelError::invalid("text encoder", reason));
        }
        let places: Vec<u32> = (0..n as u32).collect();
        let positions = self.position_embedding.lookup_on(&places, &self.device)?;
        let mut x = x.add(&positions)?;
        drop(positions);
        let chosen = match layer {
            ClipLayer::Last => None,
            ClipLayer::Hidden { index, .. } => self.layer_index(index),
        };
        let hiding = masked.then(|| hiding(batch, n)).transpose()?;
        let hiding = hiding.map(|mask| mask.to(&self.device)).transpose()?;
        let mask = hiding.as_ref().map_or(Mask::Causal, Mask::Add);
        let mut hidden = None;
        for (i, block) in self.layers.iter().enumerate() {
            x = block.forward(&x, Rotation::NONE, mask)?;
            if chosen == Some(i) {
                hidden = Some(x.clone());
            }
        }
        let home = |t: Tensor| t.to(&Device::cpu());
        let last = home(self.final_layer_norm.forward(&x)?)?;
        let ends: Result<Vec<Tensor>, _> = batch
            .iter()
            .enumerate()
            .map(|(i, s)| last.select(0, i)?.select(0, s.end))
            .collect();
        let ends = ends?;
        let pooled = Tensor::stack(&ends.iter().collect::<Vec<_>>(), 0)?; // (b, c)
        let projected = match &self.text_projection {
            Some(projection) => home(projection.forward(&pooled.to(&self.device)?)?)?,
            None => pooled.clone(),
        };
        let hidden = match (hidden, layer) {
            (Some(hidden), ClipLayer::Hidden { norm: true, .. }) => {
                home(self.final_layer_norm.forward(&hidden)?)?
            }
            (Some(hidden), _) => home(hidden)?,
            (None, _) => last,
        };
        Ok(ClipOutput {
            hidden,
            pooled,
            projected,
        })
    }

    /// The layer a number means; none when there are not so many.
    fn layer_index(&self, index: i64) -> Option<usize> {
        let count = self.layers.len() as i64;
        let at = if index < 0 { count + index } else { index };
        usize::try_from(at)
            .ok()
            .filter(|at| *at < self.layers.len())
    }
}
