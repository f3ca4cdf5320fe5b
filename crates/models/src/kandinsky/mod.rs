//! Kandinsky 5: a prompt passes blocks of its own, a picture or a film looks at itself and at the prompt.

mod config;
mod detect;
mod model;

pub use config::KandinskyConfig;
pub use detect::{Kandinsky, LORA};
pub use model::KandinskyNetwork;
