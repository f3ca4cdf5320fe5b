//! Results as a Markdown table, ready for the page.

use std::fmt;

#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    /// The most the value may be.
    target: Option<f64>,
    reference: &'static str,
}

impl Table {
    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        target: Option<f64>,
        reference: &'static str,
    ) {
        let row = Row {
            what: what.into(),
            value,
            unit,
            target,
            reference,
        };
        eprintln!("  {}: {} {}", row.what, number(row.value), row.unit);
        self.rows.push(row);
    }

    pub(crate) fn missed(&self) -> usize {
        self.rows.iter().filter(|row| !row.met()).count()
    }
}

impl Row {
    fn met(&self) -> bool {
        self.target.is_none_or(|target| self.value <= target)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | measured | at most | reference |")?;
        writeln!(f, "|---|---|---|---|")?;
        for row in &self.rows {
            let target = match row.target {
                Some(target) => format!("{} {}", number(target), row.unit),
                None => String::new(),
            };
            let missed = if row.met() { "" } else { " (missed)" };
            let value = format!("{} {}", number(row.value), row.unit);
            writeln!(
                f,
                "| {} | {} | {}{missed} | {} |",
                row.what,
                value.trim(),
                target.trim(),
                row.reference
            )?;
        }
        Ok(())
    }
}

/// Three significant digits, which is more than a shared machine deserves.
fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 6) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let shown: Vec<String> = [0.0, 0.01234, 1.5, 99.96, 12345.6].map(number).into();
        assert_eq!(shown, ["0", "0.0123", "1.50", "100.0", "12346"]);
    }

    #[test]
    fn a_missed_target_is_marked() {
        let mut table = Table::default();
        table.row("a", 1.0, "s", Some(2.0), "");
        table.row("b", 3.0, "s", Some(2.0), "9.9 s");
        assert_eq!(table.missed(), 1);
        assert!(
            table
                .to_string()
                .contains("| b | 3.00 s | 2.00 s (missed) | 9.9 s |")
        );
    }
}
