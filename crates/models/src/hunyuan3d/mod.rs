//! Hunyuan3D 2 and 2.1: solids from a picture.

mod config;
mod detect;
mod streams;
mod v21;

pub use config::{Hunyuan3d21Config, Hunyuan3dConfig};
pub use detect::Hunyuan3d;
pub use streams::Hunyuan3dNetwork;
pub use v21::Hunyuan3d21Network;
