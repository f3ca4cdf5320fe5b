//! The model that comes with the program: found without any setup, shown as its file says, and sampled in every way.

use std::{fs, path::Path, process::Command};

use fresco_tests::{
    Frame, Server, StartOptions, memory, picture,
    server::{NO_STARTER, program},
    starter,
    workflow::{TextToImage, text_to_image},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Takes back that folders of tests have no starter model.
const WITH_STARTER: (&str, &str) = (NO_STARTER, "0");

/// A folder on the disk of the program.
fn folder() -> TempDir {
    let beside = program().parent().unwrap().to_owned();
    tempfile::tempdir_in(beside).unwrap()
}

/// A program with a starter folder beside it.
fn installed(decoder: bool) -> TempDir {
    let folder = folder();
    starter::install(folder.path());
    starter::write(&folder.path().join("starter")).unwrap();
    if decoder {
        starter::write_decoder(&folder.path().join("starter")).unwrap();
    }
    folder
}

fn start(folder: &Path, arguments: &[&str]) -> Server {
    let name = program();
    let path = folder.join(name.file_name().unwrap());
    Server::start_with(StartOptions {
        program: Some(&path),
        arguments: arguments.to_vec(),
        environment: vec![WITH_STARTER],
        ..StartOptions::default()
    })
}

fn prompt(sampler: &str, scheduler: &str, steps: u32) -> Value {
    let mut prompt = text_to_image(&TextToImage {
        checkpoint: starter::CHECKPOINT,
        positive: "a red apple",
        negative: "",
        sampler,
        scheduler,
        steps,
        ..TextToImage::default()
    });
    prompt["10"] = json!({"class_type": "SaveLatent", "inputs":
        {"samples": ["3", 0], "filename_prefix": "latent"}});
    prompt
}

/// The numbers of a saved latent; its header is JSON behind eight bytes that say how long it is.
fn numbers(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    assert_eq!(header["latent_tensor"]["dtype"], "F32");
    let place = |i: usize| header["latent_tensor"]["data_offsets"][i].as_u64().unwrap() as usize;
    data[place(0)..place(1)]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

#[test]
fn it_is_found_where_programs_have_their_files() {
    for (bin, place) in [
        ("bin", "bin/starter"),
        ("bin", "share/fresco/starter"),
        ("a/b", "starter"),
    ] {
        let folder = folder();
        let path = starter::install(&folder.path().join(bin));
        starter::write(&folder.path().join(place)).unwrap();
        let server = Server::start_with(StartOptions {
            program: Some(&path),
            environment: vec![WITH_STARTER],
            ..StartOptions::default()
        });
        let listed = server.get("/models/checkpoints").json();
        assert_eq!(listed, json!([starter::CHECKPOINT]), "{place}");
        let info = server.get("/object_info/CheckpointLoaderSimple").json();
        let choices = &info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"][0];
        assert_eq!(*choices, listed);
        // The doctor says where, and that it can be left out.
        let doctor = |more: &[&str]| {
            let output = Command::new(&path)
                .args(["doctor", "--port", "0", "--base-directory"])
                .arg(&server.base)
                .args(more)
                .env(WITH_STARTER.0, WITH_STARTER.1)
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let there = folder.path().join(place);
        let said = doctor(&[]);
        let line = format!("starter model: {}", there.display());
        assert!(said.contains(&line), "{said}");
        let said = doctor(&["--no-starter"]);
        assert!(said.contains("starter model: none"), "{said}");
        assert!(!said.contains("checkpoints:"), "{said}");
    }
}

#[test]
fn the_users_own_files_come_first_and_it_can_be_left_out() {
    let folder = installed(false);
    let base = folder.path().join("base");
    let own = base.join("models/checkpoints");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join(starter::CHECKPOINT), "mine").unwrap();
    fs::write(own.join("zebra.safetensors"), "mine").unwrap();
    let path = folder.path().join(program().file_name().unwrap());
    let started = |arguments: &[&str]| {
        Server::start_with(StartOptions {
            program: Some(&path),
            arguments: arguments.to_vec(),
            base: Some(&base),
            environment: vec![WITH_STARTER],
        })
    };
    let server = started(&[]);
    let listed = server.get("/models/checkpoints").json();
    assert_eq!(listed, json!([starter::CHECKPOINT, "zebra.safetensors"]));
    let id = server.queue(&prompt("euler", "normal", 1), None);
    let failed = server.wait_for(&id);
    assert_eq!(failed["status"]["status_str"], "error", "{failed}");
    drop(server);
    fs::remove_file(own.join(starter::CHECKPOINT)).unwrap();
    let listed = started(&["--no-starter"]).get("/models/checkpoints").json();
    assert_eq!(listed, json!(["zebra.safetensors"]));
}

/// Every sampler, and every schedule with one of them.
fn ways(server: &Server) -> Vec<(String, String)> {
    let info = server.get("/object_info/KSampler").json();
    let list = |name: &str| -> Vec<String> {
        let names = &info["KSampler"]["input"]["required"][name][0];
        let names = names.as_array().unwrap().iter();
        names.map(|n| n.as_str().unwrap().to_owned()).collect()
    };
    let (samplers, schedules) = (list("sampler_name"), list("scheduler"));
    assert!(samplers.len() > 30 && schedules.len() > 6);
    let turn = samplers.iter().zip(schedules.iter().cycle());
    let all = schedules.iter().map(|s| ("euler".to_owned(), s.clone()));
    turn.map(|(a, b)| (a.clone(), b.clone()))
        .chain(all)
        .collect()
}

/// Samples in every way, and looks at latents and pictures.
#[track_caller]
fn sample_all(server: &Server, prompt: impl Fn(&str, &str) -> Value) {
    let ways = ways(server);
    let ids: Vec<String> = ways
        .iter()
        .map(|(sampler, schedule)| server.queue(&prompt(sampler, schedule), None))
        .collect();
    for (way, id) in ways.iter().zip(&ids) {
        let done = server.wait_for(id);
        assert_eq!(done["status"]["status_str"], "success", "{way:?}: {done}");
        let output = server.base.join("output");
        let file = |node: &str, kind: &str| {
            let name = &done["outputs"][node][kind][0]["filename"];
            output.join(name.as_str().unwrap())
        };
        let latent = numbers(&file("10", "latents"));
        assert!(latent.iter().all(|v| v.is_finite()), "{way:?}");
        let made = picture::read_file(&file("9", "images")).unwrap();
        let first = made.pixels[0];
        assert!(made.pixels.iter().any(|v| *v != first), "{way:?} is blank");
    }
}

#[test]
fn every_sampler_and_schedule_works_on_its_layout() {
    let folder = installed(false);
    let server = start(folder.path(), &[]);
    sample_all(&server, |sampler, schedule| prompt(sampler, schedule, 3));
}

/// The model of the repository.
const SHIPPED: &str = "fresco-starter.safetensors";

/// The program of this tree with the model of this tree.
fn shipped() -> Server {
    let server = Server::start_with(StartOptions {
        environment: vec![WITH_STARTER],
        ..StartOptions::default()
    });
    let listed = server.get("/models/checkpoints").json();
    assert_eq!(listed, json!([SHIPPED]), "is the build folder in the tree?");
    server
}

#[test]
fn every_sampler_and_schedule_works_on_the_model_of_the_repository() {
    sample_all(&shipped(), |sampler, schedule| {
        let mut prompt = prompt(sampler, schedule, 3);
        prompt["4"]["inputs"]["ckpt_name"] = json!(SHIPPED);
        prompt
    });
}

/// A picture by the model of the repository.
fn draw(server: &Server, text: &str) -> picture::Picture {
    let prompt = text_to_image(&TextToImage {
        checkpoint: SHIPPED,
        positive: text,
        negative: "",
        width: 256,
        height: 256,
        steps: 10,
        cfg: 3.0,
        seed: 5,
        ..TextToImage::default()
    });
    let done = server.wait_for(&server.queue(&prompt, None));
    assert_eq!(done["status"]["status_str"], "success", "{done}");
    let name = &done["outputs"]["9"]["images"][0]["filename"];
    let path = server.base.join("output").join(name.as_str().unwrap());
    let made = picture::read_file(&path).unwrap();
    assert_eq!((made.width, made.height), (256, 256));
    made
}

#[test]
fn the_model_of_the_repository_draws_in_the_colours_that_are_asked_for() {
    let server = shipped();
    for (channel, text) in ["a red apple", "a green apple", "a blue car"]
        .iter()
        .enumerate()
    {
        let made = draw(&server, text);
        // Of what is not the ground, most has that colour.
        let drawn = Drawn::new(&made);
        let side = SIDE as isize;
        let things: Vec<[u8; 3]> = (0..side * side)
            .filter_map(|at| drawn.at(at % side, at / side))
            .collect();
        let strongest =
            |p: &&[u8; 3]| (0..3).all(|c| c == channel || p[channel] > p[c].saturating_add(20));
        let (all, such) = (things.len(), things.iter().filter(strongest).count());
        assert!(all > 4000, "{text}: only {all} pixels");
        assert!(such * 2 > all, "{text}: {such} of {all} pixels");
    }
}

/// What the model was taught: the name of a thing, and eight by eight pixels of its bounding square on white in hexadecimal
/// digits, a line for each drawing of it. Written by `tools/starter/thumbnails.py`.
const THINGS: &str = include_str!("starter-things.txt");

const SIDE: usize = 256;

/// What is drawn, apart from the ground it is drawn on.
struct Drawn<'a> {
    pixels: &'a [u8],
    ground: [u8; 3],
}

impl<'a> Drawn<'a> {
    fn new(made: &'a picture::Picture) -> Self {
        let pixels = &*made.pixels;
        let at = |x: usize, y: usize| (y * SIDE + x) * 3;
        let edge = |i| [at(i, 0), at(i, SIDE - 1), at(0, i), at(SIDE - 1, i)];
        let ground = [0, 1, 2].map(|channel| {
            let mut values: Vec<u8> = (0..SIDE)
                .flat_map(edge)
                .map(|at| pixels[at + channel])
                .collect();
            values.sort_unstable();
            values[values.len() / 2]
        });
        Self { pixels, ground }
    }

    /// The colour of the thing here; none where the ground is, and outside of the picture.
    fn at(&self, x: isize, y: isize) -> Option<[u8; 3]> {
        let inside = |v: isize| usize::try_from(v).ok().filter(|v| *v < SIDE);
        let at = (inside(y)? * SIDE + inside(x)?) * 3;
        let pixel = [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]];
        let off: i32 = (0..3)
            .map(|c| (i32::from(pixel[c]) - i32::from(self.ground[c])).abs())
            .sum();
        (off > 48).then_some(pixel)
    }

    /// First and last row or column in which there is something, whichever `at` walks over.
    fn bounds(&self, at: impl Fn(isize, isize) -> (isize, isize)) -> (isize, isize) {
        let side = SIDE as isize;
        let there = |line: isize| {
            let pixels = (0..side).filter(|i| {
                let (x, y) = at(line, *i);
                self.at(x, y).is_some()
            });
            pixels.count() >= 4
        };
        let first = (0..side).find(|i| there(*i)).expect("something is drawn");
        let last = (0..side).rfind(|i| there(*i)).expect("something is drawn");
        (first, last + 1)
    }

    /// Eight by eight pixels of the bounding square, on white.
    fn small(&self) -> [f64; 192] {
        let (left, right) = self.bounds(|line, i| (line, i));
        let (top, bottom) = self.bounds(|line, i| (i, line));
        let side = (right - left).max(bottom - top);
        let (x, y) = ((left + right - side) / 2, (top + bottom - side) / 2);
        let mut small = [0.0; 192];
        for (cell, sums) in small.chunks_exact_mut(3).enumerate() {
            let span = |start: isize, cell: usize| {
                let cell = cell as isize;
                start + cell * side / 8..start + (cell + 1) * side / 8
            };
            let mut count = 0.0;
            for y in span(y, cell / 8) {
                for x in span(x, cell % 8) {
                    count += 1.0;
                    let pixel = self.at(x, y).unwrap_or([255; 3]);
                    for (sum, value) in sums.iter_mut().zip(pixel) {
                        *sum += f64::from(value);
                    }
                }
            }
            for sum in sums {
                *sum /= f64::max(count, 1.0);
            }
        }
        small
    }
}

