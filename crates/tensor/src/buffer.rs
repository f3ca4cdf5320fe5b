//! The one way to make storage that a request can size: it asks for its memory first, and is refused with an error where
//! there is none.
//!
//! Tensors are made of buffers, and so are the intermediate results of nodes. A test runs every node with an allocator
//! that finds those who take memory past this (`crates/nodes/tests/asked.rs`).

use std::error::Error;
use std::ops::{Deref, DerefMut};

use crate::cancel;
use crate::error::{Result, TensorError};
use crate::room::{self, Claim, NoRoom};
use crate::{pages, watch};

/// Elements in main memory with room for a fixed number of them.
#[derive(Debug)]
pub struct Buffer<T> {
    values: Vec<T>,
    /// Until all was written.
    claim: Claim,
}

impl<T> Buffer<T> {
    /// An empty buffer with room for so many elements.
    pub fn with_room(count: usize) -> Result<Self> {
        // Nodes that gather elements themselves come by here too.
        cancel::check()?;
        let bytes = (count as u64).saturating_mul(size_of::<T>() as u64);
        let claim = room::claim(bytes)?;
        let mut values = Vec::new();
        watch::granted(|| values.try_reserve_exact(count)).map_err(|_| NoRoom {
            wanted: bytes,
            missing: bytes,
        })?;
        pages::prefer_large(&mut values);
        let mut buffer = Self { values, claim };
        if buffer.claim.is_tight() {
            pages::touch(&mut buffer.values);
            buffer.claim = Claim::default();
        }
        Ok(buffer)
    }

    /// A buffer of what an iterator gives, which knows how much that is.
    pub fn collect(values: impl ExactSizeIterator<Item = T>) -> Result<Self> {
        let mut buffer = Self::with_room(values.len())?;
        buffer.extend(values);
        Ok(buffer)
    }

    /// Storage that was filled before and is used again.
    pub(crate) fn recycled(values: Vec<T>) -> Self {
        Self {
            values,
            claim: Claim::default(),
        }
    }

    /// # Panics
    /// If there is no room left: the count asked for was wrong.
    pub fn push(&mut self, value: T) {
        assert!(
            self.values.len() < self.values.capacity(),
            "a buffer does not grow"
        );
        self.values.push(value);
    }

    /// Takes the last element off.
    pub fn pop(&mut self) -> Option<T> {
        self.values.pop()
    }

    /// Appends elements.
    ///
    /// # Panics
    /// If there are more than the buffer has room for.
    pub fn extend(&mut self, values: impl IntoIterator<Item = T>) {
        let room = self.values.capacity();
        self.values.extend(values);
        assert!(self.values.capacity() == room, "a buffer does not grow");
    }

    /// Forgets the elements and keeps the room for them.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// The elements, for those who keep them in storage of their own.
    pub fn into_vec(self) -> Vec<T> {
        self.values
    }

    /// Where kernels write before the length is set.
    pub(crate) fn storage(&mut self) -> &mut Vec<T> {
        &mut self.values
    }
}

impl<T: Clone> Buffer<T> {
    /// So many times the same value.
    pub fn filled(count: usize, value: T) -> Result<Self> {
        let mut buffer = Self::with_room(count)?;
        buffer.values.resize(count, value);
        Ok(buffer)
    }

    pub fn copied(values: &[T]) -> Result<Self> {
        let mut buffer = Self::with_room(values.len())?;
        buffer.extend_from_slice(values);
        Ok(buffer)
    }

    /// Appends elements.
    ///
    /// # Panics
    /// As [`Self::extend`].
    pub fn extend_from_slice(&mut self, values: &[T]) {
        assert!(
            values.len() <= self.values.capacity() - self.values.len(),
            "a buffer does not grow"
        );
        self.values.extend_from_slice(values);
    }
}

/// Equal by their elements.
impl<T: PartialEq> PartialEq for Buffer<T> {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<'a, T> IntoIterator for &'a Buffer<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Buffer<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter_mut()
    }
}

/// Ends the node with an error where an operation has no other way to fail. The error travels as the payload of an
/// unwinding, as a boxed [`Error`], which the engine reports as what it is and not as a panic.
pub(crate) fn raise(error: TensorError) -> ! {
    let error: Box<dyn Error + Send + Sync> = Box::new(error);
    std::panic::resume_unwind(Box::new(error))
}

/// The value, or the end of the node with the error.
pub(crate) fn or_raise<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => raise(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_type() {
        let mut bytes = Buffer::with_room(3).unwrap();
        bytes.push(1u8);
        bytes.extend_from_slice(&[2, 3]);
        assert_eq!(bytes[..], [1, 2, 3]);
        assert_eq!(Buffer::filled(2, 7i32).unwrap().into_vec(), [7, 7]);
        assert_eq!(
            Buffer::collect((0..3).map(|i| i * 2)).unwrap()[..],
            [0, 2, 4]
        );
        assert_eq!(Buffer::copied(&[0.5]).unwrap()[..], [0.5]);
    }

    #[test]
    #[should_panic(expected = "does not grow")]
    fn a_buffer_does_not_grow() {
        let mut buffer = Buffer::with_room(1).unwrap();
        buffer.extend([1, 2, 3]);
    }

    #[test]
    #[cfg(any(target_os = "linux", windows, target_os = "macos"))]
    fn more_than_there_is_gets_an_error() {
        let all = crate::available_memory().unwrap();
        assert!(Buffer::<u64>::with_room(all as usize / 8).is_err());
        assert!(Buffer::<u8>::with_room(usize::MAX).is_err());
    }

    #[test]
    fn an_error_travels_as_the_payload_of_an_unwinding() {
        let thrown = std::panic::catch_unwind(|| {
            or_raise::<()>(Err(TensorError::TooLarge { shape: vec![7] }));
        });
        let error = thrown.unwrap_err();
        let error = error.downcast::<Box<dyn Error + Send + Sync>>().unwrap();
        assert!(error.to_string().contains("[7]"), "{error}");
    }
}
