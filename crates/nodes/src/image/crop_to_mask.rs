//! A subject cut out by its mask, in the middle of a plain background.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::{Crop, ResizeMethod, Tensor, morphology};

use super::{check_room, hex_color, resize, resize_planes, unsigned};
use crate::types::{Image, Mask};

/// Cuts pictures to what their masks show, on a background of one colour.
#[derive(Node)]
#[node(
    id = "ImageCropToMask",
    v3,
    module = "comfy_extras.nodes_images",
    display = "Crop Image to Mask",
    category = "image/transform",
    outputs(Output::new("IMAGE").named("images"))
)]
pub(crate) struct ImageCropToMask {
    images: Image,
    /// One for each picture, or one for all.
    masks: Mask,
    #[input(default = 1024, min = 64, max = 4096, step = 8)]
    width: i64,
    #[input(default = 1024, min = 64, max = 4096, step = 8)]
    height: i64,
    /// How much larger than the subject the cut is.
    #[input(default = 1.0, min = 1.0, max = 2.0, step = 0.01)]
    pad_factor: f64,
    /// Pixels by which the mask grows first; negative shrinks it.
    #[input(default = 0, min = -32, max = 32, step = 1)]
    grow_mask: i64,
    /// The colour around the subject.
    #[input(ty = "COLOR")]
    background: String,
}

impl Node for ImageCropToMask {
    fn run(self, cx: &Cx) -> NodeResult {
        let (width, height) = (
            unsigned("width", self.width)?,
            unsigned("height", self.height)?,
        );
        if width == 0 || height == 0 || !self.pad_factor.is_finite() || self.pad_factor <= 0.0 {
            return Err(NodeError::value_error(
                "a cut has a width, a height and a margin",
            ));
        }
        let color = hex_color(&self.background)?;
        let images = &self.images.0;
        let [count, h, w, channels] = images.dims4()?;
        if channels < 3 || h == 0 || w == 0 {
            return Err(NodeError::value_error(format!(
                "pictures of {w} x {h} with {channels} channels cannot be cut to a mask"
            )));
        }
        check_room(&[count, height, width, 3])?;
        let masks = masks_for(&self.masks.0, count, h, w)?;
        let mut cut = Vec::new();
        for i in 0..count {
            cx.check_interrupt()?;
            let image = images.narrow(0, i, 1)?.narrow(3, 0, 3)?;
            let mut mask = masks.narrow(0, i.min(masks.dim(0)? - 1), 1)?;
            if self.grow_mask != 0 {
                let steps = self.grow_mask.clamp(-32, 32);
                mask = morphology::grow_mask(&mask, steps, true)?;
            }
            if is_inverted(&mask)? {
                mask = mask.rsub_scalar(1.0);
            }
            let frame = frame_of(&mask)?.unwrap_or_else(|| {
                tracing::warn!("a mask is empty: the whole picture is used");
                [0, 0, w, h]
            });
            let region = region(frame, self.pad_factor, width as f64 / height as f64);
            let part = composite(&image, &mask, region, color)?;
            cut.push(resize(
                &part,
                width,
                height,
                ResizeMethod::Lanczos,
                Crop::Disabled,
            )?);
        }
        if cut.is_empty() {
            return Err(NodeError::value_error("there are no pictures to cut"));
        }
        let parts: Vec<&Tensor> = cut.iter().collect();
        Ok(NodeOutput::one(Image(Tensor::cat(&parts, 0)?)))
    }
}

/// The masks in the size of the pictures: one for all, or one for each.
fn masks_for(masks: &Tensor, count: usize, h: usize, w: usize) -> Result<Tensor, NodeError> {
    let masks = match masks.shape() {
        [_, _] => masks.unsqueeze(0)?,
        _ => masks.clone(),
    };
    let [n, mh, mw] = masks.dims3()?;
    if n == 0 || (n != 1 && n != count) {
        return Err(NodeError::value_error(format!(
            "{n} masks for {count} pictures: there must be one for each, or one for all"
        )));
    }
    if (mh, mw) == (h, w) {
        return Ok(masks);
    }
    let planes = masks.unsqueeze(1)?;
    Ok(resize_planes(&planes, w, h, ResizeMethod::Bilinear, Crop::Disabled)?.squeeze(1)?)
}

const SHOWN: f32 = 0.5;

/// Shown all along the border, and not in the middle: somebody masked the background.
fn is_inverted(mask: &Tensor) -> Result<bool, NodeError> {
    let [_, h, w] = mask.dims3()?;
    let data = mask.data();
    let shown = |y: usize, x: usize| data[y * w + x] > SHOWN;
    let border = (0..w).flat_map(|x| [(0, x), (h - 1, x)]);
    let border = border.chain((0..h).flat_map(|y| [(y, 0), (y, w - 1)]));
    let (mut on, mut all) = (0usize, 0usize);
    for (y, x) in border {
        on += usize::from(shown(y, x));
        all += 1;
    }
    Ok(on * 2 > all && !shown(h / 2, w / 2))
}

