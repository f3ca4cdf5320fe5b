//! Latents as safetensors files.

use fresco_files::dirs::DirType;
use fresco_graph::{Cx, Node, NodeOutput, NodeResult, map};
use fresco_tensor::{Tensor, safetensors};

use super::{Presence, SaveOptions, begin, entry_of, metadata_text, save_error};
use crate::types::Latent;

/// Saves a latent to a file that the loader of latents reads back.
#[derive(Node)]
#[node(
    id = "SaveLatent",
    v1,
    module = "nodes",
    category = "_for_testing",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
pub(super) struct SaveLatent {
    samples: Latent,
    #[input(default = "latents/ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveLatent {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, 0, 0)?;
        let mut text = metadata_text(cx, Presence::NotNull);
        let wanted = !cx
            .resources
            .get::<SaveOptions>()
            .is_some_and(|o| o.disable_metadata);
        // The entry is always there, so that readers need not ask.
        if wanted && !text.iter().any(|(k, _)| k == "prompt") {
            text.insert(0, ("prompt".into(), String::new()));
        }
        // An empty tensor says that the values are not scaled by the first models' factor.
        let version = Tensor::zeros([0])?;
        let tensors = [
            ("latent_tensor", self.samples.samples()?),
            ("latent_format_version_0", &version),
        ];
        let saved = batch
            .save_with("latent", |file| {
                safetensors::write_to(&mut std::io::BufWriter::new(file), &tensors, &text)
            })
            .map_err(save_error)?;
        let entry = entry_of(&saved, DirType::Output);
        Ok(NodeOutput::ui(map! {"latents" => vec![entry]}))
    }
}
