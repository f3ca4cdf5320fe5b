//! Conditioning of the shape models: vision features as tokens.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::Tensor;

use crate::types::{Cond, Conditioning, tensor};
use crate::vision::VisionOutput;

/// The tokens as positive, zeros as negative.
fn conditioned(tokens: Tensor) -> NodeResult {
    let zeros = Tensor::zeros(tokens.shape().to_vec())?;
    let wrap = |t: Tensor| {
        Conditioning(vec![Cond {
            tokens: tensor(t),
            options: fresco_graph::Map::new(),
        }])
    };
    Ok(NodeOutput::slots(vec![
        wrap(tokens).into(),
        wrap(zeros).into(),
    ]))
}

/// Conditions a shape model on one picture.
#[derive(Node)]
#[node(id = "Hunyuan3Dv2Conditioning", v3, module = "comfy_extras.nodes_hunyuan3d",
       category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"),
       Output::new("CONDITIONING").named("negative")))]
pub(super) struct Hunyuan3Dv2Conditioning {
    clip_vision_output: VisionOutput,
}

impl Node for Hunyuan3Dv2Conditioning {
    fn run(self, _: &Cx) -> NodeResult {
        conditioned(self.clip_vision_output.tensor("last_hidden_state")?.clone())
    }
}

/// Conditions a shape model on pictures from up to four sides.
#[derive(Node)]
#[node(id = "Hunyuan3Dv2ConditioningMultiView", v3, module = "comfy_extras.nodes_hunyuan3d",
       category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"),
       Output::new("CONDITIONING").named("negative")))]
pub(super) struct Hunyuan3Dv2ConditioningMultiView {
    /// What a vision model saw from the front.
    #[input(optional)]
    front: Option<VisionOutput>,
    /// What a vision model saw from the left.
    #[input(optional)]
    left: Option<VisionOutput>,
    /// What a vision model saw from the back.
    #[input(optional)]
    back: Option<VisionOutput>,
    /// What a vision model saw from the right.
    #[input(optional)]
    right: Option<VisionOutput>,
}

impl Node for Hunyuan3Dv2ConditioningMultiView {
    fn run(self, _: &Cx) -> NodeResult {
        let sides = [self.front, self.left, self.back, self.right];
        let mut tokens = Vec::new();
        for (i, side) in sides.iter().enumerate() {
            if let Some(side) = side {
                let features = side.tensor("last_hidden_state")?;
                let [_, _, width] = features.dims3()?;
                let mark = Tensor::from_slice(&position(width, i));
                tokens.push(features.add(&mark.reshape([1, 1, mark.len()])?)?);
            }
        }
        if tokens.is_empty() {
            return Err(NodeError::value_error(
                "at least one side must be connected",
            ));
        }
        conditioned(Tensor::cat(&tokens.iter().collect::<Vec<_>>(), 1)?)
    }
}

/// Sines then cosines that mark side `index`.
fn position(width: usize, index: usize) -> Vec<f32> {
    let half = width / 2;
    let angle = |k: usize| {
        let power = k as f32 / (width as f32 / 2.0);
        index as f32 * (1.0 / 10000f32.powf(power))
    };
    let sines = (0..half).map(|k| angle(k).sin());
    sines.chain((0..half).map(|k| angle(k).cos())).collect()
}
