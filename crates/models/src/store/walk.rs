//! The one place where a network says which weights it has: a walk over its layers that names each key with its shape.
//!
//! A network's constructor takes a [`Walk`] and asks it for layers. The same constructor is run twice: first only to list
//! what it asks for, which is compared with the file, so that one message names all that is missing before anything is
//! read; then to build.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//! use fresco_models::store::{Layout, Walk};
//! use fresco_models::WeightStore;
//! use fresco_models::ModelError;
//! use fresco_tensor::{Device, nn::Linear};
//!
//! struct Gate {
//!     proj: Arc<Linear>,
//! }
//! let new = |weights: &Walk<'_>| -> Result<Gate, ModelError> {
//!     Ok(Gate { proj: weights.at("gate").linear("proj", 8, 4)? })
//! };
//! let layout = Layout::of(new)?;
//! assert_eq!(layout.items()[0], ("gate.proj.weight".to_owned(), vec![8, 4]));
//! let empty = WeightStore::from_stored("empty", BTreeMap::new(), Device::cpu());
//! let error = empty.build("the gate", new).err().unwrap().to_string();
//! assert!(error.contains("2 of the 2 weights of the gate are missing"), "{error}");
//! # Ok::<(), ModelError>(())
//! ```

use std::cell::RefCell;
use std::sync::Arc;

use fresco_tensor::nn::{
    Conv2d, Conv3d, Embedding, GroupNorm, LayerNorm, Linear, Padding, RmsNorm, Value,
};
use fresco_tensor::{Device, Stored, Tensor};

use super::WeightStore;
use crate::error::{ModelError, Result};

/// How many keys a message names.
const NAMED: usize = 4;

/// Keys and shapes in the order the network asks for them.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    items: Vec<(String, Vec<usize>)>,
}

impl Layout {
    /// What a constructor asks for. Nothing is read, and there need not be any weights.
    pub fn of<N>(build: impl FnOnce(&Walk<'_>) -> Result<N>) -> Result<Self> {
        Self::listed("", build)
    }

    fn listed<N>(file: &str, build: impl FnOnce(&Walk<'_>) -> Result<N>) -> Result<Self> {
        let blank = blank_store()?;
        let course = Course {
            store: &blank,
            file,
            listed: Some(RefCell::default()),
        };
        build(&Walk::new(&course))?;
        Ok(course.listed.map(RefCell::into_inner).unwrap_or_default())
    }

    pub fn items(&self) -> &[(String, Vec<usize>)] {
        &self.items
    }

    /// Whether the store has all of it.
    pub fn verify(&self, store: &WeightStore, what: &str) -> Result<()> {
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

/// One run of a constructor.
struct Course<'a> {
    /// The weights, or those that stand for them while they are only listed.
    store: &'a WeightStore,
    /// For messages.
    file: &'a str,
    listed: Option<RefCell<Layout>>,
}

/// The smallest layer of each kind, which takes the place of all of its kind while weights are only listed.
fn blank_store() -> Result<Arc<WeightStore>> {
    let tensor = |key: &str, shape: &[usize]| -> Result<(String, Stored)> {
        Ok((key.to_owned(), Stored::from(&Tensor::zeros(shape)?)))
    };
    let weights = [
        tensor("linear.weight", &[1, 1])?,
        tensor("conv.weight", &[1, 1, 1, 1])?,
        tensor("conv3d.weight", &[1, 1, 1, 1, 1])?,
        tensor("group_norm.weight", &[1])?,
        tensor("group_norm.bias", &[1])?,
        tensor("layer_norm.weight", &[1])?,
        tensor("rms_norm.weight", &[1])?,
        tensor("embedding.weight", &[1, 1])?,
        tensor("value", &[1])?,
    ];
    let weights = weights.into_iter().collect();
    Ok(WeightStore::from_stored("blank", weights, Device::cpu()))
}

/// The sizes of a convolution's kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub out: usize,
    pub input: usize,
    pub side: usize,
    pub bias: bool,
}

/// Whether a layer adds a vector of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    With,
    Without,
}

impl Bias {
    /// For layers whose file decides.
    pub fn of(present: bool) -> Self {
        if present { Self::With } else { Self::Without }
    }

