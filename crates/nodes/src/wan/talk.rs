//! Videos of people who say what sounds say.

use std::any::Any;
use std::sync::Arc;

use fresco_graph::{Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value};
use fresco_memory::Handle;
use fresco_models::wan::talk::{KIND, TalkConfig, TalkControl, speaks};
use fresco_tensor::Tensor;

use super::image::given_start;
use super::latent_shape;
use super::sound::{ENCODER_RATE, layers, retime};
use crate::model_patch::ModelPatch;
use crate::sampling::Model;
use crate::sampling::model::ModelAddition;
use crate::types::{Conditioning, Image, Latent, as_tensor};
use crate::vae::{Vae, first, fit, last};
use crate::vae_conditioning::{Pair, frame_mask, masked, put_frames};
use crate::vision::VisionOutput;

/// Pictures a second of these models.
const RATE: f64 = 25.0;

fn modes() -> Input {
    Input::dynamic_combo(
        "mode",
        vec![
            ("single_speaker", Vec::new()),
            (
                "two_speakers",
                vec![
                    Input::new("audio_encoder_output_2", "AUDIO_ENCODER_OUTPUT")
                        .tooltip("What the second person says, as an audio encoder heard it."),
                    Input::new("mask_1", "MASK").tooltip("Where the first person is."),
                    Input::new("mask_2", "MASK").tooltip("Where the second person is."),
                ],
            ),
        ],
    )
}

/// Makes a Wan video of one or two people who say what sounds say, or continues one.
#[derive(Node)]
#[node(
    id = "WanInfiniteTalkToVideo",
    v3,
    module = "comfy_extras.nodes_wan",
    display = "WanInfiniteTalkToVideo",
    category = "conditioning/video_models",
    outputs(
        Output::new("MODEL").named("model"),
        Output::new("CONDITIONING").named("positive"),
        Output::new("CONDITIONING").named("negative"),
        Output::new("LATENT").named("latent"),
        Output::new("INT").named("trim_image")
    )
)]
pub(super) struct WanInfiniteTalkToVideo {
    /// One person, or two with a mask for each.
    #[input(spec = modes())]
    mode: Arc<Map>,
    model: Model,
    model_patch: ModelPatch,
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 832, step = 16)]
    width: usize,
    #[input(default = 480, step = 16)]
    height: usize,
    #[input(default = 81, step = 4)]
    length: usize,
    /// What the first person says, as an audio encoder heard it.
    #[input(ty = "AUDIO_ENCODER_OUTPUT")]
    audio_encoder_output_1: Value,
    /// How many of the previous frames a continuation sees.
    #[input(min = 1, max = 33, step = 1)]
    motion_frame_count: usize,
    /// How much the sound counts.
    #[input(default = 1.0, min = -10.0, max = 10.0, step = 0.01)]
    audio_scale: f64,
    #[input(optional)]
    clip_vision_output: Option<VisionOutput>,
    /// How everything looks.
    #[input(optional)]
    start_image: Option<Image>,
    /// The video so far, if it is to go on.
    #[input(optional)]
    previous_frames: Option<Image>,
}

impl Node for WanInfiniteTalkToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let config: &TalkConfig = self.model_patch.config(KIND)?;
        if !self.model.base.store().is_some_and(|store| speaks(store)) {
            return Err(NodeError::value_error(format!(
                "{} is {KIND}, which needs a Wan model that starts from pictures, and {} is no such model",
                self.model_patch.name(),
                self.model.base.name()
            )));
        }
        let (width, height, length) = (self.width, self.height, self.length);
        let shape = latent_shape(1, 16, (width, height, length), 8)?;
        let [_, _, frames, h, w] = shape;
        if h == 0 || w == 0 {
            return Err(NodeError::value_error(format!(
                "a video of {width} x {height} is too small: at least 16 x 16"
            )));
        }
        // What was made before, less what is seen again.
        let again = self.motion_frame_count.max(1);
        let (known, start, trim) = match (&self.previous_frames, &self.start_image) {
            (Some(before), _) if before.0.dim(0)? > 0 => {
                let seen = fit(&last(&before.0, again)?, width, height)?;
                let made = before.0.dim(0)?;
                (Some(seen), made.saturating_sub(again), again.min(made))
            }
            (_, Some(picture)) => (Some(fit(&first(&picture.0, 1)?, width, height)?), 0, 0),
            _ => (None, 0, 0),
        };
        let (sounds, masks) = self.speakers()?;
        let windows = sounds
            .iter()
            .map(|sound| windows(sound, config, start, frames));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;

        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        if let Some(picture) = &self.start_image {
            let one = first(&picture.0, 1)?;
            let (beside, mask) = given_start(&self.vae, &one, width, height, length, cx)?;
            pair = pair
                .set_tensor("concat_latent_image", &beside)
                .set_tensor("concat_mask", &mask);
        }
        let pair = pair.set_vision(self.clip_vision_output);
        let mut samples = Tensor::zeros(shape)?;
        let mut latent = None;
        let mut seen = None;
        if let Some(known) = known {
            let known = self.vae.encode_rgb(&known, cx)?;
            put_frames(&mut samples, 0, &known)?;
            let count = known.dim(2)?.min(frames);
            latent = Some(frame_mask(frames, h, w, count)?);
            seen = Some(known.narrow(2, 0, count)?);
        }
        let known = seen.map(|seen| self.model.process_latent_in(&seen));
        let mut model = self.model;
        model.additions.push(Arc::new(Talk {
            patch: self.model_patch,
            windows,
            masks,
            strength: self.audio_scale as f32,
            known: known.transpose()?,
        }));
        let latent = match latent {
            Some(mask) => masked(samples, mask),
            None => Latent::new(samples).into(),
        };
        Ok(NodeOutput::slots(vec![
            model.into(),
            pair.positive.into(),
            pair.negative.into(),
            latent,
            Value::from(trim as i64),
        ]))
    }
}

