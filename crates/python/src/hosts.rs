//! Several processes: packs share one, as they look into each other, except those that somebody wants apart.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fresco_graph::{Map, Value};

use crate::discover::Candidate;
use crate::host::{Host, Outside, Settings};
use crate::report::{PackReport, Phase};

/// Which packs have a process of their own.
#[derive(Clone, Debug, Default)]
pub struct Apart {
    pub all: bool,
    pub names: Vec<String>,
}

impl Apart {
    fn takes(&self, pack: &Candidate) -> bool {
        self.all || self.names.contains(&pack.name) || self.names.contains(&pack.entry)
    }
}

/// All packs of the program. Never empty.
pub struct Hosts(Vec<Arc<Host>>);

impl Hosts {
    /// Nothing is started yet.
    pub fn new(settings: Settings, apart: &Apart) -> Arc<Self> {
        for name in &apart.names {
            let known = |pack: &Candidate| &pack.name == name || &pack.entry == name;
            if !settings.packs.iter().any(known) {
                tracing::warn!("--isolate-packs {name}: there is no such pack");
            }
        }
        let (own, shared): (Vec<_>, Vec<_>) = settings
            .packs
            .iter()
            .cloned()
            .partition(|pack| apart.takes(pack));
        let mut hosts = Vec::new();
        if !shared.is_empty() || own.is_empty() {
            hosts.push(Host::new(Settings {
                packs: shared,
                ..settings.clone()
            }));
        }
        for pack in own {
            hosts.push(Host::new(Settings {
                alone: Some(pack.name.clone()),
                packs: vec![pack],
                ..settings.clone()
            }));
        }
        Arc::new(Self(hosts))
    }

    /// Starts the processes, if there are packs.
    pub fn start(&self, outside: &Arc<dyn Outside>) {
        for host in &self.0 {
            host.start(outside.clone());
        }
    }

    /// Waits until packs are loaded or have failed.
    pub fn wait_ready(&self, limit: Duration) {
        let began = Instant::now();
        for host in &self.0 {
            host.wait_ready(limit.saturating_sub(began.elapsed()));
        }
    }

    pub fn is_starting(&self) -> bool {
        self.0.iter().any(|host| host.is_starting())
    }

    pub fn packs(&self) -> Vec<PackReport> {
        self.0.iter().flat_map(|host| host.packs()).collect()
    }

    /// Folders with scripts for the front-end, by mount name.
    pub fn mounts(&self) -> Vec<(String, PathBuf)> {
        self.0.iter().flat_map(|host| host.mounts()).collect()
    }

    /// The private socket of the packs one of whose routes takes this request.
    pub fn socket_for(&self, method: &str, path: &str) -> Option<Arc<str>> {
        self.0.iter().find_map(|host| host.socket_for(method, path))
    }

    /// Whether a pack wants to see prompts before they are checked.
    pub fn sees_prompts(&self) -> bool {
        self.0.iter().any(|host| host.sees_prompts())
    }

    /// Lets packs change a prompt before it is checked, one process after the other.
    pub fn on_prompt(&self, body: &Map) -> Option<Map> {
        let mut changed = None;
        for host in self.0.iter().filter(|host| host.sees_prompts()) {
            if let Some(after) = host.on_prompt(changed.as_ref().unwrap_or(body)) {
                changed = Some(after);
            }
        }
        changed
    }

    /// Why packs do not run, if they do not.
    pub fn problem(&self) -> Option<String> {
        self.0.iter().find_map(|host| match host.phase() {
            Phase::Unavailable(why) => Some(why.lines().next().unwrap_or_default().to_owned()),
            _ => None,
        })
    }

    /// Everything about packs, for `/api/packs`: as of one process, with all packs and the state of the worst.
    pub fn to_value(&self) -> Value {
        let rank = |host: &Arc<Host>| match host.phase() {
            Phase::Unavailable(_) => 0,
            Phase::Starting => 1,
            Phase::Restarting => 2,
            Phase::Ready => 3,
            Phase::Idle => 4,
        };
        let mut parts: Vec<(u8, Map)> = Vec::new();
        for host in &self.0 {
            if let Value::Map(part) = host.to_value() {
                parts.push((rank(host), Arc::unwrap_or_clone(part)));
            }
        }
        let packs: Vec<Value> = parts
            .iter_mut()
            .filter_map(|(_, part)| part.shift_remove("packs"))
            .flat_map(|packs| packs.as_list().unwrap_or_default().to_vec())
            .collect();
        let worst = parts.iter().min_by_key(|(rank, _)| *rank);
        let mut whole = worst.map(|(_, part)| part.clone()).unwrap_or_default();
        let processes: Vec<Value> = parts.into_iter().map(|(_, part)| part.into()).collect();
        whole.shift_remove("name");
        whole.insert("processes".into(), processes.into());
        whole.insert("packs".into(), packs.into());
        whole.into()
    }

    /// Lets packs give memory back that they keep for later.
    pub fn shrink(&self) {
        for host in &self.0 {
            host.shrink();
        }
    }

    /// Starts processes that were given up, or fresh ones.
    pub fn restart(&self) {
        for host in &self.0 {
            host.restart();
        }
    }

    pub fn stop(&self) {
        std::thread::scope(|scope| {
            for host in &self.0 {
                scope.spawn(move || host.stop());
            }
        });
    }
}
