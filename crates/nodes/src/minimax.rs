//! Nodes of MiniMax H3: videos together with their sound.

mod prompts;

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Output, Value,
    entry, wrong_kind,
};
use fresco_models::ModelSampling;
use fresco_models::denoise::BesideShift;
use fresco_models::minimax::latent_frames;
use fresco_tensor::Tensor;

use crate::sampling::Model;
use crate::types::{Image, Latent};

pub static NODES: &[NodeEntry] = &[
    entry::<EmptyMiniMaxH3LatentAv>(),
    entry::<MiniMaxH3SigmaShift>(),
    entry::<MiniMaxH3TextEncoderOnlyReference>(),
    entry::<prompts::MiniMaxH3ImageToVideo>(),
    entry::<prompts::MiniMaxH3ReferenceToVideo>(),
    entry::<prompts::MiniMaxH3AddGuide>(),
];

/// Pixels along a side of a cell, and the channels of latents of pictures and of sound.
const CELL: usize = 16;
const CHANNELS: usize = 24;
const SOUND: usize = 32;
/// Sides are multiples of this.
const SIDE: usize = 32;
/// Frames and latent frames of sound for a second.
const RATE: f64 = 24.0;
const SOUND_RATE: f64 = 40.0;

/// The next number of frames that clips can make: 17 k + 5.
fn whole_frames(length: usize) -> usize {
    length.saturating_sub(5).div_ceil(17) * 17 + 5
}

/// Sides that can be made, at least one cell.
fn whole_side(side: usize) -> usize {
    (side / SIDE).max(1) * SIDE
}

/// An empty video with empty sound.
fn empty(width: usize, height: usize, length: usize) -> Result<Latent, NodeError> {
    let frames = whole_frames(length);
    let (width, height) = (whole_side(width), whole_side(height));
    let video = [
        1,
        CHANNELS,
        latent_frames(frames),
        height / CELL,
        width / CELL,
    ];
    let count = (frames as f64 / RATE * SOUND_RATE)
        .round_ties_even()
        .max(1.0) as usize;
    Ok(Latent::nested(vec![
        Tensor::zeros(video)?,
        Tensor::zeros([1, SOUND, 2, count])?,
    ]))
}

/// An empty latent of a video and its sound.
#[derive(Node)]
#[node(
    id = "EmptyMiniMaxH3LatentAV",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "Empty MiniMax H3 AV Latent",
    category = "model/latent/minimax",
    outputs("LATENT")
)]
pub(super) struct EmptyMiniMaxH3LatentAv {
    #[input(default = 1344, min = 32, max = 16384, step = 32)]
    width: usize,
    #[input(default = 768, min = 32, max = 16384, step = 32)]
    height: usize,
    /// Frames, at 24 a second.
    #[input(default = 124, min = 5, max = 3600, step = 17)]
    length: usize,
}

impl Node for EmptyMiniMaxH3LatentAv {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(empty(
            self.width,
            self.height,
            self.length,
        )?))
    }
}

/// Sets how the noise of pictures and of sound is spread over the steps.
#[derive(Node)]
#[node(
    id = "MiniMaxH3SigmaShift",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "MiniMax H3 Sigma Shift",
    category = "advanced/model",
    outputs("MODEL")
)]
pub(super) struct MiniMaxH3SigmaShift {
    model: Model,
    /// How far the noise levels of pictures move up; higher spends more steps on composition.
    #[input(default = 12.0, min = 0.01, max = 100.0)]
    shift_video: f64,
    /// How far the noise levels of sound move up; higher spends more steps on structure.
    #[input(default = 3.0, min = 0.01, max = 100.0)]
    shift_audio: f64,
}

impl Node for MiniMaxH3SigmaShift {
    fn run(self, _: &Cx) -> NodeResult {
        let shift = BesideShift {
            first: self.shift_video,
            beside: self.shift_audio,
        };
        if shift.first <= 0.0 || shift.beside <= 0.0 {
            return Err(NodeError::value_error("shifts must be above zero"));
        }
        let mut model = self.model;
        model.sampling = Arc::new(ModelSampling::flow(shift.first, 1000.0));
        model.patches.hooks.beside.push(Arc::new(shift));
        Ok(NodeOutput::one(model))
    }
}

/// A picture that only the text encoder sees.
#[derive(Clone)]
pub struct SeenOnly(pub Tensor);

impl Opaque for SeenOnly {
    fn describe(&self) -> String {
        "a picture for the text encoder".to_owned()
    }
}

impl FromValue for SeenOnly {
    const IO: &'static str = "MINIMAX_H3_REFERENCE_IMAGE";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind(Self::IO, &value))
    }
}

impl From<SeenOnly> for Value {
    fn from(image: SeenOnly) -> Self {
        Self::object(image)
    }
}

/// Marks a reference that the text encoder sees and the model does not.
#[derive(Node)]
#[node(
    id = "MiniMaxH3TextEncoderOnlyReference",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "MiniMax H3 Text Encoder Only Reference",
    category = "model/conditioning/minimax",
    outputs(Output::new("MINIMAX_H3_REFERENCE_IMAGE").named("reference_image"))
)]
pub(super) struct MiniMaxH3TextEncoderOnlyReference {
    image: Image,
}

impl Node for MiniMaxH3TextEncoderOnlyReference {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(SeenOnly(self.image.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_sides_are_whole() {
        assert_eq!([1, 5, 6, 22, 124].map(whole_frames), [5, 5, 22, 22, 124]);
        assert_eq!([31, 32, 70].map(whole_side), [32, 32, 64]);
        let latent = empty(64, 64, 22).unwrap();
        let shapes: Vec<_> = latent
            .parts()
            .unwrap()
            .iter()
            .map(fresco_tensor::Tensor::shape)
            .collect();
        assert_eq!(shapes, [&[1, 24, 7, 4, 4][..], &[1, 32, 2, 37][..]]);
    }
}
