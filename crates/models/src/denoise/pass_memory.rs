//! What a pass of a network takes beside its weights.

/// The memory that a pass holds at its fullest: so many values for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassMemory {
    tokens: Tokens,
    /// Tokens of an item beside those of its latent: the prompt's.
    extra: usize,
    /// Values of a token.
    values: usize,
}

/// What of a latent is one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    /// So many cells.
    Cells(usize),
    /// So many places along the last dimension, whatever is before it.
    Places(usize),
    /// So many values, whatever they belong to.
    Values(usize),
}

impl PassMemory {
    const fn new(tokens: Tokens, width: usize, held: usize) -> Self {
        Self {
            tokens,
            extra: 1,
            values: width * held,
        }
    }

    /// Of pictures and films (b, c, ...) with a token for so many cells; at its fullest a pass holds so many widths of a token.
    pub const fn of_cells(cells: usize, width: usize, held: usize) -> Self {
        Self::new(Tokens::Cells(cells), width, held)
    }

    /// Of sound and solids (b, .., n) with a token for so many places along their last dimension.
    pub const fn of_places(places: usize, width: usize, held: usize) -> Self {
        Self::new(Tokens::Places(places), width, held)
    }

    /// Of latents of several parts in one row, with a token for so many values.
    pub const fn of_values(values: usize, width: usize, held: usize) -> Self {
        Self::new(Tokens::Values(values), width, held)
    }

    /// With a prompt of so many tokens, which go through the same blocks.
    #[must_use]
    pub const fn with_prompt(self, tokens: usize) -> Self {
        Self {
            extra: tokens,
            ..self
        }
    }

    /// Bytes that a pass over latents of this shape takes.
    pub fn bytes(&self, shape: &[usize]) -> u64 {
        let product = |sizes: &[usize]| -> u64 {
            let sizes = sizes.iter().map(|n| *n as u64);
            sizes.fold(1, u64::saturating_mul)
        };
        let batch = shape.first().copied().unwrap_or(0) as u64;
        let extra = self.extra as u64;
        let each = |all: u64, token: usize| all.div_ceil(token.max(1) as u64);
        let tokens = match self.tokens {
            Tokens::Cells(cells) => {
                let one = each(product(shape.get(2..).unwrap_or(&[])), cells);
                batch.saturating_mul(one.saturating_add(extra))
            }
            Tokens::Places(places) => {
                let one = each(shape.last().copied().unwrap_or(0) as u64, places);
                batch.saturating_mul(one.saturating_add(extra))
            }
            Tokens::Values(values) => each(product(shape), values).saturating_add(extra),
        };
        tokens.saturating_mul(self.values as u64 * size_of::<f32>() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_by_what_they_stand_for() {
        let cells = PassMemory::of_cells(4, 10, 3).with_prompt(7);
        assert_eq!(cells.bytes(&[2, 16, 3, 8, 8]), 2 * (48 + 7) * 30 * 4);
        // Half a token is one.
        assert_eq!(cells.bytes(&[1, 16, 3, 3]), (3 + 7) * 30 * 4);
        let places = PassMemory::of_places(2, 10, 3);
        assert_eq!(places.bytes(&[2, 8, 16, 9]), 2 * (5 + 1) * 30 * 4);
        let values = PassMemory::of_values(16, 10, 3);
        assert_eq!(values.bytes(&[2, 1, 160]), (20 + 1) * 30 * 4);
        for shape in [&[][..], &[0], &[usize::MAX; 5]] {
            let _ = (cells.bytes(shape), places.bytes(shape), values.bytes(shape));
        }
        assert_eq!(cells.bytes(&[usize::MAX; 5]), u64::MAX);
    }
}
