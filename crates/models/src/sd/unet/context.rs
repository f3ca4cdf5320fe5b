//! Keys and values of the prompt, which stay the same from step to step.
//!
//! They are kept for the last contexts a network saw. At small picture sizes they are a quarter of the work of a pass.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::Tensor;

use crate::error::Result;

/// One pair per transformer block of the network.
type Pairs = Vec<Option<(Tensor, Tensor)>>;

/// More values than this are computed anew in every pass, so that large batches do not hold memory between passes.
const MOST_VALUES: usize = 32 << 20;

/// Contexts that are remembered: prompt and negative prompt, when they go in one after the other.
const KEPT: usize = 2;

/// What a network remembers.
#[derive(Default)]
pub(crate) struct Cache {
    /// The most recent last.
    entries: Mutex<Vec<(Tensor, Arc<Pairs>)>>,
    /// The shape of a context whose keys were too many.
    too_large: Mutex<Option<Vec<usize>>>,
}

impl Cache {
    /// The keys for a pass with this context, which is compared in main memory: one that is elsewhere is not remembered.
    pub(crate) fn begin(&self, context: Option<&Tensor>, slots: usize) -> Keys {
        let Some(context) = context.filter(|context| context.device().is_cpu()) else {
            return Keys::None;
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |(seen, _): &(Tensor, Arc<Pairs>)| seen.is_same(context);
        if let Some(at) = entries.iter().position(same) {
            let entry = entries.remove(at);
            let pairs = Arc::clone(&entry.1);
            entries.push(entry);
            return Keys::Known(pairs);
        }
        let large = self.too_large.lock();
        let large = large.unwrap_or_else(PoisonError::into_inner);
        if large.as_deref() == Some(context.shape()) {
            return Keys::None;
        }
        Keys::Collected(Mutex::new(vec![None; slots]))
    }

    /// Forgets all contexts.
    pub(crate) fn clear(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clear();
    }

    /// Remembers what a pass computed.
    pub(crate) fn end(&self, context: Option<&Tensor>, keys: Keys) {
        let (Some(context), Keys::Collected(pairs)) = (context, keys) else {
            return;
        };
        let pairs = pairs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let values: usize = pairs.iter().flatten().map(|(k, v)| k.len() + v.len()).sum();
        if values > MOST_VALUES {
            let large = self.too_large.lock();
            let mut large = large.unwrap_or_else(PoisonError::into_inner);
            *large = Some(context.shape().to_vec());
        }
        if values == 0 || values > MOST_VALUES {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push((context.clone(), Arc::new(pairs)));
    }
}

/// The keys of one pass.
pub(crate) enum Keys {
    None,
    Known(Arc<Pairs>),
    Collected(Mutex<Pairs>),
}

impl Keys {
    /// Whether no block needs the context itself.
    pub(crate) fn are_known(&self) -> bool {
        matches!(self, Self::Known(pairs) if pairs.iter().all(Option::is_some))
    }

    pub(crate) fn get(
        &self,
        slot: usize,
        project: impl FnOnce() -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        match self {
            Self::None => project(),
            Self::Known(pairs) => match pairs.get(slot) {
                Some(Some(pair)) => Ok(pair.clone()),
                _ => project(),
            },
            Self::Collected(pairs) => {
                let pair = project()?;
                let mut pairs = pairs.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(place) = pairs.get_mut(slot) {
                    *place = Some(pair.clone());
                }
                Ok(pair)
            }
        }
    }
}
