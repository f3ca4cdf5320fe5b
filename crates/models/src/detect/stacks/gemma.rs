//! Sets with a Gemma, which reads prompts as they are.

use super::chat::{masked, part, templated};
use super::pairs::take;
use super::t5_alone::{rows, rows_and_mask};
use crate::ltx2::text::{GEMMA3_PROJECTED, GEMMA4_PROJECTED};
use crate::text::decoder::{GEMMA2, GEMMA3, GEMMA4};
use crate::text::post_norm::JINA;
use crate::text::{
    ChunkRule, EncodeRule, Encoded, LayerRule, PromptRule, Specials, States, TextStack,
};

const GEMMA_SPECIALS: Specials = Specials {
    start: Some(2),
    end: None,
    pad: 0,
};

const GEMMA_CHUNKS: ChunkRule = ChunkRule {
    start: Some(2),
    ..ChunkRule::OPEN
};

/// Lumina 2: the layer before the last.
pub static LUMINA2: TextStack = TextStack {
    name: "Lumina2",
    parts: &[part(
        "gemma2_2b",
        &[&GEMMA2, &GEMMA3],
        &["text_encoders.gemma2_2b.transformer."],
        PromptRule::plain(GEMMA_CHUNKS),
        masked(LayerRule::bare(-2), GEMMA_SPECIALS),
    )],
    words: &[],
    join: rows_and_mask,
};

/// LTX-2: all states of Gemma, made narrower by what comes with it.
pub static LTX2: TextStack = TextStack {
    name: "LTX2",
    parts: &[part(
        "gemma3_12b",
        &[&GEMMA3_PROJECTED],
        &["text_encoders.gemma3_12b.transformer."],
        templated(|prompt| Some(prompt.text.to_owned()), GEMMA_CHUNKS),
        EncodeRule {
            states: States::All,
            ..masked(LayerRule::LAST, GEMMA_SPECIALS)
        },
    )],
    words: &[],
    join: rows,
};

/// LTX-2.5: the same with the next Gemma.
pub static LTX25: TextStack = TextStack {
    name: "LTX25",
    parts: &[part(
        "gemma4_12b",
        &[&GEMMA4_PROJECTED],
        &["text_encoders.gemma4_12b.transformer."],
        templated(|prompt| Some(prompt.text.to_owned()), GEMMA_CHUNKS),
        EncodeRule {
            states: States::All,
            ..masked(LayerRule::LAST, GEMMA_SPECIALS)
        },
    )],
    words: &[],
    join: rows,
};

/// Gemma 4 alone, which writes prompts for models that other networks read prompts for.
pub static GEMMA4_WRITER: TextStack = TextStack {
    name: "Gemma4",
    parts: &[part(
        "gemma4",
        &[&GEMMA4],
        &["text_encoders.gemma4.transformer."],
        templated(|prompt| Some(prompt.text.to_owned()), GEMMA_CHUNKS),
        masked(LayerRule::LAST, GEMMA_SPECIALS),
    )],
    words: &[],
    join: rows_and_mask,
};

/// NewBie: Gemma's rows, Jina's vector.
pub static NEWBIE: TextStack = TextStack {
    name: "NewBie",
    parts: &[
        part(
            "gemma3_4b",
            &[&GEMMA3],
            &["text_encoders.gemma3_4b.transformer."],
            templated(|prompt| Some(prompt.text.to_owned()), GEMMA_CHUNKS),
            masked(LayerRule::bare(-2), GEMMA_SPECIALS),
        ),
        part(
            "jina_clip_2",
            &[&JINA],
            &["text_encoders.jina_clip_2.transformer."],
            PromptRule::plain(ChunkRule {
                start: Some(0),
                end: Some(2),
                pad: 1,
                most: Some(8192),
                ..ChunkRule::OPEN
            }),
            masked(
                LayerRule::LAST,
                Specials {
                    start: Some(0),
                    end: Some(2),
                    pad: 1,
                },
            ),
        ),
    ],
    words: &[],
    join: |outputs, tokens| {
        let mut outputs = outputs.into_iter();
        let (text, jina) = (take(&mut outputs), take(&mut outputs));
        Ok(Encoded {
            pooled: jina.and_then(|jina| jina.output.pooled),
            ..rows_and_mask(vec![text], tokens)?
        })
    },
};