/// The thing whose picture is most like this one, whichever way it looks.
fn likest(made: &picture::Picture) -> &'static str {
    let small = Drawn::new(made).small();
    let off = |digits: &str| -> f64 {
        let digits = digits.as_bytes();
        let byte =
            |i: usize| u8::from_str_radix(str::from_utf8(&digits[2 * i..][..2]).unwrap(), 16);
        let known: Vec<f64> = (0..192).map(|i| f64::from(byte(i).unwrap())).collect();
        let distance = |place: &dyn Fn(usize) -> usize| -> f64 {
            (0..192).map(|i| (known[i] - small[place(i)]).powi(2)).sum()
        };
        let mirrored = |i: usize| {
            let (cell, channel) = (i / 3, i % 3);
            (cell / 8 * 8 + 7 - cell % 8) * 3 + channel
        };
        distance(&|i| i).min(distance(&mirrored))
    };
    let lines = THINGS.lines().map(|line| line.split_once('\t').unwrap());
    let (name, _) = lines
        .min_by(|a, b| off(a.1).total_cmp(&off(b.1)))
        .expect("there are things");
    name
}

#[test]
fn the_model_of_the_repository_draws_what_is_asked_for() {
    assert!(THINGS.lines().count() > 100);
    let server = shipped();
    for (text, thing) in [
        ("one ripe banana please", "banana"),
        ("a cat that is asleep", "cat"),
        ("my umbrella", "umbrella"),
        ("a nice big hamburger for lunch", "hamburger"),
        ("a picture of a tiny rocket", "rocket"),
        ("somebody's old key", "key"),
        ("an electric guitar", "guitar"),
        ("a friendly penguin standing", "penguin"),
        ("a cactus with spikes", "cactus"),
        ("the golden crown of a king", "crown"),
    ] {
        assert_eq!(likest(&draw(&server, text)), thing, "{text}");
    }
}

