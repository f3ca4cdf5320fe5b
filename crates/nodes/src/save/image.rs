//! Still pictures: to the output folder, to the previews, to the socket.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use fresco_files::dirs::DirType;
use fresco_files::naming::temp_prefix;
use fresco_files::png_write::{
    LEVEL_PREVIEW, LEVEL_SAVE, PngFile, RowPicture, encode_png, encode_rows_while,
};
use fresco_graph::{
    Args, Cx, Map, Node, NodeError, NodeOutput, NodeResult, Preview, PreviewFormat, Value, map,
};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::resize::to_u8;
use fresco_tensor::{Tensor, with_memory};
use rayon::prelude::*;

use super::{
    FrameShape, Frames, Presence, begin, encoded, entry_of, png_text, save_error,
    with_encoder_memory,
};
use crate::types::{Image, Mask};

/// Pixels of a batch that are encoded before files are written: pictures of a batch beside each other, and not all of a long one in
/// memory.
const PIXELS_AT_ONCE: u64 = 16 << 20;

/// Writes the batch as PNG files and gives their entries.
fn save_pngs(
    cx: &Cx,
    images: &Tensor,
    kind: DirType,
    prefix: &str,
    level: u8,
    presence: Presence,
) -> Result<Vec<Value>, NodeError> {
    let shape = FrameShape::of(images)?;
    let (width, height) = (shape.width as usize, shape.height as usize);
    let mut batch = begin(cx, kind, prefix, width, height)?;
    let text = png_text(cx, presence);
    let cancel = Cancel::current();
    let wanted = || !cancel.is_raised();
    let stride = shape.stride();
    let pixels = u64::from(shape.width) * u64::from(shape.height);
    let encode = |values: &[f32]| {
        let row = |at: usize, out: &mut [u8]| {
            let values = &values[at * stride..(at + 1) * stride];
            for (out, value) in out.iter_mut().zip(values) {
                *out = to_u8(*value);
            }
        };
        let picture = RowPicture::new(shape.width, shape.height, shape.pixels, &row)?;
        with_encoder_memory(pixels, pixels, || {
            encode_rows_while(&picture, &text, level, &wanted)
        })
    };
    let frames: Vec<&[f32]> = images.data().chunks_exact(stride * height).collect();
    let at_once = usize::try_from(PIXELS_AT_ONCE / pixels).unwrap_or(usize::MAX);
    let mut entries = Vec::with_capacity(shape.count);
    for frames in frames.chunks(at_once.max(1)) {
        cx.check_interrupt()?;
        let files: Vec<PngFile> = match frames {
            // One alone waits for no other thread, unless it is large.
            [one] => vec![encode(one)?],
            several => several
                .par_iter()
                .map(|frame| encode(frame))
                .collect::<Result<_, _>>()?,
        };
        for file in files {
            let saved = batch.save_with("png", |out| file.write_to(out));
            entries.push(entry_of(&saved.map_err(save_error)?, kind));
        }
    }
    Ok(entries)
}

/// Saves pictures as PNG files in the output folder, with the workflow inside.
#[derive(Node)]
#[node(
    id = "SaveImage",
    v1,
    module = "nodes",
    display = "Save Image",
    category = "image",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
pub(super) struct SaveImage {
    /// The pictures to save.
    images: Image,
    #[input(default = "ComfyUI")]
    filename_prefix: String,
}

impl Node for SaveImage {
    fn run(self, cx: &Cx) -> NodeResult {
        let entries = save_pngs(
            cx,
            &self.images.0,
            DirType::Output,
            &self.filename_prefix,
            LEVEL_SAVE,
            Presence::NotNull,
        )?;
        Ok(NodeOutput::ui(map! {"images" => entries}))
    }
}

/// The random part of a node's preview names, chosen once so that its numbering goes on.
#[derive(Default)]
struct PreviewPrefix(Option<String>);

/// Shows pictures without keeping them: they go to the folder that is cleared at the next start.
#[derive(Node)]
#[node(
    id = "PreviewImage",
    v1,
    module = "nodes",
    display = "Preview Image",
    category = "image",
    output_node,
    hidden(prompt = "PROMPT", extra_pnginfo = "EXTRA_PNGINFO")
)]
pub(super) struct PreviewImage {
    /// The pictures to show.
    images: Image,
}

