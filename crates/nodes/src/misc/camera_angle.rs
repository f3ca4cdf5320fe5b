//! Where a camera stands, in numbers and in words.

use fresco_graph::{Cx, Node, NodeOutput, NodeResult, Output, map};

use crate::types::Image;

/// How far the camera is from what it looks at.
const DISTANCE: f64 = 6.0;
const FIELD_OF_VIEW: i64 = 35;

const SIDES: [&str; 8] = [
    "front view",
    "front-right quarter view",
    "right side view",
    "back-right quarter view",
    "back view",
    "back-left quarter view",
    "left side view",
    "front-left quarter view",
];

/// A camera around a subject, for scenes, and the same in words, for prompts.
#[derive(Node)]
#[node(
    id = "CameraAngle",
    v3,
    module = "comfy_extras.nodes_camera_angle",
    display = "Compose Camera Angle Prompt",
    category = "3d",
    outputs(
        Output::new("LOAD3D_CAMERA").named("camera_info"),
        Output::new("STRING").named("prompt")
    )
)]
pub(super) struct CameraAngle {
    /// Degrees around the subject: 0 is its front, 90 its right, 180 its back.
    #[input(default = 0, min = 0, max = 360)]
    horizontal_angle: i64,
    /// Degrees above the subject; below it if negative.
    #[input(default = 0, min = -30, max = 60)]
    vertical_angle: i64,
    /// From a wide shot to a close-up.
    #[input(default = 5.0, min = 0.0, max = 10.0, step = 0.1)]
    zoom: f64,
    #[expect(dead_code, reason = "the browser shows it on the subject")]
    #[input(optional)]
    image: Option<Image>,
}

impl Node for CameraAngle {
    fn run(self, _: &Cx) -> NodeResult {
        let across = self.horizontal_angle.clamp(0, 360) as f64;
        let up = self.vertical_angle.clamp(-30, 60) as f64;
        let zoom = self.zoom.clamp(0.0, 10.0);
        let (a, b) = (across.to_radians(), up.to_radians());
        let camera = map! {
            "position" => map! {
                "x" => DISTANCE * a.sin() * b.cos(),
                "y" => DISTANCE * b.sin(),
                "z" => DISTANCE * a.cos() * b.cos(),
            },
            "target" => map! {"x" => 0.0, "y" => 0.0, "z" => 0.0},
            "zoom" => 1.0 + zoom / 10.0 * 0.875,
            "cameraType" => "perspective",
            "fov" => FIELD_OF_VIEW,
        };
        Ok(NodeOutput::slots(vec![
            camera.into(),
            words(across, up, zoom).into(),
        ]))
    }
}

fn words(across: f64, up: f64, zoom: f64) -> String {
    let side = SIDES[((across + 22.5) / 45.0).floor() as usize % SIDES.len()];
    let height = match up {
        up if up < -15.0 => "low-angle shot",
        up if up < 15.0 => "eye-level shot",
        up if up < 45.0 => "elevated shot",
        _ => "high-angle shot",
    };
    let distance = match zoom {
        zoom if zoom < 2.0 => "wide shot",
        zoom if zoom < 6.0 => "medium shot",
        _ => "close-up",
    };
    format!("{side} {height} {distance}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_have_words() {
        for (across, up, zoom, wanted) in [
            (0.0, 0.0, 5.0, "front view eye-level shot medium shot"),
            (360.0, -16.0, 0.0, "front view low-angle shot wide shot"),
            (90.0, 15.0, 6.0, "right side view elevated shot close-up"),
            (22.0, 45.0, 1.9, "front view high-angle shot wide shot"),
            (
                23.0,
                14.0,
                2.0,
                "front-right quarter view eye-level shot medium shot",
            ),
            (
                337.0,
                0.0,
                10.0,
                "front-left quarter view eye-level shot close-up",
            ),
        ] {
            assert_eq!(words(across, up, zoom), wanted);
        }
    }
}
