//! Text encoders from files of their own.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::text::TextEncoder;
use fresco_tensor::Device;

use super::Clip;
use crate::loaders::WeightSource;
use crate::resident::{Component, LoadOptions, SharedNetwork, content, registry, who};
use crate::sampling::run::failure;

impl Clip {
    /// The encoder that files make, for models of a type if one is said.
    pub(crate) fn load(
        cx: &Cx,
        sources: &[WeightSource],
        kind: Option<&str>,
        options: &LoadOptions,
    ) -> Result<Self, NodeError> {
        let paths: Vec<_> = sources.iter().map(WeightSource::path).collect();
        let key = content(&paths, Component::Text, kind.unwrap_or_default())?;
        let opened = registry(cx).open(&who(cx), &key, "TextEncoder", || {
            let files: Result<Vec<_>, NodeError> =
                sources.iter().map(|s| s.open().cloned()).collect();
            let encoder = TextEncoder::from_files_as(&files?, kind, &Device::cpu());
            Ok::<_, NodeError>(SharedNetwork::new(encoder.map_err(failure)?, ()))
        })?;
        Self::claim(cx, &opened, options)
    }
}

/// The options of a plain loader, whose `device` input knows the processor only.
fn plain_options(device: Option<&str>) -> LoadOptions {
    LoadOptions {
        compute: (device == Some("cpu")).then(Device::cpu),
        ..LoadOptions::default()
    }
}

/// The types whose sets are also chosen where nobody says a type.
const PLAIN_TYPES: [&str; 2] = ["stable_diffusion", "sdxl"];

/// The encoder that files make for models of a type.
pub(crate) fn load_clip(
    cx: &Cx,
    names: &[&str],
    kind: &str,
    options: &LoadOptions,
) -> Result<Clip, NodeError> {
    let sources: Result<Vec<_>, _> = names
        .iter()
        .map(|name| WeightSource::find(cx, "text_encoders", name))
        .collect();
    let kind = Some(kind).filter(|kind| !PLAIN_TYPES.contains(kind));
    Clip::load(cx, &sources?, kind, options)
}

/// Loads a text encoder from a file.
#[derive(Node)]
#[node(
    id = "CLIPLoader",
    v1,
    module = "nodes",
    display = "Load CLIP",
    category = "advanced/loaders",
    outputs("CLIP")
)]
pub(super) struct CLIPLoader {
    #[input(listed = "models/text_encoders")]
    clip_name: String,
    /// The family of models that the encoder is for.
    #[input(choices = ["stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart", "cosmos", "lumina2", "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image", "flux2", "ovis", "krea2", "flux3", "minimax", "moss_image", "fibo2", "mage", "boogu", "ideogram4", "lens", "longcat_image", "pixeldit", "joyimage", "cogvideox"])]
    r#type: String,
    /// Where the encoder computes: default chooses by itself, cpu keeps it off the GPU.
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for CLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let options = plain_options(self.device.as_deref());
        let clip = load_clip(cx, &[&self.clip_name], &self.r#type, &options)?;
        Ok(NodeOutput::one(clip))
    }
}

/// Loads a text encoder that consists of two networks, each from its file.
#[derive(Node)]
#[node(
    id = "DualCLIPLoader",
    v1,
    module = "nodes",
    category = "advanced/loaders",
    outputs("CLIP")
)]
pub(super) struct DualCLIPLoader {
    #[input(listed = "models/text_encoders")]
    clip_name1: String,
    #[input(listed = "models/text_encoders")]
    clip_name2: String,
    /// The family of models that the encoders are for.
    #[input(choices = ["sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15", "kandinsky5", "kandinsky5_image", "newbie", "ace"])]
    r#type: String,
    /// Where the encoders compute: default chooses by itself, cpu keeps them off the GPU.
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for DualCLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let names = [&*self.clip_name1, &*self.clip_name2];
        let options = plain_options(self.device.as_deref());
        let clip = load_clip(cx, &names, &self.r#type, &options)?;
        Ok(NodeOutput::one(clip))
    }
}

/// Loads a text encoder of three networks, each from its file, in any order.
#[derive(Node)]
#[node(
    id = "TripleCLIPLoader",
    v3,
    module = "comfy_extras.nodes_sd3",
    category = "advanced/loaders",
    outputs("CLIP")
)]
#[expect(clippy::struct_field_names, reason = "the inputs are called so")]
pub(super) struct TripleCLIPLoader {
    #[input(listed = "models/text_encoders")]
    clip_name1: String,
    #[input(listed = "models/text_encoders")]
    clip_name2: String,
    #[input(listed = "models/text_encoders")]
    clip_name3: String,
}

/// What three and four files make.
pub(crate) const THREE: &str = "sd3";
pub(crate) const FOUR: &str = "hidream";

impl Node for TripleCLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let names = [&*self.clip_name1, &*self.clip_name2, &*self.clip_name3];
        let clip = load_clip(cx, &names, THREE, &LoadOptions::default())?;
        Ok(NodeOutput::one(clip))
    }
}

/// Loads a text encoder of four networks, each from its file, in any order.
#[derive(Node)]
#[node(
    id = "QuadrupleCLIPLoader",
    v3,
    module = "comfy_extras.nodes_hidream",
    category = "advanced/loaders",
    outputs("CLIP")
)]
#[expect(clippy::struct_field_names, reason = "the inputs are called so")]
pub(super) struct QuadrupleCLIPLoader {
    #[input(listed = "models/text_encoders")]
    clip_name1: String,
    #[input(listed = "models/text_encoders")]
    clip_name2: String,
    #[input(listed = "models/text_encoders")]
    clip_name3: String,
    #[input(listed = "models/text_encoders")]
    clip_name4: String,
}

impl Node for QuadrupleCLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let names = [
            &*self.clip_name1,
            &*self.clip_name2,
            &*self.clip_name3,
            &*self.clip_name4,
        ];
        let clip = load_clip(cx, &names, FOUR, &LoadOptions::default())?;
        Ok(NodeOutput::one(clip))
    }
}
