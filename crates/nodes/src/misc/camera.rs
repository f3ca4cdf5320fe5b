//! Camera paths as Plücker rays: for each pixel of each frame the ray's direction and its moment about the origin.

use std::f64::consts::PI;

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult, Output};
use fresco_tensor::Tensor;

use crate::image::check_room;
use crate::types::tensor;

/// Length of a whole move, and angle of a whole turn.
const BASE_MOVE: f64 = 1.5;
const BASE_ANGLE: f64 = PI / 3.0;
/// Width to height of the pictures the focal lengths were given for.
const POSE_RATIO: f64 = 1280.0 / 720.0;

/// Turn about the line of sight, and move, of a named motion.
fn motion(name: &str) -> Option<(f64, [f64; 3])> {
    Some(match name {
        "Static" => (0.0, [0.0, 0.0, 0.0]),
        "Pan Up" => (0.0, [0.0, -1.0, 0.0]),
        "Pan Down" => (0.0, [0.0, 1.0, 0.0]),
        "Pan Left" => (0.0, [-1.0, 0.0, 0.0]),
        "Pan Right" => (0.0, [1.0, 0.0, 0.0]),
        "Zoom In" => (0.0, [0.0, 0.0, 2.0]),
        "Zoom Out" => (0.0, [0.0, 0.0, -2.0]),
        "Anti Clockwise (ACW)" => (-1.0, [0.0; 3]),
        "ClockWise (CW)" => (1.0, [0.0; 3]),
        _ => return None,
    })
}

/// Makes the camera path that Wan's camera models follow.
#[derive(Node)]
#[node(id = "WanCameraEmbedding", v3, module = "comfy_extras.nodes_camera_trajectory", category = "camera",
       outputs(Output::new("WAN_CAMERA_EMBEDDING").named("camera_embedding"), Output::new("INT").named("width"),
       Output::new("INT").named("height"), Output::new("INT").named("length")))]
pub(super) struct WanCameraEmbedding {
    /// What the camera does.
    #[input(choices = ["Static", "Pan Up", "Pan Down", "Pan Left", "Pan Right", "Zoom In", "Zoom Out",
                       "Anti Clockwise (ACW)", "ClockWise (CW)"], default = "Static")]
    camera_pose: String,
    #[input(default = 832, min = 16, max = 16384, step = 16)]
    width: usize,
    #[input(default = 480, min = 16, max = 16384, step = 16)]
    height: usize,
    #[input(default = 81, min = 1, max = 16384, step = 4)]
    length: usize,
    /// How fast the camera moves; 1 is the path as it was trained.
    #[input(optional, or = 1.0, default = 1.0, min = 0, max = 10.0, step = 0.1)]
    speed: f64,
    /// Focal length in picture widths.
    #[input(optional, or = 0.5, default = 0.5, min = 0, max = 1, step = 1e-09)]
    fx: f64,
    /// Focal length in picture heights.
    #[input(optional, or = 0.5, default = 0.5, min = 0, max = 1, step = 1e-09)]
    fy: f64,
    /// Where the optical axis meets the picture, as a share of its width.
    #[input(optional, or = 0.5, default = 0.5, min = 0, max = 1, step = 0.01)]
    cx: f64,
    /// Where the optical axis meets the picture, as a share of its height.
    #[input(optional, or = 0.5, default = 0.5, min = 0, max = 1, step = 0.01)]
    cy: f64,
}

impl Node for WanCameraEmbedding {
    fn run(self, cx: &Cx) -> NodeResult {
        let (turn, shift) = motion(&self.camera_pose)
            .ok_or_else(|| NodeError::failed("KeyError", format!("'{}'", self.camera_pose)))?;
        let (w, h) = (self.width, self.height);
        if w == 0 || h == 0 || self.length == 0 {
            return Err(NodeError::value_error(
                "a camera path needs a size and frames",
            ));
        }
        check_room(&[self.length.saturating_add(3), 6, h, w])?;
        let (mut fx, mut fy) = (self.fx, self.fy);
        let ratio = w as f64 / h as f64;
        if POSE_RATIO > ratio {
            fx = h as f64 * POSE_RATIO * fx / w as f64;
        } else {
            fy = w as f64 / POSE_RATIO * fy / h as f64;
        }
        let lens = [
            fx * w as f64,
            fy * h as f64,
            self.cx * w as f64,
            self.cy * h as f64,
        ];
        let lens = lens.map(|v| v as f32);
        let mut frames = Vec::with_capacity(self.length);
        for i in 0..self.length {
            cx.check_interrupt()?;
            let part = i as f64 / self.length as f64 * self.speed;
            let (sin, cos) = (part * BASE_ANGLE * turn).sin_cos();
            let at = shift.map(|s| (part * BASE_MOVE * s) as f32);
            frames.push(rays(w, h, lens, [sin as f32, cos as f32], at)?);
        }
        // The model takes frames in fours; the first counts four times.
        let first = frames[0].clone();
        let mut list: Vec<&Tensor> = vec![&first; 3];
        list.extend(&frames);
        let all = Tensor::stack(&list, 0)?;
        let groups = list.len() / 4;
        let path = all
            .reshape([groups, 4, 6, h, w])?
            .permute(&[2, 1, 0, 3, 4])?
            .reshape([1, 24, groups, h, w])?;
        Ok(NodeOutput::slots(vec![
            tensor(path),
            w.into(),
            h.into(),
            self.length.into(),
        ]))
    }
}

/// The rays of one frame: moment then direction, `(6, h, w)`. `turn` is sine and cosine about the line of sight.
fn rays(
    w: usize,
    h: usize,
    [fx, fy, cx, cy]: [f32; 4],
    [sin, cos]: [f32; 2],
    at: [f32; 3],
) -> Result<Tensor, NodeError> {
    let mut out = Tensor::zeros([6, h, w])?;
    let size = w * h;
    let values = out.data_mut();
    for j in 0..h {
        for i in 0..w {
            let x = (i as f32 + 0.5 - cx) / fx;
            let y = (j as f32 + 0.5 - cy) / fy;
            let norm = (x * x + y * y + 1.0).sqrt();
            let (x, y, z) = (x / norm, y / norm, 1.0 / norm);
            let d = [x * cos - y * sin, x * sin + y * cos, z];
            let moment = [
                at[1] * d[2] - at[2] * d[1],
                at[2] * d[0] - at[0] * d[2],
                at[0] * d[1] - at[1] * d[0],
            ];
            for c in 0..3 {
                values[c * size + j * w + i] = moment[c];
                values[(c + 3) * size + j * w + i] = d[c];
            }
        }
    }
    Ok(out)
}
