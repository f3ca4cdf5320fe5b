//! The sound of a video: empty latents, and from waves to latents and back.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::Tensor;

use crate::audio::Audio;
use crate::audio::resample::resample;
use crate::types::Latent;
use crate::vae::{SoundModel, Vae};

/// What a VAE does with sound.
pub(crate) fn of_sound(vae: &Vae) -> Result<&dyn SoundModel, NodeError> {
    vae.0.sound().ok_or_else(|| {
        NodeError::value_error(
            "this VAE is for pictures: connect one for sound, as LTXVAudioVAELoader loads it",
        )
    })
}

/// A latent of sound, marked as such.
fn marked(samples: Tensor, rate: u32) -> Latent {
    Latent::new(samples)
        .with("sample_rate", i64::from(rate))
        .with("type", "audio")
}

/// An empty latent for the sound of a video.
#[derive(Node)]
#[node(
    id = "LTXVEmptyLatentAudio",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "Empty LTXV Latent Audio",
    category = "model/latent/ltxv",
    outputs(Output::new("LATENT").named("Latent"))
)]
pub(super) struct LtxvEmptyLatentAudio {
    /// Number of frames of the video.
    #[input(default = 97, min = 1, max = 1000, step = 1, display = "number")]
    frames_number: i64,
    /// Frames of the video a second.
    #[input(
        ty = "FLOAT,INT",
        default = 25.0,
        min = 1.0,
        max = 1000.0,
        step = 0.01,
        widgetType = "FLOAT"
    )]
    frame_rate: f64,
    #[input(default = 1, min = 1, max = 4096, display = "number")]
    batch_size: usize,
    audio_vae: Vae,
}

impl Node for LtxvEmptyLatentAudio {
    fn run(self, _: &Cx) -> NodeResult {
        let facts = of_sound(&self.audio_vae)?.facts();
        if self.frame_rate <= 0.0 || !self.frame_rate.is_finite() {
            return Err(NodeError::value_error(format!(
                "a video cannot have {} frames a second",
                self.frame_rate
            )));
        }
        let seconds = self.frames_number.max(1) as f64 / self.frame_rate;
        let frames = (seconds * facts.latent_rate).round().max(1.0) as usize;
        let shape = facts.latent_shape(self.batch_size, frames);
        Ok(NodeOutput::one(marked(
            Tensor::zeros(shape)?,
            facts.rate_in,
        )))
    }
}

/// Makes sound of a latent; of a video with sound, of its sound.
#[derive(Node)]
#[node(
    id = "LTXVAudioVAEDecode",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "LTXV Audio VAE Decode",
    category = "model/latent/ltxv",
    outputs(Output::new("AUDIO").named("Audio"))
)]
pub(super) struct LtxvAudioVaeDecode {
    samples: Latent,
    audio_vae: Vae,
}

impl Node for LtxvAudioVaeDecode {
    fn run(self, cx: &Cx) -> NodeResult {
        let model = of_sound(&self.audio_vae)?;
        let waves = model.decode_sound(self.samples.sound()?, cx)?;
        Ok(NodeOutput::one(Audio::new(waves, model.facts().rate_out)))
    }
}

/// Makes a latent of sound.
#[derive(Node)]
#[node(
    id = "LTXVAudioVAEEncode",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "LTXV Audio VAE Encode",
    category = "model/latent/ltxv",
    outputs(Output::new("LATENT").named("Audio Latent"))
)]
pub(super) struct LtxvAudioVaeEncode {
    audio: Audio,
    audio_vae: Vae,
}

impl Node for LtxvAudioVaeEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let model = of_sound(&self.audio_vae)?;
        let rate = model.facts().rate_in;
        let waves = resample(self.audio.waveform()?, self.audio.sample_rate()?, rate)?;
        let latent = model.encode_sound(&waves, cx)?;
        Ok(NodeOutput::one(marked(latent, rate)))
    }
}
