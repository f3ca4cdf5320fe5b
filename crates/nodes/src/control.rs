//! Control nets in conditioning: the boundary to the model room, and the nodes that attach them.

mod loaded;

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Output, Pieces,
    Value, entry, map, wrong_kind,
};
use fresco_memory::Handle;
use fresco_models::denoise::CallConds;
use fresco_models::denoise::hooks::ControlFeatures;
use fresco_models::{ModelError, ModelSampling, WeightStore};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

use crate::types::{Conditioning, Image, Mask, add_tensor};
use crate::vae::Vae;
use crate::vision::VisionOutput;

pub use loaded::LoadedControl;
pub(crate) use loaded::{load_control, load_diff_control};

pub static NODES: &[NodeEntry] = &[
    entry::<loaded::ControlNetLoader>(),
    entry::<loaded::DiffControlNetLoader>(),
    entry::<ControlNetApply>(),
    entry::<ControlNetApplyAdvanced>(),
    entry::<ControlNetApplySD3>(),
    entry::<ControlNetInpaintingAliMamaApply>(),
    entry::<SetUnionControlNetType>(),
    entry::<UnclipConditioning>(),
];

/// What nodes need of a control net's network.
pub trait ControlModel: Send + Sync {
    /// For logs and error reports.
    fn name(&self) -> &str;

    /// Whether the mask of an inpainting goes into the network beside the hint.
    fn wants_mask(&self) -> bool;

    /// Its weights' handle, where the memory room has them.
    fn handle(&self) -> Option<&Handle> {
        None
    }

    /// What the network adds, at the strength of `control`, to a pass over `x`, a batch of `chunks` conditions of equal
    /// size.
    fn features(
        &self,
        _control: &Control,
        _run: &SteeredRun<'_>,
        _x: &Tensor,
        _sigma: f32,
        _conds: &CallConds,
        _chunks: usize,
    ) -> Result<Option<ControlFeatures>, ModelError> {
        Err(ModelError::unsupported(
            self.name(),
            "this control net cannot steer this model",
        ))
    }
}

/// The run that is steered.
#[derive(Clone, Copy)]
pub struct SteeredRun<'a> {
    pub sampling: &'a ModelSampling,
    /// The weights of the model, for nets that share some of them.
    pub weights: Option<&'a Arc<WeightStore>>,
    /// For those that need other models: the node that samples.
    pub cx: Option<&'a Cx>,
}

/// What a control net and those before it add to a pass.
pub(crate) fn steer(
    control: &Control,
    run: &SteeredRun<'_>,
    x: &Tensor,
    sigma: f32,
    conds: &CallConds,
    chunks: usize,
) -> Result<Option<ControlFeatures>, ModelError> {
    let before = match control.previous.downcast::<Control>() {
        Some(before) => steer(before, run, x, sigma, conds, chunks)?,
        None => None,
    };
    let (start, end) = control.range;
    let at = |share: f64| run.sampling.percent_to_sigma(share) as f32;
    if sigma > at(start) || sigma < at(end) {
        return Ok(before);
    }
    let own = control
        .model
        .features(control, run, x, sigma, conds, chunks)?;
    match (own, before) {
        (Some(own), Some(before)) => Ok(Some(own.joined(before)?)),
        (own, before) => Ok(own.or(before)),
    }
}

/// CONTROL_NET on a link: the network and how a node set it up. Copies share the network.
#[derive(Clone)]
pub struct Control {
    pub model: Arc<dyn ControlModel>,
    /// `(b, c, h, w)`; none until a node applies the net.
    pub hint: Option<Tensor>,
    pub strength: f64,
    /// Part of the sampling during which it acts, as shares from start to end.
    pub range: (f64, f64),
    /// Encodes the hint where the network works on latents.
    pub vae: Option<Vae>,
    /// Further planes for the network, `(b, 1, h, w)`.
    pub extra_concat: Vec<Tensor>,
    /// The control net applied before, another [`Control`]; null for none.
    pub previous: Value,
    /// Arguments for networks that know several kinds of hints.
    pub arguments: Map,
}

impl Control {
    /// What kinds of hints a node said it gets.
    pub(crate) fn types(&self) -> Vec<usize> {
        let list = self.arguments.get("control_type").and_then(Value::as_list);
        let numbers = list.into_iter().flatten().filter_map(Value::as_int);
        numbers.filter_map(|n| usize::try_from(n).ok()).collect()
    }

    /// The handles of this net and of those applied before it.
    pub(crate) fn handles(&self) -> Vec<&Handle> {
        let mut handles = Vec::new();
        let mut at = Some(self);
        while let Some(control) = at {
            handles.extend(control.model.handle());
            at = control.previous.downcast::<Control>();
        }
        handles
    }

    pub fn new(model: Arc<dyn ControlModel>) -> Self {
        Self {
            model,
            hint: None,
            strength: 1.0,
            range: (0.0, 1.0),
            vae: None,
            extra_concat: Vec::new(),
            previous: Value::Null,
            arguments: Map::new(),
        }
    }
}

