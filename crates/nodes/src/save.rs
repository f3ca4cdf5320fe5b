//! Nodes that write files, and what they share: metadata, 8-bit pixels, result entries.

use std::path::Path;

use fresco_files::dirs::{DirType, Dirs};
use fresco_files::naming::{Batch, SaveError, Saved, Saver};
use fresco_files::png_write::{Picture, Pixels};
use fresco_graph::{Cx, Map, NodeEntry, NodeError, Value, entry, json, map};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::resize::to_u8;
use fresco_tensor::{Buffer, Tensor, with_memory};

mod advanced;
mod animation;
mod dataset;
mod glb;
mod image;
mod latent;
mod svg;
mod text;

pub use svg::Svg;

pub static NODES: &[NodeEntry] = &[
    entry::<image::SaveImage>(),
    entry::<image::PreviewImage>(),
    entry::<image::MaskPreview>(),
    entry::<image::SaveImageWebsocket>(),
    entry::<image::ImageCompare>(),
    entry::<advanced::SaveImageAdvanced>(),
    entry::<text::SaveText>(),
    entry::<animation::SaveAnimatedPng>(),
    entry::<animation::SaveAnimatedWebp>(),
    entry::<svg::SaveSvg>(),
    entry::<glb::SaveGlb>(),
    entry::<latent::SaveLatent>(),
    entry::<dataset::SaveImageDataSetToFolder>(),
    entry::<dataset::SaveImageTextDataSetToFolder>(),
];

/// Settings of the program that savers obey; a resource of the assembly, defaults when absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaveOptions {
    /// Write no prompt or workflow into files.
    pub disable_metadata: bool,
}

/// What a hidden value must be to count: the older nodes write even an empty prompt, the newer ones do not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    NotNull,
    NotEmpty,
}

impl Presence {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::NotNull => !value.is_null(),
            Self::NotEmpty => value.truthy(),
        }
    }
}

/// Prompt and extra entries to embed, as values; none when the user switched metadata off.
pub(crate) fn metadata_values(cx: &Cx, presence: Presence) -> Option<Map> {
    let options = cx.resources.get::<SaveOptions>();
    if options.is_some_and(|o| o.disable_metadata) {
        return None;
    }
    Some(hidden_values(cx, presence))
}

fn hidden_values(cx: &Cx, presence: Presence) -> Map {
    let mut found = Map::new();
    if presence.holds(&cx.hidden.prompt) {
        found.insert("prompt".into(), cx.hidden.prompt.clone());
    }
    if let Some(extra) = cx.hidden.extra_pnginfo.as_map() {
        for (key, value) in extra {
            found.insert(key.clone(), value.clone());
        }
    }
    found
}

fn as_text(values: &Map) -> Vec<(String, String)> {
    let text = values
        .iter()
        .map(|(k, v)| (k.to_string(), json::to_python(v)));
    text.collect()
}

/// As [`metadata_values`], each value as JSON text.
pub(crate) fn metadata_text(cx: &Cx, presence: Presence) -> Vec<(String, String)> {
    as_text(&metadata_values(cx, presence).unwrap_or_default())
}

/// As [`metadata_text`], whatever the user said: one saver of the reference does not ask.
pub(crate) fn metadata_text_always(cx: &Cx) -> Vec<(String, String)> {
    as_text(&hidden_values(cx, Presence::NotEmpty))
}

/// As [`metadata_text`], without keys a PNG chunk cannot hold: better a picture without an odd entry than no picture.
pub(crate) fn png_text(cx: &Cx, presence: Presence) -> Vec<(String, String)> {
    let mut text = metadata_text(cx, presence);
    text.retain(|(key, _)| {
        let fits = (1..=79).contains(&key.chars().count())
            && key
                .chars()
                .all(|c| matches!(c, ' '..='~' | '\u{a1}'..='\u{ff}'))
            && key.trim() == key;
        if !fits {
            tracing::warn!("metadata key {key:?} does not fit into a PNG and is left out");
        }
        fits
    });
    text
}

