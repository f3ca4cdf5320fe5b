//! Runs real packs as they lie in a folder: `packs DIR [--python PATH] [--only NAME] [--together] [--json FILE] [--logs DIR]`.
//!
//! The program is started with each pack alone, then once with all of them; with `--together` only with all, with `--only`
//! only with those whose names contain NAME. Each run says what became of the packs, which classes were left out and why, and
//! how the workflows in `tests/real-packs` went. `FRESCO_LIMIT` is how many seconds a workflow may take (120). Fails if
//! anything hangs or a workflow that is expected to run does not. Nothing is fetched.

#![expect(clippy::print_stdout, reason = "the report is what this is for")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use fresco_tests::packs::{
    Base, Limits, PackResult, Rig, RunResult, Table, Workflow, find_packs, pack_name,
    read_workflows,
};

const USAGE: &str =
    "usage: packs DIR [--python PATH] [--only NAME] [--together] [--json FILE] [--logs DIR]";
/// What all packs together are called.
const TOGETHER: &str = "all together";
const LOAD_ALONE: Duration = Duration::from_mins(4);
const LOAD_TOGETHER: Duration = Duration::from_mins(15);
const WORKFLOW: &str = "120";

struct Arguments {
    folder: PathBuf,
    python: Option<String>,
    only: Option<String>,
    together: bool,
    json: Option<PathBuf>,
    logs: Option<PathBuf>,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut folder = None;
        let (mut python, mut only, mut json, mut logs) = (None, None, None, None);
        let mut together = false;
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--python" => python = Some(value()?),
                "--only" => only = Some(value()?),
                "--json" => json = Some(PathBuf::from(value()?)),
                "--logs" => logs = Some(PathBuf::from(value()?)),
                "--together" => together = true,
                other if other.starts_with('-') || folder.is_some() => bail!(USAGE),
                other => folder = Some(PathBuf::from(other)),
            }
        }
        Ok(Self {
            folder: folder.context(USAGE)?,
            python,
            only,
            together,
            json,
            logs,
        })
    }
}

/// What all runs have in common.
struct Driver {
    workflows: PathBuf,
    python: Option<String>,
    logs: Option<PathBuf>,
    limit: Duration,
}

impl Driver {
    /// One start of the program with these packs.
    fn run(&self, name: &str, packs: &[&Path], load: Duration) -> Result<RunResult> {
        let base = Base::new(packs)?;
        let names: BTreeSet<String> = packs.iter().map(|path| pack_name(path)).collect();
        let mut workflows = Vec::new();
        for pack in &names {
            let list = read_workflows(&self.workflows, pack)?;
            for model in list.iter().flat_map(|workflow| &workflow.models) {
                base.make_model(model)?;
            }
            workflows.push((pack, list));
        }
        let limits = Limits {
            load,
            workflow: self.limit,
        };
        let mut rig = Rig::start(base, self.python.as_deref(), limits)?;
        let mut found = match rig.packs() {
            Ok(found) => found,
            Err(error) => {
                rig.hung.get_or_insert(format!("{error:#}"));
                Vec::new()
            }
        };
        let hung = rig.hung.clone();
        for (pack, list) in workflows {
            if !found.iter().any(|result| result.name == *pack) {
                let why = hung
                    .clone()
                    .unwrap_or("the program does not list it".to_owned());
                found.push(PackResult::unknown(pack, why));
            }
            let result = found.iter_mut().find(|result| result.name == *pack);
            let result = result.context("it was just put there")?;
            if hung.is_none() {
                result.workflows = run_workflows(&mut rig, list, &names);
            }
        }
        if let Some(folder) = &self.logs {
            fs::create_dir_all(folder)?;
            fs::write(folder.join(format!("{name}.log")), rig.log())?;
        }
        Ok(RunResult {
            name: name.to_owned(),
            load_time: rig.load_time,
            hung,
            packs: found,
        })
    }
}

fn run_workflows(
    rig: &mut Rig,
    list: Vec<Workflow>,
    names: &BTreeSet<String>,
) -> Vec<(Workflow, fresco_tests::packs::WorkflowResult, Duration)> {
    let run = |workflow: Workflow| {
        let begun = Instant::now();
        let result = rig.run(&workflow, names);
        (workflow, result, begun.elapsed())
    };
    list.into_iter().map(run).collect()
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::read()?;
    let limit = env::var_os("FRESCO_LIMIT");
    let limit = limit.map_or(WORKFLOW.into(), |text| text.to_string_lossy().into_owned());
    let limit = limit.parse().context("FRESCO_LIMIT is in seconds")?;
    let all = find_packs(&arguments.folder)?;
    let fits = |path: &&PathBuf| {
        let only = arguments.only.as_deref().unwrap_or_default();
        pack_name(path).contains(only)
    };
    let packs: Vec<&Path> = all.iter().filter(fits).map(PathBuf::as_path).collect();
    ensure!(
        !packs.is_empty(),
        "there is no such pack in {}",
        arguments.folder.display()
    );
    let driver = Driver {
        workflows: Path::new(env!("CARGO_MANIFEST_DIR")).join("real-packs"),
        python: arguments.python,
        logs: arguments.logs,
        limit: Duration::from_secs(limit),
    };
    let mut table = Table::default();
    let mut add = |name: &str, packs: &[&Path], load| -> Result<()> {
        let run = driver.run(name, packs, load)?;
        print!("{run}");
        table.runs.push(run);
        if let Some(file) = &arguments.json {
            // After each run, so that what is known stays if this one is ended.
            let text = serde_json::to_vec_pretty(&table.to_value())?;
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    };
    if !arguments.together {
        for pack in &packs {
            add(&pack_name(pack), &[pack], LOAD_ALONE)?;
        }
    }
    if arguments.together || arguments.only.is_none() {
        add(TOGETHER, &packs, LOAD_TOGETHER)?;
    }
    print!("\n{table}");
    Ok(ExitCode::from(u8::from(!table.is_good())))
}
