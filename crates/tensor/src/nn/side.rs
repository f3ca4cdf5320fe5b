//! What a layer adds to its result beside its weight: a product of small matrices of the input, as LoRA has them.

use super::conv::{Conv2d, Padding};
use super::linear::{After, Linear};
use super::slot::SlotGroup;
use crate::dtype::Dtype;
use crate::error::{Result, TensorError};
use crate::stored::Stored;
use crate::tensor::Tensor;

/// The matrices of one addition: `scale * up(mid(down(x)))`.
#[derive(Debug, Clone, Copy)]
pub struct LowRank<'a> {
    pub down: &'a Stored,
    /// Kernels between the two, in which case `down` looks at single pixels.
    pub mid: Option<&'a Stored>,
    pub up: &'a Stored,
    pub scale: f64,
}

enum SideStep {
    Linear(Linear),
    Conv(Conv2d),
}

/// Products of small matrices that a layer adds to its result, beside its weight.
pub struct Side {
    steps: Vec<SideStep>,
    up: Linear,
}

/// A weight with all dimensions after the first taken together.
fn flat(weight: &Stored) -> Result<Stored> {
    let rows = weight.shape().first().copied().unwrap_or(0);
    if rows == 0 || weight.is_empty() {
        return Err(TensorError::invalid("side", "an empty matrix"));
    }
    weight.reshape([rows, weight.len() / rows])
}

fn linear(weight: &Stored, group: &SlotGroup) -> Result<Linear> {
    Ok(Linear::in_group(&flat(weight)?, None, group)?.keeping_copies())
}

/// The last matrix with the scale in it.
fn scaled(up: &Stored, scale: f64, group: &SlotGroup) -> Result<Linear> {
    let plain = up.to_f32()?.mul_scalar(scale as f32);
    linear(&Stored::from_f32(&plain, Dtype::F32)?, group)
}

impl Side {
    /// Beside a linear layer. The matrices are in main memory and in the group of the layer.
    pub fn linear(parts: LowRank<'_>, group: &SlotGroup) -> Result<Self> {
        let inner = [Some(parts.down), parts.mid].into_iter().flatten();
        let steps = inner.map(|weight| linear(weight, group).map(SideStep::Linear));
        Ok(Self {
            steps: steps.collect::<Result<_>>()?,
            up: scaled(parts.up, parts.scale, group)?,
        })
    }

    /// Beside a convolution of this stride and padding.
    pub fn conv(
        parts: LowRank<'_>,
        stride: usize,
        padding: Padding,
        group: &SlotGroup,
    ) -> Result<Self> {
        let kernels = |weight: &Stored| -> Result<SideStep> {
            let conv = Conv2d::in_group(weight, None, stride, padding, group)?;
            Ok(SideStep::Conv(conv.keeping_copies()))
        };
        let steps = match parts.mid {
            None => vec![kernels(parts.down)?],
            Some(mid) => vec![SideStep::Linear(linear(parts.down, group)?), kernels(mid)?],
        };
        Ok(Self {
            steps,
            up: scaled(parts.up, parts.scale, group)?,
        })
    }

    /// The addition for an input, enlarged to `size` where a convolution enlarges it, plus `add`.
    fn forward(
        &self,
        x: &Tensor,
        size: Option<(usize, usize)>,
        add: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut h: Option<Tensor> = None;
        for step in &self.steps {
            let from = h.as_ref().unwrap_or(x);
            h = Some(match (step, size) {
                (SideStep::Linear(layer), _) => layer.forward(from)?,
                (SideStep::Conv(layer), None) => layer.forward(from)?,
                (SideStep::Conv(layer), Some(size)) => {
                    layer.upsampled(from, size, After::default())?
                }
            });
        }
        let after = After {
            add,
            ..After::default()
        };
        self.up.forward_with(h.as_ref().unwrap_or(x), after)
    }
}

