//! Nodes that put a LoRA onto a model.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Value, map};
use fresco_models::detect::{lora_is_for, what_it_is};
use fresco_models::lora::{Loaded, NameMap};

use super::{Application, Fit, Lora, Weights, add_patches, load_lora, open_lora};
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
    #[input(listed = "models/loras")]
    lora_name: String,
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_model: f64,
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_clip: f64,
}

/// What a file makes of the values it is put onto.
#[derive(Default)]
pub(super) struct Applied {
    pub(super) model: Option<Model>,
    pub(super) clip: Option<Clip>,
    /// Why it changes nothing, where it should have.
    warning: Option<String>,
}

impl Applied {
    /// The node's output. A warning is shown with the result and stays in the history: a cached node tells it again.
    pub(super) fn output(self, slots: Vec<Value>) -> NodeOutput {
        let output = NodeOutput::slots(slots);
        match self.warning {
            Some(text) => output.with_ui(map! {"warnings" => vec![Value::from(text)]}),
            None => output,
        }
    }

    /// Model and text encoder, as loaders of both give them.
    pub(super) fn both(mut self) -> NodeOutput {
        let model = self.model.take().map_or(Value::Null, Value::from);
        let clip = self.clip.take().map_or(Value::Null, Value::from);
        self.output(vec![model, clip])
    }
}

/// Both values changed by a file. Names are looked up in what both know, as a file may be for either.
pub(super) fn apply(
    (model, clip): (Option<Model>, Option<Clip>),
    name: &str,
    strengths: (f64, f64),
    application: Application,
    cx: &Cx,
) -> Result<Applied, NodeError> {
    if strengths == (0.0, 0.0) {
        return Ok(Applied {
            model,
            clip,
            warning: None,
        });
    }
    let lora = open_lora(cx, name)?;
    apply_open((model, clip), (&lora, name), strengths, application, cx)
}

/// Both values changed by a file that is open; what it could not change is said in the log.
pub(crate) fn apply_lora(
    values: (Option<Model>, Option<Clip>),
    lora: (&Lora, &str),
    strengths: (f64, f64),
    application: Application,
    cx: &Cx,
) -> Result<(Option<Model>, Option<Clip>), NodeError> {
    let applied = apply_open(values, lora, strengths, application, cx)?;
    Ok((applied.model, applied.clip))
}

fn apply_open(
    (model, clip): (Option<Model>, Option<Clip>),
    (lora, name): (&Lora, &str),
    strengths: (f64, f64),
    application: Application,
    cx: &Cx,
) -> Result<Applied, NodeError> {
    let mut names = match &model {
        Some(model) => model.lora_names()?,
        None => NameMap::default(),
    };
    if let Some(clip) = &clip {
        names = names.and(clip.lora_names()?);
    }
    let loaded = load_lora(lora, &names)?;
    let path = lora.file().path().display().to_string();
    let how = Some(application);
    let mut applied = Applied::default();
    let mut fits = Vec::new();
    if let Some(model) = model {
        let patches = loaded.patches(strengths.0, |_| true);
        let (model, fit) = add_patches(model, patches, &path, how)?;
        applied.model = Some(model.with_lora_notes(lora.file().metadata()));
        fits.extend((strengths.0 != 0.0).then_some(fit));
    }
    if let Some(clip) = clip {
        let patches = loaded.patches(strengths.1, |_| true);
        let (clip, fit) = add_patches(clip, patches, &path, how)?;
        applied.clip = Some(clip);
        fits.extend((strengths.1 != 0.0).then_some(fit));
    }
    if !fits.is_empty() && fits.iter().all(|fit| fit.fitting == 0) {
        let text = no_effect(name, &looks(lora), &loaded, &fits);
        tracing::warn!(node = %cx.node_id, "{text}");
        cx.services.text(&cx.node_id, &text);
        applied.warning = Some(text);
    }
    Ok(applied)
}

/// What a file that does not fit looks like.
fn looks(lora: &Lora) -> String {
    let names: Vec<String> = lora.file().names().map(str::to_owned).collect();
    match (what_it_is(&names), lora_is_for(lora.file().names())) {
        (Some(what), _) if what != "a LoRA" => format!("It looks like {what}, not a LoRA"),
        (_, Some(models)) => format!("It looks made for {models}"),
        _ => "It was made for another kind of model".to_owned(),
    }
}

/// Says that a file changes nothing, and why.
fn no_effect(name: &str, looks: &str, loaded: &Loaded, fits: &[Fit]) -> String {
    let why = if let Some(odd) = fits.iter().find_map(|fit| fit.odd.first()) {
        format!("its layers have other sizes than the model's ({odd})")
    } else {
        let total = loaded.used + loaded.unused.len();
        format!("the model has none of the layers that its {total} tensors are for")
    };
    format!(
        "The LoRA {name} changes nothing: {why}. {looks}; choose one for this model, or take it out."
    )
}

impl Node for LoraLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, self.strength_clip);
        let (values, how) = ((self.model, self.clip), Application::usual(cx));
        Ok(apply(values, &self.lora_name, strengths, how, cx)?.both())
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
    #[input(listed = "models/loras")]
    lora_name: String,
    #[input(default = 1.0, min = -100.0, max = 100.0, step = 0.01)]
    strength_model: f64,
}

impl Node for LoraLoaderModelOnly {
    fn run(self, cx: &Cx) -> NodeResult {
        let strengths = (self.strength_model, 0.0);
        let (values, how) = ((Some(self.model), None), Application::usual(cx));
        let mut applied = apply(values, &self.lora_name, strengths, how, cx)?;
        let model = applied.model.take().map_or(Value::Null, Value::from);
        Ok(applied.output(vec![model]))
    }
}
