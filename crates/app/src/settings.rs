//! The command line turned into plain settings, checked once. What cannot be meant is a usage error here, not a surprise
//! later.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fresco_cluster::BrokerSettings;
use fresco_engine::Strategy;
use fresco_engine::store::StorePath;
use fresco_files::DirOptions;
use fresco_memory::{ModelRegistry, ReserveRule, Reserves, VramState, amount};
use fresco_tensor::Device;
use fresco_tensor::cuda::{DriverState, driver_state};
use fresco_tensor::device::DeviceError;
use fresco_tensor::gpu::{Format, FormatChoices};

use crate::cli::{
    DirArgs, ExecArgs, Fast, FormatArgs, FrontEndChoice, MemoryArgs, MergeChoice, NatsArgs,
    PageArgs, PreviewMethod, ServeArgs,
};
use crate::workers::WorkerGroup;
use crate::{layers, starter};

/// The sentinel of the reference: the front-end it was installed with.
const BUNDLED: &str = "comfyanonymous/ComfyUI@latest";

/// What was typed cannot be meant. Shown like a parse error, exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// The NVIDIA GPU of a number, opened at the first time.
fn cuda(number: u32) -> Result<Device, DeviceError> {
    Device::open(&format!("cuda:{number}"))
}

fn usage<T>(text: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError(text.into()))
}

/// Directories and where else to find models.
#[derive(Debug)]
pub(crate) struct FolderSettings {
    pub(crate) dirs: DirOptions,
    pub(crate) extra_paths: Vec<PathBuf>,
    /// The folder of the starter model.
    pub(crate) starter: Option<PathBuf>,
}

impl FolderSettings {
    pub(crate) fn resolve(args: DirArgs) -> Self {
        let base = args.base_directory.unwrap_or_else(layers::default_base);
        Self {
            dirs: DirOptions {
                // Fresco is one file and has no folder of its own: what the reference keeps beside its program is in
                // the base directory.
                program: base.clone(),
                base: Some(base),
                output: args.output_directory,
                input: args.input_directory,
                temp: args.temp_directory,
                user: args.user_directory,
            },
            extra_paths: args.extra_model_paths_config,
            starter: if args.no_starter {
                None
            } else {
                starter::find()
            },
        }
    }
}

/// How prompts run.
#[derive(Debug)]
pub(crate) struct ExecSettings {
    pub(crate) cache: Strategy,
    pub(crate) preview_method: &'static str,
    pub(crate) preview_size: usize,
    pub(crate) disable_metadata: bool,
    pub(crate) use_ffmpeg: bool,
    /// Bytes.
    pub(crate) max_prompt_memory: u64,
    pub(crate) memory: MemorySettings,
    pub(crate) packs: fresco_python::Wanted,
    pub(crate) pack_limits: PackLimits,
}

/// What the process of the packs may do.
#[derive(Clone, Debug)]
pub(crate) struct PackLimits {
    /// Bytes; none: no limit.
    pub(crate) memory: Option<u64>,
    /// For the import of one pack.
    pub(crate) import: Duration,
    /// Variables that it sees whatever they are called.
    pub(crate) environment: Vec<String>,
    /// Which packs have a process of their own.
    pub(crate) apart: fresco_python::Apart,
    /// They may write only where it is meant for them.
    pub(crate) fenced: bool,
}

impl Default for PackLimits {
    fn default() -> Self {
        Self {
            memory: None,
            import: Duration::from_mins(2),
            environment: Vec::new(),
            apart: fresco_python::Apart::default(),
            fenced: false,
        }
    }
}

/// Where models are, and for how long.
#[derive(Debug)]
pub(crate) struct MemorySettings {
    /// What was asked for; whether there is an accelerator at all is another question.
    pub(crate) state: VramState,
    pub(crate) gpu_only: bool,
    pub(crate) cpu_vae: bool,
    /// Bytes in place of the usual ones.
    pub(crate) reserve: Option<u64>,
    pub(crate) inference_reserve: Option<u64>,
    pub(crate) smart: bool,
    /// Layers fetched ahead.
    pub(crate) streams: usize,
    pub(crate) unload_after: Option<Duration>,
    /// Main memory that should stay free.
    pub(crate) host_headroom: Option<u64>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) merge_dtype: MergeChoice,
    pub(crate) lora_on_the_fly: bool,
    /// Which GPUs are used, and in which numbers they compute.
    pub(crate) gpus: GpuChoice,
    /// The primary one, where it is not the first.
    pub(crate) default_gpu: Option<u32>,
    pub(crate) pinned: bool,
    pub(crate) formats: FormatChoices,
    pub(crate) fp8_products: bool,
    /// Numbers and bytes of simulated devices.
    pub(crate) sim_devices: Vec<(u32, u64)>,
    pub(crate) sim_peer: bool,
}

