//! Text encoders from files of their own.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::text::{Stack, TextEncoder};
use fresco_tensor::Device;

use super::Clip;
use crate::loaders::{device, open_model};
use crate::sampling::run::failure;

/// The encoder that files make, where the node was told to keep it.
fn load(names: &[&str], place: Option<&str>, cx: &Cx) -> Result<TextEncoder, NodeError> {
    let files: Result<Vec<_>, _> = names
        .iter()
        .map(|name| open_model(cx, "text_encoders", name))
        .collect();
    let device = match place {
        Some("cpu") => Device::cpu(),
        _ => device(cx),
    };
    TextEncoder::from_files(&files?, &device).map_err(failure)
}

fn unsupported(family: &str) -> NodeError {
    NodeError::value_error(format!(
        "text encoders of type {family:?} are not supported yet"
    ))
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
    #[input(choices = ["stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart", "cosmos", "lumina2", "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image", "hunyuan_image", "flux2", "ovis"])]
    r#type: String,
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for CLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let encoder = load(&[&self.clip_name], self.device.as_deref(), cx)?;
        // Some families put a network of this kind to a use of their own.
        let taken = match encoder.stack() {
            Stack::Sd1 => matches!(&*self.r#type, "sd3" | "hidream"),
            Stack::SdxlRefiner => matches!(&*self.r#type, "sd3" | "hidream" | "stable_cascade"),
            Stack::Sd2 | Stack::Sdxl => false,
        };
        if taken {
            return Err(unsupported(&self.r#type));
        }
        Ok(NodeOutput::one(Clip::new(encoder)))
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
    #[input(choices = ["sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15", "kandinsky5", "kandinsky5_image", "newbie"])]
    r#type: String,
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for DualCLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.r#type != "sdxl" {
            return Err(unsupported(&self.r#type));
        }
        let names = [&*self.clip_name1, &*self.clip_name2];
        let encoder = load(&names, self.device.as_deref(), cx)?;
        Ok(NodeOutput::one(Clip::new(encoder)))
    }
}
