//! Autoencoders.

use std::sync::Arc;

use fresco_models::taesd::Taesd;
use fresco_models::vae::{Autoencoder, KlConfig, KlVae, Tiles, TimeTiles, Vae, names};
use fresco_models::{ModelError, WeightStore};
use fresco_tensor::{Device, Stored, Tensor, WeightFile, tiled_scale};

use crate::gold::{
    Gold, MemoryFile, assert_near, assert_summary, distance, json, store, wave, waves,
};

fn go() -> Result<(), ModelError> {
    Ok(())
}

#[test]
fn kl_of_four_and_sixteen_channels() {
    for (name, channels) in [("vae_kl_small", 4), ("vae_ae16_small", 16)] {
        let gold = Gold::open(name);
        let net = KlVae::new(&gold.store()).unwrap();
        let facts = net.facts();
        assert_eq!((facts.latent_channels, facts.ratio), (channels, 4));
        assert_eq!(net.config().quant.is_some(), channels == 4);
        let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
        assert_near(&decoded, &gold.tensor("decoded"), name);
        let encoded = net.encode(&gold.tensor("pixels"), &go).unwrap();
        assert_near(&encoded, &gold.tensor("encoded_mode"), name);
    }
}

#[test]
fn kl_of_waves() {
    let about = &json("nets")["autoencoder_kl"]["out"];
    // The configuration is read from a file with the keys and sizes of the golden's.
    let mut config = KlConfig::detect(&Gold::open("vae_kl_small").store()).unwrap();
    // Channels 1, 2, 2 instead of 1, 2, 4 times 32.
    let encoder = config.encoder.as_mut().unwrap();
    encoder.levels[2].channels = 64;
    let decoder = config.decoder.as_mut().unwrap();
    decoder.levels[2].channels = 64;
    decoder.first.1 = 64;
    let (encoded, decoded) = {
        let net = KlVae::new(&store(waves(config.weights().unwrap()))).unwrap();
        let encoded = net.encode(&wave(&[1, 3, 16, 24], 0.013), &go).unwrap();
        (
            encoded,
            net.decode(&wave(&[1, 4, 4, 6], 0.11), &go).unwrap(),
        )
    };
    assert_summary(&encoded, &about["encode"], "encode");
    assert_summary(&decoded, &about["decode"], "decode");
}

#[test]
fn diffusers_files_are_the_same_network() {
    let gold = Gold::open("vae_kl_small");
    let rename = |key: &str| {
        let mut key = key.to_owned();
        for (ours, theirs) in [
            ("encoder.down.", "encoder.down_blocks."),
            (".block.", ".resnets."),
            (".downsample.", ".downsamplers.0."),
            (".upsample.", ".upsamplers.0."),
            ("mid.block_1", "mid_block.resnets.0"),
            ("mid.block_2", "mid_block.resnets.1"),
            ("mid.attn_1.norm.", "mid_block.attentions.0.group_norm."),
            ("mid.attn_1.q.", "mid_block.attentions.0.to_q."),
            ("mid.attn_1.k.", "mid_block.attentions.0.to_k."),
            ("mid.attn_1.v.", "mid_block.attentions.0.to_v."),
            ("mid.attn_1.proj_out.", "mid_block.attentions.0.to_out.0."),
            ("nin_shortcut", "conv_shortcut"),
            ("norm_out", "conv_norm_out"),
        ] {
            key = key.replace(ours, theirs);
        }
        for level in 0..3 {
            key = key.replace(
                &format!("decoder.up.{level}."),
                &format!("decoder.up_blocks.{}.", 2 - level),
            );
        }
        key
    };
    let weights = gold.weights().into_iter().map(|(key, value)| {
        // Attention is stored as matrices there.
        let matrix = key.contains("attn_1") && value.shape().len() == 4;
        let shape = value.shape()[..2.min(value.shape().len())].to_vec();
        let value = if matrix {
            value.reshape(shape).unwrap()
        } else {
            value
        };
        (rename(&key), value)
    });
    let file = MemoryFile::new(weights.collect());
    assert!(
        file.0
            .contains_key("decoder.up_blocks.0.resnets.0.norm1.weight")
    );
    let file: Arc<dyn fresco_tensor::WeightFile> = Arc::new(file);
    let net = KlVae::new(&names::store(&file, "", Device::cpu())).unwrap();
    let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
    assert_near(&decoded, &gold.tensor("decoded"), "decoded");
    let encoded = net.encode(&gold.tensor("pixels"), &go).unwrap();
    assert_near(&encoded, &gold.tensor("encoded_mode"), "encoded");
}

