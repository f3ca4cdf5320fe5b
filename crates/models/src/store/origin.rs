//! Where in a file the values of a network are.

use fresco_tensor::{
    Axes, Dtype, Stored, Tensor, TensorError, WeightError, WeightFile, WeightInfo,
};

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
    /// Tensors under each other: parts that other layouts keep by themselves, or in another order.
    Joined(Vec<Self>),
    /// A tensor that was trained as a direction and its length: `length * direction / |direction|`, the norm over all
    /// dimensions in which `length` has one value.
    Normed {
        length: String,
        direction: String,
    },
    /// Some rows of a value that is made.
    Part {
        from: Box<Self>,
        start: usize,
        count: usize,
    },
    /// Dimensions in another order, the first `joined` of them as one.
    Turned {
        from: Box<Self>,
        order: Vec<usize>,
        joined: usize,
    },
}

impl Origin {
    /// All tensors that are in the file, in order.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Whole(name)
            | Self::Rows { name, .. }
            | Self::Transposed(name)
            | Self::Shaped { name, .. } => vec![name],
            Self::Joined(parts) => parts.iter().flat_map(Self::names).collect(),
            Self::Normed { length, direction } => vec![direction, length],
            Self::Part { from, .. } | Self::Turned { from, .. } => from.names(),
        }
    }

    /// What the value is like; none if the file lacks it or a part of it.
    pub(super) fn info(&self, file: &dyn WeightFile) -> Option<WeightInfo> {
        let Self::Joined(parts) = self else {
            if let Self::Part { from, .. } | Self::Turned { from, .. } = self {
                return Some(WeightInfo {
                    shape: self.shape(&from.info(file)?.shape),
                    dtype: Dtype::F32,
                });
            }
            if let Self::Normed { length, direction } = self {
                file.info(length)?;
                return Some(WeightInfo {
                    shape: file.info(direction)?.shape,
                    dtype: Dtype::F32,
                });
            }
            let info = file.info(self.names().first()?)?;
            let turned = matches!(self, Self::Transposed(_));
            return Some(WeightInfo {
                shape: self.shape(&info.shape),
                // What is coded in rows cannot be turned as it is.
                dtype: if turned && info.dtype.is_block() {
                    Dtype::F32
                } else {
                    info.dtype
                },
            });
        };
        let mut parts = parts.iter().map(|part| part.info(file));
        let mut all = parts.next()??;
        for part in parts {
            let part = part?;
            if part.shape.get(1..) != all.shape.get(1..) || all.shape.is_empty() {
                return None;
            }
            all.shape[0] += part.shape[0];
            if part.dtype != all.dtype {
                all.dtype = Dtype::F32;
            }
        }
        Some(all)
    }

    /// The value, and how many bytes were read for it.
    pub(super) fn read(&self, file: &dyn WeightFile) -> Result<(Stored, u64), OriginError> {
        match self {
            Self::Joined(parts) => {
                let read = parts.iter().map(|part| part.read(file));
                let read: Vec<(Stored, u64)> = read.collect::<Result<_, _>>()?;
                let bytes = read.iter().map(|(_, bytes)| bytes).sum();
                let parts: Vec<Stored> = read.into_iter().map(|(part, _)| part).collect();
                Ok((joined(&parts)?, bytes))
            }
            Self::Normed { length, direction } => {
                let (length, direction) = (file.read(length)?, file.read(direction)?);
                let bytes = (length.bytes().len() + direction.bytes().len()) as u64;
                let made = normed(&length.to_f32()?, &direction.to_f32()?)?;
                Ok((Stored::from(&made), bytes))
            }
            Self::Part { from, start, count } => {
                let (whole, bytes) = from.read(file)?;
                let part = whole.to_f32()?.narrow(0, *start, *count)?;
                Ok((Stored::from(&part), bytes))
            }
            Self::Turned { from, order, .. } => {
                let (whole, bytes) = from.read(file)?;
                let shape = self.shape(whole.shape());
                let turned = whole.to_f32()?.permute(order)?.reshape(shape)?;
                Ok((Stored::from(&turned), bytes))
            }
            one => {
                let whole = file.read(one.names().first().copied().unwrap_or_default())?;
                let bytes = whole.bytes().len() as u64;
                Ok((one.value(&whole)?, bytes))
            }
        }
    }

    /// The value with its bytes left in the file, for whoever takes them straight from there. None where they have to be read
    /// to make the value of them.
    pub(super) fn later(&self, file: &dyn WeightFile) -> Option<Stored> {
        match self {
            Self::Whole(name) => file.later(name),
            Self::Rows { name, start, count } => file.later(name)?.unread_rows(*start, *count),
            Self::Shaped { name, shape } => file.later(name)?.reshape(shape.clone()).ok(),
            Self::Joined(parts) => {
                let parts = parts.iter().map(|part| part.later(file));
                Stored::unread_joined(&parts.collect::<Option<Vec<_>>>()?)
            }
            Self::Transposed(_) | Self::Normed { .. } | Self::Part { .. } | Self::Turned { .. } => {
                None
            }
        }
    }

    pub(super) fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        match self {
            Self::Whole(_) | Self::Joined(_) | Self::Normed { .. } => {}
            Self::Turned { order, joined, .. } => {
                let turned: Vec<usize> = order
                    .iter()
                    .map(|d| shape.get(*d).copied().unwrap_or(0))
                    .collect();
                let (first, rest) = turned.split_at((*joined).min(turned.len()));
                let mut whole = vec![flat_length(first)];
                whole.extend_from_slice(rest);
                return whole;
            }
            Self::Rows { count, .. } | Self::Part { count, .. } => {
                if let Some(first) = shape.first_mut() {
                    *first = *count;
                }
            }
            Self::Transposed(_) => shape.reverse(),
            Self::Shaped { shape, .. } => return shape.clone(),
        }
        shape
    }

    /// The value from the one tensor that it is in.
    fn value(&self, whole: &Stored) -> Result<Stored, TensorError> {
        let dtype = whole.dtype();
        let bad = |reason: &str| TensorError::Invalid {
            op: "weight",
            reason: format!("{reason} of shape {:?}", whole.shape()),
        };
        match self {
            Self::Whole(_)
            | Self::Joined(_)
            | Self::Normed { .. }
            | Self::Part { .. }
            | Self::Turned { .. } => Ok(whole.clone()),
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
                if dtype.is_block() {
                    return Ok(Stored::from(&whole.to_f32()?.transpose(0, 1)?));
                }
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

/// Why a value could not be had: the file, or what is in it.
pub(super) enum OriginError {
    File(WeightError),
    Value(TensorError),
}

impl From<WeightError> for OriginError {
    fn from(error: WeightError) -> Self {
        Self::File(error)
    }
}

impl From<TensorError> for OriginError {
    fn from(error: TensorError) -> Self {
        Self::Value(error)
    }
}

/// A direction with a length for each place where `length` has one.
fn normed(length: &Tensor, direction: &Tensor) -> Result<Tensor, TensorError> {
    if length.rank() != direction.rank() {
        return Err(TensorError::Invalid {
            op: "weight",
            reason: format!(
                "a length of shape {:?} for a direction of shape {:?}",
                length.shape(),
                direction.shape()
            ),
        });
    }
    let over: Vec<usize> = (0..length.rank())
        .filter(|d| length.shape()[*d] == 1)
        .collect();
    let norm = if over.is_empty() {
        direction.abs()
    } else {
        direction.norm(&over, Axes::Keep)?
    };
    direction.mul(&length.div(&norm)?)
}

/// Tensors under each other; in f32 if their formats differ.
fn joined(parts: &[Stored]) -> Result<Stored, TensorError> {
    let bad = |reason: String| TensorError::Invalid {
        op: "weight",
        reason,
    };
    let first = parts
        .first()
        .ok_or_else(|| bad("nothing to join".to_owned()))?;
    let alike = parts.iter().all(|part| part.dtype() == first.dtype());
    let dtype = if alike { first.dtype() } else { Dtype::F32 };
    let mut shape = first.shape().to_vec();
    let mut bytes = Vec::new();
    let mut rows = 0;
    for part in parts {
        if part.shape().is_empty() || part.shape()[1..] != shape[1..] {
            return Err(bad(format!("cannot join {shape:?} and {:?}", part.shape())));
        }
        rows += part.shape()[0];
        let part = if alike {
            part.clone()
        } else {
            part.cast(dtype)?
        };
        bytes.extend_from_slice(part.bytes());
    }
    shape[0] = rows;
    Stored::new(dtype, shape, bytes)
}

/// Elements of dimensions that become one; the most there can be where a file claims more.
pub(crate) fn flat_length(shape: &[usize]) -> usize {
    shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n))
}

