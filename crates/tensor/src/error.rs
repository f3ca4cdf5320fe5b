//! What can go wrong in tensor operations. Shapes come from workflows, so all of these are ordinary errors.

/// Result of a tensor operation.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// An operation that cannot be done on the given shapes or values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("shape {shape:?} holds {expected} elements, but {actual} were given")]
    ElementCount {
        shape: Vec<usize>,
        expected: usize,
        actual: usize,
    },
    #[error("a tensor of shape {shape:?} is too large")]
    TooLarge { shape: Vec<usize> },
    #[error("not enough memory for a tensor of shape {shape:?}: {} MiB more are needed", missing >> 20)]
    NoMemory { shape: Vec<usize>, missing: u64 },
    #[error(transparent)]
    NoRoom(#[from] crate::room::NoRoom),
    #[error(
        "{elements} elements were gathered without asking for their memory; more than {limit} go into a Buffer"
    )]
    NotAsked { elements: usize, limit: usize },
    #[error("{op}: shapes {left:?} and {right:?} do not fit together")]
    ShapeMismatch {
        op: &'static str,
        left: Vec<usize>,
        right: Vec<usize>,
    },
    #[error("{op}: dimension {dim} is out of range for shape {shape:?}")]
    DimOutOfRange {
        op: &'static str,
        dim: usize,
        shape: Vec<usize>,
    },
    #[error("{op}: index {index} is out of range for size {size}")]
    IndexOutOfRange {
        op: &'static str,
        index: usize,
        size: usize,
    },
    #[error("{op}: needs {expected} dimensions, got shape {shape:?}")]
    Rank {
        op: &'static str,
        expected: &'static str,
        shape: Vec<usize>,
    },
    #[error("{device} is full: {wanted} bytes are wanted, {free} of its {capacity} bytes are free")]
    DeviceFull {
        device: String,
        wanted: u64,
        free: u64,
        capacity: u64,
    },
    #[error("{device} has failed: {reason}")]
    DeviceFailed { device: String, reason: String },
    #[error("{op}: one tensor is on {left}, another on {right}")]
    DeviceMismatch {
        op: &'static str,
        left: String,
        right: String,
    },
    #[error(
        "{op}: the tensor is on {device}, where only operations of that device can read it; copy it to cpu first"
    )]
    NotInMainMemory { op: &'static str, device: String },
    #[error("interrupted")]
    Cancelled,
    #[error("{op}: {reason}")]
    Invalid { op: &'static str, reason: String },
}

impl TensorError {
    pub(crate) fn invalid(op: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid {
            op,
            reason: reason.into(),
        }
    }

    pub(crate) fn mismatch(op: &'static str, left: &[usize], right: &[usize]) -> Self {
        Self::ShapeMismatch {
            op,
            left: left.to_vec(),
            right: right.to_vec(),
        }
    }

    pub(crate) fn rank(op: &'static str, expected: &'static str, shape: &[usize]) -> Self {
        Self::Rank {
            op,
            expected,
            shape: shape.to_vec(),
        }
    }
}