    /// What is made of it, where there is one.
    pub fn then<T>(self, make: impl FnOnce() -> T) -> Option<T> {
        (self == Self::With).then(make)
    }
}

/// A walk over the weights of a network, at one place of its tree of keys.
pub struct Walk<'a> {
    course: &'a Course<'a>,
    /// Stands before all keys, with its dot.
    prefix: String,
}

impl<'a> Walk<'a> {
    fn new(course: &'a Course<'a>) -> Self {
        Self {
            course,
            prefix: String::new(),
        }
    }

    /// The walk one step further into the tree.
    #[must_use]
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self {
            course: self.course,
            prefix: format!("{}{name}.", self.prefix),
        }
    }

    /// What is made of each of `count` numbered places under this one.
    pub fn each<T>(&self, count: usize, make: impl Fn(&Self) -> Result<T>) -> Result<Vec<T>> {
        (0..count).map(|number| make(&self.at(number))).collect()
    }

    /// Where the network will compute, and in which numbers.
    pub fn device(&self) -> Device {
        self.course.store.network_device()
    }

    /// An error that names the file and this place.
    pub fn unsupported(&self, reason: impl Into<String>) -> ModelError {
        let mut reason = reason.into();
        if !self.prefix.is_empty() {
            reason = format!("{}: {reason}", self.prefix.trim_end_matches('.'));
        }
        ModelError::unsupported(self.course.file, reason)
    }

    /// The full key of a layer. Its weights go on the list if there is one, and then a blank takes the layer's place.
    fn ask<'b>(
        &self,
        name: &str,
        blank: &'b str,
        shapes: &[(&str, &[usize])],
    ) -> (String, Option<&'b str>) {
        let key = format!("{}{name}", self.prefix);
        let Some(list) = &self.course.listed else {
            return (key, None);
        };
        let mut list = list.borrow_mut();
        for (part, shape) in shapes {
            list.items.push((format!("{key}{part}"), shape.to_vec()));
        }
        (key, Some(blank))
    }

    /// A linear layer with a bias, or a 1x1 convolution, which is the same thing in another shape.
    pub fn linear(&self, name: &str, out: usize, input: usize) -> Result<Arc<Linear>> {
        let shapes: [(&str, &[usize]); 2] = [(".weight", &[out, input]), (".bias", &[out])];
        let (key, blank) = self.ask(name, "linear", &shapes);
        self.course.store.linear(blank.unwrap_or(&key))
    }

    /// A linear layer with a bias or without one. A bias that the file has all the same is used.
    pub fn linear_with(
        &self,
        name: &str,
        out: usize,
        input: usize,
        bias: Bias,
    ) -> Result<Arc<Linear>> {
        match bias {
            Bias::With => self.linear(name, out, input),
            Bias::Without => self.matrix(name, out, input),
        }
    }

    /// A linear layer that needs no bias.
    pub fn matrix(&self, name: &str, out: usize, input: usize) -> Result<Arc<Linear>> {
        let (key, blank) = self.ask(name, "linear", &[(".weight", &[out, input])]);
        self.course.store.linear(blank.unwrap_or(&key))
    }

    /// A convolution with a bias that keeps the size at stride 1.
    pub fn conv(
        &self,
        name: &str,
        out: usize,
        input: usize,
        side: usize,
        stride: usize,
    ) -> Result<Arc<Conv2d>> {
        let kernel = Kernel {
            out,
            input,
            side,
            bias: true,
        };
        self.conv_with(name, kernel, stride, Padding::Same(side / 2))
    }

    /// A convolution of any kind.
    pub fn conv_with(
        &self,
        name: &str,
        kernel: Kernel,
        stride: usize,
        padding: Padding,
    ) -> Result<Arc<Conv2d>> {
        let Kernel {
            out, input, side, ..
        } = kernel;
        let weight = [out, input, side, side];
        let shapes: [(&str, &[usize]); 2] = [(".weight", &weight), (".bias", &[out])];
        let count = 1 + usize::from(kernel.bias);
        let (key, blank) = self.ask(name, "conv", &shapes[..count]);
        let store = self.course.store;
        store.conv(blank.unwrap_or(&key), stride, padding)
    }

    /// A convolution with a bias over frames, whose kernel has these sizes over time, height and width.
    pub fn conv3d(
        &self,
        name: &str,
        out: usize,
        input: usize,
        [time, height, width]: [usize; 3],
    ) -> Result<Arc<Conv3d>> {
        let weight = [out, input, time, height, width];
        let shapes: [(&str, &[usize]); 2] = [(".weight", &weight), (".bias", &[out])];
        let (key, blank) = self.ask(name, "conv3d", &shapes);
        self.course.store.conv3d(blank.unwrap_or(&key))
    }

    /// The same where the file has kernels over height and width only.
    pub fn flat_conv3d(
        &self,
        name: &str,
        out: usize,
        input: usize,
        side: usize,
    ) -> Result<Arc<Conv3d>> {
        let weight = [out, input, side, side];
        let shapes: [(&str, &[usize]); 2] = [(".weight", &weight), (".bias", &[out])];
        let (key, blank) = self.ask(name, "conv3d", &shapes);
        self.course.store.conv3d(blank.unwrap_or(&key))
    }

    /// A convolution over time without zeros around: kernels (out, in, length).
    pub fn conv1d(
        &self,
        name: &str,
        [out, input, length]: [usize; 3],
        stride: usize,
        bias: Bias,
    ) -> Result<Arc<Conv2d>> {
        let weight = [out, input, length];
        let shapes: [(&str, &[usize]); 2] = [(".weight", &weight), (".bias", &[out])];
        let (key, blank) = self.ask(name, "conv", &shapes[..=usize::from(bias == Bias::With)]);
        let store = self.course.store;
        store.conv(blank.unwrap_or(&key), stride, Padding::Same(0))
    }

    /// A linear layer with a bias that files have as kernels of whole patches, (out, in, height, width).
    pub fn flat_linear(&self, name: &str, shape: &[usize]) -> Result<Arc<Linear>> {
        let out = shape.first().copied().unwrap_or(0);
        let shapes: [(&str, &[usize]); 2] = [(".weight", shape), (".bias", &[out])];
        let (key, blank) = self.ask(name, "linear", &shapes);
        self.course.store.flat_linear(blank.unwrap_or(&key))
    }

    pub fn group_norm(
        &self,
        name: &str,
        channels: usize,
        groups: usize,
        eps: f32,
    ) -> Result<Arc<GroupNorm>> {
        let shapes: [(&str, &[usize]); 2] = [(".weight", &[channels]), (".bias", &[channels])];
        match self.ask(name, "group_norm", &shapes) {
            (_, Some(blank)) => self.course.store.group_norm(blank, 1, eps),
            (key, None) => self.course.store.group_norm(&key, groups, eps),
        }
    }

    /// A layer norm with a bias.
    pub fn layer_norm(&self, name: &str, width: usize, eps: f32) -> Result<Arc<LayerNorm>> {
        let shapes: [(&str, &[usize]); 2] = [(".weight", &[width]), (".bias", &[width])];
        let (key, blank) = self.ask(name, "layer_norm", &shapes);
        self.course.store.layer_norm(blank.unwrap_or(&key), eps)
    }

    /// A root mean square norm. The name is that of its weight: `norm.weight`, `norm.query_norm.scale`, `gamma`.
    pub fn rms_norm(&self, name: &str, width: usize, eps: f32) -> Result<Arc<RmsNorm>> {
        let (key, blank) = self.ask(name, "rms_norm.weight", &[("", &[width])]);
        self.course.store.rms_norm(blank.unwrap_or(&key), eps)
    }

    /// The same where the weight is written as a kernel: (width, 1, 1) or with one dimension more.
    pub fn channel_norm(&self, name: &str, width: usize, eps: f32) -> Result<Arc<RmsNorm>> {
        let (key, blank) = self.ask(name, "rms_norm.weight", &[("", &[width, 1, 1])]);
        self.course.store.rms_norm(blank.unwrap_or(&key), eps)
    }

    /// A table of rows.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Arc<Embedding>> {
        let (key, blank) = self.ask(name, "embedding", &[(".weight", &[rows, width])]);
        self.course.store.embedding(blank.unwrap_or(&key))
    }

    /// A table of rows by its whole name and shape, whose last size is that of a row; the others count rows.
    pub fn rows(&self, name: &str, shape: &[usize]) -> Result<Arc<Embedding>> {
        match self.ask(name, "embedding.weight", &[("", shape)]) {
            (_, Some(blank)) => self.course.store.rows(blank),
            (key, None) => self.course.store.rows(&key),
        }
    }

    /// A value that the network takes as it is.
    pub fn value(&self, name: &str, shape: &[usize]) -> Result<Arc<Value>> {
        let (key, blank) = self.ask(name, "value", &[("", shape)]);
        self.course.store.value(blank.unwrap_or(&key))
    }
}

