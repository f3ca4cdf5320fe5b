//! The shape of a network, read from keys, shapes and what the file says of itself.

use serde_json::Value;

use crate::denoise::PassMemory;
use crate::error::Result;
use crate::store::{Bias, WeightStore};
use crate::transformer::Shapes;

/// Heads of all published sizes; weights without gates do not say.
const HEADS: usize = 32;
/// Channels of a connector's head.
const CONNECTOR_HEAD: usize = 128;

/// One of the two streams: the pictures, or their sound.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamConfig {
    /// Values of a token.
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    /// Width of the prompt's vectors where they come in.
    pub context: usize,
    /// Whether layers after the attention have biases.
    pub ff_bias: Bias,
}

/// What makes registers and words of a prompt look at each other, for one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorConfig {
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    pub blocks: usize,
    pub registers: usize,
    pub gated: bool,
    /// Positions reach so far.
    pub reach: f32,
    pub split: bool,
}

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct Ltx2Config {
    pub video: StreamConfig,
    pub sound: StreamConfig,
    pub blocks: usize,
    /// Width of what the noise level is told with.
    pub waves: usize,
    /// Width of attention between the streams.
    pub cross: usize,
    /// Whether prompts go through two layers of their own.
    pub projected: bool,
    /// Whether heads have gates.
    pub gated: bool,
    /// Whether the noise level acts on what looks at the prompt and on the prompt itself. Such networks are also told the
    /// other stream's level where streams look at each other.
    pub prompted: bool,
    /// Whether what it does to the prompt depends on the level; else only on the block.
    pub prompt_levels: bool,
    /// Whether there is a mark for tokens that are single pictures.
    pub marked: bool,
    /// Seconds, rows and columns that positions reach.
    pub reach: [f32; 3],
    pub sound_reach: f32,
    /// Whether pairs of channels are half a head apart, or neighbours.
    pub split: bool,
    /// By what the noise level is multiplied, and for the gates between streams.
    pub scale: f32,
    pub gate_scale: f32,
    /// Of pictures and of sound; none where prompts come as the network takes them.
    pub connectors: Option<[ConnectorConfig; 2]>,
}

impl Ltx2Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let first = "transformer_blocks.0";
        let stream = |before: &str, attention: &str, ff: &str| -> Result<StreamConfig> {
            let (dim, channels) = shapes.matrix(&format!("{before}patchify_proj.weight"))?;
            if !dim.is_multiple_of(2) || dim < 12 {
                return Err(shapes.unsupported(format!("a width of {dim} is not known")));
            }
            let gate = format!("{first}.{attention}.to_gate_logits.weight");
            let projection = format!("{before}caption_projection.linear_1.weight");
            let context = if shapes.has(&projection) {
                shapes.matrix(&projection)?.1
            } else {
                let keys = format!("{first}.{}.to_k.weight", attention.replace('1', "2"));
                shapes.matrix(&keys)?.1
            };
            Ok(StreamConfig {
                channels,
                dim,
                heads: heads(shapes, &gate, dim)?,
                ffn: shapes.matrix(&format!("{first}.{ff}.net.0.proj.weight"))?.0,
                context,
                ff_bias: Bias::of(shapes.has(&format!("{first}.{ff}.net.0.proj.bias"))),
            })
        };
        let video = stream("", "attn1", "ff")?;
        let sound = stream("audio_", "audio_attn1", "audio_ff")?;
        let connector = |name: &str| ConnectorConfig::detect(shapes, name);
        let connectors = [
            connector("video_embeddings_connector")?,
            connector("audio_embeddings_connector")?,
        ];
        Ok(Self {
            blocks: shapes.count("transformer_blocks"),
            waves: shapes
                .matrix("adaln_single.emb.timestep_embedder.linear_1.weight")?
                .1,
            cross: shapes
                .matrix(&format!("{first}.audio_to_video_attn.to_q.weight"))?
                .0,
            projected: shapes.has("caption_projection.linear_1.weight"),
            gated: shapes.has(&format!("{first}.attn1.to_gate_logits.weight")),
            prompted: shapes.has(&format!("{first}.prompt_scale_shift_table")),
            prompt_levels: shapes.has("prompt_adaln_single.linear.weight"),
            marked: shapes.has("keyframes_abs_pos_embedding"),
            reach: [20.0, 2048.0, 2048.0],
            sound_reach: 20.0,
            split: true,
            scale: 1000.0,
            gate_scale: 1000.0,
            connectors: match connectors {
                [Some(video), Some(sound)] => Some([video, sound]),
                _ => None,
            },
            video,
            sound,
        })
    }

    /// The same with what the file's text says of it: JSON of which `transformer` is a part.
    #[must_use]
    pub fn with_text(mut self, text: Option<&str>) -> Self {
        let said: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
        let Some(said) = said else { return self };
        let said = &said["transformer"];
        let heads = |name: &str, stream: &mut StreamConfig, gated: bool| {
            let count = said[name].as_u64().map(|n| n as usize);
            if let Some(count) = count.filter(|n| !gated && fits(stream.dim, *n)) {
                stream.heads = count;
            }
        };
        heads("num_attention_heads", &mut self.video, self.gated);
        heads("audio_num_attention_heads", &mut self.sound, self.gated);
        if let Some(reach) = positive(&said["positional_embedding_max_pos"]) {
            self.reach = reach;
        }
        if let Some([reach]) = positive(&said["audio_positional_embedding_max_pos"]) {
            self.sound_reach = reach;
        }
        if let Some(kind) = said["rope_type"].as_str() {
            self.split = kind == "split";
        }
        if let Some(scale) = said["av_ca_timestep_scale_multiplier"].as_f64() {
            self.gate_scale = scale as f32;
        }
        for connector in self.connectors.iter_mut().flatten() {
            connector.split = self.split;
            if let Some([reach]) = positive(&said["connector_positional_embedding_max_pos"]) {
                connector.reach = reach;
            }
            let count = said["connector_num_attention_heads"].as_u64();
            let count = count.map(|n| n as usize);
            if let Some(count) = count.filter(|n| !connector.gated && fits(connector.dim, *n)) {
                connector.heads = count;
            }
        }
        self
    }

    /// How many rows the noise level makes for a block.
    pub(super) fn rows(&self) -> usize {
        if self.prompted { 9 } else { 6 }
    }

    /// Width of the prompt's vectors as text encoders make them.
    pub fn prompt_width(&self) -> usize {
        match &self.connectors {
            // Both read the same vectors, or each its own.
            Some([video, sound]) if self.projected && video.dim == sound.dim => video.dim,
            Some([video, sound]) => video.dim + sound.dim,
            None => self.video.context + self.sound.context,
        }
    }

    /// What a pass takes.
    pub(crate) fn pass(&self) -> PassMemory {
        /// Values of a token that a pass holds at its fullest, in widths of the network.
        const HELD: usize = 20;
        PassMemory::of_values(self.video.channels, self.video.dim, HELD)
    }
}

