//! Picture to latent and back: the boundary to the model room, and the nodes that only cross it.

mod film;
mod loaded;
mod sound;
mod tiled;

use std::sync::Arc;

use fresco_graph::{
    Cx, FromValue, Node, NodeEntry, NodeError, NodeOutput, NodeResult, Opaque, Value, entry,
    wrong_kind,
};
use fresco_memory::Handle;
use fresco_models::store::WeightStore;
use fresco_models::vae::Tiles;
use fresco_tensor::{Crop, ResizeMethod, Tensor, common_upscale};

pub use loaded::{LoadedVae, PixelSpace};
pub use sound::{LoadedSound, SoundModel};

use crate::frames::{FrameSet, FrameStream};
use crate::types::{Image, Latent};

pub static NODES: &[NodeEntry] = &[
    entry::<VaeEncode>(),
    entry::<VaeDecode>(),
    entry::<tiled::VaeDecodeTiled>(),
    entry::<tiled::VaeEncodeTiled>(),
];

/// What nodes need of a VAE. Sizes that do not divide are cut around the middle by the model itself.
pub trait VaeModel: Send + Sync {
    /// `(n, h, w, c)` in 0..1 to a latent: `(n, c, h, w)`, or for video models `(1, c, t, h, w)` of the n frames.
    fn encode(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError>;

    /// A latent to `(n, h, w, 3)`; frames of video models are in the first dimension.
    fn decode(&self, latent: &Tensor, cx: &Cx) -> Result<Tensor, NodeError>;

    /// As [`Self::encode`], in tiles of so many pixels. Models that need no tiles work on the whole.
    fn encode_tiled(&self, pixels: &Tensor, _: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        self.encode(pixels, cx)
    }

    /// As [`Self::decode`], in tiles of so many latent cells.
    fn decode_tiled(&self, latent: &Tensor, _: Tiles, cx: &Cx) -> Result<Tensor, NodeError> {
        self.decode(latent, cx)
    }

    /// The pictures of a video latent as frames that are made when they are read; none where all are made at once, or are
    /// so few that they may as well be.
    fn film(self: Arc<Self>, _latent: &Tensor, _cx: &Cx) -> Option<Arc<dyn FrameStream>> {
        None
    }

    /// As [`Self::film`], in tiles.
    fn film_tiled(
        self: Arc<Self>,
        _latent: &Tensor,
        _tiles: Tiles,
        _cx: &Cx,
    ) -> Option<Arc<dyn FrameStream>> {
        None
    }

    /// Samples a second of the sound that it takes and makes.
    fn sound_rate(&self, _cx: &Cx) -> Result<u32, NodeError> {
        Err(no_sound())
    }

    /// Sound `(n, channels, samples)` of that rate to a latent.
    fn encode_sound(&self, _sound: &Tensor, _cx: &Cx) -> Result<Tensor, NodeError> {
        Err(no_sound())
    }

    /// A latent to sound `(n, channels, samples)`; in pieces of so many frames that share so many, if that is wanted.
    fn decode_sound(
        &self,
        _latent: &Tensor,
        _tiles: Option<(usize, usize)>,
        _cx: &Cx,
    ) -> Result<Tensor, NodeError> {
        Err(no_sound())
    }

    /// A latent to voxels `(n, z, y, x)` in 0..1 with so many cells along a side, so many points at a time.
    fn decode_voxels(
        &self,
        _latent: &Tensor,
        _cells: usize,
        _chunk: usize,
        _cx: &Cx,
    ) -> Result<Tensor, NodeError> {
        Err(NodeError::value_error(
            "this VAE makes no solids: load that of a model for solids",
        ))
    }

    /// Pixels along a side for one latent cell.
    fn spatial_ratio(&self) -> usize;

    /// Frames for one latent frame; none for picture models.
    fn temporal_ratio(&self) -> Option<usize>;

    fn latent_channels(&self) -> usize;

    /// Channels of a picture that it looks at: three, or four with how opaque it is.
    fn picture_channels(&self) -> usize {
        3
    }

    /// What it does with sound, if it is of sound.
    fn sound(&self) -> Option<&dyn SoundModel> {
        None
    }

    /// Its weights' handle, where the memory room has them.
    fn handle(&self) -> Option<&Handle> {
        None
    }

    /// The weights, where they are kept by key.
    fn store(&self) -> Option<&Arc<WeightStore>> {
        None
    }
}

fn no_sound() -> NodeError {
    NodeError::value_error("this VAE makes no sound: load that of a model for sound")
}

/// VAE on a link.
#[derive(Clone)]
pub struct Vae(pub Arc<dyn VaeModel>);

impl Vae {
    /// Encodes all that the model looks at, which for some is opacity, too.
    pub(crate) fn encode_seen(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let [_, _, _, channels] = pixels.dims4()?;
        let seen = channels.min(self.0.picture_channels());
        self.0.encode(&pixels.narrow(3, 0, seen)?, cx)
    }

