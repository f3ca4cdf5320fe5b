//! Weight files on a network share that stalls, fails or changes while they are read, and on a disk that cannot read. The share is a
//! file system of our own ([`Share`]); where tests may not mount one, they are skipped.
//!
//! Those with a card run on an emulated one (`cargo xtask gpu`), the others on the processor.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use fresco_tests::{
    Server,
    memory::{self, Flow, MIB, Room},
    share::{Share, Trouble},
    tiny,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::loading::{self, flux, flux_prompt};

/// How long a prompt may take to end that was interrupted.
const INTERRUPTED: Duration = Duration::from_secs(1);

/// A server whose diffusion models are on a share.
struct Case {
    // Dropped in this order: the server has ended when the share is taken away.
    room: Room,
    share: Share,
}

/// Moves the diffusion models of a base folder behind a share. None where this machine does not let tests mount one.
fn shared(base: &Path) -> Option<Share> {
    let (here, there) = (base.join("models/diffusion_models"), base.join("server"));
    fs::rename(&here, &there).unwrap();
    let share = Share::mount(&there);
    match &share {
        Some(share) => symlink(share.place(), &here).unwrap(),
        None => eprintln!("skipped: no file system can be mounted here"),
    }
    share
}

/// A prompt of plain loaders with the large network, of which the second half is far from what the header brings into the cache.
fn prompt(seed: u64) -> Value {
    let mut flow = Flow::default().seed(seed);
    flow.u.file = "large";
    for part in [&mut flow.u, &mut flow.c, &mut flow.v] {
        part.plain = true;
    }
    flow.prompt()
}

/// Where in its file the trouble begins.
const MIDDLE: u64 = 40 * MIB;

impl Case {
    fn start(arguments: &[&str]) -> Option<Self> {
        Self::at(memory::base(), arguments)
    }

    fn at(base: TempDir, arguments: &[&str]) -> Option<Self> {
        let share = shared(base.path())?;
        let room = Room::at(base, arguments);
        Some(Self { room, share })
    }

    fn on_processor() -> Option<Self> {
        Self::start(&["--cpu"])
    }

    fn server(&self) -> &Server {
        &self.room.server
    }

    /// The file behind the share.
    fn behind(&self, name: &str) -> PathBuf {
        let folder = self.room.base.path().join("server");
        folder.join(format!("{name}.safetensors"))
    }

    /// Queues a prompt that waits for the share.
    fn stalled(&self, name: &str, from: u64) -> String {
        self.share.trouble(name, from, Trouble::Stall);
        let id = self.server().queue(&prompt(1), None);
        self.share.wait_for_reader();
        id
    }

    /// What a prompt ended with that failed.
    #[track_caller]
    fn failure(&self) -> String {
        let (class, message) = self.room.run(&prompt(1)).failure();
        eprintln!("{class}: {message}");
        assert!(message.contains("large.safetensors"), "{message}");
        self.nothing_stays();
        message
    }

    /// No weights of the network are anywhere, and the books are right.
    #[track_caller]
    fn nothing_stays(&self) {
        self.room.checked();
        for model in self.room.models() {
            if model["component"] == "diffusion" {
                assert_eq!(loading::held(&model), 0, "{model}");
            }
        }
    }

    /// The same prompt gives the right picture.
    #[track_caller]
    fn works_again(&self) {
        let picture = self.room.pixels(&prompt(1));
        assert!(picture == right_picture(), "another picture");
        self.room.checked();
    }
}

/// The picture of [`prompt`] from files on a disk.
fn right_picture() -> Vec<u8> {
    Room::with(&["--cpu"]).pixels(&prompt(1))
}

/// Interrupts a prompt, which must end as interrupted within a second.
#[track_caller]
fn interrupt(server: &Server, id: &str) {
    let begun = Instant::now();
    let only = json!({"prompt_id": id});
    server.post("/interrupt", &only).expect_status(200);
    let entry = server.wait_for(id);
    let took = begun.elapsed();
    let messages = entry["status"]["messages"].to_string();
    assert!(messages.contains("execution_interrupted"), "{entry}");
    assert!(took < INTERRUPTED, "it took {took:?}");
    assert!(!server.log().contains("abandoned"), "{}", server.log());
}

