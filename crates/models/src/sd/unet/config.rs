//! The shape of a UNet, read from the keys and shapes of its weights.
//!
//! Nothing is looked up by family: the blocks are those the file names, so that reduced and pruned models load too.

use std::collections::BTreeMap;

use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// How many heads an attention of some width has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// So many, whatever the width.
    Count(usize),
    /// As many as fit, each this wide.
    Width(usize),
}

impl Heads {
    pub fn of(self, channels: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Width(width) => (channels / width.max(1)).max(1),
        }
    }
}

/// What a block starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The convolution that every UNet starts with.
    Conv,
    Residual,
    /// Halves the size.
    Down,
}

/// One entry of `input_blocks` or `output_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    pub first: First,
    /// Channels that come out.
    pub channels: usize,
    /// Transformer blocks after the residual block.
    pub depth: usize,
    /// Whether it ends by doubling the size.
    pub up: bool,
}

/// The innermost block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Middle {
    /// Residual blocks: two around a transformer, or one alone, or none.
    pub residuals: usize,
    pub depth: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UNetConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    /// Channels of the first level.
    pub model_channels: usize,
    /// Width of the prompt's vectors; none if the network looks at no prompt.
    pub context_dim: Option<usize>,
    /// Width of the vector that goes in beside the noise level (sizes and pooled prompt of SDXL).
    pub adm: Option<usize>,
    /// Whether transformers begin and end with a matrix and not with a 1x1 convolution. Both compute the same; it tells
    /// families apart.
    pub linear_projection: bool,
    pub heads: Heads,
    pub input: Vec<Stage>,
    pub middle: Middle,
    pub output: Vec<Stage>,
    /// Whether the pictures of a batch are the frames of films.
    pub timed: bool,
}

/// What the keys of one block say.
#[derive(Default)]
struct Seen {
    conv: bool,
    residual: bool,
    down: bool,
    up: bool,
    depth: usize,
    /// A key that belongs to no known part.
    unknown: Option<String>,
}

impl Seen {
    fn note(&mut self, slot: &str, rest: &str) {
        let starts = |names: &[&str]| names.iter().any(|n| rest.starts_with(n));
        if slot == "0" && matches!(rest, "weight" | "bias") {
            self.conv = true;
        } else if starts(&[
            "in_layers.",
            "out_layers.",
            "emb_layers.",
            "skip_connection.",
        ]) {
            self.residual = true;
        } else if slot == "0" && starts(&["op."]) {
            self.down = true;
        } else if slot != "0" && starts(&["conv."]) {
            self.up = true;
        } else if let Some(number) = rest
            .strip_prefix("transformer_blocks.")
            .and_then(|r| r.split('.').next())
            .and_then(|n| n.parse::<usize>().ok())
        {
            self.depth = self.depth.max(number.saturating_add(1));
        } else if starts(&["norm.", "proj_in.", "proj_out."]) {
            self.depth = self.depth.max(1);
        } else if starts(&["time_stack.", "time_mixer.", "time_pos_embed."]) {
            // Of a residual block or of a transformer that is there anyway.
        } else {
            self.unknown.get_or_insert_with(|| format!("{slot}.{rest}"));
        }
    }
}

/// More blocks than any real network has; a hostile file could name block 10^18.
const MOST: usize = 1000;

fn blocks_of(store: &WeightStore, part: &str) -> Result<Vec<Seen>> {
    let mut seen: BTreeMap<usize, Seen> = BTreeMap::new();
    for key in store.keys() {
        let Some(rest) = key.strip_prefix(part).and_then(|r| r.strip_prefix('.')) else {
            continue;
        };
        let mut parts = rest.splitn(3, '.');
        let (Some(number), Some(slot)) = (parts.next(), parts.next()) else {
            continue;
        };
        let Ok(number) = number.parse::<usize>() else {
            continue;
        };
        let rest = parts.next().unwrap_or_default();
        seen.entry(number).or_default().note(slot, rest);
    }
    let count = seen
        .keys()
        .next_back()
        .map_or(0, |last| last.saturating_add(1));
    let depth = seen.values().map(|s| s.depth).max().unwrap_or(0);
    if count > MOST || depth > MOST {
        let reason = format!("{part} names more than {MOST} blocks");
        return Err(ModelError::unsupported(store.file(), reason));
    }
    for number in 0..count {
        match seen.get(&number) {
            None => {
                return Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key: format!("{part}.{number}"),
                });
            }
            Some(Seen {
                unknown: Some(key), ..
            }) => {
                let reason =
                    format!("{part}.{number}.{key} belongs to no UNet that this version runs");
                return Err(ModelError::unsupported(store.file(), reason));
            }
            Some(_) => {}
        }
    }
    Ok(seen.into_values().collect())
}