impl WanInfiniteTalkToVideo {
    /// The sounds, and where the speakers are if there are two.
    fn speakers(&self) -> Result<(Vec<&Value>, Option<[Tensor; 2]>), NodeError> {
        let first = &self.audio_encoder_output_1;
        let mode = self.mode.get("mode").and_then(Value::as_str);
        if mode != Some("two_speakers") {
            return Ok((vec![first], None));
        }
        let lacks = |what: &str| {
            NodeError::value_error(format!(
                "two people speak, but {what} is not connected: connect it, or let one person speak"
            ))
        };
        let mask = |name: &str| -> Result<Tensor, NodeError> {
            let value = self.mode.get(name).ok_or_else(|| lacks(name))?;
            let mask = as_tensor(value).ok_or_else(|| lacks(name))?;
            let &[.., h, w] = mask.shape() else {
                return Err(NodeError::value_error("a mask has a height and a width"));
            };
            if mask.len() < h * w || h * w == 0 {
                return Err(NodeError::value_error(format!("{name} is empty")));
            }
            Ok(mask.reshape([mask.len() / (h * w), h, w])?.select(0, 0)?)
        };
        let second = self.mode.get("audio_encoder_output_2");
        let second = second.ok_or_else(|| lacks("audio_encoder_output_2"))?;
        let masks = [mask("mask_1")?, mask("mask_2")?];
        Ok((vec![first, second], Some(masks)))
    }
}

/// Features of a sound around each picture of `frames` latent frames from picture `start` on: (pictures, window, values).
/// Before its beginning and after its end a sound is as there.
fn windows(
    sound: &Value,
    config: &TalkConfig,
    start: usize,
    frames: usize,
) -> Result<Tensor, NodeError> {
    let layers = layers(sound)?;
    // The first is what the encoder's layers begin with.
    let heard = layers.get(1..).filter(|heard| !heard.is_empty());
    let heard = heard.ok_or_else(|| NodeError::value_error("the audio encoder has no layers"))?;
    let each = heard.iter().map(|layer| -> Result<Tensor, NodeError> {
        retime(&layer.narrow(0, 0, 1)?, ENCODER_RATE, RATE)
    });
    let each = each.collect::<Result<Vec<_>, _>>()?;
    // (pictures of the sound, layers * width)
    let stacked = Tensor::stack(&each.iter().collect::<Vec<_>>(), 2)?.select(0, 0)?;
    let [total, count, width] = stacked.dims3()?;
    let values = count * width;
    let window = config.window(values).ok_or_else(|| {
        NodeError::value_error(format!(
            "the patch hears {} values of sound at a time, which is not an odd number of pictures with {count} layers of {width}: \
             it was made for another audio encoder",
            config.first
        ))
    })?;
    let pictures = 4 * (frames - 1) + 1;
    let mut out = Tensor::zeros([pictures, window, values])?;
    let source = stacked.data();
    for (at, row) in out.data_mut().chunks_exact_mut(values).enumerate() {
        let (picture, slot) = (start + at / window, at % window);
        let from = (picture + slot).saturating_sub(window / 2).min(total - 1);
        row.copy_from_slice(&source[from * values..][..values]);
    }
    Ok(out)
}

/// A patch on a model.
struct Talk {
    patch: ModelPatch,
    windows: Vec<Tensor>,
    masks: Option<[Tensor; 2]>,
    strength: f32,
    known: Option<Tensor>,
}

impl ModelAddition for Talk {
    fn handle(&self) -> Option<&Handle> {
        self.patch.handle()
    }

    fn for_run(
        &self,
        _: &Model,
        _: &[usize],
        _: &Cx,
    ) -> Result<Arc<dyn Any + Send + Sync>, NodeError> {
        Ok(Arc::new(TalkControl {
            network: Arc::clone(self.patch.network()),
            windows: self.windows.clone(),
            masks: self.masks.clone(),
            strength: self.strength,
            known: self.known.clone(),
        }))
    }
}
