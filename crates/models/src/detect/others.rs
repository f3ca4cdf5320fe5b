//! What files hold that are no diffusion models: text networks and control networks of their own.

use std::sync::Arc;

use fresco_tensor::{Device, WeightFile};

use super::signatures::what_it_is;
use super::table::{CONTROL_NETS, MODEL_PATCHES, TEXT_KINDS};
use super::{something_else, stacks};
use crate::control::ControlStore;
use crate::error::{ModelError, Result};
use crate::model_patch::PatchStore;
use crate::store::WeightStore;
use crate::text::{TextEncoder, TextKind};

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
            Some("a control net" | "a T2I adapter") => {
                "this is a control net of a kind that this version does not know".to_owned()
            }
            _ => something_else(file, "a control net"),
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
        let reason = something_else(file, "a model patch");
        let file = file.path().display().to_string();
        Err(ModelError::unsupported(file, reason))
    }
}

impl TextEncoder {
    /// The encoder that files of their own make together, in any order.
    pub fn from_files(files: &[Arc<dyn WeightFile>], device: &Device) -> Result<Self> {
        Self::from_files_as(files, None, device)
    }

    /// The same for a loader of this type, which decides where networks of a kind have several uses.
    pub fn from_files_as(
        files: &[Arc<dyn WeightFile>],
        kind: Option<&str>,
        device: &Device,
    ) -> Result<Self> {
        let mut stores = text_stores(files, device)?;
        for (found, store) in &mut stores {
            *found = stacks::expected_kind(kind.unwrap_or_default(), found, store);
        }
        let found: Vec<_> = stores.iter().map(|(kind, s)| (*kind, &**s)).collect();
        let stack = stacks::choose(kind.unwrap_or_default(), &found).map_err(|reason| {
            let names: Vec<&str> = found.iter().map(|(kind, _)| kind.name).collect();
            let kind = kind.map_or_else(String::new, |kind| format!(" as type {kind:?}"));
            let reason = format!("{}{kind}: {reason}", names.join(" and "));
            let paths = files.iter().map(|f| f.path().display().to_string());
            ModelError::unsupported(paths.collect::<Vec<_>>().join(", "), reason)
        })?;
        Self::from_stores(stack, stores)
    }
}

/// The text networks in files of their own, whatever they are used for.
pub fn text_stores(
    files: &[Arc<dyn WeightFile>],
    device: &Device,
) -> Result<Vec<(&'static TextKind, Arc<WeightStore>)>> {
    let store = |file: &Arc<dyn WeightFile>| {
        let found = TEXT_KINDS.iter().find_map(|find| find(&**file));
        let found = found.and_then(|kind| Some((kind, kind.store(file, "", device)?)));
        found.ok_or_else(|| not_text(file))
    };
    files.iter().map(store).collect()
}

/// The text network in a file of its own, in words; none if it holds something else.
pub(super) fn text_network(file: &Arc<dyn WeightFile>) -> Option<String> {
    let kind = TEXT_KINDS.iter().find_map(|find| find(&**file))?;
    Some(format!("the text encoder {}", kind.name))
}

/// Why a file is no text encoder that can be used.
fn not_text(file: &Arc<dyn WeightFile>) -> ModelError {
    let reason = match what_it_is(&file.names()) {
        Some("a text encoder") => "no text encoder is known with its tensors".to_owned(),
        _ => something_else(file, "a text encoder"),
    };
    ModelError::unsupported(file.path().display().to_string(), reason)
}
