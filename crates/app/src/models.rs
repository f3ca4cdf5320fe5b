//! `fresco models`: which worker of a cluster has which model files, and copies of them from one machine to another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use fresco_cluster::content::sync::{self, ModelServer};
use fresco_cluster::content::{Catalogue, ModelEntry};
use fresco_cluster::protocol::control::{WorkerAnswer, WorkerRequest};
use fresco_cluster::protocol::models::{CopyEnd, CopyProgress, Wanted};
use fresco_cluster::{Broker, BrokerState, ReceivedMessage, Subscription};
use fresco_graph::lock;

use crate::assembly::Assembly;
use crate::cli::{ModelsArgs, ModelsTask};
use crate::settings::{self, FolderSettings, UsageError};

/// How long a server may take to be there.
const CONNECT: Duration = Duration::from_secs(10);
/// Workers give a sign of life each second.
const LISTEN: Duration = Duration::from_millis(2500);
/// How often a long copy says how far it is.
const TELL: Duration = Duration::from_secs(5);

pub(crate) fn models(args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let settings = settings::broker(&args.nats, "fresco models")?;
    let settings = settings.ok_or_else(|| {
        UsageError("name the NATS server of the cluster with --nats, like nats://host:4222".into())
    })?;
    match args.what {
        ModelsTask::List => {
            if args.from.is_some() || args.to.is_some() || !args.files.is_empty() {
                return Err(
                    UsageError("--from, --to and files are for `models sync`".into()).into(),
                );
            }
            list(&*connect(&settings)?)
        }
        ModelsTask::Sync => {
            if args.from.is_none() && args.to.is_none() {
                let text = "name a worker to copy from (--from) or to (--to), or both";
                return Err(UsageError(text.into()).into());
            }
            if args.from == args.to {
                return Err(UsageError("--from and --to are the same".into()).into());
            }
            if args.files.is_empty() && !args.all {
                return Err(UsageError("name files to copy, or --all".into()).into());
            }
            sync_models(connect(&settings)?, args)
        }
    }
}

