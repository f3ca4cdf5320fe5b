//! Pictures after sampling: blending, filters, palettes, edges.

mod blend;
mod canny;
mod filter;
mod marigold;
mod morphology;
mod palette;
mod quantize;

use fresco_graph::{NodeEntry, entry};

pub(crate) static NODES: &[NodeEntry] = &[
    entry::<marigold::MarigoldV2PostProcess>(),
    entry::<blend::ImageBlend>(),
    entry::<filter::ImageBlur>(),
    entry::<quantize::ImageQuantize>(),
    entry::<filter::ImageSharpen>(),
    entry::<canny::Canny>(),
    entry::<morphology::Morphology>(),
    entry::<morphology::ImageRGBToYUV>(),
    entry::<morphology::ImageYUVToRGB>(),
];
