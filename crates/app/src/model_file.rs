//! What a model file is, for those who see files only by name.

use std::path::Path;

use fresco_models::detect_checkpoint;
use fresco_server::ModelDescription;
use fresco_tensor::open_weights;

/// Reads the names in a file, not its weights.
pub(crate) fn describe(path: &Path) -> Result<ModelDescription, String> {
    let file = open_weights(path).map_err(|error| error.to_string())?;
    let found = detect_checkpoint(&file).map_err(|error| error.to_string())?;
    Ok(ModelDescription {
        family: found.family.to_owned(),
        has_text: found.text.is_some(),
        has_vae: found.vae_prefix.is_some(),
    })
}
