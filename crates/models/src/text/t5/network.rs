//! The network: no positions but a bias by distance, norms without a mean, no scale in the attention.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Embedding, Linear, Mask, RmsNorm, attention};
use fresco_tensor::{Device, Tensor};

use crate::epilogue::{plus, then};
use crate::error::{ModelError, Result};
use crate::store::{Walk, WeightStore};
use crate::text::sequence::{KeptStates, RowNetwork, Rows, State};

const EPS: f32 = 1e-6;
/// More layers than any of these has.
const MAX_LAYERS: usize = 256;
/// Distances from here on share a row of the table.
const FAR: f64 = 128.0;

/// Sizes, read from the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct T5Config {
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    /// Channels of a head.
    pub head: usize,
    pub vocabulary: usize,
    /// Rows of the table of distances.
    pub buckets: usize,
    /// Whether every layer has a table of its own.
    pub own_bias: bool,
    /// Whether the layer between has a gate (1.1 and later).
    pub gated: bool,
}

pub(super) fn bias_key(layer: usize) -> String {
    format!("encoder.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight")
}

/// Whether every layer has a table of distances.
pub(super) fn has_own_bias(store: &WeightStore) -> bool {
    store.has(&bias_key(1))
}

impl T5Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let wrong = |reason: String| Err(ModelError::unsupported(store.file(), reason));
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
        let (vocabulary, hidden) = matrix("shared.weight")?;
        let (buckets, heads) = matrix(&bias_key(0))?;
        let query = |i: usize| format!("encoder.block.{i}.layer.0.SelfAttention.q.weight");
        let layers = (0..MAX_LAYERS).take_while(|i| store.has(&query(*i)));
        let layers = layers.count();
        let (width, _) = matrix(&query(0))?;
        let gated = store.has("encoder.block.0.layer.1.DenseReluDense.wi_0.weight");
        let inner = if gated { "wi_0" } else { "wi" };
        let (inner, _) = matrix(&format!(
            "encoder.block.0.layer.1.DenseReluDense.{inner}.weight"
        ))?;
        if heads == 0 || !width.is_multiple_of(heads) || width == 0 {
            return wrong(format!("{width} channels do not make {heads} heads"));
        }
        if buckets < 4 {
            return wrong(format!("its table of distances has {buckets} rows"));
        }
        Ok(Self {
            hidden,
            inner,
            layers,
            heads,
            head: width / heads,
            vocabulary,
            buckets,
            own_bias: has_own_bias(store),
            gated,
        })
    }

    /// The row of the table for a distance from query to key: half of the rows for each direction, small distances by
    /// themselves, larger ones together by their logarithm.
    fn bucket(&self, distance: i64) -> usize {
        let half = self.buckets / 2;
        let exact = half / 2;
        let side = if distance > 0 { half } else { 0 };
        let away = distance.unsigned_abs() as usize;
        let within = if away < exact {
            away
        } else {
            // In f32, as the published one: some distances are exactly between two rows.
            let ratio = (away as f32 / exact as f32).ln() / (FAR / exact as f64).ln() as f32;
            exact + (ratio * (half - exact) as f32) as usize
        };
        side + within.min(half - 1)
    }
}

struct Block {
    norm1: Arc<RmsNorm>,
    q: Arc<Linear>,
    k: Arc<Linear>,
    v: Arc<Linear>,
    o: Arc<Linear>,
    bias: Option<Arc<Embedding>>,
    norm2: Arc<RmsNorm>,
    /// With a gate before the layer between, or without.
    gate: Option<Arc<Linear>>,
    up: Arc<Linear>,
    down: Arc<Linear>,
}

impl Block {
    fn new(weights: &Walk<'_>, config: &T5Config, bias: bool) -> Result<Self> {
        let (hidden, inner) = (config.hidden, config.inner);
        let width = config.heads * config.head;
        let (first, second) = (weights.at("layer.0"), weights.at("layer.1"));
        let attention = first.at("SelfAttention");
        let between = second.at("DenseReluDense");
        let table = || attention.embedding("relative_attention_bias", config.buckets, config.heads);
        Ok(Self {
            norm1: first.rms_norm("layer_norm.weight", hidden, EPS)?,
            q: attention.matrix("q", width, hidden)?,
            k: attention.matrix("k", width, hidden)?,
            v: attention.matrix("v", width, hidden)?,
            o: attention.matrix("o", hidden, width)?,
            bias: bias.then(table).transpose()?,
            norm2: second.rms_norm("layer_norm.weight", hidden, EPS)?,
            gate: config
                .gated
                .then(|| between.matrix("wi_0", inner, hidden))
                .transpose()?,
            up: between.matrix(if config.gated { "wi_1" } else { "wi" }, inner, hidden)?,
            down: between.matrix("wo", hidden, inner)?,
        })
    }

    /// `(b, n, c)` to the same; `bias` is added to the scores.
    fn forward(&self, x: Tensor, heads: usize, bias: &Tensor, on: &Devices) -> Result<Tensor> {
        let h = self.norm1.forward(&x)?.to(&on.products)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        drop(h);
        let h = attention(&q, &k, &v, heads, Mask::Add(bias), Some(1.0))?;
        drop((q, k, v));
        let x = on.added(&self.o, h, x, 1.0)?;
        let h = self.norm2.forward(&x)?.to(&on.products)?;
        let h = match &self.gate {
            Some(gate) => {
                let gates = gate.forward_with(&h, then(Act::GeluTanh))?;
                let up = self.up.forward(&h)?;
                gates.to(&on.sums)?.mul(&up.to(&on.sums)?)?
            }
            None => self.up.forward_with(&h, then(Act::Relu))?.to(&on.sums)?,
        };
        on.added(&self.down, h, x, SHARE)
    }
}

