//! Whole models from one file, and networks from files of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Value};
use fresco_models::detect::{Checkpoint, Families};
use fresco_models::text::TextEncoder;
use fresco_models::vision::prefix_in;
use fresco_models::{BaseModel, LoraStorage, ModelSampling, Prediction, WeightStore};
use fresco_tensor::{Device, Dtype};

use super::vision::open_vision;
use super::{Reading, WeightSource};
use crate::clip::Clip;
use crate::resident::{Component, Hold, LoadOptions, SharedNetwork, registry, who};
use crate::sampling::Model;
use crate::sampling::run::failure;
use crate::vae::{LoadedVae, Vae};

/// What the parts of a checkpoint were told.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointOptions {
    pub(crate) model: LoadOptions,
    pub(crate) clip: LoadOptions,
    pub(crate) vae: LoadOptions,
}

type Diffusion = SharedNetwork<dyn BaseModel, Checkpoint>;

/// What reports of the memory room have called diffusion models from the start.
const CLASS: &str = "SdModel";

/// The families that this program runs.
pub(crate) fn families(cx: &Cx) -> Families {
    let given = cx.resource::<Families>();
    given.map_or_else(|_| Families::default(), |families| (*families).clone())
}

/// The network of a file.
fn diffusion(
    cx: &Cx,
    source: &WeightSource,
    options: &LoadOptions,
) -> Result<(Model, Arc<Diffusion>), NodeError> {
    let reading = source.reading(cx);
    let key = source.key_as(Component::Diffusion, &reading.name())?;
    let opened = registry(cx).open(&who(cx), &key, CLASS, || {
        let file = reading.network(source.open()?);
        let found = families(cx).detect(&file).map_err(failure)?;
        let model = found.open(&file, Device::cpu()).map_err(failure)?;
        if let Some(store) = model.store() {
            report_unused(&found, store);
        }
        Diffusion::model(model, found).map_err(failure)
    })?;
    let shared = opened.shared;
    let hold = Hold::claim(cx, &shared, &opened.id, Component::Diffusion, options);
    let network = shared.model_on(hold.compute().clone()).map_err(failure)?;
    let sampling = shared.extra.network.facts().sampling;
    let mut model = Model::new(network, sampling)
        .with_hold(hold)
        .with_preview(shared.extra.preview.clone());
    let eight_bit = || {
        shared
            .network
            .store()
            .is_some_and(|store| is_eight_bit(store))
    };
    if options.low_precision_loras && eight_bit() {
        model = model.with_lora_storage(LoraStorage::F8E4M3);
    }
    Ok((model, shared))
}

/// Says in the log what of a file does nothing: nobody has to guess whether an extra was read.
fn report_unused(found: &Checkpoint, store: &WeightStore) {
    const NAMED: usize = 3;
    let Ok(unused) = found.unused(store) else {
        return;
    };
    if !unused.is_empty() {
        tracing::info!(
            "{}: {} of its {} tensors are not used by {}, such as {}",
            store.file(),
            unused.len(),
            store.keys().len(),
            found.family,
            unused[..unused.len().min(NAMED)].join(", ")
        );
    }
}

/// Whether most numbers of a model have eight bits.
fn is_eight_bit(store: &WeightStore) -> bool {
    let (mut eight, mut all) = (0, 0);
    for key in store.keys() {
        let count: usize = store.shape(key).map_or(0, |shape| shape.iter().product());
        all += count;
        if let Some(Dtype::F8E4M3 | Dtype::F8E5M2) = store.dtype(key) {
            eight += count;
        }
    }
    2 * eight > all
}

/// The text encoder of a checkpoint, if there is one in it.
fn text(
    cx: &Cx,
    source: &WeightSource,
    found: &Checkpoint,
    options: &LoadOptions,
) -> Result<Option<Clip>, NodeError> {
    let Some(stack) = found.text else {
        return Ok(None);
    };
    let key = source.key(Component::Text)?;
    // No error at all: the file has none.
    let opened = registry(cx).open(&who(cx), &key, "TextEncoder", || {
        let file = source.open().map_err(Some)?;
        let encoder = TextEncoder::from_checkpoint(file, stack, &Device::cpu());
        let encoder = encoder.map_err(|e| Some(failure(e)))?.ok_or(None)?;
        Ok(SharedNetwork::new(encoder, ()))
    });
    match opened {
        Ok(opened) => Clip::claim(cx, &opened, options).map(Some),
        Err(None) => Ok(None),
        Err(Some(error)) => Err(error),
    }
}

/// MODEL, CLIP and VAE of a file; null for a part that is not in it.
fn load(
    cx: &Cx,
    source: &WeightSource,
    parts: &CheckpointOptions,
) -> Result<(Model, Value, Value), NodeError> {
    let (model, shared) = diffusion(cx, source, &parts.model)?;
    let found = &shared.extra;
    let clip = text(cx, source, found, &parts.clip)?.map_or(Value::Null, Into::into);
    let vae = match found.vae_prefix {
        Some(prefix) => {
            let vae = LoadedVae::load(cx, source, prefix, &parts.vae)?;
            Vae(Arc::new(vae)).into()
        }
        None => Value::Null,
    };
    Ok((model, clip, vae))
}

