//! Networks that steer a UNet with a picture: control nets and T2I adapters.

mod adapter;
mod names;
mod net;

use std::sync::Arc;

use fresco_tensor::{Device, Tensor, WeightFile};

use crate::detect::what_it_is;
use crate::error::{ModelError, Result};
use crate::store::Store;
use crate::unet::ControlFeatures;

pub use adapter::T2iAdapter;
pub use net::ControlNet;

/// What a control file holds.
pub enum Control {
    Net(Box<ControlNet>),
    Adapter(T2iAdapter),
}

/// The weights of a control file, with which kind of network they make.
#[derive(Clone, Debug)]
pub struct ControlStore {
    pub store: Arc<Store>,
    adapter: bool,
}

impl ControlStore {
    /// The same weights, computed with on another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        Self {
            store: self.store.on(device),
            adapter: self.adapter,
        }
    }

    pub fn build(&self) -> Result<Control> {
        Ok(if self.adapter {
            Control::Adapter(T2iAdapter::new(&self.store)?)
        } else {
            Control::Net(Box::new(ControlNet::new(&self.store)?))
        })
    }

    /// What is in a file. Kinds that this version does not run are called by name.
    pub fn find(file: &Arc<dyn WeightFile>, device: Device) -> Result<Self> {
        let names = file.names();
        if let Some(store) = names::net_store(file, &names, device.clone())? {
            ControlNet::verify(&store)?;
            return Ok(Self {
                store,
                adapter: false,
            });
        }
        if let Some(store) = names::adapter_store(file, &names, device) {
            return Ok(Self {
                store,
                adapter: true,
            });
        }
        let reason = match what_it_is(&names) {
            Some(what) => format!("this is {what}, not a control net"),
            None => "this is not a control net that is known".to_owned(),
        };
        Err(ModelError::unsupported(
            file.path().display().to_string(),
            reason,
        ))
    }
}

impl Control {
    /// The network in a file.
    pub fn open(file: &Arc<dyn WeightFile>, device: Device) -> Result<Self> {
        ControlStore::find(file, device)?.build()
    }

    /// Gives back what a run left on the device.
    pub fn rest(&self) {
        if let Self::Net(net) = self {
            net.rest();
        }
    }

    /// Width and height of the hint for a latent of `columns` by `rows` cells.
    pub fn hint_size(&self, columns: usize, rows: usize) -> (usize, usize) {
        let side = match self {
            Self::Net(_) => 1,
            Self::Adapter(net) => net.unshuffle(),
        };
        let pixels = |cells: usize| (cells * 8).next_multiple_of(side);
        (pixels(columns), pixels(rows))
    }
}

impl ControlFeatures {
    /// Made weaker or stronger; with `pooled`, each map is replaced by its mean first.
    pub fn scaled(mut self, strength: f32, pooled: bool) -> Result<Self> {
        for list in [&mut self.input, &mut self.middle, &mut self.output] {
            for features in list.iter_mut().flatten() {
                if pooled {
                    let shape = features.shape().to_vec();
                    *features = features.mean(&[2, 3], true)?.expand(&shape)?;
                }
                if strength != 1.0 {
                    *features = features.mul_scalar(strength);
                }
            }
        }
        Ok(self)
    }

    /// With those of the control net before. Where one has nothing the other's passes.
    pub fn joined(mut self, before: Self) -> Result<Self> {
        let lists = [
            (&mut self.input, before.input),
            (&mut self.middle, before.middle),
            (&mut self.output, before.output),
        ];
        for (own, before) in lists {
            for (place, features) in before.into_iter().enumerate() {
                match own.get_mut(place) {
                    None => own.push(features),
                    Some(own) => *own = both(own.take(), features)?,
                }
            }
        }
        Ok(self)
    }
}

fn both(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(b.add(&a)?),
        (a, b) => a.or(b),
    })
}
