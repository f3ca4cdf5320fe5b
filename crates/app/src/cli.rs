//! The command line. Every flag of the reference parses; those that steer parts this build does not have yet are rows of
//! `accepted_flags`, are checked like the others, and are named once in the log.

use std::path::PathBuf;

use clap::{ArgAction, Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::accepted_flags::accept;

/// Run ComfyUI workflows.
///
/// Without a command Fresco serves: the HTTP and WebSocket interface of ComfyUI on http://127.0.0.1:8188. Every option
/// can also be set as a variable (FRESCO_PORT=8000) or in the file fresco.yaml (port: 8000); the command line wins over
/// variables, variables over the file.
#[derive(Parser, Debug)]
// As with the reference, the last of a repeated option counts: launch scripts append to a line of defaults.
#[command(
    name = "fresco",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Task>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Task {
    /// Serve the interface (the same as no command)
    Serve(Box<ServeArgs>),
    /// Run prompts for servers on other machines, through a NATS server
    Worker(Box<WorkerTaskArgs>),
    /// Run one workflow without a server
    Run(Box<RunArgs>),
    /// Turn a workflow saved by the editor into an API prompt
    Convert(ConvertArgs),
    /// Write a smaller file of a model's weights, in another number format
    Quantize(QuantizeArgs),
    /// List the nodes of this program, or show one
    Nodes(NodesArgs),
    /// Show what was found: folders, front-ends, devices, ports; for a workflow, how its models would be placed
    Doctor(Box<DoctorArgs>),
    /// Show what a running server has in memory, and why
    Memory(Box<MemoryViewArgs>),
    /// Python packs: list, check, install, update, switch on and off
    Packs(PacksArgs),
    /// Model files of the workers of a cluster: list them, copy them from one machine to another
    Models(Box<ModelsArgs>),
}

#[derive(Args, Debug)]
pub(crate) struct PacksArgs {
    /// What to do
    #[arg(value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) what: PacksTask,
    /// For install: folders, archives, wheels or repositories; for update, enable and disable: names of packs
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// For install: also what the packs require, into .venv of the base folder
    #[arg(long)]
    pub(crate) requirements: bool,
    /// Requirements may come from repositories
    #[arg(long)]
    pub(crate) allow_vcs: bool,
    /// Python or virtual environment that runs packs
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) server: PackServerArgs,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The server that says which packs run.
#[derive(Args, Debug)]
pub(crate) struct PackServerArgs {
    /// For list: the server to ask which packs run (http://127.0.0.1:8188 if one is there)
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Its secret, if it has one
    #[arg(long, value_name = "TEXT", group = "secret")]
    pub(crate) token: Option<String>,
    /// File whose first line is the secret
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum PacksTask {
    /// Packs in the folders for them, and whether a running server has them; starts nothing
    #[default]
    List,
    /// Imports them and says what became of each; fails if one cannot be imported
    Check,
    /// Puts packs into custom_nodes; with --requirements also what all packs need into one environment
    Install,
    /// Brings packs that came from repositories up to date
    Update,
    /// Switches packs on
    Enable,
    /// Switches packs off
    Disable,
}

#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    /// What to do
    #[arg(value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) what: ModelsTask,
    /// For sync: what to copy, as checkpoints/name.safetensors, or the name alone where one folder has it
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<String>,
    /// Worker to copy from (this machine if not given)
    #[arg(long, value_name = "WORKER")]
    pub(crate) from: Option<String>,
    /// Worker to copy to (this machine if not given)
    #[arg(long, value_name = "WORKER")]
    pub(crate) to: Option<String>,
    /// Everything that the other one lacks
    #[arg(long, conflicts_with = "files")]
    pub(crate) all: bool,
    /// Files of the same name and another content too
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelsTask {
    /// Which worker has which file
    #[default]
    List,
    /// Copies files by content; a copy that broke off goes on where it was
    Sync,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A workflow, a prompt, or a picture that carries one; `-` reads standard input
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// Where things are.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Folders")]
pub(crate) struct DirArgs {
    /// Root of models, custom_nodes, input, output, temp and user; a ComfyUI folder will do
    #[arg(long, value_name = "DIR")]
    pub(crate) base_directory: Option<PathBuf>,
    /// More files like extra_model_paths.yaml
    #[arg(long, value_name = "FILE", num_args = 1.., action = ArgAction::Append)]
    pub(crate) extra_model_paths_config: Vec<PathBuf>,
    /// Leave out the starter model that comes with Fresco
    #[arg(long)]
    pub(crate) no_starter: bool,
    /// Where saved pictures go
    #[arg(long, value_name = "DIR")]
    pub(crate) output_directory: Option<PathBuf>,
    /// Temporary pictures go to DIR/temp, which is emptied at each start
    #[arg(long, value_name = "DIR")]
    pub(crate) temp_directory: Option<PathBuf>,
    /// Where pictures to load are, and uploads go
    #[arg(long, value_name = "DIR")]
    pub(crate) input_directory: Option<PathBuf>,
    /// Settings and saved workflows; must exist
    #[arg(long, value_name = "DIR")]
    pub(crate) user_directory: Option<PathBuf>,
}

/// How prompts run.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Execution")]
pub(crate) struct ExecArgs {
    /// Keep the results of the last prompt (default)
    #[arg(long, group = "cache")]
    pub(crate) cache_classic: bool,
    /// Keep the results of the N most recently used nodes; 0 is off
    #[arg(long, value_name = "N", group = "cache")]
    pub(crate) cache_lru: Option<usize>,
    /// Keep nothing
    #[arg(long, group = "cache")]
    pub(crate) cache_none: bool,
    /// Keep results while at least GB of memory stay free (4 if not given)
    #[arg(long, value_name = "GB", num_args = 0..=1, default_missing_value = "4.0", group = "cache")]
    pub(crate) cache_ram: Option<f64>,
    /// Pictures of unfinished steps, unless the prompt says otherwise
    #[arg(long, value_enum, value_name = "METHOD", default_value_t)]
    pub(crate) preview_method: PreviewMethod,
    /// The longer side of such pictures
    #[arg(long, value_name = "PIXELS", default_value_t = 512)]
    pub(crate) preview_size: u16,
    /// Write neither prompt nor workflow into saved files
    #[arg(long)]
    pub(crate) disable_metadata: bool,
    /// Have a system ffmpeg read films and sound that the built-in decoders do not know
    #[arg(long)]
    pub(crate) use_ffmpeg: bool,
    /// Memory that the values of one prompt may take together: texts, lists, pictures, latents (three quarters of all
    /// memory if not given)
    #[arg(long, value_name = "GB")]
    pub(crate) max_prompt_memory: Option<f64>,
    /// Run no Python packs
    #[arg(long)]
    pub(crate) disable_all_custom_nodes: bool,
    /// With --disable-all-custom-nodes: except these folders and files of custom_nodes
    #[arg(long, value_name = "NAME", num_args = 1.., action = ArgAction::Append)]
    pub(crate) whitelist_custom_nodes: Vec<String>,
    /// Memory that the Python process of the packs may take (no limit if not given)
    #[arg(long, value_name = "GB")]
    pub(crate) max_pack_memory: Option<f64>,
    /// How long one pack may take to be imported before it is left out
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) pack_import_seconds: u64,
    /// Variables of the environment that packs see although their names look like secrets (HF_TOKEN, say)
    #[arg(long, value_name = "NAME", num_args = 1.., action = ArgAction::Append)]
    pub(crate) pack_env: Vec<String>,
    /// Packs that run in a Python process of their own instead of the shared one; `all` for each of them
    #[arg(long, value_name = "NAME", num_args = 1.., action = ArgAction::Append)]
    pub(crate) isolate_packs: Vec<String>,
    /// Keep packs from writing outside of output, temp, input, user, models, custom_nodes, caches and the system's folder for
    /// temporary files
    #[arg(long)]
    pub(crate) fence_packs: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

/// What may be faster and change results a little.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub(crate) enum Fast {
    /// Nothing: sums are f32
    Fp16Accumulation,
    /// Plain fp8 weights are multiplied as fp8, with inputs rounded to it, where the GPU can
    Fp8MatrixMult,
    /// Nothing: there are no such libraries
    CublasOps,
    /// Nothing: the best kernels are known
    Autotune,
}

/// In which numbers a GPU computes, whatever the weights are in. The processor computes in f32.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Number formats on a GPU")]
pub(crate) struct FormatArgs {
    /// All networks in f32
    #[arg(long, group = "force")]
    pub(crate) force_fp32: bool,
    /// All networks in f16
    #[arg(long, group = "force")]
    pub(crate) force_fp16: bool,
    /// Diffusion models in f32
    #[arg(long, group = "unet")]
    pub(crate) fp32_unet: bool,
    /// Diffusion models in f16
    #[arg(long, group = "unet")]
    pub(crate) fp16_unet: bool,
    /// Diffusion models in bf16
    #[arg(long, group = "unet")]
    pub(crate) bf16_unet: bool,
    /// Autoencoders in f32
    #[arg(long, group = "vae")]
    pub(crate) fp32_vae: bool,
    /// Autoencoders in f16
    #[arg(long, group = "vae")]
    pub(crate) fp16_vae: bool,
    /// Autoencoders in bf16
    #[arg(long, group = "vae")]
    pub(crate) bf16_vae: bool,
    /// Text encoders in f32
    #[arg(long, group = "text-enc")]
    pub(crate) fp32_text_enc: bool,
    /// Text encoders in f16
    #[arg(long, group = "text-enc")]
    pub(crate) fp16_text_enc: bool,
    /// Text encoders in bf16
    #[arg(long, group = "text-enc")]
    pub(crate) bf16_text_enc: bool,
    /// Faster for slightly other results; all of it without a name
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..)]
    pub(crate) fast: Option<Vec<Fast>>,
}

