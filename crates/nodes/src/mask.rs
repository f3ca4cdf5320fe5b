//! Masks: making, converting and combining them. MASK is `(batch, height, width)`; a flat `(height, width)` is one mask.

mod composite;
mod convert;
mod shape;

use fresco_graph::{NodeEntry, NodeError, entry};
use fresco_tensor::Tensor;

pub(crate) static NODES: &[NodeEntry] = &[
    entry::<composite::LatentCompositeMasked>(),
    entry::<composite::ImageCompositeMasked>(),
    entry::<convert::MaskToImage>(),
    entry::<convert::ImageToMask>(),
    entry::<convert::ImageColorToMask>(),
    entry::<convert::SolidMask>(),
    entry::<convert::InvertMask>(),
    entry::<shape::CropMask>(),
    entry::<composite::MaskComposite>(),
    entry::<shape::FeatherMask>(),
    entry::<shape::GrowMask>(),
    entry::<convert::ThresholdMask>(),
    entry::<shape::BatchMasksNode>(),
];

/// The mask as `(n, height, width)`, whatever stands in front of its plane.
pub(crate) fn planes(mask: &Tensor) -> Result<Tensor, NodeError> {
    let [front @ .., h, w] = mask.shape() else {
        return Err(NodeError::value_error(format!(
            "a mask needs a height and a width, got shape {:?}",
            mask.shape()
        )));
    };
    Ok(mask.reshape([front.iter().product(), *h, *w])?)
}
