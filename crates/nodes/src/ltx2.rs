//! Nodes of LTX-2: videos together with their sound.

mod in_context;
mod latents;
mod loaders;
mod reference;
mod sound;

use fresco_graph::{NodeEntry, entry};

pub(crate) use in_context::InContext;

pub static NODES: &[NodeEntry] = &[
    entry::<loaders::LtxvAudioVaeLoader>(),
    entry::<loaders::LtxavTextEncoderLoader>(),
    entry::<sound::LtxvEmptyLatentAudio>(),
    entry::<sound::LtxvAudioVaeDecode>(),
    entry::<sound::LtxvAudioVaeEncode>(),
    entry::<latents::LtxvConcatAvLatent>(),
    entry::<latents::LtxvSeparateAvLatent>(),
    entry::<latents::LtxvLatentUpsampler>(),
    entry::<latents::LtxvImgToVideoInplace>(),
    entry::<latents::LtxvDualCfgGuider>(),
    entry::<in_context::GetIcLoraParameters>(),
    entry::<reference::LtxvReferenceAudio>(),
];
