//! The tensor: a shape and shared storage on a device, contiguous in row-major order, copied on write.
//!
//! Elements in main memory are f32 and can be read and written. Those of a device can be read only by the operations of
//! that device; anything else is an error, in every build.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::buffer::{Buffer, or_raise};
use crate::device::Device;
use crate::elements::{allocate, copy_values, element_count, reserve};
use crate::error::{Result, TensorError};
use crate::gpu::{Format, GpuBuffer};
use crate::storage::{ResultRoom, Storage};

/// Most elements of a plain list that becomes a tensor. More are made in a [`Buffer`], which asks for the memory first.
const MAX_LIST: usize = 1 << 20;

/// A dense array. Clones share storage until one of them is written. Equal are those of the same shape and values,
/// wherever they are.
#[derive(Clone)]
pub struct Tensor {
    shape: Vec<usize>,
    storage: Arc<Storage>,
}

impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        let here = |t: &Self| or_raise(t.to(&Device::Cpu));
        match (self.storage.gpu(), other.storage.gpu()) {
            (None, None) => {
                self.shape == other.shape
                    && self.storage.kernel_values() == other.storage.kernel_values()
            }
            _ => self.shape == other.shape && here(self) == here(other),
        }
    }
}

/// Elements on a GPU in a format that was asked for.
pub(crate) enum GpuView<'a> {
    Same(&'a GpuBuffer),
    Converted(GpuBuffer),
}

impl Deref for GpuView<'_> {
    type Target = GpuBuffer;

    fn deref(&self) -> &GpuBuffer {
        match self {
            Self::Same(buffer) => buffer,
            Self::Converted(buffer) => buffer,
        }
    }
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

