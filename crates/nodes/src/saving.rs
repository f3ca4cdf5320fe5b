//! Nodes that write weights: checkpoints and their parts, with the changes of nodes merged in.

mod draft;

use fresco_files::dirs::DirType;
use fresco_graph::{Cx, Map, Node, NodeEntry, NodeError, NodeOutput, NodeResult, entry, json};
use fresco_models::model_sampling::{Prediction, Spacing};
use fresco_models::preview::PreviewHints;
use fresco_models::text::SavedAs;
use fresco_tensor::{Stored, Tensor};

use crate::clip::Clip;
use crate::lora::Weights;
use crate::sampling::Model;
use crate::save::{Presence, begin, metadata_values};
use crate::vae::Vae;

pub(crate) use draft::Draft;

pub static NODES: &[NodeEntry] = &[
    entry::<CheckpointSave>(),
    entry::<ModelSave>(),
    entry::<ClipSave>(),
    entry::<VaeSave>(),
];

/// Prompt and workflow for the header of a file; the prompt is there even when it is empty. Nothing when the user
/// switched metadata off.
pub(crate) fn metadata(cx: &Cx) -> Vec<(String, String)> {
    let Some(values) = metadata_values(cx, Presence::NotNull) else {
        return Vec::new();
    };
    let mut text = Vec::new();
    if !values.contains_key("prompt") {
        text.push(("prompt".to_owned(), String::new()));
    }
    let entries = |values: &Map| -> Vec<(String, String)> {
        values
            .iter()
            .map(|(k, v)| (k.to_string(), json::to_python(v)))
            .collect()
    };
    text.extend(entries(&values));
    text
}

/// Writes a draft under the next free number of a prefix.
pub(crate) fn write(
    draft: Draft,
    prefix: &str,
    metadata: impl FnOnce(&str, u64) -> Vec<(String, String)>,
    cx: &Cx,
) -> Result<(), NodeError> {
    let mut batch = begin(cx, DirType::Output, prefix, 0, 0)?;
    let metadata = metadata(&batch.path.stem, batch.path.counter);
    let saved = draft.save(&mut batch, &metadata, cx)?;
    tracing::info!("saved {}", saved.path.display());
    Ok(())
}

/// A tensor without elements, whose name says something.
fn marker() -> Result<Stored, NodeError> {
    Ok(Stored::from(&Tensor::zeros([0])?))
}

/// The weights of a diffusion network as checkpoints have them, with what says how it is sampled.
fn add_model(draft: &mut Draft, model: &Model) -> Result<Vec<(String, String)>, NodeError> {
    draft.add(model, |_, key| Some(format!("model.diffusion_model.{key}")))?;
    let sampling = &model.sampling;
    let mut text = Vec::new();
    if sampling.spacing == Spacing::ContinuousEdm && sampling.prediction == Prediction::V {
        for (name, sigma) in [
            ("edm_vpred.sigma_max", sampling.sigma_max()),
            ("edm_vpred.sigma_min", sampling.sigma_min()),
        ] {
            draft.add_made(name, Stored::from(&Tensor::scalar(sigma)));
        }
    }
    let key = match sampling.prediction {
        Prediction::Eps => Some("epsilon"),
        Prediction::V => {
            draft.add_made("v_pred", marker()?);
            // Noise that hides the picture completely shows in the last step of the table.
            if sampling.spacing == Spacing::Discrete && sampling.sigma_max() > 4000.0 {
                draft.add_made("ztsnr", marker()?);
            }
            Some("v")
        }
        _ => None,
    };
    if let Some(key) = key {
        text.push(("modelspec.predict_key".to_owned(), key.to_owned()));
    }
    Ok(text)
}

