//! Nodes that guide by leaving out blocks of a transformer.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeOutput, NodeResult};
use fresco_models::denoise::hooks::BlockKind;
use fresco_models::denoise::{SkipLayers, SkippedBlocks};

use super::Model;

/// The numbers in a text, whatever stands between them.
fn numbers(text: &str) -> impl Iterator<Item = usize> {
    let runs = text.split(|c: char| !c.is_ascii_digit());
    // No network has a block whose number does not fit.
    runs.filter_map(|run| run.parse().ok())
}

/// Blocks by the numbers in two texts, between two shares of the sampling.
fn skipped(model: &Model, double: &str, single: &str, range: (f64, f64)) -> SkippedBlocks {
    let double = numbers(double).map(|n| (BlockKind::DOUBLE, n));
    let single = numbers(single).map(|n| (BlockKind::SINGLE, n));
    let skipped = SkippedBlocks {
        blocks: double.chain(single).collect(),
        start_sigma: model.sampling.percent_to_sigma(range.0),
        end_sigma: model.sampling.percent_to_sigma(range.1),
    };
    model.warn_of("SkipLayerGuidance", |hooks| {
        *hooks = skipped.installed(hooks);
    });
    skipped
}

fn guided(mut model: Model, skipped: SkippedBlocks, scale: f64, rescale: f64) -> NodeResult {
    if !skipped.blocks.is_empty() {
        model.patches.post_cfg.push(Arc::new(SkipLayers {
            skipped,
            scale,
            rescale,
        }));
    }
    Ok(NodeOutput::one(model))
}

/// Guides away from what the model makes without some of its blocks, early in sampling: better shapes for SD3.5.
#[derive(Node)]
#[node(
    id = "SkipLayerGuidanceSD3",
    v3,
    module = "comfy_extras.nodes_sd3",
    category = "advanced/guidance",
    outputs("MODEL"),
    experimental
)]
pub struct SkipLayerGuidanceSD3 {
    model: Model,
    /// Numbers of the blocks that are left out.
    #[input(default = "7, 8, 9", multiline = false)]
    layers: String,
    #[input(default = 3.0, min = 0.0, max = 10.0, step = 0.1)]
    scale: f64,
    #[input(default = 0.01, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 0.15, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}

impl Node for SkipLayerGuidanceSD3 {
    fn run(self, _: &Cx) -> NodeResult {
        let range = (self.start_percent, self.end_percent);
        let skipped = skipped(&self.model, &self.layers, "", range);
        guided(self.model, skipped, self.scale, 0.0)
    }
}

/// Guides away from what a transformer makes without some of its blocks.
#[derive(Node)]
#[node(
    id = "SkipLayerGuidanceDiT",
    v3,
    module = "comfy_extras.nodes_slg",
    category = "advanced/guidance",
    outputs("MODEL"),
    experimental
)]
pub struct SkipLayerGuidanceDiT {
    model: Model,
    /// Numbers of the blocks with weights of their own for picture and prompt.
    #[input(default = "7, 8, 9", multiline = false)]
    double_layers: String,
    /// Numbers of the blocks with one set of weights.
    #[input(default = "7, 8, 9", multiline = false)]
    single_layers: String,
    #[input(default = 3.0, min = 0.0, max = 10.0, step = 0.1)]
    scale: f64,
    #[input(default = 0.01, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 0.15, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    /// How much of the contrast before is restored.
    #[input(default = 0.0, min = 0.0, max = 10.0, step = 0.01)]
    rescaling_scale: f64,
}

impl Node for SkipLayerGuidanceDiT {
    fn run(self, _: &Cx) -> NodeResult {
        let range = (self.start_percent, self.end_percent);
        let skipped = skipped(&self.model, &self.double_layers, &self.single_layers, range);
        guided(self.model, skipped, self.scale, self.rescaling_scale)
    }
}

/// Leaves blocks out of the prediction without the prompt, which costs no further pass.
#[derive(Node)]
#[node(
    id = "SkipLayerGuidanceDiTSimple",
    v3,
    module = "comfy_extras.nodes_slg",
    category = "advanced/guidance",
    outputs("MODEL"),
    experimental
)]
pub struct SkipLayerGuidanceDiTSimple {
    model: Model,
    /// Numbers of the blocks with weights of their own for picture and prompt.
    #[input(default = "7, 8, 9", multiline = false)]
    double_layers: String,
    /// Numbers of the blocks with one set of weights.
    #[input(default = "7, 8, 9", multiline = false)]
    single_layers: String,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}

impl Node for SkipLayerGuidanceDiTSimple {
    fn run(self, _: &Cx) -> NodeResult {
        let range = (self.start_percent, self.end_percent);
        let skipped = skipped(&self.model, &self.double_layers, &self.single_layers, range);
        let mut model = self.model;
        if !skipped.blocks.is_empty() {
            model.patches.skipped_in_uncond = Some(skipped);
        }
        Ok(NodeOutput::one(model))
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn numbers_are_runs_of_digits() {
        let found: Vec<usize> = numbers(" 7, 8;x12-3.4 99999999999999999999999").collect();
        assert_eq!(found, [7, 8, 12, 3, 4]);
        assert_eq!(numbers("none").count(), 0);
    }
}
