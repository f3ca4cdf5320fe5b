//! Layers of a store, whatever their kind.

use std::sync::{Arc, Weak};

use fresco_tensor::nn::{
    Conv2d, Conv3d, Embedding, GroupNorm, LayerNorm, Linear, RmsNorm, Value, WeightSlot,
};
use fresco_tensor::{Stored, TensorError};

#[derive(Clone)]
pub(super) enum Layer {
    Linear(Arc<Linear>),
    Conv(Arc<Conv2d>),
    Conv3d(Arc<Conv3d>),
    GroupNorm(Arc<GroupNorm>),
    RowNorm(Arc<LayerNorm>),
    Rms(Arc<RmsNorm>),
    Embedding(Arc<Embedding>),
    Value(Arc<Value>),
}

/// A layer that only the networks hold.
enum Loose {
    Linear(Weak<Linear>),
    Conv(Weak<Conv2d>),
    Conv3d(Weak<Conv3d>),
    GroupNorm(Weak<GroupNorm>),
    RowNorm(Weak<LayerNorm>),
    Rms(Weak<RmsNorm>),
    Embedding(Weak<Embedding>),
    Value(Weak<Value>),
}

impl Loose {
    fn layer(&self) -> Option<Layer> {
        Some(match self {
            Self::Linear(layer) => Layer::Linear(layer.upgrade()?),
            Self::Conv(layer) => Layer::Conv(layer.upgrade()?),
            Self::Conv3d(layer) => Layer::Conv3d(layer.upgrade()?),
            Self::GroupNorm(layer) => Layer::GroupNorm(layer.upgrade()?),
            Self::RowNorm(layer) => Layer::RowNorm(layer.upgrade()?),
            Self::Rms(layer) => Layer::Rms(layer.upgrade()?),
            Self::Embedding(layer) => Layer::Embedding(layer.upgrade()?),
            Self::Value(layer) => Layer::Value(layer.upgrade()?),
        })
    }
}

impl Layer {
    pub(super) fn slot(&self) -> &Arc<WeightSlot> {
        match self {
            Self::Linear(layer) => layer.slot(),
            Self::Conv(layer) => layer.slot(),
            Self::Conv3d(layer) => layer.slot(),
            Self::GroupNorm(layer) => layer.slot(),
            Self::RowNorm(layer) => layer.slot(),
            Self::Rms(layer) => layer.slot(),
            Self::Embedding(layer) => layer.slot(),
            Self::Value(layer) => layer.slot(),
        }
    }

    /// A part as it was given, in another shape perhaps; none if the layer does not keep it.
    pub(super) fn part(&self, part: &str) -> Result<Option<Stored>, TensorError> {
        Ok(match (self, part) {
            (Self::Linear(layer), "weight") => Some(layer.weight()?),
            (Self::Linear(layer), "bias") => layer.bias()?,
            (Self::Conv(layer), "weight") => Some(layer.weight()?),
            (Self::Conv(layer), "bias") => layer.bias()?,
            (Self::Conv3d(layer), "weight") => Some(layer.weight()?),
            (Self::Conv3d(layer), "bias") => layer.bias()?,
            (Self::GroupNorm(layer), "weight") => Some(layer.stored()?.0),
            (Self::GroupNorm(layer), "bias") => Some(layer.stored()?.1),
            (Self::RowNorm(layer), "weight") => layer.stored()?.0,
            (Self::RowNorm(layer), "bias") => layer.stored()?.1,
            // Its weight goes by many names, so the unit has the whole key, like that of a value.
            (Self::Rms(layer), "" | "weight") => layer.stored()?,
            (Self::Embedding(layer), "" | "weight") => Some(layer.table()?),
            (Self::Value(layer), "" | "weight" | "bias") => Some(layer.stored()?),
            _ => None,
        })
    }

    fn loose(&self) -> Loose {
        match self {
            Self::Linear(layer) => Loose::Linear(Arc::downgrade(layer)),
            Self::Conv(layer) => Loose::Conv(Arc::downgrade(layer)),
            Self::Conv3d(layer) => Loose::Conv3d(Arc::downgrade(layer)),
            Self::GroupNorm(layer) => Loose::GroupNorm(Arc::downgrade(layer)),
            Self::RowNorm(layer) => Loose::RowNorm(Arc::downgrade(layer)),
            Self::Rms(layer) => Loose::Rms(Arc::downgrade(layer)),
            Self::Embedding(layer) => Loose::Embedding(Arc::downgrade(layer)),
            Self::Value(layer) => Loose::Value(Arc::downgrade(layer)),
        }
    }
}

/// A layer that was built, kept for the next network, or forgotten and alive only while one uses it.
pub(super) struct Built {
    kept: Option<Layer>,
    loose: Loose,
}

impl Built {
    pub(super) fn new(layer: Layer) -> Self {
        Self {
            loose: layer.loose(),
            kept: Some(layer),
        }
    }

    pub(super) fn layer(&self) -> Option<Layer> {
        self.kept.clone().or_else(|| self.loose.layer())
    }

    /// Gives up the store's hold, and says whether a network still has one.
    pub(super) fn forget(&mut self) -> bool {
        drop(self.kept.take());
        self.loose.layer().is_some()
    }
}
