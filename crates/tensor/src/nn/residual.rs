//! Both ends of a residual block over feature maps: its input, which may lie in two tensors, and what is added to its result.

use super::misc::{Act, concat_channels};
use super::{After, Conv2d, GroupNorm, Linear};
use crate::{Result, Tensor};

/// The channels of one feature map (b, h, w, c), or those of two, one behind the other.
pub enum ChannelParts {
    One(Tensor),
    Two(Tensor, Tensor),
}

impl From<Tensor> for ChannelParts {
    fn from(x: Tensor) -> Self {
        Self::One(x)
    }
}

impl From<(Tensor, Tensor)> for ChannelParts {
    fn from((x, behind): (Tensor, Tensor)) -> Self {
        Self::Two(x, behind)
    }
}

impl ChannelParts {
    /// All channels in one tensor.
    pub fn joined(self) -> Result<Tensor> {
        match self {
            Self::One(x) => Ok(x),
            Self::Two(x, behind) => concat_channels(&[&x, &behind]),
        }
    }
}

/// What goes around a residual block.
pub enum Shortcut<'a> {
    Done(Tensor),
    /// What a layer makes of these, together with the convolution that it is added to.
    Pending(&'a Linear, ChannelParts),
}

impl GroupNorm {
    /// The norm of a residual block's input, and what goes around the block: the input, or what `layer` makes of it. It is added
    /// to what `last` makes, see [`Conv2d::forward_to`]; devices differ in what they compute together.
    pub fn with_shortcut<'a>(
        &self,
        x: ChannelParts,
        act: Act,
        layer: Option<&'a Linear>,
        last: &Conv2d,
    ) -> Result<(Tensor, Shortcut<'a>)> {
        match (x, layer) {
            (ChannelParts::One(x), None) => Ok((self.forward(&x, act)?, Shortcut::Done(x))),
            (ChannelParts::One(x), Some(layer)) => {
                if last.joins(layer, &x) {
                    let normed = self.forward(&x, act)?;
                    return Ok((normed, Shortcut::Pending(layer, x.into())));
                }
                let around = layer.forward(&x)?;
                Ok((self.forward_owned(x, act)?, Shortcut::Done(around)))
            }
            (ChannelParts::Two(x, behind), layer) => {
                if let Some(layer) = layer
                    && let Some(normed) = self.forward_of_two(&x, &behind, act)?
                {
                    if last.joins(layer, &x) {
                        let parts = (x, behind).into();
                        return Ok((normed, Shortcut::Pending(layer, parts)));
                    }
                    if let Some(around) = layer.forward_of_two(&x, &behind)? {
                        return Ok((normed, Shortcut::Done(around)));
                    }
                }
                let joined = concat_channels(&[&x, &behind])?;
                drop((x, behind));
                self.with_shortcut(joined.into(), act, layer, last)
            }
        }
    }
}

impl Conv2d {
    /// [`Self::forward_with`] plus what goes around a residual block that ends here.
    pub fn forward_to(
        &self,
        h: &Tensor,
        shortcut: Shortcut<'_>,
        after: After<'_>,
    ) -> Result<Tensor> {
        let around = match shortcut {
            Shortcut::Done(around) => around,
            Shortcut::Pending(layer, parts) => {
                let (x, behind) = match &parts {
                    ChannelParts::One(x) => (x, None),
                    ChannelParts::Two(x, behind) => (x, Some(behind)),
                };
                if let Some(made) = self.forward_and(h, layer, (x, behind), after)? {
                    return Ok(made);
                }
                layer.forward(&parts.joined()?)?
            }
        };
        let add = Some(&around);
        self.forward_with(h, After { add, ..after })
    }
}
