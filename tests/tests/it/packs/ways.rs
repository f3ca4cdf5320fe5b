//! Packs that do things in the ways of those that people use most.

use super::*;

#[test]
fn functions_of_the_host_that_a_pack_replaces() {
    let Some(rig) = Rig::start(&["plain", "ways"], &[]) else {
        return;
    };
    let mut socket = rig.server.socket("me");
    let prompt = json!({"9": node("WaysPatches", json!({"file": "none"}))});
    let id = rig.server.queue(&prompt, Some("me"));
    let messages = socket.run(&id);
    assert!(messages.iter().any(|m| m["type"] == "ways.message"));
    let shown = rig.server.wait_for(&id)["outputs"]["9"]["text"].clone();
    let want = json!([
        1,
        ["ways.message"],
        true,
        [[1, 2], [2, 4]],
        true,
        "set on the class"
    ]);
    assert_eq!(shown, want);
    // Which ones is said once.
    let log = rig.server.log();
    let said = log.lines().filter(|line| line.contains("packs replaced"));
    let said: Vec<&str> = said.collect();
    assert_eq!(said.len(), 1, "{log}");
    for name in [
        "latent_preview.get_previewer",
        "folder_paths.get_filename_list",
    ] {
        assert!(said[0].contains(name), "{}", said[0]);
    }
    // Native nodes are as they were.
    let id = rig
        .server
        .queue(&fresco_tests::workflow::picture(1, "native"), None);
    assert_eq!(rig.server.wait_for(&id)["status"]["status_str"], "success");
}

#[test]
fn packs_that_look_around() {
    let Some(rig) = Rig::start(&["plain", "ways"], &[]) else {
        return;
    };
    let info = rig.server.get("/object_info/WaysLooks").json();
    assert_eq!(info["WaysLooks"]["display_name"], "WaysLooks (of the ways)");
    let shown = rig.shown(&json!({"9": node("WaysLooks", json!({}))}));
    let want = json!([
        true,
        [3.5, "1 2.5"],
        {"starts": 1},
        "swapped",
        ["ways"],
        "yes",
        "none",
        true,
        true
    ]);
    assert_eq!(shown["text"], want);
    assert!(
        rig.base
            .path()
            .join("custom_nodes/ways/settings.json")
            .is_file()
    );
}

#[test]
fn values_that_only_python_knows() {
    let Some(python) = python() else { return };
    if !has_module(&python, "numpy") {
        return;
    }
    let rig = Rig::start(&["plain", "ways"], &[]).unwrap();
    let prompt = |seed: u64| {
        json!({
            "1": node("EmptyImage", json!({"width": 16, "height": 8, "batch_size": 1, "color": 255})),
            "2": node("WaysMake", json!({"image": ["1", 0], "seed": seed})),
            "3": node("WaysTake", json!({"segs": ["2", 0], "pipe": ["2", 1], "odd": ["2", 4]})),
            "4": node("TrimAudioDuration", json!({"audio": ["2", 2], "start_index": 0.0, "duration": 0.25})),
            "5": node("LatentUpscaleBy", json!({"samples": ["2", 3], "upscale_method": "bilinear", "scale_by": 2.0})),
            "6": node("SaveAudio", json!({"audio": ["4", 0], "filename_prefix": "late"})),
            "7": node("SaveLatent", json!({"samples": ["5", 0], "filename_prefix": "own"})),
            "8": node("PreviewImage", json!({"images": ["3", 0]})), "9": show(json!(["3", 1]))})
    };
    let told = "[[8, 16], 'SEG', 0.5, (0, 0, 8, 8), ['face', None], {'seed': 18446744073709551615}, 'tuple', True, True]";
    let shown = rig.shown(&prompt(u64::MAX));
    assert_eq!(text_of(&shown), told);
    let folder = rig.base.path().join("output");
    let files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        files.iter().any(|file| file.starts_with("late_")),
        "{files:?}"
    );
    assert!(
        files.iter().any(|file| file.starts_with("own_")),
        "{files:?}"
    );
    // The same objects, found again in what the process keeps.
    let shown = rig.shown(&prompt(5));
    assert!(text_of(&shown).contains("{'seed': 5}, 'tuple', True, True"));
}

/// A base folder may be fresh, and packs list what is in `output`.
#[test]
fn folders_of_the_host_are_there_when_packs_are_described() {
    let Some(rig) = Rig::start(&["plain", "ways"], &[]) else {
        return;
    };
    let info = rig.server.get("/object_info/WaysOutputs").json();
    let folder = &info["WaysOutputs"]["input"]["required"]["folder"];
    assert_eq!(folder[0][0], "none", "{info}\n{}", rig.server.log());
}

/// Films are given with sound that is read when somebody asks, and may have none.
#[test]
fn sound_that_cannot_be_read_fails_where_it_is_used() {
    let Some(rig) = Rig::start(&["plain", "ways"], &[]) else {
        return;
    };
    let film = node("WaysSoundlessFilm", json!({}));
    let frames = json!({"1": film, "9": node("PreviewAny", json!({"source": ["1", 1]}))});
    assert_eq!(rig.shown(&frames)["text"], json!(["frames"]));
    let kind = json!({
        "1": film,
        "2": node("WaysSoundKind", json!({"audio": ["1", 0]})),
        "9": node("PreviewAny", json!({"source": ["2", 0]})),
    });
    assert_eq!(rig.shown(&kind)["text"], json!(["SoundOfFile"]));
}