/// Which GPUs are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    None,
    All,
    These(Vec<u32>),
}

impl MemorySettings {
    fn resolve(args: &MemoryArgs, cache: Strategy) -> Self {
        let state = match args {
            MemoryArgs { cpu: true, .. } => VramState::Disabled,
            MemoryArgs { novram: true, .. } => VramState::NoVram,
            MemoryArgs { lowvram: true, .. } => VramState::LowVram,
            MemoryArgs { highvram: true, .. } | MemoryArgs { gpu_only: true, .. } => {
                VramState::HighVram
            }
            _ => VramState::NormalVram,
        };
        // As with the reference, the flag that switches off wins.
        let streams = match (args.disable_async_offload, args.async_offload) {
            (true, _) => 0,
            (false, given) => usize::from(given.unwrap_or(2)),
        };
        let mut sim_devices = args.sim_device.clone();
        // The primary one is the one with the lowest number, in whatever order they were given.
        sim_devices.sort_by_key(|(number, _)| *number);
        let gpus = match (state, args.cuda_device.as_slice()) {
            (VramState::Disabled, _) => GpuChoice::None,
            // Whoever simulates devices wants to see what those do.
            (_, []) if !sim_devices.is_empty() => GpuChoice::None,
            (_, []) => GpuChoice::All,
            (_, numbers) => GpuChoice::These(numbers.to_vec()),
        };
        if state == VramState::Disabled {
            sim_devices.clear();
        }
        Self {
            state,
            gpu_only: args.gpu_only,
            cpu_vae: args.cpu_vae,
            reserve: args.reserve_vram,
            inference_reserve: args.inference_reserve,
            smart: !args.disable_smart_memory,
            streams,
            unload_after: args.unload_after,
            host_headroom: match cache {
                Strategy::RamPressure(gb) => Some(amount::gib(gb).unwrap_or(u64::MAX)),
                _ => None,
            },
            log: args.memory_log.clone(),
            merge_dtype: args.lora_merge_dtype,
            lora_on_the_fly: args.lora_on_the_fly,
            gpus,
            default_gpu: args.default_device,
            pinned: !args.disable_pinned_memory,
            formats: formats(&args.formats),
            fp8_products: fp8_products(args.formats.fast.as_deref()),
            sim_devices,
            sim_peer: !args.sim_no_peer,
        }
    }

    /// Makes the devices, once for the process.
    pub(crate) fn register_devices(&self) -> Result<(), UsageError> {
        fresco_tensor::gpu::allow_pinned_memory(self.pinned);
        if let GpuChoice::These(numbers) = &self.gpus {
            for &number in numbers {
                cuda(number).map_err(|e| UsageError(e.to_string()))?;
            }
        }
        for &(number, bytes) in &self.sim_devices {
            let made = Device::register_sim(number, bytes);
            let device = made.map_err(|e| UsageError(e.to_string()))?;
            device.set_peer_access(self.sim_peer);
        }
        Ok(())
    }

