//! Every way in which files name layers, one file each: nothing in it is left over.

use std::collections::BTreeSet;

use fresco_models::lora::{NameMap, load};
use fresco_tensor::Tensor;

use crate::{gold_json, lora_file};

/// A file with a low-rank change of each name is used to the last tensor.
#[track_caller]
fn all_used(map: &NameMap, names: &[String], row: &str) {
    assert!(!names.is_empty(), "no layer is called {row}");
    let tensors = names.iter().flat_map(|name| {
        ["lora_up.weight", "lora_down.weight", "alpha"].map(|part| {
            let value = if part == "alpha" {
                Tensor::scalar(1.0)
            } else {
                Tensor::ones([1, 1]).unwrap()
            };
            (format!("{name}.{part}"), value)
        })
    });
    let tensors: Vec<(String, Tensor)> = tensors.collect();
    let loaded = load(&lora_file(&tensors), map).unwrap();
    assert!(loaded.unused.is_empty(), "{row}: {:?}", loaded.unused);
    assert_eq!(loaded.used, tensors.len(), "{row}");
    let targets: BTreeSet<_> = loaded.targets().collect();
    // Some layers have two names in one spelling.
    let named: BTreeSet<_> = names.iter().map(|name| map.get(name).unwrap()).collect();
    assert_eq!(targets, named, "{row}");
}

/// Keys of a model, from the golden names that are spelled after themselves.
fn keys(file: &str) -> (Vec<String>, Vec<String>) {
    let golden = gold_json(file);
    let of = |part: &str, before: &str| {
        let names = golden[part].as_object().unwrap().iter();
        let own = names.filter_map(|(name, target)| {
            let key = target.as_str()?;
            let path = key.strip_suffix(".weight").unwrap_or(key);
            (name.strip_prefix(before) == Some(path)).then(|| key.to_owned())
        });
        own.collect::<Vec<String>>()
    };
    let unet = of("unet", "");
    let unet = unet
        .iter()
        .map(|key| key.strip_prefix("diffusion_model.").unwrap().to_owned());
    (unet.collect(), of("clip", "text_encoders."))
}

fn layers(keys: &[String]) -> Vec<String> {
    let paths = keys.iter().filter_map(|key| key.strip_suffix(".weight"));
    paths.map(str::to_owned).collect()
}

/// A UNet: the native names, and diffusers' in each of their spellings.
#[test]
fn l06_rows_of_unets() {
    for file in ["lora_keys_sd15.json", "lora_keys_sdxl.json"] {
        let (keys, _) = keys(file);
        let list: Vec<(&str, &[usize])> = keys.iter().map(|key| (&**key, &[][..])).collect();
        let map = NameMap::for_model(&list);
        let native = layers(&keys);
        let spelled = |names: &[String], before: &str, underscores: bool| {
            let each = names.iter().map(|name| {
                if underscores {
                    format!("{before}{}", name.replace('.', "_"))
                } else {
                    format!("{before}{name}")
                }
            });
            each.collect::<Vec<String>>()
        };
        all_used(&map, &spelled(&native, "lora_unet_", true), "lora_unet_P");
        let generic = spelled(&native, "diffusion_model.", false);
        all_used(&map, &generic, "diffusion_model.P");
        // Diffusers' names are those that begin with its blocks.
        let theirs: Vec<String> = map
            .iter()
            .map(|(name, _)| name.to_owned())
            .filter(|name| {
                let first = name.split('.').next().unwrap();
                let blocks = [
                    "down_blocks",
                    "mid_block",
                    "up_blocks",
                    "conv_in",
                    "conv_out",
                ];
                let blocks = blocks.contains(&first) || first.ends_with("_embedding");
                blocks
                    && !name.contains(".processor.")
                    && !name.ends_with("attn1.to_out")
                    && !name.ends_with("attn2.to_out")
            })
            .collect();
        assert!(theirs.len() > native.len() / 2, "{}", theirs.len());
        let old: Vec<String> = theirs
            .iter()
            .map(|name| {
                let name = name.replace(".to_", ".processor.to_");
                name.strip_suffix(".to_out.0")
                    .map_or(name.clone(), |l| format!("{l}.to_out"))
            })
            .collect();
        for (names, before, underscores) in [
            (&theirs, "lora_unet_", true),
            (&theirs, "lycoris_", true),
            (&old, "", false),
            (&old, "unet.", false),
            (&theirs, "", false),
            (&theirs, "unet.", false),
        ] {
            let row = format!("{file} {before}D");
            all_used(&map, &spelled(names, before, underscores), &row);
        }
    }
}

