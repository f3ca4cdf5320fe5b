//! Pictures of a latent while it is being sampled.

use std::sync::Arc;

use fresco_files::encode_jpeg;
use fresco_files::folders::{Folders, split_extension};
use fresco_files::png_write::{Picture, Pixels};
use fresco_graph::{Cx, NodeError, Preview, PreviewFormat, Value, json};
use fresco_models::latent_format::LatentFormat;
use fresco_models::preview::{self, Colours, Rgb8};
use fresco_models::store::WeightStore;
use fresco_models::taehv::{Taehv, TaehvConfig};
use fresco_models::taesd::Taesd;
use fresco_tensor::resize::pillow;
use fresco_tensor::{Device, Tensor};

use super::Model;
use crate::loaders::open_model;

/// The longer side of previews, as the program was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviewSize(pub usize);

impl Default for PreviewSize {
    fn default() -> Self {
        Self(512)
    }
}

/// Of preview JPEGs.
const QUALITY: u8 = 95;

/// Longest table of colours that is read; one for a hundred channels is shorter.
const MOST_COLOURS: usize = 16 << 10;

/// Makes the pictures of one run.
pub(super) struct Previewer {
    maker: Option<preview::Previewer>,
    size: usize,
}

impl Previewer {
    pub(super) fn new(model: &Model, cx: &Cx) -> Self {
        let maker = Method::of(&cx.preview_method).and_then(|method| maker(model, method, cx));
        let size = cx
            .resource::<PreviewSize>()
            .map_or(PreviewSize::default(), |s| *s);
        Self {
            maker,
            size: size.0,
        }
    }

    /// Whether steps get pictures.
    pub(super) fn makes_pictures(&self) -> bool {
        self.maker.is_some()
    }

