//! Videos in which a character follows a pose and a face (Animate).

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use super::{fold_mask, latent_shape};
use crate::types::{Conditioning, Image, Latent, Mask, tensor};
use crate::vae::{Vae, first, fit_by, last};
use crate::vae_conditioning::{Pair, begin_with, latent_frames};
use crate::vision::VisionOutput;

/// Side of the pictures of the face.
const FACE: usize = 512;

/// What is left of a video after its first `offset` pictures; none if nothing is.
fn after(video: Option<&Image>, offset: usize) -> Result<Option<Tensor>, NodeError> {
    let Some(video) = video else {
        return Ok(None);
    };
    let count = video.0.dim(0)?;
    if count <= offset {
        return Ok(None);
    }
    Ok(Some(video.0.narrow(0, offset, count - offset)?))
}

fn area(images: &Tensor, width: usize, height: usize) -> Result<Tensor, NodeError> {
    fit_by(images, width, height, ResizeMethod::Area, Crop::Center)
}

/// The mask of the character `(1, 1, frames, h, w)` over the pictures from `offset` on; none if it ends before.
fn character(
    mask: &Mask,
    offset: usize,
    length: usize,
    h: usize,
    w: usize,
) -> Result<Option<Tensor>, NodeError> {
    let [count, mh, mw] = mask.0.dims3()?;
    let part = if count == 1 {
        mask.0.expand(&[length, mh, mw])?
    } else if count > offset {
        first(&mask.0.narrow(0, offset, count - offset)?, length)?
    } else {
        return Ok(None);
    };
    let frames = part.dim(0)?;
    let planes = part.reshape([1, 1, frames, mh, mw])?;
    let fitted = common_upscale(&planes, w, h, ResizeMethod::NearestExact, Crop::Center)?;
    Ok(Some(fitted))
}

/// Makes a Wan video of a character that follows a pose and a face.
#[derive(Node)]
#[node(id = "WanAnimateToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent"), Output::new("INT").named("trim_latent"), Output::new("INT").named("trim_image"), Output::new("INT").named("video_frame_offset")), experimental)]
pub(super) struct WanAnimateToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 77, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    /// How many of the last frames before are used to join this part.
    #[input(default = 5, min = 1, max = 16384, step = 4)]
    continue_motion_max_frames: usize,
    /// Where in the videos this part starts.
    #[input(default = 0, min = 0, max = 16384, step = 1)]
    video_frame_offset: usize,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
    #[input(optional)]
    reference_image: Option<Image>,
    /// Frames of the face to follow.
    #[input(optional)]
    face_video: Option<Image>,
    /// Frames of the pose to follow.
    #[input(optional)]
    pose_video: Option<Image>,
    /// Frames of what is behind the character.
    #[input(optional)]
    background_video: Option<Image>,
    /// Where the character goes.
    #[input(optional)]
    character_mask: Option<Mask>,
    /// The part before, to join this one to it.
    #[input(optional)]
    continue_motion: Option<Image>,
}
impl Node for WanAnimateToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let [batch, channels, frames, h, w] = latent_shape(self.batch_size, 16, size, 8)?;
        let (width, height, length) = size;
        let reference = match &self.reference_image {
            Some(image) => area(&first(&image.0, length)?, width, height)?,
            None => Tensor::zeros([1, height, width, 3])?,
        };
        let reference = self.vae.encode_rgb(&reference, cx)?;
        let trim = reference.dim(2)?;
        let (lh, lw) = (reference.dim(3)?, reference.dim(4)?);

        // Pictures of the part before, so that parts join smoothly.
        let mut offset = self.video_frame_offset;
        let mut known = 0;
        let mut images = Tensor::full([length, height, width, 3], 0.5)?;
        if let Some(before) = &self.continue_motion {
            let before = last(&before.0, self.continue_motion_max_frames)?;
            offset = offset.saturating_sub(before.dim(0)?);
            let before = area(&last(&before, length)?, width, height)?;
            known = latent_frames(before.dim(0)?, 4);
            images = begin_with(&before.narrow(3, 0, 3)?, length)?;
        }
        let known_pictures = (known * 4).saturating_sub(3);

        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        }
        .set_vision(self.clip_vision_output);
        if let Some(pose) = after(self.pose_video.as_ref(), offset)? {
            let pose = area(&first(&pose, length)?, width, height)?;
            let count = pose.dim(0)?;
            let held: Vec<usize> = (0..length).map(|i| i.min(count - 1)).collect();
            let encoded = self.vae.encode_rgb(&pose.index_select(0, &held)?, cx)?;
            pair = pair.set_tensor("pose_video_latent", &encoded);
        }
        if let Some(face) = after(self.face_video.as_ref(), offset)? {
            let face = area(&first(&face, length)?, FACE, FACE)?;
            let face = face
                .map(|v| v * 2.0 - 1.0)
                .permute(&[3, 0, 1, 2])?
                .unsqueeze(0)?;
            let blank = Tensor::full(face.shape().to_vec(), -1.0)?;
            pair.positive = pair.positive.set("face_video_pixels", tensor(face));
            pair.negative = pair.negative.set("face_video_pixels", tensor(blank));
        }
        if let Some(background) = after(self.background_video.as_ref(), offset)? {
            let background = area(&first(&background, length)?, width, height)?;
            let count = background.dim(0)?;
            if count > known_pictures {
                let part = background
                    .narrow(0, known_pictures, count - known_pictures)?
                    .narrow(3, 0, 3)?;
                images.paste(&[known_pictures, 0, 0, 0], &part)?;
            }
        }

        let mut mask = Tensor::ones([1, 1, frames * 4, lh, lw])?;
        let done = Tensor::zeros([1, 1, (known * 4).min(frames * 4), lh, lw])?;
        mask.paste(&[0; 5], &done)?;
        if let Some(shape) = &self.character_mask
            && let Some(part) = character(shape, offset, length, lh, lw)?
        {
            let count = part.dim(2)?;
            if count > known_pictures {
                let part = part.narrow(2, known_pictures, count - known_pictures)?;
                mask.paste(&[0, 0, known_pictures, 0, 0], &part)?;
            }
        }
        let beside = Tensor::cat(&[&reference, &self.vae.encode_rgb(&images, cx)?], 2)?;
        let given = Tensor::zeros([1, 4, trim, lh, lw])?;
        let mask = Tensor::cat(&[&given, &fold_mask(&mask)?], 2)?;
        let pair = pair
            .set_tensor("concat_latent_image", &beside)
            .set_tensor("concat_mask", &mask);
        let samples = Tensor::zeros([batch, channels, frames + trim, h, w])?;
        Ok(NodeOutput::slots(vec![
            pair.positive.into(),
            pair.negative.into(),
            Latent::new(samples).into(),
            trim.into(),
            known_pictures.into(),
            (offset + length).into(),
        ]))
    }
}
