//! The shape of a network, read from keys and shapes.

use serde_json::Value as Json;

use super::model::PixelNormVae;
use crate::error::{ModelError, Result};
use crate::name_table::{NameTable, Place, Rule, blocks, place, tree, value};
use crate::store::{Layout, WeightStore};
use crate::vae::Vae;
use crate::vae::autoencoder::{AutoencoderConfig, VaeFacts};

/// More blocks, and more layers in one, than any of these has.
const MOST: usize = 64;

/// One block of either half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockConfig {
    /// So many residual layers of one width.
    Layers { count: usize, width: usize },
    /// One residual layer from a width to another.
    Change { from: usize, to: usize },
    /// A convolution that sees every second frame, row and column.
    Stride { width: usize },
    /// Frames, rows and columns into channels, or back: how many of each, and the widths before and after.
    Fold {
        steps: [usize; 3],
        from: usize,
        to: usize,
    },
}

impl BlockConfig {
    /// Frames, rows and columns that become one.
    fn steps(self) -> [usize; 3] {
        match self {
            Self::Layers { .. } | Self::Change { .. } => [1; 3],
            Self::Stride { .. } => [2; 3],
            Self::Fold { steps, .. } => steps,
        }
    }
}

/// One half of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalfConfig {
    pub blocks: Vec<BlockConfig>,
    /// Channels of the first convolution, in and out, and those of the last.
    pub first: (usize, usize),
    pub last: (usize, usize),
}

/// What an autoencoder with pixel norms is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PixelNormConfig {
    pub encoder: Option<HalfConfig>,
    pub decoder: HalfConfig,
    /// Pixels along a side that are channels from the start.
    pub patch: usize,
    /// Whether the decoder is told how much noise is left.
    pub told: bool,
    /// Whether its layers add noise.
    pub noisy: bool,
    /// Whether there are means and deviations of the latent's channels.
    pub measured: bool,
    /// Whether the decoder's frames go on as in a mirror beyond their borders.
    pub mirrored: bool,
    /// Whether what goes into a block that makes larger is repeated beside what comes out.
    pub repeated: bool,
}

/// The key by which such files are known.
const SIGN: &str = "decoder.up_blocks.0.res_blocks.0.conv1.conv.weight";
pub(super) const MEANS: &str = "per_channel_statistics.mean-of-means";
pub(super) const DEVIATIONS: &str = "per_channel_statistics.std-of-means";

/// Whether names are those of such a network.
pub(in crate::vae) fn is_named(names: &[&str]) -> bool {
    names.contains(&SIGN)
}

impl PixelNormConfig {
    pub fn is_in(store: &WeightStore) -> bool {
        store.has(SIGN)
    }

    pub fn detect(store: &WeightStore) -> Result<Self> {
        let encoder = store.has("encoder.conv_in.conv.weight");
        let encoder = encoder.then(|| half(store, "encoder", "down_blocks"));
        let encoder = encoder.transpose()?;
        let decoder = half(store, "decoder", "up_blocks")?;
        let patch = (decoder.last.1 / 3).isqrt();
        if patch == 0 || patch * patch * 3 != decoder.last.1 {
            let reason = format!("{} values are no square of pixels", decoder.last.1);
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let first = "decoder.up_blocks.0";
        // Decoders that grow in four steps do without both; the header of a file knows better.
        let folds = |block: &&BlockConfig| matches!(block, BlockConfig::Fold { .. });
        let plain = decoder.blocks.iter().filter(folds).count() > PLAIN_STEPS;
        let said = DecoderHeader::of(store.metadata("config"));
        Ok(Self {
            encoder,
            decoder,
            patch,
            told: store.has("decoder.last_scale_shift_table"),
            noisy: store.has(&format!("{first}.res_blocks.0.per_channel_scale1")),
            measured: store.has(MEANS) && store.has(DEVIATIONS),
            mirrored: said.mirrored.unwrap_or(!plain),
            repeated: said.repeated.unwrap_or(!plain),
        })
    }

    pub fn latent_channels(&self) -> usize {
        self.decoder.first.0
    }

    /// Pixels along a side for one latent cell.
    pub fn ratio(&self) -> usize {
        self.steps(1) * self.patch
    }

    /// Frames for one latent frame after the first.
    pub fn temporal_ratio(&self) -> usize {
        self.steps(0)
    }

    fn steps(&self, axis: usize) -> usize {
        let blocks = self.decoder.blocks.iter();
        blocks.map(|block| block.steps()[axis]).product()
    }
}

impl AutoencoderConfig for PixelNormConfig {
    fn facts(&self) -> VaeFacts {
        let channels = self.latent_channels();
        VaeFacts::film(channels, self.ratio(), self.temporal_ratio())
    }

