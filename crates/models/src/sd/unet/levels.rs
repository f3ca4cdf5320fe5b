//! What the blocks of a network make of a noise level.
//!
//! It depends on nothing else, and pictures are usually made with the same levels again: a GPU, on which reading the layers for it takes as long as a
//! convolution, keeps what it has made of the last ones.

use std::sync::{Arc, Mutex, PoisonError};

use fresco_tensor::nn::Linear;
use fresco_tensor::{Device, Tensor};

use crate::error::Result;

/// Noise levels that are remembered: some 50 KB each.
const KEPT: usize = 128;

/// A noise level as blocks see it.
pub(super) struct Levels<'a> {
    /// After SiLU, (items, c), or one for all.
    pub(super) emb: Tensor,
    /// What the layers of blocks make of it, where they were asked together.
    pub(super) of_blocks: Vec<(&'a Arc<Linear>, Tensor)>,
}

/// What layers made of one level, one after the other, then the embedding, and where each is.
#[derive(Clone)]
struct Known {
    all: Tensor,
    places: Vec<(usize, usize)>,
}

/// Noise levels that a network remembers.
#[derive(Default)]
pub(super) struct KnownLevels {
    /// By the bits of the level, the most recent last.
    entries: Mutex<Vec<(u32, Known)>>,
}

impl KnownLevels {
    /// What layers make of one level. `make` is asked for what is not remembered.
    pub(super) fn get<'a>(
        &self,
        timestep: f32,
        device: &Device,
        layers: &[&'a Arc<Linear>],
        make: impl Fn() -> Result<Levels<'a>>,
    ) -> Result<Levels<'a>> {
        let known = self.find(timestep, device);
        let known = known.map_or_else(|| device.outside_of_step(|| self.keep(timestep, &make)), Ok);
        // Where it cannot be kept, the step itself may still have room for it.
        let Ok(Known { all, places }) = known else {
            return make();
        };
        // A copy, so that a step finds it at the same place whatever its noise level is.
        let mut pieces = all.repeat(&[1, 1])?.pieces(&places)?;
        let Some(emb) = pieces.pop() else {
            return make();
        };
        let of_blocks = layers.iter().copied().zip(pieces).collect();
        Ok(Levels { emb, of_blocks })
    }

    /// What is remembered of a level on a device. What is elsewhere is not found, and goes when newer levels come.
    fn find(&self, timestep: f32, device: &Device) -> Option<Known> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let bits = timestep.to_bits();
        let is_it = |(level, known): &(u32, Known)| *level == bits && known.all.device() == *device;
        let at = entries.iter().position(is_it)?;
        let entry = entries.remove(at);
        let known = entry.1.clone();
        entries.push(entry);
        Some(known)
    }

    fn keep<'a>(&self, timestep: f32, make: impl Fn() -> Result<Levels<'a>>) -> Result<Known> {
        let made = make()?;
        let parts = made.of_blocks.iter().map(|(_, level)| level);
        let parts: Vec<&Tensor> = parts.chain([&made.emb]).collect();
        let (all, places) = Tensor::in_one_row(&parts)?;
        let known = Known { all, places };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT {
            entries.remove(0);
        }
        entries.push((timestep.to_bits(), known.clone()));
        Ok(known)
    }

    /// Forgets all levels.
    pub(super) fn clear(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fresco_tensor::Stored;

    use super::*;
    use crate::error::ModelError;

    #[test]
    fn levels_are_made_once_and_forgotten_when_asked() {
        let device = Device::cpu();
        let layer = |out: usize| {
            let weight = Stored::from(&Tensor::zeros([out, 4]).unwrap());
            Arc::new(Linear::new(&weight, None, &device).unwrap())
        };
        let layers = [layer(3), layer(5)];
        let layers: Vec<&Arc<Linear>> = layers.iter().collect();
        let known = KnownLevels::default();
        let (made, fails) = (Cell::new(0), Cell::new(0));
        let ask = |level: f32| {
            let make = || {
                if fails.get() > 0 {
                    fails.set(fails.get() - 1);
                    return Err(ModelError::invalid("test", "no room"));
                }
                made.set(made.get() + 1);
                let row = |n: usize| Tensor::from_fn([1, n], |i| level + i as f32);
                let of_blocks = layers.iter().map(|layer| {
                    let level = row(layer.out_features())?;
                    Ok((*layer, level))
                });
                let of_blocks = of_blocks.collect::<Result<_>>()?;
                let emb = row(4)?;
                Ok(Levels { emb, of_blocks })
            };
            known.get(level, &device, &layers, make)
        };
        let check = |level: f32| {
            let found = ask(level).unwrap();
            assert_eq!(found.emb.data(), [0., 1., 2., 3.].map(|i| level + i));
            let widths = found.of_blocks.iter().map(|(_, level)| level.shape());
            assert_eq!(widths.collect::<Vec<_>>(), [[1, 3], [1, 5]]);
            assert_eq!(found.of_blocks[1].1.data()[4], level + 4.0);
        };
        for level in [1.0, 2.0, 1.0, 2.0] {
            check(level);
        }
        assert_eq!(made.get(), 2);
        // What is on one device is not found for another.
        assert!(known.find(1.0, &device).is_some());
        let other = Device::register_sim(7391, 1 << 20).unwrap();
        assert!(known.find(1.0, &other).is_none());
        known.clear();
        check(1.0);
        assert_eq!(made.get(), 3);
        // What cannot be kept is made for the one use, and asked for again.
        fails.set(1);
        check(5.0);
        check(5.0);
        assert_eq!(made.get(), 5);
        fails.set(2);
        assert!(ask(6.0).is_err());
        // The oldest go.
        for level in 0..KEPT {
            check(100.0 + level as f32);
        }
        let before = made.get();
        check(100.0);
        check(1.0);
        assert_eq!(made.get(), before + 1);
    }
}