impl Opaque for Control {
    fn describe(&self) -> String {
        format!("control net {}", self.model.name())
    }

    fn bytes(&self) -> u64 {
        self.hint.as_ref().map_or(0, |h| h.len() as u64 * 4)
    }

    fn pieces(&self, pieces: &mut Pieces) {
        if let Some(hint) = &self.hint {
            add_tensor(pieces, hint);
        }
        pieces.add_value(&self.previous);
    }
}

impl FromValue for Control {
    const IO: &'static str = "CONTROL_NET";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("CONTROL_NET", &value))
    }
}

impl From<Control> for Value {
    fn from(control: Control) -> Self {
        Self::object(control)
    }
}

/// Puts `control` into every entry, in front of the one that is there. Entries with the same earlier control net share
/// the new one, so that its network runs once for all of them.
fn attach(
    lists: Vec<Conditioning>,
    control: &Control,
    apply_to_uncond: bool,
) -> Result<Vec<Conditioning>, NodeError> {
    let mut made: Vec<(Value, Value)> = Vec::new();
    let mut out = Vec::with_capacity(lists.len());
    for mut list in lists {
        for cond in &mut list.0 {
            let previous = cond.options.get("control").cloned().unwrap_or_default();
            let known = made.iter().find(|(p, _)| p.same(&previous));
            let attached = if let Some((_, attached)) = known {
                attached.clone()
            } else {
                if !previous.is_null() && previous.downcast::<Control>().is_none() {
                    return Err(NodeError::type_error(wrong_kind("CONTROL_NET", &previous)));
                }
                let attached = Value::from(Control {
                    previous: previous.clone(),
                    ..control.clone()
                });
                made.push((previous, attached.clone()));
                attached
            };
            cond.options.insert("control".into(), attached);
            cond.options
                .insert("control_apply_to_uncond".into(), apply_to_uncond.into());
        }
        out.push(list);
    }
    Ok(out)
}

/// What the nodes that take a start, an end and both conditionings have in common.
struct Applied {
    positive: Conditioning,
    negative: Conditioning,
    control: Control,
    image: Tensor,
    strength: f64,
    range: (f64, f64),
    vae: Option<Vae>,
    extra_concat: Vec<Tensor>,
}

impl Applied {
    fn run(self) -> NodeResult {
        if self.strength == 0.0 {
            return Ok(NodeOutput::slots(vec![
                self.positive.into(),
                self.negative.into(),
            ]));
        }
        let control = Control {
            hint: Some(self.image.nhwc_to_nchw()?),
            strength: self.strength,
            range: self.range,
            vae: self.vae,
            extra_concat: self.extra_concat,
            ..self.control
        };
        let lists = attach(vec![self.positive, self.negative], &control, false)?;
        Ok(NodeOutput::slots(
            lists.into_iter().map(Value::from).collect(),
        ))
    }
}

