//! Rows that choose among several feed-forwards.

use std::sync::Arc;

use fresco_tensor::nn::{Linear, softmax_last};
use fresco_tensor::{Device, Tensor};

use super::mlp::Mlp;
use crate::error::Result;

/// Feed-forward parts of which each row asks a few, beside one that all rows ask.
pub struct Experts {
    pub scores: Arc<Linear>,
    pub shared: Mlp,
    pub list: Vec<Mlp>,
    /// How many experts a row asks.
    pub asked: usize,
}

impl Experts {
    /// (b, n, c) to the same.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [b, n, dim] = x.dims3()?;
        let rows = x.reshape([b * n, dim])?;
        let scores = softmax_last(&self.scores.forward(&rows)?)?;
        let asked = self.asked.min(self.list.len());
        let plan = ExpertPlan::new(&scores.to(&Device::cpu())?, asked);
        // Each expert works on its rows only; then all rows go back to where they were.
        let mut made = Vec::with_capacity(self.list.len());
        for (expert, own) in self.list.iter().zip(&plan.rows) {
            if !own.is_empty() {
                made.push(expert.forward(&rows.index_select(0, own)?)?);
            }
        }
        let made = Tensor::cat(&made.iter().collect::<Vec<_>>(), 0)?;
        let mut out = self.shared.forward(&rows)?;
        for (places, weights) in plan.places.iter().zip(plan.weights) {
            let weights = Tensor::from_vec([b * n, 1], weights)?.to(&rows.device())?;
            out = out.add(&made.index_select(0, places)?.mul(&weights)?)?;
        }
        Ok(out.reshape([b, n, dim])?)
    }
}

/// Which rows ask which experts.
pub struct ExpertPlan {
    /// The rows of each expert.
    pub rows: Vec<Vec<usize>>,
    /// For each question of a row: where its answer is when the experts' results are under each other, and how much it
    /// counts.
    pub places: Vec<Vec<usize>>,
    pub weights: Vec<Vec<f32>>,
}

impl ExpertPlan {
    /// From scores (rows, experts), which are in main memory; each row asks so many.
    pub fn new(scores: &Tensor, asked: usize) -> Self {
        let count = scores.shape().last().copied().unwrap_or(0).max(1);
        let mut rows = vec![Vec::new(); count];
        let mut chosen = Vec::new();
        for (row, scores) in scores.data().chunks_exact(count).enumerate() {
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            for &expert in &order[..asked] {
                chosen.push((expert, rows[expert].len(), scores[expert]));
                rows[expert].push(row);
            }
        }
        let starts: Vec<usize> = rows
            .iter()
            .scan(0, |start, own| {
                let own_start = *start;
                *start += own.len();
                Some(own_start)
            })
            .collect();
        let of = |question: usize| chosen.iter().skip(question).step_by(asked.max(1));
        Self {
            places: (0..asked)
                .map(|q| of(q).map(|(e, at, _)| starts[*e] + at).collect())
                .collect(),
            weights: (0..asked)
                .map(|q| of(q).map(|(_, _, weight)| *weight).collect())
                .collect(),
            rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_ask_the_best() {
        let scores = vec![0.1, 0.6, 0.3, 0.5, 0.2, 0.3];
        let plan = ExpertPlan::new(&Tensor::from_vec([2, 3], scores).unwrap(), 2);
        assert_eq!(plan.rows, [vec![1], vec![0], vec![0, 1]]);
        assert_eq!(plan.places, [vec![1, 0], vec![2, 3]]);
        assert_eq!(plan.weights, [vec![0.6, 0.5], vec![0.3, 0.3]]);
    }
}
