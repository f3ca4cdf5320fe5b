//! The order in which files keep the scales of blocks, made for the matrix units of one maker's GPUs: tiles of 128 rows by
//! four columns, in which rows 32 apart lie next to each other.

/// Rows and columns of a tile.
pub(crate) const ROWS: usize = 128;
const COLUMNS: usize = 4;

/// The sizes of the stored matrix, which is filled up to whole tiles.
pub fn stored_size(rows: usize, columns: usize) -> (usize, usize) {
    (
        rows.next_multiple_of(ROWS),
        columns.next_multiple_of(COLUMNS),
    )
}

/// Where a value of the plain matrix is in the stored one with so many plain columns.
pub fn place(row: usize, column: usize, columns: usize) -> usize {
    let across = columns.div_ceil(COLUMNS);
    let tile = row / ROWS * across + column / COLUMNS;
    let (a, b) = (row % ROWS / 32, row % 32);
    tile * ROWS * COLUMNS + b * 16 + a * COLUMNS + column % COLUMNS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_own_place() {
        let (rows, columns) = (200, 6);
        let (high, wide) = stored_size(rows, columns);
        assert_eq!((high, wide), (256, 8));
        let mut seen = vec![false; high * wide];
        for row in 0..rows {
            for column in 0..columns {
                let at = place(row, column, columns);
                assert!(!std::mem::replace(&mut seen[at], true));
            }
        }
        assert_eq!(place(33, 1, 4), 16 + 4 + 1);
        assert_eq!(place(0, 4, 8), 512);
    }
}
