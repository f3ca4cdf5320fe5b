//! LATENT nodes: empty ones, resizing, cutting and joining, batches, arithmetic, operations.

pub mod arrange;
pub mod batch;
pub mod combine;
pub mod empty;
pub mod operation;
pub mod resize;

use fresco_graph::{NodeEntry, NodeError, entry, row};
use fresco_tensor::{Axes, Crop, ResizeMethod, Tensor, common_upscale};

pub static NODES: &[NodeEntry] = &[
    entry::<resize::LatentUpscale>(),
    entry::<resize::LatentUpscaleBy>(),
    entry::<batch::LatentFromBatch>(),
    entry::<batch::RepeatLatentBatch>(),
    entry::<combine::LatentComposite>(),
    entry::<combine::LatentBlend>(),
    entry::<arrange::LatentRotate>(),
    entry::<arrange::LatentFlip>(),
    entry::<arrange::LatentCrop>(),
    entry::<combine::SetLatentNoiseMask>(),
    entry::<combine::LatentAdd>(),
    row(&combine::SUBTRACT),
    entry::<combine::LatentMultiply>(),
    entry::<combine::LatentInterpolate>(),
    entry::<arrange::LatentConcat>(),
    entry::<arrange::LatentCut>(),
    entry::<arrange::LatentCutToBatch>(),
    entry::<batch::LatentBatch>(),
    entry::<batch::LatentBatchSeedBehavior>(),
    entry::<operation::LatentApplyOperation>(),
    entry::<operation::LatentOperationTonemapReinhard>(),
    entry::<operation::LatentOperationSharpen>(),
    entry::<arrange::ReplaceVideoLatentFrames>(),
    entry::<batch::BatchLatentsNode>(),
    entry::<batch::RebatchLatents>(),
    entry::<arrange::TrimVideoLatent>(),
    entry::<combine::NormalizeVideoLatentStart>(),
    entry::<empty::EmptyLatentHunyuan3Dv2>(),
    entry::<empty::EmptyAceStepLatentAudio>(),
    entry::<empty::EmptyLatentAudio>(),
    entry::<empty::EmptyQwenImageLayeredLatentImage>(),
    entry::<empty::StableCascadeEmptyLatentImage>(),
];

/// A size from a link or widget; a negative one is the sender's mistake.
pub(crate) fn size(name: &str, value: i64) -> Result<usize, NodeError> {
    usize::try_from(value)
        .map_err(|_| NodeError::value_error(format!("{name} must not be negative, got {value}")))
}

/// The batch cut or tiled to exactly `count` items.
pub(crate) fn repeat_to_batch(t: &Tensor, count: usize) -> Result<Tensor, NodeError> {
    let have = t.dim(0)?;
    if have == count {
        return Ok(t.clone());
    }
    if have == 0 {
        return Err(NodeError::runtime("cannot repeat an empty batch"));
    }
    let order: Vec<usize> = (0..count).map(|i| i % have).collect();
    Ok(t.index_select(0, &order)?)
}

/// Resizes `t` to the picture size of `target` if anything but the batch differs.
pub(crate) fn match_size(t: &Tensor, target: &[usize]) -> Result<Tensor, NodeError> {
    if t.shape().get(1..) == target.get(1..) {
        return Ok(t.clone());
    }
    let &[.., height, width] = target else {
        return Err(NodeError::runtime(format!(
            "a latent needs a height and a width, got shape {target:?}"
        )));
    };
    Ok(common_upscale(
        t,
        width,
        height,
        ResizeMethod::Bilinear,
        Crop::Center,
    )?)
}

/// Norm over the channels, dimension 1, which stays.
pub(crate) fn channel_norm(t: &Tensor) -> fresco_tensor::Result<Tensor> {
    t.norm(&[1], Axes::Keep)
}