    fn verify(&self, store: &WeightStore) -> Result<()> {
        let layout = Layout::of(|weights| super::model::PixelNormVae::walk(weights, self))?;
        layout.verify(store, super::model::WHAT)
    }

    fn build(&self, store: &WeightStore) -> Result<Vae> {
        Ok(PixelNormVae::new(store)?.into())
    }
}

/// Steps in which decoders grow that repeat their inputs.
const PLAIN_STEPS: usize = 3;

/// The settings of a decoder in the header of its file.
#[derive(Default)]
struct DecoderHeader {
    mirrored: Option<bool>,
    repeated: Option<bool>,
}

impl DecoderHeader {
    /// From JSON of which `vae` is a part.
    fn of(text: Option<&str>) -> Self {
        let said: Option<Json> = text.and_then(|text| serde_json::from_str(text).ok());
        let Some(said) = said else {
            return Self::default();
        };
        let said = &said["vae"];
        let mode = ["decoder_spatial_padding_mode", "spatial_padding_mode"];
        let mode = mode.iter().find_map(|name| said[*name].as_str());
        let blocks = said["decoder_blocks"].as_array();
        let growing = blocks.map(|blocks| {
            let grows = |block: &&Json| {
                let name = block[0].as_str();
                name.is_some_and(|name| name.starts_with("compress_"))
            };
            blocks.iter().filter(grows).collect::<Vec<_>>()
        });
        let growing = growing.filter(|growing| !growing.is_empty());
        Self {
            mirrored: mode.map(|mode| mode == "reflect"),
            repeated: growing.map(|list| list.iter().any(|b| b[1]["residual"] == true)),
        }
    }
}

/// The sizes of a convolution over time: out and in.
fn sizes(store: &WeightStore, key: &str) -> Result<(usize, usize)> {
    let key = format!("{key}.weight");
    match store.shape(&key) {
        Some(&[out, input, _, _, _]) if out > 0 && input > 0 => Ok((out, input)),
        Some(found) => Err(ModelError::Shape {
            file: store.file().to_owned(),
            key,
            expected: "a convolution over frames".to_owned(),
            found: found.to_vec(),
        }),
        None => Err(ModelError::Missing {
            file: store.file().to_owned(),
            key,
        }),
    }
}

fn half(store: &WeightStore, name: &str, list: &str) -> Result<HalfConfig> {
    let (out, input) = sizes(store, &format!("{name}.conv_in.conv"))?;
    let (values, last) = sizes(store, &format!("{name}.conv_out.conv"))?;
    let at = |number: usize, rest: &str| format!("{name}.{list}.{number}.{rest}");
    let has = |key: &str| store.has(&format!("{key}.weight"));
    let mut blocks = Vec::new();
    let mut width = out;
    for number in 0..MOST {
        let (layers, change) = (
            at(number, "res_blocks.0.conv1.conv"),
            at(number, "conv1.conv"),
        );
        let (fold, stride) = (at(number, "conv.conv"), at(number, "conv"));
        blocks.push(if has(&layers) {
            let there = |layer: usize| has(&at(number, &format!("res_blocks.{layer}.conv1.conv")));
            let count = (0..MOST).take_while(|layer| there(*layer)).count();
            BlockConfig::Layers { count, width }
        } else if has(&change) {
            let from = width;
            width = sizes(store, &change)?.0;
            BlockConfig::Change { from, to: width }
        } else if has(&fold) {
            let (rows, _) = sizes(store, &fold)?;
            let from = width;
            width = width_after(store, name, list, number + 1)?.unwrap_or(last);
            // Down: channels times cells are the new width. Up: the new width times cells are the channels.
            let cells = if name == "encoder" {
                width / rows.max(1)
            } else {
                rows / width.max(1)
            };
            let steps = match cells {
                2 => [2, 1, 1],
                4 => [1, 2, 2],
                8 => [2, 2, 2],
                _ => {
                    let reason = format!("{fold} makes {rows} channels of {from}, then {width}");
                    return Err(ModelError::unsupported(store.file(), reason));
                }
            };
            BlockConfig::Fold {
                steps,
                from,
                to: width,
            }
        } else if has(&stride) {
            BlockConfig::Stride { width }
        } else {
            break;
        });
    }
    Ok(HalfConfig {
        blocks,
        first: (input, out),
        last: (last, values),
    })
}

/// Channels that a block takes; none if there is no such block.
fn width_after(
    store: &WeightStore,
    name: &str,
    list: &str,
    number: usize,
) -> Result<Option<usize>> {
    let at = |rest: &str| format!("{name}.{list}.{number}.{rest}");
    for key in ["res_blocks.0.conv1.conv", "conv1.conv", "conv.conv", "conv"] {
        if store.has(&format!("{}.weight", at(key))) {
            return Ok(Some(sizes(store, &at(key))?.1));
        }
    }
    Ok(None)
}

/// Whether names are those that diffusers has for such a network.
pub(in crate::vae) fn is_foreign(names: &[&str]) -> bool {
    names.contains(&"decoder.mid_block.resnets.0.conv1.conv.weight")
        && names.contains(&"decoder.up_blocks.0.upsamplers.0.conv.conv.weight")
}

/// The layout of such a file of these sorted names. There levels have numbers, here every block has one.
pub(in crate::vae) fn diffusers(names: &[&str]) -> NameTable {
    const BLOCKS: &[Rule] = &[tree("resnets", "res_blocks")];
    const CHANGE: &[Rule] = &[tree("downsamplers.0.conv", "conv")];
    const GROWTH: &[Rule] = &[tree("upsamplers.0.conv", "conv")];
    const OUTSIDE: &[Place] = &[place(
        "",
        "",
        &[
            value("latents_mean", MEANS),
            value("latents_std", DEVIATIONS),
        ],
    )];
    let mut places = Vec::new();
    let mut add = |theirs: String, ours: String, rules| places.push(Place::at(theirs, ours, rules));
    let levels = blocks(names, "encoder.down_blocks.");
    let down = |block: usize| format!("encoder.down_blocks.{block}.");
    for level in 0..levels {
        add(down(level), down(2 * level), BLOCKS);
        add(down(level), down(2 * level + 1), CHANGE);
    }
    add("encoder.mid_block.".to_owned(), down(2 * levels), BLOCKS);
    let up = |block: usize| format!("decoder.up_blocks.{block}.");
    add("decoder.mid_block.".to_owned(), up(0), BLOCKS);
    for level in 0..blocks(names, "decoder.up_blocks.") {
        add(up(level), up(2 * level + 1), GROWTH);
        add(up(level), up(2 * level + 2), BLOCKS);
    }
    NameTable::new(OUTSIDE).keeping_others().with(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name_table::tests::key_of;

    #[test]
    fn names_of_diffusers_become_ours() {
        for (theirs, ours) in [
            (
                "encoder.down_blocks.2.resnets.1.conv1.conv.bias",
                "encoder.down_blocks.4.res_blocks.1.conv1.conv.bias",
            ),
            (
                "encoder.down_blocks.2.downsamplers.0.conv.conv.bias",
                "encoder.down_blocks.5.conv.conv.bias",
            ),
            (
                "decoder.up_blocks.1.upsamplers.0.conv.conv.weight",
                "decoder.up_blocks.3.conv.conv.weight",
            ),
            (
                "decoder.up_blocks.1.resnets.0.conv1.conv.weight",
                "decoder.up_blocks.4.res_blocks.0.conv1.conv.weight",
            ),
            ("latents_mean", MEANS),
            ("decoder.conv_in.conv.bias", "decoder.conv_in.conv.bias"),
        ] {
            assert_eq!(key_of(diffusers, theirs), ours);
        }
    }

    #[test]
    fn headers_say_how_a_decoder_grows() {
        let text = r#"{"vae": {"spatial_padding_mode": "zeros", "decoder_blocks": [
            ["res_x", {"num_layers": 4}], ["compress_all", {"residual": false, "multiplier": 2}]]}}"#;
        let said = DecoderHeader::of(Some(text));
        assert_eq!((said.mirrored, said.repeated), (Some(false), Some(false)));
        let said = DecoderHeader::of(Some("{}"));
        assert_eq!((said.mirrored, said.repeated), (None, None));
    }
}