/// Where models are, and for how long.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Memory")]
pub(crate) struct MemoryArgs {
    /// Everything on the accelerator, also text encoders and results
    #[arg(long, group = "vram")]
    pub(crate) gpu_only: bool,
    /// Models stay on the accelerator after use
    #[arg(long, group = "vram")]
    pub(crate) highvram: bool,
    /// As much of a model on the accelerator as fits, the rest streamed (default)
    #[arg(long, group = "vram")]
    pub(crate) normalvram: bool,
    /// The same, with text encoders in main memory
    #[arg(long, group = "vram")]
    pub(crate) lowvram: bool,
    /// All weights in main memory, streamed at every use
    #[arg(long, group = "vram")]
    pub(crate) novram: bool,
    /// No accelerator at all
    #[arg(long, group = "vram")]
    pub(crate) cpu: bool,
    /// Memory of the accelerator that is left to other programs (0.4 if not given)
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    pub(crate) reserve_vram: Option<u64>,
    /// Memory of the accelerator kept for computing, at least (0.8 if not given)
    #[arg(long, value_name = "GB", value_parser = gigabytes, allow_negative_numbers = true)]
    pub(crate) inference_reserve: Option<u64>,
    /// Unload all models after every prompt
    #[arg(long)]
    pub(crate) disable_smart_memory: bool,
    /// Fetch N layers ahead while one computes (2 if not given)
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u8).range(0..=64), allow_negative_numbers = true)]
    pub(crate) async_offload: Option<u8>,
    /// Fetch nothing ahead
    #[arg(long)]
    pub(crate) disable_async_offload: bool,
    /// Autoencoders in main memory
    #[arg(long)]
    pub(crate) cpu_vae: bool,
    /// Unload models that were not used for so long
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) unload_after: Option<std::time::Duration>,
    /// Append every decision about memory to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) memory_log: Option<PathBuf>,
    /// Number format in which LoRAs are merged
    #[arg(long, value_enum, value_name = "DTYPE", default_value_t)]
    pub(crate) lora_merge_dtype: MergeChoice,
    /// Change weights by LoRAs at every use, and keep no changed copies: slow, for little memory
    #[arg(long)]
    pub(crate) lora_on_the_fly: bool,
    #[command(flatten)]
    pub(crate) formats: FormatArgs,
    /// Use the GPUs of these numbers, like 0 or 0,1; the first is the primary one (all if not given)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) cuda_device: Vec<u32>,
    /// The primary one of all GPUs that are used
    #[arg(long, value_name = "N")]
    pub(crate) default_device: Option<u32>,
    /// Copy weights to GPUs from memory that the system may move: slower, for systems that refuse to pin it
    #[arg(long)]
    pub(crate) disable_pinned_memory: bool,
    /// Add a simulated accelerator, like sim:0=4GiB
    #[arg(long, value_name = "NAME=SIZE", action = ArgAction::Append, value_parser = fresco_tensor::device::parse_sim)]
    pub(crate) sim_device: Vec<(u32, u64)>,
    /// Simulated accelerators copy to each other by way of the main memory
    #[arg(long)]
    pub(crate) sim_no_peer: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MergeChoice {
    #[default]
    Auto,
    Fp16,
    Fp32,
}

