//! How far passes lead from their input, for each condition of a run.

use std::collections::BTreeMap;

use fresco_tensor::Tensor;

use crate::error::Result;

/// What was added last, by the number of the condition.
#[derive(Default)]
pub(super) struct CondResiduals(BTreeMap<usize, Tensor>);

/// The items of one condition in a batch of several.
pub(super) fn items(x: &Tensor, place: usize, count: usize) -> Result<Tensor> {
    let each = x.dim(0)? / count.max(1);
    Ok(x.narrow(0, place * each, each)?)
}

impl CondResiduals {
    /// Remembers how far `from` is from `to`, both batches of the conditions `ids`.
    pub(super) fn keep(&mut self, from: &Tensor, to: &Tensor, ids: &[usize]) -> Result<()> {
        for (place, id) in ids.iter().enumerate() {
            let (from, to) = (items(from, place, ids.len())?, items(to, place, ids.len())?);
            self.0.insert(*id, to.sub(&from)?);
        }
        Ok(())
    }

    /// A batch with what was added last; none if that is not known for all, or was of another shape.
    pub(super) fn add(&self, x: &Tensor, ids: &[usize]) -> Result<Option<Tensor>> {
        let mut parts = Vec::with_capacity(ids.len());
        for (place, id) in ids.iter().enumerate() {
            let part = items(x, place, ids.len())?;
            let Some(added) = self.0.get(id).filter(|a| a.shape() == part.shape()) else {
                return Ok(None);
            };
            parts.push(part.add(added)?);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        Ok(Some(Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?))
    }
}
