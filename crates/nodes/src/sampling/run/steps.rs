//! Telling of the steps of a run, with pictures that are made while the next step computes.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use fresco_graph::{Cx, NodeError};
use fresco_tensor::Tensor;
use fresco_tensor::cancel::Cancel;

use super::super::preview::Previewer;
use super::nested;

/// Steps that wait for their picture. Sampling waits where there are more, so that no picture is left out.
const WAITING: usize = 1;

/// A step that was made.
struct Step {
    denoised: Tensor,
    done: f64,
    total: f64,
}

/// Tells of steps one after the other.
pub(super) struct StepReports<'a> {
    cx: &'a Cx,
    /// Where steps go that get a picture.
    painter: Option<SyncSender<Step>>,
}

impl StepReports<'_> {
    /// Tells of a step, or leaves that to the thread that makes its picture; an error where the prompt was interrupted.
    pub(super) fn tell(&self, denoised: &Tensor, done: f64, total: f64) -> Result<(), NodeError> {
        let Some(painter) = &self.painter else {
            return self.cx.progress(done, total, None);
        };
        self.cx.check_interrupt()?;
        let step = Step {
            denoised: denoised.clone(),
            done,
            total,
        };
        // Its thread ends early with a panic only, which then ends the run.
        painter.send(step).map_err(|_| NodeError::Interrupted)
    }
}

/// Makes the pictures of steps on a thread of its own.
struct Painter<'a> {
    previewer: &'a Previewer,
    parts: Option<&'a Arc<[Vec<usize>]>>,
    cx: &'a Cx,
    /// Raised where the run has ended early: nobody is told any more.
    over: &'a AtomicBool,
}

impl Painter<'_> {
    fn work_off(&self, steps: &Receiver<Step>) {
        for step in steps {
            let picture = match self.parts {
                Some(shapes) => nested::first(&step.denoised, shapes)
                    .and_then(|pictures| self.previewer.picture(&pictures)),
                None => self.previewer.picture(&step.denoised),
            };
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            self.cx.report(step.done, step.total, picture);
        }
    }
}

/// Runs something that makes steps, and tells of them in their order. All was told when it returns.
pub(super) fn reported<R, E>(
    previewer: &Previewer,
    parts: Option<&Arc<[Vec<usize>]>>,
    cx: &Cx,
    run: impl FnOnce(&StepReports<'_>) -> Result<R, E>,
) -> Result<R, E> {
    if !previewer.makes_pictures() {
        return run(&StepReports { cx, painter: None });
    }
    let over = &AtomicBool::new(false);
    let (sender, steps) = sync_channel(WAITING);
    let cancel = Cancel::current();
    let painter = Painter {
        previewer,
        parts,
        cx,
        over,
    };
    thread::scope(|scope| {
        let work = move || cancel.within(|| painter.work_off(&steps));
        let thread = thread::Builder::new().name("preview".to_owned());
        let thread = thread.spawn_scoped(scope, work);
        let painter = match &thread {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::warn!("no previews: {error}");
                None
            }
        };
        let reports = StepReports { cx, painter };
        let result = run(&reports);
        over.store(result.is_err(), Ordering::Relaxed);
        // It ends when nobody can send any more.
        drop(reports);
        if let Ok(thread) = thread
            && let Err(panic) = thread.join()
            && !Cancel::current().is_raised()
        {
            resume_unwind(panic);
        }
        result
    })
}
