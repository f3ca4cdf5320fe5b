//! Whole models from one file, and networks from files of their own.

use std::path::Path;
use std::sync::Arc;

use fresco_files::Folders;
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Value};
use fresco_models::denoise::SdModel;
use fresco_models::detect::{Checkpoint, detect_checkpoint};
use fresco_models::text::TextEncoder;
use fresco_models::{ModelSampling, Prediction};
use fresco_tensor::weights::Recast;
use fresco_tensor::{Device, Dtype, WeightFile, open_weights};

use super::{device, open_model};
use crate::clip::Clip;
use crate::sampling::Model;
use crate::sampling::run::failure;
use crate::vae::{LoadedVae, Vae};

/// How a detected model is sampled.
fn sampling(found: &Checkpoint) -> ModelSampling {
    match found.prediction {
        // Playground 2.5.
        Prediction::Edm => ModelSampling::continuous_edm(Prediction::Edm, 0.002, 80.0, 0.5),
        prediction => ModelSampling::discrete(prediction, found.zero_snr),
    }
}

/// The network of a file.
fn model(file: &Arc<dyn WeightFile>, cx: &Cx) -> Result<(Model, Checkpoint), NodeError> {
    let found = detect_checkpoint(file).map_err(failure)?;
    let store = found.unet_store(file, device(cx));
    let network = SdModel::new(store, found.config.clone(), found.latent_format);
    let network = Arc::new(network.map_err(failure)?);
    Ok((Model::new(network, sampling(&found)), found))
}

/// MODEL, CLIP and VAE of a file; null for a part that is not in it.
fn load(file: &Arc<dyn WeightFile>, cx: &Cx) -> Result<(Model, Value, Value), NodeError> {
    let (model, found) = model(file, cx)?;
    let clip = match found.text {
        // Text is encoded in main memory: it is short.
        Some(stack) => {
            TextEncoder::from_checkpoint(file, stack, &Device::cpu()).map_err(failure)?
        }
        None => None,
    };
    let clip = clip.map_or(Value::Null, |encoder| Clip::new(encoder).into());
    let vae = match found.vae_prefix {
        Some(prefix) => {
            let vae = LoadedVae::open(file, prefix, device(cx)).map_err(failure)?;
            Vae(Arc::new(vae)).into()
        }
        None => Value::Null,
    };
    Ok((model, clip, vae))
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
    /// The file to load.
    #[input(listed = "models/checkpoints")]
    ckpt_name: String,
}

impl Node for CheckpointLoaderSimple {
    fn run(self, cx: &Cx) -> NodeResult {
        let file = open_model(cx, "checkpoints", &self.ckpt_name)?;
        let (model, clip, vae) = load(&file, cx)?;
        Ok(NodeOutput::slots(vec![model.into(), clip, vae]))
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
        let file = open_model(cx, "checkpoints", &self.ckpt_name)?;
        let (mut model, mut clip, vae) = load(&file, cx)?;
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
    #[input(choices = ["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"])]
    weight_dtype: String,
}

impl Node for UnetLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut file = open_model(cx, "diffusion_models", &self.unet_name)?;
        let dtype = match &*self.weight_dtype {
            "fp8_e4m3fn" | "fp8_e4m3fn_fast" => Some(Dtype::F8E4M3),
            "fp8_e5m2" => Some(Dtype::F8E5M2),
            _ => None,
        };
        if let Some(dtype) = dtype {
            file = Arc::new(Recast::new(file, dtype));
        }
        Ok(NodeOutput::one(model(&file, cx)?.0))
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
    #[input(listed = "models/diffusers")]
    model_path: String,
}

/// The weights in a part of such a folder.
fn part(folder: &Path, name: &str, stem: &str) -> Result<Option<Arc<dyn WeightFile>>, NodeError> {
    let endings = [".fp16.safetensors", ".safetensors", ".fp16.bin", ".bin"];
    let found = endings
        .iter()
        .map(|ending| folder.join(name).join(format!("{stem}{ending}")))
        .find(|path| path.is_file());
    Ok(found.map(open_weights).transpose()?)
}

impl Node for DiffusersLoader {
    fn run(self, cx: &Cx) -> NodeResult {
        let folders = cx.resource::<Folders>()?;
        let folder = folders
            .require("diffusers", &self.model_path)
            .map_err(|e| NodeError::file_not_found(e.to_string()))?;
        let absent = |name: &str| {
            let folder = folder.display();
            NodeError::file_not_found(format!("{folder} has no weights in {name}"))
        };
        let stem = "diffusion_pytorch_model";
        let unet = part(&folder, "unet", stem)?.ok_or_else(|| absent("unet"))?;
        let vae = part(&folder, "vae", stem)?.ok_or_else(|| absent("vae"))?;
        let text = part(&folder, "text_encoder", "model")?;
        let text = match text {
            Some(file) => file,
            None => part(&folder, "text_encoder", "pytorch_model")?
                .ok_or_else(|| absent("text_encoder"))?,
        };
        let encoder = TextEncoder::from_files(&[text], &Device::cpu()).map_err(failure)?;
        let vae = LoadedVae::open(&vae, "", device(cx)).map_err(failure)?;
        let (model, _) = model(&unet, cx)?;
        Ok(NodeOutput::slots(vec![
            model.into(),
            Clip::new(encoder).into(),
            Vae(Arc::new(vae)).into(),
        ]))
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
