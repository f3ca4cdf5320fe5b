//! `fresco serve`: puts the rooms together, listens, and ends in order.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fresco_cluster::Broker;
use fresco_engine::store::{JobSource, JobStore, Limits, StorePath};
use fresco_engine::{Engine, EngineConfig};
use fresco_files::Dirs;
use fresco_files::dirs::check_writable;
use fresco_graph::PromptLimits;
use fresco_server::serve::{Plain, serve as listen};
use fresco_server::{
    App, Config, Hub, LogRing, Metrics, Parts, REFERENCE_VERSION, Templates, Versions,
};

use crate::assembly::Assembly;
use crate::front::{ClusterParts, ForFronts, WithNeighbours};
use crate::front_end::Pages;
use crate::python::TemplateFiles;
use crate::settings::{ServeSettings, UsageError};
use crate::signals::StopSignals;
use crate::tls::Tls;
use crate::workers;

/// Name of our database in the user folder.
const DATABASE: &str = "fresco.db";
/// How long a node may ignore an interrupt before its prompt is given up.
pub(crate) const HANG_GRACE: Duration = Duration::from_secs(10);
/// How long the running node gets to notice that the program ends; its prompt is queued again either way.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(5);
/// Age at which an unfinished file belongs to nobody any more.
const STALE: Duration = Duration::from_hours(1);
/// How long file work that is still going on may hold up the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// Threads for sockets. Nodes and the database have their own; on a small machine one is enough, and a second would
/// mostly wake up to find nothing to do.
const SOCKET_THREADS: usize = 4;
/// How long a port may still be held by a program that ends.
const PORT_PATIENCE: Duration = Duration::from_secs(5);
/// How long prompts from before wait for packs.
const PACKS_PATIENCE: Duration = Duration::from_mins(2);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

pub(crate) fn serve(
    settings: ServeSettings,
    logs: LogRing,
    argv: Vec<String>,
) -> anyhow::Result<ExitCode> {
    if let Some(token) = &settings.token {
        // The line with the address to open carries it, and clients can read the log.
        logs.hide(token);
    }
    tracing::info!("Fresco {}", env!("CARGO_PKG_VERSION"));
    tracing::info!("ComfyUI version: {REFERENCE_VERSION}");
    settings.exec.memory.register_devices()?;
    let mut assembly = Assembly::open(&settings.folders)?;
    check_token_file(&settings, &assembly.dirs)?;
    let tls = settings
        .tls
        .as_ref()
        .map(|(key, certificate)| Tls::load(key, certificate))
        .transpose()?;
    // Before anything is changed: whoever cannot have the port or the database leaves no trace.
    let listeners = if settings.quick_test {
        Vec::new()
    } else {
        bind(&settings.listen, settings.port)?
    };
    // Here, so that it is also dropped here, outside of the runtime below.
    let broker = settings.nats.as_ref().map(Broker::connect).transpose();
    let broker = broker.map_err(|error| UsageError(error.to_string()))?;
    check_folders(&assembly.dirs)?;
    assembly.dirs.create_user()?;
    let cluster = broker
        .clone()
        .map(|broker| ClusterParts::new(broker, &assembly));
    assembly.cluster = cluster.as_ref().map(|cluster| cluster.models.clone());
    let database = database(&settings, &assembly.dirs);
    let limits = Limits {
        max_pending: settings.max_queue,
        history_bytes: settings.max_history_size,
        ..Limits::default()
    };
    let store = JobStore::open(&database, limits)?;
    assembly.dirs.create_input();
    if let Err(error) = assembly.dirs.clear_temp() {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the temp folder is not emptied"
        );
    }
    clean_up(&assembly.dirs);
    let pages = Pages::find(
        &settings.front_end,
        settings.python.as_deref(),
        &assembly.dirs,
    );
    let threads = std::thread::available_parallelism()
        .map_or(1, |cores| cores.get() / 2)
        .clamp(1, SOCKET_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("sockets")
        .enable_all()
        .build()
        .context("cannot start the threads for sockets")?;
    let ended = runtime.block_on(assembled(
        settings, assembly, cluster, store, pages, listeners, tls, logs, argv,
    ));
    // A picture that is being decoded for a client that is gone would hold the end up for a minute. Files are written
    // under another name first, so nothing is left half done.
    runtime.shutdown_timeout(FAREWELL);
    drop(broker);
    ended
}