    /// The GPUs that are used, and why others are not.
    pub(crate) fn gpus(&self) -> (Vec<Device>, Vec<String>) {
        let mut numbers = match &self.gpus {
            GpuChoice::None => Vec::new(),
            GpuChoice::These(numbers) => numbers.clone(),
            GpuChoice::All => match driver_state() {
                DriverState::Missing(_) => Vec::new(),
                DriverState::Present { devices, .. } => (0..devices).collect(),
            },
        };
        let (mut found, mut reasons) = (Vec::new(), Vec::new());
        if let Some(first) = self.default_gpu.filter(|_| !numbers.is_empty()) {
            if numbers.contains(&first) {
                // The others stay in their order.
                numbers.sort_by_key(|number| *number != first);
            } else {
                reasons.push(format!(
                    "--default-device {first} is none of those that are used: {numbers:?}"
                ));
            }
        }
        for number in numbers {
            match cuda(number) {
                Ok(device) => {
                    device.choose_formats(self.formats);
                    found.push(device);
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        (found, reasons)
    }

    /// The accelerators that were made, the primary one first.
    pub(crate) fn accelerators(&self) -> Vec<Device> {
        let (gpus, reasons) = self.gpus();
        for reason in reasons {
            tracing::warn!("A GPU is not used: {reason}");
        }
        let numbers = self.sim_devices.iter().map(|(number, _)| *number);
        let sims = numbers.filter_map(|n| Device::sim(n).ok());
        gpus.into_iter().chain(sims).collect()
    }

    /// Whether everything is to be computed on the processor.
    pub(crate) fn on_cpu(&self) -> bool {
        self.state == VramState::Disabled
    }

    /// A registry of these devices, which must have been made before.
    pub(crate) fn registry(&self) -> ModelRegistry {
        let accelerators = self.accelerators();
        ModelRegistry::new(self.registry_settings(&accelerators), accelerators)
    }

    pub(crate) fn registry_settings(&self, accelerators: &[Device]) -> fresco_memory::Settings {
        fresco_memory::Settings {
            state: self.state.on(accelerators.is_empty()),
            reserves: self.reserves(accelerators.first()),
            streams: if accelerators.is_empty() {
                0
            } else {
                self.streams
            },
            smart: self.smart,
            unload_after: self.unload_after,
            host_headroom: self.host_headroom,
            gpu_only: self.gpu_only,
            cpu_vae: self.cpu_vae,
        }
    }

    /// What is not for weights on the primary device.
    fn reserves(&self, primary: Option<&Device>) -> Reserves {
        let total = primary.and_then(Device::capacity).unwrap_or(0);
        let mut reserves = Reserves::new(ReserveRule::here(), total, true);
        reserves.extra = self.reserve.unwrap_or(reserves.extra);
        reserves.inference = self.inference_reserve.unwrap_or(reserves.inference);
        reserves
    }
}

/// The formats that flags ask for: those for all networks count where none is named for a part.
fn formats(args: &FormatArgs) -> FormatChoices {
    let chosen = |[f32, f16, bf16]: [bool; 3]| match (f32, f16, bf16) {
        (true, ..) => Some(Format::F32),
        (_, true, _) => Some(Format::F16),
        (.., true) => Some(Format::Bf16),
        _ => None,
    };
    let all = chosen([args.force_fp32, args.force_fp16, false]);
    FormatChoices {
        diffusion: chosen([args.fp32_unet, args.fp16_unet, args.bf16_unet]).or(all),
        autoencoder: chosen([args.fp32_vae, args.fp16_vae, args.bf16_vae]).or(all),
        text: chosen([args.fp32_text_enc, args.fp16_text_enc, args.bf16_text_enc]).or(all),
    }
}

/// Whether `--fast` asks for them, by name or without any.
fn fp8_products(fast: Option<&[Fast]>) -> bool {
    fast.is_some_and(|fast| fast.is_empty() || fast.contains(&Fast::Fp8MatrixMult))
}

/// Bytes that the values of one prompt may take.
fn prompt_memory(gigabytes: Option<f64>) -> Result<u64, UsageError> {
    const GB: f64 = (1u64 << 30) as f64;
    match gigabytes {
        Some(gb) if gb > 0.0 => Ok((gb * GB) as u64),
        Some(_) => usage("--max-prompt-memory must be above 0"),
        None => Ok(fresco_tensor::total_memory().map_or(u64::MAX, |total| total / 4 * 3)),
    }
}

impl ExecSettings {
    pub(crate) fn resolve(args: &ExecArgs) -> Result<Self, UsageError> {
        let cache = match (args.cache_lru, args.cache_ram) {
            (Some(n), _) if n > 0 => Strategy::Lru(n),
            (_, Some(gb)) if gb.is_nan() => return usage("--cache-ram must be a number"),
            (_, Some(gb)) if gb > 0.0 => Strategy::RamPressure(gb),
            _ if args.cache_none => Strategy::None,
            _ => Strategy::Classic,
        };
        Ok(Self {
            cache,
            preview_method: match args.preview_method {
                PreviewMethod::None => "none",
                PreviewMethod::Auto => "auto",
                PreviewMethod::Latent2rgb => "latent2rgb",
                PreviewMethod::Taesd => "taesd",
            },
            preview_size: usize::from(args.preview_size),
            disable_metadata: args.disable_metadata,
            use_ffmpeg: args.use_ffmpeg,
            max_prompt_memory: prompt_memory(args.max_prompt_memory)?,
            memory: MemorySettings::resolve(&args.memory, cache),
            packs: fresco_python::Wanted {
                none: args.disable_all_custom_nodes,
                except: args.whitelist_custom_nodes.clone(),
            },
            pack_limits: PackLimits {
                memory: args
                    .max_pack_memory
                    .filter(|gb| gb.is_finite() && *gb > 0.0)
                    .map(|gb| (gb * f64::from(1 << 30)) as u64),
                import: Duration::from_secs(args.pack_import_seconds.max(1)),
                environment: args.pack_env.clone(),
                apart: fresco_python::Apart {
                    all: args.isolate_packs.iter().any(|name| name == "all"),
                    names: args
                        .isolate_packs
                        .iter()
                        .filter(|name| *name != "all")
                        .cloned()
                        .collect(),
                },
                fenced: args.fence_packs,
            },
        })
    }
}

/// What `/` shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrontEnd {
    /// Our own page.
    Page,
    Status,
    /// The official editor, from an installed Python package.
    Installed,
    Directory(PathBuf),
    /// `owner/repo@version`, downloaded earlier.
    Downloaded {
        folder: String,
        version: String,
    },
}

/// Everything `serve` needs.
#[derive(Debug)]
pub(crate) struct ServeSettings {
    pub(crate) folders: FolderSettings,
    pub(crate) exec: ExecSettings,
    pub(crate) listen: Vec<IpAddr>,
    pub(crate) port: u16,
    pub(crate) token: Option<String>,
    /// Where the token was read from.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) hosts: Vec<String>,
    /// Key and certificate.
    pub(crate) tls: Option<(PathBuf, PathBuf)>,
    pub(crate) cors: Option<String>,
    pub(crate) max_upload: u64,
    pub(crate) max_upload_total: u64,
    pub(crate) picture_memory: u64,
    pub(crate) max_upload_given: bool,
    pub(crate) compress: bool,
    pub(crate) block_external: bool,
    pub(crate) multi_user: bool,
    pub(crate) announce: bool,
    pub(crate) quick_test: bool,
    pub(crate) front_end: FrontEnd,
    pub(crate) python: Option<PathBuf>,
    pub(crate) launch: bool,
    /// `None`: beside the user's files.
    pub(crate) database: Option<StorePath>,
    pub(crate) max_queue: usize,
    /// Bytes.
    pub(crate) max_history_size: u64,
    /// Who runs prompts on which devices; empty: one worker on all of them.
    pub(crate) workers: Vec<WorkerGroup>,
    /// How long running prompts may go on when the program is told to stop.
    pub(crate) drain: Duration,
    /// Where workers on other machines are met; none: nowhere.
    pub(crate) nats: Option<BrokerSettings>,
}

/// The NATS server that was named, if one was. `name`: what its lists show.
pub(crate) fn broker(args: &NatsArgs, name: &str) -> Result<Option<BrokerSettings>, UsageError> {
    let Some(url) = args.nats.as_deref().map(str::trim) else {
        return match (&args.nats_creds, &args.nats_ca) {
            (None, None) => Ok(None),
            _ => usage(
                "--nats-creds and --nats-ca say how to reach a NATS server; name it with --nats",
            ),
        };
    };
    if url.is_empty() {
        return usage("--nats: write the address of a NATS server, like nats://127.0.0.1:4222");
    }
    Ok(Some(BrokerSettings {
        url: url.to_owned(),
        credentials: args.nats_creds.clone(),
        authority: args.nats_ca.clone(),
        prefix: args.nats_prefix.clone(),
        name: name.to_owned(),
    }))
}

impl ServeSettings {
    pub(crate) fn resolve(args: ServeArgs) -> Result<Self, UsageError> {
        let ServeArgs {
            network,
            page,
            dirs,
            exec,
            store,
            workers,
            nats,
            log: _,
        } = args;
        let listen = addresses(&network.listen)?;
        let token = token(network.token, network.token_file.as_deref())?;
        if let Some(open) = listen.iter().find(|ip| !ip.to_canonical().is_loopback()) {
            check_secret(open, token.as_deref())?;
        }
        let max_upload = megabytes(
            "--max-upload-size",
            network.max_upload_size.unwrap_or(100.0),
        )?;
        let total = megabytes(
            "--max-upload-total",
            network.max_upload_total.unwrap_or(1024.0),
        )?;
        if network.max_upload_total.is_some() && total < max_upload {
            return usage(
                "--max-upload-total is less than --max-upload-size: no request of that size could come in",
            );
        }
        let picture_memory = megabytes(
            "--max-picture-memory",
            network.max_picture_memory.unwrap_or(2048.0),
        )?;
        let front_end = front_end(&page)?;
        let launch =
            (page.auto_launch || page.windows_standalone_build) && !page.disable_auto_launch;
        Ok(Self {
            folders: FolderSettings::resolve(dirs),
            exec: ExecSettings::resolve(&exec)?,
            listen,
            port: network.port,
            token,
            token_file: network.token_file,
            hosts: network.allow_host,
            tls: network.tls_keyfile.zip(network.tls_certfile),
            cors: network.enable_cors_header,
            max_upload,
            max_upload_total: total.max(max_upload),
            picture_memory,
            max_upload_given: network.max_upload_size.is_some(),
            compress: network.enable_compress_response_body,
            block_external: page.disable_api_nodes,
            multi_user: network.multi_user,
            announce: !network.dont_print_server,
            quick_test: network.quick_test_for_ci,
            front_end,
            python: page.python,
            launch,
            database: store.database_url.as_deref().map(database).transpose()?,
            max_queue: store.max_queue,
            workers: WorkerGroup::all(&workers.workers)?,
            nats: broker(&nats, "fresco front")?,
            drain: workers.drain.unwrap_or_default(),
            max_history_size: store.max_history_size.saturating_mul(1 << 20),
        })
    }
}

/// Megabytes (of 2^20 bytes) as bytes.
fn megabytes(flag: &str, amount: f64) -> Result<u64, UsageError> {
    if amount > 0.0 && amount < 1e12 {
        Ok((amount * 1_048_576.0).round() as u64)
    } else {
        usage(format!("{flag} must be a number of megabytes above 0"))
    }
}

/// Shorter tokens can be guessed by whoever may try for weeks.
const SHORTEST_TOKEN: usize = 16;

/// Whoever lets other machines in needs a secret that cannot be guessed; one is offered.
fn check_secret(open: &IpAddr, token: Option<&str>) -> Result<(), UsageError> {
    let wrong = match token {
        Some(token) if token.len() >= SHORTEST_TOKEN => return Ok(()),
        Some(token) => format!(
            "the token has {} characters, and --listen {open} lets other machines in: it must have at least {SHORTEST_TOKEN}",
            token.len()
        ),
        None => format!("--listen {open} lets other machines in, so it needs a secret"),
    };
    let offer = match new_token() {
        Some(new) => format!(
            "for example one made just now:\n\n    {new}\n\nput it into a file and add --token-file FILE, or add --token {new}"
        ),
        None => "add --token-file FILE or --token TEXT".to_owned(),
    };
    usage(format!("{wrong}; {offer}"))
}

/// 128 random bits as text; none if the system has no randomness to give.
fn new_token() -> Option<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(format!("{:032x}", u128::from_le_bytes(bytes)))
}

fn addresses(text: &str) -> Result<Vec<IpAddr>, UsageError> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let bare = part
            .strip_prefix('[')
            .and_then(|p| p.strip_suffix(']'))
            .unwrap_or(part);
        let ip = match bare.parse() {
            Ok(ip) => ip,
            Err(_) if part == "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Err(_) => (part, 0)
                .to_socket_addrs()
                .ok()
                .and_then(|mut all| all.next())
                .map(|a| a.ip())
                .ok_or_else(|| {
                    UsageError(format!(
                        "--listen: '{part}' is not an address of this machine"
                    ))
                })?,
        };
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    if found.is_empty() {
        return usage("--listen needs at least one address");
    }
    Ok(found)
}

