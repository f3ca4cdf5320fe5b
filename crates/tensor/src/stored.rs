//! A tensor as it is in a weight file: shape, number format and bytes. Networks keep their weights in this form.

use std::sync::{Arc, OnceLock};

use crate::buffer::{Buffer, or_raise};
use crate::dtype::Dtype;
use crate::elements::element_count;
use crate::error::{Result, TensorError};
use crate::formats;
use crate::gpu::PinnedBytes;
use crate::read_buffer;
use crate::tensor::Tensor;
use crate::traffic;
use crate::unread::{Rounding, Unread};

/// Clones share the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Arc<HostBytes>,
}

/// Bytes whose memory is read into again once they are dropped.
#[derive(Debug)]
pub(crate) struct HostBytes {
    values: OnceLock<Vec<u8>>,
    /// Where they are until somebody wants them here.
    file: Option<Unread>,
    /// From the first time on that a GPU reads them itself.
    pinned: OnceLock<Option<PinnedBytes>>,
}

impl PartialEq for HostBytes {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl Eq for HostBytes {}

impl HostBytes {
    pub(crate) fn new(values: Vec<u8>) -> Self {
        Self {
            values: OnceLock::from(values),
            file: None,
            pinned: OnceLock::new(),
        }
    }

    fn in_file(file: Unread) -> Self {
        Self {
            values: OnceLock::new(),
            file: Some(file),
            pinned: OnceLock::new(),
        }
    }

    /// How many there are, read or not.
    fn len(&self) -> usize {
        match (self.values.get(), &self.file) {
            (Some(values), _) => values.len(),
            (None, Some(file)) => file.len(),
            (None, None) => 0,
        }
    }

    /// The bytes, read now if they were not yet.
    fn read(&self) -> Result<&[u8]> {
        if let (None, Some(file)) = (self.values.get(), &self.file) {
            // Another thread may have been faster, with the same bytes.
            let _ = self.values.set(file.read()?);
        }
        Ok(self.values.get().map_or(&[], Vec::as_slice))
    }

    /// The same where nobody can be told that a file is gone: the node ends with the error.
    pub(crate) fn values(&self) -> &[u8] {
        or_raise(self.read())
    }

    /// Lets GPUs read the bytes themselves from now on. Without it, copies take longer.
    pub(crate) fn pin(&self) {
        // Read first: this thread does not wait for a file here.
        let values = self.values();
        self.pinned.get_or_init(|| PinnedBytes::new(values));
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        self.pinned.take();
        if let Some(values) = self.values.take() {
            read_buffer::give(values);
        }
    }
}

impl Stored {
    /// Little-endian bytes in row-major order.
    pub fn new(dtype: Dtype, shape: impl Into<Vec<usize>>, bytes: Vec<u8>) -> Result<Self> {
        let shape = shape.into();
        let expected = element_count(&shape)?;
        if dtype.bytes_for(expected) != Some(bytes.len()) {
            let (per_block, size) = dtype.block();
            return Err(TensorError::ElementCount {
                shape,
                expected,
                actual: bytes.len() / size * per_block,
            });
        }
        traffic::copied(bytes.len());
        Ok(Self {
            dtype,
            shape,
            bytes: Arc::new(HostBytes::new(bytes)),
        })
    }

    /// What a file has there, read when it is first wanted: a GPU gets it without a stop in main memory.
    pub(crate) fn later(
        dtype: Dtype,
        shape: impl Into<Vec<usize>>,
        file: impl Into<Unread>,
    ) -> Result<Self> {
        let (shape, file) = (shape.into(), file.into());
        let expected = element_count(&shape)?;
        if dtype.bytes_for(expected) != Some(file.len()) {
            let (per_block, size) = dtype.block();
            return Err(TensorError::ElementCount {
                shape,
                expected,
                actual: file.len() / size * per_block,
            });
        }
        Ok(Self {
            dtype,
            shape,
            bytes: Arc::new(HostBytes::in_file(file)),
        })
    }

