//! Redux: a picture as tokens of the prompt.

use std::sync::Arc;

use fresco_tensor::nn::{Act, Linear};
use fresco_tensor::{Device, Tensor};

use crate::epilogue::then;
use crate::error::{ModelError, Result};
use crate::store::WeightStore;
use crate::style::{StyleKind, StyleNetwork};

/// Two linear layers.
pub struct Redux {
    device: Device,
    up: Arc<Linear>,
    down: Arc<Linear>,
}

/// How its files are recognised.
pub const KIND: StyleKind = StyleKind {
    key: "redux_down.weight",
    build: |store| Ok(Box::new(Redux::new(store)?)),
};

impl Redux {
    pub fn new(store: &WeightStore) -> Result<Self> {
        let matrix = |key: &str| match store.shape(key) {
            Some(&[rows, columns]) => Ok((rows, columns)),
            _ => Err(ModelError::Missing {
                file: store.file().to_owned(),
                key: key.to_owned(),
            }),
        };
        let (wide, seen) = matrix("redux_up.weight")?;
        let (out, _) = matrix("redux_down.weight")?;
        store.build("Redux", |weights| {
            Ok(Self {
                device: weights.device().clone(),
                up: weights.linear("redux_up", wide, seen)?,
                down: weights.linear("redux_down", out, wide)?,
            })
        })
    }
}

impl StyleNetwork for Redux {
    fn tokens(&self, seen: &Tensor) -> Result<Tensor> {
        let [_, _, width] = seen.dims3()?;
        if width != self.up.in_features() {
            let reason = format!(
                "it takes {} values for each part of a picture, not {width}: use the vision encoder it was made for \
                 (SigLIP)",
                self.up.in_features()
            );
            return Err(ModelError::invalid("Redux", reason));
        }
        let inner = self
            .up
            .forward_with(&seen.to(&self.device)?, then(Act::Silu))?;
        Ok(self.down.forward(&inner)?.to(&Device::cpu())?)
    }
}
