//! Every spelling of every layer of the three families.

use std::collections::{BTreeMap, BTreeSet};

use fresco_models::lora::NameMap;
use fresco_models::patch::{Reorder, Slice, Target};
use serde_json::Value;

use crate::gold_json;

fn target(value: &Value) -> Target {
    if let Some(key) = value.as_str() {
        return Target::whole(key);
    }
    let parts = value.as_array().unwrap();
    let slice = parts.get(1).and_then(Value::as_array).map(|s| {
        let at = |i: usize| s[i].as_u64().unwrap() as usize;
        Slice {
            dim: at(0),
            start: at(1),
            len: at(2),
        }
    });
    let reorder = parts.get(2).and_then(Value::as_str).map(|name| {
        assert_eq!(name, "swap_scale_shift");
        Reorder::SwapHalves
    });
    Target {
        key: parts[0].as_str().unwrap().to_owned(),
        slice,
        reorder,
    }
}

fn expected(golden: &Value, part: &str) -> BTreeMap<String, Target> {
    let map = golden[part].as_object().unwrap();
    map.iter().map(|(k, v)| (k.clone(), target(v))).collect()
}

fn actual(map: &NameMap) -> BTreeMap<String, Target> {
    map.iter().map(|(k, v)| (k.to_owned(), v.clone())).collect()
}

/// Names of USO, which the reference rewrites in the file before it looks at its map.
fn is_of_uso(name: &str) -> bool {
    name.contains(".processor.qkv_lora") || name.contains(".processor.proj_lora")
}

#[track_caller]
fn check(file: &str, shapes: &[(&str, &[usize])]) {
    let golden = gold_json(file);
    let names = expected(&golden, "unet");
    // The model's own keys are those that are spelled after themselves.
    let keys: Vec<&str> = names
        .iter()
        .filter_map(|(name, target)| {
            let key = target.key.strip_prefix("diffusion_model.").unwrap();
            let own = name == target.key.strip_suffix(".weight").unwrap_or(&target.key);
            own.then_some(key)
        })
        .collect();
    let shape = |key: &str| shapes.iter().find(|s| s.0 == key).map_or(&[][..], |s| s.1);
    let keys: Vec<(&str, &[usize])> = keys.iter().map(|k| (*k, shape(k))).collect();
    let mut made = actual(&NameMap::for_model(&keys));
    for (name, target) in &names {
        assert_eq!(made.remove(name).as_ref(), Some(target), "{name}");
    }
    // What we know more than the reference: diffusers' names as they are.
    made.retain(|name, _| !is_of_uso(name));
    for (name, target) in &made {
        let plain = name.strip_prefix("unet.").unwrap_or(name);
        assert!(plain.contains(".to_"), "{name} leads to {target:?}");
        let old = plain.replace(".to_", ".processor.to_");
        let old = old.strip_suffix(".0").unwrap_or(&old);
        assert_eq!(names.get(old), Some(target), "{name}");
    }
    let clip = expected(&golden, "clip");
    let keys: Vec<&str> = clip
        .iter()
        .filter(|(name, _)| name.starts_with("text_encoders."))
        .map(|(_, target)| &*target.key)
        .collect();
    assert_eq!(actual(&NameMap::for_text(&keys)), clip);
}

#[test]
fn l06_sd15() {
    check("lora_keys_sd15.json", &[]);
}

#[test]
fn l06_sdxl() {
    check("lora_keys_sdxl.json", &[]);
}

#[test]
fn l06_flux() {
    check("lora_keys_flux.json", &[("img_in.weight", &[3072, 64])]);
}

