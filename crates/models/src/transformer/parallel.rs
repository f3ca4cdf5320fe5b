//! Attention and a feed-forward part beside each other: one layer makes queries, keys, values and what goes through the
//! activation, another takes what was seen with what the activation gave (Dehghani et al. 2023).

use std::sync::Arc;

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Linear, Mask, MlpJoin, SideColumns};

use super::attention::{Attention, Heads, Rotation};
use super::norm::TokenRows;
use crate::error::Result;
use crate::store::{Bias, Walk};

/// The layers of such a block.
pub struct ParallelBlock {
    attention: Attention,
    first: Arc<Linear>,
    second: Arc<Linear>,
    mlp: MlpJoin,
}

/// What tokens see, and what stands beside it.
pub struct ParallelSeen<'a> {
    seen: Tensor,
    beside: SideColumns,
    second: &'a Linear,
}

impl ParallelBlock {
    /// From tokens of `width` channels over `inner` ones beside the attention, by the names of the two layers.
    pub fn new(
        weights: &Walk<'_>,
        [first, second]: [&str; 2],
        (width, inner): (usize, usize),
        heads: Heads<'_>,
        mlp: MlpJoin,
        bias: Bias,
    ) -> Result<Self> {
        let own = heads.count * heads.width;
        let beside = match mlp {
            MlpJoin::GateFirst | MlpJoin::GateLast => 2 * inner,
            MlpJoin::GeluTanh | MlpJoin::Done => inner,
        };
        let first = weights.linear_with(first, 3 * own + beside, width, bias)?;
        Ok(Self {
            attention: Attention::of_layer(weights, Arc::clone(&first), heads)?,
            first,
            second: weights.linear_with(second, width, own + inner, bias)?,
            mlp,
        })
    }

    /// What tokens see of each other, with the feed-forward part beside it.
    pub fn attend<'a, 'r>(
        &self,
        rows: impl Into<TokenRows<'a>>,
        rotation: impl Into<Rotation<'r>>,
        mask: Mask<'_>,
    ) -> Result<ParallelSeen<'_>> {
        let columns = 3 * self.attention.width();
        let rows = rows.into();
        let changed = self.attention.hook_rows(rows)?;
        let (all, mlp) = self.first.forward_beside(rows.into(), columns, self.mlp)?;
        let beside = SideColumns::new(all.clone(), columns, mlp)?;
        let qkv = match &changed {
            Some([q, k, v]) => self.attention.project([q, k, v])?,
            None => self.attention.of_product(all),
        };
        Ok(ParallelSeen {
            seen: qkv.attend(rotation, mask)?,
            beside,
            second: &self.second,
        })
    }
}

impl<'a> ParallelSeen<'a> {
    /// `x` plus what the last layer makes of both, times a gate.
    pub fn add_gated(self, x: Tensor, gate: &Tensor) -> Result<Tensor> {
        Ok(self.beside.through(self.second, &self.seen, x, gate)?)
    }

    /// What goes into the last layer, and that layer, where tokens have gates of their own.
    pub fn join(self) -> Result<(Tensor, &'a Linear)> {
        Ok((self.beside.join(&self.seen)?, self.second))
    }
}
