//! The tensor: a shape and shared f32 storage on a device, contiguous in row-major order, copied on write.

use std::fmt;
use std::sync::Arc;

use crate::buffer::{Buffer, or_raise};
use crate::cancel::{self, CHUNK, Cancel};
use crate::device::{Allocation, Device, count_copy};
use crate::error::{Result, TensorError};
use crate::recycle;

/// Most elements one tensor may have (32 GiB of f32): a hostile size in a workflow becomes an error, not an abort.
pub const MAX_ELEMENTS: usize = 1 << 33;

/// Most elements of a plain list that becomes a tensor. More are made in a [`Buffer`], which asks for the memory first.
const MAX_LIST: usize = 1 << 20;

/// A dense f32 array. Clones share storage until one of them is written. Equal are those of the same shape and values,
/// wherever they are.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    shape: Vec<usize>,
    data: Arc<Storage>,
}

/// Elements, and the memory they take on a device that counts it.
struct Storage {
    values: Vec<f32>,
    memory: Option<Allocation>,
}

impl Storage {
    fn new(values: Vec<f32>) -> Arc<Self> {
        Arc::new(Self {
            values,
            memory: None,
        })
    }

    /// Values that are already there, as storage of a device.
    fn on(device: &Device, values: Vec<f32>) -> Result<Arc<Self>> {
        let memory = if device.is_cpu() {
            None
        } else {
            Some(device.allocate(bytes_of(values.len()))?)
        };
        Ok(Arc::new(Self { values, memory }))
    }

