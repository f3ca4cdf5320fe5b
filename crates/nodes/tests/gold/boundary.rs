//! What the goldens leave open of the nodes at the boundary to models: sounds, faces, joined features, sharing.

use std::fs;
use std::sync::Arc;

use fresco_files::dirs::Dirs;
use fresco_files::naming::Saver;
use fresco_files::png_write::{Picture, Pixels, encode_png};
use fresco_graph::{Args, Cx, Flow, Map, NodeError, NodeOutput, Resources, Slots, Value, map};
use fresco_nodes::types::{as_tensor, tensor};
use fresco_nodes::vision::VisionOutput;
use fresco_tensor::Tensor;

use crate::{objects_c, run};

fn call_in(resources: Resources, class: &str, args: Map) -> Result<NodeOutput, NodeError> {
    let registry = run::registry();
    let node = registry.get(class).expect(class);
    match node.call(Args(args), &Cx::detached(Arc::new(resources)))? {
        Flow::Done(out) => Ok(out),
        Flow::Later(_) => panic!("{class} is asynchronous"),
    }
}

fn outputs(class: &str, args: Map) -> Vec<Value> {
    match call_in(Resources::default(), class, args) {
        Ok(out) => match out.slots {
            Slots::Values(v) => v,
            other => panic!("{class} gave {other:?}"),
        },
        Err(e) => panic!("{class}: {}", e.message()),
    }
}

/// The video VAE with 16 channels, 8 pixels a cell, 4 frames a latent frame.
fn video_vae() -> Value {
    objects_c::odd("VAE").remove(1)
}

fn conditioning() -> Value {
    let tokens = tensor(Tensor::zeros([1, 2, 4]).expect("a small shape"));
    vec![Value::from(vec![tokens, Map::new().into()])].into()
}

fn video(extra: Map) -> Map {
    let mut args = map! {
        "positive" => conditioning(), "negative" => conditioning(), "vae" => video_vae(),
        "width" => 16, "height" => 16, "length" => 5, "batch_size" => 1,
    };
    args.extend(extra);
    args
}

/// A tensor among the options of a conditioning's only entry.
fn option<'a>(conditioning: &'a Value, key: &str) -> &'a Tensor {
    let entry = &conditioning.as_list().expect("entries")[0];
    let options = &entry.as_list().expect("an entry")[1];
    as_tensor(options.get(key).unwrap_or_else(|| panic!("no {key}"))).expect("a tensor")
}

/// Features of a sound at 50 a second: frame `i` of layer `l` is `i + 1000 l`.
fn sound(layers: usize, frames: usize) -> Value {
    let list: Vec<Value> = (0..layers)
        .map(|l| {
            let layer = Tensor::from_fn([1, frames, 2], |i| (i / 2 + 1000 * l) as f32);
            tensor(layer.expect("a small shape"))
        })
        .collect();
    map! {"encoded_audio_all_layers" => list, "audio_samples" => frames * 320}.into()
}

#[test]
fn sound_is_sampled_at_the_rate_of_the_video_and_silence_follows() {
    // 1 second: 50 features, 30 after retiming, 8 pictures at 16 a second.
    let out = outputs(
        "WanSoundImageToVideo",
        video(map! {"audio_encoder_output" => sound(2, 50)}),
    );
    let heard = option(&out[0], "audio_embed");
    assert_eq!(heard.shape(), [1, 2, 2, 8]);
    // Picture i is at feature frame round(i * 30 / 16), which is at 49/29 of the original per step.
    for (i, frame) in [0.0, 2.0, 4.0, 6.0, 8.0, 9.0, 11.0, 13.0]
        .iter()
        .enumerate()
    {
        let want = frame * 49.0 / 29.0;
        for layer in 0..2 {
            let got = heard.at(&[0, layer, 1, i]).unwrap();
            let want = want + 1000.0 * layer as f32;
            assert!((got - want).abs() < 1e-3, "{i}: {got}, not {want}");
        }
    }
    assert!(
        option(&out[1], "audio_embed")
            .data()
            .iter()
            .all(|v| *v == 0.0)
    );

    // The third part of eight pictures ends after the sound; the fourth has none of it.
    let extend = |latent_frames: usize| {
        let before = Tensor::zeros([1, 16, latent_frames, 2, 2]).unwrap();
        let args = map! {
            "positive" => conditioning(), "negative" => conditioning(), "vae" => video_vae(), "length" => 5,
            "video_latent" => map! {"samples" => tensor(before)},
            "audio_encoder_output" => sound(1, 50),
        };
        outputs("WanSoundImageToVideoExtend", args)
    };
    let second = extend(2);
    let tail = option(&second[0], "audio_embed");
    assert!(tail.at(&[0, 0, 0, 6]).unwrap() > 0.0);
    let fourth = extend(6);
    let entry = fourth[0].as_list().unwrap()[0].as_list().unwrap()[1].clone();
    assert!(entry.get("audio_embed").is_none());
    assert!(entry.get("reference_motion").is_some());
}

