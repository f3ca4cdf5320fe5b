//! Videos that follow a sound.

use fresco_graph::{Cx, Node, NodeError, NodeResult, Output, Value};
use fresco_tensor::Tensor;

use super::latent_shape;
use super::latents::neutral;
use crate::types::{Conditioning, Image, Latent, as_tensor, tensor};
use crate::vae::{Vae, first, fit, last};
use crate::vae_conditioning::{Pair, latent_frames, put_frames};

/// Feature frames a second that the audio encoders give.
pub(super) const ENCODER_RATE: f64 = 50.0;
/// Pictures of earlier motion that the model looks at, and the latent frames they become.
const MOTION_PICTURES: usize = 73;
const MOTION_FRAMES: usize = 19;

/// The layers of an audio encoder's output, each `(1, frames, width)`.
pub(super) fn layers(output: &Value) -> Result<Vec<&Tensor>, NodeError> {
    let list = output
        .get("encoded_audio_all_layers")
        .and_then(Value::as_list)
        .ok_or_else(|| NodeError::failed("KeyError", "'encoded_audio_all_layers'"))?;
    let layers: Vec<&Tensor> = list.iter().filter_map(as_tensor).collect();
    for layer in &layers {
        layer.dims3()?;
    }
    if layers.is_empty() {
        return Err(NodeError::value_error("the audio encoder gave no features"));
    }
    Ok(layers)
}

/// `(n, frames, width)` at another number of frames a second; the ends stay where they are.
pub(super) fn retime(features: &Tensor, from: f64, to: f64) -> Result<Tensor, NodeError> {
    let [n, frames, width] = features.dims3()?;
    let count = (frames as f64 / from * to) as usize;
    if frames == 0 || count == 0 {
        return Err(NodeError::value_error("the sound is too short"));
    }
    let step = if count > 1 {
        (frames - 1) as f32 / (count - 1) as f32
    } else {
        0.0
    };
    let mut out = Tensor::zeros([n, count, width])?;
    let source = features.data();
    for (row, values) in out.data_mut().chunks_exact_mut(width.max(1)).enumerate() {
        let (item, i) = (row / count, row % count);
        let position = i as f32 * step;
        let low = (position as usize).min(frames - 1);
        let share = position - low as f32;
        let high = (low + 1).min(frames - 1);
        for (k, v) in values.iter_mut().enumerate() {
            let at = |frame: usize| source[(item * frames + frame) * width + k];
            *v = at(low) * (1.0 - share) + at(high) * share;
        }
    }
    Ok(out)
}

/// Features for each of `pictures` pictures at 16 a second from picture `offset` on: `(1, layers, width, pictures)`;
/// none when the sound is over by then. After the end of the sound the features are zero.
fn features_at(
    output: &Value,
    pictures: usize,
    offset: usize,
) -> Result<Option<Tensor>, NodeError> {
    const VIDEO_RATE: f64 = 30.0;
    const RATE: f64 = 16.0;
    let joined = Tensor::cat(&layers(output)?, 0)?;
    let features = retime(&joined, ENCODER_RATE, VIDEO_RATE)?;
    let [n, frames, width] = features.dims3()?;
    let rounds = (frames as f64 / (pictures as f64 * (VIDEO_RATE / RATE))) as usize + 1;
    let total = rounds * pictures;
    if offset >= total {
        return Ok(None);
    }
    let count = pictures.min(total - offset);
    let mut out = Tensor::zeros([1, n, width, count])?;
    let source = features.data();
    let target = out.data_mut();
    for i in 0..count {
        let time = (offset + i) as f64 / RATE;
        let frame = (time * VIDEO_RATE).round_ties_even() as usize;
        if frame >= frames {
            continue;
        }
        for layer in 0..n {
            for k in 0..width {
                target[(layer * width + k) * count + i] =
                    source[(layer * frames + frame) * width + k];
            }
        }
    }
    Ok(Some(out))
}

/// A video after a sound, from the start or as the continuation of another.
struct FromSound {
    pair: Pair,
    vae: Vae,
    size: (usize, usize, usize),
    batch: usize,
    /// Pictures of the sound that earlier parts of the video used.
    offset: usize,
    audio: Option<Value>,
    reference: Option<Image>,
    control: Option<Image>,
    /// Latent frames of what came before.
    motion: Option<Tensor>,
}

