//! Tensors on the CPU: shape, f32 storage, and the operations that model-free nodes need.
