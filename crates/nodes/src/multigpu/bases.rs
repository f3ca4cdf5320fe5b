//! The loaders that families of inputs are added to: what they are called, what they take, how they load.

use std::sync::{Arc, LazyLock};

use fresco_graph::{Args, Cx, Input, NodeError, NodeOutput, NodeResult, Schema};

use super::gguf;
use crate::clip::{FOUR, THREE, load_clip};
use crate::control::{load_control, load_diff_control};
use crate::loaders::{
    CheckpointOptions, load_checkpoint, load_diffusers, load_diffusion_model, load_vae, load_vision,
};
use crate::resident::LoadOptions;
use crate::sampling::Model;

/// A loader as a row of a table.
pub(crate) struct Loader {
    /// The class of the plain node.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    /// Of text or pictures.
    pub(crate) encoder: bool,
    pub(crate) inputs: fn() -> Vec<Input>,
    pub(crate) outputs: &'static [&'static str],
    pub(crate) load: fn(&mut Args, LoadOptions, &Cx) -> NodeResult,
}

/// A type for each loader, so that each node can be one.
pub(crate) trait Base: Send + 'static {
    const LOADER: Loader;
}

const WHOLE: &[&str] = &["MODEL", "CLIP", "VAE"];

/// What the plain loaders declare; made once, because each of them is asked for several times.
static PLAIN: LazyLock<Vec<Arc<Schema>>> = LazyLock::new(|| {
    let families = [
        crate::loaders::NODES,
        crate::clip::NODES,
        crate::control::NODES,
    ];
    let entries = families.into_iter().flatten();
    entries.map(|entry| entry.class().schema()).collect()
});

/// The inputs of the plain node, without the choice of device that some have.
fn inputs_of(id: &str) -> Vec<Input> {
    let found = PLAIN.iter().find(|schema| &*schema.id == id);
    let inputs = found.into_iter().flat_map(|schema| &schema.inputs);
    let kept = inputs.filter(|input| &*input.name != "device");
    kept.cloned().collect()
}

/// All parts of a model on one device; only the network that removes noise is spread over others, and only it makes room.
pub(crate) fn parts(options: LoadOptions) -> CheckpointOptions {
    let rest = LoadOptions {
        placement: None,
        eject_others: fresco_memory::EjectOthers::None,
        ..options.clone()
    };
    CheckpointOptions {
        model: options,
        clip: rest.clone(),
        vae: rest,
    }
}

fn text(args: &mut Args, name: &str) -> Result<String, NodeError> {
    args.take(name)
}

pub(crate) struct Checkpoint;

impl Base for Checkpoint {
    const LOADER: Loader = Loader {
        id: "CheckpointLoaderSimple",
        title: "Load Checkpoint",
        about: "Loads a diffusion model with its text encoder and its VAE.",
        encoder: false,
        inputs: || inputs_of("CheckpointLoaderSimple"),
        outputs: WHOLE,
        load: |args, options, cx| load_checkpoint(cx, &text(args, "ckpt_name")?, &parts(options)),
    };
}

pub(crate) struct Unet;

impl Base for Unet {
    const LOADER: Loader = Loader {
        id: "UNETLoader",
        title: "Load Diffusion Model",
        about: "Loads a diffusion model without text encoder and VAE.",
        encoder: false,
        inputs: || inputs_of("UNETLoader"),
        outputs: &["MODEL"],
        load: |args, options, cx| {
            let (name, dtype) = (text(args, "unet_name")?, text(args, "weight_dtype")?);
            Ok(NodeOutput::one(load_diffusion_model(
                cx, &name, &dtype, &options,
            )?))
        },
    };
}

pub(crate) struct Vae;

impl Base for Vae {
    const LOADER: Loader = Loader {
        id: "VAELoader",
        title: "Load VAE",
        about: "Loads a VAE from a file.",
        encoder: false,
        inputs: || inputs_of("VAELoader"),
        outputs: &["VAE"],
        load: |args, options, cx| {
            let vae = load_vae(cx, &text(args, "vae_name")?, &options)?;
            Ok(NodeOutput::one(vae))
        },
    };
}

pub(crate) struct Clip;

