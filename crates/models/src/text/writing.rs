//! Writing: a language model goes on with a text, one token after the other.

use std::collections::BTreeSet;
use std::ops::Range;

use fresco_tensor::nn::DeltaMemory;
use fresco_tensor::{Generator, Tensor};

use super::tokens::Tokens;

/// What one layer keeps of what was read.
pub(super) enum Remembered {
    /// Keys and values of all rows.
    Rows(Tensor, Tensor),
    /// Something of one size, whatever was read.
    Matrices(DeltaMemory),
}

/// What a network has read so far, layer by layer, and where the next row is.
#[derive(Default)]
pub struct Memory {
    pub(super) layers: Vec<Option<Remembered>>,
    pub(super) next: f32,
}

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// Below 1 likely tokens become likelier.
    pub temperature: f64,
    /// Only so many of the likeliest; 0 for all.
    pub top_k: usize,
    /// Only the likeliest that together are so likely.
    pub top_p: f64,
    /// Only those that are so likely compared to the likeliest.
    pub min_p: f64,
    /// Tokens that were there become less likely; 1 changes nothing.
    pub repetition_penalty: f64,
    /// The same for tokens that were written, by a fixed amount.
    pub presence_penalty: f64,
    pub seed: u64,
}

/// How a text is written.
#[derive(Debug, Clone)]
pub struct WritingRule {
    pub most: usize,
    /// None: always the likeliest.
    pub draw: Option<Draw>,
    /// Tokens that end it.
    pub stops: Vec<u32>,
    /// The tokens that may be written; none for all.
    pub only: Option<Range<u32>>,
    pub guidance: Option<WritingGuidance>,
}

/// Classifier-free guidance: a text is led away from what would follow another prompt.
#[derive(Debug, Clone)]
pub struct WritingGuidance {
    /// How far; 1 changes nothing.
    pub scale: f32,
    pub away_from: Tokens,
}

impl WritingGuidance {
    /// Moves scores away from those after the other prompt.
    pub(super) fn apply(&self, scores: &mut [f32], other: &[f32]) {
        for (score, other) in scores.iter_mut().zip(other) {
            *score = other + self.scale * (*score - other);
        }
    }
}

/// Chooses one token after the other.
pub(super) struct Chooser {
    draw: Option<Draw>,
    /// The token that the first score is of.
    first: u32,
    random: Generator,
    read: BTreeSet<u32>,
    written: BTreeSet<u32>,
}

impl Chooser {
    /// `read` are the tokens of the prompt.
    pub(super) fn new(draw: Option<Draw>, read: impl IntoIterator<Item = u32>) -> Self {
        Self {
            draw,
            first: 0,
            random: Generator::new(draw.map_or(0, |draw| draw.seed)),
            read: read.into_iter().collect(),
            written: BTreeSet::new(),
        }
    }

    /// The same where scores begin with that of this token.
    pub(super) fn starting_at(self, first: u32) -> Self {
        Self { first, ..self }
    }

    /// The next token, given how likely each is.
    pub(super) fn next(&mut self, scores: &mut [f32]) -> u32 {
        let place = match self.draw {
            None => likeliest(scores),
            Some(draw) => {
                self.discourage(&draw, scores);
                drawn(&draw, scores, self.random.uniform_f64())
            }
        };
        let chosen = self.first.saturating_add(place);
        self.written.insert(chosen);
        chosen
    }

    fn discourage(&self, draw: &Draw, scores: &mut [f32]) {
        let place = |id: &u32| id.checked_sub(self.first).map(|place| place as usize);
        let penalty = draw.repetition_penalty as f32;
        if penalty > 0.0 && penalty != 1.0 {
            for at in self.read.union(&self.written).filter_map(place) {
                if let Some(score) = scores.get_mut(at) {
                    *score = if *score > 0.0 {
                        *score / penalty
                    } else {
                        *score * penalty
                    };
                }
            }
        }
        for at in self.written.iter().filter_map(place) {
            if let Some(score) = scores.get_mut(at) {
                *score -= draw.presence_penalty as f32;
            }
        }
    }
}

/// The first of the highest; what is no number never is.
fn likeliest(scores: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, score) in scores.iter().enumerate() {
        if *score > best.1 {
            best = (id, *score);
        }
    }
    best.0 as u32
}