    /// The picture of a step; one that cannot be made is left out.
    pub(super) fn picture(&self, denoised: &Tensor) -> Option<Preview> {
        let maker = self.maker.as_ref()?;
        let made = maker
            .preview(denoised)
            .map_err(NodeError::from)
            .and_then(|picture| encode(&picture, self.size));
        match made {
            Ok(bytes) => Some(Preview {
                format: PreviewFormat::Jpeg,
                bytes: bytes.into(),
            }),
            Err(e) => {
                tracing::warn!("no preview: {}", e.message());
                None
            }
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Auto,
    Rgb,
    Decoder,
}

impl Method {
    fn of(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "latent2rgb" => Some(Self::Rgb),
            "taesd" => Some(Self::Decoder),
            _ => None,
        }
    }
}

/// What the file of the model names comes before what its family has.
fn maker(model: &Model, method: Method, cx: &Cx) -> Option<preview::Previewer> {
    let rough = |why: &str| tracing::warn!("previews are rough: {why}");
    if let Some(hints) = model.preview() {
        let channels = model.base.latent_channels();
        if let (Some(name), true) = (&hints.decoder, method != Method::Rgb) {
            match named(name, channels, cx) {
                Ok(decoder) => return Some(preview::Previewer::Taesd(decoder)),
                Err(e) => rough(e.message()),
            }
        }
        if let Some(text) = &hints.colours {
            if let Some(colours) = colours(text, channels) {
                return Some(preview::Previewer::Colours(colours));
            }
            tracing::warn!(
                "{}: fresco.latent_rgb is not a table of colours for {channels} channels",
                model.base.name()
            );
        }
        if hints.decoder.is_some() {
            // Its latents are not those of its family, so neither are their colours.
            return None;
        }
    }
    let format = model.latent_format.or_else(|| model.base.latent_format())?;
    if method == Method::Decoder {
        match taesd(format, cx) {
            Ok(Some(decoder)) => return Some(decoder),
            Ok(None) => {
                let name = format.taesd.unwrap_or(format.name);
                rough(&format!("{name} is not in the folder vae_approx"));
            }
            Err(e) => rough(e.message()),
        }
    }
    preview::Previewer::rgb(format)
}

/// The small decoder that a model names, for latents of so many channels.
fn named(name: &str, channels: usize, cx: &Cx) -> Result<Arc<Taesd>, NodeError> {
    let folders = cx.resource::<Folders>()?;
    let listed = folders.list("vae_approx")?;
    let file = listed.iter().find(|file| split_extension(file).0 == name);
    let file = file.ok_or_else(|| {
        // The name is what a stranger wrote into a file.
        let shown: String = name.chars().take(100).collect();
        NodeError::file_not_found(format!("{shown:?} is not in the folder vae_approx"))
    })?;
    let decoder = Taesd::previewer(&WeightStore::open(
        open_model(cx, "vae_approx", file)?,
        "",
        Device::cpu(),
    ))?;
    let found = (decoder.latent_channels(), decoder.picture_channels());
    if found != (channels, Some(3)) {
        return Err(NodeError::runtime(format!(
            "{file} does not make pictures of latents with {channels} channels"
        )));
    }
    Ok(Arc::new(decoder))
}

/// A row of red, green and blue for each channel, and one to add.
fn colours(text: &str, channels: usize) -> Option<Colours> {
    if text.len() > MOST_COLOURS {
        return None;
    }
    let table = json::parse(text).ok()?;
    let row = |value: &Value| -> Option<[f32; 3]> {
        let numbers: Option<Vec<f32>> = value
            .as_list()?
            .iter()
            .map(|v| Some(v.as_f64()? as f32).filter(|v| v.is_finite()))
            .collect();
        numbers?.try_into().ok()
    };
    let mut rgb: Vec<[f32; 3]> = table.as_list()?.iter().map(row).collect::<Option<_>>()?;
    let bias = rgb.pop()?;
    (rgb.len() == channels).then_some(Colours { rgb, bias })
}

/// The small decoder of a format, if its file is there.
fn taesd(format: LatentFormat, cx: &Cx) -> Result<Option<preview::Previewer>, NodeError> {
    let Some(name) = format.taesd else {
        return Ok(None);
    };
    let folders = cx.resource::<Folders>()?;
    let listed = folders.list("vae_approx")?;
    let Some(file) = listed.iter().find(|file| file.starts_with(name)) else {
        return Ok(None);
    };
    let file = open_model(cx, "vae_approx", file)?;
    // So small that the main memory does.
    let store = WeightStore::open(file, "", Device::cpu());
    Ok(Some(if TaehvConfig::is_in(&store) {
        let config = TaehvConfig::detect(&store)?;
        if config.latent_channels() != format.channels {
            return Err(NodeError::runtime(format!(
                "{name} does not make pictures of latents with {} channels",
                format.channels
            )));
        }
        preview::Previewer::Film(Arc::new(Taehv::new(&store, &config)?))
    } else {
        preview::Previewer::Taesd(Arc::new(Taesd::previewer(&store)?))
    }))
}

/// The size of a picture that just fits a square; small ones grow.
fn contained(width: usize, height: usize, most: usize) -> (usize, usize) {
    let part = |a: usize, b: usize| {
        ((a as f64 / b as f64 * most as f64).round_ties_even() as usize).max(1)
    };
    match width.cmp(&height) {
        std::cmp::Ordering::Equal => (most, most),
        std::cmp::Ordering::Greater => (most, part(height, width)),
        std::cmp::Ordering::Less => (part(width, height), most),
    }
}

fn encode(picture: &Rgb8, most: usize) -> Result<Vec<u8>, NodeError> {
    let (width, height) = match most {
        0 => (picture.width, picture.height),
        most => contained(picture.width, picture.height, most),
    };
    let source = pillow::Picture {
        pixels: &picture.data,
        width: picture.width,
        height: picture.height,
        channels: 3,
    };
    let sized = pillow::resize(source, width, height, pillow::Filter::Bilinear)?;
    let picture = Picture::new(width as u32, height as u32, Pixels::Rgb, &sized)?;
    Ok(encode_jpeg(&picture, QUALITY)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_table_of_colours_counts() {
        let good = "[[0.1,0,0],[0,1e-3,-2],[0,0,0.2]]";
        let table = colours(good, 2).unwrap();
        assert_eq!((table.rgb.len(), table.bias), (2, [0.0, 0.0, 0.2]));
        let padded = format!("{good}{}", " ".repeat(MOST_COLOURS));
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for text in [
            "",
            "[",
            "null",
            "{}",
            "[]",
            "[[1,2,3]]",
            "[[1,2,3],[1,2,3]]",
            "[[1,2],[1,2,3],[1,2,3]]",
            "[[1,2,3,4],[1,2,3],[1,2,3]]",
            "[[NaN,2,3],[1,2,3],[1,2,3]]",
            "[[1,2,Infinity],[1,2,3],[1,2,3]]",
            "[[1e39,2,3],[1,2,3],[1,2,3]]",
            "[[\"1\",2,3],[1,2,3],[1,2,3]]",
            "[[null,2,3],[1,2,3],[1,2,3]]",
            &deep,
            &padded,
        ] {
            let shown: String = text.chars().take(40).collect();
            assert!(colours(text, 2).is_none(), "{shown}");
        }
    }

    #[test]
    fn previews_fill_their_square() {
        assert_eq!(contained(8, 4, 512), (512, 256));
        assert_eq!(contained(64, 64, 512), (512, 512));
        assert_eq!(contained(1000, 3000, 512), (171, 512));
        assert_eq!(contained(1, 16384, 512), (1, 512));
        let picture = Rgb8 {
            width: 2,
            height: 1,
            data: vec![255, 0, 0, 0, 0, 255],
        };
        let bytes = encode(&picture, 64).unwrap();
        let frame = fresco_files::image::decode(&bytes, &fresco_files::image::Limits::default());
        let frame = &frame.unwrap().frames[0];
        assert_eq!((frame.width, frame.height), (64, 32));
    }
}
