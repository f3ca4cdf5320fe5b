//! How files of this family are recognised.

use super::config::{FluxConfig, FluxKind};
use super::model::FluxNetwork;
use super::names;
use crate::detect::{Checkpoint, Family, FileKeys, stacks};
use crate::error::Result;
use crate::store::{Blocks, UnitOrder};
use crate::text::TextStack;

/// The text encoders that checkpoints of a model bring.
fn text(family: &str) -> Option<&'static TextStack> {
    match family {
        name if name.starts_with("Flux.1") => Some(&stacks::FLUX),
        "Chroma" | "Chroma Radiance" => Some(&stacks::CHROMA),
        "Ovis-Image" => Some(&stacks::OVIS),
        _ => None,
    }
}

/// The order of the parts.
pub static UNITS: UnitOrder = UnitOrder {
    parts: &[
        "img_in",
        "time_in",
        "vector_in",
        "guidance_in",
        "txt_norm",
        "txt_in",
        "double_blocks",
        "single_blocks",
        "final_layer",
    ],
    blocks: &[Blocks::List("double_blocks"), Blocks::List("single_blocks")],
    values: UnitOrder::NORMS,
};

/// Flux 1 and 2, Chroma, Ovis-Image.
pub struct Flux;

impl Family for Flux {
    fn names(&self) -> &'static [&'static str] {
        &[
            "Flux.1",
            "Flux.2",
            "Chroma",
            "Chroma Radiance",
            "Ovis-Image",
        ]
    }

    fn detect(&self, keys: &FileKeys<'_>) -> Result<Option<Checkpoint>> {
        let native = keys.has("double_blocks.0.img_attn.norm.key_norm.scale")
            && (keys.has("img_in.weight")
                || keys.any_inside("distilled_guidance_layer."))
            // A text refiner belongs to another family with the same blocks.
            && !keys.any_inside("txt_in.individual_token_refiner.");
        let origins = if native {
            keys.own()
        } else if names::is_diffusers(keys) {
            names::origins(keys)
        } else {
            return Ok(None);
        };
        let store = keys.store(&origins);
        let config = FluxConfig::detect(&store)?;
        let family = name(&config);
        Ok(Some(keys.checkpoint::<FluxNetwork>(
            family,
            config,
            origins,
            &UNITS,
            text(family),
        )))
    }
}

fn name(config: &FluxConfig) -> &'static str {
    match config.kind {
        FluxKind::Flux2 if config.guidance => "Flux.2",
        FluxKind::Flux2 => "Flux.2 klein",
        FluxKind::Chroma if config.pixels.is_some() => "Chroma Radiance",
        FluxKind::Chroma => "Chroma",
        FluxKind::Ovis => "Ovis-Image",
        FluxKind::Flux1 if config.in_channels >= 3 * config.out_channels => "Flux.1 fill",
        FluxKind::Flux1 if config.in_channels > config.out_channels => "Flux.1 control",
        FluxKind::Flux1 if config.guidance => "Flux.1 dev",
        FluxKind::Flux1 => "Flux.1 schnell",
    }
}
