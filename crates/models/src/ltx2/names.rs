//! Other people's names for the weights.

use crate::name_table::{NameTable, Rule, layer, place, value, within};

const EMBED: &[Rule] = &[
    layer(
        "emb.timestep_embedder.linear_1",
        "emb.timestep_embedder.linear_1",
    ),
    layer(
        "emb.timestep_embedder.linear_2",
        "emb.timestep_embedder.linear_2",
    ),
    layer("linear", "linear"),
];

const NORMS: &[Rule] = &[layer("norm_q", "q_norm"), layer("norm_k", "k_norm")];

/// A block of a connector, but for what is around it.
const CONNECTOR: &[Rule] = &[
    layer("attn1.norm_q", "attn1.q_norm"),
    layer("attn1.norm_k", "attn1.k_norm"),
    layer("attn1.to_q", "attn1.to_q"),
    layer("attn1.to_k", "attn1.to_k"),
    layer("attn1.to_v", "attn1.to_v"),
    layer("attn1.to_out.0", "attn1.to_out.0"),
    layer("attn1.to_gate_logits", "attn1.to_gate_logits"),
    layer("ff.net.0.proj", "ff.net.0.proj"),
    layer("ff.net.2", "ff.net.2"),
];

const REGISTERS: &[Rule] = &[value("learnable_registers", "learnable_registers")];

/// The names that diffusers has.
pub static DIFFUSERS: NameTable = NameTable::new(&[
    within("transformer_blocks.{i}.attn1.", NORMS),
    within("transformer_blocks.{i}.attn2.", NORMS),
    within("transformer_blocks.{i}.audio_attn1.", NORMS),
    within("transformer_blocks.{i}.audio_attn2.", NORMS),
    within("transformer_blocks.{i}.audio_to_video_attn.", NORMS),
    within("transformer_blocks.{i}.video_to_audio_attn.", NORMS),
    place(
        "transformer_blocks.{i}.",
        "transformer_blocks.{i}.",
        &[
            value(
                "video_a2v_cross_attn_scale_shift_table",
                "scale_shift_table_a2v_ca_video",
            ),
            value(
                "audio_a2v_cross_attn_scale_shift_table",
                "scale_shift_table_a2v_ca_audio",
            ),
        ],
    ),
    place("time_embed.", "adaln_single.", EMBED),
    place("audio_time_embed.", "audio_adaln_single.", EMBED),
    place(
        "av_cross_attn_video_scale_shift.",
        "av_ca_video_scale_shift_adaln_single.",
        EMBED,
    ),
    place(
        "av_cross_attn_audio_scale_shift.",
        "av_ca_audio_scale_shift_adaln_single.",
        EMBED,
    ),
    place(
        "av_cross_attn_video_a2v_gate.",
        "av_ca_a2v_gate_adaln_single.",
        EMBED,
    ),
    place(
        "av_cross_attn_audio_v2a_gate.",
        "av_ca_v2a_gate_adaln_single.",
        EMBED,
    ),
    place("prompt_adaln.", "prompt_adaln_single.", EMBED),
    place("audio_prompt_adaln.", "audio_prompt_adaln_single.", EMBED),
    place(
        "video_connector.transformer_blocks.{i}.",
        "video_embeddings_connector.transformer_1d_blocks.{i}.",
        CONNECTOR,
    ),
    place(
        "audio_connector.transformer_blocks.{i}.",
        "audio_embeddings_connector.transformer_1d_blocks.{i}.",
        CONNECTOR,
    ),
    place("video_connector.", "video_embeddings_connector.", REGISTERS),
    place("audio_connector.", "audio_embeddings_connector.", REGISTERS),
    place(
        "",
        "",
        &[
            layer("proj_in", "patchify_proj"),
            layer("audio_proj_in", "audio_patchify_proj"),
            layer("text_proj_in", "text_embedding_projection.aggregate_embed"),
            layer(
                "video_text_proj_in",
                "text_embedding_projection.video_aggregate_embed",
            ),
            layer(
                "audio_text_proj_in",
                "text_embedding_projection.audio_aggregate_embed",
            ),
        ],
    ),
])
.keeping_others();