/// All additions and `add`; none if there is nothing to add.
pub(super) fn sum(
    sides: &[Side],
    x: &Tensor,
    size: Option<(usize, usize)>,
    add: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let mut sum: Option<Tensor> = None;
    for side in sides {
        sum = Some(side.forward(x, size, sum.as_ref().or(add))?);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::Device;
    use crate::nn::Act;
    use crate::synthetic;

    fn value(name: &str, shape: &[usize]) -> Stored {
        Stored::from(&synthetic::value(name, shape, 0.5).unwrap())
    }

    /// `weight + scale * up x down`, both flat.
    fn merged(weight: &Stored, up: &Stored, down: &Stored, scale: f32) -> Stored {
        let (up, down) = (up.to_f32().unwrap(), down.to_f32().unwrap());
        let (out, rank) = (up.shape()[0], up.shape()[1]);
        let columns = down.len() / rank;
        let mut sum = weight.to_f32().unwrap();
        for (i, v) in sum.data_mut().iter_mut().enumerate() {
            let (row, column) = (i / columns, i % columns);
            for r in 0..rank {
                *v += scale * up.data()[row * rank + r] * down.data()[r * columns + column];
            }
        }
        assert_eq!(sum.len(), out * columns);
        Stored::from(&sum)
    }

    fn near(a: &Tensor, b: &Tensor) {
        assert_eq!(a.shape(), b.shape());
        for (x, y) in a.data().iter().zip(b.data()) {
            assert!((x - y).abs() < 1e-5, "{x} {y}");
        }
    }

    #[test]
    fn beside_a_linear_layer() {
        let cpu = Device::cpu();
        let (weight, bias) = (value("w", &[6, 4]), value("b", &[6]));
        let (up, down) = (value("u", &[6, 2]), value("d", &[2, 4]));
        let base = Arc::new(Linear::new(&weight, Some(&bias), &cpu).unwrap());
        let parts = LowRank {
            down: &down,
            mid: None,
            up: &up,
            scale: 0.7,
        };
        let side = Side::linear(parts, base.slot().group()).unwrap();
        let beside = base.beside(Some(&bias), vec![side]).unwrap();
        let whole = Linear::new(&merged(&weight, &up, &down, 0.7), Some(&bias), &cpu).unwrap();
        let x = synthetic::value("x", &[2, 3, 4], 1.0).unwrap();
        let add = synthetic::value("a", &[2, 3, 6], 1.0).unwrap();
        let per_item = synthetic::value("p", &[2, 6], 1.0).unwrap();
        for act in [Act::None, Act::Gelu, Act::Silu] {
            for (add, per_item) in [(None, None), (Some(&add), Some(&per_item))] {
                let after = After {
                    act,
                    add,
                    per_item,
                    for_norm: false,
                };
                let (one, two) = (
                    beside.forward_with(&x, after).unwrap(),
                    whole.forward_with(&x, after).unwrap(),
                );
                near(&one, &two);
            }
        }
        near(&beside.geglu(&x).unwrap(), &whole.geglu(&x).unwrap());
        assert_eq!(beside.weight().unwrap(), base.weight().unwrap());
    }

    #[test]
    fn beside_a_convolution() {
        let cpu = Device::cpu();
        let weight = value("w", &[6, 4, 3, 3]);
        let (up, down) = (value("u", &[6, 2, 1, 1]), value("d", &[2, 4, 3, 3]));
        for (stride, padding) in [
            (1, Padding::Same(1)),
            (2, Padding::Same(1)),
            (2, Padding::RightBottom),
        ] {
            let base = Arc::new(Conv2d::new(&weight, None, stride, padding, &cpu).unwrap());
            let parts = LowRank {
                down: &down,
                mid: None,
                up: &up,
                scale: -1.5,
            };
            let side = Side::conv(parts, stride, padding, base.slot().group()).unwrap();
            let beside = base.beside(None, vec![side]).unwrap();
            let sum = merged(&weight, &up, &down, -1.5);
            let whole = Conv2d::new(&sum, None, stride, padding, &cpu).unwrap();
            let x = synthetic::value("x", &[1, 5, 6, 4], 1.0).unwrap();
            near(&beside.forward(&x).unwrap(), &whole.forward(&x).unwrap());
            let large = |conv: &Conv2d| conv.upsampled(&x, (10, 12), After::default()).unwrap();
            near(&large(&beside), &large(&whole));
        }
    }

    /// The small matrices come to where the layer computes once, and go when the network rests or their room is needed.
    #[test]
    fn where_the_input_is() {
        let device = Device::register_sim(7391, 10_000).unwrap();
        let weight = value("w", &[6, 4]);
        let (up, down) = (value("u", &[6, 2]), value("d", &[2, 4]));
        let base = Arc::new(Linear::new(&weight, None, &device).unwrap());
        let parts = LowRank {
            down: &down,
            mid: None,
            up: &up,
            scale: 1.0,
        };
        let side = Side::linear(parts, base.slot().group()).unwrap();
        let beside = base.beside(None, vec![side]).unwrap();
        let x = Tensor::ones([1, 4]).unwrap().to(&device).unwrap();
        let before = (device.used(), device.copies().into.bytes);
        let y = beside.forward(&x).unwrap();
        assert_eq!(y.device(), device);
        drop(y);
        let matrices = 4 * (12 + 8);
        assert_eq!(device.used(), before.0 + matrices);
        beside.forward(&x).unwrap();
        assert_eq!(device.copies().into.bytes - before.1, matrices);
        base.slot().group().drop_ahead();
        assert_eq!(device.used(), before.0);
        beside.forward(&x).unwrap();
        let rest = device.allocate(10_000 - before.0);
        assert_eq!(rest.unwrap().bytes() + before.0, 10_000);
    }
}
