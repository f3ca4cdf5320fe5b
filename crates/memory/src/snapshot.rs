//! The whole state of the registry as text. Only for tests.
//!
//! No struct is taken apart with `..`: who adds a field shows it here, or says why it is left out.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use expect_test::{Expect, expect};
use fresco_tensor::device::Allocation;
use fresco_tensor::{Device, TensorError};

use crate::claims::Claim;
use crate::entry::{FailedRelease, HandleState, Hold, ModelEntry, WeightPart};
use crate::registry::{Active, ModelRegistry, State};
use crate::{
    BoxError, ContentKey, FileStamp, FreeRequest, HandleOptions, Need, Policy, PolicySource,
    Probes, Settings, Unit, Weights, Who,
};

fn part(part: &WeightPart) -> String {
    let WeightPart {
        // Asked by `ModelRegistry::check` whether it agrees.
        weights: _,
        units,
        mine,
        homes,
        sums,
        total,
    } = part;
    assert_eq!(homes.len(), units.len());
    assert!(sums.iter().sum::<u64>() <= *total);
    let homes = mine.iter().map(|unit| match homes[*unit] {
        Some(spot) => spot.to_string(),
        None => "-".to_owned(),
    });
    homes.collect()
}

fn who(who: &Who) -> String {
    let Who {
        client,
        prompt,
        node,
    } = who;
    format!("{client}/{prompt}/{node}")
}

fn claim(out: &mut String, claim: &Claim) {
    let Claim {
        client,
        node,
        prompt,
        model,
        policy,
        source,
        // The time of day.
        at: _,
        asleep,
    } = claim;
    let model = model.map_or("all".to_owned(), |model| model.to_string());
    let asleep = if *asleep { ", asleep" } else { "" };
    let _ = writeln!(
        out,
        "  claim {policy} on {model} by {client}/{prompt}/{node} ({}){asleep}",
        source.name()
    );
}

fn handle(out: &mut String, name: &str, handle: &HandleState) {
    let HandleState {
        parent,
        compute,
        offload,
        placement,
        loader,
        eject,
        text_encoder,
        full,
        own,
        refs,
        replaced,
        patches,
        patch_version,
        buffer,
        planned,
    } = handle;
    let _ = write!(
        out,
        "  {name} on {compute} off {offload} by {}, buffer {buffer}, planned {}",
        who(loader),
        planned.len()
    );
    if let Some(parent) = parent {
        let _ = write!(
            out,
            ", {patches} patches of {parent} (version {patch_version}), replaces {}, refs {}",
            replaced.len(),
            refs.as_ref().map_or(0, |refs| refs.len())
        );
    }
    if let Some(own) = own {
        let _ = write!(out, ", own {}", part(own));
    }
    if let Some(placement) = placement {
        let _ = write!(out, ", {placement:?}");
    }
    if let Some((others, prompt)) = eject {
        let _ = write!(out, ", ejects {others:?} in {prompt}");
    }
    for (is, word) in [(*text_encoder, "text encoder"), (*full, "full")] {
        if is {
            let _ = write!(out, ", {word}");
        }
    }
    out.push('\n');
}

