//! Loaders of the parts of a checkpoint that the usual ones leave.

use std::sync::Arc;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_models::ltx2::text::{PREFIX, WithProjection};
use fresco_models::text::TextEncoder;
use fresco_tensor::{Device, WeightFile};

use crate::clip::Clip;
use crate::loaders::WeightSource;
use crate::resident::{Component, LoadOptions, SharedNetwork, content, registry, who};
use crate::sampling::run::failure;
use crate::vae::{LoadedSound, Vae};

/// Loads the VAE for sound from a checkpoint.
#[derive(Node)]
#[node(
    id = "LTXVAudioVAELoader",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "Load LTXV Audio VAE",
    category = "model/loaders",
    outputs(Output::new("VAE").named("Audio VAE"))
)]
pub(super) struct LtxvAudioVaeLoader {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

impl Node for LtxvAudioVaeLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "checkpoints", &self.ckpt_name)?;
        let sound = LoadedSound::load(cx, &source, &LoadOptions::default())?;
        Ok(NodeOutput::one(Vae(Arc::new(sound))))
    }
}

/// Loads a text encoder together with what a checkpoint has to make prompts for its model.
#[derive(Node)]
#[node(
    id = "LTXAVTextEncoderLoader",
    v3,
    module = "comfy_extras.nodes_lt_audio",
    display = "Load LTXV Audio Text Encoder",
    category = "model/loaders",
    outputs("CLIP")
)]
pub(super) struct LtxavTextEncoderLoader {
    /// The file of the text encoder.
    #[input(listed = "models/text_encoders")]
    text_encoder: String,
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
    /// Where the encoder computes: default chooses by itself, cpu keeps it off the GPU.
    #[input(choices = ["default", "cpu"], advanced = true)]
    device: String,
}

impl Node for LtxavTextEncoderLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let text = WeightSource::find(cx, "text_encoders", &self.text_encoder)?;
        let checkpoint = WeightSource::find(cx, "checkpoints", &self.ckpt_name)?;
        let options = LoadOptions {
            compute: (self.device == "cpu").then(Device::cpu),
            ..LoadOptions::default()
        };
        let paths = [text.path(), checkpoint.path()];
        let key = content(&paths, Component::Text, "ltxv")?;
        let opened = registry(cx).open(&who(cx), &key, "TextEncoder", || {
            let (text, checkpoint) = (text.open()?.clone(), checkpoint.open()?.clone());
            // A file that has the projection already needs no other.
            let file: Arc<dyn WeightFile> = if text.names().iter().any(|n| n.contains(PREFIX)) {
                text
            } else {
                Arc::new(WithProjection::new(text, checkpoint).map_err(failure)?)
            };
            let encoder = TextEncoder::from_files_as(&[file], Some("ltxv"), &Device::cpu());
            let encoder = encoder.map_err(failure)?;
            Ok::<_, NodeError>(SharedNetwork::new(encoder, ()))
        })?;
        Ok(NodeOutput::one(Clip::claim(cx, &opened, &options)?))
    }
}