/// Width and height of a JPEG.
fn size(jpeg: &[u8]) -> (u16, u16) {
    let frame = jpeg.windows(2).position(|m| m == [0xFF, 0xC0]);
    let at = frame.expect("a baseline JPEG has a frame") + 5;
    let number = |i: usize| u16::from_be_bytes([jpeg[i], jpeg[i + 1]]);
    (number(at + 2), number(at))
}

/// Sizes of the previews of a prompt.
fn previews(server: &Server, prompt: &Value, method: &str) -> Vec<(u16, u16)> {
    let mut socket = server.socket("watcher");
    let body = json!({"prompt": prompt, "client_id": "watcher",
        "extra_data": {"preview_method": method}});
    let answer = server.post("/prompt", &body).expect_status(200).json();
    let id = answer["prompt_id"].as_str().unwrap();
    let mut sizes = Vec::new();
    loop {
        match socket.frame() {
            // Event 1, a preview; format 1, JPEG.
            Frame::Binary(bytes) if bytes.starts_with(&[0, 0, 0, 1, 0, 0, 0, 1]) => {
                sizes.push(size(&bytes[8..]));
            }
            Frame::Text(message, _)
                if message["type"] == "executing" && message["data"]["node"].is_null() =>
            {
                let done = server.wait_for(id);
                assert_eq!(done["status"]["status_str"], "success", "{done}");
                return sizes;
            }
            Frame::Closed => panic!("the server hung up: {}", server.log()),
            _ => {}
        }
    }
}