impl ConnectorConfig {
    /// The connector of a name; none if the file has none.
    pub fn detect(shapes: Shapes<'_>, name: &str) -> Result<Option<Self>> {
        let registers = format!("{name}.learnable_registers");
        if !shapes.has(&registers) {
            return Ok(None);
        }
        let (registers, dim) = shapes.matrix(&registers)?;
        let list = format!("{name}.transformer_1d_blocks");
        let gate = format!("{list}.0.attn1.to_gate_logits.weight");
        let gated = shapes.has(&gate);
        let heads = if gated {
            shapes.matrix(&gate)?.0
        } else if dim.is_multiple_of(CONNECTOR_HEAD) {
            dim / CONNECTOR_HEAD
        } else {
            1
        };
        Ok(Some(Self {
            dim,
            heads,
            ffn: shapes.matrix(&format!("{list}.0.ff.net.0.proj.weight"))?.0,
            blocks: shapes.count(&list),
            registers,
            gated,
            reach: 4096.0,
            split: true,
        }))
    }
}

/// Whether a width can be cut into so many heads of pairs.
fn fits(dim: usize, heads: usize) -> bool {
    heads > 0 && dim.is_multiple_of(2 * heads)
}

/// As many as there are gates, or the usual number.
fn heads(shapes: Shapes<'_>, gate: &str, dim: usize) -> Result<usize> {
    let count = if shapes.has(gate) {
        shapes.matrix(gate)?.0
    } else if fits(dim, HEADS) {
        HEADS
    } else {
        1
    };
    if !fits(dim, count) {
        return Err(shapes.unsupported(format!("{dim} channels do not make {count} heads")));
    }
    Ok(count)
}

/// A list of so many numbers above zero.
fn positive<const N: usize>(value: &Value) -> Option<[f32; N]> {
    let numbers = value.as_array()?.iter().filter_map(Value::as_f64);
    let numbers: Vec<f32> = numbers.map(|n| n as f32).filter(|n| *n > 0.0).collect();
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_divide_widths() {
        assert!(fits(4096, 32) && fits(48, 2) && !fits(48, 32) && !fits(48, 0));
        let list = serde_json::json!([20, 2048, 2048]);
        assert_eq!(positive(&list), Some([20.0, 2048.0, 2048.0]));
        assert_eq!(positive::<1>(&list), None);
        assert_eq!(positive::<1>(&serde_json::json!([-1])), None);
    }
}
