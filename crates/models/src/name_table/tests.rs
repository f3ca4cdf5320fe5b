//! All tables, in both directions.

use std::path::Path;

use fresco_tensor::{Dtype, Stored, WeightError, WeightInfo};

use super::*;
use crate::detect::NAME_TABLES;

/// Rows of every tensor of theirs, but for those that are several widths of ours.
const WIDTH: usize = 12;

/// A file of which only names and shapes are asked.
struct Names;

impl WeightFile for Names {
    fn path(&self) -> &Path {
        Path::new("names")
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn info(&self, _: &str) -> Option<WeightInfo> {
        Some(WeightInfo {
            shape: vec![WIDTH, 4],
            dtype: Dtype::F16,
        })
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        Err(WeightError::Missing {
            path: self.path().to_owned(),
            name: name.to_owned(),
        })
    }

    fn metadata(&self) -> &[(String, String)] {
        &[]
    }
}

/// Keys of ours for these sorted names.
pub(crate) fn keys_of(table: &NameTable, names: &[&str]) -> Vec<String> {
    let mut pairs = table.keys(names);
    pairs.sort_by_key(|(_, name)| *name);
    pairs.into_iter().map(|(key, _)| key).collect()
}

/// The key of ours for a name, in a file that has the same name with all smaller numbers.
pub(crate) fn key_of(table: impl Fn(&[&str]) -> NameTable, name: &str) -> String {
    let mut names = vec![String::new()];
    for part in name.split_inclusive('.') {
        let number = part.trim_end_matches('.').parse::<usize>();
        let parts: Vec<String> = match number {
            Ok(number) => (0..=number.max(3)).map(|n| format!("{n}.")).collect(),
            Err(_) => vec![part.to_owned()],
        };
        let names_so_far = std::mem::take(&mut names);
        let longer = names_so_far
            .iter()
            .flat_map(|name| parts.iter().map(move |part| format!("{name}{part}")));
        names = longer.collect();
    }
    let mut names: Vec<&str> = names
        .iter()
        .map(|name| name.trim_end_matches('.'))
        .collect();
    names.sort_unstable();
    let pairs = table(&names).keys(&names);
    let found = pairs.into_iter().find(|(_, theirs)| *theirs == name);
    found.map_or_else(String::new, |(key, _)| key)
}

/// Three blocks in every list.
fn three(_: &str) -> Vec<usize> {
    vec![0, 1, 2]
}

/// A tensor of theirs that an instance of a rule has.
fn name_of(instance: &Instance<'_>) -> String {
    let theirs = &instance.theirs;
    match instance.rule.kind {
        Kind::Value => theirs.clone(),
        Kind::Tree => format!("{theirs}.some.weight"),
        Kind::Layer if theirs.ends_with('_') => format!("{theirs}weight"),
        Kind::Layer => format!("{theirs}.weight"),
    }
}

#[test]
fn no_two_rules_have_one_name() {
    for (label, table) in NAME_TABLES {
        let instances = table.instances(Side::Theirs, &three);
        assert!(!instances.is_empty(), "{label}");
        for instance in &instances {
            let name = name_of(instance);
            let mut others = instances.iter().filter(|other| {
                let same = other.theirs == instance.theirs && other.rule.kind == instance.rule.kind;
                let cuts = matches!(other.rule.part, Part::Cut(..));
                other.key(&name).is_some() && !(same && cuts) && !std::ptr::eq(*other, instance)
            });
            let other = others.next().map(|other| &other.theirs);
            assert_eq!(other, None, "{label}: {name}");
        }
    }
}

#[test]
fn names_go_there_and_back() {
    for (label, table) in NAME_TABLES {
        let instances = table.instances(Side::Theirs, &three);
        let names: Vec<String> = instances.iter().map(name_of).collect();
        let mut sorted: Vec<&str> = names.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let origins = table.origins(&Names, "net.", &sorted);
        // Every name is at its place in a key of ours, and no key is the place of two.
        let mut used: Vec<&str> = Vec::new();
        for origin in origins.values() {
            let mut names = origin.names();
            names.dedup();
            used.extend(names);
        }
        used.sort_unstable();
        used.dedup();
        let all: Vec<String> = sorted.iter().map(|name| format!("net.{name}")).collect();
        let parts_only = table_of_parts(&instances);
        if !parts_only {
            assert_eq!(used, all, "{label}");
        }
        for instance in &instances {
            let name = name_of(instance);
            let key = instance.key(&name).unwrap_or_default();
            let Some(origin) = origins.get(&key) else {
                assert!(parts_only, "{label}: {key} is nowhere");
                continue;
            };
            let here = origin.names().contains(&format!("net.{name}").as_str());
            assert!(here, "{label}: {key} is {origin:?}, not {name}");
        }
        // Back: the keys that were found lead to the names they came from.
        let width = [WIDTH, 4];
        let mut keys: Vec<(&str, &[usize])> = origins
            .keys()
            .map(|key| (key.as_str(), &width[..]))
            .collect();
        keys.extend(table.width.iter().map(|key| (*key, &width[..])));
        let targets = table.targets(&NetworkKeys(&keys));
        for instance in &instances {
            let name = name_of(instance);
            let Some(key) = instance.key(&name) else {
                continue;
            };
            let named = instance.rule.kind != Kind::Tree;
            let Some(expected) = instance.rule.part.target(&key, WIDTH).filter(|_| named) else {
                continue;
            };
            let base = name.strip_suffix(".weight").unwrap_or(&name);
            let found = targets.iter().find(|(name, _)| name == base);
            assert_eq!(
                found.map(|(_, target)| target),
                Some(&expected),
                "{label}: {base}"
            );
        }
    }
}

/// Whether some layers of theirs are rows of one that has more: what LoRA files alone have.
fn table_of_parts(instances: &[Instance<'_>]) -> bool {
    instances
        .iter()
        .any(|one| matches!(one.rule.part, Part::Rows(0, count) if count > 1))
}

/// Names of published files: the table, theirs and ours.
const PUBLISHED: &[(&str, &str, &str)] = &[
    ("krea2", "img_in.bias", "first.bias"),
    (
        "krea2",
        "transformer_blocks.3.attn.to_out.0.weight",
        "blocks.3.attn.wo.weight",
    ),
    (
        "krea2",
        "transformer_blocks.3.scale_shift_table",
        "blocks.3.mod.lin",
    ),
    (
        "krea2",
        "transformer_blocks.3.norm2.weight",
        "blocks.3.postnorm.scale",
    ),
    (
        "krea2",
        "text_fusion.refiner_blocks.1.ff.gate.weight",
        "txtfusion.refiner_blocks.1.mlp.gate.weight",
    ),
    (
        "krea2",
        "text_fusion.layerwise_blocks.0.attn.norm_q.weight",
        "txtfusion.layerwise_blocks.0.attn.qknorm.qnorm.scale",
    ),
    ("krea2", "txt_in.norm.weight", "txtmlp.0.scale"),
    (
        "krea2",
        "final_layer.scale_shift_table",
        "last.modulation.lin",
    ),
    ("krea2", "final_layer.norm.weight", "last.norm.scale"),
    (
        "flux3",
        "x_embedders.image_cond.weight",
        "emb_in.image_cond.weight",
    ),
    (
        "flux3",
        "mode_blocks.image.4.attn.to_out.0.weight",
        "content_mode_blocks.image.4.attn_out.weight",
    ),
    (
        "flux3",
        "txt_mode_blocks.0.ff.linear_in.weight",
        "txt_mode_blocks.0.mlp_in.weight",
    ),
    (
        "flux3",
        "single_transformer_blocks.2.attn.norm_k.weight",
        "single_blocks.2.norm.key_norm.scale",
    ),
    (
        "flux3",
        "single_stream_modulations.txt.linear.weight",
        "single_stream_modulations.txt.lin.weight",
    ),
    (
        "flux3",
        "proj_out.weight",
        "final_layer.image.linear.weight",
    ),
    (
        "flux3",
        "norm_out.linear.weight",
        "final_layer.image.adaLN_modulation.1.weight",
    ),
    (
        "flux3",
        "target_timestep_embedder.linear_2.weight",
        "ref_time_in.out_layer.weight",
    ),
    (
        "wan",
        "blocks.3.attn1.to_q.weight",
        "blocks.3.self_attn.q.weight",
    ),
    (
        "wan",
        "blocks.3.attn1.to_out.0.bias",
        "blocks.3.self_attn.o.bias",
    ),
    (
        "wan",
        "blocks.3.attn1.norm_q.weight",
        "blocks.3.self_attn.norm_q.weight",
    ),
    (
        "wan",
        "blocks.3.attn2.to_v.weight",
        "blocks.3.cross_attn.v.weight",
    ),
    (
        "wan",
        "blocks.3.attn2.add_k_proj.bias",
        "blocks.3.cross_attn.k_img.bias",
    ),
    (
        "wan",
        "blocks.3.attn2.norm_added_k.weight",
        "blocks.3.cross_attn.norm_k_img.weight",
    ),
    (
        "wan",
        "blocks.3.attn2.norm_k.weight",
        "blocks.3.cross_attn.norm_k.weight",
    ),
    ("wan", "blocks.3.norm2.weight", "blocks.3.norm3.weight"),
    ("wan", "blocks.3.scale_shift_table", "blocks.3.modulation"),
    (
        "wan",
        "blocks.3.ffn.net.0.proj.weight",
        "blocks.3.ffn.0.weight",
    ),
    ("wan", "scale_shift_table", "head.modulation"),
    (
        "wan",
        "condition_embedder.image_embedder.norm2.bias",
        "img_emb.proj.4.bias",
    ),
    (
        "wan",
        "condition_embedder.time_proj.weight",
        "time_projection.1.weight",
    ),
    ("wan", "patch_embedding.bias", "patch_embedding.bias"),
    (
        "cosmos first",
        "blocks.block12.blocks.0.block.attn.to_q.0.weight",
        "blocks.12.self_attn.q_proj.weight",
    ),
    (
        "cosmos first",
        "blocks.block3.blocks.1.block.attn.to_k.1.weight",
        "blocks.3.cross_attn.k_norm.weight",
    ),
    (
        "cosmos first",
        "blocks.block3.blocks.2.block.layer1.weight",
        "blocks.3.mlp.layer1.weight",
    ),
    (
        "cosmos first",
        "blocks.block3.blocks.2.adaLN_modulation.2.weight",
        "blocks.3.adaln_modulation_mlp.2.weight",
    ),
    (
        "cosmos first",
        "affline_norm.weight",
        "t_embedding_norm.weight",
    ),
    (
        "cosmos first",
        "final_layer.adaLN_modulation.1.weight",
        "final_layer.adaln_modulation.1.weight",
    ),
    ("ltx2", "proj_in.bias", "patchify_proj.bias"),
    ("ltx2", "audio_proj_in.bias", "audio_patchify_proj.bias"),
    (
        "ltx2",
        "audio_time_embed.linear.weight",
        "audio_adaln_single.linear.weight",
    ),
    (
        "ltx2",
        "transformer_blocks.3.audio_attn1.norm_q.weight",
        "transformer_blocks.3.audio_attn1.q_norm.weight",
    ),
    (
        "ltx2",
        "transformer_blocks.3.video_a2v_cross_attn_scale_shift_table",
        "transformer_blocks.3.scale_shift_table_a2v_ca_video",
    ),
    (
        "ltx2",
        "video_connector.transformer_blocks.0.attn1.to_q.weight",
        "video_embeddings_connector.transformer_1d_blocks.0.attn1.to_q.weight",
    ),
    (
        "ltx2",
        "audio_connector.learnable_registers",
        "audio_embeddings_connector.learnable_registers",
    ),
    ("ltx2", "scale_shift_table", "scale_shift_table"),
    (
        "hunyuan",
        "double_blocks.3.img_mod.linear.bias",
        "double_blocks.3.img_mod.lin.bias",
    ),
    (
        "hunyuan",
        "double_blocks.3.txt_attn_qkv.weight",
        "double_blocks.3.txt_attn.qkv.weight",
    ),
    (
        "hunyuan",
        "double_blocks.3.img_attn_q_norm.weight",
        "double_blocks.3.img_attn.norm.query_norm.scale",
    ),
    (
        "hunyuan",
        "double_blocks.3.img_mlp.fc1.weight",
        "double_blocks.3.img_mlp.0.weight",
    ),
    (
        "hunyuan",
        "single_blocks.0.k_norm.weight",
        "single_blocks.0.norm.key_norm.scale",
    ),
    (
        "hunyuan",
        "single_blocks.0.modulation.linear.weight",
        "single_blocks.0.modulation.lin.weight",
    ),
    ("hunyuan", "time_in.mlp.0.weight", "time_in.in_layer.weight"),
    (
        "hunyuan",
        "txt_in.t_embedder.mlp.2.bias",
        "txt_in.t_embedder.out_layer.bias",
    ),
    (
        "hunyuan",
        "txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight",
        "txt_in.individual_token_refiner.blocks.0.self_attn.qkv.weight",
    ),
    (
        "hunyuan",
        "txt_in.individual_token_refiner.blocks.0.mlp.fc2.weight",
        "txt_in.individual_token_refiner.blocks.0.mlp.2.weight",
    ),
    ("minimax", "proj_in.weight", "video_patch_proj.weight"),
    (
        "minimax",
        "transformer_blocks.3.attn.to_out.0.weight",
        "blocks.3.attn.out_proj.weight",
    ),
    (
        "minimax",
        "token_refiner.refiner_blocks.0.ff.net.2.weight",
        "token_refiner.blocks.0.mlp.fc2.weight",
    ),
    (
        "minimax",
        "norm_out.linear.bias",
        "final_layer.adaln_proj.linear.bias",
    ),
    (
        "t5",
        "enc.blk.3.ffn_gate.weight",
        "encoder.block.3.layer.1.DenseReluDense.wi_0.weight",
    ),
    (
        "t5",
        "enc.blk.0.attn_rel_b.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    (
        "t5",
        "enc.output_norm.weight",
        "encoder.final_layer_norm.weight",
    ),
    ("t5", "token_embd.weight", "shared.weight"),
    (
        "decoder",
        "blk.3.attn_q.weight",
        "model.layers.3.self_attn.q_proj.weight",
    ),
    (
        "decoder",
        "blk.3.ffn_norm.weight",
        "model.layers.3.post_attention_layernorm.weight",
    ),
    (
        "decoder",
        "per_layer_token_embd.weight",
        "model.embed_tokens_per_layer.weight",
    ),
    (
        "decoder",
        "blk.0.layer_output_scale.weight",
        "model.layers.0.layer_scalar",
    ),
    ("decoder", "token_embd.weight", "model.embed_tokens.weight"),
    ("decoder", "output_norm.weight", "model.norm.weight"),
    ("decoder", "output.weight", "lm_head.weight"),
    (
        "decoder sandwiched",
        "blk.0.ffn_norm.weight",
        "model.layers.0.pre_feedforward_layernorm.weight",
    ),
    (
        "lumina z",
        "layers.3.attention.to_k.weight",
        "layers.3.attention.qkv.weight",
    ),
    (
        "lumina z",
        "all_final_layer.2-1.adaLN_modulation.1.bias",
        "final_layer.adaLN_modulation.1.bias",
    ),
    (
        "lumina",
        "context_refiner.1.attn.to_v.weight",
        "context_refiner.1.attention.qkv.weight",
    ),
    (
        "lumina",
        "layers.0.norm1.norm.weight",
        "layers.0.attention_norm1.weight",
    ),
    (
        "lumina",
        "context_refiner.0.norm1.weight",
        "context_refiner.0.attention_norm1.weight",
    ),
];

#[test]
fn names_of_published_files_become_ours() {
    for (label, theirs, ours) in PUBLISHED {
        let table = NAME_TABLES.iter().find(|(name, _)| name == label);
        let table = |_: &[&str]| table.map_or(NameTable::OWN, |(_, table)| (*table).clone());
        assert_eq!(key_of(table, theirs), *ours, "{label}");
    }
}

#[test]
fn rows_are_joined_in_their_order() {
    const TABLE: NameTable = NameTable::new(&[place(
        "a.{i}.",
        "b.{i}.",
        &[
            rows("v", "qkv", 2, 1),
            rows("q", "qkv", 0, 1),
            rows("k", "qkv", 1, 1),
            swapped("s", "s"),
        ],
    )]);
    let names = [
        "a.0.k.weight",
        "a.0.q.weight",
        "a.0.s.weight",
        "a.0.v.weight",
        "a.1.q.weight",
    ];
    let origins = TABLE.origins(&Names, "", &names);
    let whole = |name: &str| Origin::Whole(name.to_owned());
    let part = |start| Origin::Rows {
        name: "a.0.s.weight".to_owned(),
        start,
        count: WIDTH / 2,
    };
    let expected = [
        (
            "b.0.qkv.weight".to_owned(),
            Origin::Joined(vec![
                whole("a.0.q.weight"),
                whole("a.0.k.weight"),
                whole("a.0.v.weight"),
            ]),
        ),
        (
            "b.0.s.weight".to_owned(),
            Origin::Joined(vec![part(WIDTH / 2), part(0)]),
        ),
    ];
    // Of the second block two parts are missing.
    assert_eq!(origins, BTreeMap::from(expected));
}

#[test]
fn the_first_and_the_last_block_may_differ() {
    const TABLE: NameTable = NameTable::new(&[
        place("a.{front}.", "b.{front}.", &[layer("x", "y")]),
        place("a.{last}.", "b.{last}.", &[swapped("x", "y")]),
    ]);
    let keys: [(&str, &[usize]); 2] = [("b.0.y.weight", &[4, 4]), ("b.1.y.weight", &[4, 4])];
    let targets = TABLE.targets(&NetworkKeys(&keys));
    let names: Vec<(&str, bool)> = targets
        .iter()
        .map(|(name, target)| (name.as_str(), target.reorder.is_some()))
        .collect();
    assert_eq!(names, [("a.0.x", false), ("a.1.x", true)]);
}
