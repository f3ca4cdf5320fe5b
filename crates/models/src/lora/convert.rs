//! Files whose names follow no general rule, brought into one that does.

use std::collections::BTreeMap;

use fresco_tensor::WeightFile;

use super::file::LoraTensor;
use crate::detect::LORA_REWRITES;

/// The tensors of a file by name.
pub(crate) type LoraTensors = BTreeMap<String, LoraTensor>;

/// The same tensors under names that name maps know; none if the file is not of this kind.
pub(crate) type Rewrite = fn(&LoraTensors, &dyn WeightFile) -> Option<LoraTensors>;

/// The tensors of a file under names that name maps know.
pub(super) fn convert(tensors: LoraTensors, file: &dyn WeightFile) -> LoraTensors {
    let rewritten = LORA_REWRITES
        .iter()
        .find_map(|rewrite| rewrite(&tensors, file));
    rewritten.unwrap_or(tensors)
}

pub(crate) fn renamed(tensors: &LoraTensors, rename: impl Fn(&str) -> String) -> LoraTensors {
    let tensors = tensors.iter();
    tensors
        .map(|(name, tensor)| (rename(name), tensor.clone()))
        .collect()
}
