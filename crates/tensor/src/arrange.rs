//! Moving elements around: permuting, slicing, joining, repeating. Nothing here changes a value.

use crate::buffer::Buffer;
use crate::cancel::Cancel;
use crate::cpu::isa::isa;
use crate::cpu::math_transpose::transpose_all;
use crate::cpu::walk::{Walk, gathered};
use crate::device::Device;
use crate::elements::{element_count, reserve, strides};
use crate::error::{Result, TensorError};
use crate::gpu::GpuBuffer;
use crate::tensor::Tensor;

/// Start offsets of a strided walk in row-major order of `shape`.
pub(crate) struct Offsets {
    shape: Vec<usize>,
    strides: Vec<isize>,
    index: Vec<usize>,
    offset: isize,
    left: usize,
}

impl Offsets {
    pub(crate) fn new(shape: &[usize], strides: &[isize], base: isize) -> Self {
        Self {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            index: vec![0; shape.len()],
            offset: base,
            left: shape.iter().product(),
        }
    }
}

impl Iterator for Offsets {
    type Item = isize;

    fn next(&mut self) -> Option<isize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let current = self.offset;
        for d in (0..self.shape.len()).rev() {
            self.index[d] += 1;
            self.offset += self.strides[d];
            if self.index[d] < self.shape[d] {
                break;
            }
            self.offset -= self.strides[d] * self.shape[d] as isize;
            self.index[d] = 0;
        }
        Some(current)
    }
}

/// Reads `shape` elements at the given strides into a new tensor. `kept` is the shape of the result, which may group
/// dimensions of the walk (repetition walks more dimensions than it returns).
fn gather(
    from: &Tensor,
    walk: &[usize],
    walk_strides: &[isize],
    base: isize,
    kept: Vec<usize>,
) -> Result<Tensor> {
    let (room, data) = match from.device() {
        Device::Gpu(_) => {
            element_count(&kept)?;
            let elements = from.on_gpu()?;
            let gpu = elements.device();
            let found = gpu.gather(elements, walk, walk_strides, base)?;
            return Ok(Tensor::from_gpu(kept, found));
        }
        Device::Cpu | Device::Sim(_) => (from.room_for(&kept)?, from.values()),
    };
    // Merge neighbours that step together, so that the inner loops are long.
    let mut dims: Vec<(usize, isize)> = Vec::with_capacity(walk.len());
    for (&size, &stride) in walk.iter().zip(walk_strides).filter(|(s, _)| **s != 1) {
        match dims.last_mut() {
            Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
            _ => dims.push((size, stride)),
        }
    }
    let inner = dims.pop().unwrap_or((1, 1));
    let (sizes, steps): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
    let walk = Walk {
        sizes: &sizes,
        strides: &steps,
        base,
        inner,
    };
    let out = gathered(data, &walk, &kept)?;
    Ok(Tensor::kept(kept, room, out))
}

