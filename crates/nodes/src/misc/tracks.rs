//! Tracks: where points are in each frame, and whether they can be seen.
//!
//! TRACKS is a dictionary of `track_path` `(frames, points, 2)` in pixels and `track_visibility` `(frames, points)`.

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Map, Node, NodeError, NodeOutput, NodeResult, Output, Value, json, map,
    wrong_kind,
};
use fresco_tensor::{Buffer, Tensor};

use crate::types::{Mask, as_tensor, tensor};

/// Frames and points beyond this are a typing error.
const MAX_POINTS: usize = 1 << 20;

/// A dictionary with `track_path` and `track_visibility`.
#[derive(Clone, Debug)]
pub struct Tracks(pub Arc<Map>);

impl Tracks {
    pub fn new(path: Tensor, visibility: Tensor) -> Self {
        Self(Arc::new(
            map! {"track_path" => tensor(path), "track_visibility" => tensor(visibility)},
        ))
    }

    fn part(&self, key: &str) -> Result<&Tensor, NodeError> {
        self.0
            .get(key)
            .and_then(as_tensor)
            .ok_or_else(|| NodeError::failed("KeyError", format!("'{key}'")))
    }

    /// `(frames, points, 2)`.
    pub fn path(&self) -> Result<&Tensor, NodeError> {
        self.part("track_path")
    }

    /// `(frames, points)`, or `(frames, 1)` for all points alike.
    pub fn visibility(&self) -> Result<&Tensor, NodeError> {
        self.part("track_visibility")
    }
}

impl FromValue for Tracks {
    const IO: &'static str = "TRACKS";
    fn from_value(value: Value) -> Result<Self, String> {
        match value {
            Value::Map(m) => Ok(Self(m)),
            other => Err(wrong_kind("TRACKS", &other)),
        }
    }
}

impl From<Tracks> for Value {
    fn from(tracks: Tracks) -> Self {
        Self::Map(tracks.0)
    }
}

/// All visible, or for each frame whether its mask marks anything.
fn visibility(mask: Option<&Mask>, frames: usize, points: usize) -> Result<Tensor, NodeError> {
    let Some(mask) = mask else {
        return Ok(Tensor::ones([frames, points])?);
    };
    let [count, h, w] = mask.0.dims3()?;
    let area = (h * w).max(1);
    let marks = mask.0.data().chunks(area);
    let seen = marks.map(|m| f32::from(u8::from(m.iter().any(|v| *v > 0.0))));
    Ok(Tensor::from_buffer([count, 1], Buffer::collect(seen)?)?)
}

/// Reads tracks from the text that the track editor makes.
#[derive(Node)]
#[node(id = "WanMoveTracksFromCoords", v3, module = "comfy_extras.nodes_wanmove",
       category = "conditioning/video_models", outputs("TRACKS", Output::new("INT").named("track_length")))]
pub(super) struct WanMoveTracksFromCoords {
    /// A list of tracks, each a list of points with x and y.
    #[input(optional, or = "[]", default = "[]", forceInput = true)]
    track_coords: String,
    /// Frames whose mask is empty hide the tracks.
    #[input(optional)]
    track_mask: Option<Mask>,
}

impl Node for WanMoveTracksFromCoords {
    fn run(self, _: &Cx) -> NodeResult {
        let tracks = parse(&self.track_coords);
        let Some(frames) = tracks.first().map(Vec::len) else {
            return Err(NodeError::failed("IndexError", "list index out of range"));
        };
        let mut path = Buffer::with_room(frames * tracks.len() * 2)?;
        for frame in 0..frames {
            for track in &tracks {
                let point = track.get(frame).ok_or_else(|| {
                    NodeError::failed(
                        "IndexError",
                        "list index out of range: a track is shorter than the first",
                    )
                })?;
                for axis in ["x", "y"] {
                    let value = point.get(axis).and_then(Value::as_f64);
                    path.push(
                        value.ok_or_else(|| NodeError::failed("KeyError", format!("'{axis}'")))?
                            as f32,
                    );
                }
            }
        }
        let points = tracks.len();
        let path = Tensor::from_buffer([frames, points, 2], path)?;
        let seen = visibility(self.track_mask.as_ref(), frames, points)?;
        Ok(NodeOutput::slots(vec![
            Tracks::new(path, seen).into(),
            frames.into(),
        ]))
    }
}

/// Lists of points; text that is no such thing gives none, as in the reference.
pub(crate) fn parse(text: &str) -> Vec<Vec<Value>> {
    // The editor may write Python's quotes.
    let Ok(parsed) = json::parse(&text.replace('\'', "\"")) else {
        return Vec::new();
    };
    let list = parsed.as_list().unwrap_or_default();
    if list.first().is_some_and(|p| p.get("x").is_some()) {
        return vec![list.to_vec()];
    }
    list.iter()
        .map(|track| track.as_list().unwrap_or_default().to_vec())
        .collect()
}

/// Draws parallel tracks from one place to another.
#[derive(Node)]
#[node(id = "GenerateTracks", v3, module = "comfy_extras.nodes_wanmove", category = "conditioning/video_models",
       outputs("TRACKS", Output::new("INT").named("track_length")))]
