//! The seam for caches that leave out blocks of a pass: they see the tokens before the first block and after it, and may say
//! what comes out of the others in their place.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fresco_tensor::Tensor;

use super::hooks::{BlockFlow, BlockInfo, BlockKind};
use super::per_cond::CondResiduals;
use crate::error::Result;

/// Where a pass is when a cache is asked.
#[derive(Clone, Copy)]
pub struct CacheStep<'a> {
    /// The block that would run next.
    pub at: BlockInfo<'a>,
    /// A number for the condition of each chunk of the batch.
    pub cond_ids: &'a [usize],
    /// What went into the first block.
    pub entered: &'a BlockFlow,
    /// What came out of it; none while it has not run.
    pub first: Option<&'a BlockFlow>,
    /// What the first block's tokens were when they looked at each other, after norm, scale and shift; for caches that say that
    /// they want it.
    pub modulated: Option<&'a Tensor>,
}

/// Leaves out the rest of the blocks of a kind where little has changed. A run has its own.
pub trait BlockCache: Send + Sync {
    /// Whether it wants to see what the first block's attention looks at.
    fn wants_modulated(&self) -> bool {
        false
    }

    /// What comes out of the last block in place of those that have not run; none if they are to run. Asked before the first
    /// block and after it.
    fn instead(&self, step: &CacheStep<'_>) -> Result<Option<BlockFlow>>;

    /// What came out of the last block, where all have run.
    fn all_ran(&self, step: &CacheStep<'_>, out: &BlockFlow) -> Result<()>;
}

/// Which list of blocks something belongs to: their kind, and the stream of tokens where several have blocks of the kind.
type ListKey = (BlockKind, usize);

/// What lists of blocks added to what flowed into them, for each condition: what most caches remember.
#[derive(Default)]
pub struct Residuals(Mutex<BTreeMap<ListKey, ListResiduals>>);

#[derive(Default)]
struct ListResiduals {
    h: CondResiduals,
    beside: CondResiduals,
}

impl Residuals {
    /// Remembers what leads from one flow to the other.
    pub fn keep(&self, step: &CacheStep<'_>, from: &BlockFlow, to: &BlockFlow) -> Result<()> {
        let mut all = self.lock();
        let added = all.entry((step.at.kind, step.at.index)).or_default();
        added.h.keep(&from.h, &to.h, step.cond_ids)?;
        if let (Some(from), Some(to)) = (&from.beside, &to.beside) {
            added.beside.keep(from, to, step.cond_ids)?;
        }
        Ok(())
    }

    /// A flow with what was added last; none where that is not known for all conditions.
    pub fn add(&self, step: &CacheStep<'_>, flow: &BlockFlow) -> Result<Option<BlockFlow>> {
        let all = self.lock();
        let Some(added) = all.get(&(step.at.kind, step.at.index)) else {
            return Ok(None);
        };
        let Some(h) = added.h.add(&flow.h, step.cond_ids)? else {
            return Ok(None);
        };
        let beside = match &flow.beside {
            Some(beside) => match added.beside.add(beside, step.cond_ids)? {
                None => return Ok(None),
                found => found,
            },
            None => None,
        };
        Ok(Some(BlockFlow { h, beside }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ListKey, ListResiduals>> {
        // What is remembered is replaced as a whole, value by value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