/// Names beyond the model's own, on models with one block. The golden has no lists of keys: those that names lead to are
/// the model's, with a key that tells the family where no name leads to it.
#[test]
fn l06_image_families() {
    let golden = gold_json("lora_keys_image.json");
    let maps = golden["maps"].as_object().unwrap();
    assert!(maps.len() >= 12);
    for (family, about) in maps {
        let names: BTreeMap<String, Target> = about["extra"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name.clone(), target(value)))
            .collect();
        let config = &golden["configs"][family];
        let mut width = ["hidden_size", "dim", "model_dim"].iter();
        let width = width.find_map(|key| config[*key].as_u64()).unwrap_or(8) as usize;
        let sign = match family.as_str() {
            "omnigen2" => Some("time_caption_embed.timestep_embedder.linear_1.bias"),
            "hunyuan_image" => Some("txt_in.individual_token_refiner.blocks.0.norm1.weight"),
            _ => None,
        };
        let own = names.values().map(|target| &*target.key);
        let own = own.map(|key| key.strip_prefix("diffusion_model.").unwrap());
        let keys: BTreeSet<&str> = own.chain(sign).collect();
        let shape = [width, width];
        let list: Vec<(&str, &[usize])> = keys.iter().map(|key| (*key, &shape[..])).collect();
        let mut made = actual(&NameMap::for_model(&list));
        for (name, target) in &names {
            assert_eq!(made.remove(name).as_ref(), Some(target), "{family}: {name}");
        }
        made.retain(|name, _| !is_of_uso(name));
        for (name, target) in &made {
            let key = target.key.strip_prefix("diffusion_model.").unwrap();
            let path = key.strip_suffix(".weight").unwrap_or(key);
            let general = *name == format!("diffusion_model.{path}")
                || *name == format!("lora_unet_{}", path.replace('.', "_"));
            let known = general || !keys.contains(key) || sign == Some(key);
            assert!(known, "{family}: {name} leads to {key}");
        }
    }
}

/// A model's keys, a name, the key it means, and the first row and the number of rows of a part.
type Case<'a> = (
    &'a [(&'a str, &'a [usize])],
    &'a str,
    &'a str,
    Option<(usize, usize)>,
);

/// A spelling of each family that has no golden, by the rules of the specification.
#[test]
fn l06_other_families() {
    let wide: &[usize] = &[3 * 64, 64];
    let square: &[usize] = &[64, 64];
    let cases: &[Case<'_>] = &[
        (
            &[
                ("joint_blocks.0.context_block.attn.qkv.weight", wide),
                ("joint_blocks.0.x_block.attn.qkv.weight", wide),
                ("joint_blocks.0.x_block.attn.proj.weight", square),
            ],
            "transformer.transformer_blocks.0.attn.to_k",
            "joint_blocks.0.x_block.attn.qkv.weight",
            Some((64, 64)),
        ),
        (
            &[("txt_norm.weight", &[64]), ("a.b.weight", square)],
            "transformer.a.b",
            "a.b.weight",
            None,
        ),
        (
            &[
                ("cap_embedder.1.weight", square),
                ("layers.0.attention.qkv.weight", wide),
            ],
            "diffusion_model.layers.0.attention.to_v",
            "layers.0.attention.qkv.weight",
            Some((128, 64)),
        ),
        (
            &[
                (
                    "txt_in.individual_token_refiner.blocks.0.norm1.weight",
                    square,
                ),
                ("double_blocks.0.img_attn.qkv.weight", wide),
            ],
            "transformer.double_blocks.0.img_attn_qkv",
            "double_blocks.0.img_attn.qkv.weight",
            None,
        ),
        (
            &[
                ("double_layers.0.attn.w1q.weight", square),
                ("double_layers.0.attn.w2q.weight", square),
            ],
            "transformer.joint_transformer_blocks.0.attn.to_q",
            "double_layers.0.attn.w2q.weight",
            None,
        ),
        (
            &[
                ("t_block.1.weight", square),
                ("blocks.0.attn.proj.weight", square),
                ("blocks.0.cross_attn.kv_linear.weight", wide),
            ],
            "unet.base_model.model.transformer_blocks.0.attn2.to_v",
            "blocks.0.cross_attn.kv_linear.weight",
            Some((64, 64)),
        ),
        (
            &[
                ("txtfusion.projector.weight", square),
                ("blocks.0.attn.wo.weight", square),
            ],
            "transformer.transformer_blocks.0.attn.to_out.0",
            "blocks.0.attn.wo.weight",
            None,
        ),
        (
            &[
                ("llm_adapter.out_proj.weight", square),
                ("blocks.3.cross_attn.q_proj.weight", square),
            ],
            "transformer.transformer_blocks.3.attn2.to_q",
            "blocks.3.cross_attn.q_proj.weight",
            None,
        ),
        (
            &[
                ("early_stream_modulations.image.lin.weight", wide),
                ("content_mode_blocks.image.1.mlp_in.weight", wide),
            ],
            "transformer.mode_blocks.image.1.ff.linear_in",
            "content_mode_blocks.image.1.mlp_in.weight",
            None,
        ),
    ];
    for (keys, name, key, rows) in cases {
        let map = NameMap::for_model(keys);
        let target = map.get(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(target.key, format!("diffusion_model.{key}"));
        let slice = rows.map(|(start, len)| Slice { dim: 0, start, len });
        assert_eq!(target.slice, slice, "{name}");
    }
}