impl Base for Clip {
    const LOADER: Loader = Loader {
        id: "CLIPLoader",
        title: "Load CLIP",
        about: "Loads a text encoder from a file.",
        encoder: true,
        inputs: || inputs_of("CLIPLoader"),
        outputs: &["CLIP"],
        load: one_clip,
    };
}

pub(crate) struct DualClip;

impl Base for DualClip {
    const LOADER: Loader = Loader {
        id: "DualCLIPLoader",
        title: "DualCLIPLoader",
        about: "Loads a text encoder that consists of two networks, each from its file.",
        encoder: true,
        inputs: || inputs_of("DualCLIPLoader"),
        outputs: &["CLIP"],
        load: two_clips,
    };
}

pub(crate) struct TripleClip;

impl Base for TripleClip {
    const LOADER: Loader = Loader {
        id: "TripleCLIPLoader",
        title: "TripleCLIPLoader",
        about: "Loads a text encoder that consists of three networks, each from its file.",
        encoder: true,
        inputs: || inputs_of("TripleCLIPLoader"),
        outputs: &["CLIP"],
        load: three_clips,
    };
}

pub(crate) struct QuadrupleClip;

impl Base for QuadrupleClip {
    const LOADER: Loader = Loader {
        id: "QuadrupleCLIPLoader",
        title: "QuadrupleCLIPLoader",
        about: "Loads a text encoder that consists of four networks, each from its file.",
        encoder: true,
        inputs: || inputs_of("QuadrupleCLIPLoader"),
        outputs: &["CLIP"],
        load: four_clips,
    };
}

/// Several files of which their number says what they make together.
fn several_clips(
    args: &mut Args,
    names: &[&str],
    kind: &str,
    options: &LoadOptions,
    cx: &Cx,
) -> NodeResult {
    let files = names.iter().map(|name| text(args, name));
    let files = files.collect::<Result<Vec<String>, _>>()?;
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    Ok(NodeOutput::one(load_clip(cx, &files, kind, options)?))
}

fn three_clips(args: &mut Args, options: LoadOptions, cx: &Cx) -> NodeResult {
    let names = ["clip_name1", "clip_name2", "clip_name3"];
    several_clips(args, &names, THREE, &options, cx)
}

fn four_clips(args: &mut Args, options: LoadOptions, cx: &Cx) -> NodeResult {
    let names = ["clip_name1", "clip_name2", "clip_name3", "clip_name4"];
    several_clips(args, &names, FOUR, &options, cx)
}

fn one_clip(args: &mut Args, options: LoadOptions, cx: &Cx) -> NodeResult {
    let (name, family) = (text(args, "clip_name")?, text(args, "type")?);
    Ok(NodeOutput::one(load_clip(cx, &[&name], &family, &options)?))
}

fn two_clips(args: &mut Args, options: LoadOptions, cx: &Cx) -> NodeResult {
    let (one, two) = (text(args, "clip_name1")?, text(args, "clip_name2")?);
    let family = text(args, "type")?;
    let clip = load_clip(cx, &[&one, &two], &family, &options)?;
    Ok(NodeOutput::one(clip))
}

pub(crate) struct ClipVision;

impl Base for ClipVision {
    const LOADER: Loader = Loader {
        id: "CLIPVisionLoader",
        title: "Load CLIP Vision",
        about: "Loads a model that looks at pictures.",
        encoder: true,
        inputs: || inputs_of("CLIPVisionLoader"),
        outputs: &["CLIP_VISION"],
        load: |args, options, cx| {
            let vision = load_vision(cx, &text(args, "clip_name")?, &options)?;
            Ok(NodeOutput::one(vision))
        },
    };
}

pub(crate) struct ControlNet;

impl Base for ControlNet {
    const LOADER: Loader = Loader {
        id: "ControlNetLoader",
        title: "Load ControlNet Model",
        about: "Loads a control net.",
        encoder: false,
        inputs: || inputs_of("ControlNetLoader"),
        outputs: &["CONTROL_NET"],
        load: |args, options, cx| {
            let net = load_control(cx, &text(args, "control_net_name")?, &options)?;
            Ok(NodeOutput::one(net))
        },
    };
}

pub(crate) struct DiffControlNet;

