//! Pictures: sizes, batches, canvases. IMAGE is `(batch, height, width, channels)`.

mod batch;
mod canvas;
mod color_transfer;
mod crop_to_mask;
mod scale;
mod stitch;

use std::cmp::Ordering;

use fresco_graph::{NodeEntry, NodeError, entry};
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

pub(crate) static NODES: &[NodeEntry] = &[
    entry::<scale::ImageScale>(),
    entry::<scale::ImageScaleBy>(),
    entry::<scale::ImageScaleToTotalPixels>(),
    entry::<scale::ImageScaleToMaxDimension>(),
    entry::<scale::ResizeAndPadImage>(),
    entry::<scale::ResizeImageMaskNode>(),
    entry::<scale::FluxKontextImageScale>(),
    entry::<canvas::ImageInvert>(),
    entry::<batch::ImageBatch>(),
    entry::<batch::BatchImagesNode>(),
    entry::<canvas::EmptyImage>(),
    entry::<canvas::ImagePadForOutpaint>(),
    entry::<canvas::ImageCrop>(),
    entry::<batch::RepeatImageBatch>(),
    entry::<batch::ImageFromBatch>(),
    entry::<canvas::ImageAddNoise>(),
    entry::<stitch::ImageStitch>(),
    entry::<canvas::GetImageSize>(),
    entry::<canvas::ImageRotate>(),
    entry::<canvas::ImageFlip>(),
    entry::<batch::RebatchImages>(),
    entry::<crop_to_mask::ImageCropToMask>(),
    entry::<color_transfer::ColorTransfer>(),
];

/// Results above this many elements (16 GiB) are refused: a slip in a size field, or somebody testing us.
const MAX_ELEMENTS: u128 = 1 << 32;

/// Refuses results that no machine of ours should try to hold.
pub(crate) fn check_room(shape: &[usize]) -> Result<(), NodeError> {
    let elements: u128 = shape
        .iter()
        .fold(1, |n: u128, s| n.saturating_mul(*s as u128));
    if elements > MAX_ELEMENTS {
        return Err(NodeError::value_error(format!(
            "a result of shape {shape:?} would need {} GiB of memory",
            elements >> 28
        )));
    }
    Ok(())
}

/// A size or offset that must not be negative; widgets hold to that, links need not.
pub(crate) fn unsigned(name: &str, value: i64) -> Result<usize, NodeError> {
    usize::try_from(value)
        .map_err(|_| NodeError::value_error(format!("{name} must not be negative, got {value}")))
}

/// The number as a size, if it is one a picture can have.
pub(crate) fn rounded(value: f64) -> Result<usize, NodeError> {
    let whole = value.round_ties_even();
    if (0.0..1e9).contains(&whole) {
        Ok(whole as usize)
    } else {
        Err(NodeError::value_error(format!("{value} is not a size")))
    }
}

/// Red, green and blue of `#rrggbb` or `#rgb`, 0..1.
pub(crate) fn hex_color(text: &str) -> Result<[f32; 3], NodeError> {
    let wrong = || {
        let shown: String = text.chars().take(20).collect();
        NodeError::value_error(format!("{shown:?} is not a colour of the form #rrggbb"))
    };
    let digits = text.trim().trim_start_matches('#');
    let digits: Vec<u32> = digits
        .chars()
        .take(9)
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()
        .ok_or_else(wrong)?;
    let byte = |high: u32, low: u32| (high * 16 + low) as f32 / 255.0;
    match digits.as_slice() {
        [r, g, b] => Ok([byte(*r, *r), byte(*g, *g), byte(*b, *b)]),
        // Opacity may follow, and does not count.
        [r, s, g, h, b, c] | [r, s, g, h, b, c, _, _] => {
            Ok([byte(*r, *s), byte(*g, *h), byte(*b, *c)])
        }
        _ => Err(wrong()),
    }
}

/// The resize method a workflow names.
pub(crate) fn method(name: &str) -> Result<ResizeMethod, NodeError> {
    ResizeMethod::parse(name)
        .ok_or_else(|| NodeError::value_error(format!("unknown resize method {name:?}")))
}

/// Resizes `(b, c, h, w)`.
pub(crate) fn resize_planes(
    x: &Tensor,
    width: usize,
    height: usize,
    method: ResizeMethod,
    crop: Crop,
) -> Result<Tensor, NodeError> {
    let [b, c, ..] = x.dims4()?;
    check_room(&[b, c, height, width])?;
    Ok(common_upscale(x, width, height, method, crop)?)
}

/// Resizes `(b, h, w, c)`.
pub(crate) fn resize(
    image: &Tensor,
    width: usize,
    height: usize,
    method: ResizeMethod,
    crop: Crop,
) -> Result<Tensor, NodeError> {
    let planes = image.nhwc_to_nchw()?;
    Ok(resize_planes(&planes, width, height, method, crop)?.nchw_to_nhwc()?)
}

/// Makes two pictures fit for arithmetic as the reference does: surplus channels of the second are dropped; if the first
/// has more, it gets yet another one of ones (which the reference meant for the second; such pairs then fail to combine
/// unless the second has a single channel).
pub(crate) fn fit_channels(first: &Tensor, second: &Tensor) -> Result<(Tensor, Tensor), NodeError> {
    let (a, b) = (first.dims4()?[3], second.dims4()?[3]);
    Ok(match a.cmp(&b) {
        Ordering::Less => (first.clone(), second.narrow(3, 0, a)?),
        Ordering::Greater => (with_channel(first)?, second.clone()),
        Ordering::Equal => (first.clone(), second.clone()),
    })
}

/// The picture with one more channel, all ones.
pub(crate) fn with_channel(image: &Tensor) -> Result<Tensor, NodeError> {
    let [b, h, w, _] = image.dims4()?;
    Ok(Tensor::cat(&[image, &Tensor::ones([b, h, w, 1])?], 3)?)
}
