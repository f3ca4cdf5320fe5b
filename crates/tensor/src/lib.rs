//! Tensors on the CPU: shape, f32 storage, and the operations that model-free nodes need.
//!
//! ```
//! use fresco_tensor::Tensor;
//! let a = Tensor::from_vec([2, 2], vec![0.0, 1.0, 2.0, 3.0])?;
//! assert_eq!(a.transpose(0, 1)?.data(), [0.0, 2.0, 1.0, 3.0]);
//! # Ok::<(), fresco_tensor::TensorError>(())
//! ```
//!
//! Every operation checks its shapes and answers with a [`TensorError`]; results do not depend on thread counts.

mod arrange;
pub mod batch;
mod buffer;
pub mod cancel;
#[cfg(target_os = "linux")]
mod container;
pub mod convert;
pub mod cpu;
pub mod cuda;
pub mod device;
mod draft;
mod dtype;
mod elements;
mod elementwise;
mod error;
pub mod filter;
pub mod formats;
pub mod gpu;
mod lock;
mod machine;
pub mod morphology;
mod narrow;
pub mod nn;
mod pages;
mod positioned;
mod read_buffer;
mod readers;
mod recycle;
mod reduce;
pub mod resize;
pub mod rng;
mod room;
mod row_parts;
pub mod safetensors;
mod storage;
mod stored;
pub mod synthetic;
mod tensor;
pub mod tile;
mod traffic;
mod unread;
mod watch;
pub mod weights;

pub use batch::{repeat_to_batch, resize_to_batch};
pub use buffer::Buffer;
pub use device::{Device, DeviceId};
pub use dtype::Dtype;
pub use elements::{MAX_ELEMENTS, element_count};
pub use elementwise::broadcast_shape;
pub use error::{Result, TensorError};
pub use machine::resident as resident_memory;
pub use pages::{return_large_storage, trim_heap};
pub use positioned::weights_were_read_within;
pub use readers::{answer_within, on_reader_thread};
pub use recycle::{free_spare_memory, trim_spare_memory};
pub use reduce::Axes;
pub use resize::{Crop, ResizeMethod, common_upscale};
pub use rng::Generator;
pub use room::{
    Claim as MemoryClaim, NoRoom, available as available_memory, claim as claim_memory,
    total as total_memory, total_and_available as total_and_available_memory, with_memory,
};
pub use safetensors::{SafeTensors, SafeTensorsError};
pub use stored::Stored;
pub use tensor::Tensor;
pub use tile::{TileAxis, tiled, tiled_each, tiled_scale};
pub use traffic::{WeightTraffic, weight_traffic};
pub use watch::WatchedAllocator;
pub use weights::{WeightError, WeightFile, WeightInfo, open_weights};
