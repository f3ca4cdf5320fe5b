//! Files whose names follow no general rule, brought into one that does.

use std::collections::BTreeMap;

use fresco_tensor::{Dtype, Stored, WeightFile};

use super::file::LoraTensor;

type Tensors = BTreeMap<String, LoraTensor>;

/// The tensors of a file under names that name maps know.
pub(super) fn convert(tensors: Tensors, file: &dyn WeightFile) -> Tensors {
    let has = |name: &str| tensors.contains_key(name);
    if has("img_in.lora_A.weight") && has("single_blocks.0.norm.key_norm.scale") {
        return flux_control(tensors, file);
    }
    if has("lora_unet__blocks_0_cross_attn_k.lora_down.weight") {
        return renamed(tensors, |name| name.replace("lora_unet__", "lora_unet_"));
    }
    if has("single_blocks.37.processor.qkv_lora.up.weight")
        && has("double_blocks.18.processor.qkv_lora2.up.weight")
    {
        return renamed(tensors, flux_subject);
    }
    tensors
}

fn renamed(tensors: Tensors, rename: impl Fn(String) -> String) -> Tensors {
    tensors
        .into_iter()
        .map(|(name, t)| (rename(name), t))
        .collect()
}

/// The control LoRAs of Black Forest Labs: native names, norms that replace, and a first layer that takes more channels.
fn flux_control(tensors: Tensors, file: &dyn WeightFile) -> Tensors {
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
    out
}

/// USO's names for Flux.
fn flux_subject(name: String) -> String {
    let parts = [
        (".down.weight", ".lora_down.weight"),
        (".up.weight", ".lora_up.weight"),
        ("qkv_lora2", "txt_attn.qkv"),
        ("qkv_lora1", "img_attn.qkv"),
        ("proj_lora1", "img_attn.proj"),
        ("proj_lora2", "txt_attn.proj"),
        ("qkv_lora", "linear1_qkv"),
        ("proj_lora", "linear2"),
        (".processor.", "."),
    ];
    let name = parts
        .into_iter()
        .fold(name, |name, (from, to)| name.replace(from, to));
    format!("diffusion_model.{name}")
}
