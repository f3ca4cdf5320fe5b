//! Animated pictures from a batch.

use fresco_files::dirs::DirType;
use fresco_files::png_write::encode_apng_while;
use fresco_files::webp_write::{WebpOptions, encode_webp_animation_while};
use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult, Value, map};
use fresco_tensor::cancel::Cancel;

use super::{Frames, Presence, begin, encoded, entry_of, metadata_text, png_text, save_error};
use crate::types::Image;

/// Metadata entries that an EXIF block of a WEBP holds.
const MAX_TAGS: usize = 200;

/// Whole milliseconds a frame stays, as the formats store it.
fn frame_ms(fps: f64) -> Result<u32, NodeError> {
    let ms = 1000.0 / fps;
    if !(fps > 0.0 && ms < 1e9) {
        return Err(NodeError::value_error(format!(
            "{fps} frames a second is not a rate that can be stored"
        )));
    }
    Ok(ms as u32)
}

/// The entries, and a mark for the client when there is more than one frame.
fn shown(entry: Value, frames: usize) -> Map {
    let mut ui = map! {"images" => vec![entry]};
    if frames > 1 {
        ui.insert("animated".into(), vec![true].into());
    }
    ui
}

/// Saves a batch as one animated PNG.
#[derive(Node)]
#[node(
    id = "SaveAnimatedPNG",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/animation",
    output_node
)]
pub(super) struct SaveAnimatedPng {
    /// The frames of the animation.
    images: Image,
    #[input(default = "ComfyUI")]
    filename_prefix: String,
    #[input(default = 6.0, min = 0.01, max = 1000.0, step = 0.01)]
    fps: f64,
    /// From 0 (large and quick) to 9 (small and slow).
    #[input(default = 4, min = 0, max = 9)]
    compress_level: i64,
}

impl Node for SaveAnimatedPng {
    fn run(self, cx: &Cx) -> NodeResult {
        let frames = Frames::new(&self.images.0)?;
        let pictures = frames.pictures()?;
        let duration = frame_ms(self.fps)?;
        let mut batch = begin(
            cx,
            DirType::Output,
            &self.filename_prefix,
            frames.width as usize,
            frames.height as usize,
        )?;
        let level = self.compress_level.clamp(0, 9) as u8;
        let text = png_text(cx, Presence::NotEmpty);
        let cancel = Cancel::current();
        let wanted = || !cancel.is_raised();
        let bytes = encoded(&pictures, || {
            encode_apng_while(&pictures, duration, &text, level, &wanted)
        })?;
        let saved = batch.save("png", &bytes).map_err(save_error)?;
        let entry = entry_of(&saved, DirType::Output);
        Ok(NodeOutput::ui(shown(entry, pictures.len())))
    }
}

/// Saves a batch as one animated WEBP.
#[derive(Node)]
#[node(
    id = "SaveAnimatedWEBP",
    v3,
    module = "comfy_extras.nodes_images",
    category = "image/animation",
    output_node
)]
pub(super) struct SaveAnimatedWebp {
    /// The frames of the animation.
    images: Image,
    #[input(default = "ComfyUI")]
    filename_prefix: String,
    #[input(default = 6.0, min = 0.01, max = 1000.0, step = 0.01)]
    fps: f64,
    /// Keep every pixel exactly.
    #[input(default = true)]
    lossless: bool,
    /// Higher looks better and needs more space.
    #[input(default = 80, min = 0, max = 100)]
    quality: i64,
    /// How much effort goes into a small file.
    #[input(choices = ["default", "fastest", "slowest"])]
    method: String,
}

impl Node for SaveAnimatedWebp {
    fn run(self, cx: &Cx) -> NodeResult {
        let frames = Frames::new(&self.images.0)?;
        let pictures = frames.pictures()?;
        let options = WebpOptions {
            lossless: self.lossless,
            quality: self.quality.clamp(0, 100) as f32,
            method: match self.method.as_str() {
                "fastest" => 0,
                "slowest" => 6,
                _ => 4,
            },
        };
        let duration = frame_ms(self.fps)?;
        let mut batch = begin(
            cx,
            DirType::Output,
            &self.filename_prefix,
            frames.width as usize,
            frames.height as usize,
        )?;
        let mut text = metadata_text(cx, Presence::NotEmpty);
        // Entries count down from a tag number; there is room for no more.
        text.truncate(MAX_TAGS);
        let cancel = Cancel::current();
        let wanted = || !cancel.is_raised();
        let bytes = encoded(&pictures, || {
            encode_webp_animation_while(&pictures, duration, &text, options, &wanted)
        })?;
        let saved = batch.save("webp", &bytes).map_err(save_error)?;
        let entry = entry_of(&saved, DirType::Output);
        Ok(NodeOutput::ui(shown(entry, pictures.len())))
    }
}