/// Steers with a picture; the older node that also reaches the empty prompt.
#[derive(Node)]
#[node(
    id = "ControlNetApply",
    v1,
    module = "nodes",
    display = "Apply ControlNet (OLD)",
    category = "conditioning/controlnet",
    outputs("CONDITIONING"),
    deprecated
)]
pub struct ControlNetApply {
    conditioning: Conditioning,
    control_net: Control,
    /// The hint: edges, depth, a pose.
    image: Image,
    /// How strongly the hint acts.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
}
impl Node for ControlNetApply {
    fn run(self, _: &Cx) -> NodeResult {
        if self.strength == 0.0 {
            return Ok(NodeOutput::one(self.conditioning));
        }
        let control = Control {
            hint: Some(self.image.0.nhwc_to_nchw()?),
            strength: self.strength,
            ..self.control_net
        };
        let lists = attach(vec![self.conditioning], &control, true)?;
        Ok(NodeOutput::slots(
            lists.into_iter().map(Value::from).collect(),
        ))
    }
}
/// Steers with a picture, during a part of the sampling.
#[derive(Node)]
#[node(id = "ControlNetApplyAdvanced", v1, module = "nodes", display = "Apply ControlNet", category = "conditioning/controlnet", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")))]
pub struct ControlNetApplyAdvanced {
    positive: Conditioning,
    negative: Conditioning,
    control_net: Control,
    /// The hint: edges, depth, a pose.
    image: Image,
    /// How strongly the hint acts.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
    #[input(optional)]
    vae: Option<Vae>,
}
impl Node for ControlNetApplyAdvanced {
    fn run(self, _: &Cx) -> NodeResult {
        Applied {
            positive: self.positive,
            negative: self.negative,
            control: self.control_net,
            image: self.image.0,
            strength: self.strength,
            range: (self.start_percent, self.end_percent),
            vae: self.vae,
            extra_concat: Vec::new(),
        }
        .run()
    }
}
/// Steers with a picture that the network sees as a latent.
#[derive(Node)]
#[node(id = "ControlNetApplySD3", v3, module = "comfy_extras.nodes_sd3", display = "Apply Controlnet with VAE", category = "conditioning/controlnet", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")), deprecated)]
pub struct ControlNetApplySD3 {
    positive: Conditioning,
    negative: Conditioning,
    control_net: Control,
    vae: Vae,
    /// The hint: edges, depth, a pose.
    image: Image,
    /// How strongly the hint acts.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}
impl Node for ControlNetApplySD3 {
    fn run(self, _: &Cx) -> NodeResult {
        Applied {
            positive: self.positive,
            negative: self.negative,
            control: self.control_net,
            image: self.image.0,
            strength: self.strength,
            range: (self.start_percent, self.end_percent),
            vae: Some(self.vae),
            extra_concat: Vec::new(),
        }
        .run()
    }
}
/// Steers an inpainting with the picture around the mask.
#[derive(Node)]
#[node(id = "ControlNetInpaintingAliMamaApply", v3, module = "comfy_extras.nodes_controlnet", category = "conditioning/controlnet", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative")))]
pub struct ControlNetInpaintingAliMamaApply {
    positive: Conditioning,
    negative: Conditioning,
    control_net: Control,
    vae: Vae,
    /// The hint: edges, depth, a pose.
    image: Image,
    /// What to paint anew: white changes, black stays.
    mask: Mask,
    /// How strongly the hint acts.
    #[input(default = 1.0, min = 0.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.001)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.001)]
    end_percent: f64,
}
impl Node for ControlNetInpaintingAliMamaApply {
    fn run(self, _: &Cx) -> NodeResult {
        let mut image = self.image.0;
        let mut extra_concat = Vec::new();
        if self.control_net.model.wants_mask() {
            let [_, height, width, channels] = image.dims4()?;
            let mask = self.mask.0;
            let [.., h, w] = *mask.shape() else {
                return Err(NodeError::value_error("a mask has a height and a width"));
            };
            let count = mask.len() / (h * w).max(1);
            let keep = mask.rsub_scalar(1.0).reshape([count, 1, h, w])?;
            let fitted =
                common_upscale(&keep, width, height, ResizeMethod::Bilinear, Crop::Center)?
                    .round()
                    .nchw_to_nhwc()?;
            image = image.mul(&fitted.repeat(&[1, 1, 1, channels])?)?;
            extra_concat.push(keep);
        }
        Applied {
            positive: self.positive,
            negative: self.negative,
            control: self.control_net,
            image,
            strength: self.strength,
            range: (self.start_percent, self.end_percent),
            vae: Some(self.vae),
            extra_concat,
        }
        .run()
    }
}
/// Tells a control net for many kinds of hints which kind it gets.
#[derive(Node)]
#[node(
    id = "SetUnionControlNetType",
    v3,
    module = "comfy_extras.nodes_controlnet",
    category = "conditioning/controlnet",
    outputs("CONTROL_NET")
)]
pub struct SetUnionControlNetType {
    /// A control net that can read several kinds of pictures.
    control_net: Control,
    /// What the pictures show; auto lets the control net find out.
    #[input(choices = ["auto", "openpose", "depth", "hed/pidi/scribble/ted", "canny/lineart/anime_lineart/mlsd", "normal", "segment", "tile", "repaint"])]
    r#type: String,
}
impl Node for SetUnionControlNetType {
    fn run(self, _: &Cx) -> NodeResult {
        const KINDS: [&str; 8] = [
            "openpose",
            "depth",
            "hed/pidi/scribble/ted",
            "canny/lineart/anime_lineart/mlsd",
            "normal",
            "segment",
            "tile",
            "repaint",
        ];
        let mut control = self.control_net;
        let number = KINDS.iter().position(|k| *k == self.r#type);
        let chosen: Vec<usize> = number.into_iter().collect();
        control
            .arguments
            .insert("control_type".into(), chosen.into());
        Ok(NodeOutput::one(control))
    }
}
/// Adds what a vision encoder saw to the conditioning.
#[derive(Node)]
#[node(
    id = "unCLIPConditioning",
    v1,
    module = "nodes",
    category = "conditioning",
    outputs("CONDITIONING")
)]
pub struct UnclipConditioning {
    conditioning: Conditioning,
    clip_vision_output: VisionOutput,
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    strength: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.01)]
    noise_augmentation: f64,
}
impl Node for UnclipConditioning {
    fn run(self, _: &Cx) -> NodeResult {
        if self.strength == 0.0 {
            return Ok(NodeOutput::one(self.conditioning));
        }
        let seen = map! {
            "clip_vision_output" => self.clip_vision_output,
            "strength" => self.strength,
            "noise_augmentation" => self.noise_augmentation,
        };
        Ok(NodeOutput::one(
            self.conditioning.append("unclip_conditioning", seen),
        ))
    }
}
