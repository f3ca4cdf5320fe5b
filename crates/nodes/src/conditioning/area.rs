//! Where in the picture, and when in sampling, a conditioning counts.

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Value};

use super::set_mask;
use crate::types::{Conditioning, Mask};

fn set_area(conditioning: Conditioning, area: Vec<Value>, strength: f64) -> Conditioning {
    conditioning
        .set("area", area)
        .set("strength", strength)
        .set("set_area_to_bounds", false)
}

fn percentage(parts: &[f64]) -> Vec<Value> {
    std::iter::once(Value::from("percentage"))
        .chain(parts.iter().map(|p| Value::from(*p)))
        .collect()
}

/// Restricts a conditioning to a rectangle in pixels.
#[derive(Node)]
#[node(
    id = "ConditioningSetArea",
    v1,
    module = "nodes",
    display = "Conditioning (Set Area)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetArea {
    conditioning: Conditioning,
    /// Width of the box in pixels.
    #[input(default = 64, min = 64, max = 16384, step = 8)]
    width: i64,
    /// Height of the box in pixels.
    #[input(default = 64, min = 64, max = 16384, step = 8)]
    height: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    x: i64,
    #[input(default = 0, min = 0, max = 16384, step = 8)]
    y: i64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
}

impl Node for ConditioningSetArea {
    fn run(self, _: &Cx) -> NodeResult {
        let area = [self.height, self.width, self.y, self.x].map(|n| Value::from(n.div_euclid(8)));
        Ok(NodeOutput::one(set_area(
            self.conditioning,
            area.to_vec(),
            self.strength,
        )))
    }
}

/// Restricts a conditioning to a rectangle in parts of the picture.
#[derive(Node)]
#[node(
    id = "ConditioningSetAreaPercentage",
    v1,
    module = "nodes",
    display = "Conditioning (Set Area with Percentage)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetAreaPercentage {
    conditioning: Conditioning,
    /// Width of the box, as a share of the picture.
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    width: f64,
    /// Height of the box, as a share of the picture.
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    height: f64,
    /// Distance from the left edge, as a share of the picture.
    #[input(default = 0, min = 0, max = 1.0, step = 0.01)]
    x: f64,
    /// Distance from the top edge, as a share of the picture.
    #[input(default = 0, min = 0, max = 1.0, step = 0.01)]
    y: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
}

impl Node for ConditioningSetAreaPercentage {
    fn run(self, _: &Cx) -> NodeResult {
        let area = percentage(&[self.height, self.width, self.y, self.x]);
        Ok(NodeOutput::one(set_area(
            self.conditioning,
            area,
            self.strength,
        )))
    }
}

/// Restricts a conditioning to a box in parts of a video.
#[derive(Node)]
#[node(
    id = "ConditioningSetAreaPercentageVideo",
    v1,
    module = "comfy_extras.nodes_video_model",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetAreaPercentageVideo {
    conditioning: Conditioning,
    /// Width of the box, as a share of the picture.
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    width: f64,
    /// Height of the box, as a share of the picture.
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    height: f64,
    /// How long the box lasts, as a share of the video.
    #[input(default = 1.0, min = 0, max = 1.0, step = 0.01)]
    temporal: f64,
    /// Distance from the left edge, as a share of the picture.
    #[input(default = 0, min = 0, max = 1.0, step = 0.01)]
    x: f64,
    /// Distance from the top edge, as a share of the picture.
    #[input(default = 0, min = 0, max = 1.0, step = 0.01)]
    y: f64,
    /// When the box begins, as a share of the video.
    #[input(default = 0, min = 0, max = 1.0, step = 0.01)]
    z: f64,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
}

impl Node for ConditioningSetAreaPercentageVideo {
    fn run(self, _: &Cx) -> NodeResult {
        let area = percentage(&[
            self.temporal,
            self.height,
            self.width,
            self.z,
            self.y,
            self.x,
        ]);
        Ok(NodeOutput::one(set_area(
            self.conditioning,
            area,
            self.strength,
        )))
    }
}

/// Sets how strongly a conditioning counts.
#[derive(Node)]
#[node(
    id = "ConditioningSetAreaStrength",
    v1,
    module = "nodes",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetAreaStrength {
    conditioning: Conditioning,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
}

impl Node for ConditioningSetAreaStrength {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(
            self.conditioning.set("strength", self.strength),
        ))
    }
}

/// Restricts a conditioning to a mask.
#[derive(Node)]
#[node(
    id = "ConditioningSetMask",
    v1,
    module = "nodes",
    display = "Conditioning (Set Mask)",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetMask {
    conditioning: Conditioning,
    /// Where the prompt counts: white in full, black not at all.
    mask: Mask,
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(choices = ["default", "mask bounds"])]
    set_cond_area: String,
}

impl Node for ConditioningSetMask {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(set_mask(
            self.conditioning,
            self.mask.0,
            self.strength,
            &self.set_cond_area,
        )?))
    }
}

/// Restricts a conditioning to a part of sampling.
#[derive(Node)]
#[node(
    id = "ConditioningSetTimestepRange",
    v1,
    module = "nodes",
    category = "advanced/conditioning",
    outputs("CONDITIONING")
)]
pub struct ConditioningSetTimestepRange {
    conditioning: Conditioning,
    /// Where in sampling the prompt begins to count: 0 is the start, 1 the end.
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start: f64,
    /// Where in sampling the prompt ceases to count: 0 is the start, 1 the end.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end: f64,
}

impl Node for ConditioningSetTimestepRange {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(
            self.conditioning
                .set("start_percent", self.start)
                .set("end_percent", self.end),
        ))
    }
}
