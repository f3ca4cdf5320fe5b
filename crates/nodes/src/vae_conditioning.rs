//! Conditioning and latents made from pictures through a VAE, for the models that start from a picture.

use fresco_graph::{Map, NodeEntry, NodeError, NodeOutput, NodeResult, Value, entry, map};
use fresco_tensor::Tensor;

use crate::types::{Conditioning, Latent, tensor};
use crate::vision::VisionOutput;

mod inpaint;
mod orbit;
mod references;
mod video;

pub static NODES: &[NodeEntry] = &[
    entry::<inpaint::VaeEncodeForInpaint>(),
    entry::<inpaint::InpaintModelConditioning>(),
    entry::<inpaint::InstructPixToPixConditioning>(),
    entry::<references::ReferenceMultiLatent>(),
    entry::<orbit::SvdImg2vidConditioning>(),
    entry::<orbit::StableZero123Conditioning>(),
    entry::<orbit::StableZero123ConditioningBatched>(),
    entry::<orbit::SV3DConditioning>(),
    entry::<orbit::StableCascadeStageCVaeEncode>(),
    entry::<orbit::StableCascadeSuperResolutionControlnet>(),
    entry::<video::HunyuanImageToVideo>(),
    entry::<video::HunyuanVideo15ImageToVideo>(),
    entry::<video::HunyuanVideo15SuperResolution>(),
    entry::<video::CosmosImageToVideoLatent>(),
    entry::<video::CosmosPredict2ImageToVideoLatent>(),
    entry::<video::Kandinsky5ImageToVideo>(),
    entry::<video::LTXVImgToVideo>(),
    entry::<video::LTXVAddGuide>(),
];

/// A positive and a negative conditioning that mostly get the same entries.
pub(crate) struct Pair {
    pub(crate) positive: Conditioning,
    pub(crate) negative: Conditioning,
}

impl Pair {
    pub(crate) fn set(self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        Self {
            positive: self.positive.set(key, value.clone()),
            negative: self.negative.set(key, value),
        }
    }

    pub(crate) fn set_tensor(self, key: &str, value: &Tensor) -> Self {
        self.set(key, tensor(value.clone()))
    }

    pub(crate) fn append_tensor(self, key: &str, value: &Tensor) -> Self {
        let value = tensor(value.clone());
        Self {
            positive: self.positive.append(key, value.clone()),
            negative: self.negative.append(key, value),
        }
    }

    /// What a vision encoder saw, where one is connected.
    pub(crate) fn set_vision(self, output: Option<VisionOutput>) -> Self {
        match output {
            Some(output) => self.set("clip_vision_output", output),
            None => self,
        }
    }

    /// Both, then the latent.
    pub(crate) fn with_latent(self, samples: Tensor) -> NodeResult {
        Ok(NodeOutput::slots(vec![
            self.positive.into(),
            self.negative.into(),
            Latent::new(samples).into(),
        ]))
    }
}

/// Latent frames that `frames` pictures make when `ratio` of them go into one and the first stands alone.
pub(crate) fn latent_frames(frames: usize, ratio: usize) -> usize {
    frames.saturating_sub(1) / ratio + 1
}

/// Refuses sizes that no video has before anything is allocated.
pub(crate) fn check_video(width: usize, height: usize, length: usize) -> Result<(), NodeError> {
    let pixels = width.saturating_mul(height).saturating_mul(length);
    if pixels == 0 || pixels > 1 << 31 || length > 1 << 16 {
        return Err(NodeError::value_error(format!(
            "a video of {length} frames of {width} x {height} cannot be made"
        )));
    }
    Ok(())
}

/// Refuses batches that no machine can hold, and that loops over them would hang on.
pub(crate) fn check_batch(count: usize) -> Result<(), NodeError> {
    if count > 1 << 16 {
        return Err(NodeError::value_error(format!(
            "a batch of {count} cannot be made"
        )));
    }
    Ok(())
}

/// `length` grey pictures that begin with the given ones.
pub(crate) fn begin_with(images: &Tensor, length: usize) -> Result<Tensor, NodeError> {
    let [count, h, w, c] = images.dims4()?;
    if count >= length {
        return Ok(images.narrow(0, 0, length)?);
    }
    let rest = Tensor::full([length - count, h, w, c], 0.5)?;
    Ok(Tensor::cat(&[images, &rest], 0)?)
}

/// Ones of `(1, 1, frames, h, w)` with zeros in the first `known` frames.
pub(crate) fn frame_mask(
    frames: usize,
    h: usize,
    w: usize,
    known: usize,
) -> Result<Tensor, NodeError> {
    let mut mask = Tensor::ones([1, 1, frames, h, w])?;
    let end = known.min(frames) * h * w;
    mask.data_mut()[..end].fill(0.0);
    Ok(mask)
}

/// Copies `(b, c, t, h, w)` over the frames of `into` from `start`; what does not fit is left out. A batch or channel
/// count of one spreads.
pub(crate) fn put_frames(
    into: &mut Tensor,
    start: usize,
    frames: &Tensor,
) -> Result<(), NodeError> {
    let shape = into.shape().to_vec();
    let (Some(room), &[b, c, _, h, w]) = (
        shape.get(2).and_then(|t| t.checked_sub(start)),
        shape.as_slice(),
    ) else {
        return Err(NodeError::value_error("a video latent has five dimensions"));
    };
    let count = room.min(frames.dim(2)?);
    let part = frames.narrow(2, 0, count)?.expand(&[b, c, count, h, w])?;
    into.paste(&[0, 0, start, 0, 0], &part)?;
    Ok(())
}

/// The batch repeated `count` times.
pub(crate) fn repeat_batch(t: &Tensor, count: usize) -> Result<Tensor, NodeError> {
    check_batch(count)?;
    let mut counts = vec![1; t.rank()];
    counts[0] = count;
    Ok(t.repeat(&counts)?)
}

/// One conditioning entry.
fn entry_of(tokens: Tensor, options: Map) -> Conditioning {
    Conditioning(vec![crate::types::Cond {
        tokens: tensor(tokens),
        options,
    }])
}

/// Samples with a mask of what is still to be made.
pub(crate) fn masked(samples: Tensor, mask: Tensor) -> Value {
    map! {"samples" => tensor(samples), "noise_mask" => tensor(mask)}.into()
}