/// Left, top, right and bottom of what a mask shows; right and bottom are one further.
fn frame_of(mask: &Tensor) -> Result<Option<[usize; 4]>, NodeError> {
    let [_, h, w] = mask.dims3()?;
    let cancel = Cancel::current();
    let mut frame: Option<[usize; 4]> = None;
    for (y, row) in mask.data().chunks_exact(w).take(h).enumerate() {
        cancel.check()?;
        let first = row.iter().position(|v| *v > SHOWN);
        let last = row.iter().rposition(|v| *v > SHOWN);
        if let (Some(first), Some(last)) = (first, last) {
            let [left, top, right, _] = frame.unwrap_or([first, y, last + 1, y]);
            frame = Some([left.min(first), top, right.max(last + 1), y + 1]);
        }
    }
    Ok(frame)
}

/// Left, top, width and height of the cut: around the middle of the frame, with the ratio of the result. It may go over
/// the border of the picture.
fn region([left, top, right, bottom]: [usize; 4], pad: f64, ratio: f64) -> [i64; 4] {
    let (cx, cy) = ((left + right) as f64 / 2.0, (top + bottom) as f64 / 2.0);
    let (mut w, mut h) = ((right - left) as f64 * pad, (bottom - top) as f64 * pad);
    if w / h < ratio {
        w = h * ratio;
    } else {
        h = w / ratio;
    }
    let whole = |v: f64| v.round_ties_even() as i64;
    let (w, h) = (whole(w).max(1), whole(h).max(1));
    [whole(cx - w as f64 / 2.0), whole(cy - h as f64 / 2.0), w, h]
}

fn composite(
    image: &Tensor,
    mask: &Tensor,
    [left, top, width, height]: [i64; 4],
    color: [f32; 3],
) -> Result<Tensor, NodeError> {
    let [_, h, w, _] = image.dims4()?;
    let shape = [1, height as usize, width as usize, 3];
    check_room(&shape)?;
    let mut out = Tensor::zeros(shape)?;
    let cancel = Cancel::current();
    let (pixels, shown) = (image.data(), mask.data());
    let inside = |v: i64, size: usize| usize::try_from(v).ok().filter(|v| *v < size);
    for (y, row) in out.data_mut().chunks_exact_mut(shape[2] * 3).enumerate() {
        cancel.check()?;
        let y = inside(top + y as i64, h);
        for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
            pixel.copy_from_slice(&color);
            let (Some(y), Some(x)) = (y, inside(left + x as i64, w)) else {
                continue;
            };
            let at = y * w + x;
            let opacity = shown[at].clamp(0.0, 1.0);
            for (value, source) in pixel.iter_mut().zip(&pixels[at * 3..at * 3 + 3]) {
                *value += (source - *value) * opacity;
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fresco_graph::{Resources, Slots};
    use std::sync::Arc;

    fn cut(images: Tensor, masks: Tensor, pad: f64) -> Tensor {
        let node = ImageCropToMask {
            images: Image(images),
            masks: Mask(masks),
            width: 64,
            height: 64,
            pad_factor: pad,
            grow_mask: 0,
            background: "#ff0000".into(),
        };
        let cx = Cx::detached(Arc::new(Resources::default()));
        let Slots::Values(out) = node.run(&cx).unwrap().slots else {
            panic!("no value");
        };
        crate::types::as_tensor(&out[0]).unwrap().clone()
    }

    /// A white square of 20 in a grey picture of 80 x 40, and its mask.
    fn square() -> (Tensor, Tensor) {
        let inside = |i: usize| (30..50).contains(&(i % 80)) && (10..30).contains(&(i / 80));
        let mask = Tensor::from_fn([1, 40, 80], |i| f32::from(u8::from(inside(i)))).unwrap();
        let image = Tensor::from_fn([1, 40, 80, 3], |i| if inside(i / 3) { 1.0 } else { 0.5 });
        (image.unwrap(), mask)
    }

    #[test]
    fn the_subject_fills_the_cut() {
        let (image, mask) = square();
        let out = cut(image.clone(), mask.clone(), 1.0);
        assert_eq!(out.shape(), [1, 64, 64, 3]);
        assert!(out.data().iter().all(|v| *v == 1.0));
        // Twice as large: the background's red around it.
        let out = cut(image.clone(), mask.clone(), 2.0);
        assert_eq!(&out.data()[..3], [1.0, 0.0, 0.0]);
        assert_eq!(out.at(&[0, 32, 32, 1]).unwrap(), 1.0);
        // A mask of the background means the same.
        let turned = cut(image, mask.rsub_scalar(1.0), 2.0);
        assert_eq!(turned.data(), out.data());
    }

    #[test]
    fn an_empty_mask_shows_everything() {
        let (image, _) = square();
        let out = cut(image, Tensor::zeros([40, 80]).unwrap(), 1.0);
        // Nothing of the picture is shown, but the cut is all of it.
        assert!(out.data().chunks(3).all(|p| p == [1.0, 0.0, 0.0]));
    }

    #[test]
    fn masks_must_fit_the_pictures() {
        let masks = Tensor::zeros([2, 4, 4]).unwrap();
        assert!(masks_for(&masks, 3, 4, 4).is_err());
        assert_eq!(masks_for(&masks, 2, 8, 6).unwrap().shape(), [2, 8, 6]);
        assert_eq!(region([0, 0, 10, 20], 1.0, 1.0), [-5, 0, 20, 20]);
        assert_eq!(region([0, 0, 10, 20], 1.0, 2.0), [-15, 0, 40, 20]);
    }
}
