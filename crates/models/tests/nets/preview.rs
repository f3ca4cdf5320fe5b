//! Previews and the formats they depend on.

use std::sync::Arc;

use fresco_models::LatentFormat;
use fresco_models::latent_format::{self, SD15};
use fresco_models::preview::{Previewer, latent2rgb};
use fresco_models::taesd::Taesd;
use fresco_tensor::Tensor;

use crate::gold::{Gold, json, store, waves};

#[test]
fn colours_are_the_references() {
    let gold = Gold::open("preview");
    for name in ["SD15", "SDXL", "SD3", "Flux"] {
        let format = LatentFormat::by_name(name).unwrap();
        let latent = gold.tensor(&format!("{name}/in"));
        let picture = latent2rgb(&format, &latent).unwrap();
        assert_eq!((picture.width, picture.height), (5, 6));
        assert_eq!(picture.data, gold.bytes(&format!("{name}/rgb8")), "{name}");
        let previewer = Previewer::rgb(format).unwrap();
        assert_eq!(previewer.preview(&latent).unwrap(), picture);
    }
}

#[test]
fn formats_are_the_references() {
    let about = json("latent_formats");
    for (name, about) in about.as_object().unwrap() {
        let format = LatentFormat::by_name(name).unwrap_or_else(|| panic!("no {name}"));
        let number = |key: &str, default: f64| about[key].as_f64().unwrap_or(default) as f32;
        assert_eq!(format.scale, number("scale_factor", 1.0), "{name}");
        assert_eq!(format.shift, number("shift_factor", 0.0), "{name}");
        assert_eq!(
            Some(format.channels as u64),
            about["latent_channels"].as_u64()
        );
        assert_eq!(
            Some(format.dimensions as u64),
            about["latent_dimensions"].as_u64()
        );
        assert_eq!(format.taesd, about["taesd_decoder_name"].as_str(), "{name}");
        let rows = about["latent_rgb_factors"]
            .as_array()
            .map_or(&[][..], |r| r);
        assert_eq!(format.rgb.len(), rows.len(), "{name}");
        for (row, expected) in format.rgb.iter().zip(rows) {
            for (value, expected) in row.iter().zip(expected.as_array().unwrap()) {
                assert_eq!(*value, expected.as_f64().unwrap() as f32, "{name}");
            }
        }
        let bias = about["latent_rgb_factors_bias"].as_array();
        for (at, value) in format.rgb_bias.iter().enumerate() {
            let expected = bias.map_or(0.0, |b| b[at].as_f64().unwrap());
            assert_eq!(*value, expected as f32, "{name}");
        }
    }
}

#[test]
fn a_small_decoder_makes_previews_of_full_size() {
    let gold = Gold::open("taesd_4ch");
    let keys = gold.weights().into_iter();
    let decoder = keys.filter_map(|(k, v)| Some((k.strip_prefix("taesd_decoder.")?.to_owned(), v)));
    let net = Taesd::previewer(&crate::gold::store(decoder.collect())).unwrap();
    let number = |name: &str| gold.about[name].as_f64().unwrap() as f32;
    let (scale, shift) = (number("vae_scale"), number("vae_shift"));
    let latent = gold.tensor("z").map(|v| (v - shift) * scale);
    let picture = Previewer::Taesd(Arc::new(net)).preview(&latent).unwrap();
    assert_eq!((picture.width, picture.height), (40, 48));
    let expected = gold.tensor("decoded").nchw_to_nhwc().unwrap();
    for (byte, value) in picture.data.iter().zip(expected.data()) {
        let exact = f32::midpoint(*value, 1.0).clamp(0.0, 1.0) * 255.0;
        assert!((f32::from(*byte) - exact).abs() < 1.01);
    }
}