#[test]
fn a_copy_that_was_saved_is_shown_like_it() {
    let folder = installed(true);
    let server = start(folder.path(), &["--preview-size", "0"]);
    let save = json!({
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": starter::CHECKPOINT}},
        "2": {"class_type": "CheckpointSave", "inputs": {"model": ["1", 0], "clip": ["1", 1],
            "vae": ["1", 2], "filename_prefix": "checkpoints/copy"}},
    });
    let done = server.wait_for(&server.queue(&save, None));
    assert_eq!(done["status"]["status_str"], "success", "{done}");
    let mut prompt = prompt("euler", "normal", 4);
    prompt["4"]["inputs"]["ckpt_name"] = json!("copy_00001_.safetensors");
    let sizes = previews(&server, &prompt, "auto");
    assert!(
        !sizes.is_empty() && sizes.iter().all(|s| *s == (64, 64)),
        "{sizes:?}"
    );
}

#[test]
fn previews_are_made_as_its_file_says() {
    let folder = installed(true);
    let mut plain = prompt("euler", "normal", 4);
    let server = start(folder.path(), &["--preview-size", "0"]);
    // What nodes change about a model does not change how its latents look.
    memory::add(&server.base, "loras", "lora", "lora");
    let mut patched = plain.clone();
    patched["20"] = json!({"class_type": "LoraLoaderModelOnly", "inputs":
        {"model": ["4", 0], "lora_name": "lora.safetensors", "strength_model": 0.5}});
    patched["21"] = json!({"class_type": "ModelSamplingDiscrete", "inputs":
        {"model": ["20", 0], "sampling": "eps", "zsnr": false}});
    patched["3"]["inputs"]["model"] = json!(["21", 0]);
    let mut seed = 1;
    // Another seed each time, or the engine has the result already.
    let mut fresh = |prompt: &mut Value| {
        seed += 1;
        prompt["3"]["inputs"]["seed"] = json!(seed);
        prompt.clone()
    };
    for prompt in [&mut plain, &mut patched] {
        for (method, side) in [("auto", 64), ("taesd", 64), ("latent2rgb", 8)] {
            let sizes = previews(&server, &fresh(prompt), method);
            // A frame that nobody took in time is replaced by the next.
            assert!(!sizes.is_empty(), "{method}");
            assert!(
                sizes.iter().all(|s| *s == (side, side)),
                "{method}: {sizes:?}"
            );
        }
        assert!(previews(&server, &fresh(prompt), "none").is_empty());
    }
    // Without the decoder its colours do, and the log says why.
    let decoder = folder.path().join("starter/models/vae_approx");
    fs::remove_dir_all(decoder).unwrap();
    let sizes = previews(&server, &fresh(&mut plain), "auto");
    assert!(
        !sizes.is_empty() && sizes.iter().all(|s| *s == (8, 8)),
        "{sizes:?}"
    );
    assert!(server.log().contains("previews are rough"));
}

