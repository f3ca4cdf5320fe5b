//! The CLIP text network (Radford et al. 2021, section 2.4): a causal transformer over tokens with learned positions.

use std::sync::Arc;

use fresco_tensor::nn::{Act, After, Embedding, LayerNorm, Linear, Mask, attention};
use fresco_tensor::{Device, Tensor};

use super::bpe;
use super::tokenizer::MIN_LENGTH;
use super::{ClipKind, Token};
use crate::error::{ModelError, Result};
use crate::store::Store;

const EPS: f32 = 1e-5;
/// More layers than any encoder of this kind has; a file that says otherwise is not one.
const MAX_LAYERS: usize = 256;

/// Sizes, read from the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipConfig {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub positions: usize,
    pub act: Act,
}

impl ClipConfig {
    pub fn detect(store: &Store, kind: ClipKind) -> Result<Self> {
        let matrix = |key: &str| match store.shape(key) {
            Some(&[rows, columns]) => Ok((rows, columns)),
            Some(found) => Err(shape_error(store, key, "a matrix".to_owned(), found)),
            None => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        let (vocabulary, hidden) = matrix("text_model.embeddings.token_embedding.weight")?;
        let (positions, _) = matrix("text_model.embeddings.position_embedding.weight")?;
        let layers = (0..MAX_LAYERS)
            .take_while(|i| store.has(&format!("text_model.encoder.layers.{i}.mlp.fc1.weight")))
            .count();
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
                layers,
                heads,
                positions,
                act: kind.act(),
            });
        };
        Err(ModelError::unsupported(store.file(), wrong))
    }
}

struct Block {
    layer_norm1: Arc<LayerNorm>,
    q_proj: Arc<Linear>,
    k_proj: Arc<Linear>,
    v_proj: Arc<Linear>,
    out_proj: Arc<Linear>,
    layer_norm2: Arc<LayerNorm>,
    fc1: Arc<Linear>,
    fc2: Arc<Linear>,
}

impl Block {
    fn new(store: &Store, index: usize, config: &ClipConfig) -> Result<Self> {
        let key = |name: &str| format!("text_model.encoder.layers.{index}.{name}");
        let hidden = config.hidden;
        let fc1 = store.linear(&key("mlp.fc1"))?;
        let inner = fc1.out_features();
        let linear = |name: &str, from, to| linear(store, &key(name), from, to);
        Ok(Self {
            layer_norm1: norm(store, &key("layer_norm1"), hidden)?,
            q_proj: linear("self_attn.q_proj", hidden, hidden)?,
            k_proj: linear("self_attn.k_proj", hidden, hidden)?,
            v_proj: linear("self_attn.v_proj", hidden, hidden)?,
            out_proj: linear("self_attn.out_proj", hidden, hidden)?,
            layer_norm2: norm(store, &key("layer_norm2"), hidden)?,
            fc1: linear("mlp.fc1", hidden, inner)?,
            fc2: linear("mlp.fc2", inner, hidden)?,
        })
    }

    /// `(b, n, c)` to the same.
    fn forward(&self, x: &Tensor, config: &ClipConfig) -> Result<Tensor> {
        let h = self.layer_norm1.forward(x)?;
        let (q, k) = (self.q_proj.forward(&h)?, self.k_proj.forward(&h)?);
        let v = self.v_proj.forward(&h)?;
        let h = attention(&q, &k, &v, config.heads, Mask::Causal, None)?;
        let x = self.out_proj.forward_with(&h, added(x))?;
        let h = self.layer_norm2.forward(&x)?;
        let act = After {
            act: config.act,
            ..After::default()
        };
        let h = self.fc1.forward_with(&h, act)?;
        Ok(self.fc2.forward_with(&h, added(&x))?)
    }
}

/// A layer norm of `width` values.
fn norm(store: &Store, key: &str, width: usize) -> Result<Arc<LayerNorm>> {
    for part in ["weight", "bias"] {
        let key = format!("{key}.{part}");
        match store.shape(&key) {
            Some(found) if found != [width] => {
                return Err(shape_error(store, &key, format!("({width})"), found));
            }
            _ => {}
        }
    }
    store.layer_norm(key, EPS)
}

/// A linear layer from `from` to `to` values.
fn linear(store: &Store, key: &str, from: usize, to: usize) -> Result<Arc<Linear>> {
    let layer = store.linear(key)?;
    let found = [layer.out_features(), layer.in_features()];
    if found == [to, from] {
        Ok(layer)
    } else {
        let key = format!("{key}.weight");
        Err(shape_error(store, &key, format!("({to}, {from})"), &found))
    }
}

fn shape_error(store: &Store, key: &str, expected: String, found: &[usize]) -> ModelError {
    ModelError::Shape {
        file: store.file().to_owned(),
        key: key.to_owned(),
        expected,
        found: found.to_vec(),
    }
}

fn added(x: &Tensor) -> After<'_> {
    After {
        add: Some(x),
        ..After::default()
    }
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

/// See the [module](self).
pub struct ClipText {
    config: ClipConfig,
    device: Device,
    token_embedding: Arc<Embedding>,
    position_embedding: Arc<Embedding>,
    layers: Vec<Block>,
    final_layer_norm: Arc<LayerNorm>,
    text_projection: Option<Arc<Linear>>,
}

impl ClipText {
    pub fn new(store: &Store, config: ClipConfig) -> Result<Self> {
        let key = "text_model.embeddings.position_embedding";
        let position_embedding = store.embedding(key)?;
        let found = [position_embedding.entries(), position_embedding.width()];
        if found != [config.positions, config.hidden] {
            let expected = format!("({}, {})", config.positions, config.hidden);
            return Err(shape_error(
                store,
                &format!("{key}.weight"),
                expected,
                &found,
            ));
        }
        let layers = (0..config.layers).map(|i| Block::new(store, i, &config));
        let projected = store.has("text_projection.weight");
        Ok(Self {
            token_embedding: store.embedding("text_model.embeddings.token_embedding")?,
            position_embedding,
            layers: layers.collect::<Result<_>>()?,
            final_layer_norm: norm(store, "text_model.final_layer_norm", config.hidden)?,
            text_projection: projected
                .then(|| linear(store, "text_projection", config.hidden, config.hidden))
                .transpose()?,
            device: store.device().clone(),
            config,
        })
    }

    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// Looks tokens up. Vectors of another width are left out, and `pad` fills up at the end.
    pub(super) fn embed(&self, tokens: &[Token], pad: u32) -> Result<Sequence> {
        let width = self.config.hidden;
        let fits = |token: &&Token| match token {
            Token::Id(_) => true,
            Token::Vector(v) => v.len() == width,
        };
        let kept: Vec<&Token> = tokens.iter().filter(fits).collect();
        let ids: Vec<u32> = kept
            .iter()
            .map(|token| match token {
                Token::Id(id) => *id,
                Token::Vector(_) => pad, // replaced below
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

    /// Runs sequences of one length as a batch. The results are in main memory.
    pub(super) fn forward(&self, batch: &[Sequence], layer: ClipLayer) -> Result<ClipOutput> {
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
        let mut hidden = None;
        for (i, block) in self.layers.iter().enumerate() {
            x = block.forward(&x, &self.config)?;
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