/// The three parts of a checkpoint in the user's folder, as outputs of a node.
pub(crate) fn load_checkpoint(cx: &Cx, name: &str, parts: &CheckpointOptions) -> NodeResult {
    let source = WeightSource::find(cx, "checkpoints", name)?;
    let (model, clip, vae) = load(cx, &source, parts)?;
    Ok(NodeOutput::slots(vec![model.into(), clip, vae]))
}

/// A diffusion model by itself, in a number format of the node's choice.
pub(crate) fn load_diffusion_model(
    cx: &Cx,
    name: &str,
    weight_dtype: &str,
    options: &LoadOptions,
) -> Result<Model, NodeError> {
    let source = WeightSource::find(cx, "diffusion_models", name)?;
    let source = source.read_as(Reading::chosen(weight_dtype));
    Ok(diffusion(cx, &source, options)?.0)
}

/// Loads a checkpoint: a diffusion model with its text encoder and its VAE.
#[derive(Node)]
#[node(
    id = "CheckpointLoaderSimple",
    v1,
    module = "nodes",
    display = "Load Checkpoint",
    category = "loaders",
    outputs("MODEL", "CLIP", "VAE")
)]
pub(super) struct CheckpointLoaderSimple {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

impl Node for CheckpointLoaderSimple {
    fn run(self, cx: &Cx) -> NodeResult {
        load_checkpoint(cx, &self.ckpt_name, &CheckpointOptions::default())
    }
}

/// Where checkpoints that are led by pictures keep the network that looks at those.
const VISION_PREFIX: &str = "embedder.model.";

/// Loads a checkpoint that is led by pictures, with the network that looks at those.
#[derive(Node)]
#[node(
    id = "unCLIPCheckpointLoader",
    v1,
    module = "nodes",
    category = "loaders",
    outputs("MODEL", "CLIP", "VAE", "CLIP_VISION")
)]
pub(super) struct UnclipCheckpointLoader {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

impl Node for UnclipCheckpointLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "checkpoints", &self.ckpt_name)?;
        let (model, clip, vae) = load(cx, &source, &CheckpointOptions::default())?;
        let names = source.open()?.names();
        let seeing = names.iter().any(|name| name.starts_with(VISION_PREFIX));
        let vision = if seeing {
            let options = LoadOptions::default();
            open_vision(cx, &source, VISION_PREFIX, &options)?.into()
        } else {
            Value::Null
        };
        Ok(NodeOutput::slots(vec![model.into(), clip, vae, vision]))
    }
}

/// Loads a checkpoint that makes films of a picture: a diffusion model with the network that looks at the picture, and its
/// VAE.
#[derive(Node)]
#[node(
    id = "ImageOnlyCheckpointLoader",
    v1,
    module = "comfy_extras.nodes_video_model",
    display = "Image Only Checkpoint Loader (img2vid model)",
    category = "loaders/video_models",
    outputs("MODEL", "CLIP_VISION", "VAE")
)]
pub(super) struct ImageOnlyCheckpointLoader {
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

impl Node for ImageOnlyCheckpointLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let source = WeightSource::find(cx, "checkpoints", &self.ckpt_name)?;
        let (model, _, vae) = load(cx, &source, &CheckpointOptions::default())?;
        let vision = match prefix_in(source.open()?) {
            Some(prefix) => open_vision(cx, &source, prefix, &LoadOptions::default())?.into(),
            None => Value::Null,
        };
        Ok(NodeOutput::slots(vec![model.into(), vision, vae]))
    }
}

/// Loads a checkpoint as an old configuration file says. New files need none.
#[derive(Node)]
#[node(
    id = "CheckpointLoader",
    v1,
    module = "nodes",
    display = "Load Checkpoint With Config (DEPRECATED)",
    category = "advanced/loaders",
    outputs("MODEL", "CLIP", "VAE"),
    deprecated
)]
pub(super) struct CheckpointLoader {
    /// The configuration that older checkpoints need.
    #[input(listed = "models/configs")]
    config_name: String,
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

/// The value of the first `key: value` line of a YAML file, wherever it stands. These files are old, few and flat enough.
fn setting<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix(':')?;
        Some(value.trim().trim_matches(['"', '\'']))
    })
}

impl Node for CheckpointLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let folders = cx.resource::<Folders>()?;
        let config = folders
            .require("configs", &self.config_name)
            .map_err(|e| NodeError::file_not_found(e.to_string()))?;
        let text = std::fs::read_to_string(&config)
            .map_err(|e| NodeError::runtime(format!("cannot read {}: {e}", config.display())))?;
        let source = WeightSource::find(cx, "checkpoints", &self.ckpt_name)?;
        let (mut model, mut clip, vae) = load(cx, &source, &CheckpointOptions::default())?;
        // What the file itself cannot say: how it was trained, and which layer of the text encoder it reads.
        let prediction = match setting(&text, "parameterization") {
            Some("v") => Prediction::V,
            _ => Prediction::Eps,
        };
        model = model.with_sampling(ModelSampling::discrete(prediction, false));
        let layer = setting(&text, "layer_idx").and_then(|value| value.parse::<i64>().ok());
        if let (Some(layer), Some(loaded)) = (layer, clip.downcast::<Clip>()) {
            let mut changed = loaded.clone();
            changed.layer = Some(layer);
            clip = changed.into();
        }
        Ok(NodeOutput::slots(vec![model.into(), clip, vae]))
    }
}