const PARTS: [&str; 6] = [
    "mlp.fc1",
    "mlp.fc2",
    "self_attn.k_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
];

/// The layers of a text encoder of so many blocks.
fn encoder(name: &str, blocks: usize) -> Vec<String> {
    let each = (0..blocks).flat_map(|block| {
        PARTS.map(|part| {
            format!("{name}.transformer.text_model.encoder.layers.{block}.{part}.weight")
        })
    });
    let mut keys: Vec<String> = each.collect();
    keys.push(format!("{name}.transformer.text_projection.weight"));
    keys
}

#[test]
fn l06_rows_of_text_encoders() {
    let check = |encoders: &[(&str, usize)], rows: &[(&str, usize, bool)]| {
        let keys: Vec<String> = encoders
            .iter()
            .flat_map(|(n, blocks)| encoder(n, *blocks))
            .collect();
        let list: Vec<&str> = keys.iter().map(String::as_str).collect();
        let map = NameMap::for_text(&list);
        let generic: Vec<String> = layers(&keys)
            .iter()
            .map(|path| format!("text_encoders.{path}"))
            .collect();
        all_used(&map, &generic, "text_encoders.");
        for (before, blocks, underscores) in rows {
            let names = (0..*blocks).flat_map(|block| {
                PARTS.map(|part| {
                    let name = format!("text_model.encoder.layers.{block}.{part}");
                    if *underscores {
                        format!("{before}{}", name.replace('.', "_"))
                    } else {
                        format!("{before}{name}")
                    }
                })
            });
            let names: Vec<String> = names.collect();
            all_used(&map, &names, &format!("{encoders:?} {before}"));
        }
        map
    };
    let first = |blocks| {
        [
            ("lora_te_", blocks, true),
            ("lora_te1_", blocks, true),
            ("text_encoder.", blocks, false),
        ]
    };
    // SD1, SD2, SDXL and the second encoder of SDXL by itself.
    let map = check(&[("clip_l", 12)], &first(12));
    all_used(
        &map,
        &["lora_te1_text_projection".to_owned()],
        "projection of L",
    );
    check(&[("clip_h", 24)], &first(24));
    let mut both = first(12).to_vec();
    both.extend([("lora_te2_", 32, true), ("text_encoder_2.", 32, false)]);
    let map = check(&[("clip_l", 12), ("clip_g", 32)], &both);
    for name in ["lora_te2_text_projection", "lora_prior_te_text_projection"] {
        all_used(&map, &[name.to_owned()], name);
    }
    let target = |name: &str| map.get(name).unwrap().key.clone();
    assert!(target("lora_te_text_model_encoder_layers_0_mlp_fc1").starts_with("clip_l."));
    assert!(target("lora_te2_text_model_encoder_layers_0_mlp_fc1").starts_with("clip_g."));
    let alone = [
        ("lora_te_", 32, true),
        ("text_encoder.", 32, false),
        ("lora_prior_te_", 32, true),
    ];
    check(&[("clip_g", 32)], &alone);
}

/// T5 and BERT: no network for them as yet, but their names are known.
#[test]
fn l06_rows_of_text_encoders_to_come() {
    let t5 = "t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q.weight";
    let name = |n: usize| format!("lora_te{n}_encoder_block_0_layer_0_SelfAttention_q");
    for (encoders, numbers) in [
        (&[][..], &[1][..]),
        (&["clip_l"], &[2, 3]),
        (&["clip_g"], &[2, 3]),
        (&["clip_l", "clip_g"], &[3]),
    ] {
        let mut keys: Vec<String> = encoders.iter().flat_map(|n| encoder(n, 1)).collect();
        keys.push(t5.to_owned());
        let list: Vec<&str> = keys.iter().map(String::as_str).collect();
        let map = NameMap::for_text(&list);
        for n in numbers {
            all_used(&map, &[name(*n)], &format!("{encoders:?}"));
        }
    }
    let bert = "hydit_clip.transformer.bert.encoder.layer.0.attention.self.query.weight";
    let map = NameMap::for_text(&[bert]);
    let name = "lora_te1_encoder_layer_0_attention_self_query";
    all_used(&map, &[name.to_owned()], "BERT");
}

