//! Prompts with pictures, videos and sounds.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Grown, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value,
};
use fresco_models::minimax::{KINDS, Kind, LATENTS};
use fresco_models::text::Prompt;
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use super::{CELL, RATE, SIDE, SeenOnly, empty, whole_side};
use crate::audio::Audio;
use crate::audio::resample::resample;
use crate::clip::Clip;
use crate::types::{Conditioning, Image, Latent, as_tensor, tensor};
use crate::vae::{Vae, fit_by};

/// How a picture stands in a text.
const PICTURE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

/// The pictures and sounds of a prompt.
#[derive(Default)]
struct PromptMedia {
    /// Before the prompt, with a mark for each picture.
    text: String,
    pictures: Vec<Tensor>,
    latents: Vec<Tensor>,
    kinds: Vec<Kind>,
}

impl PromptMedia {
    fn add(&mut self, latent: Tensor, kind: Kind) {
        self.latents.push(latent);
        self.kinds.push(kind);
    }

    /// Says what comes next.
    fn name(&mut self, what: &str) {
        self.text.push_str(what);
    }

    fn see(&mut self, before: &str, picture: &Tensor) -> Result<(), NodeError> {
        self.text.push_str(before);
        self.text.push_str(PICTURE);
        self.pictures.push(picture.narrow(3, 0, 3)?);
        Ok(())
    }

    /// The prompt as conditioning.
    fn encode(self, clip: &Clip, prompt: &str, cx: &Cx) -> Result<Conditioning, NodeError> {
        let text = format!("{}{prompt}", self.text);
        let prompt = Prompt {
            pictures: &self.pictures,
            ..Prompt::new(&text)
        };
        let tokens = clip.tokenize_prompt(prompt, cx)?;
        let encoded = clip.encode(&tokens, Map::new(), cx)?;
        Ok(with_latents(encoded, self.latents, &self.kinds))
    }
}

/// The conditioning with more latents that are given.
fn with_latents(conditioning: Conditioning, latents: Vec<Tensor>, kinds: &[Kind]) -> Conditioning {
    if latents.is_empty() {
        return conditioning;
    }
    let mut conditioning = conditioning;
    for cond in &mut conditioning.0 {
        let old = cond.options.get(LATENTS).and_then(Value::as_list);
        let mut list = old.map(<[Value]>::to_vec).unwrap_or_default();
        list.extend(latents.iter().cloned().map(tensor));
        let mut words: Vec<String> = cond
            .options
            .get(KINDS)
            .and_then(Value::as_str)
            .map(|word| vec![word.to_owned()])
            .unwrap_or_default();
        words.extend(kinds.iter().map(|kind| kind.word()));
        cond.options
            .insert(LATENTS.into(), Value::List(Arc::new(list)));
        cond.options.insert(KINDS.into(), words.join(" ").into());
    }
    conditioning
}

fn one(image: &Tensor) -> Result<Tensor, NodeError> {
    let [count, h, w, channels] = image.dims4()?;
    if count == 0 || h == 0 || w == 0 || channels < 3 {
        return Err(NodeError::value_error(format!(
            "a picture of shape {:?} cannot be looked at",
            image.shape()
        )));
    }
    Ok(image.narrow(0, 0, 1)?.narrow(3, 0, 3)?)
}

/// Makes a video with sound of a prompt, from its first frame or to its last one.
#[derive(Node)]
#[node(
    id = "MiniMaxH3ImageToVideo",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "MiniMax H3 Image to Video",
    category = "model/conditioning/minimax",
    outputs(Output::new("CONDITIONING").named("positive"), Output::new("LATENT").named("LATENT"))
)]
pub(super) struct MiniMaxH3ImageToVideo {
    clip: Clip,
    vae: Vae,
    #[input(default = "", multiline = true, dynamicPrompts = true)]
    prompt: String,
    #[input(default = 1344, min = 32, max = 16384, step = 32)]
    width: usize,
    #[input(default = 768, min = 32, max = 16384, step = 32)]
    height: usize,
    /// Frames, at 24 a second.
    #[input(default = 124, min = 5, max = 3600, step = 17)]
    length: usize,
    /// The picture that the video begins with.
    #[input(optional)]
    first_frame: Option<Image>,
    /// The picture that the video ends with.
    #[input(optional)]
    last_frame: Option<Image>,
}

