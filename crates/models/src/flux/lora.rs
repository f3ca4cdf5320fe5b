//! LoRA files that follow rules of their own.

use fresco_tensor::{Dtype, Stored, WeightFile};

use crate::lora::convert::{LoraTensors, renamed};
use crate::lora::file::LoraTensor;

/// The control LoRAs of Black Forest Labs: native names, norms that replace, and a first layer that takes more channels.
pub(crate) fn control(tensors: &LoraTensors, file: &dyn WeightFile) -> Option<LoraTensors> {
    let has = |name: &str| tensors.contains_key(name);
    if !has("img_in.lora_A.weight") || !has("single_blocks.0.norm.key_norm.scale") {
        return None;
    }
    let mut out = renamed(tensors, |name| {
        let name = name.replace(".lora_B.bias", ".diff_b");
        let name = match name.strip_suffix("_norm.scale") {
            Some(norm) => format!("{norm}_norm.scale.set_weight"),
            None => name,
        };
        format!("diffusion_model.{name}")
    });
    let size = |name: &str, dim: usize| file.info(name).and_then(|i| i.shape.get(dim).copied());
    let wanted = (
        size("img_in.lora_B.weight", 0),
        size("img_in.lora_A.weight", 1),
    );
    if let (Some(rows), Some(columns)) = wanted {
        let sizes = [rows as f32, columns as f32];
        let bytes = sizes.iter().flat_map(|v| v.to_le_bytes()).collect();
        if let Ok(value) = Stored::new(Dtype::F32, [2], bytes) {
            out.insert(
                "diffusion_model.img_in.reshape_weight".to_owned(),
                LoraTensor::Made(value),
            );
        }
    }
    Some(out)
}
