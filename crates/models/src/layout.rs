//! What a network expects of its weights: every key with its shape, compared with a file before anything is built, so
//! that one message says what is wrong.

use crate::error::{ModelError, Result};
use crate::store::Store;

/// How many keys a message names.
const NAMED: usize = 4;

/// Keys and shapes in the order the network uses them.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    items: Vec<(String, Vec<usize>)>,
}

impl Layout {
    pub(crate) fn tensor(&mut self, key: String, shape: impl Into<Vec<usize>>) {
        self.items.push((key, shape.into()));
    }

    /// A linear layer or a 1x1 convolution, which are the same thing in two shapes.
    pub(crate) fn linear(&mut self, key: &str, out: usize, input: usize) {
        self.matrix(key, out, input);
        self.tensor(format!("{key}.bias"), [out]);
    }

    /// The same without a bias.
    pub(crate) fn matrix(&mut self, key: &str, out: usize, input: usize) {
        self.tensor(format!("{key}.weight"), [out, input]);
    }

    pub(crate) fn conv(&mut self, key: &str, out: usize, input: usize, side: usize) {
        self.tensor(format!("{key}.weight"), [out, input, side, side]);
        self.tensor(format!("{key}.bias"), [out]);
    }

    pub(crate) fn norm(&mut self, key: &str, channels: usize) {
        self.tensor(format!("{key}.weight"), [channels]);
        self.tensor(format!("{key}.bias"), [channels]);
    }

    pub(crate) fn items(&self) -> &[(String, Vec<usize>)] {
        &self.items
    }

    /// Whether the store has all of it.
    pub(crate) fn verify(&self, store: &Store, what: &str) -> Result<()> {
        let missing: Vec<&str> = self
            .items
            .iter()
            .filter(|(key, _)| !store.has(key))
            .map(|(key, _)| key.as_str())
            .collect();
        match missing.as_slice() {
            [] => {}
            [key] => {
                return Err(ModelError::Missing {
                    file: store.file().to_owned(),
                    key: (*key).to_owned(),
                });
            }
            keys => {
                let mut named = keys[..keys.len().min(NAMED)].join(", ");
                if keys.len() > NAMED {
                    named.push_str(", ..");
                }
                let reason = format!(
                    "{} of the {} weights of {what} are missing: {named}",
                    keys.len(),
                    self.items.len()
                );
                return Err(ModelError::unsupported(store.file(), reason));
            }
        }
        for (key, expected) in &self.items {
            let found = store.shape(key).unwrap_or_default();
            if !same(expected, found) {
                return Err(ModelError::Shape {
                    file: store.file().to_owned(),
                    key: key.clone(),
                    expected: format!("{expected:?}"),
                    found: found.to_vec(),
                });
            }
        }
        Ok(())
    }
}

/// Equal, but for the sizes of one at the end that a 1x1 convolution has and a matrix has not.
fn same(expected: &[usize], found: &[usize]) -> bool {
    let trimmed = |shape: &[usize]| -> Vec<usize> {
        let ones = shape.iter().skip(2).all(|&n| n == 1);
        let keep = if ones {
            shape.len().min(2)
        } else {
            shape.len()
        };
        shape[..keep].to_vec()
    };
    trimmed(expected) == trimmed(found)
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn matrices_and_small_convolutions_are_alike() {
        assert!(same(&[4, 3], &[4, 3, 1, 1]) && same(&[4, 3, 1, 1], &[4, 3]));
        assert!(!same(&[4, 3], &[4, 3, 3, 3]) && !same(&[4], &[4, 1]));
        assert!(same(&[4, 3, 3, 3], &[4, 3, 3, 3]) && !same(&[4, 3], &[3, 4]));
    }
}
