//! Pictures in formats of more than 8 bits.

use std::sync::Arc;

use fresco_files::deep_png::{self, Samples};
use fresco_files::dirs::DirType;
use fresco_files::exr_write::{self, ExrPicture, Precision};
use fresco_files::png_write::EncodeError;
use fresco_graph::{
    Args, Choices, Cx, Input, Map, Node, NodeError, NodeOutput, NodeResult, Output, Validator,
    Value, Verdict, map,
};
use fresco_tensor::cancel::Cancel;
use fresco_tensor::resize::to_u8;
use fresco_tensor::{Buffer, Tensor, with_memory};

use super::{Presence, begin, entry_of, metadata_text, png_text, save_error};
use crate::types::Image;

fn choice(name: &str, about: &str, default: &str, entries: &[&str]) -> Input {
    let entries = entries.iter().map(|e| Value::from(*e)).collect();
    Input::combo(name, Choices::Fixed(Arc::new(entries)))
        .option("default", default)
        .tooltip(about)
}

fn bit_depth(default: &str, entries: &[&str]) -> Input {
    let about = "Bits of a channel; more keep finer shades and make larger files.";
    choice("bit_depth", about, default, entries)
}

fn color_space(entries: &[&str]) -> Input {
    let about = "What the numbers of the pictures mean.";
    choice("input_color_space", about, "sRGB", entries)
}

fn formats() -> Input {
    let animated = vec![
        Input::new("fps", "FLOAT")
            .option("default", 6.0)
            .option("min", 0.01)
            .option("max", 1000.0),
        Input::new("loop_count", "INT")
            .tooltip("How often the animation plays; 0 is for ever.")
            .option("default", 0)
            .option("min", 0)
            .option("max", 1000),
    ];
    let modes = vec![("still images", Vec::new()), ("animated", animated)];
    let png = vec![
        bit_depth("8-bit", &["8-bit", "16-bit"]),
        color_space(&["sRGB"]),
    ];
    let exr = vec![
        bit_depth("16-bit float", &["16-bit float", "32-bit float"]),
        color_space(&["sRGB", "HDR", "linear", "linear ACEScg"]),
    ];
    let avif = vec![
        bit_depth("auto", &["auto", "8-bit YUV420", "10-bit YUV420"]),
        color_space(&["sRGB", "HDR", "HDR PQ"]),
        Input::new("crf", "INT")
            .tooltip("Higher is smaller and looks worse.")
            .option("default", 18)
            .option("min", 1)
            .option("max", 63),
        Input::dynamic_combo("save_mode", modes)
            .tooltip("One file for each picture, or one animation of all."),
    ];
    Input::dynamic_combo("format", vec![("png", png), ("exr", exr), ("avif", avif)])
}

const NO_AVIF: &str =
    "this program has no encoder for AVIF: choose png or exr, or SaveAnimatedWEBP for an animation";

/// Saves pictures as PNG of 8 or 16 bits or as OpenEXR, and passes them on.
#[derive(Node)]
#[node(
    id = "SaveImageAdvanced",
    v3,
    module = "comfy_extras.nodes_images",
    display = "Save Image (Advanced)",
    category = "image",
    outputs(Output::new("IMAGE").named("images")),
    output_node
)]
pub(super) struct SaveImageAdvanced {
    /// The pictures to save.
    images: Image,
    #[input(default = "ComfyUI")]
    filename_prefix: String,
    /// The format of the file.
    #[input(spec = formats())]
    format: Arc<Map>,
}

impl Node for SaveImageAdvanced {
    fn run(self, cx: &Cx) -> NodeResult {
        let word = |key: &str| self.format.get(key).and_then(Value::as_str).unwrap_or("");
        let form = FileForm::of(word("format"), word("bit_depth"), word("input_color_space"))?;
        let [count, height, width, channels] = self.images.0.dims4()?;
        let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
            return Err(NodeError::value_error(format!(
                "a picture of {width} x {height} cannot be saved"
            )));
        };
        if count == 0 || width == 0 || height == 0 || !matches!(channels, 1 | 3 | 4) {
            return Err(NodeError::value_error(format!(
                "a batch of {count} pictures of {width} x {height} with {channels} channels cannot be saved: pictures \
                 have 1, 3 or 4 channels"
            )));
        }
        let mut batch = begin(cx, DirType::Output, &self.filename_prefix, width, height)?;
        let text = match form {
            FileForm::Png { .. } => png_text(cx, Presence::NotEmpty),
            FileForm::Exr { .. } => metadata_text(cx, Presence::NotEmpty),
        };
        let mut entries = Vec::new();
        for frame in 0..count {
            cx.check_interrupt()?;
            let picture = self.images.0.narrow(0, frame, 1)?;
            let bytes = form.encode(&picture, (w, h, channels), &text)?;
            let saved = batch.save(form.ending(), &bytes).map_err(save_error)?;
            entries.push(entry_of(&saved, DirType::Output));
        }
        Ok(NodeOutput::one(self.images).with_ui(map! {"images" => entries}))
    }

    // Told before anything is computed, not after.
    const VALIDATOR: Option<Validator> = Some(Validator {
        params: &["format"],
        all: false,
        input_types: false,
    });
    fn validate(args: Args, _: &Map, _: &Cx) -> Result<Verdict, NodeError> {
        let avif = args.get("format").and_then(Value::as_str) == Some("avif");
        Ok(if avif {
            Verdict::Because(NO_AVIF.into())
        } else {
            Verdict::Ok
        })
    }
}

/// What the values of a picture mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ColorSpace {
    Srgb,
    /// Hybrid log-gamma with the primaries of Rec. 2020.
    Hlg,
    Linear,
    AcesCg,
}

