//! Several workers in one process: which devices each has, and what is told about them when jobs are handed out.

use std::sync::Arc;

use fresco_engine::placement::{NeedKey, Resident, WorkerView};
use fresco_engine::{EventSink, ExecutorConfig, WorkerConfig, WorkerKind};
use fresco_graph::Map;
use fresco_memory::{EventNumbers, ModelRegistry, Policy, Registries, WorkerModels};
use fresco_tensor::Device;

use crate::assembly::Assembly;
use crate::settings::{ExecSettings, MemorySettings, ServeSettings, UsageError};

/// The devices of one worker, the primary one first, as `--workers` names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerGroup {
    pub(crate) name: Arc<str>,
    devices: Vec<String>,
}

impl WorkerGroup {
    /// All groups of the flag. No device is in two of them, since each worker thinks that the memory there is its own.
    pub(crate) fn all(given: &[String]) -> Result<Vec<Self>, UsageError> {
        let mut groups: Vec<Self> = Vec::new();
        let mut seen: Vec<String> = Vec::new();
        for text in given {
            let devices: Vec<String> = text.split('+').map(|d| d.trim().to_owned()).collect();
            for device in &devices {
                if device.is_empty() {
                    return Err(UsageError(format!(
                        "--workers: {text:?} has no name on one side of a +; write devices like cuda:0 or cuda:0+cuda:1"
                    )));
                }
                if seen.contains(device) {
                    return Err(UsageError(format!(
                        "--workers: {device} is named twice; each worker has devices of its own"
                    )));
                }
                seen.push(device.clone());
            }
            if devices.len() > 1 && devices.iter().any(|device| device == "cpu") {
                return Err(UsageError(format!(
                    "--workers: {text:?}: the main memory is everybody's; name cpu alone, for a worker without an accelerator"
                )));
            }
            groups.push(Self {
                name: devices.join("+").into(),
                devices,
            });
        }
        Ok(groups)
    }

    /// Its accelerators among those that are used.
    fn accelerators(&self, used: &[Device]) -> Result<Vec<Device>, UsageError> {
        let wanted = self.devices.iter().filter(|name| *name != "cpu");
        let find = |name: &String| {
            let found = used.iter().find(|device| device.name() == **name);
            found.cloned().ok_or_else(|| {
                let names: Vec<String> = used.iter().map(Device::name).collect();
                let known = if names.is_empty() {
                    "there is no accelerator".to_owned()
                } else {
                    format!("there are {}", names.join(", "))
                };
                UsageError(format!("--workers: unknown device {name}; {known}"))
            })
        };
        wanted.map(find).collect()
    }
}

/// The models of each worker.
pub(crate) fn registries(
    groups: &[WorkerGroup],
    memory: &MemorySettings,
) -> Result<Registries, UsageError> {
    if groups.is_empty() {
        return Ok(memory.registry().into());
    }
    let used = memory.accelerators();
    let numbers = EventNumbers::default();
    let mut workers = Vec::new();
    for group in groups {
        let devices = group.accelerators(&used)?;
        let settings = memory.registry_settings(&devices);
        workers.push(WorkerModels {
            worker: group.name.clone(),
            registry: ModelRegistry::of_worker(settings, devices, &group.name, &numbers),
        });
    }
    Ok(workers.into())
}

/// How prompts run, and who runs them.
pub(crate) fn workers(
    settings: &ServeSettings,
    assembly: &Assembly,
    models: &Registries,
    sink: Arc<dyn EventSink>,
) -> anyhow::Result<(ExecutorConfig, Vec<WorkerConfig>)> {
    let exec: &ExecSettings = &settings.exec;
    let first = models.first().registry.clone();
    let executor = assembly.executor(exec, first, sink)?;
    if settings.workers.is_empty() {
        // With workers on other machines this one need not run anything itself.
        let local = settings.nats.is_none().then(WorkerConfig::local);
        return Ok((executor, local.into_iter().collect()));
    }
    let mut workers = Vec::new();
    for (index, WorkerModels { worker, registry }) in models.iter().enumerate() {
        let own = if index == 0 {
            executor.clone()
        } else {
            assembly.another(&executor, exec, registry.clone())?
        };
        workers.push(WorkerConfig {
            name: worker.clone(),
            kind: WorkerKind::OnDevices(Box::new(own)),
        });
    }
    let names: Vec<&str> = workers.iter().map(|worker| &*worker.name).collect();
    tracing::info!("{} workers: {}", names.len(), names.join(", "));
    Ok((executor, workers))
}