/// Waits until a prompt runs.
#[track_caller]
fn begins(server: &Server, id: &str) {
    let deadline = Instant::now() + Duration::from_mins(1);
    let runs = || {
        let queue = server.get("/queue").expect_status(200).json();
        let running = queue["queue_running"].as_array().unwrap().clone();
        running.iter().any(|entry| entry[1] == id)
    };
    while !runs() {
        assert!(Instant::now() < deadline, "{id} does not begin");
        thread::park_timeout(Duration::from_millis(10));
    }
}

/// How long what does not ask the share may take while it is silent.
const UNAFFECTED: Duration = Duration::from_secs(5);

/// Has something done in time.
#[track_caller]
fn at_once<T>(what: &str, ask: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let answer = ask();
    let took = begun.elapsed();
    assert!(took < UNAFFECTED, "{what} took {took:?}");
    answer
}

/// What people ask while a prompt runs.
#[track_caller]
fn questions_are_answered(server: &Server) {
    for path in [
        "/queue",
        "/memory",
        "/memory/models",
        "/memory/check",
        "/system_stats",
        "/history",
        "/metrics",
        "/object_info/KSampler",
        "/object_info",
        "/models",
        "/models/loras",
        "/models/diffusion_models",
        "/embeddings",
        "/settings",
        "/users",
        "/view?filename=none.png",
        "/api/jobs",
    ] {
        let answer = at_once(path, || server.get(path));
        let expected = if path.starts_with("/view") { 404 } else { 200 };
        answer.expect_status(expected);
    }
}

#[test]
fn an_interrupt_ends_a_prompt_whose_share_stalls() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    let id = case.stalled("large", MIDDLE);
    questions_are_answered(case.server());
    interrupt(case.server(), &id);
    case.room.end(&id);
    case.nothing_stays();
    // The share is still away: so is the next prompt, and others run.
    let id = case.server().queue(&prompt(2), None);
    begins(case.server(), &id);
    thread::park_timeout(Duration::from_millis(500));
    interrupt(case.server(), &id);
    let other = fresco_tests::workflow::picture(7, "other");
    case.room.ok(&other);
    case.share.mend();
    case.works_again();
}

#[test]
fn an_interrupt_ends_a_prompt_whose_share_stalls_in_the_header() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    let id = case.stalled("large", 0);
    questions_are_answered(case.server());
    interrupt(case.server(), &id);
    case.room.end(&id);
    case.nothing_stays();
    case.share.mend();
    case.works_again();
}

#[test]
fn a_share_that_answers_again_gives_the_right_picture() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    let id = case.stalled("large", MIDDLE);
    // The next one waits behind it.
    let second = case.server().queue(&prompt(1), None);
    thread::park_timeout(Duration::from_millis(300));
    case.share.mend();
    let run = case.room.end(&id);
    assert!(
        case.room.saved(&run, "9") == right_picture(),
        "another picture"
    );
    assert_eq!(
        case.room.end(&second).history["status"]["status_str"],
        "success"
    );
    case.room.checked();
}

#[test]
fn a_disk_that_cannot_read_ends_the_prompt_with_what_to_do() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    for from in [MIDDLE, 0] {
        case.share.trouble("large", from, Trouble::Fail);
        let message = case.failure();
        assert!(message.contains("Input/output error"), "{message}");
        assert!(message.contains("copy the file anew"), "{message}");
    }
    case.share.mend();
    case.works_again();
}

#[test]
fn a_share_that_gives_fewer_bytes_than_there_are() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    case.share.trouble("large", MIDDLE, Trouble::Short);
    let message = case.failure();
    assert!(message.contains("changed on disk"), "{message}");
    case.share.mend();
    case.works_again();
}

/// Makes the file behind the share another one: the last byte of its last weight is another.
fn change(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    // Those of tests are links to one file.
    fs::remove_file(file).unwrap();
    let end = bytes.len() - MIB as usize;
    for byte in bytes[end..].iter_mut().step_by(4) {
        *byte ^= 0x55;
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn a_file_that_changes_on_the_server_while_it_is_read() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    let own = case.behind("large");
    fs::copy(&own, own.with_extension("copy")).unwrap();
    fs::rename(own.with_extension("copy"), &own).unwrap();
    let id = case.stalled("large", MIDDLE);
    let file = fs::File::options().write(true).open(&own).unwrap();
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(5))
        .unwrap();
    case.share.mend();
    let (_, message) = case.room.end(&id).failure();
    assert!(message.contains("large.safetensors"), "{message}");
    assert!(message.contains("changed on disk"), "{message}");
    case.nothing_stays();
    case.works_again();
}

