//! What became of packs: a table for people, and JSON.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use super::workflow::{Expectation, Workflow, WorkflowResult};

/// A class that `/object_info` does not have, although its pack names it.
#[derive(Clone, Debug)]
pub struct LeftOutClass {
    pub class: String,
    pub reason: String,
}

/// What became of a pack in one start of the program.
#[derive(Clone, Debug)]
pub struct PackResult {
    pub name: String,
    pub state: String,
    pub reason: Option<String>,
    /// What its import took.
    pub seconds: f64,
    pub described: usize,
    pub left_out: Vec<LeftOutClass>,
    pub workflows: Vec<(Workflow, WorkflowResult, Duration)>,
}

/// One start of the program.
#[derive(Clone, Debug)]
pub struct RunResult {
    /// The pack that is alone, or what the run is called.
    pub name: String,
    pub load_time: Duration,
    pub hung: Option<String>,
    pub packs: Vec<PackResult>,
}

impl PackResult {
    /// A pack of which nothing is known, because the program did not say.
    pub fn unknown(name: &str, reason: String) -> Self {
        Self {
            name: name.to_owned(),
            state: "unknown".to_owned(),
            reason: Some(reason),
            seconds: 0.0,
            described: 0,
            left_out: Vec::new(),
            workflows: Vec::new(),
        }
    }

    fn count(&self, fits: impl Fn(&WorkflowResult) -> bool) -> usize {
        self.workflows.iter().filter(|(_, r, _)| fits(r)).count()
    }

    fn to_value(&self) -> Value {
        let workflows = self.workflows.iter().map(|(workflow, result, time)| {
            let (outcome, reason, difference) = match result {
                WorkflowResult::Ran { difference } => ("ran", None, *difference),
                WorkflowResult::Failed(why) => ("failed", Some(why), None),
                WorkflowResult::Hung(why) => ("hung", Some(why), None),
                WorkflowResult::LeftOut(why) => ("left out", Some(why), None),
            };
            json!({
                "name": workflow.name,
                "needs": match &workflow.expectation {
                    Expectation::Runs => None,
                    Expectation::Needs(what) => Some(what),
                },
                "outcome": outcome,
                "as_expected": workflow.accepts(result),
                "reason": reason,
                "difference": difference,
                "seconds": time.as_secs_f64(),
            })
        });
        let left_out = self
            .left_out
            .iter()
            .map(|class| json!({"class": class.class, "reason": class.reason}));
        json!({
            "name": self.name,
            "state": self.state,
            "reason": self.reason,
            "import_seconds": self.seconds,
            "described": self.described,
            "left_out": left_out.collect::<Vec<_>>(),
            "workflows": workflows.collect::<Vec<_>>(),
        })
    }
}

impl RunResult {
    /// Whether nothing hung and each workflow went as expected.
    pub fn is_good(&self) -> bool {
        let mut workflows = self.packs.iter().flat_map(|pack| &pack.workflows);
        self.hung.is_none() && workflows.all(|(workflow, result, _)| workflow.accepts(result))
    }
}

/// All runs.
#[derive(Clone, Debug, Default)]
pub struct Table {
    pub runs: Vec<RunResult>,
}

impl Table {
    pub fn is_good(&self) -> bool {
        self.runs.iter().all(RunResult::is_good)
    }

    pub fn to_value(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            json!({
                "name": run.name,
                "load_seconds": run.load_time.as_secs_f64(),
                "hung": run.hung,
                "packs": run.packs.iter().map(PackResult::to_value).collect::<Vec<_>>(),
            })
        });
        json!({ "runs": runs.collect::<Vec<_>>(), "good": self.is_good() })
    }
}

/// One line of a reason.
fn one_line(reason: &str) -> String {
    const LONGEST: usize = 300;
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > LONGEST {
        let start: String = line.chars().take(LONGEST).collect();
        return format!("{start} ...");
    }
    line
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for pack in &self.packs {
            let ran = pack.count(|result| matches!(result, WorkflowResult::Ran { .. }));
            let there = pack.count(|result| !matches!(result, WorkflowResult::LeftOut(_)));
            writeln!(
                f,
                "{:<38} {:<8} {:6.1} s {:5} classes {:3} left out {:>6} workflows ran",
                pack.name,
                pack.state,
                self.load_time.as_secs_f64(),
                pack.described,
                pack.left_out.len(),
                format!("{ran}/{there}"),
            )?;
            if let Some(reason) = &pack.reason {
                writeln!(f, "    reason: {}", one_line(reason))?;
            }
            for class in &pack.left_out {
                writeln!(
                    f,
                    "    left out {}: {}",
                    class.class,
                    one_line(&class.reason)
                )?;
            }
            for (workflow, result, time) in &pack.workflows {
                let seconds = time.as_secs_f64();
                let name = &workflow.name;
                match result {
                    WorkflowResult::Ran {
                        difference: Some(difference),
                    } => writeln!(
                        f,
                        "    ran      {name}: {seconds:.1} s, differs by {difference}"
                    )?,
                    WorkflowResult::Ran { difference: None } => {
                        writeln!(f, "    ran      {name}: {seconds:.1} s")?;
                    }
                    WorkflowResult::LeftOut(why) => writeln!(f, "    left out {name}: {why}")?,
                    WorkflowResult::Hung(why) => {
                        writeln!(f, "    HUNG     {name}: {}", one_line(why))?;
                    }
                    WorkflowResult::Failed(why) => match &workflow.expectation {
                        Expectation::Runs => writeln!(f, "    FAILED   {name}: {}", one_line(why))?,
                        Expectation::Needs(what) => {
                            let why = one_line(why);
                            writeln!(f, "    needs    {name}: {what} (it said: {why})")?;
                        }
                    },
                }
            }
        }
        if let Some(why) = &self.hung {
            writeln!(f, "    HUNG     {}: {}", self.name, one_line(why))?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in &self.runs {
            let loaded = run.packs.iter().filter(|pack| pack.state == "loaded");
            let all = run.packs.iter().flat_map(|pack| &pack.workflows);
            let ran = all
                .clone()
                .filter(|(_, result, _)| matches!(result, WorkflowResult::Ran { .. }));
            let wrong = all
                .clone()
                .filter(|(workflow, result, _)| !workflow.accepts(result));
            writeln!(
                f,
                "{:<38} {:3} of {:3} loaded, {:3} of {:3} workflows ran, {:3} not as expected{}",
                run.name,
                loaded.count(),
                run.packs.len(),
                ran.count(),
                all.count(),
                wrong.count(),
                if run.hung.is_some() { ", HUNG" } else { "" }
            )?;
        }
        Ok(())
    }
}
