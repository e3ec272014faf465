//! Lines of JSON.

use crate::scratch::Scratch;
use pellucid::data::{Column, ColumnType, Table, read_json_lines};

#[test]
fn lines_of_json_are_values_and_tables() {
    let scratch = Scratch::new("json");
    let text = "{\"id\": 9007199254740993, \"x\": 1, \"label\": \"b\", \"ok\": true}\n\n{\"id\": 2, \"x\": null, \"label\": \"a\"}\n\
                {\"x\": 0.5, \"id\": 3, \"label\": null}";
    let path = scratch.file("rows.jsonl", text.as_bytes());
    let values = read_json_lines(&path).unwrap();
    assert_eq!((values.len(), values[1]["label"].as_str()), (3, Some("a")));
    let table = Table::read_json_lines(&path).unwrap();
    assert_eq!(table.column("id").unwrap(), &Column::from(vec![9_007_199_254_740_993, 2, 3]));
    assert_eq!(table.column("x").unwrap().column_type(), ColumnType::Float);
    assert_eq!((table.missing("x").unwrap(), table.missing("ok").unwrap()), (1, 2));
    assert_eq!(table.categories("label").unwrap(), ["a", "b"]);
    assert_eq!(table.categories("ok").unwrap(), ["true"]);
}

#[test]
fn byte_order_marks_and_large_integers_are_read() {
    let scratch = Scratch::new("json-mark");
    let text = "\u{feff}{\"id\": 9007199254740993, \"n\": 1}\n{\"id\": null, \"n\": 0.5}\n";
    let path = scratch.file("rows.jsonl", text.as_bytes());
    assert_eq!(read_json_lines(&path).unwrap().len(), 2);
    let table = Table::read_json_lines(&path).unwrap();
    assert_eq!(table.categories("id").unwrap(), ["9007199254740993"]);
    assert_eq!((table.missing("id").unwrap(), table.floats("n").unwrap()), (1, vec![1.0, 0.5]));
}

#[test]
fn errors_name_the_line() {
    let scratch = Scratch::new("json-errors");
    for (text, expected) in [
        ("{\"a\": 1}\n{\"a\": }\n", "line 2, byte 7: expected value"),
        ("{\"a\": 1}\n\n[1]\n", "line 3: a row of a table must be a JSON object"),
        ("{\"a\": 1}\n{\"a\": \"x\"}\n", "line 2, column \"a\": the column mixes numbers and strings: line 1 has"),
        ("{\"a\": [1]}\n", "line 1, column \"a\": a value of a table must be a number"),
        ("\u{0}\u{1}", "line 1"),
    ] {
        let path = scratch.file("bad.jsonl", text.as_bytes());
        let error = Table::read_json_lines(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("bad.jsonl"), "{error:?} does not contain {expected:?}");
    }
    let absent = read_json_lines(scratch.0.join("absent.jsonl")).unwrap_err().to_string();
    assert!(absent.contains("does not exist"), "{absent}");
}
