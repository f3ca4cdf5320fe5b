//! Families of videos by their full-size lists, and how much of a file detection looks at.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fresco_models::cosmos::CosmosConfig;
use fresco_models::detect_checkpoint;
use fresco_models::kandinsky::KandinskyConfig;
use fresco_models::ltxv::LtxvConfig;
use fresco_models::mochi::MochiConfig;
use fresco_models::sd::SdConfig;
use fresco_models::vae::{VaeConfig, names};
use fresco_models::wan::{CameraConfig, VaceConfig, VisionConfig, WanConfig};
use fresco_tensor::{Device, Stored, WeightError, WeightFile, WeightInfo};

use crate::transformers::{Listed, config, detected};

macro_rules! list {
    ($name:literal) => {
        include_str!(concat!("../../../../tools/synth/lists/", $name, ".txt"))
    };
}

#[test]
fn wan() {
    let found = detected(list!("wan21_i2v"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Wan", "Wan21"));
    assert_eq!(facts.sampling.timestep(0.5), 500.0);
    let own: WanConfig = config(&found);
    assert_eq!(
        (own.dim, own.heads, own.blocks, own.ffn),
        (5120, 40, 40, 13824)
    );
    assert_eq!((own.in_channels, own.out_channels), (36, 16));
    assert_eq!(own.axes(), [44, 42, 42]);
    let vision = VisionConfig {
        width: 1280,
        places: None,
    };
    assert_eq!(own.vision, Some(vision));
    assert!(own.begins_with_pictures() && !own.levels_by_frame());

    let found = detected(list!("wan22_5b"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Wan 2.2 5B", "Wan22"));
    let own: WanConfig = config(&found);
    assert_eq!((own.dim, own.heads, own.out_channels), (3072, 24, 48));
    assert!(own.levels_by_frame() && own.vision.is_none());

    let own: WanConfig = config(&detected(list!("wan21_flf2v")));
    assert_eq!(own.vision.and_then(|vision| vision.places), Some(514));
    let own: WanConfig = config(&detected(list!("wan21_vace")));
    let vace = VaceConfig {
        channels: 96,
        blocks: 8,
    };
    assert_eq!(own.vace, Some(vace));
    let own: WanConfig = config(&detected(list!("wan21_camera")));
    let camera = CameraConfig {
        channels: 24,
        blocks: 1,
    };
    assert_eq!(
        (own.camera, own.begins_with_pictures()),
        (Some(camera), false)
    );
    let own: WanConfig = config(&detected(list!("wan22_fun_control")));
    assert_eq!((own.in_channels, own.reference), (52, Some(16)));
}

#[test]
fn wan_that_follows_a_sound_or_a_face() {
    let found = detected(list!("wan22_s2v"));
    assert_eq!(found.family, "Wan sound to video");
    let own: WanConfig = config(&found);
    let sound = own.sound.unwrap();
    assert_eq!((sound.layers, sound.heads.input), (25, 1024));
    assert_eq!(sound.heads.heads, 4);
    assert_eq!(sound.after, [0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39]);
    found.network.layout().unwrap();

    let found = detected(list!("wan21_humo"));
    assert_eq!(found.family, "Wan HuMo");
    let own: WanConfig = config(&found);
    let speech = own.speech.unwrap();
    assert_eq!(
        (speech.input, speech.tokens, speech.width),
        (51200, 16, 1536)
    );
    assert_eq!(own.in_channels, 36);

    let found = detected(list!("wan22_animate"));
    assert_eq!(found.family, "Wan Animate");
    let own: WanConfig = config(&found);
    let face = own.face.unwrap();
    assert_eq!(
        (face.levels.len(), face.motion, face.looks),
        (9, (512, 20), 8)
    );
    assert_eq!(face.levels[8], (512, 512));
}

#[test]
fn other_films() {
    let found = detected(list!("cosmos1"));
    let facts = found.network.facts();
    assert_eq!(
        (found.family, facts.latent.name),
        ("Cosmos", "Cosmos1CV8x8x8")
    );
    let own: CosmosConfig = config(&found);
    assert_eq!((own.dim, own.heads, own.blocks), (4096, 32, 28));
    assert_eq!((own.ratios, own.places.is_some()), ([2.0, 1.0, 1.0], true));
    assert!((facts.sampling.timestep(1.0)).abs() < 1e-6);

    let found = detected(list!("mochi"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("Mochi", "Mochi"));
    let own: MochiConfig = config(&found);
    assert_eq!(
        (own.dim, own.prompt_dim, own.heads, own.head),
        (3072, 1536, 24, 128)
    );
    assert_eq!(own.blocks.len(), 48);
    assert!(own.blocks[46].prompt.is_some() && own.blocks[47].prompt.is_none());

    let found = detected(list!("kandinsky5_video"));
    let facts = found.network.facts();
    assert_eq!(
        (found.family, facts.latent.name),
        ("Kandinsky 5 video", "HunyuanVideo")
    );
    let own: KandinskyConfig = config(&found);
    assert_eq!((own.dim, own.in_channels, own.channels), (1792, 33, 16));
    assert_eq!((own.axes, own.apart), (vec![16, 24, 24], 2.0));

    let found = detected(list!("svd"));
    let facts = found.network.facts();
    assert_eq!(
        (found.family, facts.latent.name),
        ("Stable Video Diffusion", "SD15")
    );
    let own: SdConfig = config(&found);
    assert!(own.unet.timed && own.unet.adm == Some(768));
    assert_eq!(facts.sampling.sigma_max().round(), 700.0);

    let found = detected(list!("hunyuan15_sr"));
    assert_eq!(found.family, "Hunyuan Video 1.5 for larger videos");
}

/// The sizes of full-size autoencoders of films: channels of latents, pixels of a cell, frames of a latent frame.
#[test]
fn autoencoders_of_films() {
    for (list, sizes) in [
        (list!("hunyuan_video_vae"), (16, 8, Some(4))),
        (list!("hunyuan15_vae"), (32, 16, Some(4))),
        (list!("mochi_vae"), (12, 8, Some(6))),
        (list!("cosmos_vae"), (16, 8, Some(8))),
        (list!("svd_vae"), (4, 8, None)),
    ] {
        let file = Listed::of(list).shared();
        let store = names::store(&file, "", Device::cpu());
        let config = VaeConfig::detect(&store).unwrap();
        config.verify(&store).unwrap();
        let facts = config.facts();
        let found = (facts.latent_channels, facts.ratio, facts.temporal_ratio);
        assert_eq!(found, sizes);
    }
}

/// What an autoencoder lacks is named before anything is read.
#[test]
fn autoencoders_say_what_is_missing() {
    let mut file = Listed::of(list!("hunyuan_video_vae"));
    file.0.remove("decoder.mid.attn_1.k.weight");
    let store = names::store(&file.shared(), "", Device::cpu());
    let config = VaeConfig::detect(&store).unwrap();
    let error = config.verify(&store).unwrap_err().to_string();
    assert!(error.contains("decoder.mid.attn_1.k.weight"), "{error}");
}

#[test]
fn a_file_that_lacks_a_weight_is_still_known() {
    let mut odd = Listed::of(list!("wan21_i2v"));
    odd.0.remove("blocks.7.ffn.2.bias");
    let found = detect_checkpoint(&odd.shared()).unwrap();
    let odd = Listed::of(list!("wan21_i2v"));
    assert_eq!(found.keys.len() + 1, odd.0.len());
}

#[test]
fn ltx_video() {
    let found = detected(list!("ltxv"));
    let facts = found.network.facts();
    assert_eq!((found.family, facts.latent.name), ("LTX-Video", "LTXV"));
    assert_eq!(facts.sampling.timestep(0.5), 0.5);
    let own: LtxvConfig = config(&found);
    assert_eq!((own.dim, own.heads, own.blocks), (2048, 32, 28));
    assert!(!own.causal);
    let text = r#"{"transformer": {"causal_temporal_positioning": true, "positional_embedding_max_pos": [20, 1024, 512]}}"#;
    let said = own.clone().with_text(Some(text));
    assert_eq!((said.causal, said.reach), (true, [20.0, 1024.0, 512.0]));
    assert_eq!(own.clone().with_text(Some("{")), own);
}

/// A file that counts what is read of it.
struct Counted {
    inner: Arc<dyn WeightFile>,
    read: AtomicUsize,
}

impl WeightFile for Counted {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn info(&self, name: &str) -> Option<WeightInfo> {
        self.inner.info(name)
    }

    fn read(&self, name: &str) -> Result<Stored, WeightError> {
        let stored = self.inner.read(name)?;
        self.read.fetch_add(stored.len(), Ordering::Relaxed);
        Ok(stored)
    }

    fn metadata(&self) -> &[(String, String)] {
        self.inner.metadata()
    }
}

/// What a file is, is told from its names and shapes: nothing of its weights is read, and it takes no time.
#[test]
fn detection_reads_no_weights() {
    let lists = [
        list!("sdxl"),
        list!("flux_2x2"),
        list!("flux3_klein"),
        list!("krea2"),
        list!("anima"),
        list!("z_image"),
        list!("lumina2"),
        list!("newbie"),
        list!("omnigen2"),
        list!("kandinsky5_image"),
        list!("hidream_i1"),
        list!("hunyuan_image21"),
        list!("wan21_i2v"),
        list!("wan21_vace"),
        list!("wan22_s2v"),
        list!("wan22_animate"),
        list!("cosmos1"),
        list!("mochi"),
        list!("kandinsky5_video"),
        list!("svd"),
        list!("ltxv"),
    ];
    for list in lists {
        let counted = Arc::new(Counted {
            inner: Listed::of(list).shared(),
            read: AtomicUsize::new(0),
        });
        let file: Arc<dyn WeightFile> = counted.clone();
        let begun = Instant::now();
        let family = detect_checkpoint(&file).unwrap().family;
        eprintln!("{family}: {:?}", begun.elapsed());
        assert_eq!(counted.read.load(Ordering::Relaxed), 0, "{family}");
    }
}
