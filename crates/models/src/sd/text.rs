//! The sets of CLIP networks that models of this family read prompts with.

use crate::text::clip::{CLIP_G, CLIP_H, CLIP_L, bpe, prompt, rule};
use crate::text::{LayerRule, SavedAs, StackPart, TextStack, join_widths};

/// The layer before the last, as it is.
const BEFORE_LAST: LayerRule = LayerRule::bare(-2);

pub static SD1: TextStack = TextStack {
    name: "Sd1",
    parts: &[StackPart {
        name: "clip_l",
        kinds: &[&CLIP_L],
        optional: false,
        prefixes: &["cond_stage_model.transformer."],
        prompt: prompt(bpe::END),
        rule: rule(LayerRule::LAST, true),
        // The first model's file has no projection.
        saved: SavedAs::Plain {
            prefix: "cond_stage_model.transformer.",
            without: &["text_projection.weight"],
        },
    }],
    words: &[],
    join: join_widths,
};

pub static SD2: TextStack = TextStack {
    name: "Sd2",
    parts: &[StackPart {
        name: "clip_h",
        kinds: &[&CLIP_H],
        optional: false,
        prefixes: &["cond_stage_model.model.", "conditioner.embedders.0.model."],
        prompt: prompt(0),
        rule: rule(
            LayerRule {
                usual: Some(-2),
                norm: true,
            },
            true,
        ),
        saved: SavedAs::Joined {
            prefix: "cond_stage_model.model.",
        },
    }],
    words: &[],
    join: join_widths,
};

pub static SDXL: TextStack = TextStack {
    name: "Sdxl",
    parts: &[
        StackPart {
            name: "clip_l",
            kinds: &[&CLIP_L],
            optional: false,
            prefixes: &["conditioner.embedders.0.transformer."],
            prompt: prompt(bpe::END),
            rule: rule(BEFORE_LAST, true),
            saved: SavedAs::Plain {
                prefix: "conditioner.embedders.0.transformer.",
                without: &[],
            },
        },
        StackPart {
            name: "clip_g",
            kinds: &[&CLIP_G],
            optional: false,
            prefixes: &["conditioner.embedders.1.model."],
            prompt: prompt(0),
            rule: rule(BEFORE_LAST, true),
            saved: SavedAs::Joined {
                prefix: "conditioner.embedders.1.model.",
            },
        },
    ],
    words: &[],
    join: join_widths,
};

pub static SDXL_REFINER: TextStack = TextStack {
    name: "SdxlRefiner",
    parts: &[StackPart {
        name: "clip_g",
        kinds: &[&CLIP_G],
        optional: false,
        prefixes: &["conditioner.embedders.0.model."],
        prompt: prompt(0),
        rule: rule(BEFORE_LAST, true),
        saved: SavedAs::Joined {
            prefix: "conditioner.embedders.0.model.",
        },
    }],
    words: &[],
    join: join_widths,
};