pub(crate) fn token(
    text: Option<String>,
    file: Option<&Path>,
) -> Result<Option<String>, UsageError> {
    let token = match (text, file) {
        (Some(text), _) => text,
        (None, None) => return Ok(None),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|e| {
                UsageError(format!("--token-file: cannot read {}: {e}", path.display()))
            })?;
            text.lines().next().unwrap_or_default().trim().to_owned()
        }
    };
    // It must fit into a header, a cookie and an address as it is.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    if token.is_empty() {
        return usage("the token is empty");
    }
    if !token.chars().all(plain) {
        return usage("the token may have letters, digits and - . _ ~ only");
    }
    Ok(Some(token))
}

fn front_end(page: &PageArgs) -> Result<FrontEnd, UsageError> {
    if let Some(root) = &page.front_end_root {
        return match std::fs::read_dir(root) {
            Ok(_) => Ok(FrontEnd::Directory(root.clone())),
            Err(e) => usage(format!(
                "--front-end-root: cannot read the folder {}: {e}",
                root.display()
            )),
        };
    }
    match (page.front_end, page.front_end_version.as_deref()) {
        (None | Some(FrontEndChoice::Fresco), None) => Ok(FrontEnd::Page),
        (Some(FrontEndChoice::Status), _) => Ok(FrontEnd::Status),
        (Some(FrontEndChoice::Comfy), None) | (_, Some(BUNDLED)) => Ok(FrontEnd::Installed),
        (_, Some(version)) => downloaded(version),
    }
}

