//! What a workflow asks of the processor, roughly and before it begins: a large picture can take days, and nothing else says
//! so.

use std::time::{Duration, Instant};

use fresco_graph::{Map, Value};
use fresco_memory::amount::readable;
use fresco_nodes::admission::{Assessment, Latent, Verdict};
use fresco_tensor::Tensor;
use fresco_tensor::nn::matmul;

/// Pictures up to 2048 x 2048 are begun without a word.
const USUAL_PIXELS: u64 = 2048 * 2048;
/// Pictures beyond 8192 x 8192 are asked about whatever the model is.
const LARGE_PIXELS: u64 = 8192 * 8192;
/// Between the two, what may take longer is asked about.
const LONG: f64 = 1800.0;

/// Bytes of a weight: most files hold halves.
const WEIGHT: u64 = 2;
/// Pixels of a latent's cell, along both sides.
const CELL: u64 = 64;
/// Cells for which a diffusion model uses each of its weights once: transformers take 4, the levels of a UNet 12 on
/// average.
const CELLS_PER_USE: f64 = 8.0;
/// The same for an autoencoder, in pixels.
const PIXELS_PER_USE: f64 = 17.0;
/// Bytes of a pixel as three numbers, and as it is written.
const PIXEL: u64 = 12 + 3;

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Effort {
    picture: Latent,
    /// Floating-point operations of products with weights; attention comes on top.
    operations: f64,
    memory: u64,
}

impl Effort {
    /// None where no diffusion model computes on the processor, where the picture is not large, and where the workflow is
    /// refused anyway.
    pub(crate) fn of(found: &Assessment, prompt: &Map) -> Option<Self> {
        let picture = found.latent?;
        let pixels = picture
            .batch
            .saturating_mul(picture.width)
            .saturating_mul(picture.height);
        let here = |component: &'static str| {
            let models = found.models.iter();
            models.filter(move |m| m.component == component && m.compute == "cpu")
        };
        let refused = matches!(found.verdict, Verdict::Refused(_));
        if refused || pixels <= USUAL_PIXELS || here("diffusion").next().is_none() {
            return None;
        }
        let uses = |bytes: u64, cells: f64| 2.0 * (bytes / WEIGHT) as f64 * cells;
        let cells = (pixels / CELL) as f64 / CELLS_PER_USE;
        let sampled: f64 = here("diffusion").map(|m| uses(m.bytes, cells)).sum();
        let decoded: f64 = here("vae")
            .map(|m| uses(m.bytes, pixels as f64 / PIXELS_PER_USE))
            .sum();
        let weights: u64 = here("diffusion")
            .chain(here("vae"))
            .chain(here("clip"))
            .map(|m| m.bytes)
            .sum();
        let computing = found.models.iter().map(|m| m.minimum).max().unwrap_or(0);
        Some(Self {
            picture,
            operations: sampled * evaluations(prompt) + decoded,
            memory: weights
                .saturating_add(computing)
                .saturating_add(pixels.saturating_mul(PIXEL)),
        })
    }

    /// Seconds at so many operations a second, at least.
    fn seconds(&self, speed: f64) -> f64 {
        self.operations / speed.max(1.0)
    }

    fn pixels(&self) -> u64 {
        self.picture.batch * self.picture.width * self.picture.height
    }

    /// Whether somebody should have a say before this begins.
    pub(crate) fn is_large(&self, speed: f64, free: Option<u64>) -> bool {
        self.pixels() > LARGE_PIXELS
            || self.seconds(speed) > LONG
            || free.is_some_and(|free| self.memory > free)
    }

    /// One sentence without a full stop.
    pub(crate) fn describe(&self, speed: f64, free: Option<u64>) -> String {
        let Latent {
            batch,
            width,
            height,
        } = self.picture;
        let pictures = match batch {
            1 => "a picture".to_owned(),
            n => format!("{n} pictures"),
        };
        let free = free.map_or(String::new(), |bytes| {
            format!(" ({} are free)", readable(bytes))
        });
        format!(
            "{pictures} of {width} x {height} on the processor: at least {} at the {:.0} billion operations a second of this \
             machine, and about {} of memory{free}",
            duration(self.seconds(speed)),
            speed / 1e9,
            readable(self.memory),
        )
    }
}

/// How often the networks run: the steps of all samplers, twice where there is guidance.
fn evaluations(prompt: &Map) -> f64 {
    let of = |node: &Value| -> Option<f64> {
        let inputs = node.get("inputs")?;
        let steps = inputs.get("steps")?.as_int()? as f64;
        let guided = match inputs.get("cfg") {
            Some(Value::Float(cfg)) => *cfg != 1.0,
            Some(Value::Int(cfg)) => *cfg != 1,
            _ => false,
        };
        Some(if guided { 2.0 * steps } else { steps })
    };
    let all: f64 = prompt.values().filter_map(of).sum();
    all.max(1.0)
}

/// Operations a second of this machine, measured for a tenth of a second with products of matrices.
pub(crate) fn measured_speed() -> fresco_tensor::Result<f64> {
    const SIDE: usize = 512;
    const ENOUGH: Duration = Duration::from_millis(100);
    let a = Tensor::full([1, SIDE, SIDE], 0.5)?;
    // Threads and caches are warm from the second one on.
    matmul(&a, &a)?;
    let begun = Instant::now();
    let mut products = 0.0;
    while begun.elapsed() < ENOUGH {
        matmul(&a, &a)?;
        products += 1.0;
    }
    Ok(products * 2.0 * (SIDE as f64).powi(3) / begun.elapsed().as_secs_f64())
}

/// In the unit that a person would take.
fn duration(seconds: f64) -> String {
    const UNITS: [(f64, &str); 4] = [
        (365.0 * 86400.0, "years"),
        (86400.0, "days"),
        (3600.0, "hours"),
        (60.0, "minutes"),
    ];
    let unit = UNITS.iter().find(|(size, _)| seconds >= 2.0 * size);
    match unit {
        Some((size, name)) => format!("{:.0} {name}", seconds / size),
        None => format!("{:.0} seconds", seconds.max(1.0)),
    }
}

#[cfg(test)]
mod tests {
    use fresco_graph::json;

    use super::*;

    #[test]
    fn durations_have_fitting_units() {
        for (seconds, text) in [
            (0.0, "1 seconds"),
            (100.0, "100 seconds"),
            (600.0, "10 minutes"),
            (7000.0, "117 minutes"),
            (7300.0, "2 hours"),
            (400_000.0, "5 days"),
            (1e9, "32 years"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn the_speed_of_this_machine_is_a_number() {
        // From the slowest core to the widest machine.
        let speed = measured_speed().unwrap();
        assert!(speed > 1e6 && speed < 1e16, "{speed}");
    }

    #[test]
    fn samplers_are_counted_with_their_guidance() {
        let count = |text: &str| evaluations(json::parse(text).unwrap().as_map().unwrap());
        assert_eq!(count("{}"), 1.0);
        assert_eq!(
            count(
                r#"{"1":{"inputs":{"steps":20,"cfg":7.0}},"2":{"inputs":{"steps":4,"cfg":1}},"3":{"inputs":{"steps":["9",0]}}}"#
            ),
            44.0
        );
    }
}
