//! The shape of a network, read from keys and shapes.

use crate::denoise::PassMemory;
use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// Heads of all published sizes; weights do not say.
const HEADS: usize = 32;

/// A network of this family.
#[derive(Clone, Debug, PartialEq)]
pub struct LtxvConfig {
    pub channels: usize,
    pub dim: usize,
    pub heads: usize,
    pub ffn: usize,
    pub blocks: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Width of what the noise level is told with.
    pub waves: usize,
    /// Whether the first frame, which stands for one picture, is where its picture is.
    pub causal: bool,
    /// Seconds, rows and columns that positions reach.
    pub reach: [f32; 3],
}

impl LtxvConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (dim, channels) = shapes.matrix("patchify_proj.weight")?;
        let heads = if dim.is_multiple_of(HEADS) { HEADS } else { 1 };
        if !dim.is_multiple_of(2) || dim < 12 {
            return Err(shapes.unsupported(format!("a width of {dim} is not known")));
        }
        let first = "transformer_blocks.0";
        Ok(Self {
            channels,
            dim,
            heads,
            ffn: shapes.matrix(&format!("{first}.ff.net.0.proj.weight"))?.0,
            blocks: shapes.count("transformer_blocks"),
            context: shapes.matrix("caption_projection.linear_1.weight")?.1,
            waves: shapes
                .matrix("adaln_single.emb.timestep_embedder.linear_1.weight")?
                .1,
            causal: false,
            reach: [20.0, 2048.0, 2048.0],
        })
    }

    /// The same with what the file's text says of it: JSON of which `transformer` is a part.
    #[must_use]
    pub fn with_text(mut self, text: Option<&str>) -> Self {
        let said: Option<serde_json::Value> = text.and_then(|text| serde_json::from_str(text).ok());
        let Some(said) = said else { return self };
        let said = &said["transformer"];
        if let Some(causal) = said["causal_temporal_positioning"].as_bool() {
            self.causal = causal;
        }
        if let Some(reach) = said["positional_embedding_max_pos"].as_array() {
            let numbers = reach.iter().filter_map(serde_json::Value::as_f64);
            let numbers: Vec<f32> = numbers.map(|n| n as f32).filter(|n| *n > 0.0).collect();
            if let Ok(reach) = numbers.try_into() {
                self.reach = reach;
            }
        }
        self
    }

    /// What a pass takes.
    pub(crate) fn pass(&self) -> PassMemory {
        /// Values of a token that a pass holds at its fullest, in widths of the network.
        const HELD: usize = 18;
        PassMemory::of_cells(1, self.dim, HELD)
    }
}
