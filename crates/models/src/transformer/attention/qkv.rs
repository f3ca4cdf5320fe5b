//! Queries, keys and values on their way to attention.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    HeadPart, HeadRope, HeadSource, Mask, ReadyHeads, RmsNorm, attention, join_heads,
};

use super::super::heads::repeat_heads;
use super::super::norm::HeadNormLayer;
use super::super::rope::Rope;
use super::Attention;
use crate::error::{ModelError, Result};

/// Where tokens are: those that look, and those that are looked at.
#[derive(Clone, Copy, Default)]
pub struct Rotation<'a> {
    pub queries: Option<&'a Rope>,
    pub keys: Option<&'a Rope>,
}

impl<'a> Rotation<'a> {
    /// Positions do not count.
    pub const NONE: Self = Self {
        queries: None,
        keys: None,
    };

    pub fn new(queries: &'a Rope, keys: &'a Rope) -> Self {
        Self {
            queries: Some(queries),
            keys: Some(keys),
        }
    }

    /// Whether one pass can turn queries and keys of such heads.
    fn joining(self, width: usize) -> Joining<'a> {
        match (self.queries, self.keys) {
            (None, None) => Joining::AtOnce(None),
            (Some(q), Some(k)) if std::ptr::eq(q, k) => match q.joins(width) {
                Some(tables) => Joining::AtOnce(Some(tables)),
                None => Joining::StepByStep,
            },
            _ => Joining::StepByStep,
        }
    }
}

impl<'a> From<&'a Rope> for Rotation<'a> {
    fn from(rope: &'a Rope) -> Self {
        Self::new(rope, rope)
    }
}

impl<'a> From<Option<&'a Rope>> for Rotation<'a> {
    fn from(rope: Option<&'a Rope>) -> Self {
        Self {
            queries: rope,
            keys: rope,
        }
    }
}

/// How products become heads.
enum Joining<'a> {
    StepByStep,
    /// In one pass, with the tables by which it turns queries and keys.
    AtOnce(Option<HeadRope<'a>>),
}

pub(super) enum Products {
    /// Behind each other in the last dimension.
    Joined(Tensor),
    /// Queries (b, n, heads * d), keys and values (b, m, kv heads * d).
    Apart([Tensor; 3]),
    /// The same with norms done, and keys and values as often as queries look at them.
    Normed([Tensor; 3]),
}

/// Queries, keys and values of some tokens.
pub struct Qkv<'a> {
    pub(super) of: &'a Attention,
    pub(super) products: Products,
    pub(super) gate: Option<Tensor>,
}

fn turned(x: Tensor, rope: Option<&Rope>, heads: usize) -> Result<Tensor> {
    match rope {
        Some(rope) => rope.turn(&x, heads),
        None => Ok(x),
    }
}