impl Node for MiniMaxH3ImageToVideo {
    fn run(self, cx: &Cx) -> NodeResult {
        let (width, height) = (whole_side(self.width), whole_side(self.height));
        let frames = super::whole_frames(self.length);
        let mut given = PromptMedia::default();
        let ends = [
            (&self.first_frame, 0, Crop::Disabled),
            (&self.last_frame, frames - 1, Crop::Center),
        ];
        for (image, at, crop) in ends {
            let Some(Image(image)) = image else { continue };
            let method = ResizeMethod::Lanczos;
            let fitted = fit_by(&one(image)?, width, height, method, crop)?;
            let number = given.pictures.len() + 1;
            given.see(&format!("<Picture {number}>: "), &fitted)?;
            let latent = self.vae.encode_rgb(&fitted, cx)?;
            given.add(framed(latent)?, Kind::Frame(at));
        }
        let positive = given.encode(&self.clip, &self.prompt, cx)?;
        let latent = empty(width, height, self.length)?;
        Ok(NodeOutput::slots(vec![positive.into(), latent.into()]))
    }
}

/// A latent of a picture as that of a video of one frame.
fn framed(latent: Tensor) -> Result<Tensor, NodeError> {
    Ok(match latent.rank() {
        4 => latent.unsqueeze(2)?,
        _ => latent,
    })
}

/// Pixels of the largest references.
const LARGEST: usize = 768 * 1344;

/// A picture made smaller, if need be, to so many pixels, with sides that cells divide.
fn smaller(image: &Tensor, pixels: usize) -> Result<Tensor, NodeError> {
    let [_, h, w, _] = image.dims4()?;
    let scale = (pixels as f64 / (h * w) as f64).sqrt().min(1.0);
    let side = |n: usize| {
        let cells = (n as f64 * scale / SIDE as f64).round_ties_even().max(1.0);
        cells as usize * SIDE
    };
    let (width, height) = (side(w), side(h));
    if (width, height) == (w, h) {
        return Ok(image.clone());
    }
    fit_by(image, width, height, ResizeMethod::Lanczos, Crop::Center)
}

/// The latent of a sound.
fn sound_latent(vae: Option<&Vae>, audio: &Audio, cx: &Cx) -> Result<Tensor, NodeError> {
    let model = vae.and_then(|vae| vae.0.sound()).ok_or_else(|| {
        NodeError::value_error("sounds to be like need the audio VAE: connect audio_vae")
    })?;
    let rate = model.facts().rate_in;
    let waves = resample(audio.waveform()?, audio.sample_rate()?, rate)?;
    model.encode_sound(&waves.narrow(0, 0, 1)?, cx)
}

fn grown(name: &str, one: &str, about: &str, ty: &str, most: usize) -> Input {
    let slot = Input::new(one, ty).tooltip(about);
    Input::autogrow(name, slot, &format!("{one}_"), 0, most).optional()
}

/// A picture, or one that only the text encoder sees.
enum Reference {
    Shown(Tensor),
    Seen(Tensor),
}

impl FromValue for Reference {
    const IO: &'static str = "IMAGE,MINIMAX_H3_REFERENCE_IMAGE";
    fn from_value(value: Value) -> Result<Self, String> {
        if let Some(SeenOnly(image)) = value.downcast::<SeenOnly>() {
            return Ok(Self::Seen(image.clone()));
        }
        match as_tensor(&value) {
            Some(image) => Ok(Self::Shown(image.clone())),
            None => Image::from_value(value).map(|image| Self::Shown(image.0)),
        }
    }
}