/// A decoder that somebody made to break things costs its pictures, not the prompt.
#[test]
fn strange_decoders_leave_rough_previews() {
    // With one at the start: a folder that comes later is not searched.
    let folder = installed(true);
    let starter = folder.path().join("starter");
    let server = start(folder.path(), &["--preview-size", "0"]);
    let good = starter::decoder();
    let doubled: Vec<(String, Vec<usize>)> = (10..20)
        .map(|number| (format!("decoder.{number}.weight"), vec![3, 3, 3, 3]))
        .collect();
    let cases: Vec<Vec<(String, Vec<usize>)>> = vec![
        // A thousand times as wide as the latent.
        doubled,
        vec![("decoder.4.weight".into(), vec![16, 16, 5, 5])],
        vec![("decoder.4.weight".into(), vec![0, 16, 3, 3])],
        vec![("decoder.4.weight".into(), vec![16])],
        vec![("decoder.9.bias".into(), vec![4])],
        vec![("decoder.1.weight".into(), vec![16, 5, 3, 3])],
    ];
    for (seed, case) in cases.into_iter().enumerate() {
        let mut keys = good.clone();
        keys.extend(case.clone());
        starter::write_decoder_of(&starter, &keys).unwrap();
        let mut prompt = prompt("euler", "normal", 3);
        prompt["3"]["inputs"]["seed"] = json!(seed);
        let sizes = previews(&server, &prompt, "auto");
        assert!(
            !sizes.is_empty() && sizes.iter().all(|s| *s == (8, 8)),
            "{case:?}: {sizes:?}"
        );
    }
    assert!(server.log().contains("previews are rough"));
    // The right one is taken as soon as it is there.
    starter::write_decoder_of(&starter, &good).unwrap();
    let sizes = previews(&server, &prompt("euler", "normal", 4), "auto");
    assert!(sizes.iter().all(|s| *s == (64, 64)), "{sizes:?}");
}