#[cfg(test)]
mod tests {
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
    #[test]
    fn directions_get_their_length() {
        let direction = Tensor::from_vec([2, 1, 2], vec![3.0, 4.0, 0.0, 2.0]).unwrap();
        let length = Tensor::from_vec([2, 1, 1], vec![10.0, 0.5]).unwrap();
        let made = normed(&length, &direction).unwrap();
        assert_eq!(made.data(), [6.0, 8.0, 0.0, 0.5]);
        let last = Tensor::from_vec([1, 1, 2], vec![1.0, 2.0]).unwrap();
        let made = normed(&last, &direction).unwrap();
        assert_eq!(made.data()[..1], [1.0]);
        assert!(normed(&Tensor::from_slice(&[1.0]), &direction).is_err());
        let turned = Origin::Turned {
            from: Box::new(Origin::Whole("x".to_owned())),
            order: vec![2, 1, 0],
            joined: 2,
        };
        assert_eq!(turned.shape(&[4, 3, 2]), [6, 4]);
    }

    #[test]
    fn parts_are_put_under_each_other() {
        let (a, b) = (half([2, 2]), half([1, 2]));
        let both = joined(&[b.clone(), a.clone()]).unwrap();
        assert_eq!(both.shape(), [3, 2]);
        assert_eq!(both.to_f32().unwrap().data()[..3], [-3.0, -2.0, -3.0]);
        assert_eq!(both.dtype(), Dtype::F16);
        let wide = joined(&[a.clone(), b.cast(Dtype::F32).unwrap()]).unwrap();
        assert_eq!((wide.dtype(), wide.shape()), (Dtype::F32, &[3, 2][..]));
        assert!(joined(&[a, half([2, 3])]).is_err());
        assert!(joined(&[]).is_err());
    }
}
