//! The keys of a network.

/// The keys of a network with their shapes, without what stands before them in a checkpoint.
#[derive(Clone, Copy)]
pub struct NetworkKeys<'a>(pub &'a [(&'a str, &'a [usize])]);

impl<'a> NetworkKeys<'a> {
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| *k == key)
    }

    pub fn shape(&self, key: &str) -> Option<&'a [usize]> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, s)| *s)
    }

    /// The outputs of a layer: the first size of its weight.
    pub fn outputs(&self, key: &str) -> Option<usize> {
        self.shape(key)?.first().copied()
    }

    /// Number of blocks `prefix0. prefix1. ...`.
    pub fn count(&self, prefix: &str) -> usize {
        let there = |i: &usize| {
            let start = format!("{prefix}{i}.");
            self.0.iter().any(|(k, _)| k.starts_with(&start))
        };
        // There cannot be more blocks than keys.
        (0..self.0.len()).take_while(there).count()
    }

    /// Paths of all layers: keys of weights without their ending.
    pub fn layers(&self) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter_map(|(key, _)| key.strip_suffix(".weight"))
    }
}
