//! The numbers that the memory room promises, on simulated devices.

use fresco_tests::{
    memory::{Flow, MIB, ROOMY, Room, add, base, kind, number, on, one_device},
    workflow::{TextToImage, text_to_image},
};
use serde_json::Value;

fn checkpoint(name: &str, seed: u64) -> Value {
    text_to_image(&TextToImage {
        checkpoint: name,
        steps: 1,
        seed,
        ..TextToImage::default()
    })
}

/// A model of 107 MiB on a device of a third of that: the very same pixels, layer after layer through the little room.
#[test]
fn a_model_three_times_the_device() {
    let mut flow = Flow {
        steps: 2,
        ..Flow::default()
    };
    flow.u.file = "large";
    // The decoder would have the device to itself at the end.
    flow.v.device = "cpu";
    let mut on_cpu = flow.clone();
    for part in [&mut on_cpu.u, &mut on_cpu.c, &mut on_cpu.v] {
        part.device = "cpu";
    }
    let expected = Room::with(&[]).pixels(&on_cpu.prompt());
    let room = Room::small("35MiB");
    assert_eq!(room.pixels(&flow.prompt()), expected);
    let unet = room.model("diffusion");
    assert!(number(&unet, "bytes_total") > 3 * 35 * MIB);
    assert_eq!(unet["state"], "partial");
    assert!(on(&unet, "sim:0") > 0, "{unet}");
    let device = room.device("sim:0");
    assert!(number(&device, "peak") <= number(&device, "total"));
    room.checked();
    // And with nothing on the device at all.
    let arguments = one_device("35MiB");
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.push("--novram");
    let room = Room::with(&arguments);
    assert_eq!(room.pixels(&flow.prompt()), expected);
    room.checked();
}

#[test]
fn twenty_switches_between_two_kept_checkpoints_read_nothing() {
    let folder = base();
    add(folder.path(), "checkpoints", "model", "second");
    let room = Room::at(folder, ROOMY);
    let mut read = Vec::new();
    for turn in 0..20 {
        let name = ["model.safetensors", "second.safetensors"][turn % 2];
        room.ok(&checkpoint(name, turn as u64));
        if turn < 2 {
            for model in room.models() {
                let body = serde_json::json!({"policy": "keep"});
                let id = fresco_tests::memory::id(&model);
                room.about("PATCH", id, "", &body).expect_status(200);
            }
        }
        if turn >= 1 {
            let models = room.models();
            assert_eq!(models.len(), 6, "{turn}");
            read.push(models.iter().map(|m| number(m, "read_bytes")).sum::<u64>());
        }
    }
    read.dedup();
    assert_eq!(read.len(), 1, "{read:?}");
    let events = room.events(0);
    assert_eq!(kind(&events, "model.registered").len(), 6);
    assert!(kind(&events, "model.rehydrated").is_empty());
    room.checked();
}

/// Five models take turns on a device that has room for two: every prompt gets its picture, the device never has more than
/// it can, and the program does not grow. The bench does the same a thousand times.
#[test]
fn two_hundred_prompts_of_five_models_on_a_device_for_two() {
    let folder = base();
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        add(folder.path(), "diffusion_models", "u", name);
    }
    let arguments = one_device("48MiB");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let room = Room::at(folder, &arguments);
    let mut flow = Flow::default();
    flow.c.device = "cpu";
    flow.v.device = "cpu";
    let mut expected = None;
    let mut memory = Vec::new();
    for turn in 0..200_usize {
        // Not round and round, which no order of leaving can serve well.
        flow.u.file = names[(turn * 7 + turn / 5) % 5];
        let policies = ["auto", "keep", "auto"];
        flow.u.retention = Some(policies[turn % 3]);
        let pixels = room.pixels(&flow.prompt());
        assert_eq!(*expected.get_or_insert(pixels.clone()), pixels, "{turn}");
        memory.push(room.resident_memory());
    }
    let device = room.device("sim:0");
    assert!(
        number(&device, "peak") <= number(&device, "total"),
        "{device}"
    );
    let (settled, last) = (memory[50], memory[199]);
    let every: Vec<u64> = memory.iter().step_by(10).map(|b| b >> 10).collect();
    // Events, history and the log of the program fill up to their limits; a model more in every prompt would be 1,800 MiB.
    assert!(
        last < settled + settled / 20 + 48 * MIB,
        "{settled} grew to {last}; KiB by ten prompts: {every:?}"
    );
    room.checked();
}
