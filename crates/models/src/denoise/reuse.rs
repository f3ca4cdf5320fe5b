//! Passes that are left out because little has changed since the last one: what that one added to the latent is added again.

use std::sync::{Mutex, PoisonError};

use fresco_tensor::{Axes, Tensor};

use super::per_cond::{CondResiduals, items};
use crate::error::Result;

/// Rows and columns between those that are looked at to see how much has changed.
const EVERY: usize = 8;

/// When to leave passes out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReuseRule {
    /// The change, as a share of what comes out, up to which passes are left out.
    pub threshold: f64,
    /// Noise levels between which that may be.
    pub start_sigma: f64,
    pub end_sigma: f64,
}

/// What one run remembers.
pub struct Reuse {
    rule: ReuseRule,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The shape of an item, which must stay the same.
    shape: Vec<usize>,
    /// Whose change is looked at: the first there was.
    first: Option<usize>,
    /// What the last pass added, for each condition.
    added: CondResiduals,
    x: Option<Tensor>,
    out: Option<Tensor>,
    /// Mean size of what came out.
    size: Option<f64>,
    /// How much more the output changed than the input.
    rate: Option<f64>,
    change: f64,
    /// This step's passes are left out.
    skip: bool,
}

/// Mean distance of two tensors.
fn distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    Ok(f64::from(a.sub(b)?.abs().mean(&[], Axes::Drop)?.item()?))
}

/// Every eighth row and column.
fn thinned(x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for dim in x.rank().saturating_sub(2)..x.rank() {
        let places: Vec<usize> = (0..x.dim(dim)?).step_by(EVERY).collect();
        x = x.index_select(dim, &places)?;
    }
    Ok(x)
}

impl Memory {
    /// Where in a batch the condition is that is looked at.
    fn place(&self, ids: &[usize]) -> Option<usize> {
        ids.iter().position(|id| Some(*id) == self.first)
    }

    fn seen(&self, x: &Tensor, ids: &[usize]) -> Result<Option<Tensor>> {
        let Some(place) = self.place(ids) else {
            return Ok(None);
        };
        Ok(Some(thinned(&items(x, place, ids.len())?)?))
    }

    /// The result without a pass, if one can be left out; and how much the input changed.
    fn try_skip(
        &mut self,
        rule: &ReuseRule,
        x: &Tensor,
        ids: &[usize],
    ) -> Result<(Option<Tensor>, Option<f64>)> {
        let shape = x.shape().get(1..).unwrap_or_default();
        if self.shape != shape {
            *self = Self {
                shape: shape.to_vec(),
                ..Self::default()
            };
        }
        let again = self.added.add(x, ids)?;
        if self.skip && again.is_some() {
            return Ok((again, None));
        }
        if self.first.is_none() {
            self.first = ids.first().copied();
        }
        let Some(seen) = self.seen(x, ids)? else {
            return Ok((None, None));
        };
        let before = self
            .x
            .as_ref()
            .filter(|before| before.shape() == seen.shape());
        let Some(moved) = before.map(|before| distance(&seen, before)).transpose()? else {
            return Ok((None, None));
        };
        if let (Some(rate), Some(size)) = (self.rate, self.size) {
            self.change += rate * moved / size;
            if self.change < rule.threshold && again.is_some() {
                self.skip = true;
                return Ok((again, Some(moved)));
            }
            self.change = 0.0;
        }
        Ok((None, Some(moved)))
    }

    /// Remembers a pass.
    fn remember(
        &mut self,
        x: &Tensor,
        out: &Tensor,
        ids: &[usize],
        moved: Option<f64>,
    ) -> Result<()> {
        let seen = self.seen(out, ids)?;
        if let (Some(seen), Some(before), Some(moved)) = (&seen, &self.out, moved)
            && before.shape() == seen.shape()
            && moved > 0.0
        {
            self.rate = Some(distance(seen, before)? / moved);
        }
        self.added.keep(x, out, ids)?;
        if seen.is_some() {
            self.x = self.seen(x, ids)?;
            self.out = seen;
            self.size = Some(f64::from(out.abs().mean(&[], Axes::Drop)?.item()?));
        }
        Ok(())
    }
}

impl Reuse {
    pub fn new(rule: ReuseRule) -> Self {
        Self {
            rule,
            memory: Mutex::default(),
        }
    }

    /// A new step begins.
    pub fn begin_step(&self) {
        self.lock().skip = false;
    }

    /// The result of a pass over `x`, a batch of the conditions `ids`, or what stands for it.
    pub fn around(
        &self,
        x: &Tensor,
        sigma: f32,
        ids: &[usize],
        pass: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let sigma = f64::from(sigma);
        if sigma <= self.rule.end_sigma || ids.is_empty() {
            return pass();
        }
        let mut moved = None;
        if sigma <= self.rule.start_sigma {
            let (out, change) = self.lock().try_skip(&self.rule, x, ids)?;
            if let Some(out) = out {
                return Ok(out);
            }
            moved = change;
        }
        let out = pass()?;
        if out.shape() == x.shape() {
            self.lock().remember(x, &out, ids, moved)?;
        }
        Ok(out)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // What is remembered is replaced as a whole, value by value.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
