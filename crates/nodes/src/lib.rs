//! Built-in nodes and their list.

use fresco_graph::NodeEntry;

pub mod admission;
pub mod audio;
pub mod audio_encoder;
pub mod boxes;
pub mod clip;
mod compositing;
pub mod conditioning;
pub mod control;
pub mod dataset;
pub mod for_packs;
pub mod frames;
pub mod gligen;
pub mod hooks;
mod image;
pub mod latent;
pub mod latent_upscale;
pub mod lists;
pub mod load;
pub mod loaders;
pub mod logic;
pub mod loops;
pub mod lora;
pub mod ltx2;
mod mask;
pub mod math;
pub mod memory_nodes;
pub mod merging;
pub mod mesh;
pub mod minimax;
pub mod misc;
pub mod model_patch;
pub mod multigpu;
pub mod photomaker;
mod post;
pub mod preview_any;
pub mod primitive;
mod python_rules;
pub mod resident;
pub mod sampling;
pub mod save;
pub mod saving;
pub mod sigmas;
#[cfg(test)]
mod small_files;
pub mod style;
pub mod text;
mod tooltips;
pub mod types;
pub mod upscale;
pub mod vae;
pub mod vae_conditioning;
pub mod video;
pub mod vision;
pub mod wan;

/// Every native class. One line per family; the order is that of `/object_info`.
pub fn all() -> Vec<NodeEntry> {
    let families: &[&[NodeEntry]] = &[
        image::NODES,
        post::NODES,
        mask::NODES,
        compositing::NODES,
        loaders::NODES,
        &latent::empty::NODES,
        latent::NODES,
        clip::NODES,
        conditioning::NODES,
        hooks::NODES,
        text::NODES,
        save::NODES,
        load::NODES,
        dataset::NODES,
        audio::NODES,
        audio_encoder::NODES,
        video::NODES,
        mesh::NODES,
        primitive::NODES,
        math::NODES,
        logic::NODES,
        lists::NODES,
        loops::NODES,
        boxes::NODES,
        preview_any::NODES,
        sampling::NODES,
        misc::NODES,
        sigmas::NODES,
        vae::NODES,
        vae_conditioning::NODES,
        wan::NODES,
        ltx2::NODES,
        minimax::NODES,
        control::NODES,
        model_patch::NODES,
        vision::NODES,
        style::NODES,
        gligen::NODES,
        photomaker::NODES,
        upscale::NODES,
        latent_upscale::NODES,
        lora::NODES,
        merging::NODES,
        &merging::specific::NODES,
        saving::NODES,
        multigpu::NODES,
        memory_nodes::NODES,
    ];
    let entries = families.iter().copied().flatten();
    entries
        .map(|entry| entry.with_tooltips(tooltips::shared))
        .collect()
}