impl Base for DiffControlNet {
    const LOADER: Loader = Loader {
        id: "DiffControlNetLoader",
        title: "Load ControlNet Model (diff)",
        about: "Loads a control net that is stored as its difference from a model.",
        encoder: false,
        inputs: || inputs_of("DiffControlNetLoader"),
        outputs: &["CONTROL_NET"],
        load: |args, options, cx| {
            let model: Model = args.take("model")?;
            let name = text(args, "control_net_name")?;
            let net = load_diff_control(cx, &model, &name, &options)?;
            Ok(NodeOutput::one(net))
        },
    };
}

pub(crate) struct Diffusers;

impl Base for Diffusers {
    const LOADER: Loader = Loader {
        id: "DiffusersLoader",
        title: "DiffusersLoader",
        about: "Loads a model from a folder in the layout of diffusers.",
        encoder: false,
        inputs: || inputs_of("DiffusersLoader"),
        outputs: WHOLE,
        load: |args, options, cx| load_diffusers(cx, &text(args, "model_path")?, &parts(options)),
    };
}

pub(crate) struct UnetGguf;

impl Base for UnetGguf {
    const LOADER: Loader = Loader {
        id: "UnetLoaderGGUF",
        title: "Unet Loader (GGUF)",
        about: "Loads a quantised diffusion model.",
        encoder: false,
        inputs: || vec![gguf::unet_input()],
        outputs: &["MODEL"],
        load: gguf::load,
    };
}

pub(crate) struct UnetGgufAdvanced;

impl Base for UnetGgufAdvanced {
    const LOADER: Loader = Loader {
        id: "UnetLoaderGGUFAdvanced",
        title: "Unet Loader (GGUF/Advanced)",
        about: "Loads a quantised diffusion model.",
        encoder: false,
        inputs: gguf::advanced_inputs,
        outputs: &["MODEL"],
        load: gguf::load,
    };
}

pub(crate) struct ClipGguf;

impl Base for ClipGguf {
    const LOADER: Loader = Loader {
        id: "CLIPLoaderGGUF",
        title: "CLIPLoader (GGUF)",
        about: "Loads a text encoder, quantised or not.",
        encoder: true,
        inputs: Clip::LOADER.inputs,
        outputs: &["CLIP"],
        load: one_clip,
    };
}

pub(crate) struct DualClipGguf;

impl Base for DualClipGguf {
    const LOADER: Loader = Loader {
        id: "DualCLIPLoaderGGUF",
        title: "DualCLIPLoader (GGUF)",
        about: "Loads a text encoder of two networks, quantised or not.",
        encoder: true,
        inputs: DualClip::LOADER.inputs,
        outputs: &["CLIP"],
        load: two_clips,
    };
}

pub(crate) struct TripleClipGguf;

impl Base for TripleClipGguf {
    const LOADER: Loader = Loader {
        id: "TripleCLIPLoaderGGUF",
        title: "TripleCLIPLoader (GGUF)",
        about: "Loads a text encoder of three networks, quantised or not.",
        encoder: true,
        inputs: TripleClip::LOADER.inputs,
        outputs: &["CLIP"],
        load: three_clips,
    };
}

pub(crate) struct QuadrupleClipGguf;

impl Base for QuadrupleClipGguf {
    const LOADER: Loader = Loader {
        id: "QuadrupleCLIPLoaderGGUF",
        title: "QuadrupleCLIPLoader (GGUF)",
        about: "Loads a text encoder of four networks, quantised or not.",
        encoder: true,
        inputs: QuadrupleClip::LOADER.inputs,
        outputs: &["CLIP"],
        load: four_clips,
    };
}

/// Rows by the class of the plain node.
pub(crate) static ALL: [Loader; 17] = [
    Checkpoint::LOADER,
    Unet::LOADER,
    Vae::LOADER,
    Clip::LOADER,
    DualClip::LOADER,
    TripleClip::LOADER,
    QuadrupleClip::LOADER,
    ClipVision::LOADER,
    ControlNet::LOADER,
    DiffControlNet::LOADER,
    Diffusers::LOADER,
    UnetGguf::LOADER,
    UnetGgufAdvanced::LOADER,
    ClipGguf::LOADER,
    DualClipGguf::LOADER,
    TripleClipGguf::LOADER,
    QuadrupleClipGguf::LOADER,
];