    /// The same values rounded to another format, which stay in their file. None where they were read already, or are not numbers there.
    pub(crate) fn rounded_later(&self, dtype: Dtype) -> Option<Self> {
        let rounding = Rounding {
            from: self.dtype,
            to: dtype,
        };
        if self.dtype.is_block() || dtype.is_block() || !dtype.is_writable() {
            return None;
        }
        let unread = self.in_file()?.rounded(rounding)?;
        Self::later(dtype, self.shape.as_slice(), unread).ok()
    }

    /// Where in a file it is, if it was not read yet.
    pub(crate) fn in_file(&self) -> Option<&Unread> {
        match self.bytes.values.get() {
            Some(_) => None,
            None => self.bytes.file.as_ref(),
        }
    }

    /// The same value as it is in its file, from where it comes again when it is needed. What never was in one is shared where it is small.
    pub(crate) fn in_file_again(&self) -> Option<Self> {
        const SMALL: usize = 64 << 10;
        let bytes = match &self.bytes.file {
            Some(file) => Arc::new(HostBytes::in_file(file.clone())),
            None if self.byte_len() <= SMALL => Arc::clone(&self.bytes),
            None => return None,
        };
        Some(Self {
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes,
        })
    }

    /// The same value in memory of its own, read from its file if it is there; this one stays where it is.
    pub(crate) fn read_apart(&self) -> Result<Self> {
        match self.in_file() {
            Some(unread) => Self::new(self.dtype, self.shape.as_slice(), unread.read()?),
            None => self.copied(),
        }
    }

    /// Whether it is still in its file, and a GPU gets it straight from there.
    pub(crate) fn is_direct(&self) -> bool {
        self.in_file().is_some_and(Unread::is_direct)
    }

    /// Number of bytes, read or not.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.bytes.pinned.get().is_some_and(Option::is_some)
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.values()
    }

    /// The bytes, read from their file now if they were not yet.
    pub(crate) fn read(&self) -> Result<&[u8]> {
        self.bytes.read()
    }

    /// Lets GPUs read the bytes themselves from now on. Without it, copies take longer.
    pub(crate) fn pin(&self) {
        self.bytes.pin();
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        let (per_block, size) = self.dtype.block();
        self.byte_len() / size * per_block
    }

    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }

    /// The values as f32.
    pub fn to_f32(&self) -> Result<Tensor> {
        traffic::converted(self.byte_len());
        let mut tensor = Tensor::zeros(self.shape.as_slice())?;
        self.dtype.to_f32_into(self.bytes(), tensor.data_mut());
        Ok(tensor)
    }

    /// The same values in another format; no work where it is the same one.
    pub fn cast(&self, dtype: Dtype) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        Self::from_f32(&self.to_f32()?, dtype)
    }

    /// Values in another format, rounded to the nearest.
    pub fn from_f32(tensor: &Tensor, dtype: Dtype) -> Result<Self> {
        let size = dtype.bytes_for(tensor.len()).unwrap_or(0) as u64;
        let _claim = crate::room::claim(size)?;
        let bytes = dtype
            .encode(tensor.data())
            .ok_or_else(|| unwritable(dtype))?;
        Self::new(dtype, tensor.shape(), bytes)
    }

    /// Values in another format, rounded by chance where its numbers are coarse, the nearer one the more likely: small
    /// changes then are not lost on average. The chance follows from the seed.
    pub fn by_chance(tensor: &Tensor, dtype: Dtype, seed: u64) -> Result<Self> {
        let size = dtype.bytes_for(tensor.len()).unwrap_or(0) as u64;
        let _claim = crate::room::claim(size)?;
        let values = tensor.data();
        let bytes = match dtype {
            Dtype::F8E4M3 | Dtype::F8E5M2 => Some(formats::f8_by_chance(dtype, seed, values)),
            Dtype::Rows(format) => {
                formats::row_encoder(format, formats::Rounding::Chance(seed), values)
            }
            _ => return Self::from_f32(tensor, dtype),
        };
        let bytes = bytes.ok_or_else(|| unwritable(dtype))?;
        Self::new(dtype, tensor.shape(), bytes)
    }

    /// The same value in memory of its own.
    pub(crate) fn copied(&self) -> Result<Self> {
        Ok(Self {
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes: Arc::new(HostBytes::new(Buffer::copied(self.bytes())?.into_vec())),
        })
    }

    /// The same elements in the same order under another shape.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if element_count(&shape)? != element_count(&self.shape)? {
            return Err(TensorError::mismatch("reshape", &self.shape, &shape));
        }
        Ok(Self {
            shape,
            ..self.clone()
        })
    }
}

