//! Networks through their public interface, against the goldens.

mod gold;
mod unet;
mod vae;