#[test]
fn odd_latents_are_errors_or_pictures() {
    let some = Previewer::rgb(SD15).unwrap();
    for shape in [
        vec![1, 16, 2, 3],
        vec![0, 4, 2, 2],
        vec![1, 4, 0, 2],
        vec![4, 2, 2],
        vec![1, 4, 0, 2, 2],
    ] {
        assert!(some.preview(&Tensor::zeros(shape).unwrap()).is_err());
    }
    let nan = Tensor::full([2, 4, 1, 1], f32::NAN).unwrap();
    assert_eq!(some.preview(&nan).unwrap().data, [0, 0, 0]);
    // The first frame of a video.
    let video = Tensor::from_fn([1, 4, 2, 1, 1], |i| i as f32 / 8.0).unwrap();
    let first = video.select(2, 0).unwrap();
    assert_eq!(some.preview(&video).unwrap(), some.preview(&first).unwrap());
    assert!(Previewer::rgb(latent_format::STABLE_AUDIO).is_none());
    let packed = Tensor::zeros([1, 128, 2, 3]).unwrap();
    let picture = latent2rgb(&latent_format::FLUX2, &packed).unwrap();
    assert_eq!((picture.width, picture.height), (6, 4));
}

/// Files that somebody made to break things: refused when they are read, or pictures.
#[test]
fn strange_decoders_are_refused() {
    let read = |layers: &[(&str, &[usize])]| {
        let layout = layers.iter().map(|(k, v)| ((*k).to_owned(), v.to_vec()));
        Taesd::previewer(&store(waves(layout.collect())))
    };
    let first: [(&str, &[usize]); 2] = [("0.weight", &[8, 4, 3, 3]), ("0.bias", &[8])];
    let last: [(&str, &[usize]); 2] = [("9.weight", &[3, 8, 3, 3]), ("9.bias", &[3])];
    let with = |middle: &[(&str, &[usize])]| read(&[&first, middle, &last].concat());
    let fine = with(&[("2.weight", &[8, 8, 3, 3])]).unwrap();
    let previewer = Previewer::Taesd(Arc::new(fine));
    let picture = previewer
        .preview(&Tensor::zeros([1, 4, 2, 3]).unwrap())
        .unwrap();
    assert_eq!((picture.width, picture.height), (6, 4));
    assert!(
        previewer
            .preview(&Tensor::zeros([1, 5, 2, 3]).unwrap())
            .is_err()
    );

    let convs: [(&str, &[usize]); 6] = [
        ("4.conv.0.weight", &[8, 8, 3, 3]),
        ("4.conv.0.bias", &[8]),
        ("4.conv.2.weight", &[8, 8, 3, 3]),
        ("4.conv.2.bias", &[8]),
        ("4.conv.4.weight", &[8, 8, 3, 3]),
        ("4.conv.4.bias", &[8]),
    ];
    assert!(with(&convs).is_ok());
    let skip = |shape: &'static [usize]| with(&[&convs[..], &[("4.skip.weight", shape)]].concat());
    assert!(skip(&[8, 8]).is_ok());
    for shape in [&[8, 7][..], &[9, 8], &[8, 8, 3, 3], &[8], &[]] {
        assert!(skip(shape).is_err(), "{shape:?}");
    }
    for shape in [
        &[8, 8][..],
        &[8],
        &[],
        &[8, 9, 3, 3],
        &[9, 8, 3, 3],
        &[8, 8, 5, 5],
        &[0, 8, 3, 3],
        &[8, 0, 3, 3],
        &[8, 8, 3, 3, 1, 2],
    ] {
        assert!(with(&[("2.weight", shape)]).is_err(), "{shape:?}");
    }
    assert!(with(&[("2.weight", &[8, 8, 3, 3]), ("2.bias", &[7])]).is_err());
    assert!(read(&[("x", &[1])]).is_err() && read(&[]).is_err());
    // A picture of gigabytes from a latent of kilobytes.
    let names: Vec<String> = (1..9).map(|i| format!("{i}.weight")).collect();
    let doubled: Vec<(&str, &[usize])> = names
        .iter()
        .map(|name| (name.as_str(), &[8, 8, 3, 3][..]))
        .collect();
    assert!(with(&doubled[..5]).is_ok());
    assert!(with(&doubled[..6]).is_err() && with(&doubled).is_err());
    assert!(
        with(&[
            ("2.weight", &[5000, 8, 3, 3]),
            ("3.weight", &[8, 5000, 3, 3])
        ])
        .is_err()
    );
}