impl Qkv<'_> {
    /// With queries, keys and values changed before their norms.
    pub fn map(self, change: impl FnOnce([Tensor; 3]) -> Result<[Tensor; 3]>) -> Result<Self> {
        Ok(Self {
            products: Products::Apart(change(self.of.split(self.products)?)?),
            ..self
        })
    }

    /// Queries, keys and values, normalised and turned; each key and value as often as queries look at it.
    pub fn heads<'r>(self, rotation: impl Into<Rotation<'r>>) -> Result<[Tensor; 3]> {
        let (of, rotation) = (self.of, rotation.into());
        if let Joining::AtOnce(rope) = of.joining(&self.products, rotation) {
            return Ok(join_heads(
                &[of.part(&self.products)],
                of.heads,
                of.width(),
                rope,
            )?);
        }
        let [q, k, v] = match self.products {
            Products::Normed([q, k, v]) => {
                let k = turned(k, rotation.keys, of.heads)?;
                return Ok([turned(q, rotation.queries, of.heads)?, k, v]);
            }
            products => of.split(products)?,
        };
        let [of_queries, of_keys] = &of.norms;
        let q = turned(of_queries.forward(q, of.heads)?, rotation.queries, of.heads)?;
        let k = turned(of_keys.forward(k, of.kv_heads)?, rotation.keys, of.kv_heads)?;
        let times = of.heads / of.kv_heads.max(1);
        let k = repeat_heads(&k, of.kv_heads, times)?;
        Ok([q, k, repeat_heads(&v, of.kv_heads, times)?])
    }

    /// What the tokens see: (b, n, heads * d), for the last layer.
    pub fn attend<'r>(self, rotation: impl Into<Rotation<'r>>, mask: Mask<'_>) -> Result<Tensor> {
        let (of, rotation) = (self.of, rotation.into());
        let Joining::AtOnce(rope) = of.joining(&self.products, rotation) else {
            let gate = self.gate.clone();
            let [q, k, v] = self.heads(rotation)?;
            return of.gated(attention(&q, &k, &v, of.heads, mask, None)?, gate);
        };
        let Self { products, gate, .. } = self;
        let ready = ReadyHeads::new(&[of.part(&products)], of.heads, of.width(), rope, mask)?;
        drop(products);
        of.gated(ready.attend()?, gate)
    }

    /// What the tokens of several streams see of each other, one stream behind the other; for each stream its part.
    pub fn attend_joint<'r, const N: usize>(
        streams: [Self; N],
        rotation: impl Into<Rotation<'r>>,
        mask: Mask<'_>,
    ) -> Result<[Tensor; N]> {
        let rotation = rotation.into();
        let Some(of) = streams.first().map(|stream| stream.of) else {
            return Err(ModelError::invalid("attention", "it has no streams"));
        };
        let streams = streams.into_iter().map(Self::ready_to_join);
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let counts: Vec<usize> = streams.iter().map(Self::count).collect::<Result<_>>()?;
        let parts: Vec<HeadPart<'_>> = streams.iter().map(|s| s.of.part(&s.products)).collect();
        let seen = if let Joining::AtOnce(rope) = rotation.joining(of.head) {
            let ready = ReadyHeads::new(&parts, of.heads, of.width(), rope, mask)?;
            drop(parts);
            drop(streams);
            ready.attend()?
        } else {
            let [q, k, v] = join_heads(&parts, of.heads, of.width(), None)?;
            drop(parts);
            drop(streams);
            let q = turned(q, rotation.queries, of.heads)?;
            let k = turned(k, rotation.keys, of.heads)?;
            attention(&q, &k, &v, of.heads, mask, None)?
        };
        let mut start = 0;
        let parts = counts.into_iter().map(|count| {
            start += count;
            seen.narrow(1, start - count, count)
        });
        let parts: Vec<Tensor> = parts.collect::<fresco_tensor::Result<_>>()?;
        let lost = |_| ModelError::invalid("attention", "a stream is missing");
        parts.try_into().map_err(lost)
    }

    /// Tokens that look.
    fn count(&self) -> Result<usize> {
        let (Products::Joined(q) | Products::Apart([q, ..]) | Products::Normed([q, ..])) =
            &self.products;
        Ok(q.dim(1)?)
    }

    /// With norms done that a pass which joins heads cannot do, and keys repeated.
    fn ready_to_join(self) -> Result<Self> {
        let of = self.of;
        let plain = of.norms.iter().all(HeadNormLayer::is_none);
        if of.kv_heads == of.heads && (plain || of.joined_norms().is_some()) {
            return Ok(self);
        }
        Ok(Self {
            products: Products::Normed(self.heads(Rotation::NONE)?),
            of,
            gate: None,
        })
    }
}

impl Attention {
    /// Channels of all heads.
    pub(in crate::transformer) fn width(&self) -> usize {
        self.heads * self.head
    }

    /// The norms, if a pass that joins heads can do them.
    fn joined_norms(&self) -> Option<(&RmsNorm, &RmsNorm)> {
        let [queries, keys] = &self.norms;
        Some((queries.joins()?, keys.joins()?))
    }

    fn part<'p>(&'p self, products: &'p Products) -> HeadPart<'p> {
        let norms = self.joined_norms();
        match products {
            Products::Joined(all) => HeadPart {
                from: HeadSource::Joined(all),
                norms,
            },
            Products::Apart([q, k, v]) => HeadPart {
                from: HeadSource::Apart([q, k, v]),
                norms,
            },
            Products::Normed([q, k, v]) => HeadPart {
                from: HeadSource::Apart([q, k, v]),
                norms: None,
            },
        }
    }