fn entry(out: &mut String, entry: &ModelEntry) {
    let ModelEntry {
        id,
        // Both are in the id.
        key: _,
        location: _,
        class,
        // What nodes see of it.
        shared: _,
        base,
        handles,
        claims,
        holds,
        opening,
        busy,
        failed,
        ejected,
        removed,
        unload_later,
        gone,
        was_loaded,
        marked_offloaded,
        demoted_by,
        read_bytes,
        used,
        // The time of day; `used` counts the same.
        last_used: _,
        deadline,
        last_model,
    } = entry;
    let _ = writeln!(
        out,
        "{id} ({class}): {}, read {read_bytes}, used {used}",
        part(base)
    );
    for (model, state) in handles {
        let last = if *last_model == Some(*model) { "*" } else { "" };
        handle(out, &format!("{model}{last}"), state);
    }
    for one in &claims.0 {
        claim(out, one);
    }
    for Hold { prompt, model } in holds {
        let _ = writeln!(out, "  {prompt} holds {model}");
    }
    if let Some(FailedRelease { tried: _, step }) = failed {
        let _ = writeln!(
            out,
            "  failed to leave: {:?}",
            step.as_ref().map(|s| &s.reason)
        );
    }
    if let Some(wish) = ejected {
        let _ = writeln!(out, "  leaves later: {wish:?}");
    }
    if let Some(origin) = removed {
        let _ = writeln!(out, "  removed: {origin:?}");
    }
    if let Some(later) = unload_later {
        let _ = writeln!(out, "  unloaded later: {later:?}");
    }
    if let Some(by) = demoted_by {
        let _ = writeln!(out, "  demoted by {by}");
    }
    for (is, word) in [
        (!opening.is_empty(), "is being opened"),
        (*busy, "busy"),
        (*gone, "gone"),
        (*was_loaded, "was loaded"),
        (*marked_offloaded, "marked offloaded"),
        (deadline.is_some(), "has a deadline"),
    ] {
        if is {
            let _ = writeln!(out, "  {word}");
        }
    }
}

fn snapshot(registry: &ModelRegistry) -> String {
    let guard = registry.lock();
    let State {
        devices,
        entries,
        flight,
        active,
        log,
        counter,
        models,
        // The time of day.
        quiet_since: _,
        trash,
        fresh,
    } = &*guard;
    // What was dropped and said is handed over before the lock is given back.
    assert!(trash.is_empty() && fresh.is_empty());
    let mut out = format!(
        "devices {}, events {}, counted {counter}, handles made {models}\n",
        devices.len(),
        log.last()
    );
    if !flight.is_empty() {
        let names: Vec<&str> = flight.iter().map(|name| &**name).collect();
        let _ = writeln!(out, "running: {}", names.join(" "));
    }
    for Active {
        who: by,
        models,
        step,
    } in active.values()
    {
        let step = step.map_or(String::new(), |step| format!(", {step:?}"));
        let _ = writeln!(out, "{} uses {} models{step}", who(by), models.len());
    }
    for one in entries.values() {
        entry(&mut out, one);
    }
    drop(guard);
    assert_eq!(registry.check(), Vec::<String>::new());
    out
}

/// Layers that are only said to be somewhere.
struct Layers {
    units: Arc<[Unit]>,
    homes: Mutex<Vec<Option<Allocation>>>,
}

impl Layers {
    fn new(count: usize) -> Arc<Self> {
        let unit = |number: usize| Unit {
            name: format!("l{number}").into(),
            bytes: 1 << 20,
            cost: 1 << 20,
            embedding: false,
            biased: false,
            castable: true,
            own: false,
            block: None,
        };
        Arc::new(Self {
            units: (0..count).map(unit).collect(),
            homes: Mutex::new((0..count).map(|_| None).collect()),
        })
    }
}

impl Weights for Layers {
    fn units(&self) -> Arc<[Unit]> {
        Arc::clone(&self.units)
    }

    fn home(&self, unit: usize) -> Option<Device> {
        let homes = self.homes.lock().unwrap();
        homes[unit].as_ref().map(|memory| memory.device().clone())
    }

    fn load(&self, _: &Device) -> Result<u64, BoxError> {
        let mut homes = self.homes.lock().unwrap();
        let mut read = 0;
        for home in homes.iter_mut().filter(|home| home.is_none()) {
            *home = Some(Device::cpu().allocate(1 << 20)?);
            read += 1 << 20;
        }
        Ok(read)
    }

    fn move_to(&self, unit: usize, device: &Device) -> Result<(), TensorError> {
        self.homes.lock().unwrap()[unit] = Some(device.allocate(1 << 20)?);
        Ok(())
    }