#[test]
fn taesd() {
    for name in ["taesd_4ch", "taesd_16ch"] {
        let gold = Gold::open(name);
        let net = Taesd::combined(&gold.store()).unwrap();
        assert_eq!(
            (net.latent_channels(), net.ratio()),
            (gold.tensor("z").shape()[1], 8)
        );
        let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
        assert_near(&decoded, &gold.tensor("decoded"), name);
        let encoded = net.encode(&gold.tensor("pixels"), &go).unwrap();
        assert_near(&encoded, &gold.tensor("encoded"), name);
    }
}

/// The sampler has squares of four cells of this one as channels, and a preview too.
#[test]
fn taesd_with_pools_of_packed_latents() {
    let gold = Gold::open("taef2");
    let net = Taesd::combined(&gold.store()).unwrap();
    assert_eq!((net.latent_channels(), net.ratio()), (128, 16));
    let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
    assert_near(&decoded, &gold.tensor("decoded"), "decoded");
    let encoded = net.encode(&gold.tensor("pixels"), &go).unwrap();
    assert_near(&encoded, &gold.tensor("encoded"), "encoded");

    let [encoder, decoder] = parts(&gold);
    let net = Taesd::new(Some(&encoder), Some(&decoder), 1.0, 0.0).unwrap();
    let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
    assert_near(&decoded, &gold.tensor("decoded"), "two files");
    assert!(
        net.decode(&Tensor::zeros([1, 33, 2, 2]).unwrap(), &go)
            .is_err()
    );
    let odd = Tensor::zeros([1, 3, 24, 32]).unwrap();
    assert!(net.encode(&odd, &go).is_err());
}

/// The two parts of a combined file under the names of the published ones.
fn parts(gold: &Gold) -> [Arc<WeightStore>; 2] {
    ["taesd_encoder.", "taesd_decoder."].map(|prefix| {
        let keys = gold.weights().into_iter();
        let part = keys.filter_map(|(k, v)| Some((k.strip_prefix(prefix)?.to_owned(), v)));
        store(part.collect())
    })
}

#[test]
fn taesd_of_waves() {
    let about = &json("nets")["taesd"]["out"];
    let gold = Gold::open("taesd_4ch");
    let shapes = gold.about["keys"].as_object().unwrap();
    let layout = shapes
        .iter()
        .map(|(k, v)| (k.clone(), crate::gold::sizes(v)));
    let mut weights = waves(layout.collect());
    let scalar = |value: f32| Stored::from(&Tensor::scalar(value));
    weights.insert("vae_scale".to_owned(), scalar(1.0));
    weights.insert("vae_shift".to_owned(), scalar(0.0));
    let pixels = wave(&[1, 3, 32, 32], 0.013).map(|v| (v - 0.5) * 2.0);
    let (encoded, decoded) = {
        let net = Taesd::combined(&store(weights)).unwrap();
        let encoded = net.encode(&pixels, &go).unwrap();
        (
            encoded,
            net.decode(&wave(&[1, 4, 4, 4], 0.11), &go).unwrap(),
        )
    };
    assert_summary(
        &decoded.map(|v| v / 2.0 + 0.5),
        &about["decoder"],
        "decoder",
    );
    assert_summary(&encoded, &about["encoder"], "encoder");
}

