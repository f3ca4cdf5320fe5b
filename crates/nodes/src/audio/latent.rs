//! Sound to latents and back.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_tensor::{Axes, Tensor};

use super::{Audio, resample};
use crate::types::Latent;
use crate::vae::Vae;

/// Turns sound into a latent.
#[derive(Node)]
#[node(
    id = "VAEEncodeAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "VAE Encode Audio",
    category = "latent/audio",
    outputs("LATENT")
)]
pub(super) struct VaeEncodeAudio {
    audio: Audio,
    vae: Vae,
}

impl Node for VaeEncodeAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        let with_pictures = self.vae.0.sound();
        let rate = match with_pictures {
            Some(model) => model.facts().rate_in,
            None => self.vae.0.sound_rate(cx)?,
        };
        let sound = resample::resample(self.audio.waveform()?, self.audio.sample_rate()?, rate)?;
        let latent = match with_pictures {
            Some(model) => model.encode_sound(&sound, cx)?,
            None => self.vae.0.encode_sound(&sound, cx)?,
        };
        Ok(NodeOutput::one(Latent::new(latent)))
    }
}

/// How much louder than its usual swing a sound may be before it is made softer.
const SWING: f32 = 5.0;

/// As loud as it is, or so that its usual swing is a fifth.
fn levelled(sound: &Tensor) -> fresco_tensor::Result<Tensor> {
    let mut parts = Vec::new();
    for item in 0..sound.dim(0)? {
        let one = sound.narrow(0, item, 1)?;
        let swing = (one.std(&[], Axes::Drop)?.item()? * SWING).max(1.0);
        // A single sample has no swing.
        let swing = if swing.is_finite() { swing } else { 1.0 };
        parts.push(one.div_scalar(swing));
    }
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0)
}

/// The sound of a latent, or of the part of it that is sound. VAEs of sound that belongs to pictures know no pieces.
fn decoded(
    vae: &Vae,
    latent: &Latent,
    tiles: Option<(usize, usize)>,
    cx: &Cx,
) -> Result<Audio, NodeError> {
    let latent = latent.sound()?;
    let (sound, rate) = if let Some(model) = vae.0.sound() {
        (model.decode_sound(latent, cx)?, model.facts().rate_out)
    } else {
        let rate = vae.0.sound_rate(cx)?;
        (vae.0.decode_sound(latent, tiles, cx)?, rate)
    };
    Ok(Audio::new(levelled(&sound)?, rate))
}

/// Turns a latent into sound.
#[derive(Node)]
#[node(
    id = "VAEDecodeAudio",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "VAE Decode Audio",
    category = "latent/audio",
    outputs("AUDIO")
)]
pub(super) struct VaeDecodeAudio {
    samples: Latent,
    vae: Vae,
}

impl Node for VaeDecodeAudio {
    fn run(self, cx: &Cx) -> NodeResult {
        Ok(NodeOutput::one(decoded(
            &self.vae,
            &self.samples,
            None,
            cx,
        )?))
    }
}

/// Turns a latent into sound piece by piece, which takes less memory.
#[derive(Node)]
#[node(
    id = "VAEDecodeAudioTiled",
    v3,
    module = "comfy_extras.nodes_audio",
    display = "VAE Decode Audio (Tiled)",
    category = "latent/audio",
    outputs("AUDIO")
)]
pub(super) struct VaeDecodeAudioTiled {
    samples: Latent,
    vae: Vae,
    /// Latent frames of a piece.
    #[input(default = 512, min = 32, max = 8192, step = 8)]
    tile_size: usize,
    /// Latent frames that a piece shares with the next.
    #[input(default = 64, min = 0, max = 1024, step = 8)]
    overlap: usize,
}

impl Node for VaeDecodeAudioTiled {
    fn run(self, cx: &Cx) -> NodeResult {
        let tiles = Some((self.tile_size, self.overlap));
        Ok(NodeOutput::one(decoded(
            &self.vae,
            &self.samples,
            tiles,
            cx,
        )?))
    }
}
