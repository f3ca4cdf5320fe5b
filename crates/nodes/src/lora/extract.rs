//! Writing the difference of two models as a LoRA.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::PatchSet;
use fresco_models::lora::extract;
use fresco_tensor::{Dtype, Stored};

use super::Weights;
use crate::clip::Clip;
use crate::sampling::Model;
use crate::saving::{Draft, write};

/// Writes a LoRA made from a difference of models, as the node that subtracts models gives it.
#[derive(Node)]
#[node(
    id = "LoraSave",
    v3,
    module = "comfy_extras.nodes_lora_extract",
    display = "Extract and Save Lora",
    category = "_for_testing",
    output_node,
    experimental
)]
pub(super) struct LoraSave {
    #[input(default = "loras/ComfyUI_extracted_lora")]
    filename_prefix: String,
    /// Size of the LoRA: higher keeps more of the difference and makes a larger file.
    #[input(default = 8, min = 1, max = 4096, step = 1)]
    rank: i64,
    /// standard approximates the difference by the rank; full_diff keeps all of it.
    #[input(choices = ["standard", "full_diff"])]
    lora_type: String,
    /// Keeps differences of biases, too.
    #[input(default = true)]
    bias_diff: bool,
    /// The difference of two models.
    #[input(optional)]
    model_diff: Option<Model>,
    /// The difference of two text encoders.
    #[input(optional)]
    text_encoder_diff: Option<Clip>,
}

impl LoraSave {
    /// The changes of one value's weights under names that begin with `place`; `cut` is what the value's own prefixes
    /// have before that.
    fn add<T: Weights>(
        &self,
        draft: &mut Draft,
        value: &T,
        (cut, place): (&str, &str),
        cx: &Cx,
    ) -> Result<(), NodeError> {
        let none = std::sync::Arc::new(PatchSet::default());
        let patches = value.weight_patches().unwrap_or(&none);
        let full = self.lora_type == "full_diff";
        for (prefix, base) in value.stores()? {
            let store = base.patched(patches.scoped(&prefix));
            let names = store.keys();
            for (done, key) in names.iter().enumerate() {
                cx.progress((done + 1) as f64, names.len() as f64, None)?;
                let (layer, weight) = match (key.strip_suffix(".weight"), key.strip_suffix(".bias"))
                {
                    (Some(layer), _) => (layer, true),
                    (None, Some(layer)) => (layer, false),
                    _ => continue,
                };
                let path = format!("{prefix}{layer}");
                let name = format!("{place}{}", path.strip_prefix(cut).unwrap_or(&path));
                let value = store.tensor(key)?;
                let half = |t| Stored::from_f32(t, Dtype::F16);
                if !weight {
                    if self.bias_diff {
                        draft.add_made(&format!("{name}.diff_b"), half(&value)?);
                    }
                } else if full || value.rank() < 2 {
                    if full || self.bias_diff {
                        draft.add_made(&format!("{name}.diff"), half(&value)?);
                    }
                } else if value.data().iter().any(|v| *v != 0.0) {
                    let rank = self.rank.clamp(1, 4096) as usize;
                    let (up, down) = extract(&value, rank)?;
                    draft.add_made(&format!("{name}.lora_up.weight"), half(&up)?);
                    draft.add_made(&format!("{name}.lora_down.weight"), half(&down)?);
                }
            }
        }
        Ok(())
    }
}

impl Node for LoraSave {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut draft = Draft::default();
        if let Some(model) = &self.model_diff {
            let places = ("diffusion_model.", "diffusion_model.");
            self.add(&mut draft, model, places, cx)?;
        }
        if let Some(clip) = &self.text_encoder_diff {
            self.add(&mut draft, clip, ("", "text_encoders."), cx)?;
        }
        if self.model_diff.is_some() || self.text_encoder_diff.is_some() {
            // The reference writes no prompt into these files.
            write(draft, &self.filename_prefix, |_, _| Vec::new(), cx)?;
        }
        Ok(NodeOutput::default())
    }
}
