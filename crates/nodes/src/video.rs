//! Video as a value: frames, frame rate and sound in memory. Files need a codec, which this build has not.

use std::sync::Arc;

use fresco_graph::{
    Cx, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Output, Pieces, Value, entry,
    wrong_kind,
};
use fresco_tensor::Tensor;

use crate::audio::Audio;
use crate::types::{Image, add_tensor};

pub static NODES: &[NodeEntry] = &[entry::<CreateVideo>(), entry::<GetVideoComponents>()];

/// A video on a link.
#[derive(Clone)]
pub struct Video {
    /// `(frames, h, w, c)`.
    pub images: Tensor,
    pub audio: Option<Audio>,
    /// Frames a second as an exact fraction; see [`exact_fraction`].
    pub frame_rate: (i128, i128),
}

impl Opaque for Video {
    fn describe(&self) -> String {
        format!("video{:?}", self.images.shape())
    }

    fn bytes(&self) -> u64 {
        self.images.len() as u64 * 4
    }

    fn pieces(&self, pieces: &mut Pieces) {
        add_tensor(pieces, &self.images);
        if let Some(audio) = &self.audio {
            pieces.add_value(&Value::Map(audio.0.clone()));
        }
    }
}

impl Video {
    /// The rate as a number.
    pub fn fps(&self) -> f64 {
        self.frame_rate.0 as f64 / self.frame_rate.1 as f64
    }
}

/// A float as the fraction it is exactly, in lowest terms; none for what no fraction is.
pub fn exact_fraction(value: f64) -> Option<(i128, i128)> {
    if !value.is_finite() || value.abs() >= 1e18 {
        return None;
    }
    let (mut numerator, mut denominator) = (value, 1i128);
    // Doubling is exact, so this ends at the last bit of the mantissa.
    while numerator.fract() != 0.0 {
        if denominator > 1 << 80 {
            return None;
        }
        numerator *= 2.0;
        denominator *= 2;
    }
    Some((numerator as i128, denominator))
}

/// Puts frames and sound together into a video.
#[derive(Node)]
#[node(
    id = "CreateVideo",
    v3,
    module = "comfy_extras.nodes_video",
    display = "Create Video",
    category = "image/video",
    outputs("VIDEO")
)]
pub struct CreateVideo {
    /// The frames.
    images: Image,
    #[input(default = 30.0, min = 1.0, max = 120.0, step = 1.0)]
    fps: f64,
    /// Sound to go with them.
    #[input(optional)]
    audio: Option<Audio>,
}

impl Node for CreateVideo {
    fn run(self, _: &Cx) -> NodeResult {
        let frame_rate = exact_fraction(self.fps)
            .filter(|(n, _)| *n > 0)
            .ok_or_else(|| NodeError::value_error(format!("{} is not a frame rate", self.fps)))?;
        let video = Video {
            images: self.images.0,
            audio: self.audio,
            frame_rate,
        };
        Ok(NodeOutput::one(Value::Object(Arc::new(video))))
    }
}

/// Takes a video apart into frames, sound and frame rate.
#[derive(Node)]
#[node(id = "GetVideoComponents", v3, module = "comfy_extras.nodes_video", display = "Get Video Components",
       category = "image/video", outputs(Output::new("IMAGE").named("images"), Output::new("AUDIO").named("audio"),
       Output::new("FLOAT").named("fps")))]
pub struct GetVideoComponents {
    #[input(ty = "VIDEO")]
    video: Value,
}

impl Node for GetVideoComponents {
    fn run(self, _: &Cx) -> NodeResult {
        let video = self
            .video
            .downcast::<Video>()
            .ok_or_else(|| NodeError::type_error(wrong_kind("VIDEO", &self.video)))?;
        Ok(NodeOutput::slots(vec![
            Image(video.images.clone()).into(),
            video.audio.clone().into(),
            video.fps().into(),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact() {
        assert_eq!(exact_fraction(30.0), Some((30, 1)));
        assert_eq!(
            exact_fraction(23.976),
            Some((210_895_126_300_459, 8_796_093_022_208))
        );
        assert_eq!(exact_fraction(f64::NAN), None);
        assert_eq!(exact_fraction(f64::MIN_POSITIVE), None);
    }
}
