//! Anima: the transformer of Cosmos-Predict2 with a prompt of its own, which is made of the words' tokens of one encoder
//! that look at the states of another.

mod conditioner;
mod detect;
pub mod lite;
mod model;

pub use conditioner::{Conditioner, ConditionerConfig};
pub use detect::{AnimaFamily, LORA};
pub use model::{Anima, AnimaConfig};