/// Whoever came in with a cookie can read the files of these folders, and must not find the token there.
fn check_token_file(settings: &ServeSettings, dirs: &Dirs) -> Result<(), UsageError> {
    let Some(file) = settings.token_file.as_ref() else {
        return Ok(());
    };
    let Ok(real) = file.canonicalize() else {
        return Ok(());
    };
    for folder in [&dirs.input, &dirs.output, &dirs.temp, &dirs.user] {
        if folder.canonicalize().is_ok_and(|f| real.starts_with(f)) {
            return Err(UsageError(format!(
                "--token-file: {} is in {}, whose files clients can read; keep it elsewhere",
                file.display(),
                folder.display()
            )));
        }
    }
    Ok(())
}

/// Folders without which every prompt would fail at its end. Uploads alone need the input folder, which may be read-only.
fn check_folders(dirs: &Dirs) -> anyhow::Result<()> {
    for (what, folder, flag) in [
        ("save pictures", &dirs.output, "--output-directory"),
        (
            "keep previews and large requests",
            &dirs.temp,
            "--temp-directory",
        ),
    ] {
        check_writable(folder)
            .with_context(|| format!("cannot {what}; choose another folder with {flag}"))?;
    }
    Ok(())
}

/// Removes what a killed process left half written. On the side: looking through a large folder takes its time.
fn clean_up(dirs: &Dirs) {
    let folders = [dirs.output.clone(), dirs.input.clone(), dirs.user.clone()];
    let work = move || {
        for folder in folders {
            fresco_files::write::clean_stale(&folder, STALE);
        }
    };
    let started = std::thread::Builder::new()
        .name("clean-up".to_owned())
        .spawn(work);
    if let Err(error) = started {
        tracing::warn!(%error, "unfinished files stay where they are");
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "the parts of the whole program meet here, once"
)]
async fn assembled(
    settings: ServeSettings,
    assembly: Assembly,
    cluster: Option<ClusterParts>,
    store: JobStore,
    pages: Pages,
    listeners: Vec<TcpListener>,
    tls: Option<Tls>,
    logs: LogRing,
    argv: Vec<String>,
) -> anyhow::Result<ExitCode> {
    let config = config(&settings, &assembly.dirs, pages, argv);
    let metrics = Arc::new(Metrics::default());
    let hub = Hub::new(&config.limits, metrics.clone());
    assembly.dirs.create_temp()?;
    let (waiting, paused) = (store.remaining(), store.paused());
    let models = workers::registries(&settings.workers, &settings.exec.memory)?;
    let (executor, workers) = workers::workers(&settings, &assembly, &models, hub.clone())?;
    let packs = packs_host(&settings, &assembly);
    let late_engine = Arc::new(std::sync::OnceLock::new());
    let surroundings: Arc<dyn fresco_python::Outside> = Arc::new(crate::packs::Surroundings {
        registry: assembly.registry.clone(),
        listings: assembly.listings.clone(),
        folders: assembly.folders.clone(),
        resources: executor.resources.clone(),
        sink: hub.clone(),
        engine: late_engine.clone(),
        models: Some(models.clone()),
        listed: std::sync::Mutex::default(),
    });
    packs.start(&surroundings);
    if waiting > 0 && packs.is_starting() {
        // Prompts from before may need them, and run at once.
        let packs = packs.clone();
        let wait = move || packs.wait_ready(PACKS_PATIENCE);
        tokio::task::spawn_blocking(wait)
            .await
            .context("cannot wait for packs")?;
    }
    for one in models.iter() {
        let listener = hub.clone();
        let tell = move |event: &fresco_memory::Event| listener.memory_event(event);
        one.registry.on_event(Arc::new(tell));
    }
    let engine = Engine::start(EngineConfig {
        executor,
        workers,
        listings: assembly.listings.clone(),
        jobs: Arc::new(store.clone()),
        limits: PromptLimits::default(),
        hang_grace: HANG_GRACE,
    })
    .context("cannot start the worker")?;
    let _ = late_engine.set(engine.clone());
    let assembly = Arc::new(assembly);
    let front = match cluster {
        None => None,
        Some(cluster) => {
            let (assembly, engine, store) = (assembly.clone(), engine.clone(), store.clone());
            let join = move || cluster.join(&assembly, &engine, store);
            let joined = tokio::task::spawn_blocking(join).await;
            Some(joined.context("cannot join the cluster")??)
        }
    };
    if waiting > 0 {
        tracing::info!("{waiting} prompts from before are queued again");
    }
    if paused {
        tracing::warn!(
            "the queue is paused: prompts wait until somebody resumes it on the page or with POST /fresco/queue"
        );
    }
    let app = App::new(Parts {
        config,
        engine: engine.clone(),
        store,
        models,
        hub,
        metrics,
        dirs: assembly.dirs.clone(),
        folders: assembly.folders.clone(),
        logs,
        memory: crate::memory_guard::memory_guard(),
        describe_model: Arc::new(crate::model_file::describe),
        packs: Arc::new(crate::packs::ServedPacks(packs.clone())),
        far: front.clone(),
    });
    if let Some(front) = &front {
        front.answer_fronts(Arc::new(ForFronts {
            app: app.clone(),
            runtime: tokio::runtime::Handle::current(),
        }));
        let runtime = tokio::runtime::Handle::current();
        let neighbours = WithNeighbours::start(&app, front, runtime);
        front.meet_neighbours(neighbours.context("cannot start a thread")?);
    }
    if !settings.quick_test {
        let signals = StopSignals::listen();
        announce(&settings, &listeners);
        let listeners = listeners
            .into_iter()
            .map(tokio::net::TcpListener::from_std)
            .collect::<Result<Vec<_>, _>>()
            .context("cannot listen")?;
        let (draining, patience) = (engine.clone(), settings.drain);
        let counted = engine.clone();
        let signal = async move {
            signals.told_to_stop(move || counted.running().len()).await;
            if !patience.is_zero() {
                drain(draining, patience).await;
            }
        };
        match tls {
            Some(tls) => listen(listeners, Arc::new(tls), app, signal).await,
            None => listen(listeners, Arc::new(Plain), app, signal).await,
        }
    }
    // Node code may hold the worker for a while; the sockets' threads are free for it.
    tokio::task::spawn_blocking(move || {
        engine.stop(STOP_GRACE);
        if let Some(front) = front {
            front.stop();
        }
        packs.stop();
    })
    .await
    .context("the engine did not stop")?;
    tracing::info!("Stopped server");
    if let Err(error) = assembly.dirs.clear_temp() {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the temp folder is not emptied"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// How long sockets stay open after the last prompt ended, so that its end is on its way before they close.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Lets what runs come to its end, with sockets open: whoever waits for it hears of it.
async fn drain(engine: Engine, patience: Duration) {
    let running = engine.running().len();
    tracing::info!(
        "told to stop: {running} running prompts have {:.0} s to end; those that wait run after the next start",
        patience.as_secs_f64()
    );
    let work = move || engine.drain(patience);
    match tokio::task::spawn_blocking(work).await {
        Ok(true) => tracing::info!("nothing runs any more"),
        Ok(false) => tracing::warn!("some prompts did not end in time; they are queued again"),
        Err(error) => tracing::error!("cannot wait for running prompts: {error}"),
    }
    tokio::time::sleep(LAST_WORDS).await;
}

fn packs_host(settings: &ServeSettings, assembly: &Assembly) -> Arc<fresco_python::Hosts> {
    let mut flags = crate::packs::flags(&settings.exec);
    flags.insert("port".into(), settings.port.into());
    flags.insert("multi_user".into(), settings.multi_user.into());
    let told = crate::packs::HostSettings {
        flags,
        on_cpu: settings.exec.memory.on_cpu(),
        address: settings
            .listen
            .first()
            .map(ToString::to_string)
            .unwrap_or_default(),
        port: settings.port,
    };
    crate::packs::host(
        assembly,
        settings.python.as_deref(),
        &settings.exec.packs,
        &settings.exec.pack_limits,
        told,
    )
}

/// Where queue and history are.
pub(crate) fn database(settings: &ServeSettings, dirs: &Dirs) -> StorePath {
    settings
        .database
        .clone()
        .unwrap_or_else(|| StorePath::File(dirs.user.join(DATABASE)))
}

fn config(settings: &ServeSettings, dirs: &Dirs, pages: Pages, argv: Vec<String>) -> Config {
    Config {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv,
        max_upload: settings.max_upload,
        max_upload_total: settings.max_upload_total,
        limits: fresco_server::Limits {
            picture_memory: settings.picture_memory,
            ..fresco_server::Limits::default()
        },
        max_upload_given: settings.max_upload_given,
        cors: settings.cors.clone(),
        compress: settings.compress,
        block_external: settings.block_external,
        token: settings.token.clone(),
        hosts: settings.hosts.clone(),
        tls: settings.tls.is_some(),
        multi_user: settings.multi_user,
        front_end: pages.shown,
        templates: match pages.templates {
            None => Templates::None,
            Some(TemplateFiles::Folder(folder)) => Templates::Directory(folder),
            Some(TemplateFiles::Files(files)) => Templates::Files(files.into_iter().collect()),
        },
        docs: pages.docs,
        loaded_packs: packs(dirs),
        // What is installed is what is required: there is no list of our own that could disagree.
        versions: Versions {
            required_frontend: pages.version,
            installed_templates: pages.templates_version.clone(),
            required_templates: pages.templates_version,
            ..Versions::default()
        },
        ..Config::default()
    }
}

/// Folders of packs, whose example workflows can be opened whether they load or not.
fn packs(dirs: &Dirs) -> Vec<String> {
    let mut names: Vec<String> = dirs
        .custom_nodes
        .iter()
        .flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten())
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            !name.starts_with('.') && !name.ends_with(".disabled") && name != "__pycache__"
        })
        .collect();
    names.sort_unstable();
    names
}

