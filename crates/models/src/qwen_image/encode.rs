//! What of a condition goes into the network.

use fresco_tensor::Tensor;

use super::config::QwenConfig;
use crate::denoise::{CondValue, EncodeArgs, ModelConds, names};
use crate::error::{ModelError, Result};
use crate::latent_format;

/// The prompt, latents of reference pictures, and how those are placed.
pub(super) fn conds(config: &QwenConfig, file: &str, args: &EncodeArgs<'_>) -> Result<ModelConds> {
    let mut conds = ModelConds::new();
    // Positions count, so prompts of other lengths are not repeated to fit.
    let tokens = CondValue::Regular(args.prompt_of_width(config.context, file)?.clone());
    conds.insert(names::PROMPT, tokens);
    // Text that only control nets see.
    if let Some(tokens) = args.cond.tensors.get("cross_attn_controlnet") {
        conds.insert(names::CONTROL_PROMPT, CondValue::Regular(tokens.clone()));
    }
    if let Some(list) = args.cond.lists.get("reference_latents") {
        let references = list.iter().map(|latent| reference(config, file, latent));
        let references = references.collect::<Result<Vec<_>>>()?;
        if !references.is_empty() {
            conds.insert(names::REFERENCES, CondValue::List(references));
        }
    }
    if let Some(method) = args.cond.words.get("reference_latents_method") {
        conds.insert(names::REFERENCE_METHOD, CondValue::Word(method.clone()));
    }
    Ok(conds)
}

/// A latent of a picture as the network sees it.
fn reference(config: &QwenConfig, file: &str, latent: &Tensor) -> Result<Tensor> {
    let latent = match latent.rank() {
        // A picture is a video of one frame.
        4 => latent.unsqueeze(2)?,
        _ => latent.clone(),
    };
    match *latent.shape() {
        [_, channels, ..] if latent.rank() == 5 && channels == config.channels() => {
            if latent.is_empty() {
                let reason = "a reference picture has no pixels";
                return Err(ModelError::invalid("reference", reason));
            }
            Ok(latent_format::WAN21.process_in(&latent)?)
        }
        ref shape => Err(ModelError::unsupported(
            file,
            format!(
                "a reference picture has a latent of shape {shape:?}, but this model works on {} channels: it was \
                 encoded with the VAE of another family of models. Load the one that belongs to this model",
                config.channels()
            ),
        )),
    }
}