pub(super) struct GenerateTracks {
    #[input(default = 832, min = 16, max = 4096, step = 16)]
    width: i64,
    #[input(default = 480, min = 16, max = 4096, step = 16)]
    height: i64,
    /// Where the tracks start, as a share of the width.
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.01)]
    start_x: f64,
    /// Where the tracks start, as a share of the height.
    #[input(default = 0.0, min = 0.0, max = 1.0, step = 0.01)]
    start_y: f64,
    /// Where the tracks end, as a share of the width.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    end_x: f64,
    /// Where the tracks end, as a share of the height.
    #[input(default = 1.0, min = 0.0, max = 1.0, step = 0.01)]
    end_y: f64,
    /// Number of frames.
    #[input(default = 81, min = 1, max = 1024)]
    num_frames: usize,
    /// Number of tracks beside each other.
    #[input(default = 5, min = 1, max = 100)]
    num_tracks: usize,
    /// Distance between tracks, as a share of the picture.
    #[input(default = 0.025, min = 0.0, max = 1.0, step = 0.001)]
    track_spread: f64,
    /// Bend the path towards the middle point.
    #[input(default = false)]
    bezier: bool,
    /// The point that a bent path leans to, as a share of the width.
    #[input(default = 0.5, min = 0.0, max = 1.0, step = 0.01)]
    mid_x: f64,
    /// The point that a bent path leans to, as a share of the height.
    #[input(default = 0.5, min = 0.0, max = 1.0, step = 0.01)]
    mid_y: f64,
    /// How the speed changes along the path.
    #[input(choices = ["linear", "ease_in", "ease_out", "ease_in_out", "constant"])]
    interpolation: String,
    /// Frames whose mask is empty hide the tracks.
    #[input(optional)]
    track_mask: Option<Mask>,
}

impl Node for GenerateTracks {
    fn run(self, _: &Cx) -> NodeResult {
        let (frames, points) = (self.num_frames, self.num_tracks);
        if frames.max(points) > MAX_POINTS || frames.saturating_mul(points) > MAX_POINTS {
            return Err(NodeError::value_error("too many tracks and frames"));
        }
        let (w, h) = (self.width as f64, self.height as f64);
        let start = [self.start_x * w, self.start_y * h];
        let middle = [self.mid_x * w, self.mid_y * h];
        let end = [self.end_x * w, self.end_y * h];
        let spread = self.track_spread * (w + h) / 2.0;
        let mut path = Buffer::with_room(frames * points * 2)?;
        for i in 0..frames {
            let t = self.ease(linspace(i, frames));
            let (mut at, mut along) = ([0.0f32; 2], [0.0f32; 2]);
            for axis in 0..2 {
                let (s, m, e) = (start[axis], middle[axis], end[axis]);
                if self.bezier {
                    let u = 1.0 - t;
                    at[axis] = u * u * s as f32 + 2.0 * u * t * m as f32 + t * t * e as f32;
                    along[axis] = 2.0 * u * (m - s) as f32 + 2.0 * t * (e - m) as f32;
                } else {
                    at[axis] = s as f32 + (e - s) as f32 * t;
                    along[axis] = (e - s) as f32;
                }
            }
            let along = along.map(f64::from);
            let length = (along[0] * along[0] + along[1] * along[1]).sqrt();
            let across = if length > 0.0 {
                [-along[1] / length, along[0] / length]
            } else {
                [1.0, 0.0]
            };
            for track in 0..points {
                let offset = (track as f64 - (points as f64 - 1.0) / 2.0) * spread;
                for axis in 0..2 {
                    path.push((f64::from(at[axis]) + across[axis] * offset) as f32);
                }
            }
        }
        let path = Tensor::from_buffer([frames, points, 2], path)?;
        let seen = visibility(self.track_mask.as_ref(), frames, points)?;
        Ok(NodeOutput::slots(vec![
            Tracks::new(path, seen).into(),
            frames.into(),
        ]))
    }
}

impl GenerateTracks {
    fn ease(&self, t: f32) -> f32 {
        match self.interpolation.as_str() {
            "ease_in" => t * t,
            "ease_out" => 1.0 - (1.0 - t) * (1.0 - t),
            "ease_in_out" => t * t * (3.0 - 2.0 * t),
            "constant" => 0.0,
            _ => t,
        }
    }
}

/// Element `i` of `count` even steps from 0 to 1, computed from the nearer end as torch does.
fn linspace(i: usize, count: usize) -> f32 {
    if count < 2 {
        return 0.0;
    }
    let step = 1.0 / (count - 1) as f32;
    if i < count / 2 {
        step * i as f32
    } else {
        1.0 - step * (count - 1 - i) as f32
    }
}

/// Puts two sets of tracks together.
#[derive(Node)]
#[node(
    id = "WanMoveConcatTrack",
    v3,
    module = "comfy_extras.nodes_wanmove",
    category = "conditioning/video_models",
    outputs("TRACKS")
)]
pub(super) struct WanMoveConcatTrack {
    /// The first tracks.
    tracks_1: Tracks,
    /// The tracks that are added.
    #[input(optional)]
    tracks_2: Option<Tracks>,
}

impl Node for WanMoveConcatTrack {
    fn run(self, _: &Cx) -> NodeResult {
        let Some(second) = &self.tracks_2 else {
            return Ok(NodeOutput::one(self.tracks_1));
        };
        let first = &self.tracks_1;
        let path = Tensor::cat(&[first.path()?, second.path()?], 1)?;
        let last = first.visibility()?.rank().saturating_sub(1);
        let seen = Tensor::cat(&[first.visibility()?, second.visibility()?], last)?;
        Ok(NodeOutput::one(Tracks::new(path, seen)))
    }
}
