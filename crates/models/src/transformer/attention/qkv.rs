//! Queries, keys and values on their way to attention.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{
    HeadPart, HeadRope, HeadSource, Mask, ReadyHeads, RmsNorm, attention, join_heads, join_pair,
};

use super::super::heads::repeat_heads;
use super::super::norm::HeadNormLayer;
use super::super::place::AttentionSite;
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
        match self.shared() {
            Shared::Nothing => Joining::AtOnce(None),
            Shared::Positions(rope) => match rope.joins(width) {
                Some(tables) => Joining::AtOnce(Some(tables)),
                None => Joining::StepByStep,
            },
            Shared::Apart => Joining::StepByStep,
        }
    }

    fn shared(self) -> Shared<'a> {
        match (self.queries, self.keys) {
            (None, None) => Shared::Nothing,
            (Some(q), Some(k)) if std::ptr::eq(q, k) => Shared::Positions(q),
            _ => Shared::Apart,
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

/// What the positions of queries and those of keys have in common.
enum Shared<'a> {
    /// Neither are turned.
    Nothing,
    /// Both are turned by the same positions.
    Positions(&'a Rope),
    /// They are turned by different positions, or only one of them is.
    Apart,
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
        let done = matches!(self.products, Products::Normed(_));
        let [mut q, mut k, v] = of.split(self.products)?;
        let norms = of.joined_norms().filter(|_| !done);
        let [of_queries, of_keys] = &of.norms;
        if norms.is_none() && !done {
            (q, k) = (
                of_queries.forward(q, of.heads)?,
                of_keys.forward(k, of.kv_heads)?,
            );
        }
        let times = if done {
            1
        } else {
            of.heads / of.kv_heads.max(1)
        };
        let v = repeat_heads(&v, of.kv_heads, times)?;
        // A GPU that has both to do reads and writes less where it does them to repeated keys, in one pass with queries.
        let joins = match rotation.shared() {
            Shared::Positions(rope) => rope.joins(of.head).is_some(),
            Shared::Nothing | Shared::Apart => false,
        };
        let both = norms.is_some() && joins;
        if times > 1 && both && !q.device().is_cpu() {
            k = repeat_heads(&k, of.kv_heads, times)?;
        }
        if let Some(norms) = norms.filter(|_| q.shape() == k.shape())
            && let Some([q, k]) = of.turn_pair([&q, &k], norms, rotation)?
        {
            return Ok([q, k, v]);
        }
        let heads = k.dim(2)? / of.head.max(1);
        if norms.is_some() {
            (q, k) = (of_queries.forward(q, of.heads)?, of_keys.forward(k, heads)?);
        }
        let q = turned(q, rotation.queries, of.heads)?;
        let k = turned(k, rotation.keys, heads)?;
        Ok([q, repeat_heads(&k, heads, of.heads / heads.max(1))?, v])
    }

    /// What the tokens see: (b, n, heads * d), for the last layer.
    pub fn attend<'r>(self, rotation: impl Into<Rotation<'r>>, mask: Mask<'_>) -> Result<Tensor> {
        let (of, rotation) = (self.of, rotation.into());
        let replaced = AttentionSite::on(of.looks).is_some_and(|site| site.replaces());
        let rope = match of.joining(&self.products, rotation) {
            Joining::AtOnce(rope) if !replaced => rope,
            _ => {
                let gate = self.gate.clone();
                return of.gated(of.attend(self.heads(rotation)?, mask)?, gate);
            }
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
        let replaced = AttentionSite::on(of.looks).is_some_and(|site| site.replaces());
        let joining = rotation.joining(of.head);
        let seen = if let (Joining::AtOnce(rope), false) = (joining, replaced) {
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
            of.attend([q, k, v], mask)?
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

    /// What tokens see, from [`heads`](Qkv::heads).
    pub fn attend(&self, [q, k, v]: [Tensor; 3], mask: Mask<'_>) -> Result<Tensor> {
        let replaced = AttentionSite::on(self.looks).map(|site| site.replace([&q, &k, &v]));
        match replaced.transpose()?.flatten() {
            Some(seen) => Ok(seen.to(&q.device())?),
            None => Ok(attention(&q, &k, &v, self.heads, mask, None)?),
        }
    }

    /// Queries and keys of equal shapes, normalised and turned in one pass; none where that is not possible.
    fn turn_pair(
        &self,
        [q, k]: [&Tensor; 2],
        norms: (&RmsNorm, &RmsNorm),
        rotation: Rotation<'_>,
    ) -> Result<Option<[Tensor; 2]>> {
        let rope = match rotation.shared() {
            Shared::Apart => return Ok(None),
            Shared::Nothing => return Ok(Some(join_pair([q, k], norms, self.heads, None)?)),
            Shared::Positions(rope) => rope,
        };
        // Where heads have angles of their own, each is a token.
        let Some(by_head) = rope.of_heads(self.heads)? else {
            let tables = rope.joins(self.head);
            let pair = tables.map(|rope| join_pair([q, k], norms, self.heads, Some(rope)));
            return Ok(pair.transpose()?);
        };
        let Some(tables) = by_head.joins(self.head) else {
            return Ok(None);
        };
        let [b, n, width] = q.dims3()?;
        let rows = |x: &Tensor| x.reshape([b, n * self.heads, self.head]);
        let [q, k] = join_pair([&rows(q)?, &rows(k)?], norms, 1, Some(tables))?;
        let shape = [b, n, width];
        Ok(Some([q.reshape(shape)?, k.reshape(shape)?]))
    }

    /// How these products become heads: one pass is not always possible, and does not always save anything.
    fn joining<'r>(&self, products: &Products, rotation: Rotation<'r>) -> Joining<'r> {
        let plain = self.norms.iter().all(HeadNormLayer::is_none);
        let saves = match products {
            Products::Joined(_) => plain || self.joined_norms().is_some(),
            Products::Apart(_) | Products::Normed(_) => false,
        };
        if saves && self.kv_heads == self.heads {
            rotation.joining(self.head)
        } else {
            Joining::StepByStep
        }
    }

    /// Queries, keys and values by themselves.
    fn split(&self, products: Products) -> Result<[Tensor; 3]> {
        match products {
            Products::Apart(each) | Products::Normed(each) => Ok(each),
            Products::Joined(all) => Ok([
                self.columns(&all, 0)?,
                self.columns(&all, 1)?,
                self.columns(&all, 2)?,
            ]),
        }
    }

    /// Queries, keys or values of rows that have all three, one behind the other.
    pub(super) fn columns(&self, all: &Tensor, number: usize) -> Result<Tensor> {
        let (own, shared) = (self.width(), self.kv_heads * self.head);
        let (start, len) = [(0, own), (own, shared), (own + shared, shared)][number];
        Ok(all.narrow(2, start, len)?)
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
    use crate::denoise::hooks::{
        AttentionHooks, AttnInput, AttnOutput, AttnReplace, BlockInfo, BlockKey, BlockKind, Hooks,
    };
    use crate::store::WeightStore;
    use crate::transformer::{Blocks, HeadNorm, Pairs};

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

    /// Doubles what it is given.
    struct Doubles;

    impl AttnInput for Doubles {
        fn apply(
            &self,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            at: &BlockInfo<'_>,
        ) -> Result<(Tensor, Tensor, Tensor)> {
            assert_eq!((at.kind, at.number), (BlockKind::SINGLE, 0));
            Ok((q, k, v.mul_scalar(2.0)))
        }
    }

    impl AttnOutput for Doubles {
        fn kinds(&self) -> &[BlockKind] {
            &[BlockKind::SINGLE]
        }

        fn apply(&self, x: Tensor, _at: &BlockInfo<'_>) -> Result<Tensor> {
            Ok(x.mul_scalar(2.0))
        }
    }

    impl AttnReplace for Doubles {
        fn apply(
            &self,
            _q: &Tensor,
            _k: &Tensor,
            v: &Tensor,
            _at: &BlockInfo<'_>,
        ) -> Result<Tensor> {
            Ok(v.mul_scalar(2.0))
        }
    }

    #[test]
    fn hooks_act_on_attention_inside_of_blocks() {
        let x = value("x", &[1, 3, 8]);
        let heads = Heads::new(2, 4, NORM);
        for qkv in [
            QkvLayers::Joined("qkv"),
            APART,
            QkvLayers::Paired(["q", "kv"]),
        ] {
            let attention = made(qkv, heads, GateLayer::None);
            let seen = || {
                attention
                    .qkv(&x)
                    .unwrap()
                    .attend(Rotation::NONE, Mask::None)
            };
            let (seen, plain) = (seen, attention.out(&seen().unwrap()).unwrap());
            let attend = |x: &Tensor| {
                let seen = attention.qkv(x)?.attend(Rotation::NONE, Mask::None)?;
                attention.add(&seen, x)
            };
            let run = |kind: BlockKind, change: fn(&mut AttentionHooks)| {
                let mut hooks = Hooks::default();
                change(&mut hooks.self_attention);
                let at = (&hooks, x.shape());
                let blocks = Blocks::of(kind, 1, 2, [1, 3, 1], at);
                let out = blocks.run(x.clone(), |_, x| attend(&x)).unwrap();
                // Outside of blocks nothing acts.
                near(&attention.out(&seen().unwrap()).unwrap(), &plain);
                out
            };
            let of = |times: f32| x.add(&plain.mul_scalar(times)).unwrap();
            near(&run(BlockKind::SINGLE, |_| {}), &of(1.0));
            let input: fn(&mut AttentionHooks) = |on| on.input.push(Arc::new(Doubles));
            near(&run(BlockKind::SINGLE, input), &of(2.0));
            let output: fn(&mut AttentionHooks) = |on| on.output.push(Arc::new(Doubles));
            near(&run(BlockKind::SINGLE, output), &of(2.0));
            near(&run(BlockKind::DOUBLE, output), &of(1.0));
            let after = run(BlockKind::SINGLE, |on| on.after.push(Arc::new(Doubles)));
            near(&after, &of(1.0).mul_scalar(2.0));
            let [_, _, v] = attention.qkv(&x).unwrap().heads(Rotation::NONE).unwrap();
            let blind = attention.out(&v.mul_scalar(2.0)).unwrap();
            let replaced = run(BlockKind::SINGLE, |on| {
                let key = BlockKey {
                    kind: BlockKind::SINGLE,
                    number: 0,
                    index: None,
                };
                on.replace.push((key, Arc::new(Doubles)));
            });
            near(&replaced, &x.add(&blind).unwrap());
        }
    }

    #[test]
    fn heads_with_angles_of_their_own_are_turned_like_the_others() {
        let x = value("x", &[2, 3, 8]);
        let attention = made(APART, Heads::new(2, 4, NORM), GateLayer::None);
        let table = value("angles", &[3, 4]);
        for pairs in [Pairs::NeighboursByHead, Pairs::HalvesByHead] {
            let shape: &[usize] = match pairs {
                Pairs::HalvesByHead => &[6, 2],
                _ => &[3, 4],
            };
            let rope = |f: fn(f32) -> f32| table.map(f).reshape(shape).unwrap();
            let rope = Rope::from_tables(rope(f32::cos), rope(f32::sin)).pairing(pairs);
            let [q, k, _] = attention.qkv(&x).unwrap().heads(&rope).unwrap();
            let [plain_q, plain_k, _] = attention.qkv(&x).unwrap().heads(Rotation::NONE).unwrap();
            near(&q, &rope.turn(&plain_q, 2).unwrap());
            near(&k, &rope.turn(&plain_k, 2).unwrap());
        }
    }
}
