//! A text encoder as what most of them were trained as: a language model that writes.

use std::sync::Arc;

use fresco_graph::{Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Twin, Value};
use fresco_memory::Need;
use fresco_models::text::decoder::HEARD_RATE;
use fresco_models::text::{Draw, QuestionMedia, WritingRule};
use fresco_tensor::{Crop, ResizeMethod, Tensor};

use super::{Clip, required};
use crate::audio::{Audio, resample::resample};
use crate::resident::InUse;
use crate::sampling::run::failure;
use crate::types::Image;
use crate::vae::fit_by;

/// Pixels of a picture that the model sees; larger ones are made smaller.
const MOST_PIXELS: f64 = 1024.0 * 1024.0;

fn modes() -> Input {
    let number = |name: &str, about: &str, default: f64, [min, max, step]: [f64; 3]| {
        Input::new(name, "FLOAT")
            .tooltip(about)
            .option("default", default)
            .option("min", min)
            .option("max", max)
            .option("step", step)
    };
    let on = vec![
        number(
            "temperature",
            "How freely words are drawn; lower keeps to the likeliest.",
            0.7,
            [0.01, 2.0, 1e-6],
        ),
        Input::new("top_k", "INT")
            .tooltip("Draws among so many of the likeliest words; 0 among all.")
            .option("default", 64)
            .option("min", 0)
            .option("max", 1000),
        number(
            "top_p",
            "Draws among the likeliest words that are together this probable.",
            0.95,
            [0.0, 1.0, 0.01],
        ),
        number(
            "min_p",
            "Leaves out words that are less probable than this share of the likeliest.",
            0.05,
            [0.0, 1.0, 0.01],
        ),
        number(
            "repetition_penalty",
            "How much words that were used become less likely; 1 changes nothing.",
            1.05,
            [0.0, 5.0, 0.01],
        ),
        Input::new("seed", "INT")
            .tooltip("Number from which words are drawn: the same number gives the same text.")
            .option("default", 0)
            .option("min", 0)
            .option("max", u64::MAX),
        number(
            "presence_penalty",
            "How much is taken off the odds of words that were used; 0 changes nothing.",
            0.0,
            [0.0, 5.0, 0.01],
        )
        .optional(),
    ];
    Input::dynamic_combo("sampling_mode", vec![("on", on), ("off", Vec::new())])
}

/// Lets a text encoder that is a language model answer a prompt, perhaps about a picture.
#[derive(Node)]
#[node(
    id = "TextGenerate",
    v3,
    module = "comfy_extras.nodes_textgen",
    display = "Generate Text",
    category = "text",
    outputs(
        Output::new("STRING").named("generated_text"),
        Output::new("STRING").named("thinking")
    )
)]
pub(super) struct TextGenerate {
    clip: Option<Clip>,
    /// What the model is asked, or what the prompt that it writes should be about.
    #[input(default = "", multiline = true, dynamicPrompts = true)]
    prompt: String,
    /// Tokens that are written at most.
    #[input(default = 512, min = 1, max = 32768)]
    max_length: usize,
    /// Off: always the likeliest word.
    #[input(spec = modes())]
    sampling_mode: Option<Arc<Map>>,
    /// A picture that the model looks at before it writes.
    #[input(optional)]
    image: Option<Image>,
    /// Frames at 24 in a second; one of each second is looked at.
    #[input(optional)]
    video: Option<Image>,
    /// What models that can hear listen to, at most half a minute of it.
    #[input(optional)]
    audio: Option<Audio>,
    /// Lets models that can think before they answer.
    #[input(optional, or = false, default = false)]
    thinking: bool,
    /// Off: the prompt is what the model reads, without marks of a conversation.
    #[input(optional, or = true, default = true, advanced = true)]
    use_default_template: bool,
    /// How many tokens to guess ahead. Here one is written at a time, whatever is chosen.
    #[expect(dead_code, reason = "one token at a time is written")]
    #[input(optional, or = "auto".to_owned(), default = "auto", choices = ["auto", "off", "2", "3", "4", "5"])]
    mtp: String,
    /// What the model is told before the prompt, in place of what it is told otherwise.
    #[input(optional, forceInput = true)]
    system_prompt: Option<String>,
}

