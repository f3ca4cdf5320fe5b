//! A prompt whose models cannot run is told so before anything is loaded; one that can run in parts does.

use fresco_tests::memory::{Flow, Room, kind};

#[test]
fn what_cannot_run_is_refused_before_anything_is_loaded() {
    let room = Room::small("200KiB");
    let run = room.run(&Flow::default().prompt());
    let (class, why) = run.failure();
    assert_eq!(class, "UNETLoaderDisTorch2MultiGPU");
    for part in [
        "cannot run on sim:0",
        "largest layer",
        "200 KiB",
        "or computing on cpu",
    ] {
        assert!(why.contains(part), "{part} is not in {why}");
    }
    let events = room.events(0);
    assert!(kind(&events, "model.registered").is_empty(), "{events:?}");
    // What the answer proposes works.
    let mut flow = Flow::default();
    for part in [&mut flow.u, &mut flow.c, &mut flow.v] {
        part.device = "cpu";
    }
    room.ok(&flow.prompt());
    room.checked();
}

#[test]
fn what_fits_in_parts_runs_with_the_same_result() {
    let prompt = Flow::default().prompt();
    let whole = Room::roomy();
    let room = Room::small("6MiB");
    assert_eq!(room.pixels(&prompt), whole.pixels(&prompt));
    room.checked();
    // Larger than it can compute: not half-way, but at once.
    let large = Flow {
        size: 2048,
        ..Flow::default()
    };
    let (_, why) = room.run(&large.prompt()).failure();
    assert!(why.contains("a smaller picture"), "{why}");
    room.checked();
}
