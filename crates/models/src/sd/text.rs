//! The sets of CLIP networks that models of this family read prompts with.

use crate::text::clip::{CLIP_G, CLIP_H, CLIP_L};
use crate::text::{LayerRule, SavedAs, StackPart, TextStack, join_widths};

/// The layer before the last, as it is.
const BEFORE_LAST: LayerRule = LayerRule {
    usual: Some(-2),
    norm: false,
};

pub static SD1: TextStack = TextStack {
    name: "Sd1",
    parts: &[StackPart {
        kind: &CLIP_L,
        prefixes: &["cond_stage_model.transformer."],
        layer: LayerRule {
            usual: None,
            norm: true,
        },
        // The first model's file has no projection.
        saved: SavedAs::Plain {
            prefix: "cond_stage_model.transformer.",
            without: &["text_projection.weight"],
        },
    }],
    other_types: &["sd3", "hidream"],
    join: join_widths,
};

pub static SD2: TextStack = TextStack {
    name: "Sd2",
    parts: &[StackPart {
        kind: &CLIP_H,
        prefixes: &["cond_stage_model.model.", "conditioner.embedders.0.model."],
        layer: LayerRule {
            usual: Some(-2),
            norm: true,
        },
        saved: SavedAs::Joined {
            prefix: "cond_stage_model.model.",
        },
    }],
    other_types: &[],
    join: join_widths,
};

pub static SDXL: TextStack = TextStack {
    name: "Sdxl",
    parts: &[
        StackPart {
            kind: &CLIP_L,
            prefixes: &["conditioner.embedders.0.transformer."],
            layer: BEFORE_LAST,
            saved: SavedAs::Plain {
                prefix: "conditioner.embedders.0.transformer.",
                without: &[],
            },
        },
        StackPart {
            kind: &CLIP_G,
            prefixes: &["conditioner.embedders.1.model."],
            layer: BEFORE_LAST,
            saved: SavedAs::Joined {
                prefix: "conditioner.embedders.1.model.",
            },
        },
    ],
    other_types: &[],
    join: join_widths,
};

pub static SDXL_REFINER: TextStack = TextStack {
    name: "SdxlRefiner",
    parts: &[StackPart {
        kind: &CLIP_G,
        prefixes: &["conditioner.embedders.0.model."],
        layer: BEFORE_LAST,
        saved: SavedAs::Joined {
            prefix: "conditioner.embedders.0.model.",
        },
    }],
    other_types: &["sd3", "hidream", "stable_cascade"],
    join: join_widths,
};
