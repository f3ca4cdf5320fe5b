//! Which weight a base name in a LoRA file means.
//!
//! Trainers name layers after the model's own keys, after diffusers' or after their own module tree, with dots or with
//! underscores; the maps hold every spelling. Names that lead to a key the model lacks are kept: their patches are
//! dropped, and reported, when they are added to the model.

use indexmap::IndexMap;

use super::diffusers;
use crate::patch::{Slice, Target};

/// Base names in the order of preference for files that hold several spellings: the last one found counts.
#[derive(Clone, Debug, Default)]
pub struct NameMap {
    by_name: IndexMap<String, Target>,
}

/// How a family's diffusers names are written in files: before them, and whether dots become underscores.
const UNET_SPELLINGS: [(&str, bool); 2] = [("lora_unet_", true), ("lycoris_", true)];
const FLUX_SPELLINGS: [(&str, bool); 3] = [
    ("transformer.", false),
    ("lycoris_", true),
    ("lora_transformer_", true),
];
const SD3_SPELLINGS: [(&str, bool); 4] = [
    ("transformer.", false),
    ("base_model.model.", false),
    ("lora_transformer_", true),
    ("lycoris_", true),
];
const PIXART_SPELLINGS: [(&str, bool); 3] = [
    ("transformer.", false),
    ("base_model.model.", false),
    ("unet.base_model.model.", false),
];
const LUMINA_SPELLINGS: [(&str, bool); 3] = [
    ("diffusion_model.", false),
    ("transformer.", false),
    ("lycoris_", true),
];

fn spelled(prefix: &str, name: &str, underscores: bool) -> String {
    if underscores {
        format!("{prefix}{}", name.replace('.', "_"))
    } else {
        format!("{prefix}{name}")
    }
}

