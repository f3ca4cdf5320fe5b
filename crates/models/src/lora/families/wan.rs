//! Wan in LoRA files.

use fresco_tensor::WeightFile;

use crate::lora::convert::{LoraTensors, renamed};

/// The files of Wan Fun have one line too many.
pub(crate) fn fun(tensors: &LoraTensors, _: &dyn WeightFile) -> Option<LoraTensors> {
    let known = tensors.contains_key("lora_unet__blocks_0_cross_attn_k.lora_down.weight");
    known.then(|| renamed(tensors, |name| name.replace("lora_unet__", "lora_unet_")))
}