/// Makes a video with sound of a prompt that is like pictures, videos and sounds.
#[derive(Node)]
#[node(
    id = "MiniMaxH3ReferenceToVideo",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "MiniMax H3 Reference to Video",
    category = "model/conditioning/minimax",
    outputs(Output::new("CONDITIONING").named("positive"), Output::new("LATENT").named("LATENT"))
)]
pub(super) struct MiniMaxH3ReferenceToVideo {
    clip: Clip,
    #[input(default = "", multiline = true, dynamicPrompts = true)]
    prompt: String,
    #[input(default = 1344, min = 32, max = 16384, step = 32)]
    width: usize,
    #[input(default = 768, min = 32, max = 16384, step = 32)]
    height: usize,
    /// Frames, at 24 a second.
    #[input(default = 124, min = 5, max = 3600, step = 17)]
    length: usize,
    /// How large pictures may be: as the video, or as the largest.
    #[input(default = "match", choices = ["match", "max"])]
    ref_image_size: String,
    #[input(optional)]
    vae: Option<Vae>,
    #[input(optional)]
    audio_vae: Option<Vae>,
    /// Pictures that the video refers to; as many as are connected.
    #[input(spec = grown("ref_images", "ref_image", "A picture that the video refers to.", Reference::IO, 9))]
    ref_images: Option<Grown<Reference>>,
    /// Videos that the result refers to; as many as are connected.
    #[input(spec = grown("ref_videos", "ref_video", "The frames of a video that the result refers to.", "IMAGE", 3))]
    ref_videos: Option<Grown<Image>>,
    /// The sounds of those videos, in the same order.
    #[input(spec = grown("ref_video_audios", "ref_video_audio", "The sound of a video that the result refers to.", "AUDIO", 3))]
    ref_video_audios: Option<Grown<Audio>>,
    /// Sounds that the video refers to, such as voices; as many as are connected.
    #[input(spec = grown("ref_audios", "ref_audio", "A sound that the video refers to.", "AUDIO", 3))]
    ref_audios: Option<Grown<Audio>>,
}

/// Frames between those of a video that the text encoder sees.
const SEEN_EVERY: usize = 24;

impl MiniMaxH3ReferenceToVideo {
    fn encoded(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let vae = self.vae.as_ref().ok_or_else(|| {
            NodeError::value_error("pictures to be like need the VAE: connect vae")
        })?;
        framed(vae.encode_rgb(pixels, cx)?)
    }
}

impl Node for MiniMaxH3ReferenceToVideo {
    fn run(mut self, cx: &Cx) -> NodeResult {
        let (width, height) = (whole_side(self.width), whole_side(self.height));
        let pixels = match self.ref_image_size.as_str() {
            "max" => LARGEST,
            _ => width * height,
        };
        let mut given = PromptMedia::default();
        let images = self.ref_images.take().map_or_else(Vec::new, |list| list.0);
        for (at, reference) in images.into_iter().enumerate() {
            let (image, shown) = match &reference {
                Reference::Shown(image) => (image, true),
                Reference::Seen(image) => (image, false),
            };
            let fitted = smaller(&one(image)?, pixels)?;
            given.see(&format!("<Picture {}>: ", at + 1), &fitted)?;
            if shown {
                given.add(self.encoded(&fitted, cx)?, Kind::Image);
            }
        }
        let videos = self.ref_videos.take().map_or_else(Vec::new, |list| list.0);
        let tracks = self
            .ref_video_audios
            .take()
            .map_or_else(Vec::new, |list| list.0);
        let mut sounds = 0;
        for (at, Image(video)) in videos.into_iter().enumerate() {
            one(&video)?;
            let have = video.dim(0)?;
            // Whole clips, as far as the video goes.
            let count = if have < 5 {
                1
            } else {
                (have - 5) / 17 * 17 + 5
            };
            let video = video.narrow(0, 0, count)?.narrow(3, 0, 3)?;
            let fitted = smaller(&video, pixels)?;
            if let Some(track) = tracks.get(at) {
                sounds += 1;
                given.name(&format!("<Audio {sounds}>: "));
                given.add(
                    sound_latent(self.audio_vae.as_ref(), track, cx)?,
                    Kind::Soundtrack,
                );
            }
            given.name(&format!("<Video {}>: ", at + 1));
            for frame in (0..count).step_by(SEEN_EVERY) {
                let seconds = frame as f64 / RATE;
                given.see(
                    &format!("<{seconds:.1} seconds>"),
                    &fitted.narrow(0, frame, 1)?,
                )?;
            }
            given.add(self.encoded(&fitted, cx)?, Kind::Video);
        }
        for audio in self.ref_audios.take().map_or_else(Vec::new, |list| list.0) {
            sounds += 1;
            given.name(&format!("<Audio {sounds}>: "));
            given.add(
                sound_latent(self.audio_vae.as_ref(), &audio, cx)?,
                Kind::Sound,
            );
        }
        let positive = given.encode(&self.clip, &self.prompt, cx)?;
        let latent = empty(width, height, self.length)?;
        Ok(NodeOutput::slots(vec![positive.into(), latent.into()]))
    }
}