/// The token at a place between 0 and 1 of all that may be taken.
fn drawn(draw: &Draw, scores: &[f32], place: f64) -> u32 {
    let mut order: Vec<u32> = (0..scores.len() as u32)
        .filter(|id| scores[*id as usize].is_finite())
        .collect();
    let higher = |a: &u32, b: &u32| {
        let (x, y) = (scores[*a as usize], scores[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    if draw.top_k > 0 && draw.top_k < order.len() {
        order.select_nth_unstable_by(draw.top_k - 1, higher);
        order.truncate(draw.top_k);
    }
    order.sort_unstable_by(higher);
    let Some(first) = order.first() else {
        return 0;
    };
    let top = f64::from(scores[*first as usize]);
    let temperature = draw.temperature.max(1e-4);
    let weight = |id: &u32| ((f64::from(scores[*id as usize]) - top) / temperature).exp();
    let weights: Vec<f64> = order.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let mut kept = 0;
    let mut sum = 0.0;
    for weight in &weights {
        // One always stays: the likeliest.
        let enough = kept > 0 && sum >= draw.top_p * total;
        if enough || (kept > 0 && *weight < draw.min_p) {
            break;
        }
        sum += weight;
        kept += 1;
    }
    let mut left = place * sum;
    for (id, weight) in order.iter().zip(&weights).take(kept) {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    order[kept - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Draw = Draw {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        seed: 7,
    };

    #[test]
    fn without_chance_the_likeliest_is_taken() {
        let mut chooser = Chooser::new(None, []);
        assert_eq!(chooser.next(&mut [0.0, 3.0, f32::NAN, 3.0]), 1);
    }

    #[test]
    fn only_likely_tokens_are_drawn() {
        // Shares 0.64, 0.24, 0.09, 0.03.
        let scores = [1.0, 3.0, 2.0, 0.0];
        let at = |draw: Draw| [0.0, 0.5, 0.7, 0.95, 0.9999].map(|p| drawn(&draw, &scores, p));
        assert_eq!(at(PLAIN), [1, 1, 2, 0, 3]);
        assert_eq!(at(Draw { top_k: 2, ..PLAIN }), [1, 1, 1, 2, 2]);
        assert_eq!(
            at(Draw {
                top_p: 0.8,
                ..PLAIN
            }),
            [1, 1, 1, 2, 2]
        );
        assert_eq!(
            at(Draw {
                min_p: 0.2,
                ..PLAIN
            }),
            [1, 1, 1, 2, 2]
        );
        assert_eq!(
            at(Draw {
                top_p: 0.0,
                ..PLAIN
            }),
            [1; 5]
        );
        let cold = Draw {
            temperature: 0.0,
            ..PLAIN
        };
        assert_eq!(at(cold), [1; 5]);
    }

    #[test]
    fn what_was_there_becomes_less_likely() {
        let draw = Draw {
            repetition_penalty: 2.0,
            presence_penalty: 1.0,
            top_k: 1,
            ..PLAIN
        };
        let mut chooser = Chooser::new(Some(draw), [1]);
        // 4 / 2 of what was read is less than 3; then that is 3 / 2 - 1.
        assert_eq!(chooser.next(&mut [0.0, 4.0, 3.0]), 2);
        assert_eq!(chooser.next(&mut [0.0, 4.0, 3.0]), 1);
        assert_eq!(chooser.next(&mut [0.9, 4.0, 3.0]), 1);
        assert_eq!(chooser.next(&mut [1.1, 4.0, 3.0]), 0);
    }

    #[test]
    fn scores_of_some_tokens_are_those_of_the_tokens_they_stand_for() {
        let mut chooser = Chooser::new(None, []).starting_at(100);
        assert_eq!(chooser.next(&mut [0.0, 3.0, 1.0]), 101);
        let draw = Draw {
            presence_penalty: 5.0,
            top_k: 1,
            ..PLAIN
        };
        let mut chooser = Chooser::new(Some(draw), [1]).starting_at(100);
        assert_eq!(chooser.next(&mut [0.0, 3.0, 1.0]), 101);
        assert_eq!(chooser.next(&mut [0.0, 3.0, 1.0]), 102);
    }

    #[test]
    fn guidance_leads_away_from_the_other_prompt() {
        let guidance = WritingGuidance {
            scale: 2.0,
            away_from: Tokens::default(),
        };
        let mut scores = [1.0, 2.0];
        guidance.apply(&mut scores, &[0.5, 3.0]);
        assert_eq!(scores, [1.5, 1.0]);
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed: u64| {
            let mut chooser = Chooser::new(Some(Draw { seed, ..PLAIN }), []);
            let next = |_| chooser.next(&mut [0.0; 50]);
            (0..20).map(next).collect::<Vec<u32>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