/// Runs an encoder of pictures, which keeps the whole file and some copies of its pixels in memory.
pub(crate) fn encoded<E: std::error::Error>(
    pictures: &[Picture<'_>],
    encode: impl FnOnce() -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, NodeError> {
    let pixels = |p: &Picture<'_>| u64::from(p.width) * u64::from(p.height);
    // Animations keep what was encoded before.
    let all = pictures.iter().map(pixels).sum::<u64>();
    let largest = pictures.iter().map(pixels).max().unwrap_or(0);
    with_encoder_memory(all, largest, encode)
}

/// Runs an encoder of so many pixels, of which it works on so many at once.
pub(crate) fn with_encoder_memory<T, E: std::error::Error>(
    all: u64,
    at_once: u64,
    encode: impl FnOnce() -> Result<T, E>,
) -> Result<T, NodeError> {
    Ok(with_memory(all * 4 + at_once * 12, encode)??)
}

/// Longer names fit no file system; texts of any length can come over a link.
const MAX_PREFIX: usize = 1 << 16;

/// Starts saving under `prefix` in one of the three directories.
pub(crate) fn begin(
    cx: &Cx,
    kind: DirType,
    prefix: &str,
    width: usize,
    height: usize,
) -> Result<Batch, NodeError> {
    if prefix.len() > MAX_PREFIX {
        return Err(NodeError::failed(
            "OSError",
            format!(
                "[Errno 36] File name too long: filename_prefix has {} bytes",
                prefix.len()
            ),
        ));
    }
    let dirs = cx.resource::<Dirs>()?;
    let saver = cx.resource::<Saver>()?;
    saver
        .begin(prefix, dirs.get(kind), width, height)
        .map_err(save_error)
}

/// The reference raises a plain exception for a prefix that leaves the folder.
pub(crate) fn save_error(error: SaveError) -> NodeError {
    match error {
        SaveError::Outside { .. } => NodeError::exception(error.to_string()),
        other => other.into(),
    }
}

/// One line of a node's `images` (or `latents`, ...) list.
pub(crate) fn entry_of(saved: &Saved, kind: DirType) -> Value {
    map! {
        "filename" => saved.filename.as_str(),
        "subfolder" => saved.subfolder.as_str(),
        "type" => kind.as_str(),
    }
    .into()
}

/// The form of a batch of pictures that can be saved.
#[derive(Clone, Copy)]
pub(crate) struct FrameShape {
    pub(crate) count: usize,
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pixels: Pixels,
}

impl FrameShape {
    /// Fails for anything but `(b, h, w, 3)` or `(b, h, w, 4)` with at least one picture and one pixel.
    pub(crate) fn of(images: &Tensor) -> Result<Self, NodeError> {
        let [count, height, width, channels] = images.dims4()?;
        let pixels = Pixels::from_channels(channels).ok_or_else(|| {
            NodeError::type_error(format!(
                "Cannot handle this data type: (1, 1, {channels}), |u1"
            ))
        })?;
        let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
            return Err(NodeError::value_error(format!(
                "a picture of {width} x {height} cannot be saved"
            )));
        };
        if count == 0 || w == 0 || h == 0 {
            return Err(NodeError::failed(
                "IndexError",
                format!("there is nothing to save in a batch of {count} pictures of {w} x {h}"),
            ));
        }
        Ok(Self {
            count,
            width: w,
            height: h,
            pixels,
        })
    }

    /// Values of a row of pixels.
    pub(crate) fn stride(&self) -> usize {
        self.width as usize * self.pixels.channels()
    }
}

/// The frames of an image batch as 8-bit pixels.
pub(crate) struct Frames {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pixels: Pixels,
    data: Buffer<u8>,
}

impl Frames {
    /// Fails as [`FrameShape::of`].
    pub(crate) fn new(images: &Tensor) -> Result<Self, NodeError> {
        let shape = FrameShape::of(images)?;
        let cancel = Cancel::current();
        let mut data = Buffer::with_room(images.len())?;
        for row in images.data().chunks(shape.stride()) {
            cancel.check()?;
            data.extend(row.iter().map(|v| to_u8(*v)));
        }
        Ok(Self {
            width: shape.width,
            height: shape.height,
            pixels: shape.pixels,
            data,
        })
    }

    pub(crate) fn pictures(&self) -> Result<Vec<Picture<'_>>, NodeError> {
        let size = self.width as usize * self.height as usize * self.pixels.channels();
        self.data
            .chunks_exact(size)
            .map(|frame| Ok(Picture::new(self.width, self.height, self.pixels, frame)?))
            .collect()
    }
}

/// A folder below the output directory named by the user.
pub(crate) fn output_folder(cx: &Cx, name: &str) -> Result<std::path::PathBuf, NodeError> {
    let dirs = cx.resource::<Dirs>()?;
    let root: &Path = dirs.get(DirType::Output);
    std::fs::create_dir_all(root)
        .map_err(|e| NodeError::failed("OSError", format!("{}: {e}", root.display())))?;
    Ok(fresco_files::contain::contain(root, name)?)
}

#[cfg(test)]
mod tests;