impl FromSound {
    fn run(self, cx: &Cx) -> NodeResult {
        let (width, height, length) = self.size;
        let shape = latent_shape(self.batch, 16, self.size, 8)?;
        let mut pair = self.pair;
        if let Some(audio) = &self.audio
            && let Some(features) = features_at(audio, shape[2] * 4, self.offset)?
        {
            let silence = Tensor::zeros(features.shape().to_vec())?;
            pair.positive = pair.positive.set("audio_embed", tensor(features));
            pair.negative = pair.negative.set("audio_embed", tensor(silence));
        }
        if let Some(reference) = &self.reference {
            let fitted = fit(&first(&reference.0, 1)?, width, height)?;
            pair = pair.append_tensor("reference_latents", &self.vae.encode_rgb(&fitted, cx)?);
        }
        if let Some(motion) = &self.motion {
            let have = motion.dim(2)?;
            let count = have.min(MOTION_FRAMES);
            pair = pair.set_tensor("reference_motion", &motion.narrow(2, have - count, count)?);
        }
        let mut control = neutral(shape)?;
        if let Some(video) = &self.control {
            let fitted = fit(&first(&video.0, length)?, width, height)?;
            put_frames(&mut control, 0, &self.vae.encode_rgb(&fitted, cx)?)?;
        }
        pair.set_tensor("control_video", &control)
            .with_latent(Tensor::zeros(shape)?)
    }
}

/// Earlier pictures as the model wants them: the last 73, grey in front where there are fewer.
fn motion_latent(
    vae: &Vae,
    pictures: &Tensor,
    width: usize,
    height: usize,
    cx: &Cx,
) -> Result<Tensor, NodeError> {
    let fitted = fit(&last(pictures, MOTION_PICTURES)?, width, height)?;
    let [count, _, _, channels] = fitted.dims4()?;
    let missing = MOTION_PICTURES - count;
    let grey = Tensor::full([missing, height, width, channels], 0.5)?;
    vae.encode_rgb(&Tensor::cat(&[&grey, &fitted], 0)?, cx)
}

