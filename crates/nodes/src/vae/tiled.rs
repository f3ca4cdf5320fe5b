//! Encoding and decoding in tiles, for pictures too large for memory.

use fresco_graph::{Cx, Node, NodeError, NodeOutput, NodeResult};
use fresco_models::vae::{Tiles, TimeTiles};

use super::Vae;
use crate::frames::FrameSet;
use crate::latent::size;
use crate::types::{Image, Latent};

/// Tiles of latents as the node gives them, in pixels and frames.
fn tiles(node: &VaeDecodeTiled) -> Result<Tiles, NodeError> {
    let tiles = Tiles::for_decoding(
        (
            size("tile_size", node.tile_size)?,
            size("overlap", node.overlap)?,
        ),
        (
            size("temporal_size", node.temporal_size)?,
            size("temporal_overlap", node.temporal_overlap)?,
        ),
        node.vae.ratio()?,
        node.vae.0.temporal_ratio(),
    );
    if tiles.x == 0 {
        return Err(NodeError::value_error(format!(
            "tile_size {} is smaller than one latent cell",
            node.tile_size
        )));
    }
    Ok(tiles)
}

/// Turns a latent into a picture piece by piece, with less memory.
#[derive(Node)]
#[node(
    id = "VAEDecodeTiled",
    v1,
    module = "nodes",
    display = "VAE Decode (Tiled)",
    category = "_for_testing",
    outputs("IMAGE")
)]
pub(super) struct VaeDecodeTiled {
    samples: Latent,
    vae: Vae,
    #[input(default = 512, min = 64, max = 4096, step = 32)]
    tile_size: i64,
    #[input(default = 64, min = 0, max = 4096, step = 32)]
    overlap: i64,
    /// Frames at a time; only for video models.
    #[input(default = 64, min = 8, max = 4096, step = 4)]
    temporal_size: i64,
    /// Frames that two pieces share; only for video models.
    #[input(default = 8, min = 4, max = 4096, step = 4)]
    temporal_overlap: i64,
}

impl Node for VaeDecodeTiled {
    fn run(self, cx: &Cx) -> NodeResult {
        let tiles = tiles(&self)?;
        let latent = self.samples.pictures()?;
        if let Some(film) = self.vae.0.clone().film_tiled(latent, tiles, cx) {
            return Ok(NodeOutput::one(FrameSet::Stream(film)));
        }
        let images = self.vae.0.decode_tiled(latent, tiles, cx)?;
        Ok(NodeOutput::one(Image(images)))
    }
}

/// Turns a picture into a latent piece by piece, with less memory.
#[derive(Node)]
#[node(
    id = "VAEEncodeTiled",
    v1,
    module = "nodes",
    display = "VAE Encode (Tiled)",
    category = "_for_testing",
    outputs("LATENT")
)]
pub(super) struct VaeEncodeTiled {
    pixels: Image,
    vae: Vae,
    #[input(default = 512, min = 64, max = 4096, step = 64)]
    tile_size: i64,
    #[input(default = 64, min = 0, max = 4096, step = 32)]
    overlap: i64,
    /// Frames at a time; only for video models.
    #[input(default = 64, min = 8, max = 4096, step = 4)]
    temporal_size: i64,
    /// Frames that two pieces share; only for video models.
    #[input(default = 8, min = 4, max = 4096, step = 4)]
    temporal_overlap: i64,
}

impl Node for VaeEncodeTiled {
    fn run(self, cx: &Cx) -> NodeResult {
        let time = self.vae.0.temporal_ratio().map(|_| {
            Ok::<_, NodeError>(TimeTiles {
                frames: size("temporal_size", self.temporal_size)?,
                overlap: size("temporal_overlap", self.temporal_overlap)?,
            })
        });
        let tiles = Tiles {
            x: size("tile_size", self.tile_size)?,
            y: size("tile_size", self.tile_size)?,
            overlap: size("overlap", self.overlap)?,
            time: time.transpose()?,
        };
        let latent = self.vae.0.encode_tiled(&self.pixels.0, tiles, cx)?;
        Ok(NodeOutput::one(Latent::new(latent)))
    }
}