    /// Encodes the first three channels.
    pub(crate) fn encode_rgb(&self, pixels: &Tensor, cx: &Cx) -> Result<Tensor, NodeError> {
        let [_, _, _, channels] = pixels.dims4()?;
        self.0.encode(&pixels.narrow(3, 0, channels.min(3))?, cx)
    }

    /// Pixels along a side for one latent cell; never zero, so that it can divide.
    pub(crate) fn ratio(&self) -> Result<usize, NodeError> {
        match self.0.spatial_ratio() {
            0 => Err(NodeError::runtime("the VAE reports a ratio of zero")),
            ratio => Ok(ratio),
        }
    }
}

impl Opaque for Vae {
    fn describe(&self) -> String {
        format!("a VAE of {} channels", self.0.latent_channels())
    }
}

impl FromValue for Vae {
    const IO: &'static str = "VAE";
    fn from_value(value: Value) -> Result<Self, String> {
        value
            .downcast::<Self>()
            .cloned()
            .ok_or_else(|| wrong_kind("VAE", &value))
    }
}

impl From<Vae> for Value {
    fn from(v: Vae) -> Self {
        Self::object(v)
    }
}

/// Pictures `(n, h, w, c)` at another size, cut around the middle where the shape differs.
pub(crate) fn fit_by(
    images: &Tensor,
    width: usize,
    height: usize,
    method: ResizeMethod,
    crop: Crop,
) -> Result<Tensor, NodeError> {
    let planes = images.nhwc_to_nchw()?;
    Ok(common_upscale(&planes, width, height, method, crop)?.nchw_to_nhwc()?)
}

/// As [`fit_by`], bilinear.
pub(crate) fn fit(images: &Tensor, width: usize, height: usize) -> Result<Tensor, NodeError> {
    fit_by(images, width, height, ResizeMethod::Bilinear, Crop::Center)
}

/// The first `count` items of the batch, or all if there are fewer.
pub(crate) fn first(t: &Tensor, count: usize) -> Result<Tensor, NodeError> {
    Ok(t.narrow(0, 0, count.min(t.dim(0)?))?)
}

/// The last `count` items of the batch, or all if there are fewer.
pub(crate) fn last(t: &Tensor, count: usize) -> Result<Tensor, NodeError> {
    let have = t.dim(0)?;
    let count = count.min(have);
    Ok(t.narrow(0, have - count, count)?)
}

/// Turns a picture into a latent.
#[derive(Node)]
#[node(
    id = "VAEEncode",
    v1,
    module = "nodes",
    display = "VAE Encode",
    category = "latent",
    outputs("LATENT")
)]
pub struct VaeEncode {
    pixels: Image,
    vae: Vae,
}

impl Node for VaeEncode {
    fn run(self, cx: &Cx) -> NodeResult {
        let latent = self.vae.encode_seen(&self.pixels.0, cx)?;
        Ok(NodeOutput::one(Latent::new(latent)))
    }
}

/// Turns a latent into a picture.
#[derive(Node)]
#[node(
    id = "VAEDecode",
    v1,
    module = "nodes",
    display = "VAE Decode",
    category = "latent",
    outputs("IMAGE")
)]
pub struct VaeDecode {
    samples: Latent,
    vae: Vae,
}

impl Node for VaeDecode {
    fn run(self, cx: &Cx) -> NodeResult {
        let latent = self.samples.pictures()?;
        if let Some(film) = self.vae.0.clone().film(latent, cx) {
            return Ok(NodeOutput::one(FrameSet::Stream(film)));
        }
        let images = self.vae.0.decode(latent, cx)?;
        // Several videos come as (batch, frames, h, w, c); to nodes they are one batch of pictures.
        let images = match *images.shape() {
            [b, t, h, w, c] => images.reshape([b * t, h, w, c])?,
            _ => images,
        };
        Ok(NodeOutput::one(Image(images)))
    }
}
