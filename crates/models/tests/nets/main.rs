//! Networks through their public interface, against the goldens.

#![expect(
    clippy::unwrap_used,
    reason = "a step that fails in a test should fail the test"
)]

mod control;
mod detect;
mod full_size;
mod gold;
mod older;
mod patches;
mod preview;
mod qwen;
mod qwen21;
mod reuse;
mod sd3;
mod slots;
mod talk;
mod transformers;
mod unet;
mod vae;
mod videos;
mod vision;
mod wrong_weights;
