//! What transformers do between their layers: gates, gated activations.

use rayon::prelude::*;

use super::misc::last;
use crate::cpu::isa::isa;
use crate::cpu::math;
use crate::device::Device;
use crate::elements::allocate;
use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// How the values of a gate are spread over the rows of a tensor.
pub(super) fn rows_per_gate(op: &'static str, x: &Tensor, gate: &Tensor) -> Result<usize> {
    let width = last(x, op)?;
    let (rows, items) = (x.len() / width.max(1), x.shape()[0]);
    if gate.shape().last() != Some(&width) {
        return Err(TensorError::mismatch(op, x.shape(), gate.shape()));
    }
    match gate.len() / width.max(1) {
        1 => Ok(rows.max(1)),
        n if n == rows => Ok(1),
        n if n == items => Ok(rows / items.max(1)),
        _ => Err(TensorError::mismatch(op, x.shape(), gate.shape())),
    }
}

/// `x + gate * y`, the gate (b, c) or (b, 1, c) for every row of an item, (c) for all, or of the shape of `x`.
pub fn add_gated(x: Tensor, gate: &Tensor, y: &Tensor) -> Result<Tensor> {
    const OP: &str = "add gated";
    x.check_device(OP, gate)?;
    x.check_device(OP, y)?;
    if x.shape() != y.shape() || x.rank() == 0 {
        return Err(TensorError::mismatch(OP, x.shape(), y.shape()));
    }
    let each = rows_per_gate(OP, &x, gate)?;
    let width = last(&x, OP)?;
    if x.is_empty() {
        return Ok(x);
    }
    let mut x = x;
    match x.device() {
        Device::Gpu(_) => {
            return x.gpu_replaced(OP, |x, out| {
                let (gate, y) = (gate.gpu_in(OP, x.format())?, y.gpu_in(OP, x.format())?);
                x.device()
                    .fusions()
                    .offer_add_gated(x, &gate, &y, out, (width, each))
            });
        }
        Device::Cpu | Device::Sim(_) => {
            let (gates, ys) = (gate.values(), y.values());
            let rows = x.values_mut()?.par_chunks_mut(width);
            rows.zip(ys.par_chunks(width))
                .enumerate()
                .for_each(|(row, (x, y))| {
                    let gate = &gates[row / each * width..][..width];
                    for ((x, y), g) in x.iter_mut().zip(y).zip(gate) {
                        *x += g * y;
                    }
                });
        }
    }
    Ok(x)
}

/// `x * (1 + scale)`, plus `shift` if there is one; both as the gate of [`add_gated`].
pub fn modulate(x: Tensor, scale: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "modulate";
    x.check_device(OP, scale)?;
    if x.rank() == 0 {
        return Err(TensorError::rank(OP, "at least 1", x.shape()));
    }
    let each = rows_per_gate(OP, &x, scale)?;
    if let Some(shift) = shift {
        x.check_device(OP, shift)?;
        if rows_per_gate(OP, &x, shift)? != each {
            return Err(TensorError::mismatch(OP, scale.shape(), shift.shape()));
        }
    }
    let width = last(&x, OP)?;
    if x.is_empty() {
        return Ok(x);
    }
    let mut x = x;
    match x.device() {
        Device::Gpu(_) => {
            return x.gpu_replaced(OP, |x, out| {
                let scale = scale.gpu_in(OP, x.format())?;
                let shift = shift.map(|t| t.gpu_in(OP, x.format())).transpose()?;
                x.device()
                    .fusions()
                    .offer_modulate(x, &scale, shift.as_deref(), out, (width, each))
            });
        }
        Device::Cpu | Device::Sim(_) => {
            let (scales, shifts) = (scale.values(), shift.map(Tensor::values));
            let rows = x.values_mut()?.par_chunks_mut(width);
            rows.enumerate().for_each(|(row, x)| {
                let first = row / each * width;
                let scale = &scales[first..][..width];
                match shifts {
                    None => {
                        for (x, s) in x.iter_mut().zip(scale) {
                            *x *= 1.0 + s;
                        }
                    }
                    Some(shifts) => {
                        let shift = &shifts[first..][..width];
                        for ((x, s), o) in x.iter_mut().zip(scale).zip(shift) {
                            *x = *x * (1.0 + s) + o;
                        }
                    }
                }
            });
        }
    }
    Ok(x)
}