#[test]
fn earlier_motion_is_padded_in_front() {
    let pictures = Tensor::ones([2, 16, 16, 3]).unwrap();
    let out = outputs(
        "WanSoundImageToVideo",
        video(map! {"ref_motion" => tensor(pictures)}),
    );
    let motion = option(&out[0], "reference_motion");
    assert_eq!(motion.shape(), [1, 16, 19, 2, 2]);
    // Channel 0 of the probe is the pixel minus a half: grey in front, white at the end.
    assert_eq!(motion.at(&[0, 0, 0, 0, 0]).unwrap(), 0.0);
    assert_eq!(motion.at(&[0, 0, 18, 0, 0]).unwrap(), 0.5);
}

#[test]
fn speech_windows_reach_around_their_frame() {
    let out = outputs(
        "WanHuMoImageToVideo",
        video(map! {"audio_encoder_output" => sound(33, 40)}),
    );
    let heard = option(&out[0], "audio_embed");
    assert_eq!(heard.shape(), [1, 2, 8, 5, 2]);
    // 40 features at 50 a second are 20 at 25; the last group is layer 32 alone.
    let frame = |i: f32| i * 39.0 / 19.0 + 32000.0;
    let got = |latent: usize, slot: usize| heard.at(&[0, latent, slot, 4, 0]).unwrap();
    for slot in 0..5 {
        assert_eq!(got(0, slot), 0.0, "before the sound");
    }
    for (slot, at) in [(5, 0.0), (6, 1.0), (7, 2.0)] {
        assert!((got(0, slot) - frame(at)).abs() < 1e-2);
    }
    assert_eq!(got(1, 0), 0.0, "one before the sound");
    for slot in 1..8 {
        assert!((got(1, slot) - frame(slot as f32 - 1.0)).abs() < 1e-2);
    }
    // The first group is the mean of eight layers: 3500 above the frame.
    let first = heard.at(&[0, 0, 5, 0, 0]).unwrap();
    assert!((first - 3500.0).abs() < 1e-2);
    let few = call_in(
        Resources::default(),
        "WanHuMoImageToVideo",
        video(map! {"audio_encoder_output" => sound(2, 40)}),
    );
    assert!(few.unwrap_err().message().contains("33 layers"));
}

#[test]
fn faces_go_to_the_model_between_minus_one_and_one() {
    let face = Tensor::full([7, 4, 4, 3], 0.75).unwrap();
    let out = outputs(
        "WanAnimateToVideo",
        video(map! {
            "continue_motion_max_frames" => 5, "video_frame_offset" => 4, "face_video" => tensor(face),
        }),
    );
    let seen = option(&out[0], "face_video_pixels");
    assert_eq!(seen.shape(), [1, 3, 3, 512, 512]);
    assert!(seen.data().iter().all(|v| *v == 0.5));
    let blank = option(&out[1], "face_video_pixels");
    assert!(blank.data().iter().all(|v| *v == -1.0));
    assert_eq!(out[5].as_int(), Some(9));
}

#[test]
fn features_of_first_and_last_picture_are_joined() {
    let state = |tokens: usize| {
        let t = Tensor::full([1, tokens, 4], tokens as f32).unwrap();
        Value::from(VisionOutput(Arc::new(
            map! {"penultimate_hidden_states" => tensor(t)},
        )))
    };
    let given = |extra: Map| {
        let out = outputs("WanFirstLastFrameToVideo", video(extra));
        let entry = out[0].as_list().unwrap()[0].as_list().unwrap()[1].clone();
        let output = entry.get("clip_vision_output").expect("features").clone();
        let output = output.downcast::<VisionOutput>().unwrap().clone();
        output.tensor("penultimate_hidden_states").unwrap().clone()
    };
    let both = given(map! {
        "clip_vision_start_image" => state(2), "clip_vision_end_image" => state(3),
    });
    assert_eq!(both.shape(), [1, 5, 4]);
    assert_eq!((both.data()[0], both.data()[19]), (2.0, 3.0));
    let end = given(map! {"clip_vision_end_image" => state(3)});
    assert_eq!(end.shape(), [1, 3, 4]);
}

