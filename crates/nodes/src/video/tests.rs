use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fresco_files::dirs::Dirs;
use fresco_files::metadata::read_metadata;
use fresco_files::naming::Saver;
use fresco_graph::{Flow, NodeOutput, Progress, Resources, Services, Slots, json, map};
use fresco_tensor::Tensor;

use super::*;
use crate::frames::{FrameSink, FrameStream};
use crate::types::{as_tensor, tensor};

/// Counts reports, and interrupts after some.
struct Listener {
    reports: Mutex<Vec<(f64, f64)>>,
    most: usize,
}

impl Services for Listener {
    fn progress(&self, _: &str, _: &str, p: Progress) {
        self.reports.lock().unwrap().push((p.value, p.max));
    }
    fn interrupted(&self) -> bool {
        self.reports.lock().unwrap().len() >= self.most
    }
    fn send(&self, _: &str, _: Value, _: Option<&str>) {}
    fn text(&self, _: &str, _: &str) {}
    fn set_flag(&self, _: &str, _: Value) {}
}

struct Place {
    base: tempfile::TempDir,
    cx: Cx,
    listener: Arc<Listener>,
}

fn place(most: usize) -> Place {
    let base = tempfile::tempdir().unwrap();
    let dirs = Dirs::under(base.path());
    fs::create_dir_all(&dirs.input).unwrap();
    let mut resources = Resources::default();
    resources.insert(dirs);
    resources.insert(Saver::new());
    let listener = Arc::new(Listener {
        reports: Mutex::default(),
        most,
    });
    let mut cx = Cx::new(
        "p".into(),
        "n".into(),
        listener.clone(),
        Arc::new(resources),
    );
    cx.hidden.prompt = json::parse(r#"{"1": {"class_type": "Ü"}}"#).unwrap();
    cx.hidden.extra_pnginfo = json::parse(r#"{"workflow": {"nodes": []}}"#).unwrap();
    Place { base, cx, listener }
}

impl Place {
    fn run(&self, class: &str, args: Map) -> Result<NodeOutput, NodeError> {
        let all = crate::all();
        let found = all.iter().map(|e| e.class());
        let mut found = found.filter(|c| &*c.schema().id == class);
        match found.next().unwrap().call(Args(args), &self.cx)? {
            Flow::Done(out) => Ok(out),
            Flow::Later(_) => panic!("not asynchronous"),
        }
    }

    fn slots(&self, class: &str, args: Map) -> Vec<Value> {
        match self.run(class, args).unwrap().slots {
            Slots::Values(values) => values,
            _ => panic!("{class} gives no values"),
        }
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.base.path().join(folder));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// What was saved becomes an input.
    fn take_as_input(&self, saved: &str, name: &str) {
        let base = self.base.path();
        fs::copy(
            base.join("output").join(saved),
            base.join("input").join(name),
        )
        .unwrap();
    }
}

/// Frames that get brighter.
fn frames(count: usize, side: usize) -> Value {
    let each = side * side * 3;
    let t = Tensor::from_fn([count, side, side, 3], |i| {
        0.2 + 0.6 * (i / each) as f32 / count.max(1) as f32
    });
    tensor(t.unwrap())
}

fn sound(seconds: f64, rate: u32) -> Audio {
    let count = (seconds * f64::from(rate)) as usize;
    let t = Tensor::from_fn([1, 1, count], |i| (i as f32 * 0.05).sin() * 0.5).unwrap();
    Audio::new(t, rate)
}

fn brightness(images: &Tensor, frame: usize) -> f32 {
    let one = images.narrow(0, frame, 1).unwrap();
    one.data().iter().sum::<f32>() / one.len() as f32
}

#[test]
fn a_video_is_saved_and_comes_back() {
    let place = place(usize::MAX);
    let made = map! {"images" => frames(12, 32), "fps" => 8.0, "audio" => sound(3.0, 22_050)};
    let video = place.slots("CreateVideo", made).remove(0);
    let saved = place
        .run(
            "SaveVideo",
            map! {"video" => video, "filename_prefix" => "video/film", "format" => "auto", "codec" => "auto"},
        )
        .unwrap();
    let ui = json::to_string(&saved.ui.unwrap().into());
    assert_eq!(
        ui,
        r#"{"images":[{"filename":"film_00001_.mp4","subfolder":"video","type":"output"}],"animated":[true]}"#
    );
    assert_eq!(place.names("output/video"), ["film_00001_.mp4"]);
    let reports = place.listener.reports.lock().unwrap().clone();
    assert_eq!(reports.len(), 12);
    assert_eq!(reports[11], (12.0, 12.0));
    let bytes = fs::read(place.base.path().join("output/video/film_00001_.mp4")).unwrap();
    let texts = read_metadata(&bytes);
    let keys: Vec<&str> = texts.iter().map(|(k, _)| k.as_str()).collect();
    assert_eq!(keys, ["workflow", "prompt"]);
    assert_eq!(texts[1].1, r#"{"1": {"class_type": "\u00dc"}}"#);

    place.take_as_input("video/film_00001_.mp4", "in.mp4");
    let loaded = place
        .slots("LoadVideo", map! {"file" => "in.mp4"})
        .remove(0);
    assert_eq!(loaded.bytes(), 0);
    let parts = place.slots("GetVideoComponents", map! {"video" => loaded.clone()});
    let images = as_tensor(&parts[0]).unwrap();
    assert_eq!(images.shape(), [12, 32, 32, 3]);
    for frame in 0..12 {
        let wanted = 0.2 + 0.6 * frame as f32 / 12.0;
        assert!((brightness(images, frame) - wanted).abs() < 0.03);
    }
    assert_eq!(parts[2].as_f64(), Some(8.0));
    let heard = Audio(Arc::new(parts[1].as_map().unwrap().clone()));
    assert_eq!(heard.sample_rate().unwrap(), 22_050);
    // Cut to the length of the frames, and always stereo.
    assert_eq!(heard.waveform().unwrap().shape(), [1, 2, 33_075]);

    // A whole file is copied, with new texts; a part of it is encoded anew.
    let sliced = map! {"video" => loaded.clone(), "start_time" => -1.0, "duration" => 0.5, "strict_duration" => true};
    let part = place.slots("Video Slice", sliced).remove(0);
    for (video, count) in [(loaded, 12), (part, 4)] {
        let args = map! {"video" => video, "filename_prefix" => format!("c{count}"), "format" => "mp4", "codec" => "h264"};
        place.run("SaveVideo", args).unwrap();
        let name = format!("c{count}_00001_.mp4");
        place.take_as_input(&name, &name);
        let texts = read_metadata(&fs::read(place.base.path().join("output").join(&name)).unwrap());
        assert_eq!(texts.len(), 2, "{name}");
        let again = place
            .slots("LoadVideo", map! {"file" => name.as_str()})
            .remove(0);
        let parts = place.slots("GetVideoComponents", map! {"video" => again});
        let images = as_tensor(&parts[0]).unwrap();
        assert_eq!(images.shape()[0], count);
        let wanted = 0.2 + 0.6 * (if count == 12 { 0.0 } else { 4.0 }) / 12.0;
        assert!((brightness(images, 0) - wanted).abs() < 0.03);
    }
}

#[test]
fn slices_of_frames_are_exact_and_impossible_ones_refused() {
    let place = place(usize::MAX);
    let made = map! {"images" => frames(20, 4), "fps" => 10.0, "audio" => sound(2.0, 8000)};
    let video = place.slots("CreateVideo", made).remove(0);
    let slice = |start: f64, duration: f64, strict: bool| {
        place.run(
            "Video Slice",
            map! {"video" => video.clone(), "start_time" => start, "duration" => duration, "strict_duration" => strict},
        )
    };
    for (start, duration, count, samples) in [
        (0.0, 0.0, 20, 16_000),
        (0.5, 1.0, 10, 8000),
        (-0.3, 0.0, 3, 2400),
        (1.5, 9.0, 5, 4000),
    ] {
        let Slots::Values(found) = slice(start, duration, false).unwrap().slots else {
            panic!("no values")
        };
        let parts = place.slots("GetVideoComponents", map! {"video" => found[0].clone()});
        assert_eq!(as_tensor(&parts[0]).unwrap().shape()[0], count);
        let waveform = parts[1].get("waveform").and_then(as_tensor).unwrap();
        assert_eq!(waveform.shape()[2], samples);
    }
    for (start, duration, strict) in [
        (2.0, 0.0, false),
        (5.0, 1.0, false),
        (1.5, 9.0, true),
        (f64::NAN, 1.0, false),
    ] {
        let error = slice(start, duration, strict).unwrap_err();
        assert_eq!(error.kind(), "ValueError", "{start} {duration}");
    }
}

/// A film that nobody keeps: how many frames are alive at once is counted.
struct Synthetic {
    count: usize,
    made: AtomicUsize,
}

impl FrameStream for Synthetic {
    fn shape(&self) -> [usize; 4] {
        [self.count, 16, 16, 3]
    }

    fn read(&self, sink: &mut FrameSink<'_>) -> Result<(), NodeError> {
        for i in 0..self.count {
            self.made.fetch_add(1, Ordering::Relaxed);
            sink(&Tensor::full([1, 16, 16, 3], i as f32 / self.count as f32)?)?;
        }
        Ok(())
    }
}

#[test]
fn frames_that_are_made_meanwhile_are_saved_one_by_one() {
    let place = place(usize::MAX);
    let film = Arc::new(Synthetic {
        count: 30,
        made: AtomicUsize::new(0),
    });
    let images: Value = FrameSet::Stream(film.clone()).into();
    let video = place
        .slots(
            "CreateVideo",
            map! {"images" => images.clone(), "fps" => 24.0},
        )
        .remove(0);
    // Nothing was made for the link.
    assert_eq!(film.made.load(Ordering::Relaxed), 0);
    let args =
        map! {"video" => video, "filename_prefix" => "s", "format" => "auto", "codec" => "auto"};
    place.run("SaveVideo", args).unwrap();
    assert_eq!(film.made.load(Ordering::Relaxed), 30);
    let args = map! {"images" => images, "filename_prefix" => "s", "codec" => "vp9", "fps" => 24.0, "crf" => 30.0};
    let ui = place.run("SaveWEBM", args).unwrap().ui.unwrap();
    assert!(json::to_string(&ui.into()).contains("s_00002_.webm"));
    assert_eq!(place.names("output"), ["s_00001_.mp4", "s_00002_.webm"]);
    let bytes = fs::read(place.base.path().join("output/s_00002_.webm")).unwrap();
    let keys: Vec<String> = read_metadata(&bytes).into_iter().map(|(k, _)| k).collect();
    assert_eq!(keys, ["prompt", "workflow"]);
}

#[test]
fn an_interrupt_or_a_failure_leaves_nothing_behind() {
    let place = place(5);
    let film = Arc::new(Synthetic {
        count: 1000,
        made: AtomicUsize::new(0),
    });
    let images: Value = FrameSet::Stream(film.clone()).into();
    let args = map! {"images" => images, "filename_prefix" => "s", "codec" => "vp9", "fps" => 24.0, "crf" => 30.0};
    let error = place.run("SaveWEBM", args).unwrap_err();
    assert!(matches!(error, NodeError::Interrupted), "{error:?}");
    assert!(film.made.load(Ordering::Relaxed) < 10);
    assert_eq!(place.names("output"), Vec::<String>::new());

    let place = super::tests::place(usize::MAX);
    let made = map! {"images" => frames(2, 15), "fps" => 8.0};
    let video = place.slots("CreateVideo", made).remove(0);
    let args =
        map! {"video" => video, "filename_prefix" => "s", "format" => "auto", "codec" => "auto"};
    let error = place.run("SaveVideo", args).unwrap_err();
    assert!(error.message().contains("15 x 15"), "{}", error.message());
    assert_eq!(place.names("output"), Vec::<String>::new());
}

#[test]
fn files_that_are_no_films_are_refused_with_their_name() {
    let place = place(usize::MAX);
    for (name, bytes) in [
        ("a.mp4", &b"no film"[..]),
        ("b.webm", &[0x1a, 0x45, 0xdf, 0xa3]),
        ("c.mp4", b""),
    ] {
        fs::write(place.base.path().join("input").join(name), bytes).unwrap();
        let error = place.run("LoadVideo", map! {"file" => name}).unwrap_err();
        assert!(error.message().contains(name), "{}", error.message());
        let error = place.run("LoadAudio", map! {"audio" => name}).unwrap_err();
        assert!(error.message().contains(name), "{}", error.message());
    }
    let error = place.run("LoadVideo", map! {"file" => "../x.mp4"});
    assert!(error.is_err());
}

#[test]
fn sound_is_saved_in_every_format_and_comes_back() {
    let place = place(usize::MAX);
    let audio = Value::from(sound(0.5, 44_100));
    let cases = [
        ("SaveAudio", map! {}, "flac"),
        ("SaveAudioMP3", map! {"quality" => "V0"}, "mp3"),
        ("SaveAudioOpus", map! {"quality" => "96k"}, "opus"),
        (
            "SaveAudioAdvanced",
            map! {"format" => map! {"format" => "mp3", "quality" => "320k"}},
            "mp3",
        ),
    ];
    for (class, mut args, ending) in cases {
        args.insert("audio".into(), audio.clone());
        args.insert("filename_prefix".into(), class.into());
        let ui = place.run(class, args).unwrap().ui.unwrap();
        let name = format!("{class}_00001_.{ending}");
        assert_eq!(
            json::to_string(&ui.into()),
            format!(r#"{{"audio":[{{"filename":"{name}","subfolder":"","type":"output"}}]}}"#)
        );
        let bytes = fs::read(place.base.path().join("output").join(&name)).unwrap();
        let keys: Vec<String> = read_metadata(&bytes).into_iter().map(|(k, _)| k).collect();
        assert_eq!(keys, ["prompt", "workflow"], "{class}");
        place.take_as_input(&name, &name);
        let back = place.slots("LoadAudio", map! {"audio" => name}).remove(0);
        let back = Audio(Arc::new(back.as_map().unwrap().clone()));
        let rate = back.sample_rate().unwrap();
        assert_eq!(rate, if ending == "opus" { 48_000 } else { 44_100 });
        let [_, channels, length] = back.waveform().unwrap().dims3().unwrap();
        assert_eq!((channels, length), (1, rate as usize / 2), "{class}");
    }
    let ui = place
        .run("PreviewAudio", map! {"audio" => audio})
        .unwrap()
        .ui
        .unwrap();
    assert!(json::to_string(&ui.into()).contains(r#""type":"temp""#));
    assert_eq!(place.names("temp").len(), 1);
}
