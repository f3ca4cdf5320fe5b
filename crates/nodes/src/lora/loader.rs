//! Nodes that put a LoRA onto a model.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Value};

use super::{Application, Weights, add_patches, load_lora, open_lora};
use crate::clip::Clip;
use crate::sampling::Model;

/// Changes the weights of a model and its text encoder by a LoRA. Several can follow each other.
#[derive(Node)]
#[node(
    id = "LoraLoader",
    v1,
    module = "nodes",
    display = "Load LoRA",
    category = "loaders",
    outputs("MODEL", "CLIP")
)]
pub(super) struct LoraLoader {
    /// The model to change.
    model: Option<Model>,
    /// The text encoder to change.
    clip: Option<Clip>,
    /// The file with the change.
    #[input(listed = "models/loras")]
    lora_name: String,
    /// How much the model changes. A negative value changes it the other way.
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_model: f64,
    /// How much the text encoder changes. A negative value changes it the other way.
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_clip: f64,
}

/// Both values changed by a file. Names are looked up in what both know, as a file may be for either.
pub(super) fn apply(
    (model, clip): (Option<Model>, Option<Clip>),
    name: &str,
    strengths: (f64, f64),
    application: Application,
    cx: &Cx,
) -> Result<(Option<Model>, Option<Clip>), NodeError> {
    if strengths == (0.0, 0.0) {
        return Ok((model, clip));
    }
    let mut names = match &model {
        Some(model) => model.lora_names()?,
        None => fresco_models::lora::NameMap::default(),
    };
    if let Some(clip) = &clip {
        names = names.and(clip.lora_names()?);
    }
    let lora = open_lora(cx, name)?;
    let loaded = load_lora(&lora, &names, cx)?;
    let path = lora.file().path().display().to_string();
    let how = Some(application);
    let model = match model {
        Some(model) => {
            let patches = loaded.patches(strengths.0, |_| true);
            Some(add_patches(model, patches, &path, how)?)
        }
        None => None,
    };
    let clip = match clip {
        Some(clip) => {
            let patches = loaded.patches(strengths.1, |_| true);
            Some(add_patches(clip, patches, &path, how)?)
        }
        None => None,
    };
    Ok((model, clip))
}

impl Node for LoraLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, self.strength_clip);
        let (values, how) = ((self.model, self.clip), Application::usual(cx));
        let (model, clip) = apply(values, &self.lora_name, strengths, how, cx)?;
        Ok(NodeOutput::slots(vec![
            model.map_or(Value::Null, Value::from),
            clip.map_or(Value::Null, Value::from),
        ]))
    }
}

/// Changes the weights of a model by a LoRA and leaves the text encoder as it is.
#[derive(Node)]
#[node(
    id = "LoraLoaderModelOnly",
    v1,
    module = "nodes",
    category = "loaders",
    outputs("MODEL")
)]
pub(super) struct LoraLoaderModelOnly {
    /// The model to change.
    model: Model,
    /// The file with the change.
    #[input(listed = "models/loras")]
    lora_name: String,
    /// How much the model changes. A negative value changes it the other way.
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_model: f64,
}

impl Node for LoraLoaderModelOnly {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, 0.0);
        let (values, how) = ((Some(self.model), None), Application::usual(cx));
        let (model, _) = apply(values, &self.lora_name, strengths, how, cx)?;
        Ok(NodeOutput::one(model))
    }
}