    /// How these products become heads: one pass is not always possible, and does not always save anything.
    fn joining<'r>(&self, products: &Products, rotation: Rotation<'r>) -> Joining<'r> {
        let norms = self.joined_norms().is_some();
        let saves = match products {
            Products::Joined(_) => norms || self.norms.iter().all(HeadNormLayer::is_none),
            Products::Apart([q, k, _]) => norms && q.shape() == k.shape(),
            Products::Normed(_) => false,
        };
        if saves && self.kv_heads == self.heads {
            rotation.joining(self.head)
        } else {
            Joining::StepByStep
        }
    }

    /// Queries, keys and values by themselves.
    fn split(&self, products: Products) -> Result<[Tensor; 3]> {
        let all = match products {
            Products::Apart(each) | Products::Normed(each) => return Ok(each),
            Products::Joined(all) => all,
        };
        let (own, shared) = (self.width(), self.kv_heads * self.head);
        Ok([
            all.narrow(2, 0, own)?,
            all.narrow(2, own, shared)?,
            all.narrow(2, own + shared, shared)?,
        ])
    }

    /// What was seen, as much of it as the gate lets through.
    fn gated(&self, seen: Tensor, gate: Option<Tensor>) -> Result<Tensor> {
        let Some(gate) = gate else {
            return Ok(seen);
        };
        let [b, n, width] = seen.dims3()?;
        if gate.dim(2)? == width {
            return Ok(seen.mul(&gate)?);
        }
        let heads = seen.reshape([b, n, self.heads, self.head])?;
        let gate = gate.reshape([b, n, self.heads, 1])?;
        Ok(heads.mul(&gate)?.reshape([b, n, width])?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fresco_tensor::{Device, Stored, synthetic};

    use super::super::{AttentionLayers, GateLayer, Heads, QkvLayers};
    use super::*;
    use crate::store::WeightStore;
    use crate::transformer::{HeadNorm, Pairs};

    const NORM: HeadNorm<'_> = HeadNorm::Rms(["q_norm.weight", "k_norm.weight"], 1e-6);

    fn value(name: &str, shape: &[usize]) -> Tensor {
        synthetic::value(name, shape, 0.5).unwrap()
    }

    /// Queries, keys and values of 8 channels, in one matrix and each in its own.
    fn store() -> Arc<WeightStore> {
        let all = value("qkv", &[24, 8]);
        let part = |n: usize| all.narrow(0, 8 * n, 8).unwrap();
        let pair = Tensor::cat(&[&part(1), &part(2)], 0).unwrap();
        let weights = [
            ("qkv.weight", all.clone()),
            ("q.weight", part(0)),
            ("k.weight", part(1)),
            ("v.weight", part(2)),
            ("kv.weight", pair),
            ("few_k.weight", part(1).narrow(0, 0, 4).unwrap()),
            ("few_v.weight", part(2).narrow(0, 0, 4).unwrap()),
            ("out.weight", value("out", &[8, 8])),
            ("gate.weight", value("gate", &[2, 8])),
            ("q_norm.weight", value("a", &[4])),
            ("k_norm.weight", value("b", &[4])),
        ];
        let weights: BTreeMap<String, Stored> = weights
            .iter()
            .map(|(key, weight)| ((*key).to_owned(), Stored::from(weight)))
            .collect();
        WeightStore::from_stored("test", weights, Device::cpu())
    }

    fn made(qkv: QkvLayers<'_>, heads: Heads<'_>, gate: GateLayer<'_>) -> Attention {
        let layers = AttentionLayers {
            gate,
            ..AttentionLayers::unbiased(qkv, "out", 8, heads)
        };
        let store = store();
        store
            .build("it", |weights| Attention::new(weights, &layers))
            .unwrap()
    }

    fn near(a: &Tensor, b: &Tensor) {
        assert_eq!(a.shape(), b.shape());
        for (a, b) in a.data().iter().zip(b.data()) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    const APART: QkvLayers<'_> = QkvLayers::Apart(["q", "k", "v"]);

    #[test]
    fn layers_joined_apart_and_in_pairs_are_the_same_attention() {
        let heads = Heads::new(2, 4, NORM);
        let x = value("x", &[1, 5, 8]);
        let rope = Rope::new(&[0.0, 1.0, 2.0, 3.0, 4.0], &[4], 100.0).unwrap();
        for pairs in [Pairs::Neighbours, Pairs::Halves] {
            let rope = &rope.clone().pairing(pairs);
            let seen = |qkv| {
                let attention = made(qkv, heads, GateLayer::None);
                let seen = attention.qkv(&x).unwrap().attend(rope, Mask::None).unwrap();
                attention.out(&seen).unwrap()
            };
            let expected = seen(QkvLayers::Joined("qkv"));
            near(&seen(APART), &expected);
            near(&seen(QkvLayers::Paired(["q", "kv"])), &expected);
            // The same in two streams.
            let attention = made(APART, heads, GateLayer::None);
            let part = |start, len| attention.qkv(&x.narrow(1, start, len).unwrap()).unwrap();
            let streams = [part(0, 2), part(2, 3)];
            let [first, rest] = Qkv::attend_joint(streams, rope, Mask::None).unwrap();
            let both = Tensor::cat(&[&first, &rest], 1).unwrap();
            near(&attention.out(&both).unwrap(), &expected);
        }
    }

    #[test]
    fn keys_are_grouped_and_gates_close() {
        let x = value("x", &[1, 3, 8]);
        let few = QkvLayers::Apart(["q", "few_k", "few_v"]);
        let attention = made(few, Heads::grouped(2, 1, 4, NORM), GateLayer::None);
        let [_, k, v] = attention.qkv(&x).unwrap().heads(Rotation::NONE).unwrap();
        for x in [&k, &v] {
            near(&x.narrow(2, 0, 4).unwrap(), &x.narrow(2, 4, 4).unwrap());
        }
        let open = made(APART, Heads::new(2, 4, HeadNorm::None), GateLayer::None);
        let gated = made(
            APART,
            Heads::new(2, 4, HeadNorm::None),
            GateLayer::Heads("gate"),
        );
        let seen = |attention: &Attention| {
            let qkv = attention.qkv(&x).unwrap();
            qkv.attend(Rotation::NONE, Mask::None).unwrap()
        };
        let (open, gated) = (seen(&open), seen(&gated));
        // Every head has one factor, between 0 and 2.
        for (open, gated) in open.data().chunks(4).zip(gated.data().chunks(4)) {
            let factor = gated[0] / open[0];
            assert!((0.0..2.0).contains(&factor) && factor != 1.0, "{factor}");
            for (open, gated) in open.iter().zip(gated) {
                assert!((gated - open * factor).abs() < 1e-5);
            }
        }
    }
}