#[test]
fn entries_with_the_same_history_share_a_control_net() {
    let entry = conditioning().as_list().unwrap()[0].clone();
    let args = map! {
        "positive" => vec![entry.clone(), entry], "negative" => conditioning(),
        "control_net" => objects_c::odd("CONTROL_NET").remove(0),
        "image" => tensor(Tensor::zeros([1, 8, 8, 3]).unwrap()),
        "strength" => 1.0, "start_percent" => 0.0, "end_percent" => 1.0,
    };
    let out = outputs("ControlNetApplyAdvanced", args);
    let control = |list: &Value, i: usize| {
        let entry = list.as_list().unwrap()[i].as_list().unwrap();
        entry[1].get("control").expect("a control net").clone()
    };
    // Objects are equal only if they are the same.
    assert!(control(&out[0], 0).same(&control(&out[0], 1)));
    assert!(control(&out[0], 0).same(&control(&out[1], 0)));
}

#[test]
fn vision_encoder_and_vae_are_asked() {
    let picture = tensor(Tensor::from_fn([1, 8, 16, 4], |i| i as f32).unwrap());
    let seen = outputs(
        "CLIPVisionEncode",
        map! {
            "clip_vision" => objects_c::odd("CLIP_VISION").remove(0), "image" => picture.clone(), "crop" => "center",
        },
    );
    let seen = seen[0].downcast::<VisionOutput>().unwrap().clone();
    assert_eq!(seen.tensor("image_embeds").unwrap().shape(), [1, 16]);
    let encoded = outputs(
        "VAEEncode",
        map! {"pixels" => picture, "vae" => objects_c::odd("VAE").remove(0)},
    );
    let latent = encoded[0].get("samples").and_then(as_tensor).unwrap();
    assert_eq!(latent.shape(), [1, 4, 1, 2]);
}

#[test]
fn scenes_and_cameras_pass_the_browsers_pictures_on() {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(base.path());
    fs::create_dir_all(dirs.input.join("threed")).unwrap();
    let picture = Picture::new(1, 1, Pixels::Rgba, &[255, 0, 0, 51]).unwrap();
    let bytes = encode_png(&picture, &[], 4).unwrap();
    fs::write(dirs.input.join("threed/a.png"), bytes).unwrap();
    let resources = || {
        let mut resources = Resources::default();
        resources.insert(Dirs::under(base.path()));
        resources.insert(Saver::new());
        resources
    };
    let values = |out: NodeOutput| match out.slots {
        Slots::Values(v) => v,
        other => panic!("{other:?}"),
    };
    let view = map! {
        "image" => "threed/a.png", "mask" => "threed/a.png", "normal" => "threed/a.png",
        "camera_info" => map! {"zoom" => 2}, "recording" => "",
    };
    let args = map! {"model_file" => "3d/x.glb", "image" => view, "width" => 8, "height" => 8};
    let out = values(call_in(resources(), "Load3D", args).unwrap());
    assert_eq!(as_tensor(&out[0]).unwrap().data(), [1.0, 0.0, 0.0]);
    assert!((as_tensor(&out[1]).unwrap().data()[0] - 0.8).abs() < 1e-6);
    assert_eq!(out[2].as_str(), Some("3d/x.glb"));
    assert_eq!(out[4].get("zoom").and_then(Value::as_int), Some(2));
    assert!(out[5].is_null());

    let args = map! {
        "image" => "threed/a.png", "width" => 0, "height" => 0, "capture_on_queue" => true,
    };
    let out = values(call_in(resources(), "WebcamCapture", args).unwrap());
    assert_eq!(
        (out.len(), as_tensor(&out[0]).unwrap().shape()),
        (1, &[1, 1, 1, 3][..])
    );

    let background = tensor(Tensor::zeros([1, 2, 2, 3]).unwrap());
    let args = map! {"model_file" => "x.glb", "bg_image" => background};
    let shown = call_in(resources(), "Preview3D", args).unwrap().ui.unwrap();
    let result = shown["result"].as_list().unwrap();
    assert_eq!(result[0].as_str(), Some("x.glb"));
    assert!(result[1].is_null());
    let path = result[2].as_str().unwrap();
    assert!(
        path.starts_with("temp/") && base.path().join(path).is_file(),
        "{path}"
    );
}
