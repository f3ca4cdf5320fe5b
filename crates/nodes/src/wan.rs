//! Conditioning of the Wan video models: which frames are given, which controls go beside them.

use fresco_graph::{NodeEntry, NodeError, entry};
use fresco_tensor::Tensor;

use crate::vae_conditioning::{check_batch, check_video, latent_frames};

mod animate;
mod control;
mod image;
mod latents;
mod sound;
mod talk;
mod track;
mod vace;

pub(crate) use latents::wan21;

pub static NODES: &[NodeEntry] = &[
    entry::<image::WanImageToVideo>(),
    entry::<image::WanFirstLastFrameToVideo>(),
    entry::<image::WanFunInpaintToVideo>(),
    entry::<image::WanCameraImageToVideo>(),
    entry::<image::WanPhantomSubjectToVideo>(),
    entry::<image::Wan22ImageToVideoLatent>(),
    entry::<control::WanFunControlToVideo>(),
    entry::<control::Wan22FunControlToVideo>(),
    entry::<vace::WanVaceToVideo>(),
    entry::<sound::WanSoundImageToVideo>(),
    entry::<sound::WanSoundImageToVideoExtend>(),
    entry::<sound::WanHuMoImageToVideo>(),
    entry::<talk::WanInfiniteTalkToVideo>(),
    entry::<animate::WanAnimateToVideo>(),
    entry::<track::WanTrackToVideo>(),
    entry::<track::WanMoveTrackToVideo>(),
];

/// `[batch, channels, frames, h, w]` of a video's latent.
fn latent_shape(
    batch: usize,
    channels: usize,
    (width, height, length): (usize, usize, usize),
    ratio: usize,
) -> Result<[usize; 5], NodeError> {
    check_batch(batch)?;
    check_video(width, height, length)?;
    let frames = latent_frames(length, 4);
    Ok([batch, channels, frames, height / ratio, width / ratio])
}

/// A mask by pictures, `(1, 1, 4 * frames, h, w)`, as the models take it: four pictures become four channels.
fn fold_mask(mask: &Tensor) -> Result<Tensor, NodeError> {
    let &[_, _, frames, h, w] = mask.shape() else {
        return Err(NodeError::value_error("a video mask has five dimensions"));
    };
    Ok(mask.reshape([1, frames / 4, 4, h, w])?.transpose(1, 2)?)
}