/// Loads a diffusion model without text encoder and VAE.
#[derive(Node)]
#[node(
    id = "UNETLoader",
    v1,
    module = "nodes",
    display = "Load Diffusion Model",
    category = "advanced/loaders",
    outputs("MODEL")
)]
pub(super) struct UnetLoader {
    #[input(listed = "models/diffusion_models")]
    unet_name: String,
    /// The format that weights are kept in: fp8 takes half the memory of 16 bits and costs quality.
    #[input(choices = ["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"])]
    weight_dtype: String,
}

impl Node for UnetLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let options = LoadOptions::default();
        let model = load_diffusion_model(cx, &self.unet_name, &self.weight_dtype, &options)?;
        Ok(NodeOutput::one(model))
    }
}

/// Loads a model from a folder in the layout of diffusers.
#[derive(Node)]
#[node(
    id = "DiffusersLoader",
    v1,
    module = "nodes",
    category = "advanced/loaders/deprecated",
    outputs("MODEL", "CLIP", "VAE")
)]
pub(super) struct DiffusersLoader {
    /// The folder of the model.
    #[input(listed = "models/diffusers")]
    model_path: String,
}

/// The weights in a part of such a folder.
pub(crate) fn diffusers_part(folder: &Path, name: &str, stem: &str) -> Option<PathBuf> {
    let endings = [".fp16.safetensors", ".safetensors", ".fp16.bin", ".bin"];
    let folder = folder.join(name);
    let whole = endings
        .iter()
        .map(|ending| folder.join(format!("{stem}{ending}")))
        .find(|path| path.is_file());
    whole.or_else(|| first_shard(&folder, stem))
}

/// The first of the files that large weights are cut into.
fn first_shard(folder: &Path, stem: &str) -> Option<PathBuf> {
    let start = format!("{stem}-00001-of-");
    let names = std::fs::read_dir(folder).ok()?.flatten();
    let mut found: Vec<PathBuf> = names
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&start) && name.ends_with(".safetensors"))
        })
        .collect();
    found.sort();
    found.into_iter().next()
}

/// Where such a folder keeps its network, and where its text encoders.
pub(crate) const NETWORK_PARTS: [&str; 2] = ["unet", "transformer"];
pub(crate) const TEXT_PARTS: [&str; 3] = ["text_encoder", "text_encoder_2", "text_encoder_3"];

/// The three parts of a folder in the layout of diffusers, as outputs of a node.
pub(crate) fn load_diffusers(cx: &Cx, name: &str, parts: &CheckpointOptions) -> NodeResult {
    let folders = cx.resource::<Folders>()?;
    let folder = folders
        .require("diffusers", name)
        .map_err(|e| NodeError::file_not_found(e.to_string()))?;
    let found = |names: &[&str], stems: &[&str]| -> Result<Vec<WeightSource>, NodeError> {
        let each = names.iter().filter_map(|name| {
            let mut files = stems
                .iter()
                .filter_map(|stem| diffusers_part(&folder, name, stem));
            files.next().map(WeightSource::new)
        });
        let each: Vec<WeightSource> = each.collect();
        if each.is_empty() {
            let folder = folder.display();
            let names = names.join(" or ");
            let reason = format!("{folder} has no weights in {names}");
            return Err(NodeError::file_not_found(reason));
        }
        Ok(each)
    };
    let unet = found(&NETWORK_PARTS, &["diffusion_pytorch_model"])?.remove(0);
    let vae = found(&["vae"], &["diffusion_pytorch_model"])?.remove(0);
    let text = found(&TEXT_PARTS, &["model", "pytorch_model"])?;
    let clip = Clip::load(cx, &text, None, &parts.clip)?;
    let vae = LoadedVae::load(cx, &vae, "", &parts.vae)?;
    let (model, _) = diffusion(cx, &unet, &parts.model)?;
    Ok(NodeOutput::slots(vec![
        model.into(),
        clip.into(),
        Vae(Arc::new(vae)).into(),
    ]))
}

impl Node for DiffusersLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        load_diffusers(cx, &self.model_path, &CheckpointOptions::default())
    }
}

#[cfg(test)]
mod tests {
    use super::setting;

    #[test]
    fn settings_of_old_configurations() {
        let text = "model:\n  params:\n    parameterization: \"v\"\n    cond_stage_config:\n      layer_idx: -2\n";
        assert_eq!(setting(text, "parameterization"), Some("v"));
        assert_eq!(setting(text, "layer_idx"), Some("-2"));
        assert_eq!(setting(text, "scale_factor"), None);
    }
}