impl Tensor {
    /// Reorders dimensions: dimension `i` of the result is dimension `order[i]` of `self`.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let mut seen = vec![false; self.rank()];
        for &d in order {
            self.check_dim("permute", d)?;
            seen[d] = true;
        }
        if order.len() != self.rank() || seen.contains(&false) {
            return Err(TensorError::mismatch("permute", self.shape(), order));
        }
        let from = strides(self.shape());
        let shape: Vec<_> = order.iter().map(|&d| self.shape()[d]).collect();
        let steps: Vec<_> = order.iter().map(|&d| from[d]).collect();
        gather(self, &shape, &steps, 0, shape.clone())
    }

    /// Swaps two dimensions.
    pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
        self.check_dim("transpose", a)?;
        self.check_dim("transpose", b)?;
        let mut order: Vec<_> = (0..self.rank()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// Moves one dimension to another place, keeping the order of the others.
    pub fn movedim(&self, from: usize, to: usize) -> Result<Self> {
        self.check_dim("movedim", from)?;
        self.check_dim("movedim", to)?;
        let mut order: Vec<_> = (0..self.rank()).filter(|&d| d != from).collect();
        order.insert(to, from);
        self.permute(&order)
    }

    /// (b, h, w, c) to (b, c, h, w): a picture as the resize and convolution functions want it.
    pub fn nhwc_to_nchw(&self) -> Result<Self> {
        let [b, h, w, c] = self.dims4()?;
        self.transpose_planes([b, h * w, c], [b, c, h, w])
    }

    /// (b, c, h, w) to (b, h, w, c).
    pub fn nchw_to_nhwc(&self) -> Result<Self> {
        let [b, c, h, w] = self.dims4()?;
        self.transpose_planes([b, c, h * w], [b, h, w, c])
    }

    /// Turns each of the matrices of (batch, rows, columns), with the shape of all afterwards.
    fn transpose_planes(&self, matrices: [usize; 3], shape: [usize; 4]) -> Result<Self> {
        match self.device() {
            Device::Gpu(_) => {
                let [batch, rows, columns] = matrices;
                let steps = [rows * columns, 1, columns].map(|step| step as isize);
                let elements = self.on_gpu()?;
                let gpu = elements.device();
                let found = gpu.gather(elements, &[batch, columns, rows], &steps, 0)?;
                Ok(Self::from_gpu(shape, found))
            }
            Device::Cpu | Device::Sim(_) => {
                let room = self.room_for(&shape)?;
                let turned = transpose_all(isa(), self.values(), matrices, &shape)?;
                Ok(Self::kept(shape, room, turned))
            }
        }
    }

    /// Keeps `len` entries of a dimension from `start` on.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.check_dim("narrow", dim)?;
        let size = self.shape()[dim];
        if start > size || len > size - start {
            return Err(TensorError::IndexOutOfRange {
                op: "narrow",
                index: start.saturating_add(len),
                size,
            });
        }
        if len == size {
            return Ok(self.clone());
        }
        let steps = strides(self.shape());
        let mut shape = self.shape().to_vec();
        shape[dim] = len;
        let base = start as isize * steps[dim];
        if shape[..dim].iter().all(|&n| n == 1)
            && let Some(part) = self.part_on_gpu(base as usize, shape.clone())
        {
            return Ok(part);
        }
        gather(self, &shape, &steps, base, shape.clone())
    }

    /// One entry of a dimension, without that dimension.
    pub fn select(&self, dim: usize, index: usize) -> Result<Self> {
        self.narrow(dim, index, 1)?.squeeze(dim)
    }

    /// Removes a dimension of size 1; any other size is an error.
    pub fn squeeze(&self, dim: usize) -> Result<Self> {
        self.check_dim("squeeze", dim)?;
        let mut shape = self.shape().to_vec();
        shape.remove(dim);
        self.reshape(shape)
    }

    /// Inserts a dimension of size 1 before dimension `dim` (`dim` may equal the rank).
    pub fn unsqueeze(&self, dim: usize) -> Result<Self> {
        if dim > self.rank() {
            self.check_dim("unsqueeze", dim)?;
        }
        let mut shape = self.shape().to_vec();
        shape.insert(dim, 1);
        self.reshape(shape)
    }

    /// Joins tensors along an existing dimension; all other sizes must agree.
    pub fn cat(tensors: &[&Self], dim: usize) -> Result<Self> {
        let [first, rest @ ..] = tensors else {
            return Err(TensorError::invalid("cat", "no tensors given"));
        };
        first.check_dim("cat", dim)?;
        let mut shape = first.shape().to_vec();
        for t in rest {
            first.check_device("cat", t)?;
            let fits = t.rank() == shape.len()
                && (0..shape.len()).all(|d| d == dim || t.shape()[d] == shape[d]);
            if !fits {
                return Err(TensorError::mismatch("cat", first.shape(), t.shape()));
            }
            shape[dim] = shape[dim].saturating_add(t.shape()[dim]);
        }
        match first.device() {
            Device::Gpu(_) => {
                element_count(&shape)?;
                let outer = shape[..dim].iter().product();
                let joined = Self::cat_on_gpu("cat", outer, tensors)?;
                Ok(Self::from_gpu(shape, joined))
            }
            Device::Cpu | Device::Sim(_) => {
                let room = first.room_for(&shape)?;
                let joined = cat_values(tensors, dim, &shape)?;
                Ok(Self::kept(shape, room, joined))
            }
        }
    }

    /// The elements of tensors on one GPU, side by side in each of so many entries. They take the format of the first.
    pub(crate) fn cat_on_gpu(
        op: &'static str,
        outer: usize,
        tensors: &[&Self],
    ) -> Result<GpuBuffer> {
        let first = tensors[0].on_gpu()?;
        let format = first.format();
        let views = tensors.iter().map(|t| t.gpu_in(op, format));
        let views = views.collect::<Result<Vec<_>>>()?;
        let parts = views
            .iter()
            .map(|view| (&**view, view.len() / outer.max(1)));
        let parts: Vec<_> = parts.collect();
        first.device().cat(format, outer, &parts)
    }

    /// Joins tensors of one shape along a new dimension.
    pub fn stack(tensors: &[&Self], dim: usize) -> Result<Self> {
        let lifted = tensors
            .iter()
            .map(|t| t.unsqueeze(dim))
            .collect::<Result<Vec<_>>>()?;
        Self::cat(&lifted.iter().collect::<Vec<_>>(), dim)
    }

    /// Cuts a dimension into pieces of `size`; the last piece may be shorter.
    pub fn split(&self, dim: usize, size: usize) -> Result<Vec<Self>> {
        self.check_dim("split", dim)?;
        if size == 0 {
            return Err(TensorError::invalid("split", "pieces of size 0"));
        }
        let total = self.shape()[dim];
        (0..total)
            .step_by(size)
            .map(|start| self.narrow(dim, start, size.min(total - start)))
            .collect()
    }

    /// The last dimension in so many parts of equal size.
    pub fn split_last(&self, parts: usize) -> Result<Vec<Self>> {
        let width = self.shape().last().copied().unwrap_or(0);
        if parts == 0 || self.rank() == 0 || !width.is_multiple_of(parts) {
            return Err(TensorError::invalid(
                "split",
                format!("{:?} in {parts} parts", self.shape()),
            ));
        }
        let (dim, each) = (self.rank() - 1, width / parts);
        if let (Some(elements), true) = (self.gpu(), each > 0) {
            let rows = self.len() / width;
            let mut shape = self.shape().to_vec();
            shape[dim] = each;
            let in_place = |part: usize| self.part_on_gpu(part * each, shape.clone());
            if rows == 1
                && let Some(found) = (0..parts).map(in_place).collect()
            {
                return Ok(found);
            }
            let found = elements
                .device()
                .fusions()
                .offer_split_rows(elements, rows, parts)?;
            let found = found.into_iter();
            return Ok(found.map(|part| Self::from_gpu(&*shape, part)).collect());
        }
        (0..parts)
            .map(|part| self.narrow(dim, part * each, each))
            .collect()
    }

    /// The elements of tensors as one row, and where those of each are: [`Self::pieces`] finds them in place there.
    pub fn in_one_row(tensors: &[&Self]) -> Result<(Self, Vec<(usize, usize)>)> {
        // Of the smallest elements, so many begin where a GPU lets a part begin.
        const APART: usize = 128;
        let (mut rows, mut places, mut start) = (Vec::new(), Vec::new(), 0);
        for tensor in tensors {
            let len = tensor.len();
            let missing = len.next_multiple_of(APART) - len;
            rows.push(tensor.reshape([1, len])?);
            if missing > 0 {
                rows.push(Self::zeros([1, missing])?.to(&tensor.device())?);
            }
            places.push((start, len));
            start += len + missing;
        }
        let all = Self::cat(&rows.iter().collect::<Vec<_>>(), 1)?;
        Ok((all, places))
    }

    /// Parts of the elements, by their start and size, each as one row. On a GPU those of [`Self::in_one_row`] stay where they are, and all elements with them
    /// as long as one part is needed: unlike [`Self::narrow`], which does not let a small part keep a large whole.
    pub fn pieces(&self, places: &[(usize, usize)]) -> Result<Vec<Self>> {
        let flat = self.reshape([1, self.len()])?;
        let piece = |&(start, len): &(usize, usize)| {
            let in_place = flat.place_on_gpu(start, vec![1, len]);
            in_place.map_or_else(|| flat.narrow(1, start, len), Ok)
        };
        places.iter().map(piece).collect()
    }

    /// Tiles the whole tensor; counts are aligned to the last dimensions and may add dimensions in front.
    pub fn repeat(&self, counts: &[usize]) -> Result<Self> {
        if counts.len() < self.rank() {
            return Err(TensorError::mismatch("repeat", self.shape(), counts));
        }
        let added = counts.len() - self.rank();
        let from = strides(self.shape());
        let (mut walk, mut steps, mut shape) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &count) in counts.iter().enumerate() {
            let (size, step) = match i.checked_sub(added) {
                Some(d) => (self.shape()[d], from[d]),
                None => (1, 0),
            };
            walk.extend([count, size]);
            steps.extend([0, step]);
            shape.push(count.saturating_mul(size));
        }
        gather(self, &walk, &steps, 0, shape)
    }

    /// Repeats every entry of a dimension `count` times in place: a, a, b, b.
    pub fn repeat_interleave(&self, dim: usize, count: usize) -> Result<Self> {
        self.check_dim("repeat_interleave", dim)?;
        let mut shape = self.shape().to_vec();
        let mut walk = shape.clone();
        let mut steps = strides(&shape);
        shape[dim] = shape[dim].saturating_mul(count);
        walk.insert(dim + 1, count);
        steps.insert(dim + 1, 0);
        gather(self, &walk, &steps, 0, shape)
    }

    /// The last dimension, with an element for each distance from `1 - n` to `n - 1`, as matrices of `n` rows and columns: row `i`
    /// and column `j` have the element for `j - i`.
    pub fn by_distance(&self, n: usize) -> Result<Self> {
        let Some((&distances, outer)) = self.shape().split_last() else {
            return Err(TensorError::rank("by_distance", "at least 1", self.shape()));
        };
        if n == 0 || n.checked_mul(2).is_none_or(|twice| twice - 1 != distances) {
            return Err(TensorError::mismatch("by_distance", self.shape(), &[n, n]));
        }
        let shape = [outer, &[n, n]].concat();
        let mut steps = strides(self.shape());
        steps.pop();
        steps.extend([-1, 1]);
        gather(self, &shape, &steps, n as isize - 1, shape.clone())
    }

    /// Picks entries of a dimension in the given order; an index may occur more than once.
    pub fn index_select(&self, dim: usize, indices: &[usize]) -> Result<Self> {
        self.check_dim("index_select", dim)?;
        let (outer, size, inner) = self.around(dim);
        if let Some(&index) = indices.iter().find(|&&i| i >= size) {
            return Err(TensorError::IndexOutOfRange {
                op: "index_select",
                index,
                size,
            });
        }
        let mut shape = self.shape().to_vec();
        shape[dim] = indices.len();
        let (room, values) = match self.device() {
            Device::Gpu(_) => {
                element_count(&shape)?;
                let sizes = (outer, size, inner);
                let elements = self.on_gpu()?;
                let found = elements.device().index_select(elements, sizes, indices)?;
                return Ok(Self::from_gpu(shape, found));
            }
            Device::Cpu | Device::Sim(_) => (self.room_for(&shape)?, self.values()),
        };
        let mut out = reserve(&shape)?;
        let cancel = Cancel::current();
        for o in 0..outer {
            for &i in indices {
                cancel.check()?;
                out.extend_from_slice(&values[(o * size + i) * inner..][..inner]);
            }
        }
        Ok(Self::kept(shape, room, out))
    }

    /// Reverses the given dimensions.
    pub fn flip(&self, dims: &[usize]) -> Result<Self> {
        let mut steps = strides(self.shape());
        let mut base = 0;
        let mut flipped = vec![false; self.rank()];
        for &d in dims {
            self.check_dim("flip", d)?;
            if std::mem::replace(&mut flipped[d], true) {
                return Err(TensorError::invalid("flip", "a dimension is named twice"));
            }
            base += (self.shape()[d] as isize - 1) * steps[d];
            steps[d] = -steps[d];
        }
        let shape = self.shape().to_vec();
        gather(self, &shape, &steps, base, shape.clone())
    }

    /// Rotates the plane of two dimensions by `turns` quarter turns, from the first dimension towards the second.
    pub fn rot90(&self, turns: i64, first: usize, second: usize) -> Result<Self> {
        self.check_dim("rot90", first)?;
        self.check_dim("rot90", second)?;
        if first == second {
            return Err(TensorError::invalid("rot90", "needs two dimensions"));
        }
        match turns.rem_euclid(4) {
            0 => Ok(self.clone()),
            1 => self.flip(&[second])?.transpose(first, second),
            2 => self.flip(&[first, second]),
            _ => self.flip(&[first])?.transpose(first, second),
        }
    }

    /// Repeats dimensions of size 1 (and adds dimensions in front) until the tensor has the given shape.
    pub fn expand(&self, shape: &[usize]) -> Result<Self> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let steps = broadcast_strides(self.shape(), shape)
            .ok_or_else(|| TensorError::mismatch("expand", self.shape(), shape))?;
        gather(self, shape, &steps, 0, shape.to_vec())
    }

    /// Writes `source` into the box of `self` that starts at `start`. The box must lie inside.
    pub fn paste(&mut self, start: &[usize], source: &Self) -> Result<()> {
        let fits = start.len() == self.rank()
            && source.rank() == self.rank()
            && (0..self.rank())
                .all(|d| start[d].saturating_add(source.shape()[d]) <= self.shape()[d]);
        if !fits {
            return Err(TensorError::mismatch("paste", self.shape(), source.shape()));
        }
        self.check_device("paste", source)?;
        if source.is_empty() {
            return Ok(());
        }
        let steps = strides(self.shape());
        let base: isize = start
            .iter()
            .zip(&steps)
            .map(|(&s, &t)| s as isize * t)
            .sum();
        let outer = self.rank().saturating_sub(1);
        let row = source.shape().last().copied().unwrap_or(1);
        let offsets = Offsets::new(&source.shape()[..outer], &steps[..outer], base);
        let target = match source.device() {
            Device::Gpu(_) => {
                let to = self.own_on_gpu()?;
                let from = source.gpu_in("paste", to.format())?;
                let gpu = to.device();
                return gpu.paste(to, &steps, base as usize, &from, source.shape());
            }
            Device::Cpu | Device::Sim(_) => self.values_mut()?,
        };
        for (offset, values) in offsets.zip(source.values().chunks_exact(row)) {
            target[offset as usize..][..row].copy_from_slice(values);
        }
        Ok(())
    }
}