#[test]
fn a_file_that_changes_on_the_server_is_read_anew() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    case.works_again();
    // Its pages are cached here, and the model is in memory.
    change(&case.behind("large"));
    let local = Room::with(&["--cpu"]);
    change(&local.file("diffusion_models", "large"));
    let right = local.pixels(&prompt(1));
    assert!(right != right_picture(), "the change cannot be seen");
    let got = case.room.pixels(&prompt(1));
    assert!(got == right, "the picture of the file as it was");
    case.room.checked();
}

#[test]
fn a_share_that_does_not_even_say_what_it_has() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    let first = case.stalled("large", MIDDLE);
    let second = case.server().queue(&prompt(2), None);
    case.share.fall_silent();
    interrupt(case.server(), &first);
    // The second one asks whether its files are as they were.
    begins(case.server(), &second);
    thread::park_timeout(Duration::from_millis(300));
    questions_are_answered(case.server());
    interrupt(case.server(), &second);
    case.room.end(&second);
    case.nothing_stays();
    case.share.mend();
    case.works_again();
}

/// Prompts that name files of a share which was never listed.
#[test]
fn a_share_that_is_silent_from_the_start() {
    let Some(case) = Case::on_processor() else {
        return;
    };
    case.share.fall_silent();
    thread::scope(|scope| {
        let ask = || case.server().post("/prompt", &json!({"prompt": prompt(1)}));
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        case.share.wait_for_reader();
        for path in ["/queue", "/memory", "/models", "/object_info/KSampler"] {
            at_once(path, || case.server().get(path)).expect_status(200);
        }
        let other = fresco_tests::workflow::picture(7, "other");
        let id = at_once("another prompt", || case.server().queue(&other, None));
        case.room.end(&id);
        for answer in asked {
            let text = answer.join().unwrap().expect_status(400).text();
            assert!(text.contains("does not answer"), "{text}");
        }
    });
    // From now on it is known, and nobody waits.
    at_once("/object_info", || case.server().get("/object_info")).expect_status(200);
    case.share.mend();
    case.works_again();
}

/// Pictures on a share: what shows, stores and loads them waits alone.
/// Lets the share answer again at the end, so that a failed assertion does not leave requests waiting for it.
struct Mended<'a>(&'a Share);

impl Drop for Mended<'_> {
    fn drop(&mut self) {
        self.0.mend();
    }
}

#[test]
fn a_share_with_pictures_does_not_answer() {
    let base = memory::base();
    let (here, there) = (base.path().join("input"), base.path().join("pictures"));
    fs::create_dir_all(&there).unwrap();
    let picture = fresco_tests::picture::sample(8, 8).unwrap();
    fs::write(there.join("a.png"), &picture).unwrap();
    let Some(share) = Share::mount(&there) else {
        eprintln!("skipped: no file system can be mounted here");
        return;
    };
    let _ = fs::remove_dir_all(&here);
    symlink(share.place(), &here).unwrap();
    let room = Room::at(base, &["--cpu"]);
    let load = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}}});
    room.ok(&load);
    // The server has listed what is there before, as one that runs for a while has.
    room.server.get("/object_info").expect_status(200);
    share.fall_silent();
    thread::scope(|scope| {
        let _mended = Mended(&share);
        for _ in 0..4 {
            scope.spawn(|| room.server.get("/view?filename=a.png&type=input"));
            scope.spawn(|| {
                let file = Some(("image", "b.png", &picture[..]));
                let (kind, body) = fresco_tests::http::multipart(&[], file);
                let kind = [("Content-Type", kind.as_str())];
                room.server.request("POST", "/upload/image", &kind, &body)
            });
        }
        let asked: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| room.server.post("/prompt", &json!({"prompt": load}))))
            .collect();
        share.wait_for_reader();
        questions_are_answered(&room.server);
        let other = fresco_tests::workflow::picture(7, "other");
        let id = at_once("another prompt", || room.server.queue(&other, None));
        room.end(&id);
        for answer in asked {
            let text = answer.join().unwrap().expect_status(400).text();
            assert!(text.contains("does not answer"), "{text}");
        }
    });
    room.ok(&load);
}