/// More than any device has.
const MOST_GIGABYTES: f64 = 1_048_576.0;

/// Gigabytes (of 2^30 bytes) as bytes.
fn gigabytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("it must be a number of gigabytes, 0 to {MOST_GIGABYTES}");
    let amount: f64 = text.trim().parse().map_err(|_| wrong())?;
    fresco_memory::amount::gib(amount)
        .filter(|_| amount <= MOST_GIGABYTES)
        .ok_or_else(wrong)
}

/// A hundred years.
const MOST_SECONDS: f64 = 3_155_760_000.0;

fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("it must be a number of seconds, 0 to {MOST_SECONDS}");
    let amount: f64 = text.trim().parse().map_err(|_| wrong())?;
    if !(0.0..=MOST_SECONDS).contains(&amount) {
        return Err(wrong());
    }
    std::time::Duration::try_from_secs_f64(amount).map_err(|_| wrong())
}

/// How often a table is drawn anew.
fn refresh(text: &str) -> Result<std::time::Duration, String> {
    let every = seconds(text)?;
    if every < std::time::Duration::from_millis(50) {
        return Err("it must be at least 0.05 seconds".to_owned());
    }
    Ok(every)
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PreviewMethod {
    #[default]
    None,
    Auto,
    Latent2rgb,
    Taesd,
}

/// What is told on the way.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// How much to log (bare: DEBUG)
    #[arg(long, value_enum, value_name = "LEVEL", num_args = 0..=1, default_value = "INFO", default_missing_value = "DEBUG")]
    pub(crate) verbose: Verbosity,
    /// Log to standard output instead of standard error, except errors
    #[arg(long)]
    pub(crate) log_stdout: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[value(rename_all = "UPPER")]
pub(crate) enum Verbosity {
    Debug,
    #[default]
    Info,
    Warning,
    Error,
    Critical,
}

#[derive(Args, Debug, Default)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) workers: WorkerArgs,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Addresses to listen on, with commas between (bare: all); beyond this machine a token is needed
    #[arg(long, value_name = "IP", num_args = 0..=1, default_value = "127.0.0.1", default_missing_value = "0.0.0.0,::")]
    pub(crate) listen: String,
    /// Port to listen on
    #[arg(long, default_value_t = 8188)]
    pub(crate) port: u16,
    /// Secret that every request must carry, 16 characters or more beyond this machine; --token-file keeps it out of the list of processes
    #[arg(long, value_name = "TEXT", group = "secret")]
    pub(crate) token: Option<String>,
    /// File whose first line is the token
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) token_file: Option<PathBuf>,
    /// Further host name under which this server is reached, NAME or NAME:PORT for a proxy on another port; * for any
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    pub(crate) allow_host: Vec<String>,
    /// Key for TLS; needs --tls-certfile too
    #[arg(long, value_name = "FILE", requires = "tls_certfile")]
    pub(crate) tls_keyfile: Option<PathBuf>,
    /// Certificate for TLS; needs --tls-keyfile too
    #[arg(long, value_name = "FILE", requires = "tls_keyfile")]
    pub(crate) tls_certfile: Option<PathBuf>,
    /// Let pages of this origin use the interface (bare: any)
    #[arg(long, value_name = "ORIGIN", num_args = 0..=1, default_missing_value = "*")]
    pub(crate) enable_cors_header: Option<String>,
    /// Largest request in megabytes (100 if not given)
    #[arg(long, value_name = "MB")]
    pub(crate) max_upload_size: Option<f64>,
    /// Request bodies of all clients together while they come in, in megabytes on disk (1024 if not given)
    #[arg(long, value_name = "MB")]
    pub(crate) max_upload_total: Option<f64>,
    /// Memory for pictures that are decoded for requests, all together, in megabytes (2048 if not given)
    #[arg(long, value_name = "MB")]
    pub(crate) max_picture_memory: Option<f64>,
    /// Compress answers for clients that ask for it
    #[arg(long)]
    pub(crate) enable_compress_response_body: bool,
    /// Separate settings and workflows for each user
    #[arg(long)]
    pub(crate) multi_user: bool,
    /// Say nothing about the addresses at the start
    #[arg(long)]
    pub(crate) dont_print_server: bool,
    /// Prepare everything, then end instead of listening
    #[arg(long)]
    pub(crate) quick_test_for_ci: bool,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Page")]
