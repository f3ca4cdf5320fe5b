//! Sizes that a network's config is read from.

use crate::error::{ModelError, Result};
use crate::store::WeightStore;

/// The shapes of a store's weights, with errors that name what is missing.
#[derive(Clone, Copy)]
pub struct Shapes<'a>(pub &'a WeightStore);

/// More than any layer has: a file can claim any size for a weight without values.
const TOO_WIDE: usize = 1 << 31;

fn is_size(size: usize) -> bool {
    (1..TOO_WIDE).contains(&size)
}

impl<'a> Shapes<'a> {
    fn of(self, key: &str) -> Result<&'a [usize]> {
        self.0.shape(key).ok_or_else(|| ModelError::Missing {
            file: self.0.file().to_owned(),
            key: key.to_owned(),
        })
    }

    fn wrong(self, key: &str, expected: &str, found: &[usize]) -> ModelError {
        ModelError::Shape {
            file: self.0.file().to_owned(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            found: found.to_vec(),
        }
    }

    /// Rows and columns of a matrix.
    pub fn matrix(self, key: &str) -> Result<(usize, usize)> {
        match *self.of(key)? {
            [rows, columns] if is_size(rows) && is_size(columns) => Ok((rows, columns)),
            ref other => Err(self.wrong(key, "a matrix", other)),
        }
    }

    /// The length of a list of values.
    pub fn vector(self, key: &str) -> Result<usize> {
        match *self.of(key)? {
            [len] if is_size(len) => Ok(len),
            ref other => Err(self.wrong(key, "one dimension", other)),
        }
    }

    pub fn has(self, key: &str) -> bool {
        self.0.has(key)
    }

    /// How many numbered blocks stand under a name, from 0 on without a gap.
    pub fn count(self, list: &str) -> usize {
        let keys = self.0.keys();
        let there = |number: usize| {
            let start = format!("{list}.{number}.");
            let at = keys.partition_point(|key| *key < start.as_str());
            keys.get(at).is_some_and(|key| key.starts_with(&start))
        };
        // There cannot be more blocks than keys.
        (0..keys.len()).take_while(|&number| there(number)).count()
    }

    /// An error that names the file.
    pub fn unsupported(self, reason: impl Into<String>) -> ModelError {
        ModelError::unsupported(self.0.file(), reason)
    }
}

#[cfg(test)]
mod tests {
    use fresco_tensor::{Device, Stored, Tensor};

    use super::*;

    #[test]
    fn sizes_are_read_and_gaps_end_a_list() {
        let weight = |key: &str, shape: &[usize]| {
            let zeros = Tensor::zeros(shape).unwrap();
            (key.to_owned(), Stored::from(&zeros))
        };
        let weights = [
            weight("layers.0.a.weight", &[3, 2]),
            weight("layers.1.a.weight", &[3, 2]),
            weight("layers.10.a.weight", &[3, 2]),
            weight("layers.3.a.weight", &[4]),
        ];
        let store = WeightStore::from_stored("f", weights.into_iter().collect(), Device::cpu());
        let shapes = Shapes(&store);
        assert_eq!(shapes.count("layers"), 2);
        assert_eq!(shapes.count("layer"), 0);
        assert_eq!(shapes.matrix("layers.0.a.weight").unwrap(), (3, 2));
        assert_eq!(shapes.vector("layers.3.a.weight").unwrap(), 4);
        assert!(shapes.vector("layers.0.a.weight").is_err());
        let error = shapes.matrix("b").unwrap_err().to_string();
        assert!(error.contains("\"b\"") && error.starts_with('f'), "{error}");
    }
}
