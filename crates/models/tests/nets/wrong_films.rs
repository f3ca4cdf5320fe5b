//! Files of films, of their sound and of shapes with something wrong in them: an error, never a panic, and nothing is made
//! for sizes that a file only claims.

use std::collections::BTreeMap;

use fresco_models::detect_checkpoint;
use fresco_models::latent_upscale::UpscalerStore;
use fresco_models::model_patch::PatchStore;
use fresco_models::store::WeightStore;
use fresco_models::vae::VaeConfig;
use fresco_tensor::Device;

use crate::gold::Gold;
use crate::transformers::Listed;

type Keys = BTreeMap<String, Vec<usize>>;

const NETWORKS: &[&str] = &[
    "wan_i2v_small",
    "wan_vace_small",
    "wan_camera_small",
    "wan_s2v_small",
    "wan_humo_small",
    "wan_animate_small",
    "ltxv_small",
    "ltx2_small",
    "minimax_h3_small",
    "hunyuan_video_small",
    "hunyuan_video15_small",
    "cosmos1_small",
    "cosmos_predict2_small",
    "mochi_small",
    "kandinsky5_small",
    "svd_unet_small",
    "ace_step_small",
    "ace_step15_small",
    "stable_audio_dit_small",
    "hunyuan3d2_small",
    "hunyuan3d21_small",
];

const AUTOENCODERS: &[&str] = &[
    "wan_vae_tiled_small",
    "ltxv_vae_v0_small",
    "ltxv_vae_v2_small",
    "ltx2_vae_small",
    "minimax_h3_vae_small",
    "hunyuan_video_vae_small",
    "hunyuan_video15_vae_small",
    "cosmos_vae_small",
    "mochi_vae_small",
    "svd_vae_small",
    "hunyuan3d_vae_small",
    "taehv_small",
];

fn keys(golden: &str) -> Keys {
    let weights = Gold::open(golden).weights();
    let shapes = weights.into_iter();
    shapes
        .map(|(name, stored)| (name, stored.shape().to_vec()))
        .collect()
}

/// What may stand in the place of a shape: none is a weight that is not there. Files can claim any size beside a zero.
fn instead(shape: &[usize]) -> Vec<Option<Vec<usize>>> {
    let changed = |change: &dyn Fn(&mut Vec<usize>)| {
        let mut shape = shape.to_vec();
        change(&mut shape);
        Some(shape)
    };
    vec![
        None,
        Some(Vec::new()),
        changed(&|s| s.insert(0, 1)),
        changed(&|s| s.iter_mut().take(1).for_each(|n| *n += 32)),
        changed(&|s| s.iter_mut().for_each(|n| *n = 0)),
        changed(&|s| {
            s.fill(1 << 40);
            s.push(0);
        }),
        changed(&|s| {
            if let Some((last, others)) = s.split_last_mut() {
                others.fill(usize::MAX >> 1);
                *last = 0;
            }
        }),
    ]
}

/// Tries each change of each weight; gives how many there were, and how many were refused.
fn tried(keys: &Keys, open: impl Fn(Keys) -> Result<(), String>) -> (usize, usize) {
    let (mut all, mut refused) = (0, 0);
    for (name, shape) in keys {
        for other in instead(shape) {
            let mut keys = keys.clone();
            match other {
                Some(shape) => keys.insert(name.clone(), shape),
                None => keys.remove(name),
            };
            all += 1;
            if let Err(message) = open(keys) {
                assert!(message.len() > 10, "{name}: {message:?}");
                refused += 1;
            }
        }
    }
    (all, refused)
}

#[test]
fn networks_with_wrong_weights_are_refused() {
    for golden in NETWORKS {
        let (all, refused) = tried(&keys(golden), |keys| {
            let file = Listed(keys).shared();
            let found = detect_checkpoint(&file).map_err(|e| e.to_string())?;
            let store = found.store(&file, Device::cpu());
            found
                .network
                .open(store)
                .map(drop)
                .map_err(|e| e.to_string())
        });
        // Some weights may be missing, and some say how wide a network is.
        assert!(refused * 10 > all * 8, "{golden}: {refused} of {all}");
    }
}

#[test]
fn autoencoders_with_wrong_weights_do_not_panic() {
    for golden in AUTOENCODERS {
        tried(&keys(golden), |keys| {
            let file = Listed(keys).shared();
            let store = WeightStore::open(file, "", Device::cpu());
            VaeConfig::detect(&store)
                .map(drop)
                .map_err(|e| e.to_string())
        });
    }
}

#[test]
fn networks_beside_others_with_wrong_weights_do_not_panic() {
    for golden in [
        "ltx2_upsampler_small",
        "hunyuan_sr720_small",
        "hunyuan_sr1080_small",
    ] {
        tried(&keys(golden), |keys| {
            let file = Listed(keys).shared();
            let found = UpscalerStore::find(&file, &Device::cpu());
            found.map(drop).map_err(|e| e.to_string())
        });
    }
    let talk = crate::talk::keys();
    let (all, refused) = tried(&talk, |keys| {
        let file = Listed(keys).shared();
        let found = PatchStore::find(&file, &Device::cpu());
        found.map(drop).map_err(|e| e.to_string())
    });
    assert!(refused * 10 > all * 9, "{refused} of {all}");
}
