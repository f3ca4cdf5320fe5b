//! Other people's names for the layers of a network, made from the network's own keys.
//!
//! A family writes down rows: which layer of ours a layer of theirs is. Some of theirs are rows of one of ours.

use crate::patch::{Reorder, Slice, Target};

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

/// Which part of a weight of ours a layer of theirs is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    /// Start and number of rows, counted in the width of the table: of a matrix for queries, keys and values together
    /// the keys are `Rows(1, 1)`.
    Rows(usize, usize),
    /// All of it, with its two halves the other way round.
    Swapped,
}

/// Their name, ours, and the part of ours that it is.
pub type Row = (&'static str, &'static str, Part);

/// Their names with what each of them means.
pub struct LayerTable {
    rows: Vec<(String, Target)>,
    width: usize,
}

impl LayerTable {
    /// Parts are counted in this width.
    pub fn new(width: usize) -> Self {
        Self {
            rows: Vec::new(),
            width,
        }
    }

    pub fn rows(&self) -> &[(String, Target)] {
        &self.rows
    }

    /// Adds a layer. Ours is a layer's path, or the key of a value that belongs to none: a scale, a table of positions.
    pub fn add(&mut self, theirs: impl Into<String>, ours: &str, part: Part) {
        let value = matches!(ours.rsplit('.').next(), Some("scale" | "pos_embed"));
        let end = if value { "" } else { ".weight" };
        let whole = Target::whole(format!("diffusion_model.{ours}{end}"));
        let target = match part {
            Part::Whole => whole,
            Part::Swapped => Target {
                reorder: Some(Reorder::SwapHalves),
                ..whole
            },
            Part::Rows(start, len) => Target {
                slice: Some(Slice {
                    dim: 0,
                    start: start * self.width,
                    len: len * self.width,
                }),
                ..whole
            },
        };
        self.rows.push((theirs.into(), target));
    }

    /// Adds the layers of a block, with what stands before their names and ours.
    pub fn add_block(&mut self, theirs: &str, ours: &str, rows: &[Row]) {
        for (their, our, part) in rows {
            self.add(format!("{theirs}{their}"), &format!("{ours}{our}"), *part);
        }
    }
}
