//! Golden tests: every node against the reference's recorded results (`tests/gold/nodes/README.md`).

mod boundary;
mod compare;
mod coverage;
mod files;
mod hostile;
mod inputs;
mod objects;
mod objects_b;
mod objects_c;
mod run;
mod schemas;
mod self_test;
mod store;

macro_rules! areas {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run::area(stringify!($name));
        }
    )*};
}

// The `files` area has its own test: its cases need folders and files on disk.
areas! {
    image_scale
    image_basic
    image_post
    mask
    compositing
    latent
    empty_latent
    conditioning
    hooks
    sigmas
    model_sampling
    text
    primitive_logic
    dataset
    audio
    sampler_objects
    guidance
    misc
    vae_conditioning
}
