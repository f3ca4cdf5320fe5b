//! Where in a file the values of a network are.

use fresco_tensor::{Stored, TensorError};

/// Where the value of a key is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Whole(String),
    /// Some rows of a tensor: parts that other layouts keep in one.
    Rows {
        name: String,
        start: usize,
        count: usize,
    },
    /// A matrix the other way round.
    Transposed(String),
    /// The same values under another shape.
    Shaped {
        name: String,
        shape: Vec<usize>,
    },
}

impl Origin {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Whole(name)
            | Self::Rows { name, .. }
            | Self::Transposed(name)
            | Self::Shaped { name, .. } => name,
        }
    }

    pub(super) fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        match self {
            Self::Whole(_) => {}
            Self::Rows { count, .. } => {
                if let Some(first) = shape.first_mut() {
                    *first = *count;
                }
            }
            Self::Transposed(_) => shape.reverse(),
            Self::Shaped { shape, .. } => return shape.clone(),
        }
        shape
    }

    pub(super) fn value(&self, whole: &Stored) -> Result<Stored, TensorError> {
        let dtype = whole.dtype();
        let bad = |reason: &str| TensorError::Invalid {
            op: "weight",
            reason: format!("{reason} of shape {:?}", whole.shape()),
        };
        match self {
            Self::Whole(_) => Ok(whole.clone()),
            Self::Shaped { shape, .. } => whole.reshape(shape.clone()),
            Self::Rows { start, count, .. } => {
                let rows = whole.shape().first().copied().unwrap_or(0);
                if rows == 0 || start + count > rows {
                    return Err(bad("no such rows in a tensor"));
                }
                let row = whole.bytes().len() / rows;
                let bytes = whole.bytes()[start * row..(start + count) * row].to_vec();
                Stored::new(dtype, self.shape(whole.shape()), bytes)
            }
            Self::Transposed(_) => {
                let &[rows, columns] = whole.shape() else {
                    return Err(bad("cannot turn a tensor"));
                };
                let size = dtype.size();
                let mut bytes = Vec::with_capacity(whole.bytes().len());
                for column in 0..columns {
                    for row in 0..rows {
                        let at = (row * columns + column) * size;
                        bytes.extend_from_slice(&whole.bytes()[at..at + size]);
                    }
                }
                Stored::new(dtype, [columns, rows], bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fresco_tensor::{Dtype, Tensor};

    use super::*;

    fn half(shape: [usize; 2]) -> Stored {
        let t = Tensor::from_fn(shape, |i| i as f32 - 3.0).unwrap();
        Stored::from_f32(&t, Dtype::F16).unwrap()
    }

    #[test]
    fn origins_cut_and_turn() {
        let whole = half([3, 2]);
        let rows = Origin::Rows {
            name: "x".to_owned(),
            start: 1,
            count: 2,
        };
        let cut = rows.value(&whole).unwrap();
        assert_eq!(cut.shape(), [2, 2]);
        assert_eq!(cut.to_f32().unwrap().data(), [-1.0, 0.0, 1.0, 2.0]);
        let turned = Origin::Transposed("x".to_owned()).value(&whole).unwrap();
        assert_eq!(turned.shape(), [2, 3]);
        assert_eq!(
            turned.to_f32().unwrap().data(),
            [-3.0, -1.0, 1.0, -2.0, 0.0, 2.0]
        );
        let beyond = Origin::Rows {
            name: "x".to_owned(),
            start: 2,
            count: 2,
        };
        assert!(beyond.value(&whole).is_err());
    }
}
