//! Runs workflows of the editor to their end with reduced models: `templates FOLDER [PART]`. `FRESCO_LIMIT` is how many
//! seconds one may take (60), `FRESCO_BASE` an existing folder for models and pictures.
//!
//! Each file of the folder whose name contains PART is read, what it loads is made under its names, and it is sent to the
//! built program. A line for each says how it went; the end counts them by family. Fails if one does not run that could.

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fresco_tests::templates::{Outcome, Runner};

const LIMIT: &str = "60";

/// Counts of a family.
#[derive(Default)]
struct Count {
    ran: usize,
    with_stand_in: usize,
    failed: usize,
    not_here: usize,
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ran,
            with_stand_in,
            failed,
            not_here,
        } = self;
        write!(f, "{ran}, {with_stand_in}, {failed}, {not_here}")
    }
}

#[expect(clippy::print_stdout, reason = "the report is what this is for")]
fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (folder, part) = match arguments.as_slice() {
        [folder] => (folder, ""),
        [folder, part] => (folder, part.as_str()),
        _ => bail!("usage: templates FOLDER [PART]"),
    };
    let limit = env::var_os("FRESCO_LIMIT");
    let limit = limit.map_or(LIMIT.into(), |text| text.to_string_lossy().into_owned());
    let limit = Duration::from_secs(limit.parse().context("FRESCO_LIMIT is in seconds")?);
    let own = tempfile::tempdir()?;
    let base = env::var_os("FRESCO_BASE").map_or_else(|| own.path().to_owned(), PathBuf::from);
    let mut runner = Runner::start(&base, limit);
    let mut counts: BTreeMap<&str, Count> = BTreeMap::new();
    for path in workflows(Path::new(folder), part)? {
        let name = path.file_stem().context("a file has a name")?;
        let name = name.to_string_lossy();
        let begun = Instant::now();
        let found = runner.run(&fs::read(&path)?);
        let (family, mut outcome) = found.unwrap_or_else(|error| {
            let failed = Outcome::Failed {
                place: "the tool".to_owned(),
                reason: format!("{error:#}"),
            };
            (None, failed)
        });
        if let (Outcome::Failed { reason, .. }, Some(status)) = (&mut outcome, runner.revive()) {
            *reason = format!("{reason}; the program ended ({status}) and was started again");
        }
        let seconds = begun.elapsed().as_secs_f64();
        let count = counts.entry(family.unwrap_or("others")).or_default();
        match outcome {
            Outcome::Ran {
                outputs,
                stand_in: None,
            } => {
                count.ran += 1;
                println!("ran     {name}: {outputs} outputs, {seconds:.1} s");
            }
            Outcome::Ran {
                outputs,
                stand_in: Some(said),
            } => {
                count.with_stand_in += 1;
                println!("ran *   {name}: {outputs} outputs with {said}, {seconds:.1} s");
            }
            Outcome::Failed { place, reason } => {
                count.failed += 1;
                println!("FAILED  {name}: {place}: {reason}, {seconds:.1} s");
            }
            Outcome::NotHere(what) => {
                count.not_here += 1;
                println!("missing {name}: {what}");
            }
        }
    }
    println!("family: ran, ran with a stand-in, failed, with a node or a model that is not here");
    let mut sum = Count::default();
    for (family, count) in &counts {
        println!("{family}: {count}");
        sum.ran += count.ran;
        sum.with_stand_in += count.with_stand_in;
        sum.failed += count.failed;
        sum.not_here += count.not_here;
    }
    println!("all: {sum}");
    let failed = sum.failed;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// The files of a folder whose names contain a part, in order.
fn workflows(folder: &Path, part: &str) -> Result<Vec<PathBuf>> {
    let list = fs::read_dir(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in list {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".json") && name.contains(part) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