impl NameMap {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Target)> {
        self.by_name
            .iter()
            .map(|(name, target)| (name.as_str(), target))
    }

    pub fn get(&self, name: &str) -> Option<&Target> {
        self.by_name.get(name)
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Both maps' names; those of the other count where they are in both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.by_name.extend(other.by_name);
        self
    }

    fn add(&mut self, name: String, target: Target) {
        self.by_name.insert(name, target);
    }

    fn add_spellings(&mut self, table: &[(String, Target)], spellings: &[(&str, bool)]) {
        for (name, target) in table {
            for (prefix, underscores) in spellings {
                self.add(spelled(prefix, name, *underscores), target.clone());
            }
        }
    }

    /// Names for a diffusion network, from its keys (without a prefix) and their shapes. Targets have the prefix
    /// `diffusion_model.`.
    pub fn for_model(keys: &[(&str, &[usize])]) -> Self {
        let mut map = Self::default();
        let has = |key: &str| keys.iter().any(|(k, _)| *k == key);
        for (key, _) in keys {
            let full = format!("diffusion_model.{key}");
            let target = Target::whole(full.clone());
            match key.strip_suffix(".weight") {
                Some(path) => {
                    map.add(spelled("lora_unet_", path, true), target.clone());
                    map.add(format!("diffusion_model.{path}"), target);
                }
                None => map.add(full, target),
            }
        }
        let own = |map: &mut Self, spellings: &[(&str, bool)]| {
            let layers = keys.iter().filter_map(|(key, _)| {
                let path = key.strip_suffix(".weight")?.to_owned();
                Some((path, Target::whole(format!("diffusion_model.{key}"))))
            });
            map.add_spellings(&layers.collect::<Vec<_>>(), spellings);
        };
        if has("input_blocks.0.0.weight") {
            map.add_unet(keys);
        } else if has("joint_blocks.0.context_block.attn.qkv.weight") {
            map.add_spellings(&diffusers::sd3(keys), &SD3_SPELLINGS);
        } else if has("clf.1.weight") && has("clip_txt_mapper.weight") {
            own(&mut map, &[("lora_prior_unet_", true)]);
        } else if has("double_layers.0.attn.w1q.weight") {
            map.add_spellings(&diffusers::aura_flow(keys), &[("transformer.", false)]);
        } else if has("mlp_t5.0.weight") {
            own(&mut map, &[("base_model.model.", false)]);
        } else if has("txt_in.individual_token_refiner.blocks.0.norm1.weight") {
            map.add_hunyuan_video(keys);
        } else if has("double_blocks.0.img_attn.qkv.weight") {
            map.add_spellings(&diffusers::flux(keys), &FLUX_SPELLINGS);
            map.add_joint_qkv(keys);
        } else if has("t_block.1.weight") {
            map.add_spellings(&diffusers::pixart(keys), &PIXART_SPELLINGS);
        } else if has("cap_embedder.1.weight") {
            map.add_spellings(&diffusers::z_image(keys), &LUMINA_SPELLINGS);
        } else if has("caption_projection.0.linear.weight") {
            own(&mut map, &[("lycoris_", true), ("transformer.", false)]);
        } else if has("txt_norm.weight") {
            own(
                &mut map,
                &[("", false), ("transformer.", false), ("lycoris_", true)],
            );
        } else if has("visual_transformer_blocks.0.cross_attention.key_norm.weight") {
            own(&mut map, &[("", false), ("transformer.", false)]);
        } else if ["t5_yproj.weight", "genre_embedder.weight"]
            .iter()
            .any(|k| has(k))
            || has("time_caption_embed.timestep_embedder.linear_1.bias")
        {
            own(&mut map, &[("", false)]);
        }
        map
    }

    fn add_unet(&mut self, keys: &[(&str, &[usize])]) {
        let table = diffusers::unet(keys);
        for (name, target) in &table {
            for (prefix, underscores) in UNET_SPELLINGS {
                self.add(spelled(prefix, name, underscores), target.clone());
            }
            for prefix in ["", "unet."] {
                let old = format!("{prefix}{}", name.replace(".to_", ".processor.to_"));
                let old = old
                    .strip_suffix(".to_out.0")
                    .map_or(old.clone(), |layer| format!("{layer}.to_out"));
                self.add(old, target.clone());
            }
        }
        // Newer diffusers and peft write the names as they are. The older spellings come first where they are the same.
        for (name, target) in table {
            for prefix in ["", "unet."] {
                let name = format!("{prefix}{name}");
                self.by_name.entry(name).or_insert_with(|| target.clone());
            }
        }
    }

    /// Flux's queries, keys and values in one matrix together with the feed-forward part.
    fn add_joint_qkv(&mut self, keys: &[(&str, &[usize])]) {
        let hidden = diffusers::hidden(keys);
        for (key, _) in keys {
            if let Some(block) = key.strip_suffix(".linear1.weight") {
                let target = Target {
                    key: format!("diffusion_model.{key}"),
                    slice: Some(Slice {
                        dim: 0,
                        start: 0,
                        len: 3 * hidden,
                    }),
                    reorder: None,
                };
                self.add(format!("diffusion_model.{block}.linear1_qkv"), target);
            }
        }
    }

    fn add_hunyuan_video(&mut self, keys: &[(&str, &[usize])]) {
        const PARTS: [(&str, &str); 6] = [
            ("_mod.lin.", "_mod.linear."),
            ("_attn.qkv.", "_attn_qkv."),
            ("_attn.proj.", "_attn_proj."),
            ("mlp.0.", "mlp.fc1."),
            ("mlp.2.", "mlp.fc2."),
            (".modulation.lin.", ".modulation.linear."),
        ];
        for (key, _) in keys {
            let old = PARTS
                .into_iter()
                .fold((*key).to_owned(), |k, (from, to)| k.replace(from, to));
            if let Some(path) = old.strip_suffix(".weight") {
                let target = Target::whole(format!("diffusion_model.{key}"));
                self.add(format!("transformer.{path}"), target.clone());
                self.add(format!("diffusion_model.{path}"), target);
            }
        }
    }

    /// Names for text encoders, from keys with the encoder's name before them (`clip_l.transformer...`).
    pub fn for_clip(keys: &[&str]) -> Self {
        const LAYERS: [&str; 6] = [
            "mlp.fc1",
            "mlp.fc2",
            "self_attn.k_proj",
            "self_attn.q_proj",
            "self_attn.v_proj",
            "self_attn.out_proj",
        ];
        let mut map = Self::default();
        let paths = keys.iter().filter_map(|key| key.strip_suffix(".weight"));
        let target = |path: &str| Target::whole(format!("{path}.weight"));
        for path in paths.clone() {
            map.add(format!("text_encoders.{path}"), target(path));
        }
        let mut present = [false; 2];
        for block in 0..32 {
            for layer in LAYERS {
                let inner = format!("text_model.encoder.layers.{block}.{layer}");
                let mut add = |encoder: &str, spellings: &[(&str, bool)]| {
                    let path = format!("{encoder}.transformer.{inner}");
                    let there = keys
                        .iter()
                        .any(|k| k.strip_suffix(".weight") == Some(&*path));
                    if there {
                        for (prefix, underscores) in spellings {
                            map.add(spelled(prefix, &inner, *underscores), target(&path));
                        }
                    }
                    there
                };
                let first = [
                    ("lora_te_", true),
                    ("lora_te1_", true),
                    ("text_encoder.", false),
                ];
                add("clip_h", &first);
                present[0] |= add("clip_l", &first);
                let alone = [
                    ("lora_te_", true),
                    ("text_encoder.", false),
                    ("lora_prior_te_", true),
                ];
                let second = [("lora_te2_", true), ("text_encoder_2.", false)];
                present[1] |= add("clip_g", if present[0] { &second[..] } else { &alone });
            }
        }
        let [l, g] = present;
        let number = 1 + usize::from(l) + usize::from(g);
        for path in paths {
            if let Some(inner) = path.strip_prefix("t5xxl.transformer.") {
                // Trainers do not agree on whether the absent second encoder is counted.
                let numbers = if number == 2 { 2..=3 } else { number..=number };
                for number in numbers {
                    let prefix = format!("lora_te{number}_");
                    map.add(spelled(&prefix, inner, true), target(path));
                }
            } else if let Some(inner) = path.strip_prefix("hydit_clip.transformer.bert.") {
                map.add(spelled("lora_te1_", inner, true), target(path));
            }
        }
        for (path, names) in [
            (
                "clip_g.transformer.text_projection",
                &["lora_prior_te_text_projection", "lora_te2_text_projection"][..],
            ),
            (
                "clip_l.transformer.text_projection",
                &["lora_te1_text_projection"],
            ),
        ] {
            if keys.iter().any(|k| k.strip_suffix(".weight") == Some(path)) {
                for name in names {
                    map.add((*name).to_owned(), target(path));
                }
            }
        }
        map
    }
}