impl Node for PreviewImage {
    fn run(self, cx: &Cx) -> NodeResult {
        let prefix = cx.with_state(|state: &mut PreviewPrefix| {
            state
                .0
                .get_or_insert_with(|| temp_prefix("ComfyUI"))
                .clone()
        });
        let entries = save_pngs(
            cx,
            &self.images.0,
            DirType::Temp,
            &prefix,
            LEVEL_PREVIEW,
            Presence::NotNull,
        )?;
        Ok(NodeOutput::ui(map! {"images" => entries}))
    }
}

/// Shows a mask as a grey picture without keeping it.
#[derive(Node)]
#[node(
    id = "MaskPreview",
    v3,
    module = "comfy_extras.nodes_mask",
    display = "Preview Mask",
    category = "mask",
    output_node
)]
pub(super) struct MaskPreview {
    mask: Mask,
}

impl Node for MaskPreview {
    fn run(self, cx: &Cx) -> NodeResult {
        let mask = &self.mask.0;
        let (h, w) = match mask.shape() {
            [h, w] | [_, h, w] | [_, _, h, w] => (*h, *w),
            other => {
                return Err(NodeError::value_error(format!(
                    "a mask has the form (batch, height, width), not {other:?}"
                )));
            }
        };
        let count = mask.len() / (h * w).max(1);
        let grey = mask.reshape([count, h, w, 1])?.expand(&[count, h, w, 3])?;
        let entries = save_pngs(
            cx,
            &grey,
            DirType::Temp,
            &temp_prefix("ComfyUI"),
            LEVEL_PREVIEW,
            Presence::NotEmpty,
        )?;
        Ok(NodeOutput::ui(
            map! {"images" => entries, "animated" => vec![false]},
        ))
    }
}

/// Shows two pictures on top of each other, with a divider to move.
#[derive(Node)]
#[node(
    id = "ImageCompare",
    v3,
    module = "comfy_extras.nodes_image_compare",
    display = "Compare Images",
    category = "image",
    output_node
)]
pub(super) struct ImageCompare {
    /// The view that the browser draws.
    #[expect(dead_code, reason = "the browser draws it")]
    #[input(ty = "IMAGECOMPARE")]
    compare_view: Option<Value>,
    /// The picture on the left.
    #[input(optional)]
    image_a: Option<Image>,
    /// The picture on the right.
    #[input(optional)]
    image_b: Option<Image>,
}

impl Node for ImageCompare {
    fn run(self, cx: &Cx) -> NodeResult {
        let save = |images: Option<&Image>, prefix: &str| match images {
            Some(images) => save_pngs(
                cx,
                &images.0,
                DirType::Temp,
                &temp_prefix(prefix),
                LEVEL_PREVIEW,
                Presence::NotEmpty,
            ),
            None => Ok(Vec::new()),
        };
        let a = save(self.image_a.as_ref(), "comfy.compare.a")?;
        let b = save(self.image_b.as_ref(), "comfy.compare.b")?;
        Ok(NodeOutput::ui(map! {"a_images" => a, "b_images" => b}))
    }
}

/// Sends pictures over the socket as PNG instead of writing files.
#[derive(Node)]
#[node(
    id = "SaveImageWebsocket",
    v1,
    module = "custom_nodes.websocket_image_save",
    category = "api/image",
    output_node
)]
pub(super) struct SaveImageWebsocket {
    images: Image,
}

impl Node for SaveImageWebsocket {
    fn run(self, cx: &Cx) -> NodeResult {
        let frames = Frames::new(&self.images.0)?;
        let pictures = frames.pictures()?;
        for (i, picture) in pictures.iter().enumerate() {
            let bytes = encoded(&[*picture], || encode_png(picture, &[], LEVEL_PREVIEW))?;
            let size = bytes.len() as u64;
            let bytes: Arc<[u8]> = with_memory(size, || bytes.into())?;
            let preview = Preview {
                format: PreviewFormat::Png,
                bytes,
            };
            cx.progress(i as f64, pictures.len() as f64, Some(preview))?;
        }
        Ok(NodeOutput::ui(Map::new()))
    }

    // Sending is the point of the node, so it must happen on every run.
    const FINGERPRINT: bool = true;
    fn fingerprint(_: Args, _: &Cx) -> Result<Value, NodeError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(now.map_or(f64::NAN, |d| d.as_secs_f64()).into())
    }
}
