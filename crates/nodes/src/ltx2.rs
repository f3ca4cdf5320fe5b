//! Nodes of LTX-2: videos together with their sound.

mod latents;
mod loaders;
mod sound;

use fresco_graph::{NodeEntry, entry};

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
];
