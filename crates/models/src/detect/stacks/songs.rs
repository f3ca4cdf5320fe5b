//! Sets of models of songs, whose prompts are tags and lyrics.

use super::t5_alone::{T5_SPECIALS, rows, t5_chunks};
use crate::ace_step::CodeWriter;
use crate::store::WeightStore;
use crate::text::decoder::{QWEN3, QWEN3_CODES};
use crate::text::t5::UMT5;
use crate::text::{
    ChunkRule, EncodeRule, LayerRule, PromptRule, PromptWeights, SavedAs, Specials, StackPart,
    TextKind, TextStack,
};

/// ACE-Step: tags as long as they are. Lyrics are numbers that the model itself reads.
pub static ACE: TextStack = TextStack {
    name: "AceStep",
    parts: &[StackPart {
        name: "umt5base",
        kinds: &[&UMT5],
        optional: false,
        prefixes: &["text_encoders.umt5base.transformer."],
        prompt: PromptRule::plain(t5_chunks(1)),
        rule: EncodeRule {
            masked: true,
            ..EncodeRule::layer(LayerRule::LAST, T5_SPECIALS)
        },
        saved: SavedAs::Plain {
            prefix: "text_encoders.umt5base.transformer.",
            without: &[],
        },
    }],
    words: &[],
    join: rows,
};

/// What ends a text of Qwen, and fills it.
const END_OF_TEXT: u32 = 151_643;

const SPECIALS: Specials = Specials {
    start: None,
    end: None,
    pad: END_OF_TEXT,
};

/// A place for a network that reads what it is given as it is.
const fn qwen(
    name: &'static str,
    kinds: &'static [&'static TextKind],
    prefixes: &'static [&'static str],
) -> StackPart {
    StackPart {
        name,
        kinds,
        optional: false,
        prefixes,
        prompt: PromptRule {
            text: |prompt| Some(prompt.text.to_owned()),
            // Lyrics have brackets of their own.
            weights: PromptWeights::Plain,
            chunks: ChunkRule {
                pad: END_OF_TEXT,
                ..ChunkRule::OPEN
            },
            picture: None,
        },
        rule: EncodeRule::layer(LayerRule::LAST, SPECIALS),
        saved: SavedAs::Plain {
            prefix: prefixes[0],
            without: &[],
        },
    }
}

/// ACE-Step 1.5: all states of the smaller network. The larger one writes a sketch of the song, and reads no prompts.
pub static ACE15: TextStack = TextStack {
    name: "AceStep15",
    parts: &[
        qwen(
            "qwen3_06b",
            &[&QWEN3],
            &["text_encoders.qwen3_06b.transformer."],
        ),
        StackPart {
            optional: true,
            prompt: PromptRule {
                text: |_| None,
                ..PromptRule::plain(ChunkRule::OPEN)
            },
            ..qwen(
                CodeWriter::PART,
                &[&QWEN3_CODES, &QWEN3],
                &[
                    "text_encoders.qwen3_2b.transformer.",
                    "text_encoders.qwen3_4b.transformer.",
                ],
            )
        },
    ],
    words: &[],
    join: rows,
};

/// Whether a network can write the sketch of a song.
pub(super) fn writes_codes(store: &WeightStore) -> bool {
    CodeWriter::knows_codes(store)
}