#[test]
fn taesd_from_two_files() {
    let gold = Gold::open("taesd_4ch");
    let [encoder, decoder] = parts(&gold);
    let number = |name: &str| gold.about[name].as_f64().unwrap() as f32;
    let (scale, shift) = (number("vae_scale"), number("vae_shift"));
    let net = Taesd::new(Some(&encoder), Some(&decoder), scale, shift).unwrap();
    let decoded = net.decode(&gold.tensor("z"), &go).unwrap();
    assert_near(&decoded, &gold.tensor("decoded"), "decoded");
    // A preview sees latents as they are, and has no encoder.
    let preview = Taesd::previewer(&decoder).unwrap();
    let z = gold.tensor("z").map(|v| (v - shift) * scale);
    assert_near(
        &preview.decode(&z, &go).unwrap(),
        &gold.tensor("decoded"),
        "preview",
    );
    assert!(preview.encode(&gold.tensor("pixels"), &go).is_err());
    // Something else under that name.
    assert!(Taesd::previewer(&Gold::open("vae_kl_small").store()).is_err());
}

fn small_vae() -> (Gold, Vae) {
    let gold = Gold::open("vae_kl_small");
    let net = KlVae::new(&gold.store()).unwrap();
    (gold, net.into())
}

#[test]
fn pictures_are_cut_to_whole_cells() {
    let (gold, vae) = small_vae();
    let whole = gold
        .tensor("pixels")
        .nchw_to_nhwc()
        .unwrap()
        .map(|v| f32::midpoint(v, 1.0));
    let expected = gold.tensor("encoded_mode");
    assert!(distance(&vae.encode(&whole, &go).unwrap(), &expected) < 6e-5);
    // A border of one row above, two below and a fourth channel: what is inside stays.
    let mut framed = Tensor::full([1, 27, 32, 4], 9.0).unwrap();
    framed.paste(&[0, 1, 0, 0], &whole).unwrap();
    assert!(distance(&vae.encode(&framed, &go).unwrap(), &expected) < 6e-5);
    let small = Tensor::zeros([1, 3, 32, 3]).unwrap();
    assert!(vae.encode(&small, &go).is_err());
    let images = vae.decode(&gold.tensor("z"), &go).unwrap();
    assert_eq!(images.shape(), [1, 24, 32, 3]);
    assert!(images.data().iter().all(|v| (0.0..=1.0).contains(v)));
}

#[test]
fn tiles_are_the_mean_of_three_passes() {
    let (_, vae) = small_vae();
    let net = vae.network();
    let latent = wave(&[2, 4, 14, 20], 0.11);
    let tiles = Tiles {
        x: 8,
        y: 8,
        overlap: 2,
        time: None,
    };
    let pass = |tile: [usize; 2]| {
        tiled_scale::<ModelError>(&latent, tile, 2, 4.0, |t| net.decode(t, &go)).unwrap()
    };
    let sum = pass([16, 4]).add(&pass([4, 16])).unwrap();
    let mean = sum.add(&pass([8, 8])).unwrap().div_scalar(3.0);
    let expected = mean.nchw_to_nhwc().unwrap();
    let expected = expected.map(|v| f32::midpoint(v, 1.0).clamp(0.0, 1.0));
    let found = vae.decode_tiled(&latent, tiles, &go).unwrap();
    assert_eq!(found.shape(), [2, 56, 80, 3]);
    assert!(distance(&found, &expected) < 6e-5);
    // Tiles that hold everything change nothing.
    let whole = vae.decode(&latent, &go).unwrap();
    assert!(distance(&found, &whole) > 1e-4);
    assert!(
        distance(
            &vae.decode_tiled(&latent, Tiles::DECODE, &go).unwrap(),
            &whole
        ) < 6e-5
    );
    let images = wave(&[1, 40, 56, 3], 0.013).map(|v| f32::midpoint(v, 1.0));
    let tiles = Tiles {
        x: 32,
        y: 32,
        overlap: 8,
        time: None,
    };
    let encoded = vae.encode_tiled(&images, tiles, &go).unwrap();
    assert_eq!(encoded.shape(), [1, 4, 10, 14]);
    assert!(distance(&encoded, &vae.encode(&images, &go).unwrap()) < 0.5);
    let stuck = Tiles {
        x: 8,
        y: 8,
        overlap: 8,
        time: None,
    };
    assert!(vae.decode_tiled(&latent, stuck, &go).is_err());
}

