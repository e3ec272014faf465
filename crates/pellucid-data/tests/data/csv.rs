//! Files of comma-separated values.

use crate::scratch::Scratch;
use pellucid::data::{Column, ColumnType, CsvOptions, Table};
use pellucid::{Error, Result};

fn parse(text: &str) -> Result<Table> {
    Table::from_csv(text, CsvOptions::default())
}

fn parse_error(text: &str, options: CsvOptions<'_>) -> String {
    Table::from_csv(text, options).unwrap_err().to_string()
}

#[test]
fn columns_have_the_narrowest_type_that_is_exact() {
    let text = "i,f,e,text,mixed,large,gap,none\n1,1.5,1,a,1,9223372036854775808,1,\n-2,2,1e3,b,x,1,,\n+3,-0.25,inf,a,2,2,3,\n";
    let table = parse(text).unwrap();
    let types: Vec<ColumnType> =
        table.column_names().iter().map(|name| table.column(name).unwrap().column_type()).collect();
    use ColumnType::{Category, Float, Integer};
    assert_eq!(types, [Integer, Float, Float, Category, Category, Category, Float, Float]);
    assert_eq!(table.column("i").unwrap(), &Column::from(vec![1, -2, 3]));
    assert_eq!(table.floats("e").unwrap(), [1.0, 1000.0, f64::INFINITY]);
    assert_eq!(table.categories("large").unwrap(), ["1", "2", "9223372036854775808"]);
    assert!(table.floats("gap").unwrap()[1].is_nan());
    assert_eq!(table.missing("none").unwrap(), 3);
}

#[test]
fn quotes_spaces_line_ends_and_byte_order_marks_are_read() {
    let text = "\u{feff}name, value\r\n\"a, b\", 1\r\n\r\n\"say \"\"hi\"\"\nthere\" , 2\r\n";
    let table = parse(text).unwrap();
    assert_eq!(table.column_names(), ["name", "value"]);
    assert_eq!(table.categories("name").unwrap(), ["a, b", "say \"hi\"\nthere"]);
    assert_eq!(table.labels("value").unwrap().to_vec::<i64>(), [1, 2]);
    // A file without rows has columns.
    assert_eq!(parse("a,b\n").unwrap().shape(), (0, 2));
}

#[test]
fn options_select_names_columns_and_types() {
    let text = "# made by hand\n1\t2\tx\n3\t?\ty\n";
    let options = CsvOptions {
        header: false,
        names: &["a", "b", "c"],
        columns: &["c", "b"],
        delimiter: '\t',
        comment: Some('#'),
        missing: &["?"],
        types: &[("b", ColumnType::Integer)],
        ..Default::default()
    };
    let table = Table::from_csv(text, options).unwrap();
    assert_eq!(table.column_names(), ["c", "b"]);
    assert_eq!(table.floats("b").unwrap()[0], 2.0);
    assert!(table.floats("b").unwrap()[1].is_nan());
    // Without a header and names, the columns are numbered.
    let numbered = CsvOptions { header: false, ..Default::default() };
    assert_eq!(Table::from_csv("1,2\n", numbered).unwrap().column_names(), ["0", "1"]);
    // The names of the options replace the header.
    let renamed = CsvOptions { names: &["x", "y"], ..Default::default() };
    assert_eq!(Table::from_csv("a,b\n1,2\n", renamed).unwrap().floats("y").unwrap(), [2.0]);
}

