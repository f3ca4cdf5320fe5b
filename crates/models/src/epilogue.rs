//! What a layer does at its end, in the forms that networks use most.

use fresco_tensor::Tensor;
use fresco_tensor::nn::{Act, After};

/// Adds.
pub fn plus(x: &Tensor) -> After<'_> {
    After {
        add: Some(x),
        ..After::default()
    }
}

/// Activates.
pub fn then(act: Act) -> After<'static> {
    After {
        act,
        ..After::default()
    }
}

/// What follows a layer, where a group norm comes next: a GPU leaves sums for it.
pub fn before_norm(after: After<'_>) -> After<'_> {
    After {
        for_norm: true,
        ..after
    }
}