/// Channels that come out of a residual block: what most of its weights say, so that one bad tensor is found out.
fn channels(store: &WeightStore, prefix: &str) -> Result<usize> {
    let says = |name: &str| {
        let shape = store.shape(&format!("{prefix}.{name}"))?;
        shape.first().copied()
    };
    let names = [
        "out_layers.3.weight",
        "out_layers.0.weight",
        "emb_layers.1.weight",
        "in_layers.2.weight",
        "out_layers.3.bias",
    ];
    let votes: Vec<usize> = names.into_iter().filter_map(says).collect();
    let count = |n: usize| votes.iter().filter(|&&v| v == n).count();
    let best = votes.iter().copied().max_by_key(|&n| (count(n), n));
    best.ok_or_else(|| ModelError::Missing {
        file: store.file().to_owned(),
        key: format!("{prefix}.out_layers.3.weight"),
    })
}

impl UNetConfig {
    /// The network whose weights these are. Heads are those of the published models; set them for others.
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let mut config = Self::encoder(store)?;
        let seen = blocks_of(store, "output_blocks")?;
        if seen.len() < config.input.len() {
            return Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: format!("output_blocks.{}", seen.len()),
            });
        }
        if seen.len() > config.input.len() {
            return Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: format!("input_blocks.{}", config.input.len()),
            });
        }
        for (number, seen) in seen.iter().enumerate() {
            config.output.push(Stage {
                first: First::Residual,
                channels: channels(store, &format!("output_blocks.{number}.0"))?,
                depth: seen.depth,
                up: seen.up,
            });
        }
        let last = shape(store, "out.2.weight")?;
        config.out_channels = last.first().copied().unwrap_or(0);
        Ok(config)
    }

    /// The encoder and the middle only, which is what control nets have. `output` stays empty.
    pub fn encoder(store: &WeightStore) -> Result<Self> {
        let first = shape(store, "input_blocks.0.0.weight")?;
        let &[model_channels, in_channels, _, _] = first else {
            return Err(ModelError::Shape {
                file: store.file().to_owned(),
                key: "input_blocks.0.0.weight".to_owned(),
                expected: "a convolution".to_owned(),
                found: first.to_vec(),
            });
        };
        let mut input = Vec::new();
        let mut at = model_channels;
        for (number, seen) in blocks_of(store, "input_blocks")?.iter().enumerate() {
            let first = match seen {
                Seen { residual: true, .. } => First::Residual,
                Seen { down: true, .. } => First::Down,
                _ => First::Conv,
            };
            if (first == First::Conv) != (number == 0) {
                let reason = format!("input_blocks.{number} is not a block of a UNet");
                return Err(ModelError::unsupported(store.file(), reason));
            }
            if first == First::Residual {
                at = channels(store, &format!("input_blocks.{number}.0"))?;
            }
            input.push(Stage {
                first,
                channels: at,
                depth: seen.depth,
                up: false,
            });
        }
        let mut middle = Middle {
            residuals: 0,
            depth: 0,
        };
        for key in store.keys() {
            let Some(rest) = key.strip_prefix("middle_block.") else {
                continue;
            };
            let Some((slot, rest)) = rest.split_once('.') else {
                continue;
            };
            let mut seen = Seen::default();
            seen.note(slot, rest);
            middle.depth = middle.depth.max(seen.depth);
            if let (true, Ok(slot)) = (seen.residual, slot.parse::<usize>()) {
                middle.residuals = middle.residuals.max(slot.min(1) + 1);
            }
        }
        if middle.depth > MOST {
            let reason = format!("middle_block names more than {MOST} blocks");
            return Err(ModelError::unsupported(store.file(), reason));
        }
        let transformer = store
            .keys()
            .into_iter()
            .find_map(|key| Some(key.split_once(".transformer_blocks.")?.0.to_owned()));
        let (mut context_dim, mut linear_projection) = (None, false);
        if let Some(prefix) = transformer {
            let key = format!("{prefix}.transformer_blocks.0.attn2.to_k.weight");
            context_dim = shape(store, &key)?.get(1).copied();
            let proj = format!("{prefix}.proj_in.weight");
            linear_projection = shape(store, &proj)?.len() == 2;
        }
        let adm = store
            .shape("label_emb.0.0.weight")
            .and_then(|shape| shape.get(1).copied());
        Ok(Self {
            in_channels,
            out_channels: in_channels,
            model_channels,
            context_dim,
            adm,
            linear_projection,
            heads: if linear_projection {
                Heads::Width(64)
            } else {
                Heads::Count(8)
            },
            input,
            middle,
            output: Vec::new(),
            timed: store
                .keys()
                .iter()
                .any(|key| key.ends_with(".time_mixer.mix_factor")),
        })
    }

    /// Transformer blocks per residual block of the encoder, the list that tells families apart.
    pub fn depths(&self) -> Vec<usize> {
        self.input
            .iter()
            .filter(|stage| stage.first == First::Residual)
            .map(|stage| stage.depth)
            .collect()
    }

    /// Latent cells along a side that one cell of the innermost level covers.
    pub fn reduction(&self) -> usize {
        let downs = self.input.iter().filter(|stage| stage.first == First::Down);
        1 << downs.count().min(16)
    }
}

fn shape<'a>(store: &'a WeightStore, key: &str) -> Result<&'a [usize]> {
    store.shape(key).ok_or_else(|| ModelError::Missing {
        file: store.file().to_owned(),
        key: key.to_owned(),
    })
}
