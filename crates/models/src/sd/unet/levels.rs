//! What the blocks of a network make of a noise level.
//!
//! It depends on nothing else, and pictures are usually made with the same levels again: a GPU, on which reading the layers for it takes as long as a
//! convolution, keeps what it has made of the last ones.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::nn::Linear;
use fresco_tensor::{Device, Tensor};

use crate::error::{ModelError, Result};

/// Noise levels that are remembered: some 50 KB each.
const KEPT: usize = 128;

/// What a layer made begins at a multiple of so many elements, which is 256 bytes of halves.
const APART: usize = 128;

/// A noise level as blocks see it.
pub(super) struct Levels<'a> {
    /// After SiLU, (items, c), or one for all.
    pub(super) emb: Tensor,
    /// What the layers of blocks make of it, where they were asked together.
    pub(super) of_blocks: Vec<(&'a Arc<Linear>, Tensor)>,
}

/// Noise levels that a network remembers.
#[derive(Default)]
pub(super) struct KnownLevels {
    /// By the bits of the level: what all layers made of it, one after the other, then the embedding. The most recent last.
    entries: Mutex<Vec<(u32, Tensor)>>,
}

impl KnownLevels {
    /// What layers make of one level. `make` is asked for what is not remembered.
    pub(super) fn get<'a>(
        &self,
        timestep: f32,
        layers: &[&'a Arc<Linear>],
        device: &Device,
        make: impl FnOnce() -> Result<Levels<'a>>,
    ) -> Result<Levels<'a>> {
        let known = match self.find(timestep) {
            Some(known) => known,
            None => device.outside_of_step(|| {
                let all = joined(&make()?)?;
                self.keep(timestep, all.clone());
                Ok::<_, ModelError>(all)
            })?,
        };
        // A copy, so that a step finds it at the same place whatever its noise level is.
        let here = known.repeat(&[1, 1])?;
        let mut start = 0;
        let mut place = |width: usize| {
            let place = (start, width);
            start += width.next_multiple_of(APART);
            place
        };
        let widths = layers.iter().map(|layer| layer.out_features());
        let embedded = layers.first().map_or(0, |layer| layer.in_features());
        let places: Vec<_> = widths.chain([embedded]).map(&mut place).collect();
        let mut pieces = here.pieces(&places)?;
        let lost = || ModelError::invalid("unet", "no noise level");
        let emb = pieces.pop().ok_or_else(lost)?;
        let of_blocks = layers.iter().copied().zip(pieces).collect();
        Ok(Levels { emb, of_blocks })
    }

    fn find(&self, timestep: f32) -> Option<Tensor> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = timestep.to_bits();
        let at = entries.iter().position(|(level, _)| *level == bits)?;
        let entry = entries.remove(at);
        let known = entry.1.clone();
        entries.push(entry);
        Some(known)
    }

    fn keep(&self, timestep: f32, made: Tensor) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push((timestep.to_bits(), made));
    }

    /// Forgets all levels.
    pub(super) fn clear(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clear();
    }
}

/// What layers made of one noise level, then its embedding, each with zeros up to where the next begins.
fn joined(levels: &Levels<'_>) -> Result<Tensor> {
    let parts = levels.of_blocks.iter().map(|(_, level)| level);
    let mut padded = Vec::with_capacity(2 * levels.of_blocks.len());
    for part in parts.chain([&levels.emb]) {
        let width = part.len();
        padded.push(part.reshape([1, width])?);
        let missing = width.next_multiple_of(APART) - width;
        if missing > 0 {
            padded.push(Tensor::zeros([1, missing])?.to(&part.device())?);
        }
    }
    Ok(Tensor::cat(&padded.iter().collect::<Vec<_>>(), 1)?)
}
