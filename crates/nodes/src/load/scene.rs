//! Three-dimensional scenes: the browser draws them, the nodes pass its pictures on.

use std::path::Path;
use std::sync::Arc;

use fresco_files::dirs::DirType;
use fresco_files::naming::temp_prefix;
use fresco_files::png_write::{LEVEL_PREVIEW, encode_png};
use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output, Value, map};

use super::{image, resolve};
use crate::save::{Frames, begin, encoded, save_error};
use crate::types::Image;
use crate::video::{FilmFile, Video, reader};

/// Loads a scene: the views that the browser rendered of it, and where its file is.
#[derive(Node)]
#[node(id = "Load3D", v3, module = "comfy_extras.nodes_load_3d", display = "Load 3D & Animation", category = "3d",
       outputs(Output::new("IMAGE").named("image"), Output::new("MASK").named("mask"),
       Output::new("STRING").named("mesh_path"), Output::new("IMAGE").named("normal"),
       Output::new("LOAD3D_CAMERA").named("camera_info"), Output::new("VIDEO").named("recording_video")),
       experimental)]
pub(super) struct Load3D {
    /// The scene in the input directory.
    #[input(listed = "input/3d", file_upload = true)]
    model_file: String,
    /// The views of the scene that the browser rendered.
    #[input(ty = "LOAD_3D")]
    image: Value,
    /// Width of the views in pixels.
    #[expect(dead_code, reason = "for the view in the browser")]
    #[input(default = 1024, min = 1, max = 4096, step = 1)]
    width: i64,
    /// Height of the views in pixels.
    #[expect(dead_code, reason = "for the view in the browser")]
    #[input(default = 1024, min = 1, max = 4096, step = 1)]
    height: i64,
}

impl Node for Load3D {
    fn run(self, cx: &Cx) -> NodeResult {
        let view = |key: &str| {
            let name = self.image.get(key).and_then(Value::as_str);
            let name = name.ok_or_else(|| NodeError::failed("KeyError", format!("'{key}'")))?;
            image::load(cx, &resolve(cx, name)?)
        };
        let recording = self.image.get("recording").and_then(Value::as_str);
        let recording = match recording.filter(|name| !name.is_empty()) {
            Some(name) => {
                let film = FilmFile::open(resolve(cx, name)?, reader(cx))?;
                Video::File(film).into()
            }
            None => Value::Null,
        };
        Ok(NodeOutput::slots(vec![
            view("image")?.0.into(),
            view("mask")?.1.into(),
            self.model_file.as_str().into(),
            view("normal")?.0.into(),
            self.image.get("camera_info").cloned().unwrap_or_default(),
            recording,
        ]))
    }
}

/// Shows a scene in the browser.
#[derive(Node)]
#[node(
    id = "Preview3D",
    v3,
    module = "comfy_extras.nodes_load_3d",
    display = "Preview 3D & Animation",
    category = "3d",
    output_node,
    experimental
)]
pub(super) struct Preview3D {
    /// The scene to show: where its file is.
    #[input(default = "")]
    model_file: Arc<str>,
    /// Where the camera stands; without it, where the browser puts it.
    #[input(optional, ty = "LOAD3D_CAMERA")]
    camera_info: Option<Value>,
    /// The picture behind the scene.
    #[input(optional)]
    bg_image: Option<Image>,
}

impl Node for Preview3D {
    fn run(self, cx: &Cx) -> NodeResult {
        let mut background = Value::Null;
        if let Some(picture) = &self.bg_image {
            let frames = Frames::new(&picture.0)?;
            let mut batch = begin(cx, DirType::Temp, &temp_prefix("bg"), 0, 0)?;
            let picture = frames.pictures()?[0];
            let bytes = encoded(&[picture], || encode_png(&picture, &[], LEVEL_PREVIEW))?;
            let saved = batch.save("png", &bytes).map_err(save_error)?;
            let path = Path::new("temp").join(&saved.filename);
            background = path.to_string_lossy().as_ref().into();
        }
        let result = vec![
            Value::from(self.model_file),
            self.camera_info.into(),
            background,
        ];
        Ok(NodeOutput::ui(map! {"result" => result}))
    }
}
