//! The shape of the network, read from keys and shapes.

use crate::error::Result;
use crate::store::WeightStore;
use crate::transformer::Shapes;

/// The shape of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qwen21Config {
    pub layers: usize,
    /// Channels of a token.
    pub width: usize,
    /// Channels of one head.
    pub head: usize,
    /// Width of the prompt's vectors.
    pub context: usize,
    /// Channels of the latent that goes in, and of what comes out.
    pub input: usize,
    pub output: usize,
    /// Inner channels of the feed-forward part of a block.
    pub inner: usize,
    /// Whether the file has the gate and the values of the feed-forward part in one matrix.
    pub joined: bool,
    /// Channels of a head for the positions on each axis.
    pub axes: [usize; 3],
}

/// The base of the positions' frequencies.
pub(super) const THETA: f64 = 10000.0;
/// The layer that only networks of this family have.
pub(super) const SIGN: &str = "txt_in.text_norm.weight";

/// How a head's channels are shared by index, row and column: 16, 56 and 56 of 128.
fn axes(head: usize) -> [usize; 3] {
    let index = head / 16 * 2;
    let row = (head - index) / 4 * 2;
    [index, row, head - index - row]
}

impl Qwen21Config {
    pub fn detect(store: &WeightStore) -> Result<Self> {
        let shapes = Shapes(store);
        let (width, input) = shapes.matrix("img_in.weight")?;
        let head = shapes.vector("transformer_blocks.0.attn.norm_q.weight")?;
        if !head.is_multiple_of(2) || !width.is_multiple_of(head) {
            let reason = format!("{width} channels do not make heads of {head}");
            return Err(shapes.unsupported(reason));
        }
        Ok(Self {
            layers: shapes.count("transformer_blocks"),
            width,
            head,
            context: shapes.matrix("txt_in.in_layer.weight")?.1,
            input,
            output: shapes.matrix("proj_out.weight")?.0,
            inner: shapes.matrix("transformer_blocks.0.img_mlp.out.weight")?.1,
            joined: shapes.has("transformer_blocks.0.img_mlp.gate_up.weight"),
            axes: axes(head),
        })
    }

    pub fn heads(&self) -> usize {
        self.width / self.head.max(1)
    }
}