/// Devices that inputs of a prompt name.
pub(crate) fn named_devices(prompt: &Map) -> Vec<Arc<str>> {
    let accelerators: Vec<String> = Device::all().iter().skip(1).map(Device::name).collect();
    if accelerators.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<Arc<str>> = Vec::new();
    let inputs = prompt
        .values()
        .filter_map(|node| node.get("inputs")?.as_map());
    for (name, value) in inputs.flatten() {
        // A text that only speaks of a device is none of these.
        let about = name.contains("device") || name.contains("alloc");
        let Some(text) = value.as_str().filter(|_| about) else {
            continue;
        };
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == ':'));
        for word in words {
            if accelerators.iter().any(|name| name == word) {
                found.push(word.into());
            }
        }
    }
    found
}

/// What a worker has on its devices.
pub(crate) fn view(registry: &ModelRegistry) -> WorkerView {
    // Main memory is none of its figures, and this is asked with every sign of life.
    let snapshot = registry.snapshot_of_devices();
    let resident = snapshot.models.iter().map(|model| {
        let there: u64 = model.residency.iter().map(|(_, bytes)| bytes).sum();
        Resident {
            key: NeedKey::files(&model.files),
            // What waits in main memory is there too: copying it takes no time that counts.
            bytes: there.max(model.host_bytes),
            kept: matches!(model.policy, Policy::Keep | Policy::Pin),
        }
    });
    let accelerators = snapshot.devices.iter().filter(|d| d.kind != "cpu");
    let names = accelerators.clone().map(|d| Arc::from(d.device.as_str()));
    // In main memory the whole machine is in the way of knowing.
    let room = accelerators
        .map(|d| d.total.saturating_sub(d.reserved))
        .sum();
    WorkerView::new(resident.collect(), names.collect(), room)
}

#[cfg(test)]
mod tests {
    use fresco_graph::{Value, map};

    use super::*;

    fn groups(text: &str) -> Result<Vec<WorkerGroup>, String> {
        let given: Vec<String> = text.split(' ').map(str::to_owned).collect();
        WorkerGroup::all(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn groups_are_devices_with_a_plus_between() {
        let found = groups("cuda:0+cuda:1 sim:2 cpu").unwrap();
        let names: Vec<&str> = found.iter().map(|group| &*group.name).collect();
        assert_eq!(names, ["cuda:0+cuda:1", "sim:2", "cpu"]);
        assert_eq!(found[0].devices, ["cuda:0", "cuda:1"]);
        assert!(groups("sim:0 sim:1+sim:0").unwrap_err().contains("twice"));
        assert!(groups("sim:0+").unwrap_err().contains("no name"));
        assert!(groups("sim:0+cpu").unwrap_err().contains("cpu alone"));
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let device = Device::register_sim(7301, 1 << 20).unwrap();
        let group = &groups("sim:7301+sim:7302").unwrap()[0];
        let error = group.accelerators(&[device]).unwrap_err().to_string();
        assert!(
            error.contains("unknown device sim:7302; there are sim:7301"),
            "{error}"
        );
        let error = group.accelerators(&[]).unwrap_err().to_string();
        assert!(error.contains("no accelerator"), "{error}");
    }

    #[test]
    fn devices_are_found_in_inputs_about_devices() {
        Device::register_sim(7303, 1 << 20).unwrap();
        Device::register_sim(7304, 1 << 20).unwrap();
        let node = |inputs: Map| Value::from(map! {"class_type" => "X", "inputs" => inputs});
        let prompt = map! {
            "1" => node(map! {"device" => "sim:7303", "text" => "on sim:7304"}),
            "2" => node(map! {"expert_mode_allocations" => "sim:7304,25%;cpu,*"}),
            "3" => node(map! {"device" => "default"}),
        };
        let found = named_devices(&prompt);
        assert_eq!(found, [Arc::from("sim:7303"), Arc::from("sim:7304")]);
    }
}