/// Values that are still in their files.
impl Stored {
    /// Some of the rows, which stay in the file. None where they were read already, or cannot be told apart there.
    pub fn unread_rows(&self, start: usize, count: usize) -> Option<Self> {
        let (rows, rest) = self.shape.split_first()?;
        let part = self.in_file()?.rows(*rows, start, count)?;
        let mut shape = vec![count];
        shape.extend_from_slice(rest);
        Self::later(self.dtype, shape, part).ok()
    }

    /// The `count` planes of runs of so many elements, each under a shape, which stay in the file. None where they were read already,
    /// or cannot be told apart there.
    pub(crate) fn unread_planes(
        &self,
        run: usize,
        count: usize,
        shape: &[usize],
    ) -> Option<Vec<Self>> {
        let unread = self.in_file().filter(|_| !self.dtype.is_block())?;
        let planes = unread.planes(run.checked_mul(self.dtype.size())?, count)?;
        let plane = |plane| Self::later(self.dtype, shape, plane).ok();
        planes.into_iter().map(plane).collect()
    }

    /// Values under each other, which stay in their files. None where one was read already, or their rows differ.
    pub fn unread_joined(parts: &[Self]) -> Option<Self> {
        let first = parts.first()?;
        let (_, row) = first.shape.split_first()?;
        let alike = |part: &Self| {
            part.dtype == first.dtype && part.shape.split_first().is_some_and(|(_, r)| r == row)
        };
        if !parts.iter().all(alike) {
            return None;
        }
        let files: Vec<&Unread> = parts.iter().map(Self::in_file).collect::<Option<_>>()?;
        let mut shape = first.shape.clone();
        shape[0] = parts.iter().map(|part| part.shape[0]).sum();
        Self::later(first.dtype, shape, Unread::joined(&files)?).ok()
    }
}

fn unwritable(dtype: Dtype) -> TensorError {
    TensorError::invalid("store", format!("cannot write {} values", dtype.name()))
}

impl From<&Tensor> for Stored {
    fn from(t: &Tensor) -> Self {
        Self::from_f32(t, Dtype::F32).expect("f32 values are as many as the tensor has")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_round_to_the_nearest() {
        let t = Tensor::from_slice(&[1.0, -2.5, 1.0 + 1.0 / 2048.0, 70000.0]);
        let half = Stored::from_f32(&t, Dtype::F16).unwrap();
        assert_eq!(half.bytes().len(), 8);
        assert_eq!(
            half.to_f32().unwrap().data(),
            [1.0, -2.5, 1.0, f32::INFINITY]
        );
        assert_eq!(Stored::from(&t).to_f32().unwrap(), t);
        assert!(Stored::from_f32(&t, Dtype::I64).is_err());
        assert!(Stored::new(Dtype::F16, [3], vec![0; 5]).is_err());
        assert!(half.reshape([2, 2]).is_ok() && half.reshape([3]).is_err());
        let small = half.cast(Dtype::F8E4M3).unwrap();
        assert_eq!(small.bytes(), [0x38, 0xC2, 0x38, 0x7F]);
        assert_eq!(half.cast(Dtype::F16).unwrap(), half);
    }

    #[test]
    fn blocks_must_be_whole() {
        let stored = Stored::new(Dtype::Q8_0, [2, 32], vec![0; 68]).unwrap();
        assert_eq!(stored.len(), 64);
        assert_eq!(stored.to_f32().unwrap().shape(), [2, 32]);
        assert!(Stored::new(Dtype::Q8_0, [2, 16], vec![0; 68]).is_err());
        assert!(Stored::new(Dtype::Q8_0, [48], vec![0; 68]).is_err());
        assert!(Stored::from_f32(&Tensor::zeros([31]).unwrap(), Dtype::Q8_0).is_err());
        assert!(Stored::from_f32(&Tensor::zeros([256]).unwrap(), Dtype::Iq1S).is_err());
    }
}