#[test]
fn other_workers_go_on_while_a_share_stalls() {
    let mut arguments = memory::ROOMY.to_vec();
    arguments.extend(["--workers", "sim:0", "sim:1"]);
    let Some(case) = Case::start(&arguments) else {
        return;
    };
    let id = case.stalled("large", MIDDLE);
    // Another network of the same share, on the other worker.
    let mut other = prompt(5);
    other["1"]["inputs"]["unet_name"] = json!("u.safetensors");
    case.room.ok(&other);
    // Two that want the stalled file.
    let second = case.server().queue(&prompt(2), None);
    let third = case.server().queue(&prompt(3), None);
    begins(case.server(), &second);
    questions_are_answered(case.server());
    interrupt(case.server(), &second);
    interrupt(case.server(), &id);
    case.share.mend();
    let run = case.room.end(&third);
    assert_eq!(run.history["status"]["status_str"], "success");
    case.room.ok(&prompt(1));
    case.room.checked();
}

#[test]
fn the_program_stops_while_a_share_stalls() {
    let Some(mut case) = Case::on_processor() else {
        return;
    };
    let id = case.stalled("large", MIDDLE);
    let begun = Instant::now();
    let status = case.room.server.terminate();
    let took = begun.elapsed();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(15), "it took {took:?}");
    assert!(!id.is_empty());
}

/// A server that loads Flux.1 of full width to an emulated card from a share.
struct Load {
    server: Server,
    share: Share,
    base: TempDir,
}

impl Load {
    fn start() -> Option<Self> {
        if !loading::has_card() {
            return None;
        }
        let base = loading::flux_base();
        tiny::write_hollow(&loading::flux_file(base.path()), &flux(), tiny::BF16).unwrap();
        let share = shared(base.path())?;
        let server = loading::start(base.path(), &[]);
        Some(Self {
            server,
            share,
            base,
        })
    }

    fn stalled(&self) -> String {
        self.share
            .trouble("flux.safetensors", 300 * MIB, Trouble::Stall);
        let id = self.server.queue(&flux_prompt(1), None);
        self.share.wait_for_reader();
        id
    }

    /// The same prompt works.
    #[track_caller]
    fn works_again(&self) {
        loading::succeeds(&self.server, &flux_prompt(1));
        loading::consistent(&self.server);
        let models = self.base.path().join("models");
        assert!(models.is_dir());
    }
}

#[test]
fn an_interrupt_ends_a_load_to_a_card_whose_share_stalls() {
    let Some(load) = Load::start() else {
        return;
    };
    let id = load.stalled();
    questions_are_answered(&load.server);
    interrupt(&load.server, &id);
    loading::nothing_stays(&load.server);
    let id = load.server.queue(&flux_prompt(2), None);
    begins(&load.server, &id);
    thread::park_timeout(Duration::from_millis(500));
    interrupt(&load.server, &id);
    loading::nothing_stays(&load.server);
    load.share.mend();
    load.works_again();
}

#[test]
fn a_disk_that_cannot_read_while_a_card_is_filled() {
    let Some(load) = Load::start() else {
        return;
    };
    for trouble in [Trouble::Fail, Trouble::Short] {
        load.share.trouble("flux.safetensors", 300 * MIB, trouble);
        let id = load.server.queue(&flux_prompt(1), None);
        let message = loading::failure(&load.server, &id);
        eprintln!("{message}");
        assert!(message.contains("flux.safetensors"), "{message}");
        let says = match trouble {
            Trouble::Short => "changed on disk",
            _ => "Input/output error",
        };
        assert!(message.contains(says), "{message}");
        loading::nothing_stays(&load.server);
    }
    load.share.mend();
    load.works_again();
}

#[test]
fn the_program_stops_while_a_card_waits_for_a_share() {
    let Some(mut load) = Load::start() else {
        return;
    };
    load.stalled();
    let begun = Instant::now();
    let status = load.server.terminate();
    let took = begun.elapsed();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(15), "it took {took:?}");
}
