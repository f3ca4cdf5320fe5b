//! Activations and the small operations between layers.

/// What follows a layer, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Act {
    #[default]
    None,
    /// `x * sigmoid(x)`
    Silu,
    /// The exact one, by the error function.
    Gelu,
    /// The approximation by tanh.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    Relu,
}