/// What a standard header says about an architecture.
fn model_spec(model: &Model, stem: &str, counter: u64) -> Vec<(String, String)> {
    let Some(mut architecture) = model.base.architecture() else {
        return Vec::new();
    };
    if model.sampling.prediction == Prediction::Edm {
        architecture = "stable-diffusion-xl-v1-edm";
    }
    [
        ("modelspec.architecture", architecture.to_owned()),
        ("modelspec.sai_model_spec", "1.0.0".to_owned()),
        ("modelspec.implementation", "sgm".to_owned()),
        ("modelspec.title", format!("{stem} {counter}")),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into()
}

fn save_checkpoint(
    model: &Model,
    others: impl FnOnce(&mut Draft) -> Result<(), NodeError>,
    prefix: &str,
    cx: &Cx,
) -> NodeResult {
    let mut draft = Draft::default();
    let predicts = add_model(&mut draft, model)?;
    others(&mut draft)?;
    let header = |stem: &str, counter: u64| {
        let mut text = model_spec(model, stem, counter);
        text.extend(predicts);
        text.extend(model.preview().into_iter().flat_map(PreviewHints::metadata));
        text.extend(metadata(cx));
        text
    };
    write(draft, prefix, header, cx)?;
    Ok(NodeOutput::default())
}

/// The text encoders as checkpoints of their family have them.
fn add_clip(draft: &mut Draft, clip: &Clip) -> Result<(), NodeError> {
    for part in clip.loaded().stack().parts {
        let own = format!("{}.", part.name);
        match part.saved {
            SavedAs::Plain { prefix, without } => draft.add_part(clip, &own, |_, key| {
                (!without.contains(&key)).then(|| format!("{prefix}{key}"))
            })?,
            SavedAs::Joined { prefix } => draft.add_open_clip(clip, &own, prefix)?,
        }
    }
    Ok(())
}

/// Writes a model, its text encoder and its VAE to one file that can be loaded as a checkpoint.
#[derive(Node)]
#[node(
    id = "CheckpointSave",
    v1,
    module = "comfy_extras.nodes_model_merging",
    display = "Save Checkpoint",
    category = "advanced/model_merging",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
struct CheckpointSave {
    model: Model,
    clip: Clip,
    vae: Vae,
    #[input(default = "checkpoints/ComfyUI")]
    filename_prefix: String,
}

impl Node for CheckpointSave {
    fn run(self, cx: &Cx) -> NodeResult {
        let others = |draft: &mut Draft| {
            add_clip(draft, &self.clip)?;
            draft.add(&self.vae, |_, key| Some(format!("first_stage_model.{key}")))
        };
        save_checkpoint(&self.model, others, &self.filename_prefix, cx)
    }
}

/// Writes a diffusion model alone to a file.
#[derive(Node)]
#[node(
    id = "ModelSave",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
struct ModelSave {
    model: Model,
    #[input(default = "diffusion_models/ComfyUI")]
    filename_prefix: String,
}

impl Node for ModelSave {
    fn run(self, cx: &Cx) -> NodeResult {
        save_checkpoint(&self.model, |_| Ok(()), &self.filename_prefix, cx)
    }
}

/// Writes the text encoders to files, one for each.
#[derive(Node)]
#[node(
    id = "CLIPSave",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
struct ClipSave {
    clip: Clip,
    #[input(default = "clip/ComfyUI")]
    filename_prefix: String,
}

impl Node for ClipSave {
    fn run(self, cx: &Cx) -> NodeResult {
        for (prefix, _) in Weights::stores(&self.clip)? {
            let name = prefix.split('.').next().unwrap_or_default();
            let mut draft = Draft::default();
            draft.add_part(&self.clip, &format!("{name}."), |_, key| {
                Some(key.to_owned())
            })?;
            let header = |_: &str, _: u64| {
                let mut text = metadata(cx);
                if !text.is_empty() {
                    text.insert(0, ("format".to_owned(), "pt".to_owned()));
                }
                text
            };
            write(
                draft,
                &format!("{}_{name}", self.filename_prefix),
                header,
                cx,
            )?;
        }
        Ok(NodeOutput::default())
    }
}

/// Writes a VAE to a file.
#[derive(Node)]
#[node(
    id = "VAESave",
    v1,
    module = "comfy_extras.nodes_model_merging",
    category = "advanced/model_merging",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
struct VaeSave {
    vae: Vae,
    #[input(default = "vae/ComfyUI_vae")]
    filename_prefix: String,
}

impl Node for VaeSave {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut draft = Draft::default();
        draft.add(&self.vae, |_, key| Some(key.to_owned()))?;
        write(draft, &self.filename_prefix, |_, _| metadata(cx), cx)?;
        Ok(NodeOutput::default())
    }
}
