//! Text encoders from files of their own.

use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::text::{Stack, TextEncoder};
use fresco_tensor::{Device, WeightFile, open_weights};

use super::Clip;

fn open(cx: &Cx, name: &str) -> Result<Arc<dyn WeightFile>, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let path = folders
        .require("text_encoders", name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))?;
    Ok(open_weights(path)?)
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
    #[expect(dead_code, reason = "there is only the CPU so far")]
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for CLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let encoder = TextEncoder::from_files(&[open(cx, &self.clip_name)?], &Device::cpu())?;
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
    #[expect(dead_code, reason = "there is only the CPU so far")]
    #[input(optional, choices = ["default", "cpu"], advanced = true)]
    device: Option<String>,
}

impl Node for DualCLIPLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        if self.r#type != "sdxl" {
            return Err(unsupported(&self.r#type));
        }
        let files = [open(cx, &self.clip_name1)?, open(cx, &self.clip_name2)?];
        let encoder = TextEncoder::from_files(&files, &Device::cpu())?;
        Ok(NodeOutput::one(Clip::new(encoder)))
    }
}
