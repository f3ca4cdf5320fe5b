//! Networks through their public interface, against the goldens.

mod control;
mod detect;
mod gold;
mod preview;
mod unet;
mod vae;
mod vision;