/// One socket an address. An IPv6 socket takes IPv6 only, so that `0.0.0.0` and `::` can stand side by side.
pub(crate) fn bind(addresses: &[IpAddr], port: u16) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for ip in addresses {
        let address = SocketAddr::new(*ip, port);
        match bind_patiently(address) {
            Ok(listener) => listeners.push(listener),
            // A machine without IPv6 that was asked for all addresses.
            Err(error) if ip.is_ipv6() && ip.is_unspecified() && !listeners.is_empty() => {
                tracing::warn!("not listening on {address}: {error}");
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                anyhow::bail!("{address} is in use by another program; choose another with --port");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot listen on {address}")),
        }
    }
    Ok(listeners)
}

/// Waits for a port that a program before this one is about to give up.
fn bind_patiently(address: SocketAddr) -> std::io::Result<TcpListener> {
    let began = Instant::now();
    loop {
        match bind_one(address) {
            Err(error)
                if error.kind() == std::io::ErrorKind::AddrInUse
                    && began.elapsed() < PORT_PATIENCE =>
            {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            other => return other,
        }
    }
}

fn bind_one(address: SocketAddr) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // On Unix this lets a restart have the port at once; on Windows it would let two programs share it.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn announce(settings: &ServeSettings, listeners: &[TcpListener]) {
    let scheme = if settings.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .filter_map(|l| l.local_addr().ok())
        .collect();
    let url = |address: SocketAddr| match &settings.token {
        Some(token) => format!("{scheme}://{address}/?token={token}"),
        None => format!("{scheme}://{address}"),
    };
    if settings.announce {
        tracing::info!("Starting server");
        for address in &addresses {
            tracing::info!("To see the GUI go to: {}", url(*address));
        }
        if let Some(open) = addresses.iter().find(|a| a.ip().is_unspecified())
            && let Some(ip) = outside_address()
        {
            tracing::info!(
                "From other machines: {}",
                url(SocketAddr::new(ip, open.port()))
            );
        }
    }
    if settings.launch
        && let Some(first) = addresses.first()
    {
        let local = if first.ip().is_unspecified() {
            IpAddr::from([127, 0, 0, 1])
        } else {
            first.ip()
        };
        launch(&url(SocketAddr::new(local, first.port())));
    }
}

