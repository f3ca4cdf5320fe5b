//! Sets that consist of one T5.

use crate::error::{ModelError, Result};
use crate::text::t5::{T5_ENGLISH, UMT5};
use crate::text::{
    ChunkRule, EncodeRule, Encoded, LayerRule, PartOutputs, PromptRule, PromptTokens, SavedAs,
    Specials, StackPart, TextKind, TextOutput, TextStack,
};

/// The end of a prompt, and padding.
pub(super) const T5_SPECIALS: Specials = Specials {
    start: None,
    end: Some(1),
    pad: 0,
};

/// One chunk of at least so many tokens.
pub(super) const fn t5_chunks(least: usize) -> ChunkRule {
    ChunkRule {
        end: Some(1),
        least,
        ..ChunkRule::OPEN
    }
}

/// Nobody looks at padding.
const MASKED: EncodeRule = EncodeRule {
    masked: true,
    ..EncodeRule::layer(LayerRule::LAST, T5_SPECIALS)
};

/// The same, and its rows are zero.
const ZEROED: EncodeRule = EncodeRule {
    zero_masked: true,
    ..MASKED
};

const PREFIX: &str = "text_encoders.t5xxl.transformer.";

/// The output of the only network.
pub(super) fn alone(outputs: PartOutputs<'_>) -> Result<TextOutput> {
    let output = outputs.into_iter().flatten().next();
    let output = output.map(|output| output.output);
    output.ok_or_else(|| ModelError::invalid("prompt", "there is no text encoder for it"))
}

pub(super) fn rows(outputs: PartOutputs<'_>, _: &PromptTokens) -> Result<Encoded> {
    Ok(Encoded::new(alone(outputs)?.hidden))
}

pub(super) fn rows_and_mask(outputs: PartOutputs<'_>, _: &PromptTokens) -> Result<Encoded> {
    let output = alone(outputs)?;
    Ok(Encoded::new(output.hidden).with("attention_mask", output.mask))
}

const ENGLISH: &[&TextKind] = &[&T5_ENGLISH];

const fn english(least: usize, rule: EncodeRule) -> StackPart {
    StackPart {
        name: "t5xxl",
        kinds: ENGLISH,
        optional: false,
        prefixes: &[PREFIX],
        prompt: PromptRule::plain(t5_chunks(least)),
        rule,
        saved: SavedAs::Plain {
            prefix: PREFIX,
            without: &[],
        },
    }
}

/// Chroma and PixArt: as long as the prompt. An empty prompt, for weights, is all padding.
pub static CHROMA: TextStack = TextStack {
    name: "Chroma",
    parts: &[english(
        1,
        EncodeRule::layer(
            LayerRule::LAST,
            Specials {
                end: None,
                ..T5_SPECIALS
            },
        ),
    )],
    words: &[],
    join: rows,
};

pub static MOCHI: TextStack = TextStack {
    name: "Mochi",
    parts: &[english(256, MASKED)],
    words: &[],
    join: rows_and_mask,
};

pub static LTXV: TextStack = TextStack {
    name: "Ltxv",
    parts: &[english(128, MASKED)],
    words: &[],
    join: rows_and_mask,
};

/// The first T5, without gates.
pub static COSMOS: TextStack = TextStack {
    name: "Cosmos",
    parts: &[english(512, ZEROED)],
    words: &[],
    join: rows_and_mask,
};

pub static STABLE_AUDIO: TextStack = TextStack {
    name: "StableAudio",
    parts: &[StackPart {
        name: "t5base",
        ..english(128, ZEROED)
    }],
    words: &[],
    join: rows,
};

pub static WAN: TextStack = TextStack {
    name: "Wan",
    parts: &[StackPart {
        name: "umt5xxl",
        kinds: &[&UMT5],
        ..english(512, ZEROED)
    }],
    words: &[],
    join: rows,
};

/// Pile-T5, whose end and padding have other numbers.
pub static AURA_FLOW: TextStack = TextStack {
    name: "AuraFlow",
    parts: &[StackPart {
        name: "pile_t5xl",
        kinds: &[&UMT5],
        prompt: PromptRule::plain(ChunkRule {
            end: Some(2),
            pad: 1,
            least: 256,
            ..ChunkRule::OPEN
        }),
        rule: EncodeRule {
            specials: Specials {
                start: None,
                end: Some(2),
                pad: 1,
            },
            ..ZEROED
        },
        ..english(256, ZEROED)
    }],
    words: &[],
    join: rows,
};