    fn release(&self) -> Result<(), BoxError> {
        self.homes.lock().unwrap().fill_with(|| None);
        Ok(())
    }

    fn set_ahead(&self, _: usize) {}

    fn drop_ahead(&self) {}
}

#[test]
fn the_whole_state_after_each_step() {
    #[track_caller]
    fn check(registry: &ModelRegistry, expected: Expect) {
        expected.assert_eq(&snapshot(registry));
    }
    let device = Device::register_sim(6100, 64 << 30).unwrap();
    let registry = ModelRegistry::new(Settings::default(), vec![device.clone()]);
    // What the machine has beside the test is no matter.
    registry.set_probes(Probes {
        host: Arc::new(|| None),
        ..Probes::default()
    });
    let user = Who {
        client: "c".into(),
        prompt: "p".into(),
        node: "4".into(),
    };
    let key = ContentKey {
        files: vec![FileStamp {
            path: "/models/u.safetensors".into(),
            size: 3 << 20,
            modified: None,
        }],
        component: "diffusion".to_owned(),
        options: String::new(),
    };
    registry.prompt_started("p");
    let layers = Layers::new(3);
    let opened = registry.open(&user, &key, "test", || {
        Ok::<_, BoxError>((Arc::clone(&layers), layers as Arc<dyn Weights>))
    });
    let id = opened.unwrap().id;
    let options = HandleOptions {
        compute: device,
        policy: Policy::Keep,
        source: PolicySource::NodeInput,
        ..HandleOptions::default()
    };
    let handle = registry.handle(&user, &id, options);
    check(
        &registry,
        expect![[r"
        devices 2, events 2, counted 0, handles made 1
        running: p
        u.safetensors:diffusion-8047aa8c4f (test): ---, read 0, used 0
          m1 on 1 off 0 by c/p/4, buffer 0, planned 0
          claim keep on m1 by c/p/4 (node_input)
    "]],
    );
    let lease = registry.lease(&user, &[&handle], Need::default()).unwrap();
    check(
        &registry,
        expect![[r"
        devices 2, events 4, counted 2, handles made 1
        running: p
        c/p/4 uses 1 models
        u.safetensors:diffusion-8047aa8c4f (test): 111, read 3145728, used 1
          m1* on 1 off 0 by c/p/4, buffer 0, planned 0
          claim keep on m1 by c/p/4 (node_input)
          p holds m1
          was loaded
    "]],
    );
    drop(lease);
    registry.prompt_ended("p");
    check(
        &registry,
        expect![[r"
        devices 2, events 7, counted 3, handles made 1
        u.safetensors:diffusion-8047aa8c4f (test): 111, read 3145728, used 3
          m1* on 1 off 0 by c/p/4, buffer 0, planned 0
          claim keep on m1 by c/p/4 (node_input)
          was loaded
    "]],
    );
    let request = FreeRequest {
        unload_models: true,
        ..FreeRequest::default()
    };
    registry.free(&request, None);
    check(
        &registry,
        expect![[r"
        devices 2, events 11, counted 3, handles made 1
        u.safetensors:diffusion-8047aa8c4f (test): 000, read 3145728, used 3
          m1* on 1 off 0 by c/p/4, buffer 0, planned 0
          claim keep on m1 by c/p/4 (node_input)
          demoted by free
          was loaded
    "]],
    );
    registry.free(
        &FreeRequest {
            free_memory: true,
            ..request
        },
        None,
    );
    check(
        &registry,
        expect![[r"
        devices 2, events 14, counted 3, handles made 1
        u.safetensors:diffusion-8047aa8c4f (test): ---, read 3145728, used 3
          m1* on 1 off 0 by c/p/4, buffer 0, planned 0
          gone
          was loaded
    "]],
    );
    drop(handle);
    check(
        &registry,
        expect![[r"
        devices 2, events 14, counted 3, handles made 1
    "]],
    );
}