    fn device(&self) -> Device {
        let memory = self.memory.as_ref();
        memory.map_or_else(Device::cpu, |memory| memory.device().clone())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        recycle::give(std::mem::take(&mut self.values));
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

/// Number of elements of a shape, refusing overflow and anything above [`MAX_ELEMENTS`].
pub fn element_count(shape: &[usize]) -> Result<usize> {
    // A zero anywhere makes the tensor empty, but the other sizes must still be sane for the strides to be.
    let bound = shape
        .iter()
        .try_fold(1usize, |n, &s| n.checked_mul(s.max(1)))
        .filter(|&n| n <= MAX_ELEMENTS);
    match bound {
        Some(_) if shape.contains(&0) => Ok(0),
        Some(n) => Ok(n),
        None => Err(TensorError::TooLarge {
            shape: shape.to_vec(),
        }),
    }
}

/// Storage for a shape, filled with one value.
pub(crate) fn allocate(shape: &[usize], value: f32) -> Result<Buffer<f32>> {
    let mut data = reserve(shape)?;
    let count = element_count(shape)?;
    let cancel = Cancel::current();
    // The first touch of a page is what takes time.
    while data.len() < count {
        cancel.check()?;
        let next = count.min(data.len() + CHUNK);
        data.storage().resize(next, value);
    }
    Ok(data)
}

/// Empty storage with room for a shape.
pub(crate) fn reserve(shape: &[usize]) -> Result<Buffer<f32>> {
    // Nearly every operation comes by here.
    cancel::check()?;
    let count = element_count(shape)?;
    if let Some(data) = recycle::take(count) {
        return Ok(Buffer::recycled(data));
    }
    Buffer::with_room(count).map_err(|error| match error {
        TensorError::NoRoom(refused) => TensorError::NoMemory {
            shape: shape.to_vec(),
            missing: refused.missing,
        },
        other => other,
    })
}

/// A copy of elements of a shape.
fn copy(shape: &[usize], values: &[f32]) -> Result<Buffer<f32>> {
    let mut data = reserve(shape)?;
    let cancel = Cancel::current();
    for part in values.chunks(CHUNK) {
        cancel.check()?;
        data.extend_from_slice(part);
    }
    Ok(data)
}

fn bytes_of(elements: usize) -> u64 {
    elements as u64 * size_of::<f32>() as u64
}

/// Refuses two devices.
pub(crate) fn same_device(op: &'static str, left: &Device, right: &Device) -> Result<()> {
    if left == right {
        return Ok(());
    }
    Err(TensorError::DeviceMismatch {
        op,
        left: left.name(),
        right: right.name(),
    })
}

/// Row-major strides of a shape, in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

impl Tensor {
    /// A tensor of the values of a buffer in row-major order.
    pub fn from_buffer(shape: impl Into<Vec<usize>>, data: Buffer<f32>) -> Result<Self> {
        let shape = shape.into();
        let expected = element_count(&shape)?;
        if expected != data.len() {
            return Err(TensorError::ElementCount {
                shape,
                expected,
                actual: data.len(),
            });
        }
        Ok(Self::raw(shape, data))
    }

    /// A tensor of a short list of values in row-major order. A long one, whose size a request may choose, is refused:
    /// it was gathered without asking whether there is memory for it, and belongs into a [`Buffer`].
    pub fn from_vec(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Result<Self> {
        if data.len() > MAX_LIST {
            return Err(TensorError::NotAsked {
                elements: data.len(),
                limit: MAX_LIST,
            });
        }
        Self::from_buffer(shape, Buffer::recycled(data))
    }

    /// A tensor from values that an operation of this crate has counted itself.
    pub(crate) fn raw(shape: Vec<usize>, data: Buffer<f32>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Self {
            shape,
            data: Storage::new(data.into_vec()),
        }
    }

    /// A tensor with every element 0 on a device.
    pub fn zeros_on(device: &Device, shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::zeros(shape)?.placed_on(device)
    }

    /// The device whose memory holds the elements.
    pub fn device(&self) -> Device {
        self.data.device()
    }

    /// The same values on another device: a counted copy, or the same storage where it is there already.
    pub fn to(&self, device: &Device) -> Result<Self> {
        if self.device() == *device {
            return Ok(self.clone());
        }
        let values = copy(&self.shape, self.data())?;
        let data = Storage::on(device, values.into_vec())?;
        count_copy(&self.device(), device, bytes_of(self.len()));
        Ok(Self {
            shape: self.shape.clone(),
            data,
        })
    }

    /// A result that was just made, as one of the device of `like`. Nothing is copied: operations write their results
    /// where their inputs are.
    pub(crate) fn placed(self, like: &Self) -> Result<Self> {
        match &like.data.memory {
            None => Ok(self),
            Some(memory) => self.placed_on(memory.device()),
        }
    }

    /// As [`Self::placed`], by the device.
    pub(crate) fn placed_on(self, device: &Device) -> Result<Self> {
        if self.device() == *device {
            return Ok(self);
        }
        let shape = self.shape.clone();
        let data = Storage::on(device, self.into_vec())?;
        Ok(Self { shape, data })
    }

    /// As [`Self::placed`] for operations that have no other way to fail.
    ///
    /// # Panics
    /// If the device is full, as in [`Self::data_mut`].
    pub(crate) fn placed_or_raise(self, like: &Self) -> Self {
        or_raise(self.placed(like))
    }

    /// Refuses tensors of different devices.
    pub(crate) fn check_device(&self, op: &'static str, other: &Self) -> Result<()> {
        // The common case without a look at the devices.
        if self.data.memory.is_none() && other.data.memory.is_none() {
            return Ok(());
        }
        same_device(op, &self.device(), &other.device())
    }

    /// A tensor with every element 0.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::full(shape, 0.0)
    }

    /// A tensor with every element 1.
    pub fn ones(shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::full(shape, 1.0)
    }

    /// A tensor with every element `value`.
    pub fn full(shape: impl Into<Vec<usize>>, value: f32) -> Result<Self> {
        let shape = shape.into();
        let data = allocate(&shape, value)?;
        Ok(Self::raw(shape, data))
    }

    /// A tensor of rank 0.
    pub fn scalar(value: f32) -> Self {
        Self::raw(Vec::new(), Buffer::recycled(vec![value]))
    }

    /// A tensor of rank 1.
    ///
    /// # Panics
    /// If there is no memory for the copy, as in [`Self::data_mut`].
    pub fn from_slice(values: &[f32]) -> Self {
        let shape = vec![values.len()];
        let data = or_raise(copy(&shape, values));
        Self::raw(shape, data)
    }

    /// A tensor whose element at row-major index `i` is `f(i)`.
    pub fn from_fn(shape: impl Into<Vec<usize>>, f: impl FnMut(usize) -> f32) -> Result<Self> {
        let shape = shape.into();
        let mut data = reserve(&shape)?;
        data.extend((0..element_count(&shape)?).map(f));
        Ok(Self::raw(shape, data))
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.data.values.is_empty()
    }

    /// Size of one dimension.
    pub fn dim(&self, dim: usize) -> Result<usize> {
        self.check_dim("dim", dim)?;
        Ok(self.shape[dim])
    }

    /// The four sizes of a rank 4 tensor.
    pub fn dims4(&self) -> Result<[usize; 4]> {
        <[usize; 4]>::try_from(self.shape())
            .map_err(|_| TensorError::rank("dims4", "4", &self.shape))
    }

    /// The three sizes of a rank 3 tensor.
    pub fn dims3(&self) -> Result<[usize; 3]> {
        <[usize; 3]>::try_from(self.shape())
            .map_err(|_| TensorError::rank("dims3", "3", &self.shape))
    }

    /// All elements in row-major order.
    pub fn data(&self) -> &[f32] {
        &self.data.values
    }

    /// All elements for writing; copies first when another tensor shares the storage.
    ///
    /// # Panics
    /// If there is no memory for the copy, here or on the device. The node that asked ends with that error; without it
    /// the kernel would end the program.
    pub fn data_mut(&mut self) -> &mut [f32] {
        if Arc::strong_count(&self.data) > 1 {
            let values = or_raise(copy(&self.shape, self.data()));
            self.data = or_raise(Storage::on(&self.device(), values.into_vec()));
        }
        let storage = Arc::get_mut(&mut self.data);
        &mut storage.expect("nobody else holds it").values
    }

    /// Tells the storage from that of other tensors while it is there; those that share it have the same.
    pub fn storage_address(&self) -> usize {
        Arc::as_ptr(&self.data) as usize
    }

    /// Whether no other tensor shares the storage, so that writing copies nothing.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.data) == 1
    }

    /// The elements, without a copy where nobody else holds them.
    ///
    /// # Panics
    /// If there is no memory for the copy, as in [`Self::data_mut`].
    pub fn into_vec(self) -> Vec<f32> {
        match Arc::try_unwrap(self.data) {
            Ok(mut storage) => std::mem::take(&mut storage.values),
            Err(shared) => or_raise(copy(&self.shape, &shared.values)).into_vec(),
        }
    }

    /// The only element of a tensor of one element.
    pub fn item(&self) -> Result<f32> {
        match self.data() {
            [value] => Ok(*value),
            _ => Err(TensorError::invalid(
                "item",
                format!("shape {:?} is not one element", self.shape),
            )),
        }
    }

    /// The element at a position.
    pub fn at(&self, index: &[usize]) -> Result<f32> {
        if index.len() != self.rank() {
            return Err(TensorError::mismatch("at", &self.shape, index));
        }
        let mut flat = 0;
        for (&i, &size) in index.iter().zip(&self.shape) {
            if i >= size {
                return Err(TensorError::IndexOutOfRange {
                    op: "at",
                    index: i,
                    size,
                });
            }
            flat = flat * size + i;
        }
        Ok(self.data()[flat])
    }

    /// The same elements in the same order under another shape.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape)? != self.len() {
            return Err(TensorError::mismatch("reshape", &self.shape, &shape));
        }
        Ok(Self {
            shape,
            data: Arc::clone(&self.data),
        })
    }

    pub(crate) fn check_dim(&self, op: &'static str, dim: usize) -> Result<()> {
        if dim < self.rank() {
            return Ok(());
        }
        Err(TensorError::DimOutOfRange {
            op,
            dim,
            shape: self.shape.clone(),
        })
    }

    /// Sizes before, at and after a dimension, multiplied out: the view most loops over one dimension want.
    pub(crate) fn around(&self, dim: usize) -> (usize, usize, usize) {
        (
            self.shape[..dim].iter().product(),
            self.shape[dim],
            self.shape[dim + 1..].iter().product(),
        )
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "Tensor{:?} ", self.shape)?;
        let mut list = f.debug_list();
        list.entries(self.data().iter().take(SHOWN));
        if self.len() > SHOWN {
            list.entry(&format_args!(".."));
        }
        list.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_until_written() {
        let a = Tensor::from_vec([2], vec![1.0, 2.0]).unwrap();
        let mut b = a.clone();
        b.data_mut()[0] = 5.0;
        assert_eq!(a.data(), [1.0, 2.0]);
        assert_eq!(b.into_vec(), [5.0, 2.0]);
    }

    #[test]
    fn hostile_sizes_are_errors() {
        for shape in [
            vec![usize::MAX, 2],
            vec![1 << 17, 1 << 17],
            vec![0, usize::MAX, 3],
        ] {
            let err = Tensor::zeros(shape.clone()).unwrap_err();
            assert_eq!(err, TensorError::TooLarge { shape });
        }
        assert!(Tensor::zeros([0, 4]).unwrap().is_empty());
    }

    #[test]
    fn counts_and_positions_are_checked() {
        assert!(Tensor::from_vec([2, 2], vec![0.0; 3]).is_err());
        let t = Tensor::from_fn([2, 3], |i| i as f32).unwrap();
        assert_eq!(t.at(&[1, 2]), Ok(5.0));
        assert!(t.at(&[2, 0]).is_err());
        assert!(t.at(&[1]).is_err());
        assert!(t.item().is_err());
        assert_eq!(t.reshape([3, 2]).unwrap().at(&[2, 1]), Ok(5.0));
        assert!(t.reshape([4, 2]).is_err());
    }
}
