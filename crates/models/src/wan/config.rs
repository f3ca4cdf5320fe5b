//! The shape of a network, read from keys and shapes, and other people's names for its weights.

use super::face::FaceConfig;
use super::sound::SoundConfig;
use super::speech::SpeechConfig;
use crate::denoise::PassMemory;
use crate::error::Result;
use crate::store::{WeightStore, flat_length};
use crate::transformer::Shapes;

/// Cells along a side of a token.
pub(super) const PATCH: usize = 2;
pub(super) const CELLS: usize = PATCH * PATCH;
/// Channels of a head in all published sizes; weights do not say.
const HEAD: usize = 128;
/// Pixels along a side of a latent's cell, in what a camera's path is given for.
pub(super) const CAMERA_CELL: usize = 8;

/// Weights of convolutions whose squares do not overlap, which are matrices here.
const SQUARES: [&str; 9] = [
    "patch_embedding.weight",
    "vace_patch_embedding.weight",
    "pose_patch_embedding.weight",
    "ref_conv.weight",
    "control_adapter.conv.weight",
    "cond_encoder.weight",
    "frame_packer.proj.weight",
    "frame_packer.proj_2x.weight",
    "frame_packer.proj_4x.weight",
];

/// The same over time, which see only what was before.
const LINES: [&str; 2] = ["casual_audio_encoder.encoder.conv", "face_encoder.conv"];

/// Where what is left of a face's picture becomes one row.
const LAST_SQUARE: &str = "motion_encoder.enc.net_app.convs.";

/// The matrix that a weight of such a convolution is here.
pub fn flattened(key: &str, shape: &[usize]) -> Option<Vec<usize>> {
    if shape.len() < 3 {
        return None;
    }
    let line = LINES.iter().any(|start| key.starts_with(start)) && key.ends_with(".conv.weight");
    // Of those only the last one's kernel has an even side.
    let last = key.starts_with(LAST_SQUARE) && shape.last().is_some_and(|side| side % 2 == 0);
    let flat = SQUARES.contains(&key) || line || last;
    flat.then(|| vec![shape[0], flat_length(&shape[1..])])
}

/// What a vision network saw of a picture, as tokens beside those of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionConfig {
    /// Width of a vision network's states.
    pub width: usize,
    /// Tokens that have a place of their own, where they do.
    pub places: Option<usize>,
}

/// Blocks that follow a control video and add to some of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VaceConfig {
    pub channels: usize,
    pub blocks: usize,
}

/// What turns a camera's path into something added to tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameraConfig {
    /// Channels of the path, for each pixel.
    pub channels: usize,
    pub blocks: usize,
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct WanConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    pub blocks: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Width of what the noise level is told with.
    pub waves: usize,
    pub vision: Option<VisionConfig>,
    /// Channels of a reference picture whose tokens come first.
    pub reference: Option<usize>,
    pub vace: Option<VaceConfig>,
    pub camera: Option<CameraConfig>,
    pub sound: Option<SoundConfig>,
    pub speech: Option<SpeechConfig>,
    pub face: Option<FaceConfig>,
}

impl WanConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (ffn, dim) = shapes.matrix("blocks.0.ffn.0.weight")?;
        let (out, _) = shapes.matrix("head.head.weight")?;
        let channels = |key: &str, cells: usize| -> Result<usize> {
            let (_, values) = shapes.matrix(key)?;
            if values.is_multiple_of(cells) && values > 0 {
                return Ok(values / cells);
            }
            Err(shapes.unsupported(format!("{values} values in {key} are no squares of cells")))
        };
        let heads = (dim / HEAD).max(1);
        if !dim.is_multiple_of(heads)
            || !(dim / heads).is_multiple_of(2)
            || !out.is_multiple_of(CELLS)
        {
            let reason = format!("a width of {dim} does not make heads of {HEAD} channels");
            return Err(shapes.unsupported(reason));
        }
        let vision = shapes.has("img_emb.proj.0.bias").then(|| -> Result<_> {
            let places = store.shape("img_emb.emb_pos");
            Ok(VisionConfig {
                width: shapes.vector("img_emb.proj.0.bias")?,
                places: places.and_then(|shape| shape.get(1)).copied(),
            })
        });
        let vace = shapes
            .has("vace_patch_embedding.weight")
            .then(|| -> Result<_> {
                Ok(VaceConfig {
                    channels: channels("vace_patch_embedding.weight", CELLS)?,
                    blocks: shapes.count("vace_blocks"),
                })
            });
        let camera = shapes
            .has("control_adapter.conv.weight")
            .then(|| -> Result<_> {
                let cell = CAMERA_CELL * CAMERA_CELL;
                Ok(CameraConfig {
                    channels: channels("control_adapter.conv.weight", CELLS * cell)?,
                    blocks: shapes.count("control_adapter.residual_blocks"),
                })
            });
        let reference = shapes.has("ref_conv.weight");
        let reference = reference.then(|| channels("ref_conv.weight", CELLS));
        let blocks = shapes.count("blocks");
        let sound = shapes
            .has("casual_audio_encoder.encoder.final_linear.weight")
            .then(|| SoundConfig::detect(shapes, blocks));
        let speech = shapes
            .has("audio_proj.audio_proj_glob_1.layer.bias")
            .then(|| SpeechConfig::detect(shapes));
        let face = shapes
            .has("face_adapter.fuser_blocks.0.k_norm.weight")
            .then(|| FaceConfig::detect(shapes));
        Ok(Self {
            in_channels: channels("patch_embedding.weight", CELLS)?,
            out_channels: out / CELLS,
            dim,
            heads,
            ffn,
            blocks,
            context: shapes.matrix("text_embedding.0.weight")?.1,
            waves: shapes.matrix("time_embedding.0.weight")?.1,
            vision: vision.transpose()?,
            reference: reference.transpose()?,
            vace: vace.transpose()?,
            camera: camera.transpose()?,
            sound: sound.transpose()?,
            speech: speech.transpose()?,
            face: face.transpose()?,
        })
    }

    /// Channels of a head for frame, row and column.
    pub fn axes(&self) -> [usize; 3] {
        let head = self.dim / self.heads;
        let side = head / 6 * 2;
        [head - 2 * side, side, side]
    }

    /// Whether each frame is told a noise level of its own, that of what is known being none.
    pub fn levels_by_frame(&self) -> bool {
        self.out_channels == 48
    }

    /// Whether what goes in beside the noise always has a mask of what is given.
    pub fn begins_with_pictures(&self) -> bool {
        let plain = self.vace.is_none()
            && self.camera.is_none()
            && self.speech.is_none()
            && self.face.is_none();
        self.levels_by_frame() || (plain && self.vision.is_some() && self.in_channels == 36)
    }

    /// What a pass takes.
    pub(crate) fn pass(&self) -> PassMemory {
        /// Values of a token that a pass holds at its fullest, in widths of the network. What follows a control video stays
        /// beside it.
        const HELD: usize = 14;
        const FOLLOWED: usize = 17;
        let held = if self.vace.is_some() { FOLLOWED } else { HELD };
        PassMemory::of_cells(CELLS, self.dim, held)
    }
}
