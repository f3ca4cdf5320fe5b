//! The shape of the network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// How the tokens of reference pictures are placed and modulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceMethod {
    /// Each on a plane of its own, counted upwards.
    Index,
    /// The same, and told that there is no noise in them.
    IndexTimestepZero,
    /// Counted downwards.
    NegativeIndex,
    /// All on one plane, beside each other.
    Offset,
}

impl ReferenceMethod {
    /// By the name that conditionings have for it. Every other name means the offset.
    pub fn by_name(name: &str) -> Self {
        match name {
            "index" => Self::Index,
            "index_timestep_zero" => Self::IndexTimestepZero,
            "negative_index" => Self::NegativeIndex,
            _ => Self::Offset,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::IndexTimestepZero => "index_timestep_zero",
            Self::NegativeIndex => "negative_index",
            Self::Offset => "offset",
        }
    }
}

/// The shape of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenConfig {
    pub layers: usize,
    /// Channels of a token.
    pub width: usize,
    /// Channels of one head.
    pub head: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Channels of a token's square that goes in, and of one that comes out.
    pub input: usize,
    pub output: usize,
    /// Inner channels of the two feed-forward parts of a block.
    pub inner: usize,
    /// Channels of a head for the positions on each axis.
    pub axes: [usize; 3],
    /// The method unless a conditioning says another.
    pub method: ReferenceMethod,
    /// Whether it is told which of two kinds of picture it makes.
    pub kinds: bool,
}

/// Cells along a side of the square that a token stands for.
pub(super) const PATCH: usize = 2;
/// The base of the positions' frequencies.
pub(super) const THETA: f64 = 10000.0;
/// The first layer that all networks of this family have.
pub(super) const SIGN: &str = "txt_norm.weight";
/// Marks files whose references are told that there is no noise in them.
pub(super) const TIMESTEP_ZERO: &str = "__index_timestep_zero__";
/// The table of the two kinds of picture.
pub(super) const KINDS: &str = "time_text_embed.addition_t_embedding";

/// How a head's channels are shared by index, row and column: 16, 56 and 56 of 128.
pub(super) fn axes(head: usize) -> [usize; 3] {
    let index = head / 16 * 2;
    let row = (head - index) / 4 * 2;
    [index, row, head - index - row]
}

impl QwenConfig {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (width, input) = shapes.matrix("img_in.weight")?;
        let head = shapes.vector("transformer_blocks.0.attn.norm_q.weight")?;
        if !head.is_multiple_of(2) || !width.is_multiple_of(head) {
            let reason = format!("{width} channels do not make heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        let output = match store.shape("proj_out.weight") {
            Some(&[out, _]) => out,
            // Control nets have none.
            _ => input,
        };
        let kinds = store.has(&format!("{KINDS}.weight"));
        Ok(Self {
            layers: shapes.count("transformer_blocks"),
            width,
            head,
            context: shapes.matrix("txt_in.weight")?.1,
            input,
            output,
            inner: shapes
                .matrix("transformer_blocks.0.img_mlp.net.0.proj.weight")?
                .0,
            axes: axes(head),
            method: if store.has(TIMESTEP_ZERO) {
                ReferenceMethod::IndexTimestepZero
            } else if kinds {
                ReferenceMethod::NegativeIndex
            } else {
                ReferenceMethod::Index
            },
            kinds,
        })
    }

    pub fn heads(&self) -> usize {
        self.width / self.head.max(1)
    }

    /// Channels of the latent.
    pub fn channels(&self) -> usize {
        self.output / (PATCH * PATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_shared_by_the_axes() {
        assert_eq!(axes(128), [16, 56, 56]);
        assert_eq!(axes(32), [4, 14, 14]);
        assert_eq!(axes(8).iter().sum::<usize>(), 8);
        let names = ["index", "index_timestep_zero", "negative_index", "offset"];
        for name in names {
            assert_eq!(ReferenceMethod::by_name(name).name(), name);
        }
        assert_eq!(ReferenceMethod::by_name("uxo"), ReferenceMethod::Offset);
    }
}
