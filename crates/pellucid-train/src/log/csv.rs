//! CSV format (RFC 4180), with `\n` as line ending.

/// Appends a row. A cell with a comma, a quote or a line ending is quoted.
pub(super) fn push_row(text: &mut String, cells: impl IntoIterator<Item = impl AsRef<str>>) {
    for (column, cell) in cells.into_iter().enumerate() {
        if column > 0 {
            text.push(',');
        }
        let cell = cell.as_ref();
        if cell.contains([',', '"', '\n', '\r']) {
            text.push('"');
            text.push_str(&cell.replace('"', "\"\""));
            text.push('"');
        } else {
            text.push_str(cell);
        }
    }
    text.push('\n');
}

/// Parses the rows of a CSV string. Lines may end with `\r\n`, and empty lines are skipped.
///
/// # Errors
/// Returns the reason why the string is not a table.
pub(super) fn parse(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut row = Vec::new();
        loop {
            let (cell, after) = split_cell(rest).map_err(|reason| format!("row {}: {reason}", rows.len() + 1))?;
            row.push(cell);
            match after.strip_prefix(',') {
                Some(after) => rest = after,
                None => {
                    rest = after;
                    break;
                }
            }
        }
        rest = rest.strip_prefix('\r').unwrap_or(rest);
        rest = rest.strip_prefix('\n').unwrap_or(rest);
        if row != [""] {
            let (cells, columns) = (row.len(), rows.first().map_or(row.len(), Vec::len));
            if cells != columns {
                return Err(format!("row {} has {cells} cells, but the header has {columns}", rows.len() + 1));
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Returns the first cell, and the rest of the string, which begins with a comma or a line ending.
fn split_cell(text: &str) -> Result<(String, &str), &'static str> {
    let Some(mut quoted) = text.strip_prefix('"') else {
        let end = text.find([',', '\n']).unwrap_or(text.len());
        let cell = &text[..end];
        return match cell.strip_suffix('\r') {
            Some(cell) => Ok((cell.to_string(), &text[end - 1..])),
            None => Ok((cell.to_string(), &text[end..])),
        };
    };
    let mut cell = String::new();
    loop {
        let end = quoted.find('"').ok_or("a quoted cell is not closed")?;
        cell.push_str(&quoted[..end]);
        quoted = &quoted[end + 1..];
        match quoted.strip_prefix('"') {
            Some(after) => {
                cell.push('"');
                quoted = after;
            }
            None if quoted.is_empty() || quoted.starts_with([',', '\r', '\n']) => return Ok((cell, quoted)),
            None => return Err("a quoted cell must end before a comma or the end of the line"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, push_row};

    #[test]
    fn rows_are_read_as_written() {
        let rows = [["step", "a,b"], ["say \"x\"", "two\nlines"], ["", "\r"], ["é", "\""]];
        let mut text = String::new();
        rows.iter().for_each(|row| push_row(&mut text, row));
        assert_eq!(parse(&text).unwrap(), rows);
    }

    #[test]
    fn line_ends_and_empty_lines_do_not_matter() {
        assert_eq!(parse("a,b\r\n\r\n1,\r\n\n\"2\",3").unwrap(), [["a", "b"], ["1", ""], ["2", "3"]]);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn defects_are_described() {
        assert_eq!(parse("a,b\n1\n").unwrap_err(), "row 2 has 1 cells, but the header has 2");
        assert_eq!(parse("a\n\"1").unwrap_err(), "row 2: a quoted cell is not closed");
        assert!(parse("\"a\"b\n").unwrap_err().contains("must end before a comma"));
    }
}
