//! A LoRA with a say in how it is applied.

use fresco_graph::{Cx, Node, NodeError, NodeResult};
use fresco_models::{LoraStorage, OftStrength, PatchMode};

use super::{Application, loader};
use crate::clip::Clip;
use crate::sampling::Model;

/// Changes the weights of a model and its text encoder by a LoRA: merged into them, made anew at every use, or added
/// beside them.
#[derive(Node)]
#[node(
    id = "FrescoLoraLoader",
    v1,
    module = "fresco",
    display = "Load LoRA (options)",
    category = "loaders",
    outputs("MODEL", "CLIP")
)]
pub(super) struct FrescoLoraLoader {
    #[input(listed = "models/loras")]
    lora_name: String,
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_model: f64,
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_clip: f64,
    /// merge keeps changed weights, on_the_fly makes them at every use, bypass leaves weights as they are and adds what
    /// the LoRA makes of each layer's input. The last two need less memory and more time.
    #[input(choices = ["merge", "on_the_fly", "bypass"])]
    patch_mode: String,
    /// For OFT and BOFT: compat is as strong as in ComfyUI, where the strength counts twice; linear goes half the way at
    /// half the strength.
    #[input(choices = ["compat", "linear"])]
    oft_strength: String,
    /// What merged weights are kept as: as in the model's file, or in another format for all LoRAs of the model so far.
    #[input(choices = ["stored_dtype", "bf16", "fp8_e4m3"])]
    lora_storage: String,
    /// The model to change.
    #[input(optional)]
    model: Option<Model>,
    /// The text encoder to change.
    #[input(optional)]
    clip: Option<Clip>,
}

/// A choice by its name.
fn choice<T>(what: &str, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, NodeError> {
    parse(name).ok_or_else(|| NodeError::value_error(format!("there is no {what} {name:?}")))
}

impl Node for FrescoLoraLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let storage = choice("lora_storage", &self.lora_storage, LoraStorage::parse)?;
        let application = Application {
            mode: choice("patch_mode", &self.patch_mode, PatchMode::parse)?,
            oft: choice("oft_strength", &self.oft_strength, OftStrength::parse)?,
            // The usual format is the one that the model's loader was told.
            storage: (storage != LoraStorage::default()).then_some(storage),
            ..Application::usual(cx)
        };
        let strengths = (self.strength_model, self.strength_clip);
        let values = (self.model, self.clip);
        Ok(loader::apply(values, &self.lora_name, strengths, application, cx)?.both())
    }
}
