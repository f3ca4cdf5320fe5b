//! How the rows of a layer look at those before them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, RmsNorm, attention, sigmoid};

use super::config::{DecoderConfig, LayerSizes};
use crate::error::{ModelError, Result};
use crate::store::Walk;
use crate::text::Remembered;
use crate::transformer::{Rope, repeat_heads};

/// A norm, whose weight may be stored minus one.
pub(super) struct Norm {
    weighted: Arc<RmsNorm>,
    plain: Option<RmsNorm>,
}

impl Norm {
    pub(super) fn new(
        weights: &Walk<'_>,
        name: &str,
        width: usize,
        config: &DecoderConfig,
    ) -> Result<Self> {
        let plain = config.minus_one.then(|| RmsNorm::new(None, config.eps));
        Ok(Self {
            weighted: weights.rms_norm(&format!("{name}.weight"), width, config.eps)?,
            plain: plain.transpose()?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let weighted = self.weighted.forward(x)?;
        match &self.plain {
            Some(plain) => Ok(plain.forward(x)?.add(&weighted)?),
            None => Ok(weighted),
        }
    }
}

/// What a layer may look at, and from where.
pub(super) struct Sight<'a> {
    pub(super) rope: &'a Rope,
    /// None: everything before.
    pub(super) mask: Option<&'a Tensor>,
    /// How far back, where that is not everything.
    pub(super) window: Option<usize>,
    /// Which rows are no padding, for each sequence.
    pub(super) kept: Option<&'a [&'a [bool]]>,
}

/// Keys and values that rows look at, `(b, n, heads of keys * head)` each.
#[derive(Clone)]
struct KeysValues {
    keys: Tensor,
    values: Tensor,
    /// Whether those of what was read before come first.
    goes_on: bool,
}

/// Keys and values that later layers look at too, by the layer that has them.
#[derive(Default)]
pub(super) struct SharedKeysValues(BTreeMap<usize, KeysValues>);

/// What a layer knows besides its rows.
pub(super) struct Reading<'a> {
    /// What it remembers of what was read before; none where nobody will go on.
    pub(super) past: Option<&'a mut Option<Remembered>>,
    pub(super) lent: &'a mut SharedKeysValues,
}

/// What makes keys and values of rows.
struct KeyMaker {
    k_proj: Arc<Linear>,
    /// None where keys, as the matrix gives them, are the values too.
    v_proj: Option<Arc<Linear>>,
    k_norm: Option<Norm>,
    v_norm: Option<RmsNorm>,
}

impl KeyMaker {
    fn new(weights: &Walk<'_>, config: &DecoderConfig, sizes: &LayerSizes) -> Result<Self> {
        let width = sizes.kv_heads * sizes.head;
        let matrix = |name: &str| weights.linear_with(name, width, config.hidden, config.bias);
        let k_norm = || Norm::new(weights, "k_norm", sizes.head, config);
        let v_norm = || RmsNorm::new(None, config.eps);
        let v_proj = (!sizes.keys_are_values).then(|| matrix("v_proj"));
        Ok(Self {
            k_proj: matrix("k_proj")?,
            v_proj: v_proj.transpose()?,
            k_norm: config.normed.then(k_norm).transpose()?,
            v_norm: config.values_normed.then(v_norm).transpose()?,
        })
    }

    /// Those of what is remembered come first, and these join them.
    fn read(
        &self,
        x: &Tensor,
        heads: &Heads<'_>,
        past: Option<&mut Option<Remembered>>,
    ) -> Result<KeysValues> {
        let count = heads.sizes.kv_heads;
        let keys = self.k_proj.forward(x)?;
        let values = match &self.v_proj {
            Some(v_proj) => v_proj.forward(x)?,
            None => keys.clone(),
        };
        let values = match &self.v_norm {
            Some(norm) => heads.each(&values, count, |x| Ok(norm.forward(x)?))?,
            None => values,
        };
        let keys = match &self.k_norm {
            Some(norm) => heads.each(&keys, count, |x| norm.forward(x))?,
            None => keys,
        };
        let mut found = KeysValues {
            keys: heads.sight.rope.turn(&keys, count)?,
            values,
            goes_on: false,
        };
        if let Some(past) = past {
            if let Some(Remembered::Rows(keys, values)) = past.take() {
                found = KeysValues {
                    keys: Tensor::cat(&[&keys, &found.keys], 1)?,
                    values: Tensor::cat(&[&values, &found.values], 1)?,
                    goes_on: true,
                };
            }
            *past = Some(Remembered::Rows(found.keys.clone(), found.values.clone()));
        }
        Ok(found)
    }
}

