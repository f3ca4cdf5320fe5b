//! Where tokens are: of the prompt, of the picture, and of pictures beside it that it refers to.

use fresco_tensor::Tensor;

use super::config::FluxConfig;
use crate::error::Result;
use crate::transformer::{PatchOrder, RopeScale, circular_pad, grid_positions, to_tokens};

/// How reference pictures are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Each further along the first axis.
    Index,
    /// All on the picture's plane, one after the other.
    Plane,
    /// All on a second plane, next to each other.
    Offset,
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "index" => Self::Index,
            "uxo" => Self::Plane,
            _ => Self::Offset,
        }
    }
}

/// Tokens and positions of a picture with its references.
pub(super) struct Picture {
    /// (b, n, c)
    pub(super) tokens: Tensor,
    positions: Vec<[f64; 3]>,
    /// Rows and columns of the picture itself, and how many of the tokens are its own.
    pub(super) size: (usize, usize),
    pub(super) own: usize,
}

fn tokens(x: &Tensor, config: &FluxConfig) -> Result<(Tensor, (usize, usize))> {
    let x = circular_pad(x, config.patch)?;
    let [_, _, h, w] = x.dims4()?;
    let size = (h / config.patch, w / config.patch);
    Ok((to_tokens(&x, config.patch, PatchOrder::ChannelFirst)?, size))
}

impl Picture {
    pub(super) fn new(
        x: &Tensor,
        references: &[Tensor],
        method: Option<&str>,
        config: &FluxConfig,
    ) -> Result<Self> {
        let (own, size) = tokens(x, config)?;
        let count = own.dim(1)?;
        let mut positions: Vec<[f64; 3]> = grid_positions(0.0, size, (0.0, 0.0)).collect();
        let mut all = vec![own];
        let method = Method::of(method.unwrap_or_else(|| config.reference_method()));
        let patch = config.patch;
        let half = |cells: usize| ((cells + patch / 2) / patch) as f64;
        // How far the references reach so far, in cells.
        let (mut far_h, mut far_w) = (0, 0);
        let mut index = 0.0;
        for reference in references {
            let [_, _, rh, rw] = reference.dims4()?;
            let (mut down, mut right) = (0, 0);
            match method {
                Method::Index => index += config.reference_step,
                Method::Plane => {
                    index = 0.0;
                    down = size.0 * patch + far_h;
                    right = size.1 * patch + far_w;
                    far_h += rh;
                    far_w += rw;
                }
                Method::Offset => {
                    index = 1.0;
                    if rh + far_h > rw + far_w {
                        right = far_w;
                    } else {
                        down = far_h;
                    }
                    far_h = far_h.max(rh + down);
                    far_w = far_w.max(rw + right);
                }
            }
            let (tokens, size) = tokens(reference, config)?;
            positions.extend(grid_positions(index, size, (half(down), half(right))));
            all.push(tokens);
        }
        let all: Vec<&Tensor> = all.iter().collect();
        Ok(Self {
            tokens: Tensor::cat(&all, 1)?,
            positions,
            size,
            own: count,
        })
    }

    /// Moves the picture's own tokens; references stay where they are.
    pub(super) fn moved(mut self, scale: Option<&RopeScale>) -> Self {
        if let Some(scale) = scale {
            scale.move_picture(&mut self.positions[..self.own]);
        }
        self
    }

    /// A picture by itself whose tokens somebody else makes.
    pub(super) fn of_size(size: (usize, usize)) -> Self {
        Self {
            tokens: Tensor::scalar(0.0),
            positions: grid_positions(0.0, size, (0.0, 0.0)).collect(),
            size,
            own: size.0 * size.1,
        }
    }

    /// The positions of the prompt's tokens and then those of the picture, with as many numbers as there are axes. `before`
    /// of the `text` tokens stand before the prompt and are where its first one is.
    pub(super) fn positions(
        &self,
        (before, text): (usize, usize),
        config: &FluxConfig,
    ) -> Vec<f64> {
        let axes = config.axes.len();
        let mut all = vec![0.0; (text + self.positions.len()) * axes];
        for (n, position) in all.chunks_exact_mut(axes).enumerate() {
            match n.checked_sub(text).and_then(|at| self.positions.get(at)) {
                Some(own) => {
                    for (to, from) in position.iter_mut().zip(own) {
                        *to = *from;
                    }
                }
                None => {
                    for &axis in &config.text_axes {
                        if let Some(to) = position.get_mut(axis) {
                            *to = n.saturating_sub(before) as f64;
                        }
                    }
                }
            }
        }
        all
    }
}
