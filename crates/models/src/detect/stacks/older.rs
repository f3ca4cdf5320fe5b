//! Sets of models from before language models read prompts, which only they use.

use super::pairs::{saved, take};
use super::t5_alone::{T5_SPECIALS, t5_chunks};
use crate::error::ModelError;
use crate::text::clip::{self, CLIP_G, bpe};
use crate::text::post_norm::BERT;
use crate::text::t5::T5_ENGLISH;
use crate::text::{
    ChunkRule, EncodeRule, Encoded, LayerRule, PromptRule, Specials, StackPart, TextStack,
    join_widths,
};

const CASCADE_PREFIX: &str = "text_encoder.clip_g.transformer.";

/// Stable Cascade: CLIP's last layer without its norm. Nobody looks at padding.
pub static CASCADE: TextStack = TextStack {
    name: "StableCascade",
    parts: &[StackPart {
        name: "clip_g",
        kinds: &[&CLIP_G],
        optional: false,
        prefixes: &[CASCADE_PREFIX, "text_encoder."],
        prompt: clip::prompt(bpe::END),
        rule: EncodeRule {
            masked: true,
            ..clip::rule(LayerRule::bare(-1), true)
        },
        saved: saved(CASCADE_PREFIX),
    }],
    words: &[],
    join: join_widths,
};

const BERT_PREFIX: &str = "text_encoders.hydit_clip.transformer.";
const MT5_PREFIX: &str = "text_encoders.mt5xl.transformer.";

/// Tokens of a chunk for BERT, which has one chunk after the other like CLIP.
const BERT_CHUNK: usize = 77;

const BERT_SPECIALS: Specials = Specials {
    start: Some(101),
    end: Some(102),
    pad: 0,
};

/// Hunyuan-DiT: BERT's vectors, and beside them those of a multilingual T5, each with which of them count.
pub static HUNYUAN_DIT: TextStack = TextStack {
    name: "HunyuanDiT",
    parts: &[
        StackPart {
            name: "hydit_clip",
            kinds: &[&BERT],
            optional: false,
            prefixes: &[BERT_PREFIX],
            prompt: PromptRule::plain(ChunkRule {
                start: Some(101),
                end: Some(102),
                most: Some(BERT_CHUNK),
                fill: true,
                ..ChunkRule::OPEN
            }),
            rule: EncodeRule {
                masked: true,
                ..EncodeRule::layer(LayerRule::LAST, BERT_SPECIALS)
            },
            saved: saved(BERT_PREFIX),
        },
        StackPart {
            name: "mt5xl",
            kinds: &[&T5_ENGLISH],
            optional: false,
            prefixes: &[MT5_PREFIX],
            prompt: PromptRule::plain(t5_chunks(256)),
            rule: EncodeRule {
                masked: true,
                ..EncodeRule::layer(LayerRule::LAST, T5_SPECIALS)
            },
            saved: saved(MT5_PREFIX),
        },
    ],
    words: &[],
    join: |outputs, _| {
        let mut outputs = outputs.into_iter();
        let [first, second] = [(); 2].map(|()| take(&mut outputs).map(|o| o.output));
        let (Some(first), Some(second)) = (first, second) else {
            return Err(ModelError::invalid(
                "prompt",
                "there is no text encoder for it",
            ));
        };
        let encoded = Encoded {
            pooled: first.pooled,
            ..Encoded::new(first.hidden)
        };
        Ok(encoded
            .with("attention_mask", first.mask)
            .with("conditioning_mt5xl", Some(second.hidden))
            .with("attention_mask_mt5xl", second.mask))
    },
};