impl WeightStore {
    /// Builds a network by its constructor, after all that it asks for was found here in the right shape. `what` names
    /// the network in messages.
    pub fn build<N>(&self, what: &str, constructor: impl Fn(&Walk<'_>) -> Result<N>) -> Result<N> {
        Layout::listed(self.file(), &constructor)?.verify(self, what)?;
        let course = Course {
            store: self,
            file: self.file(),
            listed: None,
        };
        constructor(&Walk::new(&course))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_and_small_convolutions_are_alike() {
        assert!(same(&[4, 3], &[4, 3, 1, 1]) && same(&[4, 3, 1, 1], &[4, 3]));
        assert!(!same(&[4, 3], &[4, 3, 3, 3]) && !same(&[4], &[4, 1]));
        assert!(same(&[4, 3, 3, 3], &[4, 3, 3, 3]) && !same(&[4, 3], &[3, 4]));
    }

    #[test]
    fn a_walk_lists_every_kind_of_layer_without_weights() {
        let layout = Layout::of(|weights| {
            let inner = weights.at("a").at(3);
            inner.linear("l", 2, 3)?;
            inner.matrix("m", 4, 5)?;
            inner.conv("c", 2, 3, 3, 2)?;
            inner.group_norm("g", 64, 32, 1e-5)?;
            inner.layer_norm("n", 7, 1e-5)?;
            inner.rms_norm("r.scale", 6, 1e-6)?;
            inner.linear_with("w", 3, 2, Bias::Without)?;
            inner.conv3d("k", 2, 3, [3, 1, 1])?;
            inner.channel_norm("m.gamma", 8, 1e-6)?;
            inner.embedding("e", 9, 4)?;
            inner.rows("t", &[1, 9, 4])?;
            weights.value("v", &[1, 2])?;
            Ok(())
        });
        let layout = layout.map(|l| l.items().to_vec()).unwrap_or_default();
        let shown: Vec<String> = layout.iter().map(|(k, s)| format!("{k} {s:?}")).collect();
        let expected = [
            "a.3.l.weight [2, 3]",
            "a.3.l.bias [2]",
            "a.3.m.weight [4, 5]",
            "a.3.c.weight [2, 3, 3, 3]",
            "a.3.c.bias [2]",
            "a.3.g.weight [64]",
            "a.3.g.bias [64]",
            "a.3.n.weight [7]",
            "a.3.n.bias [7]",
            "a.3.r.scale [6]",
            "a.3.w.weight [3, 2]",
            "a.3.k.weight [2, 3, 3, 1, 1]",
            "a.3.k.bias [2]",
            "a.3.m.gamma [8, 1, 1]",
            "a.3.e.weight [9, 4]",
            "a.3.t [1, 9, 4]",
            "v [1, 2]",
        ];
        assert_eq!(shown, expected);
    }
}
