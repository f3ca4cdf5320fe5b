//! Nodes on lists of pictures, as for preparing a training set.

use fresco_graph::{NodeEntry, NodeError, entry};
use fresco_tensor::resize::pillow::{self, Filter};
use fresco_tensor::resize::to_u8;
use fresco_tensor::{Buffer, Tensor};

mod adjust;
mod lists;

pub static NODES: &[NodeEntry] = &[
    entry::<adjust::ResizeImagesByShorterEdge>(),
    entry::<adjust::ResizeImagesByLongerEdge>(),
    entry::<adjust::CenterCropImages>(),
    entry::<adjust::RandomCropImages>(),
    entry::<adjust::NormalizeImages>(),
    entry::<adjust::AdjustBrightness>(),
    entry::<adjust::AdjustContrast>(),
    entry::<lists::ShuffleDataset>(),
    entry::<lists::ShuffleImageTextDataset>(),
    entry::<lists::ImageDeduplication>(),
    entry::<lists::ImageGrid>(),
    entry::<lists::MergeImageLists>(),
    entry::<lists::ResolutionBucket>(),
];

/// An 8-bit picture; these nodes work on those, as the reference does.
struct Picture {
    pixels: Buffer<u8>,
    width: usize,
    height: usize,
    channels: usize,
}

impl Picture {
    /// The only picture of `(1, h, w, c)`; a batch cannot become one picture.
    fn only(image: &Tensor) -> Result<Self, NodeError> {
        let [count, height, width, channels] = image.dims4()?;
        if count != 1 {
            return Err(NodeError::type_error(format!(
                "Cannot handle this data type: (1, 1, {width}, {channels}), |u1"
            )));
        }
        if !matches!(channels, 3 | 4) {
            return Err(NodeError::type_error(format!(
                "Cannot handle this data type: (1, 1, {channels}), |u1"
            )));
        }
        Ok(Self {
            pixels: Buffer::collect(image.data().iter().map(|v| to_u8(*v)))?,
            width,
            height,
            channels,
        })
    }

    fn resize(&self, width: usize, height: usize) -> Result<Self, NodeError> {
        let source = pillow::Picture {
            pixels: &self.pixels,
            width: self.width,
            height: self.height,
            channels: self.channels,
        };
        Ok(Self {
            pixels: pillow::resize(source, width, height, Filter::Lanczos)?,
            width,
            height,
            channels: self.channels,
        })
    }

    /// A part that lies within the picture.
    fn crop(
        &self,
        left: usize,
        top: usize,
        width: usize,
        height: usize,
    ) -> Result<Self, NodeError> {
        let row = self.width * self.channels;
        let mut pixels = Buffer::with_room(width * height * self.channels)?;
        for y in top..top + height {
            let start = y * row + left * self.channels;
            pixels.extend_from_slice(&self.pixels[start..][..width * self.channels]);
        }
        Ok(Self {
            pixels,
            width,
            height,
            channels: self.channels,
        })
    }

    /// Luminance, by Pillow's fixed-point weights.
    fn grey(&self) -> Result<Buffer<u8>, NodeError> {
        Ok(Buffer::collect(
            self.pixels.chunks_exact(self.channels).map(|p| {
                let sum =
                    u32::from(p[0]) * 19595 + u32::from(p[1]) * 38470 + u32::from(p[2]) * 7471;
                ((sum + 0x8000) >> 16) as u8
            }),
        )?)
    }

    /// `(1, h, w, c)`.
    fn tensor(&self) -> Result<Tensor, NodeError> {
        let values = Buffer::collect(self.pixels.iter().map(|v| f32::from(*v) / 255.0))?;
        Ok(Tensor::from_buffer(
            [1, self.height, self.width, self.channels],
            values,
        )?)
    }
}