pub(crate) struct PageArgs {
    /// What / shows: Fresco's own page (the default), the official ComfyUI editor if it is installed, or a status page
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) front_end: Option<FrontEndChoice>,
    /// Folder with a front-end's index.html
    #[arg(long, value_name = "DIR")]
    pub(crate) front_end_root: Option<PathBuf>,
    /// A downloaded front-end, as OWNER/REPO@VERSION
    #[arg(long, value_name = "NAME")]
    pub(crate) front_end_version: Option<String>,
    /// Python, virtual environment or site-packages folder that runs packs, and in which to look for the editor
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// No remote nodes, and no content of other sites in the page
    #[arg(long)]
    pub(crate) disable_api_nodes: bool,
    /// Open the page in a browser
    #[arg(long)]
    pub(crate) auto_launch: bool,
    /// Never open a browser
    #[arg(long)]
    pub(crate) disable_auto_launch: bool,
    /// The same as --auto-launch
    #[arg(long)]
    pub(crate) windows_standalone_build: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontEndChoice {
    Fresco,
    Comfy,
    Status,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Queue")]
pub(crate) struct StoreArgs {
    /// Database of queue and history: a path, sqlite:///PATH or sqlite:///:memory: (default: fresco.db in the user folder)
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Prompts that may wait
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub(crate) max_queue: usize,
    /// Size of the history; beyond it (or 10,000 entries) the oldest entries go, their pictures stay
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    pub(crate) max_history_size: u64,
}

#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Workers")]
pub(crate) struct WorkerArgs {
    /// One worker for each of these devices, or groups of devices, so that several prompts run at once, like cuda:0 cuda:1 or
    /// cuda:0+cuda:1 cpu (one worker on all devices if not given)
    #[arg(long, value_name = "DEVICE[+DEVICE]", num_args = 1.., action = ArgAction::Append)]
    pub(crate) workers: Vec<String>,
    /// When told to stop, let running prompts come to their end for so long; they are queued again if they do not (0 if not
    /// given)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) drain: Option<std::time::Duration>,
}

/// The server through which machines work together.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct NatsArgs {
    /// NATS server with JetStream, like nats://host:4222 or tls://host:4222, several with commas between; prompts run on
    /// the workers that are connected to it
    #[arg(long, value_name = "URL")]
    pub(crate) nats: Option<String>,
    /// Credentials for NATS, a file as nsc writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) nats_creds: Option<PathBuf>,
    /// Certificate (PEM) of the authority that the NATS server's certificate comes from; implies TLS
    #[arg(long, value_name = "FILE")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// First word of all subjects, to keep several clusters on one NATS server apart
    #[arg(long, value_name = "WORD", default_value = "fresco")]
    pub(crate) nats_prefix: String,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerTaskArgs {
    /// Name of this worker: letters, digits, _ and -; no other worker may have it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// When told to stop, let the running prompt come to its end for so long; after that it is queued again (60 if not given)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) drain: Option<std::time::Duration>,
    /// Python, virtual environment or site-packages folder that runs packs
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// An API prompt, a workflow saved by the editor, or a picture that carries one; - reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Change an input before the run; VALUE is JSON or else text
    #[arg(long = "set", value_name = "NODE.INPUT=VALUE", action = ArgAction::Append)]
    pub(crate) set: Vec<String>,
    /// Say nothing but results, warnings and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Do not ask before a picture that takes very long or more memory than there is
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) exec: ExecArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// A workflow saved by the editor, or a picture that carries one; - reads standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Node definitions of another server (the answer of /object_info) instead of our own
    #[arg(long, value_name = "FILE")]
    pub(crate) object_info: Option<PathBuf>,
    /// Write there instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// A file of f32, f16 or bf16 weights
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The file to write: .safetensors, or .gguf for the formats of GGUF
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// fp8_e4m3, fp8_e5m2, int8, int8_convrot, nvfp4, mxfp8, w4a8, int4; for GGUF Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K
    #[arg(long, short, value_name = "FORMAT")]
    pub(crate) format: String,
    /// Leave layers as they are whose names contain this; may be given several times
    #[arg(long, value_name = "TEXT", action = ArgAction::Append)]
    pub(crate) keep: Vec<String>,
    /// What a GGUF file calls the kind of model, for programs that go by it
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<String>,
    /// Replace OUT if it exists
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    /// Show this one in full
    #[arg(value_name = "CLASS")]
    pub(crate) class: Option<String>,
    /// As /object_info has it
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dirs: DirArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = false)]
pub(crate) struct MemoryViewArgs {
    #[command(subcommand)]
    pub(crate) action: Option<MemoryAction>,
    /// Draw the table again every so often, until Ctrl-C (bare: every second)
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = refresh)]
    pub(crate) watch: Option<std::time::Duration>,
    /// The server to ask
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8188",
        global = true
    )]
    pub(crate) url: String,
    /// Its secret, if it has one
    #[arg(long, value_name = "TEXT", group = "secret", global = true)]
    pub(crate) token: Option<String>,
    /// File whose first line is the secret
    #[arg(long, value_name = "FILE", group = "secret", global = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates (PEM) to trust with an https address, in place of the system's
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) tls_cafile: Option<PathBuf>,
    /// The server's answer as it is
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum MemoryAction {
    /// Unload models; with --all drop them and the results of all nodes
    Free {
        /// Also from main memory, and forget the results of nodes
        #[arg(long)]
        all: bool,
        /// Pinned models too, and now, as far as the running prompt does not use them
        #[arg(long)]
        force: bool,
        /// Spare models that are to be kept
        #[arg(long)]
        respect: bool,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Keep a model in memory
    Keep { id: String },
    /// Keep a model in memory, and where it is
    Pin { id: String },
    /// Let a model go when its place is needed
    Auto { id: String },
    /// Drop a model now, or after the prompt that uses it
    Eject {
        id: String,
        /// Also if it is pinned
        #[arg(long)]
        force: bool,
    },
}

/// The whole command line: derived flags and accepted ones, on the commands that serve or run.
pub(crate) fn command() -> Command {
    let mut command = accept(Cli::command());
    for name in ["serve", "run", "doctor"] {
        command = command.mut_subcommand(name, accept);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accepted_flags::{ACCEPTED, Takes, accepted};

    #[track_caller]
    fn ok(line: &str) -> clap::ArgMatches {
        let words = std::iter::once("fresco").chain(line.split_whitespace());
        command()
            .try_get_matches_from(words)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
    }

    #[track_caller]
    fn refused(line: &str) {
        let words = std::iter::once("fresco").chain(line.split_whitespace());
        let error = command()
            .try_get_matches_from(words)
            .err()
            .unwrap_or_else(|| panic!("{line} was accepted"));
        assert_eq!(error.exit_code(), 2, "{line}");
    }

    #[test]
    fn flags_without_effect_say_why() {
        for (name, reason) in accepted() {
            assert!(
                reason.len() > 10 && !reason.ends_with('.'),
                "{name}: {reason}"
            );
        }
        let help = command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("no effect: the same device always gives the same bits"));
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_last_of_a_repeated_option_counts() {
        for line in ["", "serve "] {
            let parsed = ok(&format!(
                "{line}--port 1 --cpu --port 2 --cpu --extra-model-paths-config a --extra-model-paths-config b"
            ));
            let parsed = parsed.subcommand_matches("serve").unwrap_or(&parsed);
            assert_eq!(parsed.get_one::<u16>("port"), Some(&2));
            let files = parsed.get_many::<PathBuf>("extra_model_paths_config");
            assert_eq!(files.unwrap().count(), 2);
        }
        refused("--cpu --gpu-only");
    }

    /// Every flag that the reference has.
    #[test]
    fn every_flag_of_the_reference_parses() {
        for line in [
            "",
            "--listen",
            "--listen 127.0.0.1,::1 --port 9000",
            "--tls-keyfile a --tls-certfile b",
            "--enable-cors-header",
            "--enable-cors-header https://a.b",
            "--max-upload-size 12.5",
            "--base-directory a --output-directory b --temp-directory c --input-directory d --user-directory e",
            "--extra-model-paths-config a b --extra-model-paths-config c",
            "--auto-launch",
            "--disable-auto-launch",
            "--cuda-device 0 --default-device 1",
            "--directml",
            "--directml 1",
            "--directml -1",
            "--oneapi-device-selector x",
            "--cpu-vae --force-channels-last --disable-ipex-optimize --supports-fp8-compute",
            "--preview-method latent2rgb --preview-size 256",
            "--preview-method none",
            "--preview-method auto",
            "--preview-method taesd",
            "--cache-lru 10",
            "--cache-ram",
            "--cache-ram 2.5",
            "--disable-xformers --enable-manager",
            "--reserve-vram 0.5 --async-offload --disable-async-offload --force-non-blocking",
            "--async-offload 4",
            "--unload-after 30 --memory-log a.jsonl --lora-merge-dtype fp16 --inference-reserve 0.01",
            "--sim-device sim:0=1GiB --sim-no-peer --lora-merge-dtype auto",
            "--workers cuda:0 cuda:1 --workers cpu",
            "--default-hashing-function md5",
            "--default-hashing-function sha512",
            "--disable-smart-memory --deterministic",
            "--fast",
            "--fast fp16_accumulation autotune",
            "--disable-pinned-memory --mmap-torch-files --disable-mmap",
            "--dont-print-server --quick-test-for-ci --windows-standalone-build",
            "--disable-metadata --disable-all-custom-nodes --whitelist-custom-nodes a b",
            "--disable-api-nodes --multi-user",
            "--verbose",
            "--verbose CRITICAL --log-stdout",
            "--front-end-version comfyanonymous/ComfyUI@latest",
            "--front-end-root /tmp",
            "--enable-compress-response-body",
            "--comfy-api-base https://api.comfy.org",
            "--database-url sqlite:///:memory:",
        ] {
            ok(line);
            ok(&format!("serve {line}"));
        }
        for (name, takes, ..) in ACCEPTED {
            if matches!(takes, Takes::Nothing) {
                ok(&format!("--{name}"));
            }
        }
    }

    #[test]
    fn flags_of_one_group_exclude_each_other() {
        for (i, (a, takes_a, group_a, _)) in ACCEPTED.iter().enumerate() {
            for (b, takes_b, group_b, _) in &ACCEPTED[i + 1..] {
                let plain = matches!((takes_a, takes_b), (Takes::Nothing, Takes::Nothing));
                if plain && !group_a.is_empty() && group_a == group_b {
                    refused(&format!("--{a} --{b}"));
                }
            }
        }
        refused("--cache-none --cache-lru 3");
        refused("--cache-classic --cache-ram");
        refused("--token a --token-file b");
        let states = [
            "gpu-only",
            "highvram",
            "normalvram",
            "lowvram",
            "novram",
            "cpu",
        ];
        for a in states {
            ok(&format!("--{a}"));
            ok(&format!("run x.json --{a}"));
            for b in states.iter().filter(|b| **b != a) {
                refused(&format!("--{a} --{b}"));
            }
        }
        ok("--fp16-vae --fp16-unet --lowvram --force-fp16");
    }

    #[test]
    fn amounts_are_gigabytes_of_1024_megabytes() {
        let parsed = ok("--reserve-vram 0.5 --inference-reserve 0 --unload-after 1.5");
        assert_eq!(parsed.get_one::<u64>("reserve_vram"), Some(&(1 << 29)));
        assert_eq!(parsed.get_one::<u64>("inference_reserve"), Some(&0));
        let idle = parsed.get_one::<std::time::Duration>("unload_after");
        assert_eq!(idle, Some(&std::time::Duration::from_millis(1500)));
    }

    #[test]
    fn memory_is_looked_at_and_changed() {
        for line in [
            "memory",
            "memory --watch",
            "memory --watch 2.5 --url http://a:1 --token x --json",
            "memory free --all --force --respect --dry-run",
            "memory keep a#b --url http://a:1",
            "memory eject a --force --json",
            "memory --url http://a:1 pin a",
            "models",
            "models list --nats nats://a",
            "models sync --nats nats://a --from b --to c loras/x.pt y.pt --replace",
            "models sync --nats nats://a --from b --all --base-directory d",
        ] {
            ok(line);
        }
    }

    #[test]
    fn usage_errors_end_with_2() {
        for line in [
            "--unknown",
            "--port x",
            "--port 99999",
            "--verbose LOUD",
            "--verbose debug",
            "--preview-method TAESD",
            "--fast everything",
            "--default-hashing-function crc",
            "--tls-keyfile a",
            "--cuda-device x",
            "run",
            "run a b",
            "convert",
            "nodes --port 1",
            "frobnicate",
            "--reserve-vram nan",
            "--reserve-vram -1",
            "--reserve-vram inf",
            "--reserve-vram 1e300",
            "--reserve-vram x",
            "--inference-reserve -0.5",
            "--async-offload -1",
            "--async-offload 1000",
            "--async-offload 1.5",
            "--unload-after -1",
            "--unload-after nan",
            "--unload-after 1e12",
            "--lora-merge-dtype bf16",
            "--cpu-vae 1",
            "memory --watch 0",
            "memory --watch x",
            "memory keep",
            "memory drop x",
            "memory --token a --token-file b",
            "models sync --nats x --all a.pt",
            "models copy",
            "--port 1 serve",
        ] {
            refused(line);
        }
    }
}
