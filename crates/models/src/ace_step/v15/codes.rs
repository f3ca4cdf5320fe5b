//! From audio codes, five a second, to latents: finite scalar quantization (Mentzer et al. 2023) and the detokenizer, which
//! makes five frames of each code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fresco_tensor::nn::{Linear, Value};
use fresco_tensor::{Device, Tensor};

use super::config::CodesConfig;
use super::layers::Encoder;
use crate::error::{ModelError, Result};
use crate::store::Walk;

/// How many values each number of a code has, the first changing fastest.
pub(super) const LEVELS: [u32; 6] = [8, 8, 8, 5, 5, 5];
/// How many codes there are.
pub(super) const CODES: u32 = 8 * 8 * 8 * 5 * 5 * 5;
/// Codes that are turned into latents at once: they do not know of each other, so more would only take memory.
const AT_ONCE: usize = 256;
/// Sketches that are remembered.
const REMEMBERED: usize = 4;

/// A sketch and the latents it stands for, in main memory.
struct Sketch {
    codes: Vec<u32>,
    latents: Tensor,
}

/// Turns codes into latents.
pub struct CodeDecoder {
    project_out: Arc<Linear>,
    detokenizer: Encoder,
    special_tokens: Arc<Value>,
    proj_out: Arc<Linear>,
    config: CodesConfig,
    device: Device,
    /// A sketch stays the same for all steps of a run.
    known: Mutex<Vec<Sketch>>,
}

/// The numbers of a code, each between -1 and 1.
fn numbers(code: u32) -> [f32; LEVELS.len()] {
    let mut rest = code;
    LEVELS.map(|levels| {
        let level = rest % levels;
        rest /= levels;
        level as f32 * (2.0 / (levels - 1) as f32) - 1.0
    })
}

impl CodeDecoder {
    pub fn new(weights: &Walk<'_>, config: &CodesConfig) -> Result<Self> {
        let (inside, dim) = (weights.at("detokenizer"), config.shape.dim);
        let quantizer = weights.at("tokenizer").at("quantizer");
        Ok(Self {
            project_out: quantizer.linear("project_out", dim, LEVELS.len())?,
            detokenizer: Encoder::new(&inside, dim, config.layers, config.shape)?,
            special_tokens: inside.value("special_tokens", &[1, config.frames, dim])?,
            proj_out: inside.linear("proj_out", config.channels, dim)?,
            config: config.clone(),
            device: weights.device().clone(),
            known: Mutex::default(),
        })
    }

    /// Latents (b, frames, channels) of codes (b, n), in main memory. What is no code counts as the nearest.
    pub fn forward(&self, codes: &Tensor) -> Result<Tensor> {
        let &[b, n] = codes.shape() else {
            let reason = format!("audio codes of shape {:?} are no list", codes.shape());
            return Err(ModelError::invalid("conditioning", reason));
        };
        if b == 0 || n == 0 {
            return Err(ModelError::invalid(
                "conditioning",
                "there are no audio codes",
            ));
        }
        let codes: Vec<u32> = codes
            .to(&Device::cpu())?
            .data()
            .iter()
            .map(|code| (*code as u32).min(CODES - 1))
            .collect();
        let latents = codes.chunks(n).map(|codes| self.sketched(codes));
        let latents = latents.collect::<Result<Vec<Tensor>>>()?;
        Ok(Tensor::cat(&latents.iter().collect::<Vec<_>>(), 0)?)
    }

    fn remembered(&self) -> MutexGuard<'_, Vec<Sketch>> {
        // Entries are put in whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latents of one sketch, (1, frames, channels).
    fn sketched(&self, codes: &[u32]) -> Result<Tensor> {
        let mut known = self.remembered();
        if let Some(found) = known.iter().find(|sketch| sketch.codes == codes) {
            return Ok(found.latents.clone());
        }
        let parts = codes.chunks(AT_ONCE).map(|some| self.decode(some));
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        let latents = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let frames = codes.len() * self.config.frames;
        let latents = latents.reshape([1, frames, self.config.channels])?;
        if known.len() >= REMEMBERED {
            known.remove(0);
        }
        known.push(Sketch {
            codes: codes.to_vec(),
            latents: latents.clone(),
        });
        Ok(latents)
    }

    /// Latents (codes, frames, channels) in main memory.
    fn decode(&self, codes: &[u32]) -> Result<Tensor> {
        let device = &self.device;
        let values = codes.iter().flat_map(|code| numbers(*code)).collect();
        let values = Tensor::from_vec([codes.len(), 1, LEVELS.len()], values)?;
        let rows = self.project_out.forward(&values.to(device)?)?;
        let rows = self.detokenizer.embed(&rows)?; // (codes, 1, dim)
        let rows = rows.repeat(&[1, self.config.frames, 1])?;
        let rows = rows.add(&self.special_tokens.at(device)?)?;
        let rows = self.detokenizer.layers(rows)?; // (codes, frames, dim)
        Ok(self.proj_out.forward(&rows)?.to(&Device::cpu())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbers_in_a_mixed_base() {
        assert_eq!(numbers(0), [-1.0; 6]);
        assert_eq!(numbers(CODES - 1), [1.0; 6]);
        // 3 + 2 * 8^3 + 4 * 8^3 * 5^2.
        let mixed = 3 + 2 * 512 + 4 * 512 * 25;
        let third = 3.0 * (2.0 / 7.0) - 1.0;
        assert_eq!(numbers(mixed), [third, -1.0, -1.0, 0.0, -1.0, 1.0]);
    }
}