/// `owner/repo@version` by the reference's rules.
fn downloaded(text: &str) -> Result<FrontEnd, UsageError> {
    let wrong = || {
        UsageError(format!(
            "--front-end-version: '{text}' is not of the form OWNER/REPO@VERSION"
        ))
    };
    let (name, version) = text.split_once('@').ok_or_else(wrong)?;
    let (owner, repo) = name.split_once('/').ok_or_else(wrong)?;
    let owner_ok = (1..=39).contains(&owner.len())
        && owner.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && !owner.starts_with('-');
    let repo_ok = !repo.is_empty()
        && repo
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
        && !repo.chars().all(|c| c == '.');
    if !owner_ok || !repo_ok || !(matches!(version, "latest" | "prerelease") || is_version(version))
    {
        return Err(wrong());
    }
    Ok(FrontEnd::Downloaded {
        folder: format!("{owner}_{repo}"),
        version: version.strip_prefix('v').unwrap_or(version).to_owned(),
    })
}

/// Optional `v`, three numbers with points between, then anything of `-._` and letters and digits.
fn is_version(text: &str) -> bool {
    let mut rest = text.strip_prefix('v').unwrap_or(text);
    for i in 0..3 {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            return false;
        }
        rest = &rest[digits..];
        if i < 2 {
            let Some(after) = rest.strip_prefix('.') else {
                return false;
            };
            rest = after;
        }
    }
    rest.chars()
        .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// A path, or an address as SQLAlchemy writes them.