/// `silu(gate) * value`, element by element.
pub fn swiglu(gate: &Tensor, value: &Tensor) -> Result<Tensor> {
    const OP: &str = "swiglu";
    gate.check_device(OP, value)?;
    if gate.shape() != value.shape() {
        return Err(TensorError::mismatch(OP, gate.shape(), value.shape()));
    }
    let (gates, values) = match gate.device() {
        Device::Gpu(_) => {
            let gates = gate.gpu_on(OP)?;
            let values = value.gpu_in(OP, gates.format())?;
            let out = gates.device().fusions().offer_swiglu(gates, &values)?;
            return Ok(Tensor::from_gpu(gate.shape(), out));
        }
        Device::Cpu | Device::Sim(_) => (gate.values(), value.values()),
    };
    let room = gate.room_for(gate.shape())?;
    let mut out = allocate(gate.shape(), 0.0)?;
    let isa = isa();
    out.par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(part, out)| {
            let first = part * CHUNK;
            out.copy_from_slice(&gates[first..][..out.len()]);
            math::map::<math::Silu>(isa, out);
            for (out, value) in out.iter_mut().zip(&values[first..]) {
                *out *= value;
            }
        });
    Ok(Tensor::kept(gate.shape(), room, out))
}

/// [`swiglu`] of the halves of the last dimension: the first is the gate.
pub fn swiglu_halves(x: &Tensor) -> Result<Tensor> {
    const OP: &str = "swiglu";
    let width = last(x, OP)?;
    if !width.is_multiple_of(2) {
        return Err(TensorError::invalid(
            OP,
            format!("{width} channels have no halves"),
        ));
    }
    let half = width / 2;
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = half;
    }
    let values = match x.device() {
        Device::Gpu(_) => {
            let elements = x.gpu_on(OP)?;
            let out = elements
                .device()
                .fusions()
                .offer_swiglu_halves(elements, width)?;
            return Ok(Tensor::from_gpu(shape, out));
        }
        Device::Cpu | Device::Sim(_) => x.values(),
    };
    let room = x.room_for(&shape)?;
    let mut out = allocate(&shape, 0.0)?;
    if !out.is_empty() {
        let isa = isa();
        let rows = out.par_chunks_mut(half).zip(values.par_chunks(width));
        rows.for_each(|(out, row)| {
            out.copy_from_slice(&row[..half]);
            math::map::<math::Silu>(isa, out);
            for (out, value) in out.iter_mut().zip(&row[half..]) {
                *out *= value;
            }
        });
    }
    Ok(Tensor::kept(shape, room, out))
}

/// Elements that one task works on: fixed, so that nothing depends on the number of threads.
const CHUNK: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(shape: &[usize]) -> Tensor {
        Tensor::from_fn(shape, |i| (i as f32 * 0.37).sin()).unwrap()
    }

    #[test]
    fn gates_are_for_items_rows_or_all() {
        let (x, y) = (wave(&[2, 3, 4]), wave(&[2, 3, 4]).mul_scalar(2.0));
        for shape in [&[2, 4][..], &[2, 1, 4], &[4], &[1, 1, 4], &[2, 3, 4]] {
            let gate = wave(shape).add_scalar(0.5);
            let spread = match shape {
                [2, 4] => gate.reshape([2, 1, 4]).unwrap(),
                _ => gate.clone(),
            };
            let expected = x.add(&spread.mul(&y).unwrap()).unwrap();
            let found = add_gated(x.clone(), &gate, &y).unwrap();
            for (a, b) in found.data().iter().zip(expected.data()) {
                assert!((a - b).abs() < 1e-6, "{shape:?}");
            }
            let scaled = x.mul(&spread.add_scalar(1.0)).unwrap();
            let moved = modulate(x.clone(), &gate, Some(&gate)).unwrap();
            let plain = modulate(x.clone(), &gate, None).unwrap();
            for ((a, b), s) in moved.data().iter().zip(plain.data()).zip(scaled.data()) {
                assert!((b - s).abs() < 1e-6 && a.is_finite(), "{shape:?}");
            }
            let difference = moved.sub(&plain).unwrap();
            let expected = spread.expand(&[2, 3, 4]).unwrap();
            for (a, b) in difference.data().iter().zip(expected.data()) {
                assert!((a - b).abs() < 1e-6, "{shape:?}");
            }
        }
        assert!(add_gated(x.clone(), &wave(&[3, 4]), &y).is_err());
        assert!(modulate(x, &wave(&[2, 3]), None).is_err());
    }

    #[test]
    fn halves_and_pairs_are_alike() {
        let both = wave(&[2, 5, 8]);
        let (gate, value) = (both.narrow(2, 0, 4).unwrap(), both.narrow(2, 4, 4).unwrap());
        let pair = swiglu(&gate, &value).unwrap();
        assert_eq!(swiglu_halves(&both).unwrap(), pair);
        let expected = gate.map(|v| v / (1.0 + (-v).exp())).mul(&value).unwrap();
        for (a, b) in pair.data().iter().zip(expected.data()) {
            assert!((a - b).abs() < 1e-6);
        }
        assert!(swiglu_halves(&wave(&[2, 3])).is_err());
    }
}
