//! Attention: from tokens to what each of them sees of the others (Vaswani et al. 2017), with grouped keys (Ainslie et al.
//! 2023), norms of heads and turned positions as data.

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{After, Linear, add_gated, sigmoid};

use super::norm::{HeadNorm, HeadNormLayer, TokenRows};
use super::place::AttentionSite;
use crate::epilogue::plus;
use crate::error::{ModelError, Result};
use crate::store::{Bias, Walk};

mod qkv;

use qkv::Products;
pub use qkv::{Qkv, Rotation};

/// Heads of an attention.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    pub count: usize,
    /// Heads of keys and values: as many queries look at each as make up `count`.
    pub kv: usize,
    /// Channels of a head.
    pub width: usize,
    pub norm: HeadNorm<'a>,
}

impl<'a> Heads<'a> {
    /// As many of keys and values as of queries.
    pub fn new(count: usize, width: usize, norm: HeadNorm<'a>) -> Self {
        Self::grouped(count, count, width, norm)
    }

    pub fn grouped(count: usize, kv: usize, width: usize, norm: HeadNorm<'a>) -> Self {
        Self {
            count,
            kv,
            width,
            norm,
        }
    }
}

/// The layers that make queries, keys and values, by name.
#[derive(Clone, Copy, Debug)]
pub enum QkvLayers<'a> {
    /// One matrix for all three.
    Joined(&'a str),
    /// Queries, keys, values.
    Apart([&'a str; 3]),
    /// Queries, and one matrix for keys and values.
    Paired([&'a str; 2]),
}

/// What opens and closes the way out, by the name of its layer.
#[derive(Clone, Copy, Debug)]
pub enum GateLayer<'a> {
    None,
    /// Each channel, by its sigmoid.
    Channels(&'a str),
    /// Each head, by twice its sigmoid.
    Heads(&'a str),
}

/// Which layers have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    None,
    /// The way out alone.
    Out,
    /// All but the layer of keys.
    NoKeys,
    All,
}

impl From<Bias> for AttentionBias {
    /// In every layer or in none.
    fn from(bias: Bias) -> Self {
        match bias {
            Bias::With => Self::All,
            Bias::Without => Self::None,
        }
    }
}

/// What tokens look at: each other, or others of a width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    Own,
    Prompt(usize),
    /// What no hook asks for: sound, a face, another film.
    Beside(usize),
}

/// The layers of an attention as its family calls them.
#[derive(Clone, Copy, Debug)]
pub struct AttentionLayers<'a> {
    pub qkv: QkvLayers<'a>,
    /// The way out; none where nothing needs the result.
    pub out: Option<&'a str>,
    pub gate: GateLayer<'a>,
    pub bias: AttentionBias,
    /// Width of the tokens that look.
    pub input: usize,
    pub looks: Looks,
    pub heads: Heads<'a>,
}

impl<'a> AttentionLayers<'a> {
    /// Of tokens that look at each other, with a bias in every layer.
    pub fn new(qkv: QkvLayers<'a>, out: &'a str, width: usize, heads: Heads<'a>) -> Self {
        Self {
            qkv,
            out: Some(out),
            gate: GateLayer::None,
            bias: AttentionBias::All,
            input: width,
            looks: Looks::Own,
            heads,
        }
    }

    /// The same without any bias.
    pub fn unbiased(qkv: QkvLayers<'a>, out: &'a str, width: usize, heads: Heads<'a>) -> Self {
        Self {
            bias: AttentionBias::None,
            ..Self::new(qkv, out, width, heads)
        }
    }
}

enum QkvWeights {
    Joined(Arc<Linear>),
    Apart([Arc<Linear>; 3]),
    Paired(Arc<Linear>, Arc<Linear>),
}

enum Gate {
    None,
    Channels(Arc<Linear>),
    Heads(Arc<Linear>),
}

/// One attention of a block.
pub struct Attention {
    qkv: QkvWeights,
    looks: Looks,
    norms: [HeadNormLayer; 2],
    gate: Gate,
    out: Option<Arc<Linear>>,
    heads: usize,
    kv_heads: usize,
    head: usize,
}

impl Attention {
    pub fn new(weights: &Walk<'_>, layers: &AttentionLayers<'_>) -> Result<Self> {
        let AttentionLayers {
            bias,
            input,
            looks,
            heads,
            ..
        } = *layers;
        let source = match looks {
            Looks::Own => input,
            Looks::Prompt(width) | Looks::Beside(width) => width,
        };
        let Heads {
            count,
            kv,
            width,
            norm,
        } = heads;
        let (own, shared) = (count * width, kv * width);
        let most = Bias::of(matches!(bias, AttentionBias::All | AttentionBias::NoKeys));
        let of_keys = Bias::of(bias == AttentionBias::All);
        let of_out = Bias::of(bias != AttentionBias::None);
        let linear =
            |name: &str, out: usize, input: usize| weights.linear_with(name, out, input, most);
        let out = layers.out;
        let out = out.map(|name| weights.linear_with(name, input, own, of_out));
        Ok(Self {
            qkv: match layers.qkv {
                QkvLayers::Joined(name) => {
                    QkvWeights::Joined(linear(name, own + 2 * shared, input)?)
                }
                QkvLayers::Apart([q, k, v]) => QkvWeights::Apart([
                    linear(q, own, input)?,
                    weights.linear_with(k, shared, source, of_keys)?,
                    linear(v, shared, source)?,
                ]),
                QkvLayers::Paired([q, kv]) => {
                    QkvWeights::Paired(linear(q, own, input)?, linear(kv, 2 * shared, source)?)
                }
            },
            looks,
            norms: HeadNormLayer::pair(weights, norm, [count, kv], width)?,
            gate: match layers.gate {
                GateLayer::None => Gate::None,
                GateLayer::Channels(name) => Gate::Channels(linear(name, own, input)?),
                GateLayer::Heads(name) => Gate::Heads(linear(name, count, input)?),
            },
            out: out.transpose()?,
            heads: count,
            kv_heads: kv,
            head: width,
        })
    }

    /// One whose layers stand elsewhere: `layer` makes queries, keys and values in its first columns.
    pub(super) fn of_layer(
        weights: &Walk<'_>,
        layer: Arc<Linear>,
        heads: Heads<'_>,
    ) -> Result<Self> {
        let Heads {
            count,
            kv,
            width,
            norm,
        } = heads;
        Ok(Self {
            qkv: QkvWeights::Joined(layer),
            looks: Looks::Own,
            norms: HeadNormLayer::pair(weights, norm, [count, kv], width)?,
            gate: Gate::None,
            out: None,
            heads: count,
            kv_heads: kv,
            head: width,
        })
    }

    /// Queries, keys and values are the first columns of (b, n, ..).
    pub(super) fn of_product(&self, all: Tensor) -> Qkv<'_> {
        self.products(Products::Joined(all), None)
    }

    /// Queries, keys and values of tokens that look at each other.
    pub fn qkv<'a>(&self, rows: impl Into<TokenRows<'a>>) -> Result<Qkv<'_>> {
        let rows = rows.into();
        if let Some([q, k, v]) = self.hook_rows(rows)? {
            return self.project([&q, &k, &v]);
        }
        if let (QkvWeights::Joined(layer), TokenRows::Modulated(modulated), Gate::None) =
            (&self.qkv, rows, &self.gate)
        {
            let all = layer.forward_modulated(modulated, After::default())?;
            return Ok(self.products(Products::Joined(all), None));
        }
        let x = &rows.to_tensor()?;
        self.project([x, x, x])
    }

    /// The same of tokens that look at others: the inputs of queries, of keys and of values.
    pub fn qkv_of(&self, inputs: [&Tensor; 3]) -> Result<Qkv<'_>> {
        match AttentionSite::on(self.looks).filter(AttentionSite::changes_input) {
            Some(site) => {
                let [q, k, v] = site.change_input(inputs.map(Tensor::clone))?;
                self.project([&q, &k, &v])
            }
            None => self.project(inputs),
        }
    }

    /// What hooks make of the tokens that look at each other, where there are any.
    pub(super) fn hook_rows(&self, rows: TokenRows<'_>) -> Result<Option<[Tensor; 3]>> {
        let Some(site) = AttentionSite::on(self.looks) else {
            return Ok(None);
        };
        if site.wants_input() {
            site.show(&rows.to_tensor()?)?;
        }
        if !site.changes_input() {
            return Ok(None);
        }
        let x = rows.to_tensor()?;
        Ok(Some(site.change_input([x.clone(), x.clone(), x])?))
    }

    /// The inputs of queries, of keys and of values through the layers.
    pub(super) fn project(&self, [x, keys, values]: [&Tensor; 3]) -> Result<Qkv<'_>> {
        let one = |a: &Tensor, b: &Tensor| {
            a.storage_address() == b.storage_address() && a.shape() == b.shape()
        };
        let (pair, all) = (one(keys, values), one(keys, values) && one(x, keys));
        let products = match &self.qkv {
            QkvWeights::Joined(layer) if all => Products::Joined(layer.forward(x)?),
            QkvWeights::Joined(layer) => {
                let part = |x: &Tensor, number| self.columns(&layer.forward(x)?, number);
                Products::Apart([part(x, 0)?, part(keys, 1)?, part(values, 2)?])
            }
            QkvWeights::Apart([q, k, v]) if all => {
                Products::Apart(Linear::forward_each([q, k, v], x)?)
            }
            QkvWeights::Apart([q, k, v]) => {
                Products::Apart([q.forward(x)?, k.forward(keys)?, v.forward(values)?])
            }
            QkvWeights::Paired(q, kv) => {
                let [k, mut v] = super::chunks(&kv.forward(keys)?)?;
                if !pair {
                    [_, v] = super::chunks(&kv.forward(values)?)?;
                }
                Products::Apart([q.forward(x)?, k, v])
            }
        };
        Ok(self.products(products, self.gate_of(x)?))
    }

    /// The queries, keys and values of tokens `x` that look at `source`.
    pub fn qkv_to(&self, x: &Tensor, source: &Tensor) -> Result<Qkv<'_>> {
        self.qkv_of([x, source, source])
    }

    fn products(&self, products: Products, gate: Option<Tensor>) -> Qkv<'_> {
        Qkv {
            of: self,
            products,
            gate,
        }
    }

    fn gate_of(&self, x: &Tensor) -> Result<Option<Tensor>> {
        Ok(match &self.gate {
            Gate::None => None,
            Gate::Channels(layer) => Some(sigmoid(&layer.forward(x)?)),
            Gate::Heads(layer) => Some(sigmoid(&layer.forward(x)?).mul_scalar(2.0)),
        })
    }

    fn way_out(&self) -> Result<&Linear> {
        let missing = || ModelError::invalid("attention", "its result is not used");
        self.out.as_deref().ok_or_else(missing)
    }

    /// Whether anything needs the result.
    pub fn ends(&self) -> bool {
        self.out.is_none()
    }

    /// What the last layer makes of what was seen.
    pub fn out(&self, seen: &Tensor) -> Result<Tensor> {
        let out = self.way_out()?.forward(seen)?;
        match self.result_site() {
            Some(site) => site.change_output(out),
            None => Ok(out),
        }
    }

    /// `x` plus it.
    pub fn add(&self, seen: &Tensor, x: &Tensor) -> Result<Tensor> {
        match self.result_site() {
            Some(site) => site.change_after(x.add(&self.out(seen)?)?),
            None => Ok(self.way_out()?.forward_with(seen, plus(x))?),
        }
    }

    /// `x` plus it times a gate.
    pub fn add_gated(&self, seen: &Tensor, x: Tensor, gate: &Tensor) -> Result<Tensor> {
        match self.result_site() {
            Some(site) => site.change_after(add_gated(x, gate, &self.out(seen)?)?),
            None => Ok(self.way_out()?.forward_gated(seen, x, gate)?),
        }
    }

    /// What changes the result of the attention or what goes on after it.
    fn result_site(&self) -> Option<AttentionSite> {
        AttentionSite::on(self.looks).filter(AttentionSite::changes_result)
    }
}