/// Lets a video pass through a picture, or have a sound to be like.
#[derive(Node)]
#[node(
    id = "MiniMaxH3AddGuide",
    v3,
    module = "comfy_extras.nodes_minimax",
    display = "Add Guide for MiniMax H3",
    category = "model/conditioning/minimax",
    outputs(Output::new("CONDITIONING").named("positive"))
)]
pub(super) struct MiniMaxH3AddGuide {
    positive: Conditioning,
    latent: Latent,
    /// The frame that the picture is at; negative counts from the end.
    #[input(default = 0, min = -9999, max = 9999)]
    frame_idx: i64,
    #[input(optional)]
    vae: Option<Vae>,
    #[input(optional)]
    audio_vae: Option<Vae>,
    #[input(optional)]
    image: Option<Image>,
    #[input(optional)]
    audio: Option<Audio>,
}

/// Frames of a video of so many latent frames.
fn frames(latents: usize) -> usize {
    let (clips, rest) = (latents / 5, latents % 5);
    clips * 17 + (rest * 4).saturating_sub(if rest > 0 { 3 } else { 0 })
}

impl Node for MiniMaxH3AddGuide {
    fn run(self, cx: &Cx) -> NodeResult {
        let video = self.latent.pictures()?;
        let &[_, _, latents, h, w] = video.shape() else {
            return Err(NodeError::value_error(format!(
                "a guide is for the latent of a video, not for shape {:?}",
                video.shape()
            )));
        };
        let count = frames(latents) as i64;
        let at = if self.frame_idx < 0 {
            count + self.frame_idx
        } else {
            self.frame_idx
        };
        let (mut given, mut kinds) = (Vec::new(), Vec::new());
        if let Some(Image(image)) = &self.image {
            if !(0..count).contains(&at) {
                return Err(NodeError::value_error(format!(
                    "frame {} is not one of the {count} frames of the video",
                    self.frame_idx
                )));
            }
            let vae = self.vae.as_ref().ok_or_else(|| {
                NodeError::value_error("a picture as guide needs the VAE: connect vae")
            })?;
            let method = ResizeMethod::Lanczos;
            let fitted = fit_by(&one(image)?, w * CELL, h * CELL, method, Crop::Center)?;
            given.push(framed(vae.encode_rgb(&fitted, cx)?)?);
            kinds.push(Kind::Frame(at as usize));
        }
        if let Some(audio) = &self.audio {
            given.push(sound_latent(self.audio_vae.as_ref(), audio, cx)?);
            kinds.push(Kind::Sound);
        }
        Ok(NodeOutput::one(with_latents(self.positive, given, &kinds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guides_are_added_behind_those_that_are_there() {
        let cond = crate::types::Cond {
            tokens: tensor(Tensor::zeros([1, 1, 1]).unwrap()),
            options: Map::new(),
        };
        let latent = || Tensor::zeros([1, 2, 1, 2, 2]).unwrap();
        let first = with_latents(Conditioning(vec![cond]), vec![latent()], &[Kind::Image]);
        let second = with_latents(first, vec![latent()], &[Kind::Frame(4)]);
        let options = &second.0[0].options;
        let words = options.get(KINDS).and_then(Value::as_str);
        assert_eq!(words, Some("image frame:4"));
        assert_eq!(
            options
                .get(LATENTS)
                .and_then(Value::as_list)
                .map(<[Value]>::len),
            Some(2)
        );
        assert_eq!((frames(7), frames(2), frames(5)), (22, 5, 17));
    }

    #[test]
    fn references_only_become_smaller() {
        let small = Tensor::zeros([1, 64, 96, 3]).unwrap();
        assert_eq!(smaller(&small, LARGEST).unwrap().shape(), [1, 64, 96, 3]);
        let large = Tensor::zeros([1, 256, 256, 3]).unwrap();
        assert_eq!(
            smaller(&large, 128 * 128).unwrap().shape(),
            [1, 128, 128, 3]
        );
    }
}
