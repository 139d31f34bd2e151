//! Tables: Markdown for pages, CSV for files.

/// A table of text.
#[derive(Debug, Clone)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// A table without rows, by its first line: `backend | TTL, ms | rounds`.
    #[must_use]
    pub fn of(head: &str) -> Table {
        Table::new(&head.split(" | ").collect::<Vec<_>>())
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has another number of columns than the head.
    pub fn row<const N: usize>(&mut self, row: [String; N]) {
        self.cells(row.into());
    }

    /// Adds a row of a table whose number of columns is computed.
    ///
    /// # Panics
    /// If it has another number of columns than the head.
    pub fn cells(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.head.len(), "a row has a value for each column");
        self.rows.push(row);
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(self.head.len()));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.head) + &rule + &rows
    }

    /// As CSV (RFC 4180).
    #[must_use]
    pub fn csv(&self) -> String {
        let quoted = |cell: &String| {
            if cell.contains([',', '"', '\n']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.clone() }
        };
        let line = |cells: &Vec<String>| cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
        std::iter::once(&self.head).chain(&self.rows).map(line).collect()
    }
}

/// The median of sorted values: the middle one, or the midpoint of the middle two.
#[must_use]
pub fn median<T: Copy>(sorted: &[T], midpoint: fn(T, T) -> T) -> Option<T> {
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { midpoint(sorted[sorted.len() / 2 - 1], upper) })
}

/// The median of values in any order.
#[must_use]
pub fn median_of(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    median(&values, f64::midpoint)
}

/// A number of microseconds in milliseconds: `12.3`.
#[must_use]
pub fn ms(microseconds: u64) -> String {
    let tenths = (microseconds + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median(&[], u64::midpoint), None);
        assert_eq!(median(&[3, 5, 90], u64::midpoint), Some(5));
        assert_eq!(median(&[3, 5, 9, 90], u64::midpoint), Some(7));
        assert_eq!(median(&[1.0, 2.0], f64::midpoint), Some(1.5));
    }

    #[test]
    fn cells_keep_to_their_columns() {
        for mut table in [Table::new(&["a", "b, c"]), Table::of("a | b, c")] {
            table.row(["x|y\nz".to_owned(), "1,\"2\"".to_owned()]);
            assert_eq!(table.markdown(), "| a | b, c |\n|---|---|\n| x\\|y z | 1,\"2\" |\n");
            assert_eq!(table.csv(), "a,\"b, c\"\n\"x|y\nz\",\"1,\"\"2\"\"\"\n");
        }
        assert_eq!((ms(12_349), ms(12_350), ms(0)), ("12.3".to_owned(), "12.4".to_owned(), "0.0".to_owned()));
    }
}
