//! Whole folders of pictures, with the texts beside them.

use std::fs;
use std::path::{Path, PathBuf};

use fresco_files::contain::contain;
use fresco_files::dirs::{DirType, Dirs};
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};

use super::{io_error, open_image, refuse_pipe, rgb};
use crate::types::Image;

const EXTENSIONS: [&str; 4] = ["png", "jpg", "jpeg", "webp"];
/// A repetition above this is a typing error, and would fill the memory.
const MAX_REPEATS: usize = 1000;

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str());
    extension.is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

/// Entries of a folder in the order of their names, so that two runs see the same list.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, NodeError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| io_error(folder, &e))? {
        found.push(entry.map_err(|e| io_error(folder, &e))?.path());
    }
    found.sort();
    Ok(found)
}

fn input_folder(cx: &Cx, name: &str) -> Result<PathBuf, NodeError> {
    let dirs = cx.resource::<Dirs>()?;
    contain(dirs.get(DirType::Input), name)
        .map_err(|e| NodeError::value_error(format!("{name}: {e}")))
}

/// Refuses entries that are links to somewhere else, and pipes.
fn check_entry(cx: &Cx, path: &Path) -> Result<(), NodeError> {
    let dirs = cx.resource::<Dirs>()?;
    let root = dirs.get(DirType::Input);
    let below = path.strip_prefix(root).ok().and_then(Path::to_str);
    let shown = path.display();
    let below = below.ok_or_else(|| NodeError::value_error(format!("{shown}: not a name")))?;
    contain(root, below).map_err(|e| NodeError::value_error(format!("{shown}: {e}")))?;
    refuse_pipe(path)
}

fn load_all(cx: &Cx, paths: &[PathBuf]) -> Result<Vec<Image>, NodeError> {
    if paths.is_empty() {
        return Err(NodeError::value_error("No valid images found in input"));
    }
    let mut images: Vec<Image> = Vec::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        cx.check_interrupt()?;
        // Repeated files follow each other in the list; they share their pixels.
        match images.last() {
            Some(last) if i > 0 && paths[i - 1] == *path => images.push(last.clone()),
            _ => {
                check_entry(cx, path)?;
                images.push(Image(rgb(open_image(cx, path)?.first())?));
            }
        }
    }
    Ok(images)
}

/// Loads all pictures of a folder of the input directory.
#[derive(Node)]
#[node(id = "LoadImageDataSetFromFolder", v3, module = "comfy_extras.nodes_dataset",
       display = "Load Image Dataset from Folder", category = "dataset",
       outputs(Output::new("IMAGE").named("images").list()), experimental)]
pub(super) struct LoadImageDataSetFromFolder {
    #[input(listed = "input/folders")]
    folder: String,
}

impl Node for LoadImageDataSetFromFolder {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut paths = entries(&input_folder(cx, &self.folder)?)?;
        paths.retain(|p| is_picture(p));
        Ok(NodeOutput::one(load_all(cx, &paths)?))
    }
}

/// Loads the pictures of a folder and the text file beside each of them.
///
/// A sub-folder called `10_name` counts ten times, as trainers have it.
#[derive(Node)]
#[node(id = "LoadImageTextDataSetFromFolder", v3, module = "comfy_extras.nodes_dataset",
       display = "Load Image and Text Dataset from Folder", category = "dataset",
       outputs(Output::new("IMAGE").named("images").list(), Output::new("STRING").named("texts").list()),
       experimental)]
pub(super) struct LoadImageTextDataSetFromFolder {
    #[input(listed = "input/folders")]
    folder: String,
}

impl Node for LoadImageTextDataSetFromFolder {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut paths = Vec::new();
        for path in entries(&input_folder(cx, &self.folder)?)? {
            if is_picture(&path) {
                paths.push(path);
            } else if path.is_dir() {
                let times = repeats(&path)?;
                for inner in entries(&path)?.into_iter().filter(|p| is_picture(p)) {
                    paths.extend(std::iter::repeat_n(inner, times));
                }
            }
        }
        let mut texts = Vec::with_capacity(paths.len());
        for path in &paths {
            let text = path.with_extension("txt");
            check_entry(cx, &text)?;
            texts.push(match fs::read(&text) {
                Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
                Err(e) => return Err(io_error(&text, &e)),
            });
        }
        let images = load_all(cx, &paths)?;
        Ok(NodeOutput::slots(vec![images.into(), texts.into()]))
    }
}

/// The number in front of the first underscore of a folder's name.
fn repeats(folder: &Path) -> Result<usize, NodeError> {
    let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let first = name.split('_').next().unwrap_or("");
    if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(1);
    }
    match first.parse() {
        Ok(n) if n <= MAX_REPEATS => Ok(n),
        _ => Err(NodeError::value_error(format!(
            "folder {name} asks for more than {MAX_REPEATS} repetitions"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_come_from_the_folder_name() {
        let of = |name: &str| repeats(Path::new(name)).ok();
        assert_eq!(of("/a/10_cats"), Some(10));
        assert_eq!(of("cats_10"), Some(1));
        assert_eq!(of("0_none"), Some(0));
        assert_eq!(of("99999999999999999999_x"), None);
        assert!(is_picture(Path::new("a.JPG")) && !is_picture(Path::new("png")));
    }
}
