//! Empty latents: zeros in the shape that each model family wants.

use fresco_graph::{
    Args, Cx, Form, Input, Node, NodeEntry, NodeError, NodeOutput, NodeResult, NodeRow, Output,
    Schema, Value, rows,
};
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

/// An empty latent for pictures or videos of one family: a row of the table below.
struct EmptyLatent {
    id: &'static str,
    form: Form,
    module: &'static str,
    display: Option<&'static str>,
    category: &'static str,
    about: &'static str,
    /// Width and height to begin with.
    size: [i64; 2],
    /// The least width and height, and their step.
    least: i64,
    step: i64,
    frames: Option<Frames>,
    channels: i64,
    /// Pixels of a side that share one place.
    cell: i64,
}

/// How many frames a video begins with and has at least, and how many become one latent frame; the first stands alone.
struct Frames {
    default: i64,
    least: i64,
    span: i64,
}

impl NodeRow for EmptyLatent {
    fn schema(&self) -> Schema {
        let side = |name: &str, default: i64| {
            Input::int(name, default, [self.least, 16384]).option("step", self.step)
        };
        let mut schema = Schema::new(self.id, self.form)
            .module(self.module)
            .category(self.category)
            .description(self.about)
            .output(Output::new("LATENT"))
            .input(side("width", self.size[0]))
            .input(side("height", self.size[1]));
        schema.display_name = self.display.map(Into::into);
        if let Some(frames) = &self.frames {
            let length = Input::int("length", frames.default, [frames.least, 16384]);
            schema = schema.input(length.option("step", frames.span));
        }
        schema.input(Input::int("batch_size", 1, [1, 4096]))
    }

    fn run(&self, mut args: Args, _: &Cx) -> NodeResult {
        let (width, height): (i64, i64) = (args.take("width")?, args.take("height")?);
        let mut shape = Vec::new();
        if let Some(frames) = &self.frames {
            let length: i64 = args.take("length")?;
            shape.push(length.saturating_sub(1).div_euclid(frames.span) + 1);
        }
        shape.extend([height, width].map(|side| side.div_euclid(self.cell)));
        shape.splice(..0, [args.take("batch_size")?, self.channels]);
        Ok(NodeOutput::one(zeros(&shape)?))
    }
}

const PICTURE: EmptyLatent = EmptyLatent {
    id: "",
    form: Form::V3,
    module: "",
    display: None,
    category: "latent",
    about: "",
    size: [1024, 1024],
    least: 16,
    step: 16,
    frames: None,
    channels: 16,
    cell: 8,
};

const VIDEO: EmptyLatent = EmptyLatent {
    category: "latent/video",
    size: [848, 480],
    frames: Some(Frames {
        default: 25,
        least: 1,
        span: 4,
    }),
    ..PICTURE
};

static TABLE: [EmptyLatent; 10] = [
    EmptyLatent {
        id: "EmptyLatentImage",
        form: Form::V1,
        module: "nodes",
        display: Some("Empty Latent Image"),
        about: "An empty latent to make pictures from.",
        size: [512, 512],
        step: 8,
        channels: 4,
        ..PICTURE
    },
    EmptyLatent {
        id: "EmptySD3LatentImage",
        module: "comfy_extras.nodes_sd3",
        category: "latent/sd3",
        about: "An empty latent for SD3, Flux and others with 16 channels.",
        ..PICTURE
    },
    EmptyLatent {
        id: "EmptyChromaRadianceLatentImage",
        module: "comfy_extras.nodes_chroma_radiance",
        category: "latent/chroma_radiance",
        about: "An empty latent in pixel space for Chroma Radiance.",
        channels: 3,
        cell: 1,
        ..PICTURE
    },
    EmptyLatent {
        id: "EmptyFlux2LatentImage",
        module: "comfy_extras.nodes_flux",
        display: Some("Empty Flux 2 Latent"),
        about: "An empty latent for Flux 2.",
        channels: 128,
        cell: 16,
        ..PICTURE
    },
    EmptyLatent {
        id: "EmptyHunyuanImageLatent",
        module: "comfy_extras.nodes_hunyuan",
        about: "An empty latent for HunyuanImage.",
        size: [2048, 2048],
        least: 64,
        step: 32,
        channels: 64,
        cell: 32,
        ..PICTURE
    },
    EmptyLatent {
        id: "EmptyHunyuanLatentVideo",
        module: "comfy_extras.nodes_hunyuan",
        display: Some("Empty HunyuanVideo 1.0 Latent"),
        about: "An empty video latent for HunyuanVideo and Wan.",
        ..VIDEO
    },
    EmptyLatent {
        id: "EmptyHunyuanVideo15Latent",
        module: "comfy_extras.nodes_hunyuan",
        display: Some("Empty HunyuanVideo 1.5 Latent"),
        about: "An empty video latent for HunyuanVideo 1.5.",
        channels: 32,
        cell: 16,
        ..VIDEO
    },
    EmptyLatent {
        id: "EmptyLTXVLatentVideo",
        module: "comfy_extras.nodes_lt",
        category: "latent/video/ltxv",
        about: "An empty video latent for LTX-Video.",
        size: [768, 512],
        least: 64,
        step: 32,
        frames: Some(Frames {
            default: 97,
            least: 1,
            span: 8,
        }),
        channels: 128,
        cell: 32,
        ..VIDEO
    },
    EmptyLatent {
        id: "EmptyMochiLatentVideo",
        module: "comfy_extras.nodes_mochi",
        about: "An empty video latent for Mochi.",
        frames: Some(Frames {
            default: 25,
            least: 7,
            span: 6,
        }),
        channels: 12,
        ..VIDEO
    },
    EmptyLatent {
        id: "EmptyCosmosLatentVideo",
        module: "comfy_extras.nodes_cosmos",
        about: "An empty video latent for Cosmos.",
        size: [1280, 704],
        frames: Some(Frames {
            default: 121,
            least: 1,
            span: 8,
        }),
        ..VIDEO
    },
];

pub static NODES: [NodeEntry; 10] = rows(&TABLE);

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
    /// Number of latent places; more give a finer shape and take more memory.
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
    /// How many layers the picture is made of.
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
    /// Pixels of a side that share one place of the first stage; higher is faster and coarser.
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
