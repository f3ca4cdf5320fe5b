//! The voice that a video's sound is to have.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_models::ltx2::{VOICE, VoiceGuidance};

use super::sound::of_sound;
use crate::audio::Audio;
use crate::audio::resample::resample;
use crate::sampling::Model;
use crate::types::{Conditioning, tensor};
use crate::vae::Vae;
use crate::vae_conditioning::Pair;

/// Gives a video's sound the voice of another, for models with a LoRA that knows of this.
#[derive(Node)]
#[node(
    id = "LTXVReferenceAudio",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "LTXV Reference Audio (ID-LoRA)",
    category = "conditioning/video_models",
    outputs(
        Output::new("MODEL"),
        Output::new("CONDITIONING").named("positive"),
        Output::new("CONDITIONING").named("negative")
    )
)]
pub(super) struct LtxvReferenceAudio {
    model: Model,
    positive: Conditioning,
    negative: Conditioning,
    /// Somebody who speaks, a few seconds.
    reference_audio: Audio,
    audio_vae: Vae,
    /// How much the voice counts beyond what it changes by itself; 0 saves a pass of the model in each step.
    #[input(default = 3.0, min = 0.0, max = 100.0)]
    identity_guidance_scale: f64,
    #[input(default = 0.0, min = 0.0, max = 1.0)]
    start_percent: f64,
    #[input(default = 1.0, min = 0.0, max = 1.0)]
    end_percent: f64,
}

impl Node for LtxvReferenceAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        let network = of_sound(&self.audio_vae)?;
        let waves = self.reference_audio.waveform()?;
        let [items, channels, samples] = waves.dims3()?;
        if items == 0 || channels == 0 || samples == 0 {
            return Err(NodeError::value_error(
                "the sound whose voice is wanted has no samples: connect some seconds of somebody who speaks",
            ));
        }
        let rate = network.facts().rate_in;
        let waves = resample(
            &waves.narrow(0, 0, 1)?,
            self.reference_audio.sample_rate()?,
            rate,
        )?;
        let voice = tensor(network.encode_sound(&waves, cx)?);
        let pair = Pair {
            positive: self.positive,
            negative: self.negative,
        };
        let pair = pair.set(VOICE, voice);
        let mut model = self.model;
        if self.identity_guidance_scale > 0.0 {
            model.patches.post_cfg.push(Arc::new(VoiceGuidance {
                scale: self.identity_guidance_scale,
                start_sigma: model.sampling.percent_to_sigma(self.start_percent),
                end_sigma: model.sampling.percent_to_sigma(self.end_percent),
            }));
        }
        Ok(NodeOutput::slots(vec![
            model.into(),
            pair.positive.into(),
            pair.negative.into(),
        ]))
    }
}