#[test]
fn errors_name_the_line_and_the_column() {
    let default = CsvOptions::default;
    let typed = |column_type| CsvOptions {
        types: match column_type {
            ColumnType::Float => &[("b", ColumnType::Float)],
            ColumnType::Integer => &[("b", ColumnType::Integer)],
            ColumnType::Category => &[("z", ColumnType::Category)],
        },
        ..default()
    };
    for (text, options, expected) in [
        ("a,b\n1,2\n3\n", default(), "line 3 has 1 fields, but there are 2 columns: a, b; check the delimiter, ','"),
        ("a,b\n1,2\n\n3,4,5\n", default(), "line 4 has 3 fields"),
        ("a,a\n1,2\n", default(), r#"two columns have the name "a""#),
        ("a,b\n1,2\n1,two\n", typed(ColumnType::Float), r#"line 3, column "b": "two" is not a number"#),
        ("a,b\n1,2.5\n", typed(ColumnType::Integer), r#"line 2, column "b": "2.5" is not an integer"#),
        ("a,b\n1,2\n", typed(ColumnType::Category), r#"no column "z"; the columns are a, b"#),
        ("a,b\n1,2\n", CsvOptions { columns: &["c"], ..default() }, r#"no column "c""#),
        (
            "a,b\n1,2\n1,NAN\n",
            CsvOptions { allow_missing: false, ..default() },
            r#"line 3, column "b": the value is missing"#,
        ),
        ("a,b\n1,\n", CsvOptions { allow_missing: false, ..default() }, r#"line 2, column "b": the value is missing"#),
        ("", default(), "the file is empty"),
        ("a\n1\n", CsvOptions { delimiter: 'é', ..default() }, "delimiter"),
        ("a,b\n1,2\n", CsvOptions { names: &["a"], ..default() }, "1 names, but the header has 2 fields"),
    ] {
        let message = parse_error(text, options);
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
}

#[test]
fn files_are_read_and_errors_name_them() {
    let scratch = Scratch::new("csv");
    let path = scratch.file("points.csv", b"x,y\n1,2\n3,4\n");
    let table = Table::read_csv(&path, CsvOptions::default()).unwrap();
    assert_eq!(table.tensor(&["x", "y"]).unwrap().to_vec2::<f32>(), [[1.0, 2.0], [3.0, 4.0]]);
    let latin = scratch.file("latin.csv", b"x\ncaf\xe9\n");
    let wide = scratch.file("wide.csv", &b",".repeat(70_000));
    for (path, expected) in [
        (latin, "line 2: the text is not UTF-8"),
        (wide, "70001 fields"),
        (scratch.0.join("absent.csv"), "does not exist"),
        (scratch.0.clone(), "the path is a directory"),
    ] {
        let error = Table::read_csv(&path, CsvOptions::default()).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(expected) && message.contains(&path.display().to_string()), "{message}");
    }
}

/// White space around a field is removed; white space inside quotes is kept.
#[test]
fn white_space_in_quotes_is_kept() {
    let text =
        "\u{feff}\" a \", b\r\n# \" x\"\r\n\r\n\"  say \"\"hi\"\" \" , x \r\n\"\n\",\" 7 \"\r\n y ,8\r\nz,\" NA\"\n";
    let table = Table::from_csv(text, CsvOptions { comment: Some('#'), ..Default::default() }).unwrap();
    assert_eq!(table.column_names(), [" a ", "b"]);
    let column = |name: &str| (0..table.len()).map(|row| table.column(name).unwrap().text(row)).collect::<Vec<_>>();
    assert_eq!(column(" a "), ["  say \"hi\" ", "\n", "y", "z"]);
    assert_eq!(column("b"), ["x", " 7 ", "8", " NA"]);
    // Numbers in quotes are numbers.
    assert_eq!(parse("n\n\" 7 \"\n8\n").unwrap().labels("n").unwrap().to_vec::<i64>(), [7, 8]);
}

#[test]
fn integers_that_floats_round_are_strings() {
    let table = parse("a,b,c\n9007199254740993,9007199254740993,9007199254740992\n,0.5,\n").unwrap();
    assert_eq!(table.categories("a").unwrap(), ["9007199254740993"]);
    assert_eq!(table.categories("b").unwrap(), ["0.5", "9007199254740993"]);
    assert_eq!(table.floats("c").unwrap()[0], 9_007_199_254_740_992.0);
    let options = CsvOptions { types: &[("a", ColumnType::Integer)], ..Default::default() };
    let error = parse_error("a,b\n9007199254740993,1\n,2\n", options);
    assert!(error.contains("is not an integer that f64 represents exactly"), "{error}");
    let options = CsvOptions { types: &[("a", ColumnType::Float)], ..Default::default() };
    assert!(Table::from_csv("a\n9007199254740993\n", options).is_ok());
}

#[test]
fn characters_with_another_meaning_are_rejected() {
    for delimiter in ['"', '\n', '\r'] {
        let error = parse_error("a,b\n1,2\n", CsvOptions { delimiter, ..Default::default() });
        assert!(error.contains("delimiter"), "{error}");
    }
    for comment in ['"', '\n', ','] {
        let error = parse_error("a,b\n1,2\n", CsvOptions { comment: Some(comment), ..Default::default() });
        assert!(error.contains("comment"), "{error}");
    }
}

#[test]
fn quotes_that_are_not_closed_are_errors() {
    let error = |text: &str| Table::from_csv(text, CsvOptions::default()).unwrap_err().to_string();
    for (text, line) in [
        ("a,b\n1,x\n2,\"y\n3,z\n", "line 3:"),
        ("a,b\n1,\"x\ny\"\n2,\"z", "line 4:"),
        ("\"a,b\n1,2\n", "line 1:"),
        ("a,b\r\n1,\"x\"\"\r\n", "line 2:"),
    ] {
        let error = error(text);
        assert!(error.contains(line) && error.contains("never closed"), "{text:?}: {error}");
    }
    for text in ["a,b\n1,\"x\"y\n", "a,b\n2,\"y\n3,\"z\n", "a\n\"x\" \"y\"\n"] {
        let error = error(text);
        assert!(error.contains("text follows the closing quote"), "{text:?}: {error}");
    }
    let options = CsvOptions { comment: Some('#'), ..Default::default() };
    let text = "a,b\n# it's \"odd\n1,\"x, \"\"y\"\"\" \n2,5\" disk\n3, \"\n";
    let table = Table::from_csv(text, options).unwrap();
    let column = table.column("b").unwrap();
    assert_eq!([0, 1, 2].map(|row| column.text(row)), ["x, \"y\"", "5\" disk", "\""]);
}
