//! Operations on a GPU: each chooses a kernel for the shapes it is given, and starts it.

pub(crate) mod attention;
pub(crate) mod modulate;
pub(crate) mod norm;

use std::sync::Arc;

use super::{Args, CudaBuffer, CudaDevice, Format, Kernel};
use crate::error::Result;

/// So many times the same value.
pub(crate) fn filled(
    device: &Arc<CudaDevice>,
    count: usize,
    format: Format,
    value: f32,
) -> Result<CudaBuffer> {
    let out = device.buffer(count, format)?;
    if count > 0 {
        let kernel = Kernel {
            module: "elementwise",
            format,
            name: "fill",
        };
        let args = Args::new()
            .pointer(out.address())
            .float(value)
            .long(count as i64);
        let blocks = count.div_ceil(1024).min(1 << 16) as u32;
        device.launch(kernel, [blocks, 1, 1], 256, 0, &args)?;
    }
    Ok(out)
}
