//! Pictures of a latent while it is being sampled: rough colours at once, or a small decoder.

use std::sync::Arc;

use fresco_tensor::Tensor;

use crate::error::{ModelError, Result};
use crate::latent_format::LatentFormat;
use crate::taehv::Taehv;
use crate::taesd::Taesd;
use crate::vae::Autoencoder;

/// An 8-bit picture, three bytes a pixel, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rgb8 {
    pub width: usize,
    pub height: usize,
    pub data: Vec<u8>,
}

/// What a weight file's metadata says about pictures of its latents, in place of what its family would have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviewHints {
    /// `fresco.preview`: the small decoder, a file in `vae_approx` without its extension.
    pub decoder: Option<String>,
    /// `fresco.latent_rgb`: JSON with a row of red, green and blue for each channel, and one more to add.
    pub colours: Option<String>,
}

const DECODER: &str = "fresco.preview";
const COLOURS: &str = "fresco.latent_rgb";

impl PreviewHints {
    /// From the text pairs of a file.
    pub fn of(metadata: &[(String, String)]) -> Self {
        let value = |key: &str| {
            let pair = metadata.iter().find(|(k, _)| k == key);
            pair.map(|(_, value)| value.clone())
        };
        Self {
            decoder: value(DECODER),
            colours: value(COLOURS),
        }
    }

    /// The text pairs that say the same in another file.
    pub fn metadata(&self) -> impl Iterator<Item = (String, String)> {
        let pairs = [(DECODER, &self.decoder), (COLOURS, &self.colours)];
        pairs
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
    }
}

/// What each channel of a latent adds to red, green and blue, roughly.
#[derive(Clone, Debug, PartialEq)]
pub struct Colours {
    pub rgb: Vec<[f32; 3]>,
    pub bias: [f32; 3],
}

/// Makes previews.
#[derive(Clone)]
pub enum Previewer {
    /// One pixel per latent cell.
    Rgb(LatentFormat),
    /// The same with colours that the model brought along.
    Colours(Colours),
    /// The size of the result.
    Taesd(Arc<Taesd>),
    /// The same for films, of which the first frame is shown.
    Film(Arc<Taehv>),
}

impl Previewer {
    /// The preview that needs no file; none for formats without known colours.
    pub fn rgb(format: LatentFormat) -> Option<Self> {
        (!format.rgb.is_empty()).then_some(Self::Rgb(format))
    }

    /// The first item, and of a video the first frame, of a latent as the sampler has it.
    pub fn preview(&self, latent: &Tensor) -> Result<Rgb8> {
        let latent = first_picture(latent)?;
        match self {
            Self::Rgb(format) => latent2rgb(format, &latent),
            Self::Colours(colours) => shaded(&colours.rgb, colours.bias, &latent),
            Self::Taesd(_) | Self::Film(_) => {
                let rgb = match self {
                    Self::Taesd(net) => net.decode(&latent, &|| Ok(()))?,
                    Self::Film(net) => net
                        .decode(&latent.unsqueeze(2)?, &|| Ok(()))?
                        .select(2, 0)?,
                    Self::Rgb(_) | Self::Colours(_) => latent,
                };
                let [_, c, h, w] = rgb.dims4()?;
                if c != 3 {
                    let reason = format!("the decoder makes {c} colours");
                    return Err(ModelError::invalid("preview", reason));
                }
                let pixels = rgb.nchw_to_nhwc()?;
                Ok(Rgb8 {
                    width: w,
                    height: h,
                    data: pixels.data().iter().map(|&v| byte(v)).collect(),
                })
            }
        }
    }
}

/// (1, c, h, w) of (b, c, h, w) or (b, c, t, h, w).
fn first_picture(latent: &Tensor) -> Result<Tensor> {
    let picture = match latent.rank() {
        4 => latent.clone(),
        5 if latent.shape()[2] > 0 => latent.select(2, 0)?,
        _ => {
            let reason = format!("a latent of shape {:?} is not a picture", latent.shape());
            return Err(ModelError::invalid("preview", reason));
        }
    };
    if picture.is_empty() {
        let reason = format!("a latent of shape {:?} is empty", latent.shape());
        return Err(ModelError::invalid("preview", reason));
    }
    Ok(picture.narrow(0, 0, 1)?)
}

/// A colour in -1..1 as a byte; what is no number is black.
fn byte(value: f32) -> u8 {
    (f32::midpoint(value, 1.0).clamp(0.0, 1.0) * 255.0) as u8
}

/// Squares of cells that were packed into channels, of the first item: (1, 4 c, h, w) to (1, c, 2 h, 2 w).
pub fn unpacked(latent: &Tensor) -> Result<Tensor> {
    let [_, packed, h, w] = latent.dims4()?;
    let channels = packed / 4;
    let cells = latent.narrow(0, 0, 1)?.reshape([channels, 2, 2, h, w])?;
    let cells = cells.permute(&[0, 3, 1, 4, 2])?;
    Ok(cells.reshape([1, channels, 2 * h, 2 * w])?)
}

/// The rough colours of a latent's first item: (1.., c, h, w).
pub fn latent2rgb(format: &LatentFormat, latent: &Tensor) -> Result<Rgb8> {
    let mut latent = first_picture(latent)?;
    let channels = format.rgb.len();
    if format.channels == channels * 4 && latent.shape()[1] == format.channels {
        latent = unpacked(&latent)?;
    }
    let c = latent.shape()[1];
    if c != channels {
        let reason = format!("{c} channels are not those of {}", format.name);
        return Err(ModelError::invalid("preview", reason));
    }
    shaded(format.rgb, format.rgb_bias, &latent)
}

/// Every cell of a latent (1, c, h, w) as one pixel.
fn shaded(rgb: &[[f32; 3]], bias: [f32; 3], latent: &Tensor) -> Result<Rgb8> {
    let [_, c, h, w] = latent.dims4()?;
    if c != rgb.len() {
        let reason = format!("{c} channels for {} colours", rgb.len());
        return Err(ModelError::invalid("preview", reason));
    }
    let data = latent.data();
    let mut out = Vec::with_capacity(h * w * 3);
    for at in 0..h * w {
        for colour in 0..3 {
            let mut sum = 0.0_f32;
            for (channel, rgb) in rgb.iter().enumerate() {
                sum += data[channel * h * w + at] * rgb[colour];
            }
            out.push(byte(sum + bias[colour]));
        }
    }
    Ok(Rgb8 {
        width: w,
        height: h,
        data: out,
    })
}
