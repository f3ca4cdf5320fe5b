//! Keys and values of what is before the picture that is made: they do not depend on the noise, so all steps of a run can
//! share them.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::{Device, Tensor};

use crate::error::Result;

/// What the prefix was made of.
#[derive(Clone, PartialEq)]
pub(super) struct PrefixKey {
    pub(super) context: Tensor,
    pub(super) references: Vec<Tensor>,
    pub(super) slots: Vec<usize>,
}

/// Keys and values of each block.
pub(super) type PrefixRows = Arc<Vec<(Tensor, Tensor)>>;

/// Prefixes that are kept: more than a run has prompts.
const MOST: usize = 4;

/// Stands beside a network in [`Hooks::beside`](crate::denoise::hooks::Hooks::beside) for one run.
#[derive(Default)]
pub struct PrefixCache {
    /// Whether they are kept in main memory and copied for every use.
    in_main_memory: bool,
    kept: Mutex<Vec<(PrefixKey, PrefixRows)>>,
}

impl PrefixCache {
    pub fn new(in_main_memory: bool) -> Self {
        Self {
            in_main_memory,
            kept: Mutex::default(),
        }
    }

    pub(super) fn find(&self, key: &PrefixKey) -> Option<PrefixRows> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|(known, _)| known == key);
        found.map(|(_, rows)| Arc::clone(rows))
    }

    pub(super) fn keep(&self, key: PrefixKey, rows: Vec<(Tensor, Tensor)>) -> Result<()> {
        let rows = if self.in_main_memory {
            let cpu = Device::cpu();
            let home = |(k, v): (Tensor, Tensor)| Ok((k.to(&cpu)?, v.to(&cpu)?));
            rows.into_iter().map(home).collect::<Result<_>>()?
        } else {
            rows
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == MOST {
            kept.remove(0);
        }
        kept.push((key, Arc::new(rows)));
        Ok(())
    }
}