/// What gates let through, and what is made of it, may be 64 times as large as f16 can hold.
const SHARE: f32 = 1.0 / 64.0;

/// Formats in which a GPU computes; they are all the same on other devices.
struct Devices {
    /// What is carried from layer to layer grows too large for f16, and has too many digits for bf16.
    sums: Device,
    /// Matrices multiply in the format of the file.
    products: Device,
}

impl Devices {
    fn of(device: &Device) -> Self {
        Self {
            sums: device.exact(),
            products: device.clone(),
        }
    }

    /// A layer's output, and what went around it. Where products are short, the layer sees such a share of its input.
    fn added(&self, layer: &Linear, h: Tensor, x: Tensor, share: f32) -> Result<Tensor> {
        if self.products.is_exact() {
            return Ok(layer.forward_with(&h, plus(&x))?);
        }
        let seen = h.mul_scalar(share).to(&self.products)?;
        drop(h);
        let out = layer.forward(&seen)?.to(&self.sums)?;
        Ok(x.add(&out.mul_scalar(share.recip()))?)
    }
}

/// The encoder of T5 and its relatives.
pub struct T5 {
    config: T5Config,
    on: Devices,
    shared: Arc<Embedding>,
    blocks: Vec<Block>,
    final_layer_norm: Arc<RmsNorm>,
}

impl T5 {
    pub fn new(store: &WeightStore, config: &T5Config) -> Result<Self> {
        store.build("the T5 text encoder", |weights| Self::walk(weights, config))
    }

    fn walk(weights: &Walk<'_>, config: &T5Config) -> Result<Self> {
        let encoder = weights.at("encoder");
        let blocks = (0..config.layers).map(|i| {
            let bias = i == 0 || config.own_bias;
            Block::new(&encoder.at("block").at(i), config, bias)
        });
        Ok(Self {
            shared: weights.embedding("shared", config.vocabulary, config.hidden)?,
            blocks: blocks.collect::<Result<_>>()?,
            final_layer_norm: encoder.rms_norm("final_layer_norm.weight", config.hidden, EPS)?,
            on: Devices::of(&weights.device()),
            config: config.clone(),
        })
    }

    /// What is added to the scores: by distance, and against padding: (b or 1, heads, n, n) on the device.
    fn bias(&self, table: &Embedding, n: usize, padding: Option<&Tensor>) -> Result<Tensor> {
        // Row n - 1 + d is for distance d.
        let reach = n as i64 - 1;
        let buckets: Vec<usize> = (-reach..=reach).map(|d| self.config.bucket(d)).collect();
        let all: Vec<u32> = (0..self.config.buckets as u32).collect();
        let rows = table.lookup_on(&all, &self.on.products)?;
        let rows = rows.transpose(0, 1)?.index_select(1, &buckets)?;
        let bias = rows.by_distance(n)?.unsqueeze(0)?;
        Ok(match padding {
            Some(padding) => bias.add(padding)?,
            None => bias,
        })
    }

    /// What keeps everybody from looking at padding: (b, 1, 1, n).
    fn padding(&self, masks: &[&[bool]], n: usize) -> Result<Tensor> {
        let hidden = |seen: &bool| if *seen { 0.0 } else { f32::MIN };
        let values = masks.iter().flat_map(|mask| mask.iter().map(hidden));
        let padding = Tensor::from_vec([masks.len(), 1, 1, n], values.collect())?;
        Ok(padding.to(&self.on.products)?)
    }
}

impl RowNetwork for T5 {
    fn device(&self) -> &Device {
        &self.on.sums
    }

    fn layers(&self) -> usize {
        self.blocks.len()
    }

    fn width(&self) -> usize {
        self.config.hidden
    }

    fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(self.shared.lookup_on(ids, &self.on.sums)?)
    }

    fn forward(&self, rows: &Rows<'_>, wanted: &[State]) -> Result<Vec<Tensor>> {
        let mut x = rows.embedded.clone();
        let [_, n, _] = x.dims3()?;
        let padding = match rows.masks.as_deref() {
            Some(masks) => Some(self.padding(masks, n)?),
            None => None,
        };
        let mut bias = None;
        let mut kept = KeptStates::new(wanted);
        let norm = |x: &Tensor| Ok(self.final_layer_norm.forward(x)?);
        kept.offer(0, &x, norm)?;
        for (i, block) in self.blocks.iter().enumerate().take(kept.depth()) {
            if let Some(table) = &block.bias {
                bias = Some(self.bias(table, n, padding.as_ref())?);
            }
            let Some(bias) = &bias else {
                let reason = "the first layer has no table of distances";
                return Err(ModelError::invalid("text encoder", reason));
            };
            x = block.forward(x, self.config.heads, bias, &self.on)?;
            kept.offer(i + 1, &x, norm)?;
        }
        kept.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_share_rows_by_their_logarithm() {
        let config = T5Config {
            hidden: 8,
            inner: 8,
            layers: 1,
            heads: 1,
            head: 8,
            vocabulary: 9,
            buckets: 32,
            own_bias: false,
            gated: true,
        };
        let found: Vec<usize> = [0, -1, 1, -7, -8, 8, -11, -12, -127, -128, -5000, 5000]
            .map(|d| config.bucket(d))
            .into();
        assert_eq!(found, [0, 1, 17, 7, 8, 24, 8, 9, 15, 15, 15, 31]);
    }
}
