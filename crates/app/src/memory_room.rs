//! The memory room as the engine knows it: the registry behind the engine's seam.
//!
//! Nothing is decided here. Requests go to the registry, and its events to the memory log.

use std::any::Any;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fresco_cluster::content::{ClusterModels, neutral_view};
use fresco_engine as engine;
use fresco_engine::placement::{JobNeeds, ModelNeed, NeedKey, WorkerView};
use fresco_engine::{LiveRegistry, MemoryRoom};
use fresco_files::Folders;
use fresco_graph::{Map, lock};
use fresco_memory::{MemoryAnswer, MemoryCommand, ModelRegistry, Who};
use fresco_models::detect::Families;
use fresco_nodes::admission::{self, AdmissionQuery, Verdict};
use fresco_tensor::answer_within;

/// How long a new prompt waits for the sizes of its files. Without them any worker may take it.
const FILES_ANSWER: Duration = Duration::from_secs(1);

pub(crate) struct Room {
    registry: ModelRegistry,
    /// Where models are looked for before a prompt runs, and of which families; none: prompts are not looked at.
    admission: Option<(Folders, Families)>,
    /// Where workers on other machines take jobs too: what they have, and the classes here.
    cluster: Option<(ClusterModels, Arc<LiveRegistry>)>,
}

impl Room {
    /// Writes the registry's events to this log from now on.
    pub(crate) fn new(registry: ModelRegistry, log: Option<&Path>) -> anyhow::Result<Self> {
        registry.on_event(Arc::new(fresco_server::log_memory_event));
        if let Some(path) = log {
            let log = MemoryLog::open(path)?;
            registry.on_event(Arc::new(move |event| log.write(event)));
        }
        Ok(Self {
            registry,
            admission: None,
            cluster: None,
        })
    }

    fn carry_out(&self, command: MemoryCommand) -> Option<MemoryAnswer> {
        let answer = self.registry.carry_out(&command);
        let refused = |refusal| tracing::warn!("the memory room does not do it: {refusal}");
        answer.map_err(refused).ok()
    }

    /// Lets it look at prompts before they run.
    pub(crate) fn admitting(mut self, folders: Folders, families: Families) -> Self {
        self.admission = Some((folders, families));
        self
    }

    /// Calls models by names that mean the same on other machines.
    pub(crate) fn in_cluster(mut self, models: ClusterModels, classes: Arc<LiveRegistry>) -> Self {
        self.cluster = Some((models, classes));
        self
    }
}

/// One JSON object a line, at the end of what is there.
struct MemoryLog {
    /// None after the first failure: one line in the log of the program says more than a thousand.
    file: Mutex<Option<File>>,
}

impl MemoryLog {
    fn open(path: &Path) -> anyhow::Result<Self> {
        // A pipe would make the start wait for somebody who reads it.
        if path.exists() && !path.is_file() {
            anyhow::bail!("the memory log {} is not a file", path.display());
        }
        let file = File::options().append(true).create(true).open(path);
        let file =
            file.with_context(|| format!("cannot write the memory log {}", path.display()))?;
        Ok(Self {
            file: Mutex::new(Some(file)),
        })
    }

    fn write(&self, event: &fresco_memory::Event) {
        let mut file = lock(&self.file);
        let Some(open) = file.as_mut() else { return };
        if let Err(error) = open.write_all(fresco_server::event_line(event).as_bytes()) {
            tracing::error!("the memory log ends here: {error}");
            *file = None;
        }
    }
}

impl MemoryRoom for Room {
    fn admit(&self, arriving: &engine::Arriving<'_>) -> engine::Admission {
        let Some((folders, families)) = &self.admission else {
            return engine::Admission::Ok;
        };
        let asked = AdmissionQuery {
            prompt: arriving.prompt,
            outputs: Some(arriving.outputs),
            cached: arriving.cached,
        };
        let found = admission::assess_run(&asked, folders, families, &self.registry);
        match found.verdict {
            Verdict::Fits => engine::Admission::Ok,
            Verdict::Streams(how) => engine::Admission::Downgraded(how),
            Verdict::Refused(message) => engine::Admission::Refused {
                node: found.blamed,
                message,
            },
        }
    }

    fn needs(&self, prompt: &Map, outputs: &[Arc<str>]) -> JobNeeds {
        if let Some((models, classes)) = &self.cluster {
            let devices = crate::workers::named_devices(prompt);
            return models.needs(prompt, &classes.snapshot(), devices);
        }
        let Some((folders, _)) = &self.admission else {
            return JobNeeds::default();
        };
        let (asked, outputs, folders) = (prompt.clone(), outputs.to_vec(), folders.clone());
        let files = answer_within(FILES_ANSWER, move || {
            admission::wanted_files(&asked, &outputs, &folders)
        });
        let files = files.unwrap_or_default();
        let models = files.into_iter().map(|(files, bytes)| ModelNeed {
            key: NeedKey::files(&files),
            bytes,
        });
        JobNeeds::new(models.collect(), crate::workers::named_devices(prompt))
    }

    fn view(&self) -> WorkerView {
        let view = crate::workers::view(&self.registry);
        match (&self.cluster, &self.admission) {
            (Some((models, classes)), Some((folders, _))) => {
                let classes = classes.snapshot();
                let ids = classes.iter().map(|class| class.schema().id.clone());
                neutral_view(&view, folders).with_inventory(models.own_inventory(ids))
            }
            _ => view,
        }
    }

    fn available_ram(&self) -> Option<u64> {
        fresco_tensor::available_memory()
    }

    fn resident_ram(&self) -> Option<u64> {
        fresco_memory::resident_set()
    }

    fn claim(&self, bytes: u64) -> Result<Box<dyn Any + Send>, u64> {
        match fresco_tensor::claim_memory(bytes) {
            Ok(claim) => Ok(Box::new(claim)),
            Err(refused) => Err(refused.missing),
        }
    }

    fn prompt_started(&self, prompt_id: &str) {
        self.registry.prompt_started(prompt_id);
    }

    fn after_prompt(&self, prompt_id: &str) {
        self.registry.prompt_ended(prompt_id);
        fresco_tensor::free_spare_memory();
    }

    fn unload_all(&self, prompt_id: &str, why: engine::Unload) {
        match why {
            engine::Unload::OutOfMemory => {
                let who = Who {
                    prompt: prompt_id.into(),
                    ..Who::default()
                };
                drop(self.carry_out(MemoryCommand::UnloadAfterFailure(who)));
            }
            // The registry was told the same, and does it with the rest of the cleanup.
            engine::Unload::PromptDone => {}
        }
    }

    fn free(
        &self,
        request: &engine::FreeRequest,
        running: Option<&str>,
    ) -> Option<engine::RoomReport> {
        let command = MemoryCommand::Free {
            request: request.clone(),
            running: running.map(Into::into),
        };
        match self.carry_out(command)? {
            MemoryAnswer::Freed(report) => Some(fresco_server::room_report(&report)),
            _ => None,
        }
    }

    fn note_free(&self, note: engine::FreeNote<'_>) {
        self.registry.note_free(note);
    }

    fn cache_reset(&self) {
        self.registry.note_cache_reset();
    }

    fn release_caches(&self) {
        drop(self.carry_out(MemoryCommand::TrimCaches));
        fresco_tensor::free_spare_memory();
    }

    fn tick(&self) {
        self.registry.tick();
    }

    fn next_tick(&self) -> Option<Instant> {
        self.registry.next_tick()
    }

    fn shutdown(&self) {
        self.registry.shutdown();
    }
}

#[cfg(test)]
mod tests;
