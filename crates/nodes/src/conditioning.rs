//! CONDITIONING nodes: joining, mixing, areas and masks, and the values that model families read from it.

pub mod area;
pub mod family;
pub mod files;
pub mod join;
pub mod properties;

use fresco_graph::{NodeEntry, NodeError, NodeOutput, Value, entry};
use fresco_tensor::Tensor;

use crate::types::Conditioning;

pub static NODES: &[NodeEntry] = &[
    entry::<join::ConditioningAverage>(),
    entry::<join::ConditioningCombine>(),
    entry::<join::ConditioningConcat>(),
    entry::<area::ConditioningSetArea>(),
    entry::<area::ConditioningSetAreaPercentage>(),
    entry::<area::ConditioningSetAreaStrength>(),
    entry::<area::ConditioningSetMask>(),
    entry::<join::ConditioningZeroOut>(),
    entry::<area::ConditioningSetTimestepRange>(),
    entry::<area::ConditioningSetAreaPercentageVideo>(),
    entry::<family::ConditioningStableAudio>(),
    entry::<family::FluxGuidance>(),
    entry::<family::FluxDisableGuidance>(),
    entry::<family::FluxKontextMultiReferenceLatentMethod>(),
    entry::<family::ReferenceLatent>(),
    entry::<family::LTXVConditioning>(),
    entry::<family::LTXVCropGuides>(),
    entry::<family::StableCascadeStageBConditioning>(),
    entry::<family::SD4XUpscaleConditioning>(),
    entry::<family::HunyuanRefinerLatent>(),
    entry::<family::LotusConditioning>(),
    entry::<properties::PairConditioningSetProperties>(),
    entry::<properties::PairConditioningSetPropertiesAndCombine>(),
    entry::<properties::ConditioningSetProperties>(),
    entry::<properties::ConditioningSetPropertiesAndCombine>(),
    entry::<properties::PairConditioningSetDefaultCombine>(),
    entry::<properties::ConditioningSetDefaultCombine>(),
    entry::<properties::PairConditioningCombine>(),
    entry::<properties::ConditioningTimestepsRange>(),
    entry::<files::ConditioningLoader>(),
    entry::<files::SaveConditioning>(),
];

/// Both lists, one after the other.
fn joined(mut first: Conditioning, second: Conditioning) -> Conditioning {
    first.0.extend(second.0);
    first
}

/// A mask with a batch dimension.
fn with_batch(mask: Tensor) -> Result<Tensor, NodeError> {
    Ok(if mask.rank() < 3 {
        mask.unsqueeze(0)?
    } else {
        mask
    })
}

/// Restricts every entry to a mask.
fn set_mask(
    conditioning: Conditioning,
    mask: Tensor,
    strength: f64,
    area: &str,
) -> Result<Conditioning, NodeError> {
    Ok(conditioning
        .set("mask", crate::types::tensor(with_batch(mask)?))
        .set("set_area_to_bounds", area != "default")
        .set("mask_strength", strength))
}

/// Positive and negative as two slots.
fn pair(positive: Conditioning, negative: Conditioning) -> NodeOutput {
    NodeOutput::slots(vec![Value::from(positive), Value::from(negative)])
}