/// Makes a Wan video that follows a sound.
#[derive(Node)]
#[node(id = "WanSoundImageToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanSoundImageToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 77, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional, ty = "AUDIO_ENCODER_OUTPUT")]
    audio_encoder_output: Option<Value>,
    #[input(optional)]
    ref_image: Option<Image>,
    #[input(optional)]
    control_video: Option<Image>,
    /// Pictures of what came before.
    #[input(optional)]
    ref_motion: Option<Image>,
}
impl Node for WanSoundImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        latent_shape(1, 16, (self.width, self.height, self.length), 8)?;
        let motion = match &self.ref_motion {
            Some(m) => Some(motion_latent(&self.vae, &m.0, self.width, self.height, cx)?),
            None => None,
        };
        FromSound {
            pair: Pair {
                positive: self.positive,
                negative: self.negative,
            },
            vae: self.vae,
            size: (self.width, self.height, self.length),
            batch: self.batch_size,
            offset: 0,
            audio: self.audio_encoder_output,
            reference: self.ref_image,
            control: self.control_video,
            motion,
        }
        .run(cx)
    }
}
/// Continues a Wan video that follows a sound.
#[derive(Node)]
#[node(id = "WanSoundImageToVideoExtend", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")))]
pub(super) struct WanSoundImageToVideoExtend {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 77, min = 1, max = 16384, step = 4)]
    length: usize,
    /// The video so far.
    video_latent: Latent,
    #[input(optional, ty = "AUDIO_ENCODER_OUTPUT")]
    audio_encoder_output: Option<Value>,
    #[input(optional)]
    ref_image: Option<Image>,
    #[input(optional)]
    control_video: Option<Image>,
}
impl Node for WanSoundImageToVideoExtend {
    fn run(self, cx: &Cx) -> NodeResult {
        let samples = self.video_latent.samples()?;
        let &[batch, _, frames, h, w] = samples.shape() else {
            return Err(NodeError::value_error("a video latent has five dimensions"));
        };
        FromSound {
            pair: Pair {
                positive: self.positive,
                negative: self.negative,
            },
            vae: self.vae,
            size: (w * 8, h * 8, self.length),
            batch,
            offset: frames * 4,
            audio: self.audio_encoder_output,
            reference: self.ref_image,
            control: self.control_video,
            motion: Some(samples.clone()),
        }
        .run(cx)
    }
}
/// HuMo's features: means of groups of layers at 25 a second, then a window of eight around each latent frame:
/// `(1, latent frames, 8, 5, width)`.
fn windows(output: &Value, length: usize) -> Result<Tensor, NodeError> {
    let layers = layers(output)?;
    if layers.len() < 33 {
        return Err(NodeError::value_error(format!(
            "HuMo needs the 33 layers of the large speech encoder, not {}",
            layers.len()
        )));
    }
    let samples = output.get("audio_samples").and_then(Value::as_int);
    let samples = samples.and_then(|s| usize::try_from(s).ok());
    let samples = samples.ok_or_else(|| NodeError::failed("KeyError", "'audio_samples'"))?;
    let mut groups = Vec::new();
    for range in [0..8, 8..16, 16..24, 24..32, 32..33] {
        let count = range.len() as f32;
        let mut sum = layers[range.start].clone();
        for layer in &layers[range.start + 1..range.end] {
            sum = sum.add(layer)?;
        }
        let frames = sum.dim(1)?.min(samples / 640 * 2);
        let mean = sum
            .div_scalar(count)
            .narrow(0, 0, 1)?
            .narrow(1, 0, frames)?;
        groups.push(retime(&mean, ENCODER_RATE, 25.0)?);
    }
    // (frames, 5, width)
    let stacked = Tensor::stack(&groups.iter().collect::<Vec<_>>(), 2)?.select(0, 0)?;
    let [frames, _, width] = stacked.dims3()?;
    let count = latent_frames(length, 4);
    let mut out = Tensor::zeros([1, count, 8, 5, width])?;
    let size = 5 * width;
    for latent in 0..count {
        for slot in 0..8 {
            // The first latent frame is one picture: three empty places, then two pictures before and after it.
            let (from, empty) = if latent == 0 {
                (slot as i64 - 5, slot < 3)
            } else {
                (4 * latent as i64 - 5 + slot as i64, false)
            };
            let Ok(frame) = usize::try_from(from) else {
                continue;
            };
            if empty || frame >= frames {
                continue;
            }
            let source = &stacked.data()[frame * size..][..size];
            out.data_mut()[(latent * 8 + slot) * size..][..size].copy_from_slice(source);
        }
    }
    Ok(out)
}

/// Makes a Wan HuMo video of a person who speaks.
#[derive(Node)]
#[node(id = "WanHuMoImageToVideo", v3, module = "comfy_extras.nodes_wan", category = "conditioning/video_models", outputs(Output::new("CONDITIONING").named("positive"), Output::new("CONDITIONING").named("negative"), Output::new("LATENT").named("latent")), experimental)]
pub(super) struct WanHuMoImageToVideo {
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 97, min = 1, max = 16384, step = 4)]
    length: usize,
    #[input(default = 1, min = 1, max = 4096)]
    batch_size: usize,
    #[input(optional, ty = "AUDIO_ENCODER_OUTPUT")]
    audio_encoder_output: Option<Value>,
    /// How the person looks.
    #[input(optional)]
    ref_image: Option<Image>,
}
impl Node for WanHuMoImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let size = (self.width, self.height, self.length);
        let shape = latent_shape(self.batch_size, 16, size, 8)?;
        let mut pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        let reference = if let Some(reference) = &self.ref_image {
            let fitted = fit(&first(&reference.0, 1)?, self.width, self.height)?;
            self.vae.encode_rgb(&fitted, cx)?
        } else {
            Tensor::zeros([shape[0], 16, 1, shape[3], shape[4]])?
        };
        let nothing = Tensor::zeros(reference.shape().to_vec())?;
        pair.positive = pair.positive.append("reference_latents", tensor(reference));
        pair.negative = pair.negative.append("reference_latents", tensor(nothing));
        let sound = if let Some(output) = &self.audio_encoder_output {
            windows(output, self.length)?
        } else {
            Tensor::zeros([shape[0], shape[2] + 1, 8, 5, 1280])?
        };
        let silence = Tensor::zeros(sound.shape().to_vec())?;
        pair.positive = pair.positive.set("audio_embed", tensor(sound));
        pair.negative = pair.negative.set("audio_embed", tensor(silence));
        pair.with_latent(Tensor::zeros(shape)?)
    }
}