/// Films in tiles, all at once and a part at a time: the very same numbers.
#[test]
fn tiles_of_films_are_handed_out_as_they_are_done() {
    for name in [
        "wan_vae_tiled_small",
        "ltxv_vae_v0_small",
        "hunyuan_video_vae_small",
        "mochi_vae_small",
        "cosmos_vae_small",
    ] {
        let gold = Gold::open(name);
        let file: Arc<dyn WeightFile> = Arc::new(MemoryFile(gold.weights()));
        let vae = Vae::open(&file, "", Device::cpu()).unwrap();
        let latent = wave(&[1, vae.facts().latent_channels, 7, 6, 5], 0.37);
        let tiles = Tiles {
            x: 4,
            y: 4,
            overlap: 2,
            time: Some(TimeTiles {
                frames: 3,
                overlap: 1,
            }),
        };
        let whole = vae.decode_tiled(&latent, tiles, &go).unwrap();
        let whole = whole.squeeze(0).unwrap();
        let mut parts: Vec<Tensor> = Vec::new();
        let each = vae.decode_tiled_each(&latent, tiles, &go, &mut |part| {
            parts.push(part);
            Ok(())
        });
        each.unwrap();
        let most = parts.iter().map(|part| part.shape()[0]).max().unwrap();
        assert!(parts.len() >= 3, "{name}: {} parts", parts.len());
        assert!(2 * most < whole.shape()[0], "{name}: {most} at once");
        let parts = Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0).unwrap();
        assert_eq!(parts.shape(), whole.shape(), "{name}");
        assert_eq!(parts.data(), whole.data(), "{name}");
        // Whoever takes the parts may stop.
        let mut taken = 0;
        let stopped = vae.decode_tiled_each(&latent, tiles, &go, &mut |_| {
            taken += 1;
            Err(ModelError::Cancelled)
        });
        assert!(matches!(stopped, Err(ModelError::Cancelled)));
        assert_eq!(taken, 1);
    }
}

#[test]
fn bad_input_is_an_error() {
    let (gold, vae) = small_vae();
    for shape in [
        vec![1, 3, 6, 8],
        vec![0, 4, 6, 8],
        vec![1, 4, 0, 8],
        vec![4, 6, 8],
    ] {
        assert!(vae.decode(&Tensor::zeros(shape).unwrap(), &go).is_err());
    }
    assert_eq!(
        vae.decode(&Tensor::zeros([1, 4, 1, 1]).unwrap(), &go)
            .unwrap()
            .shape(),
        [1, 4, 4, 3]
    );
    let stop = || Err(ModelError::Cancelled);
    let stopped = vae.decode(&gold.tensor("z"), &stop);
    assert!(matches!(stopped, Err(ModelError::Cancelled)));
    let mut weights = gold.weights();
    weights.remove("decoder.mid.attn_1.q.bias");
    let error = KlVae::new(&store(weights)).err().unwrap().to_string();
    assert!(error.contains("decoder.mid.attn_1.q.bias"), "{error}");
    let mut weights = gold.weights();
    let odd = Stored::from(&Tensor::zeros([32, 32, 5, 5]).unwrap());
    weights.insert("decoder.up.0.block.0.conv2.weight".to_owned(), odd);
    let error = KlVae::new(&store(weights)).err().unwrap().to_string();
    assert!(
        error.contains("decoder.up.0.block.0.conv2.weight"),
        "{error}"
    );
    let unet = Gold::open("unet_sd1_small").store();
    assert!(KlVae::new(&unet).is_err());
}
