//! Lists of pictures as a folder, for training.

use fresco_files::contain::contain_new;
use fresco_files::png_write::{LEVEL_SAVE, encode_png};
use fresco_files::write::write_atomic;
use fresco_graph::{Cx, Map, Node, NodeError, NodeOutput, NodeResult};

use super::{Frames, encoded, output_folder};
use crate::types::Image;

fn single<'a>(name: &str, list: &'a [String]) -> Result<&'a str, NodeError> {
    list.first()
        .map(String::as_str)
        .ok_or_else(|| NodeError::failed("IndexError", format!("list index out of range: {name}")))
}

/// Writes `{prefix}_{index:05}.png` for each picture, and a text beside it where there are texts. Files of an earlier
/// run with the same names are replaced.
fn save(
    cx: &Cx,
    images: &[Image],
    texts: Option<&[String]>,
    folder: &str,
    prefix: &str,
) -> Result<(), NodeError> {
    if folder.len().max(prefix.len()) > super::MAX_PREFIX {
        return Err(NodeError::failed(
            "OSError",
            "[Errno 36] File name too long",
        ));
    }
    let folder = output_folder(cx, folder)?;
    std::fs::create_dir_all(&folder)
        .map_err(|e| NodeError::failed("OSError", format!("{}: {e}", folder.display())))?;
    let place = |index: usize, extension: &str| {
        contain_new(&folder, &format!("{prefix}_{index:05}.{extension}"))
    };
    for (i, image) in images.iter().enumerate() {
        cx.check_interrupt()?;
        if image.0.dim(0)? != 1 {
            return Err(NodeError::type_error(format!(
                "each element of the list must be one picture, not a batch of {:?}",
                image.0.shape()
            )));
        }
        let frames = Frames::new(&image.0)?;
        let picture = frames.pictures()?[0];
        let bytes = encoded(&[picture], || encode_png(&picture, &[], LEVEL_SAVE))?;
        write_atomic(&place(i, "png")?, &bytes)?;
        if let Some(text) = texts.and_then(|t| t.get(i)) {
            write_atomic(&place(i, "txt")?, text.as_bytes())?;
        }
    }
    Ok(())
}

/// Saves a list of pictures into a folder of the output directory.
#[derive(Node)]
#[node(
    id = "SaveImageDataSetToFolder",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Save Image Dataset to Folder",
    category = "dataset",
    output_node,
    experimental,
    input_is_list
)]
pub(super) struct SaveImageDataSetToFolder {
    images: Vec<Image>,
    #[input(default = "dataset")]
    folder_name: Vec<String>,
    #[input(default = "image")]
    filename_prefix: Vec<String>,
}

impl Node for SaveImageDataSetToFolder {
    fn run(self, cx: &Cx) -> NodeResult {
        let folder = single("folder_name", &self.folder_name)?;
        let prefix = single("filename_prefix", &self.filename_prefix)?;
        save(cx, &self.images, None, folder, prefix)?;
        Ok(NodeOutput::ui(Map::new()))
    }
}

/// Saves a list of pictures and their texts into a folder of the output directory.
#[derive(Node)]
#[node(
    id = "SaveImageTextDataSetToFolder",
    v3,
    module = "comfy_extras.nodes_dataset",
    display = "Save Image and Text Dataset to Folder",
    category = "dataset",
    output_node,
    experimental,
    input_is_list
)]
pub(super) struct SaveImageTextDataSetToFolder {
    images: Vec<Image>,
    texts: Vec<String>,
    #[input(default = "dataset")]
    folder_name: Vec<String>,
    #[input(default = "image")]
    filename_prefix: Vec<String>,
}

impl Node for SaveImageTextDataSetToFolder {
    fn run(self, cx: &Cx) -> NodeResult {
        let folder = single("folder_name", &self.folder_name)?;
        let prefix = single("filename_prefix", &self.filename_prefix)?;
        save(cx, &self.images, Some(&self.texts), folder, prefix)?;
        Ok(NodeOutput::ui(Map::new()))
    }
}
