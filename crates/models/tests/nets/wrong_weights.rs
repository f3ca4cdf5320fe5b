//! Files with something wrong in their weights: an error, never a panic, and nothing is made for sizes that a file only claims.

use std::collections::BTreeMap;

use fresco_models::control::ControlStore;
use fresco_models::detect_checkpoint;
use fresco_models::latent_upscale::UpscalerStore;
use fresco_models::model_patch::PatchStore;
use fresco_models::store::WeightStore;
use fresco_models::text::decoder::{Decoder, DecoderConfig, Flavour, GEMMA4};
use fresco_models::vae::VaeConfig;
use fresco_tensor::{Device, MAX_ELEMENTS};

use crate::gold::Gold;
use crate::transformers::Listed;

type Keys = BTreeMap<String, Vec<usize>>;

const PICTURES: &[&str] = &[
    "anima_small",
    "auraflow_small",
    "cascade_b_small",
    "cascade_c_small",
    "chroma_small",
    "flux2_small",
    "flux3_small",
    "flux_small",
    "hidream_small",
    "hunyuan_image_small",
    "hydit_small",
    "kandinsky5_image_small",
    "krea2_small",
    "mmdit_sd35_small",
    "newbie_small",
    "omnigen2_small",
    "pixart_sigma_small",
    "qwen_edit_small",
    "qwen_image21_small",
    "z_image_small",
];

const FILMS: &[&str] = &[
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
    "vae_flux2_small",
];

/// Goldens, and how the keys of the control net begin.
const CONTROLS: &[(&str, &str)] = &[
    ("flux_controlnet_instantx_small", ""),
    ("qwen_controlnet_small", ""),
    ("qwen_fun_control_small", "control_"),
];

fn keys(golden: &str) -> Keys {
    let weights = Gold::open(golden).weights();
    let shapes = weights.into_iter();
    shapes
        .map(|(name, stored)| (name, stored.shape().to_vec()))
        .collect()
}

/// As wide as a file may claim a tensor without elements to be.
fn widen(shape: &mut [usize]) {
    shape.fill(1);
    if let Some(first) = shape.first_mut() {
        *first = MAX_ELEMENTS;
    }
}

/// What may stand in the place of a shape: none is a weight that is not there.
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
            widen(s);
            s.push(0);
        }),
        changed(&|s| {
            widen(s);
            s.reverse();
            s.iter_mut().take(1).for_each(|n| *n = 0);
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

/// Opens networks of goldens as files of checkpoints with one wrong weight.
fn are_refused(goldens: &[&str]) {
    for golden in goldens {
        is_refused(golden, &keys(golden));
    }
}

/// Opens a network as the file of a checkpoint with one wrong weight.
fn is_refused(name: &str, keys: &Keys) {
    let (all, refused) = tried(keys, |keys| {
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
    assert!(refused * 4 > all * 3, "{name}: {refused} of {all}");
}

#[test]
fn networks_of_pictures_with_wrong_weights_are_refused() {
    are_refused(PICTURES);
}

#[test]
fn networks_of_films_with_wrong_weights_are_refused() {
    are_refused(FILMS);
}

#[test]
fn a_network_of_songs_with_wrong_weights_in_its_smaller_parts_is_refused() {
    let parts = [
        "ace_step15_small",
        "ace_step15_condition_small",
        "ace_step15_codes_small",
    ];
    is_refused("songs", &parts.into_iter().flat_map(keys).collect());
}

#[test]
fn control_nets_with_wrong_weights_do_not_panic() {
    for (golden, start) in CONTROLS {
        let mut own = keys(golden);
        own.retain(|key, _| key.starts_with(start));
        tried(&own, |keys| {
            let file = Listed(keys).shared();
            let found = ControlStore::find(&file, &Device::cpu());
            found.map(drop).map_err(|e| e.to_string())
        });
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
fn language_models_with_wrong_weights_do_not_panic() {
    for golden in [
        "gemma4_small",
        "gemma4_unified_small",
        "gemma4_picture_small",
        "gemma4_sound_small",
    ] {
        tried(&keys(golden), |keys| {
            let file = Listed(keys).shared();
            let store = GEMMA4.store(&file, "", &Device::cpu());
            let store = store.ok_or("there is no language model")?;
            let config = DecoderConfig::detect(&store, Flavour::Gemma4);
            let config = config.map_err(|e| e.to_string())?;
            let network = Decoder::new(&store, &config);
            network.map(drop).map_err(|e| e.to_string())
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
    for own in [crate::talk::keys(), keys("anima_lite_small")] {
        let (all, refused) = tried(&own, |keys| {
            let file = Listed(keys).shared();
            let found = PatchStore::find(&file, &Device::cpu());
            found.map(drop).map_err(|e| e.to_string())
        });
        assert!(refused * 10 > all * 9, "{refused} of {all}");
    }
}