/// The address this machine would use to talk to others. Nothing is sent: connecting a datagram socket only picks a route.
fn outside_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

fn launch(url: &str) {
    let (program, arguments): (&str, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(windows) {
        ("rundll32", &["url.dll,FileProtocolHandler"])
    } else {
        ("xdg-open", &[])
    };
    let started = Command::new(program)
        .args(arguments)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        tracing::warn!("cannot open a browser: {error}");
    }
}

/// Shown by `doctor`.
pub(crate) fn database_path(path: &StorePath) -> Option<&Path> {
    match path {
        StorePath::File(path) => Some(path),
        StorePath::Memory => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let taken = bind(&[IpAddr::from([127, 0, 0, 1])], 0).unwrap();
        let port = taken[0].local_addr().unwrap().port();
        let error = bind(&[IpAddr::from([127, 0, 0, 1])], port).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }

    #[test]
    fn packs_are_folders_that_are_not_switched_off() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::under(dir.path());
        for name in ["b", "a", "old.disabled", ".git", "__pycache__"] {
            std::fs::create_dir_all(dirs.custom_nodes[0].join(name)).unwrap();
        }
        std::fs::write(dirs.custom_nodes[0].join("file.py"), "").unwrap();
        assert_eq!(packs(&dirs), ["a", "b"]);
    }
}