impl Node for TextGenerate {
    fn run(self, cx: &Cx) -> NodeResult {
        let clip = required(self.clip)?;
        let sounds = self.audio.as_ref().map(audible_samples).transpose()?;
        let sounds: Vec<Tensor> = sounds.into_iter().collect();
        let mut pictures = Vec::new();
        if let Some(Image(image)) = &self.image {
            for i in 0..image.dim(0)? {
                pictures.push(seen(&image.narrow(0, i, 1)?)?);
            }
        }
        if let Some(Image(video)) = &self.video {
            for i in (0..video.dim(0)?).step_by(24) {
                pictures.push(seen(&video.narrow(0, i, 1)?)?);
            }
        }
        let encoder = clip.encoder();
        let given = QuestionMedia {
            pictures: &pictures,
            sounds: &sounds,
        };
        let text = if self.use_default_template {
            encoder.conversation(
                self.system_prompt.as_deref(),
                &self.prompt,
                &given,
                self.thinking,
            )
        } else {
            Ok(self.prompt.clone())
        };
        let text = text.map_err(failure)?;
        let rule = WritingRule {
            most: self.max_length,
            draw: self.sampling_mode.as_deref().and_then(draw),
            stops: Vec::new(),
            only: None,
            guidance: None,
        };
        let write = || {
            encoder.write(&text, &given, &rule, &mut |count| {
                let shown = cx.progress(count as f64, rule.most as f64, None);
                shown.map_err(|_| fresco_models::ModelError::Cancelled)
            })
        };
        let written = match clip.hold() {
            Some(hold) => InUse::of(cx, &[hold.handle()], Need::default())?.run(write),
            None => write(),
        };
        let (answer, thoughts) = parted(&written.map_err(failure)?);
        Ok(NodeOutput::slots(vec![answer.into(), thoughts.into()]))
    }
}

/// What a language model is told that writes prompts for videos with sound.
const VIDEO_WRITER: &str = "You write prompts for a model that makes short videos with sound. Turn what the user asks for into \
    one paragraph in plain English, in the present tense and in the order in which things happen. Say who and what is to be \
    seen and how it looks, what moves and how, how the camera moves, light and colours, and what is to be heard: voices with \
    their words in quotation marks, sounds, music. Keep everything the user says, add only what fits to it, and answer with \
    the paragraph alone. If there is a picture, the video begins with it.";

pub(super) static VIDEO_PROMPT: Twin<TextGenerate> = Twin {
    id: "TextGenerateLTX2Prompt",
    display: Some("Generate LTX2 Prompt"),
    about: "Writes a prompt for LTX-2 with a language model.",
    defaults: &[],
    run: |mut node, cx| {
        let told = node.system_prompt.filter(|text| !text.is_empty());
        node.system_prompt = Some(told.unwrap_or_else(|| VIDEO_WRITER.to_owned()));
        node.run(cx)
    },
};

/// A picture of at most so many pixels, in red, green and blue.
fn seen(image: &Tensor) -> Result<Tensor, NodeError> {
    let [_, h, w, channels] = image.dims4()?;
    if h == 0 || w == 0 || channels < 3 {
        return Err(NodeError::value_error(format!(
            "a picture of {w} x {h} with {channels} channels cannot be looked at"
        )));
    }
    let image = image.narrow(3, 0, 3)?;
    let scale = (MOST_PIXELS / (w as f64 * h as f64)).sqrt();
    if scale >= 1.0 {
        return Ok(image);
    }
    let side = |n: usize| ((n as f64 * scale).round_ties_even() as usize).max(1);
    fit_by(&image, side(w), side(h), ResizeMethod::Area, Crop::Disabled)
}

/// A sound at the rate of the models that listen, cut to the longest that they take.
fn audible_samples(audio: &Audio) -> Result<Tensor, NodeError> {
    // More than half a minute is not listened to.
    let audio = audio.part(0.0, 31.0)?;
    resample(audio.waveform()?, audio.sample_rate()?, HEARD_RATE)
}

/// How tokens are drawn, where the choice is on.
fn draw(mode: &Map) -> Option<Draw> {
    if mode.get("sampling_mode").and_then(Value::as_str) != Some("on") {
        return None;
    }
    let number = |key: &str, default: f64| mode.get(key).and_then(Value::as_f64).unwrap_or(default);
    let whole = |key: &str| mode.get(key).and_then(Value::as_int).unwrap_or(0);
    Some(Draw {
        temperature: number("temperature", 0.7),
        top_k: usize::try_from(whole("top_k")).unwrap_or(0),
        top_p: number("top_p", 0.95),
        min_p: number("min_p", 0.05),
        repetition_penalty: number("repetition_penalty", 1.05),
        presence_penalty: number("presence_penalty", 0.0),
        seed: whole("seed") as u64,
    })
}

/// What stands around thoughts, by what networks were trained with.
const THOUGHTS: [[&str; 2]; 2] = [["<think>", "</think>"], ["<|channel>thought", "<channel|>"]];

/// The answer, and what was thought before it.
fn parted(text: &str) -> (String, String) {
    for [open, close] in THOUGHTS {
        if let Some((before, after)) = text.split_once(close) {
            let thoughts = before.rsplit_once(open).map_or(before, |(_, t)| t);
            return (after.trim().into(), thoughts.trim().into());
        }
        // It ran out of room while it thought.
        if let Some((answer, thoughts)) = text.split_once(open) {
            return (answer.trim().into(), thoughts.trim().into());
        }
    }
    (text.trim().into(), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_apart_from_the_answer() {
        for (text, answer, thoughts) in [
            (" plain ", "plain", ""),
            ("<think>a\n</think>\n\nb", "b", "a"),
            ("a</think>b", "b", "a"),
            ("<think>a", "", "a"),
            ("<|channel>thought\na\n<channel|>b", "b", "a"),
            ("<|channel>thought\na", "", "a"),
        ] {
            assert_eq!(parted(text), (answer.into(), thoughts.into()), "{text}");
        }
    }
}