/// The values of tensors joined along a dimension.
fn cat_values(tensors: &[&Tensor], dim: usize, shape: &[usize]) -> Result<Buffer<f32>> {
    let mut out = reserve(shape)?;
    let outer: usize = shape[..dim].iter().product();
    let cancel = Cancel::current();
    for o in 0..outer {
        for t in tensors {
            cancel.check()?;
            let (_, size, inner) = t.around(dim);
            out.extend_from_slice(&t.values()[o * size * inner..][..size * inner]);
        }
    }
    Ok(out)
}

/// Strides that read a tensor of shape `from` as if it had shape `to`; `None` when it cannot be broadcast.
pub(crate) fn broadcast_strides(from: &[usize], to: &[usize]) -> Option<Vec<isize>> {
    let added = to.len().checked_sub(from.len())?;
    let own = strides(from);
    let mut steps = vec![0; added];
    for (d, &size) in from.iter().enumerate() {
        match (size, to[added + d]) {
            (a, b) if a == b => steps.push(own[d]),
            (1, _) => steps.push(0),
            _ => return None,
        }
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(shape: &[usize]) -> Tensor {
        Tensor::from_fn(shape, |i| i as f32).unwrap()
    }

    #[track_caller]
    fn check(t: Result<Tensor>, shape: &[usize], data: &[f32]) {
        let t = t.unwrap();
        assert_eq!((t.shape(), t.data()), (shape, data));
    }

    #[test]
    fn matrices_by_distance() {
        let x = Tensor::from_vec([2, 5], (0..10).map(|i| i as f32).collect()).unwrap();
        let found = x.by_distance(3).unwrap();
        assert_eq!(found.shape(), [2, 3, 3]);
        let first = [2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0];
        assert_eq!(found.data()[..9], first);
        assert_eq!(found.data()[9..], first.map(|v| v + 5.0));
        for n in [0, 2, 4, usize::MAX] {
            assert!(x.by_distance(n).is_err(), "{n}");
        }
        assert!(Tensor::scalar(1.0).by_distance(1).is_err());
    }

    #[test]
    fn permuting() {
        let t = ramp(&[2, 3]);
        check(t.transpose(0, 1), &[3, 2], &[0., 3., 1., 4., 2., 5.]);
        let p = ramp(&[2, 3, 4, 5]).permute(&[3, 1, 0, 2]).unwrap();
        assert_eq!(p.shape(), [5, 3, 2, 4]);
        assert_eq!(p.at(&[4, 1, 1, 2]), ramp(&[2, 3, 4, 5]).at(&[1, 1, 2, 4]));
        let m = ramp(&[2, 3, 4]).movedim(0, 2).unwrap();
        assert_eq!(m.shape(), [3, 4, 2]);
        assert_eq!(m.at(&[1, 2, 1]), Ok(18.0));
        assert!(t.permute(&[0, 0]).is_err());
        assert!(t.permute(&[0]).is_err());
        let picture = ramp(&[1, 2, 2, 3]);
        let back = picture.nhwc_to_nchw().unwrap().nchw_to_nhwc().unwrap();
        assert_eq!(back, picture);
    }

    #[test]
    fn cutting_and_joining() {
        let t = ramp(&[2, 3]);
        check(t.narrow(1, 1, 2), &[2, 2], &[1., 2., 4., 5.]);
        check(t.narrow(0, 2, 0), &[0, 3], &[]);
        assert!(t.narrow(1, 2, 2).is_err());
        assert!(t.narrow(1, usize::MAX, 2).is_err());
        check(t.select(1, 2), &[2], &[2., 5.]);
        check(
            Tensor::cat(&[&t, &ramp(&[2, 1])], 1),
            &[2, 4],
            &[0., 1., 2., 0., 3., 4., 5., 1.],
        );
        assert!(Tensor::cat(&[&t, &ramp(&[3, 1])], 1).is_err());
        assert!(Tensor::cat(&[], 0).is_err());
        let one = ramp(&[2]);
        check(Tensor::stack(&[&one, &one], 1), &[2, 2], &[0., 0., 1., 1.]);
        let parts = t.split(1, 2).unwrap();
        assert_eq!(parts[0].data(), [0., 1., 3., 4.]);
        assert_eq!(parts[1].data(), [2., 5.]);
        check(
            t.index_select(1, &[2, 0, 2]),
            &[2, 3],
            &[2., 0., 2., 5., 3., 5.],
        );
        assert!(t.index_select(1, &[3]).is_err());
    }

    #[test]
    fn pieces_are_rows_of_what_lies_there() {
        let t = ramp(&[2, 3]);
        let found = t.pieces(&[(0, 2), (3, 1), (6, 0)]).unwrap();
        let [first, second, none] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((first.shape(), first.data()), (&[1, 2][..], &[0., 1.][..]));
        assert_eq!((second.shape(), second.data()), (&[1, 1][..], &[3.][..]));
        assert_eq!(none.shape(), [1, 0]);
        for wrong in [(0, 7), (6, 1), (7, 0), (1, usize::MAX)] {
            assert!(t.pieces(&[wrong]).is_err(), "{wrong:?}");
        }
        let all = [ramp(&[2, 3]), ramp(&[128]), ramp(&[1, 200])];
        let (row, places) = Tensor::in_one_row(&all.iter().collect::<Vec<_>>()).unwrap();
        let found = row.pieces(&places).unwrap();
        let values = |list: &[Tensor]| list.iter().map(|t| t.data().to_vec()).collect::<Vec<_>>();
        assert_eq!(values(&found), values(&all));
        assert!(Tensor::in_one_row(&[]).is_err());
    }

    #[test]
    fn what_repeats_is_seen_bit_by_bit() {
        let t = |values: &[f32]| Tensor::from_slice(values);
        assert!(t(&[1., 2., 1., 2., 1., 2.]).repeats_after(2));
        assert!(!t(&[1., 2., 1., 2., 1., 3.]).repeats_after(2));
        assert!(!t(&[0., -0.]).repeats_after(1));
        assert!(t(&[f32::NAN; 4]).repeats_after(1));
        assert!(t(&[1., 2.]).repeats_after(2) && !t(&[1., 2.]).repeats_after(3));
        let mut long: Vec<f32> = (0..5000).map(|i| (i % 2500) as f32).collect();
        assert!(t(&long).repeats_after(2500));
        long[4999] = 0.5;
        assert!(!t(&long).repeats_after(2500));
    }

    #[test]
    fn repeating() {
        let t = ramp(&[2, 2]);
        check(
            t.repeat(&[1, 2]),
            &[2, 4],
            &[0., 1., 0., 1., 2., 3., 2., 3.],
        );
        check(
            t.repeat(&[2, 1, 1]),
            &[2, 2, 2],
            &[0., 1., 2., 3., 0., 1., 2., 3.],
        );
        check(t.repeat(&[0, 2]), &[0, 4], &[]);
        assert!(t.repeat(&[2]).is_err());
        assert!(t.repeat(&[usize::MAX, 2]).is_err());
        check(
            t.repeat_interleave(0, 2),
            &[4, 2],
            &[0., 1., 0., 1., 2., 3., 2., 3.],
        );
        check(
            ramp(&[2, 1]).expand(&[2, 2, 2]),
            &[2, 2, 2],
            &[0., 0., 1., 1., 0., 0., 1., 1.],
        );
        assert!(t.expand(&[2, 3]).is_err());
        assert!(t.expand(&[2]).is_err());
    }

    #[test]
    fn turning() {
        let t = ramp(&[2, 3]);
        check(t.flip(&[1]), &[2, 3], &[2., 1., 0., 5., 4., 3.]);
        check(t.flip(&[0, 1]), &[2, 3], &[5., 4., 3., 2., 1., 0.]);
        assert!(t.flip(&[1, 1]).is_err());
        check(t.rot90(1, 0, 1), &[3, 2], &[2., 5., 1., 4., 0., 3.]);
        check(t.rot90(-1, 0, 1), &[3, 2], &[3., 0., 4., 1., 5., 2.]);
        check(t.rot90(2, 0, 1), &[2, 3], &[5., 4., 3., 2., 1., 0.]);
    }

    #[test]
    fn pasting() {
        let mut t = Tensor::zeros([3, 3]).unwrap();
        t.paste(&[1, 0], &ramp(&[2, 2])).unwrap();
        assert_eq!(t.data(), [0., 0., 0., 0., 1., 0., 2., 3., 0.]);
        assert!(t.paste(&[2, 0], &ramp(&[2, 2])).is_err());
        assert!(t.paste(&[0], &ramp(&[2])).is_err());
    }
}
