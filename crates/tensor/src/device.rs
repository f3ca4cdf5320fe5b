//! Where tensors live.

/// A place with memory that can compute.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Device {
    /// Main memory.
    #[default]
    Cpu,
}

impl Device {
    pub fn cpu() -> Self {
        Self::Cpu
    }
}