fn database(url: &str) -> Result<StorePath, UsageError> {
    let path = match url.split_once("://") {
        None => url,
        Some(("sqlite", rest)) => rest.strip_prefix('/').unwrap_or(rest),
        Some((kind, _)) => {
            return usage(format!(
                "--database-url: Fresco knows sqlite only, not {kind}"
            ));
        }
    };
    match path {
        ":memory:" => Ok(StorePath::Memory),
        "" if url.contains("://") => Ok(StorePath::Memory),
        "" => usage("--database-url is empty"),
        path => Ok(StorePath::File(path.into())),
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::cli::{Cli, command};

    fn settings(line: &str) -> Result<ServeSettings, String> {
        let words = std::iter::once("fresco").chain(line.split_whitespace());
        let matches = command()
            .try_get_matches_from(words)
            .map_err(|e| e.to_string())?;
        let cli = Cli::from_arg_matches(&matches).map_err(|e| e.to_string())?;
        ServeSettings::resolve(cli.serve).map_err(|e| e.to_string())
    }

    #[test]
    fn simulated_devices() {
        let found = settings("--sim-device sim:7002=1.5MB --sim-device sim:7001=4GiB").unwrap();
        let memory = &found.exec.memory;
        assert_eq!(memory.sim_devices, [(7001, 4 << 30), (7002, 1_500_000)]);
        memory.register_devices().unwrap();
        let names: Vec<String> = memory.accelerators().iter().map(Device::name).collect();
        assert_eq!(names, ["sim:7001", "sim:7002"]);
        let device = Device::parse("sim:7001").unwrap();
        assert_eq!(device.capacity(), Some(4 << 30));
        let twice = memory.register_devices().unwrap_err().to_string();
        assert_eq!(twice, "the device sim:7001 exists already");
        let wrong = settings("--sim-device sim:0=4XB").unwrap_err();
        assert!(wrong.contains("\"4XB\" is not a size of memory"), "{wrong}");
    }

    #[test]
    fn memory_flags_become_settings() {
        let memory = |line: &str| settings(line).unwrap().exec.memory;
        for (line, state) in [
            ("", VramState::NormalVram),
            ("--normalvram", VramState::NormalVram),
            ("--lowvram", VramState::LowVram),
            ("--novram", VramState::NoVram),
            ("--highvram", VramState::HighVram),
            ("--gpu-only", VramState::HighVram),
            ("--cpu", VramState::Disabled),
        ] {
            assert_eq!(memory(line).state, state, "{line}");
        }
        assert!(memory("--gpu-only").gpu_only && !memory("--highvram").gpu_only);
        for (line, fp8_products) in [
            ("", false),
            ("--fast", true),
            ("--fast autotune fp8_matrix_mult", true),
            ("--fast fp16_accumulation cublas_ops", false),
        ] {
            assert_eq!(memory(line).fp8_products, fp8_products, "{line}");
        }
        assert!(
            memory("--cpu --sim-device sim:7005=1GiB")
                .accelerators()
                .is_empty()
        );
        for (line, streams) in [
            ("", 2),
            ("--async-offload", 2),
            ("--async-offload 5", 5),
            ("--disable-async-offload", 0),
            ("--async-offload 5 --disable-async-offload", 0),
        ] {
            assert_eq!(memory(line).streams, streams, "{line}");
        }
        let default = memory("");
        assert_eq!(
            default.reserves(None),
            Reserves::new(ReserveRule::here(), 0, true)
        );
        assert!(default.smart && default.sim_peer && default.unload_after.is_none());
        let given = memory(
            "--reserve-vram 0.25 --inference-reserve 0 --disable-smart-memory --sim-no-peer --unload-after 2",
        );
        assert_eq!(given.reserves(None).extra, 1 << 28);
        assert_eq!(given.reserves(None).minimum(), 1 << 28);
        assert!(!given.smart && !given.sim_peer);
        assert_eq!(given.unload_after, Some(Duration::from_secs(2)));
        assert!(default.pinned && !memory("--disable-pinned-memory").pinned);
        assert_eq!(default.default_gpu, None);
        assert_eq!(memory("--default-device 1").default_gpu, Some(1));
        // On a machine without it nothing is opened, and the reason is told.
        let (found, reasons) = memory("--cuda-device 4000,4001 --default-device 4002").gpus();
        assert!(found.is_empty());
        assert!(
            reasons[0].contains("--default-device 4002 is none of those"),
            "{reasons:?}"
        );
        assert!(
            reasons[1].contains("unknown device cuda:4000"),
            "{reasons:?}"
        );
        assert_eq!(memory("--cache-ram 2").host_headroom, Some(2 << 30));
        assert_eq!(default.host_headroom, None);
    }

    #[test]
    fn other_machines_need_a_token() {
        assert_eq!(
            settings("").unwrap().listen,
            [IpAddr::V4(Ipv4Addr::LOCALHOST)]
        );
        assert_eq!(
            settings("--listen 127.0.0.1,::1,[::1],localhost")
                .unwrap()
                .listen
                .len(),
            2
        );
        for line in [
            "--listen",
            "--listen 0.0.0.0",
            "--listen 127.0.0.1,192.168.0.1",
            "--listen ::",
        ] {
            let error = settings(line).unwrap_err();
            assert!(error.contains("--token-file"), "{line}: {error}");
            let short = settings(&format!("{line} --token abc-123456789.x")).unwrap_err();
            assert!(short.contains("15 characters"), "{line}: {short}");
            // The one that is offered will do.
            let offered = short
                .lines()
                .map(str::trim)
                .find(|l| l.len() == 32)
                .unwrap();
            assert_eq!(
                settings(&format!("{line} --token {offered}"))
                    .unwrap()
                    .token
                    .as_deref(),
                Some(offered)
            );
        }
        for line in [
            "--listen ,",
            "--listen 1.2.3.4.5",
            "--token a;b",
            "--token-file /does/not/exist",
        ] {
            assert!(settings(line).is_err(), "{line}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "  s3cret \nrest").unwrap();
        let read = settings(&format!("--token-file {}", file.display())).unwrap();
        assert_eq!(read.token.as_deref(), Some("s3cret"));
        std::fs::write(&file, "\n").unwrap();
        assert!(settings(&format!("--token-file {}", file.display())).is_err());
    }

    #[test]
    fn caches_follow_the_reference() {
        let cache = |line: &str| settings(line).unwrap().exec.cache;
        assert_eq!(cache(""), Strategy::Classic);
        assert_eq!(cache("--cache-lru 0"), Strategy::Classic);
        assert_eq!(cache("--cache-lru 7"), Strategy::Lru(7));
        assert_eq!(cache("--cache-none"), Strategy::None);
        assert_eq!(cache("--cache-ram"), Strategy::RamPressure(4.0));
        assert_eq!(cache("--cache-ram 1.5"), Strategy::RamPressure(1.5));
    }

    #[test]
    fn uploads_are_counted_in_megabytes() {
        let default = settings("").unwrap();
        assert_eq!(
            (default.max_upload, default.max_upload_given),
            (104_857_600, false)
        );
        let given = settings("--max-upload-size 0.5").unwrap();
        assert_eq!((given.max_upload, given.max_upload_given), (524_288, true));
        for bad in ["0", "nan", "inf", "-1"] {
            for flag in [
                "--max-upload-size",
                "--max-upload-total",
                "--max-picture-memory",
            ] {
                assert!(settings(&format!("{flag}={bad}")).is_err(), "{flag} {bad}");
            }
        }
        assert_eq!(default.max_upload_total, 1 << 30);
        let large = settings("--max-upload-size 3000").unwrap();
        assert_eq!(large.max_upload_total, large.max_upload, "one must fit");
        assert!(settings("--max-upload-total 50").is_err());
    }

    #[test]
    fn database_addresses() {
        let path = |url: &str| database(url).unwrap();
        assert_eq!(path("sqlite:///:memory:"), StorePath::Memory);
        assert_eq!(path("sqlite://"), StorePath::Memory);
        assert_eq!(path("sqlite:///a/b.db"), StorePath::File("a/b.db".into()));
        assert_eq!(path("sqlite:////a/b.db"), StorePath::File("/a/b.db".into()));
        assert_eq!(path("/a/b.db"), StorePath::File("/a/b.db".into()));
        assert!(database("postgresql://x").is_err());
        assert!(database("").is_err());
    }

    #[test]
    fn front_ends() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let chosen = |line: &str| settings(line).map(|s| s.front_end);
        assert_eq!(chosen("").unwrap(), FrontEnd::Page);
        assert_eq!(chosen("--front-end fresco").unwrap(), FrontEnd::Page);
        assert_eq!(chosen("--front-end status").unwrap(), FrontEnd::Status);
        assert_eq!(chosen("--front-end comfy").unwrap(), FrontEnd::Installed);
        assert_eq!(
            chosen("--front-end-version comfyanonymous/ComfyUI@latest").unwrap(),
            FrontEnd::Installed
        );
        assert_eq!(
            chosen(&format!("--front-end-root {root}")).unwrap(),
            FrontEnd::Directory(dir.path().into())
        );
        let v = FrontEnd::Downloaded {
            folder: "Comfy-Org_ComfyUI_frontend".into(),
            version: "1.2.3-x".into(),
        };
        assert_eq!(
            chosen("--front-end-version Comfy-Org/ComfyUI_frontend@v1.2.3-x").unwrap(),
            v
        );
        for bad in [
            "x",
            "a/b@1.2",
            "-a/b@latest",
            "a/b@v1.2.3/..",
            "a/..@1.2.3",
            "a/b@..",
            "a/b",
        ] {
            assert!(
                chosen(&format!("--front-end-version={bad}")).is_err(),
                "{bad}"
            );
        }
        assert!(chosen("--front-end-root /does/not/exist").is_err());
    }

    #[test]
    fn launching_can_be_forbidden() {
        assert!(!settings("").unwrap().launch);
        assert!(settings("--auto-launch").unwrap().launch);
        assert!(settings("--windows-standalone-build").unwrap().launch);
        assert!(
            !settings("--windows-standalone-build --disable-auto-launch")
                .unwrap()
                .launch
        );
    }
}
