//! Small families without a model: camera paths, tracks, conditioning from vision features.

use fresco_graph::{NodeEntry, entry};

mod camera;
mod camera_angle;
mod preprocess;
mod shape;
mod track_drawing;
pub mod tracks;

pub static NODES: &[NodeEntry] = &[
    entry::<camera::WanCameraEmbedding>(),
    entry::<camera_angle::CameraAngle>(),
    entry::<tracks::WanMoveTracksFromCoords>(),
    entry::<tracks::GenerateTracks>(),
    entry::<tracks::WanMoveConcatTrack>(),
    entry::<track_drawing::WanMoveVisualizeTracks>(),
    entry::<shape::Hunyuan3Dv2Conditioning>(),
    entry::<shape::Hunyuan3Dv2ConditioningMultiView>(),
    entry::<preprocess::LtxvPreprocess>(),
];
