//! Empty latents: zeros in the shape that each model family wants.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_tensor::Tensor;

use super::size;
use crate::python_rules::round;
use crate::types::Latent;

fn zeros(shape: &[i64]) -> Result<Latent, NodeError> {
    let shape = shape
        .iter()
        .map(|n| size("a latent size", *n))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Latent::new(Tensor::zeros(shape)?))
}

fn picture(batch: i64, channels: i64, pixels: [i64; 2], cell: i64) -> Result<Latent, NodeError> {
    let [h, w] = pixels.map(|n| n.div_euclid(cell));
    zeros(&[batch, channels, h, w])
}

/// `span` frames become one, except the first, which stands alone.
fn video(
    batch: i64,
    channels: i64,
    frames: i64,
    span: i64,
    pixels: [i64; 2],
    cell: i64,
) -> Result<Latent, NodeError> {
    let [h, w] = pixels.map(|n| n.div_euclid(cell));
    zeros(&[
        batch,
        channels,
        frames.saturating_sub(1).div_euclid(span) + 1,
        h,
        w,
    ])
}

/// An empty latent to make pictures from.
#[derive(Node)]
#[node(
    id = "EmptyLatentImage",
    v1,
    module = "nodes",
    display = "Empty Latent Image",
    category = "latent",
    outputs("LATENT")
)]
pub struct EmptyLatentImage {
    #[input(default = 512, min = 16, max = 16384, step = 8)]
    width: i64,
    #[input(default = 512, min = 16, max = 16384, step = 8)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyLatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(picture(
            self.batch_size,
            4,
            [self.height, self.width],
            8,
        )?))
    }
}

/// An empty latent for SD3, Flux and others with 16 channels.
#[derive(Node)]
#[node(
    id = "EmptySD3LatentImage",
    v3,
    module = "comfy_extras.nodes_sd3",
    category = "latent/sd3",
    outputs("LATENT")
)]
pub struct EmptySD3LatentImage {
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptySD3LatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(picture(
            self.batch_size,
            16,
            [self.height, self.width],
            8,
        )?))
    }
}

/// An empty latent in pixel space for Chroma Radiance.
#[derive(Node)]
#[node(
    id = "EmptyChromaRadianceLatentImage",
    v3,
    module = "comfy_extras.nodes_chroma_radiance",
    category = "latent/chroma_radiance",
    outputs("LATENT")
)]
pub struct EmptyChromaRadianceLatentImage {
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyChromaRadianceLatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(picture(
            self.batch_size,
            3,
            [self.height, self.width],
            1,
        )?))
    }
}

/// An empty latent for Flux 2.
#[derive(Node)]
#[node(
    id = "EmptyFlux2LatentImage",
    v3,
    module = "comfy_extras.nodes_flux",
    display = "Empty Flux 2 Latent",
    category = "latent",
    outputs("LATENT")
)]
pub struct EmptyFlux2LatentImage {
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 1024, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyFlux2LatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(picture(
            self.batch_size,
            128,
            [self.height, self.width],
            16,
        )?))
    }
}

/// An empty video latent for HunyuanVideo and Wan.
#[derive(Node)]
#[node(
    id = "EmptyHunyuanLatentVideo",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    display = "Empty HunyuanVideo 1.0 Latent",
    category = "latent/video",
    outputs("LATENT")
)]
pub struct EmptyHunyuanLatentVideo {
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 25, min = 1, max = 16384, step = 4)]
    length: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyHunyuanLatentVideo {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(video(
            self.batch_size,
            16,
            self.length,
            4,
            [self.height, self.width],
            8,
        )?))
    }
}

/// An empty video latent for HunyuanVideo 1.5.
#[derive(Node)]
#[node(
    id = "EmptyHunyuanVideo15Latent",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    display = "Empty HunyuanVideo 1.5 Latent",
    category = "latent/video",
    outputs("LATENT")
)]
pub struct EmptyHunyuanVideo15Latent {
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 25, min = 1, max = 16384, step = 4)]
    length: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyHunyuanVideo15Latent {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(video(
            self.batch_size,
            32,
            self.length,
            4,
            [self.height, self.width],
            16,
        )?))
    }
}

/// An empty latent for HunyuanImage.
#[derive(Node)]
#[node(
    id = "EmptyHunyuanImageLatent",
    v3,
    module = "comfy_extras.nodes_hunyuan",
    category = "latent",
    outputs("LATENT")
)]
pub struct EmptyHunyuanImageLatent {
    #[input(default = 2048, min = 64, max = 16384, step = 32)]
    width: i64,
    #[input(default = 2048, min = 64, max = 16384, step = 32)]
    height: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyHunyuanImageLatent {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(picture(
            self.batch_size,
            64,
            [self.height, self.width],
            32,
        )?))
    }
}