fn connect(settings: &fresco_cluster::BrokerSettings) -> anyhow::Result<Arc<Broker>> {
    let broker = Broker::connect(settings).map_err(|e| UsageError(e.to_string()))?;
    let deadline = Instant::now() + CONNECT;
    loop {
        match broker.state() {
            BrokerState::Ready => return Ok(broker),
            BrokerState::Connecting(why) | BrokerState::Unusable(why)
                if Instant::now() > deadline =>
            {
                bail!("NATS at {}: {why}", broker.address());
            }
            _ => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Names of the workers that are there.
fn workers(broker: &Broker) -> anyhow::Result<Vec<String>> {
    let heard: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let names = heard.clone();
    let listening =
        broker.subscribe(&broker.subject("alive.*"), move |heard: ReceivedMessage| {
            if let Some((_, name)) = heard.subject.rsplit_once('.') {
                lock(&names).insert(name.to_owned());
            }
        })?;
    let end = Instant::now() + LISTEN;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
    drop(listening);
    let names = lock(&heard).iter().cloned().collect();
    Ok(names)
}

fn list(broker: &Broker) -> anyhow::Result<ExitCode> {
    let mut files: BTreeMap<(String, String), Vec<(String, ModelEntry)>> = BTreeMap::new();
    let workers = workers(broker)?;
    for worker in &workers {
        match sync::list_of(broker, worker) {
            Ok(entries) => {
                for entry in entries {
                    let key = (entry.folder.clone(), entry.name.clone());
                    files.entry(key).or_default().push((worker.clone(), entry));
                }
            }
            Err(error) => tracing::warn!("{worker}: {error}"),
        }
    }
    if workers.is_empty() {
        bail!("no worker is connected to NATS at {}", broker.address());
    }
    let mut text = format!("workers: {}\n", workers.join(", "));
    for ((folder, name), owners) in &files {
        let first = owners.first().and_then(|(_, entry)| entry.hash);
        let differ = owners.iter().any(|(_, entry)| entry.hash != first);
        let owner = |(worker, entry): &(String, ModelEntry)| match entry.hash {
            Some(hash) if differ => format!("{worker} ({})", &hash.to_string()[..8]),
            None => format!("{worker} (not hashed yet)"),
            Some(_) => worker.clone(),
        };
        let megabytes = owners.first().map_or(0, |(_, entry)| entry.size) as f64 / 1e6;
        let owners: Vec<String> = owners.iter().map(owner).collect();
        let _ = writeln!(
            text,
            "{folder}/{name}  {megabytes:.1} MB  {}",
            owners.join(", ")
        );
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The files of this machine, for others while this lives.
struct FileShare {
    server: Arc<ModelServer>,
    catalogue: Arc<Catalogue>,
    name: String,
    _listening: Subscription,
}

impl FileShare {
    fn open(broker: &Arc<Broker>, args: &mut ModelsArgs) -> anyhow::Result<Self> {
        let settings = FolderSettings::resolve(std::mem::take(&mut args.dirs));
        let assembly = Assembly::open(&settings)?;
        let cache = assembly.dirs.user.join("fresco-models.txt");
        let catalogue = Catalogue::start(assembly.folders.clone(), cache);
        // Names are known after the first look; contents come as they are hashed.
        catalogue.wait_newer(0, CONNECT);
        let server = ModelServer::new(
            assembly.folders.clone(),
            catalogue.clone(),
            broker.clone(),
            broker.clone(),
        );
        // Nobody else's: two machines may have processes of the same number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let name = format!("sync-{}-{now}", std::process::id());
        let subject = broker.subject(&format!("control.{name}"));
        let (answerer, answering) = (server.clone(), broker.clone());
        let listening = broker.subscribe(&subject, move |heard| {
            let answerer = answerer.clone();
            answering.serve(heard, move |request| match request {
                WorkerRequest::Models(request) => {
                    answerer.answer(request).map(WorkerAnswer::Models)
                }
                _ => Err("this process has model files only".to_owned()),
            });
        })?;
        Ok(Self {
            server,
            catalogue,
            name,
            _listening: listening,
        })
    }
}

fn sync_models(broker: Arc<Broker>, mut args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let elsewhere = args.from.is_some() && args.to.is_some();
    let here = if elsewhere {
        None
    } else {
        Some(FileShare::open(&broker, &mut args)?)
    };
    let list = |worker: Option<&String>| -> anyhow::Result<Vec<ModelEntry>> {
        match (worker, &here) {
            (Some(worker), _) => sync::list_of(&*broker, worker)
                .with_context(|| format!("cannot ask the worker {worker} for its models")),
            (None, Some(here)) => Ok(here.catalogue.entries().to_vec()),
            (None, None) => Ok(Vec::new()),
        }
    };
    let source = list(args.from.as_ref())?;
    let files = if args.all {
        lacking(&source, &list(args.to.as_ref())?, args.replace)
    } else {
        let find = |name: &String| find(&source, name, args.from.as_deref());
        args.files.iter().map(find).collect::<Result<_, _>>()?
    };
    if files.is_empty() {
        print("nothing is lacking\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let ends = match (&args.from, &args.to, &here) {
        (Some(from), None, Some(here)) => {
            let mut ends = Vec::new();
            for file in &files {
                let mut teller = Teller::new(file);
                let mut tell = |done, size| teller.tell(done, size);
                ends.push(here.server.copy_file(from, file, args.replace, &mut tell));
            }
            ends
        }
        (from, Some(to), _) => {
            let own = here.as_ref().map(|here| &here.name);
            let from = from.as_ref().or(own).context("nobody to copy from")?;
            let mut tellers: Vec<Teller> = files.iter().map(Teller::new).collect();
            let mut tell = |progress: &[CopyProgress]| {
                for (teller, progress) in tellers.iter_mut().zip(progress) {
                    if progress.end.is_none() && progress.size > 0 {
                        teller.tell(progress.done, progress.size);
                    }
                }
            };
            let ends = sync::copy_elsewhere(&*broker, from, to, &files, args.replace, &mut tell)?;
            ends.into_iter().filter_map(|one| one.end).collect()
        }
        _ => bail!("name a worker with --from or --to"),
    };
    let mut text = String::new();
    let mut failed = false;
    for (file, end) in files.iter().zip(&ends) {
        let end = match end {
            CopyEnd::Copied => "copied".to_owned(),
            CopyEnd::There => "is there already".to_owned(),
            CopyEnd::Failed(why) => {
                failed = true;
                format!("was not copied: {why}")
            }
        };
        let _ = writeln!(text, "{}/{} {end}", file.folder, file.name);
    }
    print(&text)?;
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Says now and then how far a long copy is.
struct Teller {
    name: String,
    told: Instant,
}

impl Teller {
    fn new(file: &Wanted) -> Self {
        Self {
            name: format!("{}/{}", file.folder, file.name),
            told: Instant::now(),
        }
    }

    fn tell(&mut self, done: u64, size: u64) {
        if self.told.elapsed() >= TELL {
            self.told = Instant::now();
            tracing::info!(
                "{}: {:.0} of {:.0} MB",
                self.name,
                done as f64 / 1e6,
                size as f64 / 1e6
            );
        }
    }
}

fn wanted_file(entry: &ModelEntry) -> Wanted {
    Wanted {
        folder: entry.folder.clone(),
        name: entry.name.clone(),
    }
}

/// What the second list has not; with `replace` also what it has with another content.
fn lacking(source: &[ModelEntry], there: &[ModelEntry], replace: bool) -> Vec<Wanted> {
    let key = |entry: &ModelEntry| (entry.folder.clone(), entry.name.clone());
    let there: BTreeMap<_, _> = there.iter().map(|entry| (key(entry), entry)).collect();
    let lacks = |entry: &&ModelEntry| match there.get(&key(entry)) {
        None => true,
        Some(other) => replace && (other.size != entry.size || other.hash != entry.hash),
    };
    source.iter().filter(lacks).map(wanted_file).collect()
}

/// The file that is meant by a name with or without its folder.
fn find(source: &[ModelEntry], name: &str, owner: Option<&str>) -> anyhow::Result<Wanted> {
    let whole = |entry: &&ModelEntry| {
        let named = name.split_once('/');
        named == Some((entry.folder.as_str(), entry.name.as_str()))
    };
    if let Some(entry) = source.iter().find(whole) {
        return Ok(wanted_file(entry));
    }
    let found: Vec<&ModelEntry> = source.iter().filter(|entry| entry.name == name).collect();
    let owner = owner.unwrap_or("this machine");
    match found[..] {
        [one] => Ok(wanted_file(one)),
        [] => bail!("{owner} has no model file {name}; `fresco models list` shows what there is"),
        _ => {
            let folders: Vec<&str> = found.iter().map(|entry| entry.folder.as_str()).collect();
            bail!(
                "{name} is in several folders of {owner}: write one of {} before it, with a slash between",
                folders.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<ModelEntry> {
        let one = |word: &str| {
            let (file, size) = word.split_once('=').unwrap();
            let (folder, name) = file.split_once('/').unwrap();
            ModelEntry {
                folder: folder.into(),
                name: name.into(),
                size: size.parse().unwrap(),
                hash: None,
            }
        };
        text.split_whitespace().map(one).collect()
    }

    fn shown(files: &[Wanted]) -> String {
        let one = |file: &Wanted| format!("{}/{}", file.folder, file.name);
        files.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn all_is_what_the_other_lacks() {
        let source = entries("loras/a=1 loras/s/b=2 vae/a=3");
        let there = entries("loras/a=1 vae/a=4");
        assert_eq!(shown(&lacking(&source, &there, false)), "loras/s/b");
        assert_eq!(shown(&lacking(&source, &there, true)), "loras/s/b vae/a");
    }

    #[test]
    fn names_are_found_with_or_without_their_folder() {
        let source = entries("loras/a=1 loras/s/b=2 vae/a=3");
        let look = |name: &str| match find(&source, name, None) {
            Ok(file) => shown(&[file]),
            Err(error) => error.to_string(),
        };
        assert_eq!(look("vae/a"), "vae/a");
        assert_eq!(look("s/b"), "loras/s/b");
        assert!(look("a").contains("several folders of this machine: write one of loras, vae"));
        assert!(look("c").contains("no model file c"));
    }
}