/// Compares numbers of which there are equally many.
fn same_bits(a: &[f32], b: &[f32]) -> bool {
    // Pieces of which all elements are compared: with an end at the first difference they would go one by one.
    const PIECE: usize = 1024;
    let differ = |bits: u32, (a, b): (&f32, &f32)| bits | (a.to_bits() ^ b.to_bits());
    let mut pieces = a.chunks(PIECE).zip(b.chunks(PIECE));
    pieces.all(|(a, b)| a.iter().zip(b).fold(0, differ) == 0)
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
            storage: Arc::new(Storage::host(data.into_vec())),
        }
    }

    /// A tensor with every element 0 on a device.
    pub fn zeros_on(device: &Device, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        match device {
            Device::Cpu | Device::Sim(_) => {
                let room = ResultRoom::on(device, &shape)?;
                let values = allocate(&shape, 0.0)?;
                Ok(Self::kept(shape, room, values))
            }
            Device::Gpu(handle) => {
                let count = element_count(&shape)?;
                let out = handle.device.filled(count, handle.format, 0.0)?;
                Ok(Self::from_gpu(shape, out))
            }
        }
    }

    /// A tensor of elements on a GPU.
    pub(crate) fn from_gpu(shape: impl Into<Vec<usize>>, elements: GpuBuffer) -> Self {
        let shape = shape.into();
        debug_assert_eq!(shape.iter().product::<usize>(), elements.len());
        Self {
            shape,
            storage: Arc::new(Storage::Gpu(elements)),
        }
    }

    /// The elements on a GPU; none where they are elsewhere.
    pub(crate) fn gpu(&self) -> Option<&GpuBuffer> {
        self.storage.gpu()
    }

    /// Elements that follow each other on a GPU, in place; none where they are elsewhere, or where a small part would keep a large
    /// whole in memory.
    pub(crate) fn part_on_gpu(&self, first: usize, shape: Vec<usize>) -> Option<Self> {
        const LEAST: usize = 16;
        let len = shape.iter().product::<usize>();
        if len.checked_mul(LEAST)? < self.len() {
            return None;
        }
        self.place_on_gpu(first, shape)
    }

    /// The same, however small the part is.
    pub(crate) fn place_on_gpu(&self, first: usize, shape: Vec<usize>) -> Option<Self> {
        let len = shape.iter().product::<usize>();
        if len == 0 {
            return None;
        }
        let whole = Arc::clone(&self.storage);
        let part = self.gpu()?.part(whole, first, len)?;
        Some(Self::from_gpu(shape, part))
    }

    /// The same elements, in memory of their own where they are a part of something larger: for who keeps them when the rest is
    /// not needed any more.
    pub fn to_keep(&self) -> Result<Self> {
        match self.gpu().filter(|elements| elements.is_part()) {
            Some(part) => Ok(Self::from_gpu(
                self.shape.clone(),
                part.converted(part.format())?,
            )),
            None => Ok(self.clone()),
        }
    }

    /// The elements on a GPU, in an operation that runs there.
    pub(crate) fn on_gpu(&self) -> Result<&GpuBuffer> {
        self.gpu().ok_or_else(|| TensorError::DeviceMismatch {
            op: "compute on a GPU",
            left: String::from("a GPU"),
            right: self.device().name(),
        })
    }

    /// The same for writing in place; copies first, on the device, when another tensor shares the storage.
    pub(crate) fn own_on_gpu(&mut self) -> Result<&GpuBuffer> {
        if !self.is_unique() {
            let elements = self.on_gpu()?;
            let own = elements.converted(elements.format())?;
            self.storage = Arc::new(Storage::Gpu(own));
        }
        self.on_gpu()
    }

    /// The elements on the GPU on which an operation runs.
    pub(crate) fn gpu_on(&self, op: &'static str) -> Result<&GpuBuffer> {
        self.storage
            .gpu()
            .ok_or_else(|| TensorError::DeviceMismatch {
                op,
                left: String::from("a GPU"),
                right: self.device().name(),
            })
    }

    /// The result of an operation on a GPU that gives every element another value: in the tensor's own memory, where nobody
    /// else holds it. `run` reads the first and writes the second, which may be one.
    pub(crate) fn gpu_replaced(
        self,
        op: &'static str,
        run: impl FnOnce(&GpuBuffer, &GpuBuffer) -> Result<()>,
    ) -> Result<Self> {
        let elements = self.gpu_on(op)?;
        if self.is_unique() {
            run(elements, elements)?;
            return Ok(self);
        }
        let out = elements
            .device()
            .buffer(elements.len(), elements.format())?;
        run(elements, &out)?;
        Ok(Self::from_gpu(self.shape, out))
    }

    /// The elements on the GPU on which an operation runs, in the format of that operation.
    pub(crate) fn gpu_in(&self, op: &'static str, format: Format) -> Result<GpuView<'_>> {
        match self.storage.gpu() {
            Some(buffer) if buffer.format() == format => Ok(GpuView::Same(buffer)),
            Some(buffer) => Ok(GpuView::Converted(buffer.converted(format)?)),
            None => Err(TensorError::DeviceMismatch {
                op,
                left: String::from("a GPU"),
                right: self.device().name(),
            }),
        }
    }

    /// The device whose memory holds the elements.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// The same values on another device: a counted copy, or the same storage where it is there already.
    pub fn to(&self, device: &Device) -> Result<Self> {
        let same_format = match (self.storage.gpu(), device) {
            (Some(buffer), Device::Gpu(handle)) => buffer.format() == handle.format,
            _ => true,
        };
        if self.device() == *device && same_format {
            return Ok(self.clone());
        }
        Ok(Self {
            shape: self.shape.clone(),
            storage: Arc::new(self.storage.copied_to(&self.shape, device)?),
        })
    }

    /// Memory for the result of an operation on this tensor, where the tensor is: asked for before the work, so that what
    /// does not fit is refused before it.
    pub(crate) fn room_for(&self, shape: &[usize]) -> Result<ResultRoom> {
        ResultRoom::on(&self.device(), shape)
    }

    /// The result of an operation in the room that was taken for it.
    pub(crate) fn kept(
        shape: impl Into<Vec<usize>>,
        room: ResultRoom,
        values: Buffer<f32>,
    ) -> Self {
        let shape = shape.into();
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        Self {
            shape,
            storage: Arc::new(room.keep(values)),
        }
    }

    /// The elements for a kernel of the processor, in an operation that runs where its inputs are.
    pub(crate) fn values(&self) -> &[f32] {
        self.storage.kernel_values()
    }

    /// The same for writing; copies first, on the device, when another tensor shares the storage.
    pub(crate) fn values_mut(&mut self) -> Result<&mut [f32]> {
        if Arc::strong_count(&self.storage) > 1 {
            let own = self.storage.copied_to(&self.shape, &self.device())?;
            self.storage = Arc::new(own);
        }
        let storage = Arc::get_mut(&mut self.storage);
        Ok(storage.expect("nobody else holds it").kernel_values_mut())
    }

    /// The elements, if they are in main memory.
    pub(crate) fn host(&self, op: &'static str) -> Result<&[f32]> {
        match &*self.storage {
            Storage::Host(values) => Ok(values),
            Storage::Sim(_) | Storage::Gpu(_) => Err(TensorError::NotInMainMemory {
                op,
                device: self.device().name(),
            }),
        }
    }

    /// Refuses tensors of different devices.
    pub(crate) fn check_device(&self, op: &'static str, other: &Self) -> Result<()> {
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
        let data = or_raise(copy_values(&shape, values));
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
        self.storage.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    ///
    /// # Panics
    /// If the tensor is not in main memory: the node that asked ends with that error.
    pub fn data(&self) -> &[f32] {
        or_raise(self.host("read"))
    }

    /// All elements for writing; copies first when another tensor shares the storage.
    ///
    /// # Panics
    /// If the tensor is not in main memory, or there is no memory for the copy. The node that asked ends with that error;
    /// without it the kernel would end the program.
    pub fn data_mut(&mut self) -> &mut [f32] {
        or_raise(self.host("write"));
        or_raise(self.values_mut())
    }

    /// Tells the storage from that of other tensors while it is there; those that share it have the same.
    pub fn storage_address(&self) -> usize {
        Arc::as_ptr(&self.storage) as usize
    }

    /// Whether both have one shape and the same bits. Those that share their storage are not looked at.
    ///
    /// # Panics
    /// If they do not share it and one is not in main memory.
    pub fn is_same(&self, other: &Self) -> bool {
        self.shape == other.shape
            && (Arc::ptr_eq(&self.storage, &other.storage) || same_bits(self.data(), other.data()))
    }

    /// Whether each element is the same as the one that many elements further on, bit by bit.
    ///
    /// # Panics
    /// As [`Self::data`].
    pub fn repeats_after(&self, count: usize) -> bool {
        let data = self.data();
        count <= data.len() && same_bits(&data[count..], &data[..data.len() - count])
    }

    /// Whether all elements are numbers, and none is infinite.
    ///
    /// # Panics
    /// As [`Self::data`].
    pub fn is_finite(&self) -> bool {
        const INFINITE: u32 = f32::INFINITY.to_bits();
        // The largest exponent of a part: without a way out in between, many elements are looked at together.
        let whole = |part: &[f32]| {
            let sizes = part.iter().map(|v| v.abs().to_bits());
            sizes.fold(0, u32::max) < INFINITE
        };
        self.data().chunks(1 << 12).all(whole)
    }

    /// Whether no other tensor shares the storage, so that writing copies nothing.
    pub fn is_unique(&self) -> bool {
        let shared = self.gpu().is_some_and(GpuBuffer::is_shared);
        !shared && Arc::strong_count(&self.storage) == 1
    }

    /// The elements, without a copy where nobody else holds them.
    ///
    /// # Panics
    /// As [`Self::data_mut`].
    pub fn into_vec(self) -> Vec<f32> {
        or_raise(self.host("read"));
        match Arc::try_unwrap(self.storage) {
            Ok(storage) => storage.into_values(),
            Err(shared) => or_raise(copy_values(&self.shape, shared.kernel_values())).into_vec(),
        }
    }

    /// The only element of a tensor of one element.
    pub fn item(&self) -> Result<f32> {
        match self.host("item")? {
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
        Ok(self.host("at")?[flat])
    }

    /// The same elements in the same order under another shape.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape)? != self.len() {
            return Err(TensorError::mismatch("reshape", &self.shape, &shape));
        }
        Ok(Self {
            shape,
            storage: Arc::clone(&self.storage),
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
        let Ok(values) = self.host("show") else {
            return write!(f, "on {}", self.device());
        };
        let mut list = f.debug_list();
        list.entries(values.iter().take(SHOWN));
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
    fn one_odd_element_is_found_anywhere() {
        let count = (1 << 12) + 5;
        let large = Tensor::full([count], -f32::MAX).unwrap();
        assert!(large.is_finite() && Tensor::zeros([0]).unwrap().is_finite());
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 77, (1 << 12) - 1, 1 << 12, count - 1] {
                let mut x = large.clone();
                x.data_mut()[at] = odd;
                assert!(!x.is_finite(), "{odd} at {at}");
            }
        }
    }

    #[test]
    fn the_same_bits_are_the_same() {
        let wave = |n: usize| Tensor::from_fn([n], |i| (i as f32).sin()).unwrap();
        let a = wave(5000);
        assert!(a.is_same(&a.clone()) && a.is_same(&wave(5000)));
        assert!(!a.is_same(&wave(4999)));
        assert!(!a.is_same(&a.reshape([50, 100]).unwrap()));
        for at in [0, 1023, 1024, 4999] {
            let mut b = wave(5000);
            b.data_mut()[at] = 9.0;
            assert!(!a.is_same(&b), "{at}");
        }
        // By bits, so that what is not a number is the same as itself.
        let nan = || Tensor::full([3], f32::NAN).unwrap();
        assert!(nan().is_same(&nan()));
        assert!(
            !Tensor::full([1], 0.0)
                .unwrap()
                .is_same(&Tensor::full([1], -0.0).unwrap())
        );
    }

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