/// An empty latent for Hunyuan3D 2.
#[derive(Node)]
#[node(
    id = "EmptyLatentHunyuan3Dv2",
    v3,
    module = "comfy_extras.nodes_hunyuan3d",
    category = "latent/3d",
    outputs("LATENT")
)]
pub struct EmptyLatentHunyuan3Dv2 {
    #[input(default = 3072, min = 1, max = 8192)]
    resolution: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyLatentHunyuan3Dv2 {
    fn run(self, _: &Cx) -> NodeResult {
        let latent = zeros(&[self.batch_size, 64, self.resolution])?.with("type", "hunyuan3dv2");
        Ok(NodeOutput::one(latent))
    }
}

/// An empty video latent for LTX-Video.
#[derive(Node)]
#[node(
    id = "EmptyLTXVLatentVideo",
    v3,
    module = "comfy_extras.nodes_lt",
    category = "latent/video/ltxv",
    outputs("LATENT")
)]
pub struct EmptyLTXVLatentVideo {
    #[input(default = 768, min = 64, max = 16384, step = 32)]
    width: i64,
    #[input(default = 512, min = 64, max = 16384, step = 32)]
    height: i64,
    #[input(default = 97, min = 1, max = 16384, step = 8)]
    length: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyLTXVLatentVideo {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(video(
            self.batch_size,
            128,
            self.length,
            8,
            [self.height, self.width],
            32,
        )?))
    }
}

/// An empty video latent for Mochi.
#[derive(Node)]
#[node(
    id = "EmptyMochiLatentVideo",
    v3,
    module = "comfy_extras.nodes_mochi",
    category = "latent/video",
    outputs("LATENT")
)]
pub struct EmptyMochiLatentVideo {
    #[input(default = 848, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 25, min = 7, max = 16384, step = 6)]
    length: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyMochiLatentVideo {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(video(
            self.batch_size,
            12,
            self.length,
            6,
            [self.height, self.width],
            8,
        )?))
    }
}

/// An empty video latent for Cosmos.
#[derive(Node)]
#[node(
    id = "EmptyCosmosLatentVideo",
    v3,
    module = "comfy_extras.nodes_cosmos",
    category = "latent/video",
    outputs("LATENT")
)]
pub struct EmptyCosmosLatentVideo {
    #[input(default = 1280, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 704, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 121, min = 1, max = 16384, step = 8)]
    length: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyCosmosLatentVideo {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(video(
            self.batch_size,
            16,
            self.length,
            8,
            [self.height, self.width],
            8,
        )?))
    }
}

/// An empty audio latent for ACE-Step.
#[derive(Node)]
#[node(
    id = "EmptyAceStepLatentAudio",
    v3,
    module = "comfy_extras.nodes_ace",
    category = "latent/audio",
    outputs("LATENT")
)]
pub struct EmptyAceStepLatentAudio {
    #[input(default = 120.0, min = 1.0, max = 1000.0, step = 0.1)]
    seconds: f64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyAceStepLatentAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let latent = zeros(&[
            self.batch_size,
            8,
            16,
            (self.seconds * 44100.0 / 512.0 / 8.0) as i64,
        ])?
        .with("type", "audio");
        Ok(NodeOutput::one(latent))
    }
}

/// An empty audio latent for Stable Audio.
#[derive(Node)]
#[node(
    id = "EmptyLatentAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "Empty Latent Audio",
    category = "latent/audio",
    outputs("LATENT")
)]
pub struct EmptyLatentAudio {
    #[input(default = 47.6, min = 1.0, max = 1000.0, step = 0.1)]
    seconds: f64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyLatentAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let latent = zeros(&[
            self.batch_size,
            64,
            round(self.seconds * 44100.0 / 2048.0 / 2.0).saturating_mul(2),
        ])?
        .with("type", "audio");
        Ok(NodeOutput::one(latent))
    }
}

/// An empty latent for layered Qwen-Image: the picture and its layers.
#[derive(Node)]
#[node(
    id = "EmptyQwenImageLayeredLatentImage",
    v3,
    module = "comfy_extras.nodes_qwen",
    display = "Empty Qwen Image Layered Latent",
    category = "latent/qwen",
    outputs("LATENT")
)]
pub struct EmptyQwenImageLayeredLatentImage {
    #[input(default = 640, min = 16, max = 16384, step = 16)]
    width: i64,
    #[input(default = 640, min = 16, max = 16384, step = 16)]
    height: i64,
    #[input(default = 3, min = 0, max = 16384, step = 1)]
    layers: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for EmptyQwenImageLayeredLatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        Ok(NodeOutput::one(zeros(&[
            self.batch_size,
            16,
            self.layers.saturating_add(1),
            self.height.div_euclid(8),
            self.width.div_euclid(8),
        ])?))
    }
}

/// The empty latents of both stages of Stable Cascade.
#[derive(Node)]
#[node(id = "StableCascade_EmptyLatentImage", v3, module = "comfy_extras.nodes_stable_cascade", category = "latent/stable_cascade", outputs(Output::new("LATENT").named("stage_c"), Output::new("LATENT").named("stage_b")))]
pub struct StableCascadeEmptyLatentImage {
    #[input(default = 1024, min = 256, max = 16384, step = 8)]
    width: i64,
    #[input(default = 1024, min = 256, max = 16384, step = 8)]
    height: i64,
    #[input(default = 42, min = 4, max = 128, step = 1)]
    compression: i64,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: i64,
}

impl Node for StableCascadeEmptyLatentImage {
    fn run(self, _: &Cx) -> NodeResult {
        let (h, w, cell) = (self.height, self.width, self.compression.max(1));
        let stage_c = zeros(&[self.batch_size, 16, h.div_euclid(cell), w.div_euclid(cell)])?;
        let stage_b = zeros(&[self.batch_size, 4, h.div_euclid(4), w.div_euclid(4)])?;
        Ok(NodeOutput::slots(vec![
            Value::from(stage_c),
            Value::from(stage_b),
        ]))
    }
}
