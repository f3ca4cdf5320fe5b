//! What files hold that are no diffusion models: text networks and control networks of their own.

use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::signatures::what_it_is;
use super::table::{CONTROL_NETS, MODEL_PATCHES, TEXT_KINDS, TEXT_STACKS};
use crate::control::ControlStore;
use crate::error::{ModelError, Result};
use crate::model_patch::PatchStore;
use crate::text::{TextEncoder, TextKind, TextStack};

impl ControlStore {
    /// What is in a file. Kinds that this version does not run are called by name.
    pub fn find(file: &Arc<dyn WeightFile>, device: &Device) -> Result<Self> {
        let names = file.names();
        for find in CONTROL_NETS {
            if let Some(found) = find(file, &names, device)? {
                return Ok(found);
            }
        }
        let reason = match what_it_is(&names) {
            Some(what) => format!("this is {what}, not a control net"),
            None => "this is not a control net that is known".to_owned(),
        };
        Err(ModelError::unsupported(
            file.path().display().to_string(),
            reason,
        ))
    }
}

impl PatchStore {
    /// What is in a file.
    pub fn find(file: &Arc<dyn WeightFile>, device: &Device) -> Result<Self> {
        let names = file.names();
        for find in MODEL_PATCHES {
            if let Some(found) = find(file, &names, device)? {
                return Ok(found);
            }
        }
        let reason = match what_it_is(&names) {
            Some(what) => format!("this is {what}, not a model patch"),
            None => "this is not a model patch that is known".to_owned(),
        };
        let file = file.path().display().to_string();
        Err(ModelError::unsupported(file, reason))
    }
}

impl TextStack {
    /// The set that consists of networks of these kinds, in any order.
    fn of(kinds: &[&'static TextKind]) -> Option<&'static Self> {
        let holds = |stack: &&&'static Self| {
            let parts = stack.parts;
            parts.len() == kinds.len() && parts.iter().all(|part| kinds.contains(&part.kind))
        };
        TEXT_STACKS.iter().find(holds).copied()
    }
}

impl TextEncoder {
    /// The encoder that files of their own make together, in any order.
    pub fn from_files(files: &[Arc<dyn WeightFile>], device: &Device) -> Result<Self> {
        let mut stores = Vec::new();
        for file in files {
            let found = TEXT_KINDS.iter().find_map(|find| find(&**file));
            let found = found.and_then(|kind| Some((kind, kind.store(file, "", device)?)));
            stores.push(found.ok_or_else(|| {
                let reason = match other_kind(&**file) {
                    Some(found) => format!("{found} text encoders are not supported yet"),
                    None => "no text encoder is known with its tensors".to_owned(),
                };
                ModelError::unsupported(file.path().display().to_string(), reason)
            })?);
        }
        let kinds: Vec<&'static TextKind> = stores.iter().map(|(kind, _)| *kind).collect();
        let Some(stack) = TextStack::of(&kinds) else {
            let names: Vec<&str> = kinds.iter().map(|k| k.name).collect();
            let reason = format!("no model uses {} together", names.join(" and "));
            let files: Vec<_> = files
                .iter()
                .map(|f| f.path().display().to_string())
                .collect();
            return Err(ModelError::unsupported(files.join(", "), reason));
        };
        Self::from_stores(stack, stores)
    }
}

/// What kind of text encoder a file has that this version does not run.
fn other_kind(file: &dyn WeightFile) -> Option<&'static str> {
    const SIGNS: [(&str, &str); 5] = [
        ("encoder.block.0.layer.0.SelfAttention.k.weight", "T5"),
        ("model.layers.0.post_feedforward_layernorm.weight", "Gemma"),
        ("model.layers.0.self_attn.k_proj.bias", "Qwen2.5"),
        ("model.layers.0.self_attn.q_norm.weight", "Qwen3"),
        (
            "model.layers.0.post_attention_layernorm.weight",
            "Llama and Mistral",
        ),
    ];
    let has = |name: &str| file.info(name).is_some();
    SIGNS
        .iter()
        .find(|(name, _)| has(name))
        .map(|(_, kind)| *kind)
}