/// x and y of red, green, blue and white.
const REC_2020: [f32; 8] = [0.708, 0.292, 0.170, 0.797, 0.131, 0.046, 0.3127, 0.3290];
const AP1: [f32; 8] = [0.713, 0.293, 0.165, 0.830, 0.128, 0.044, 0.32168, 0.33767];

impl ColorSpace {
    fn to_linear(self, value: f32) -> f32 {
        match self {
            Self::Srgb => srgb_to_linear(value),
            Self::Hlg => hlg_to_linear(value),
            Self::Linear | Self::AcesCg => value,
        }
    }

    fn primaries(self) -> Option<[f32; 8]> {
        match self {
            Self::Srgb | Self::Linear => None,
            Self::Hlg => Some(REC_2020),
            Self::AcesCg => Some(AP1),
        }
    }
}

/// IEC 61966-2-1; below zero it goes on mirrored, as pictures of more than the screen's range need.
fn srgb_to_linear(value: f32) -> f32 {
    let v = f64::from(value.abs());
    let linear = if v <= 0.04045 {
        v / 12.92
    } else {
        ((v + 0.055) / 1.055).powf(2.4)
    };
    (linear as f32).copysign(value)
}

/// ITU-R BT.2100: scene light from a signal, 1 for 1.
fn hlg_to_linear(value: f32) -> f32 {
    const A: f64 = 0.178_832_77;
    const B: f64 = 1.0 - 4.0 * A;
    let c = 0.5 - A * (4.0 * A).ln();
    let v = f64::from(value.max(0.0));
    let linear = if v <= 0.5 {
        v * v / 3.0
    } else {
        (((v - c) / A).exp() + B) / 12.0
    };
    linear as f32
}

enum FileForm {
    Png {
        deep: bool,
    },
    Exr {
        precision: Precision,
        space: ColorSpace,
    },
}

impl FileForm {
    fn of(format: &str, depth: &str, space: &str) -> Result<Self, NodeError> {
        let wrong = || {
            NodeError::value_error(format!(
                "there is no {format} of {depth} for pictures in {space}"
            ))
        };
        match (format, depth) {
            ("avif", _) => Err(NodeError::value_error(NO_AVIF)),
            ("png", "8-bit" | "16-bit") if space == "sRGB" => Ok(Self::Png {
                deep: depth == "16-bit",
            }),
            ("exr", "16-bit float" | "32-bit float") => Ok(Self::Exr {
                precision: if depth == "16-bit float" {
                    Precision::Half
                } else {
                    Precision::Single
                },
                space: match space {
                    "sRGB" => ColorSpace::Srgb,
                    "HDR" => ColorSpace::Hlg,
                    "linear" => ColorSpace::Linear,
                    "linear ACEScg" => ColorSpace::AcesCg,
                    _ => return Err(wrong()),
                },
            }),
            _ => Err(wrong()),
        }
    }

    fn ending(&self) -> &'static str {
        match self {
            Self::Png { .. } => "png",
            Self::Exr { .. } => "exr",
        }
    }

    fn encode(
        &self,
        picture: &Tensor,
        (width, height, channels): (u32, u32, usize),
        text: &[(String, String)],
    ) -> Result<Vec<u8>, NodeError> {
        let cancel = Cancel::current();
        let wanted = || !cancel.is_raised();
        let values = picture.data();
        let finished = |encode: &dyn Fn() -> Result<Vec<u8>, EncodeError>| {
            // The file, and what its encoder keeps beside it.
            Ok(with_memory(values.len() as u64 * 8, encode)??)
        };
        match self {
            Self::Png { deep: false } => {
                let bytes = Buffer::collect(values.iter().map(|v| to_u8(*v)))?;
                let samples = Samples::Eight(&bytes);
                finished(&|| deep_png::encode(width, height, channels, samples, text, &wanted))
            }
            Self::Png { deep: true } => {
                let wide = |v: &f32| (v * 65535.0).clamp(0.0, 65535.0).round_ties_even() as u16;
                let words = Buffer::collect(values.iter().map(wide))?;
                let samples = Samples::Sixteen(&words);
                finished(&|| deep_png::encode(width, height, channels, samples, text, &wanted))
            }
            Self::Exr { precision, space } => {
                // Opacity is no light.
                let linear = values.iter().enumerate().map(|(i, v)| {
                    if channels == 4 && i % 4 == 3 {
                        *v
                    } else {
                        space.to_linear(*v)
                    }
                });
                let linear = Buffer::collect(linear)?;
                let picture = ExrPicture {
                    width,
                    height,
                    channels,
                    values: &linear,
                    precision: *precision,
                    primaries: space.primaries(),
                };
                finished(&|| exr_write::encode(&picture, text, &wanted))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_the_values_of_their_standards() {
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
        near(srgb_to_linear(0.5), 0.214_041_14);
        near(srgb_to_linear(0.04), 0.04 / 12.92);
        near(srgb_to_linear(-0.5), -0.214_041_14);
        near(hlg_to_linear(0.5), 1.0 / 12.0);
        near(hlg_to_linear(1.0), 1.0);
        near(hlg_to_linear(0.75), 0.264_962_56);
    }

    #[test]
    fn formats_that_are_none_are_told() {
        assert!(FileForm::of("avif", "auto", "sRGB").is_err());
        assert!(FileForm::of("png", "16-bit", "HDR").is_err());
        assert!(FileForm::of("exr", "8-bit", "sRGB").is_err());
        assert!(FileForm::of("exr", "16-bit float", "HDR PQ").is_err());
    }
}