/// Rows as heads.
struct Heads<'a> {
    config: &'a DecoderConfig,
    sizes: &'a LayerSizes,
    sight: &'a Sight<'a>,
}

impl Heads<'_> {
    /// Something for every head by itself.
    fn each(
        &self,
        x: &Tensor,
        count: usize,
        change: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let [b, n, width] = x.dims3()?;
        let x = change(&x.reshape([b, n, count, self.sizes.head])?)?;
        Ok(x.reshape([b, n, width])?)
    }
}

/// Whose keys and values a layer looks at.
enum KeySource {
    Own(KeyMaker),
    /// Those of another layer.
    Of(usize),
}

pub(super) struct Attention {
    at: usize,
    sizes: LayerSizes,
    q_proj: Arc<Linear>,
    q_norm: Option<Norm>,
    keys: KeySource,
    pub(super) o_proj: Arc<Linear>,
}

impl Attention {
    pub(super) fn new(weights: &Walk<'_>, config: &DecoderConfig, at: usize) -> Result<Self> {
        let sizes = config.layer(at);
        let own = config.heads * sizes.head;
        let gates = if config.gated { own } else { 0 };
        let q_norm = || Norm::new(weights, "q_norm", sizes.head, config);
        let keys = match sizes.shares {
            Some(other) => KeySource::Of(other),
            None => KeySource::Own(KeyMaker::new(weights, config, &sizes)?),
        };
        Ok(Self {
            at,
            q_proj: weights.linear_with("q_proj", own + gates, config.hidden, config.bias)?,
            q_norm: config.normed.then(q_norm).transpose()?,
            keys,
            o_proj: weights.matrix("o_proj", config.hidden, own)?,
            sizes,
        })
    }

    /// The heads' output, before the last matrix.
    pub(super) fn heads(
        &self,
        x: &Tensor,
        sight: &Sight<'_>,
        config: &DecoderConfig,
        reading: &mut Reading<'_>,
    ) -> Result<Tensor> {
        let heads = Heads {
            config,
            sizes: &self.sizes,
            sight,
        };
        let (q, gate) = self.queries(x, &heads)?;
        let seen = match &self.keys {
            KeySource::Own(maker) => maker.read(x, &heads, reading.past.as_deref_mut())?,
            KeySource::Of(other) => reading.lent.0.get(other).cloned().ok_or_else(|| {
                let reason = format!("layer {} looks at keys that layer {other} has not", self.at);
                ModelError::invalid("text encoder", reason)
            })?,
        };
        if self.sizes.lends {
            reading.lent.0.insert(self.at, seen.clone());
        }
        let found = self.look(&q, seen, &heads)?;
        match gate {
            Some(gate) => Ok(found.mul(&gate)?),
            None => Ok(found),
        }
    }

    /// Queries, and the gates of what they find where there are any.
    fn queries(&self, x: &Tensor, heads: &Heads<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let [b, n, _] = x.dims3()?;
        let (count, head) = (heads.config.heads, self.sizes.head);
        let mut q = self.q_proj.forward(x)?;
        let mut gate = None;
        if heads.config.gated {
            // Each head has its query, then its gate.
            let both = q.reshape([b, n, count, 2 * head])?;
            let half = |at: usize| {
                both.narrow(3, at * head, head)?
                    .reshape([b, n, count * head])
            };
            gate = Some(sigmoid(&half(1)?));
            q = half(0)?;
        }
        if let Some(norm) = &self.q_norm {
            q = heads.each(&q, count, |x| norm.forward(x))?;
        }
        Ok((heads.sight.rope.turn(&q, count)?, gate))
    }

    fn look(&self, q: &Tensor, seen: KeysValues, heads: &Heads<'_>) -> Result<Tensor> {
        let KeysValues {
            keys: mut k,
            values: mut v,
            goes_on,
        } = seen;
        let [_, n, _] = k.dims3()?;
        let sight = heads.sight;
        if let Some(window) = sight.window.filter(|window| goes_on && *window < n) {
            k = k.narrow(1, n - window, window)?;
            v = v.narrow(1, n - window, window)?;
        }
        let count = heads.config.heads;
        let shared = self.sizes.kv_heads;
        let mask = match sight.mask {
            // Going on, there is one query, after everything that is remembered.
            _ if goes_on => Mask::None,
            Some(mask) => Mask::Add(mask),
            None => Mask::Causal,
        };
        let scale = heads.config.scale;
        let times = count / shared;
        let (k, v) = (
            repeat_heads(&k, shared, times)?,
            repeat_heads(&v, shared, times)?,
        );
        Ok(attention(q, &k, &v, count, mask, scale)?)
    }
}