/// Keys that tell a family, and names that lead to them.
type Family<'a> = (&'a [&'a str], &'a [&'a str]);

/// Families without a network as yet: each row by one layer.
#[test]
fn l06_rows_of_families_to_come() {
    let families: &[Family<'_>] = &[
        // Cascade, stage C.
        (
            &["clf.1.weight", "clip_txt_mapper.weight"],
            &["lora_prior_unet_clf_1", "lora_prior_unet_clip_txt_mapper"],
        ),
        // SD3.
        (
            &[
                "joint_blocks.0.context_block.attn.qkv.weight",
                "joint_blocks.0.x_block.attn.qkv.weight",
                "joint_blocks.0.x_block.attn.proj.weight",
            ],
            &[
                "transformer.transformer_blocks.0.attn.to_q",
                "base_model.model.transformer_blocks.0.attn.to_k",
                "lora_transformer_transformer_blocks_0_attn_to_v",
                "lycoris_transformer_blocks_0_attn_to_out_0",
            ],
        ),
        // AuraFlow.
        (
            &[
                "double_layers.0.attn.w1q.weight",
                "double_layers.0.attn.w2q.weight",
            ],
            &["transformer.joint_transformer_blocks.0.attn.to_q"],
        ),
        // PixArt.
        (
            &[
                "t_block.1.weight",
                "blocks.0.attn.proj.weight",
                "blocks.0.cross_attn.proj.weight",
            ],
            &[
                "transformer.transformer_blocks.0.attn1.to_out.0",
                "base_model.model.transformer_blocks.0.attn2.to_out.0",
            ],
        ),
        (
            &["t_block.1.weight", "blocks.0.attn.proj.weight"],
            &["unet.base_model.model.transformer_blocks.0.attn1.to_out.0"],
        ),
        // HunyuanDiT.
        (&["mlp_t5.0.weight"], &["base_model.model.mlp_t5.0"]),
        // Mochi, ACE-Step, OmniGen2.
        (&["t5_yproj.weight"], &["t5_yproj"]),
        (&["genre_embedder.weight"], &["genre_embedder"]),
        (
            &[
                "time_caption_embed.timestep_embedder.linear_1.bias",
                "a.b.weight",
            ],
            &["a.b"],
        ),
        // HunyuanVideo.
        (
            &[
                "txt_in.individual_token_refiner.blocks.0.norm1.weight",
                "double_blocks.0.img_attn.qkv.weight",
                "double_blocks.0.img_mod.lin.weight",
                "double_blocks.0.img_mlp.0.weight",
                "single_blocks.0.modulation.lin.weight",
            ],
            &[
                "transformer.double_blocks.0.img_attn_qkv",
                "diffusion_model.double_blocks.0.img_mod.linear",
                "transformer.double_blocks.0.img_mlp.fc1",
                "diffusion_model.single_blocks.0.modulation.linear",
            ],
        ),
        // HiDream.
        (
            &["caption_projection.0.linear.weight", "a.b.weight"],
            &["lycoris_a_b", "transformer.caption_projection.0.linear"],
        ),
        // Qwen-Image.
        (
            &["txt_norm.weight", "a.b.weight", "c.d.weight"],
            &["a.b", "transformer.txt_norm", "lycoris_c_d"],
        ),
        // Lumina2 and Z-Image.
        (
            &[
                "cap_embedder.1.weight",
                "layers.0.attention.qkv.weight",
                "layers.0.attention.out.weight",
            ],
            &[
                "diffusion_model.layers.0.attention.to_q",
                "transformer.layers.0.attention.to_k",
                "lycoris_layers_0_attention_to_out_0",
            ],
        ),
        // Kandinsky5.
        (
            &[
                "visual_transformer_blocks.0.cross_attention.key_norm.weight",
                "a.b.weight",
            ],
            &[
                "a.b",
                "transformer.visual_transformer_blocks.0.cross_attention.key_norm",
            ],
        ),
    ];
    for (keys, names) in families {
        let shape: &[usize] = &[192, 64];
        let mut list: Vec<(&str, &[usize])> = keys.iter().map(|key| (*key, shape)).collect();
        list.sort_unstable();
        let map = NameMap::for_model(&list);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        all_used(&map, &names, keys[0]);
    }
}

/// Flux: diffusers' names in three spellings, and the joint matrix of USO.
#[test]
fn l06_rows_of_flux() {
    let golden = gold_json("lora_keys_flux.json");
    let names = golden["unet"].as_object().unwrap();
    let own = names.iter().filter_map(|(name, target)| {
        let key = target.as_str()?;
        (name == key.strip_suffix(".weight").unwrap_or(key)).then_some(key)
    });
    let keys: Vec<&str> = own
        .map(|key| key.strip_prefix("diffusion_model.").unwrap())
        .collect();
    let shape = |key: &str| -> &[usize] {
        if key == "img_in.weight" {
            &[3072, 64]
        } else {
            &[]
        }
    };
    let list: Vec<(&str, &[usize])> = keys.iter().map(|key| (*key, shape(key))).collect();
    let map = NameMap::for_model(&list);
    for before in [
        "lora_unet_",
        "transformer.",
        "lycoris_",
        "lora_transformer_",
    ] {
        let row: Vec<String> = names
            .keys()
            .filter(|name| name.starts_with(before))
            .cloned()
            .collect();
        all_used(&map, &row, before);
    }
    let joint: Vec<String> = names
        .keys()
        .filter(|name| name.ends_with(".linear1_qkv"))
        .cloned()
        .collect();
    all_used(&map, &joint, "linear1_qkv");
}

/// Whole files that are renamed: Wan Fun and USO.
#[test]
fn l06_rows_of_files_that_are_renamed() {
    let ones = || Tensor::ones([1, 1]).unwrap();
    let tensors = ["cross_attn_k", "cross_attn_v"]
        .into_iter()
        .flat_map(|layer| {
            ["lora_up.weight", "lora_down.weight"]
                .map(|part| (format!("lora_unet__blocks_0_{layer}.{part}"), ones()))
        });
    let tensors: Vec<(String, Tensor)> = tensors.collect();
    let map = NameMap::for_model(&[
        ("blocks.0.cross_attn.k.weight", &[8, 8]),
        ("head.modulation", &[1, 2, 8]),
        ("blocks.0.cross_attn.v.weight", &[8, 8]),
    ]);
    let loaded = load(&lora_file(&tensors), &map).unwrap();
    assert!(
        loaded.unused.is_empty() && loaded.used == 4,
        "{:?}",
        loaded.unused
    );

    let layers = [
        "single_blocks.37.processor.qkv_lora",
        "single_blocks.37.processor.proj_lora",
        "double_blocks.18.processor.qkv_lora1",
        "double_blocks.18.processor.qkv_lora2",
        "double_blocks.18.processor.proj_lora1",
        "double_blocks.18.processor.proj_lora2",
    ];
    let tensors = layers.into_iter().flat_map(|layer| {
        ["up.weight", "down.weight"].map(|part| (format!("{layer}.{part}"), ones()))
    });
    let tensors: Vec<(String, Tensor)> = tensors.collect();
    let map = NameMap::for_model(&[
        ("double_blocks.0.img_attn.qkv.weight", &[24, 8]),
        ("double_blocks.18.img_attn.proj.weight", &[8, 8]),
        ("double_blocks.18.img_attn.qkv.weight", &[24, 8]),
        ("double_blocks.18.txt_attn.proj.weight", &[8, 8]),
        ("double_blocks.18.txt_attn.qkv.weight", &[24, 8]),
        ("img_in.weight", &[8, 4]),
        ("single_blocks.37.linear1.weight", &[56, 8]),
        ("single_blocks.37.linear2.weight", &[8, 40]),
    ]);
    let loaded = load(&lora_file(&tensors), &map).unwrap();
    assert!(loaded.unused.is_empty(), "{:?}", loaded.unused);
    assert_eq!((loaded.used, loaded.targets().count()), (12, 6));
}
