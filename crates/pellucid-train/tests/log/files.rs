//! Log files: CSV and JSON Lines.

use crate::scratch::Scratch;
use pellucid::train::{CsvLogger, JsonLinesLogger, Logger};
use pellucid::{Error, Result};
use std::fs;
use std::path::Path;

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Numbers that must round-trip through text bit for bit.
const NUMBERS: [f64; 12] = [
    0.1,
    -0.0,
    3.0,
    1e15,
    1e16,
    -123456789012345680.0,
    f64::MAX,
    f64::MIN_POSITIVE,
    5e-324,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
];

fn named() -> Vec<(String, f64)> {
    NUMBERS.iter().enumerate().map(|(index, &value)| (format!("n{index}"), value)).collect()
}

fn borrowed(named: &[(String, f64)]) -> Vec<(&str, f64)> {
    named.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

fn is_same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn numbers_are_read_from_csv_as_written() {
    let (scratch, named) = (Scratch::new(), named());
    let path = scratch.join("log.csv");
    CsvLogger::new(&path).unwrap().scalars(usize::MAX, &borrowed(&named)).unwrap();
    let text = text(&path);
    let row: Vec<&str> = text.lines().nth(1).unwrap().split(',').collect();
    assert_eq!(row[0], usize::MAX.to_string());
    assert!(row[1..].iter().zip(NUMBERS).all(|(cell, number)| is_same(cell.parse().unwrap(), number)), "{text}");
}

#[test]
fn numbers_are_read_from_json_as_written() {
    let (scratch, named) = (Scratch::new(), named());
    let path = scratch.join("log.jsonl");
    JsonLinesLogger::new(&path).unwrap().scalars(7, &borrowed(&named)).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text(&path)).unwrap();
    assert_eq!(line["step"], 7);
    for (name, number) in &named {
        let value = &line[name];
        let actual = value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok())).unwrap();
        assert!(is_same(actual, *number), "{name}: {value}");
    }
}

#[test]
fn names_may_contain_any_character() {
    let scratch = Scratch::new();
    let names = ["a,b", "say \"x\"", "two\nlines", "tab\t\\\u{1}", "größe", ""];
    let row: Vec<(&str, f64)> = names.iter().map(|&name| (name, 1.0)).collect();
    let (csv, json) = (scratch.join("log.csv"), scratch.join("log.jsonl"));
    CsvLogger::new(&csv).unwrap().scalars(1, &row).unwrap();
    JsonLinesLogger::new(&json).unwrap().scalars(1, &row).unwrap();
    let line: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
    assert!(names.iter().all(|name| line[name] == 1.0));
    // A logger that continues the file reads its columns, and adds one.
    let mut log = CsvLogger::resume(&csv, 1).unwrap();
    log.scalars(2, &row[..1]).unwrap();
    log.scalars(3, &[("new", 2.0)]).unwrap();
    let header = "step,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",tab\t\\\u{1},größe,,new\n";
    assert_eq!(text(&csv), format!("{header}1,1,1,1,1,1,1,\n2,1,,,,,,\n3,,,,,,,2\n"));
}

#[test]
fn columns_may_appear_later() {
    let scratch = Scratch::new();
    let path = scratch.join("log.csv");
    let mut log = CsvLogger::new(&path).unwrap();
    assert_eq!(text(&path), "");
    log.scalars(1, &[]).unwrap();
    log.scalars(2, &[("loss", 0.5)]).unwrap();
    log.scalars(3, &[("accuracy", 0.25), ("loss", 1.0)]).unwrap();
    log.scalars(4, &[("accuracy", 0.75)]).unwrap();
    log.flush().unwrap();
    assert_eq!(text(&path), "step,loss,accuracy\n1,,\n2,0.5,\n3,1,0.25\n4,,0.75\n");
}

#[test]
fn a_new_log_empties_the_file_and_a_resumed_one_continues_it() {
    let scratch = Scratch::new();
    let (csv, json) = (scratch.join("log.csv"), scratch.join("log.jsonl"));
    for _ in 0..2 {
        let (mut first, mut second) = (CsvLogger::new(&csv).unwrap(), JsonLinesLogger::new(&json).unwrap());
        for step in 1..=4 {
            first.scalars(step, &[("loss", step as f64)]).unwrap();
            second.scalars(step, &[("loss", step as f64)]).unwrap();
        }
    }
    // The last rows of processes that were killed during a write.
    for path in [&csv, &json] {
        fs::write(path, text(path) + "5,").unwrap();
    }
    CsvLogger::resume(&csv, 2).unwrap().scalars(3, &[("loss", 0.5), ("lr", 1.0)]).unwrap();
    assert_eq!(text(&csv), "step,loss,lr\n1,1,\n2,2,\n3,0.5,1\n");
    JsonLinesLogger::resume(&json, 2).unwrap().scalars(3, &[]).unwrap();
    assert_eq!(text(&json), "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n{\"step\":3}\n");
    // Nothing is removed, and missing files are created.
    JsonLinesLogger::resume(&json, 100).unwrap();
    assert_eq!(text(&json).lines().count(), 3);
    CsvLogger::resume(scratch.join("new.csv"), 5).unwrap().scalars(6, &[("x", 1.0)]).unwrap();
    assert_eq!(text(&scratch.join("new.csv")), "step,x\n6,1\n");
    JsonLinesLogger::resume(scratch.join("new.jsonl"), 5).unwrap();
    assert_eq!(text(&scratch.join("new.jsonl")), "");
}

#[test]
fn other_files_are_rejected_and_kept() {
    let scratch = Scratch::new();
    let path = scratch.join("file");
    for contents in ["epoch,loss\n1,2\n", "step,loss\nx,2\n", "step,loss\n1\n", "{\"step\":\"x\"}\n", "\n\nnotes\n"] {
        fs::write(&path, contents).unwrap();
        for error in [CsvLogger::resume(&path, 9).unwrap_err(), JsonLinesLogger::resume(&path, 9).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("not a log of") && error.contains(path.to_str().unwrap()), "{error}");
        }
        assert_eq!(text(&path), contents);
    }
    fs::write(&path, [0xff, b'\n']).unwrap();
    assert!(CsvLogger::resume(&path, 9).unwrap_err().to_string().contains("not UTF-8"));
}

#[test]
fn names_are_checked() {
    let scratch = Scratch::new();
    let mut log = CsvLogger::new(scratch.join("log.csv")).unwrap();
    log.scalars(1, &[("loss", 1.0)]).unwrap();
    let error = log.scalars(2, &[("step", 1.0)]).unwrap_err().to_string();
    assert_eq!(error, "csv_logger: the name `step` is reserved for the row number; rename the value");
    let mut json = JsonLinesLogger::new(scratch.join("log.jsonl")).unwrap();
    let error = json.scalars(2, &[("a", 1.0), ("b", 1.0), ("a", 1.0)]).unwrap_err().to_string();
    assert_eq!(error, "json_lines_logger: the name `a` occurs twice in one row; rename one value");
    assert_eq!(text(&scratch.join("log.csv")), "step,loss\n1,1\n");
    assert_eq!(text(&scratch.join("log.jsonl")), "");
}

#[test]
fn paths_that_cannot_be_written_are_errors() {
    let scratch = Scratch::new();
    for path in [scratch.join("missing/log"), scratch.path().to_path_buf()] {
        let errors = [
            CsvLogger::new(&path).unwrap_err(),
            CsvLogger::resume(&path, 1).unwrap_err(),
            JsonLinesLogger::new(&path).unwrap_err(),
            JsonLinesLogger::resume(&path, 1).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::File { .. }), "{error}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let full = "/dev/full";
    let mut logs: Vec<Box<dyn Logger>> =
        vec![Box::new(CsvLogger::new(full).unwrap()), Box::new(JsonLinesLogger::new(full).unwrap())];
    for log in &mut logs {
        let error = log.scalars(1, &[("loss", 0.5)]).unwrap_err();
        assert!(error.to_string().contains("delete files, or use another disk"), "{error}");
    }
}

/// A logger that always fails, and counts the calls.
struct Failing(usize);

impl Logger for Failing {
    fn scalars(&mut self, _: usize, _: &[(&str, f64)]) -> Result<()> {
        self.0 += 1;
        Err(Error::InvalidArgument { op: "failing", reason: format!("call {}", self.0) })
    }

    fn flush(&mut self) -> Result<()> {
        self.scalars(0, &[])
    }
}

#[test]
fn several_loggers_are_one() {
    let scratch = Scratch::new();
    let path = scratch.join("log.csv");
    let mut log: Vec<Box<dyn Logger>> =
        vec![Box::new(Failing(0)), Box::new(Failing(5)), Box::new(CsvLogger::new(&path).unwrap())];
    let error = log.scalars(1, &[("loss", 0.5)]).unwrap_err().to_string();
    assert_eq!(error, "failing: call 1");
    assert_eq!(text(&path), "step,loss\n1,0.5\n", "loggers after one that fails get the numbers");
    assert_eq!(log.flush().unwrap_err().to_string(), "failing: call 2");
    let mut none: Vec<Box<dyn Logger>> = Vec::new();
    none.scalars(1, &[("loss", 0.5)]).unwrap();
}

/// A process that is killed between logging an epoch and saving its state logs the epoch again after a resume.
#[test]
fn a_record_that_the_log_has_is_not_repeated() {
    let scratch = Scratch::new();
    let (csv, json) = (scratch.join("log.csv"), scratch.join("log.jsonl"));
    let epoch: &[(&str, f64)] = &[("a,\"b\\", 1.5), ("loss", f64::NAN), ("seconds", 1.0)];
    let again: &[(&str, f64)] = &[("a,\"b\\", 1.5), ("loss", f64::NAN), ("seconds", 2.0)];
    let mut logs: [Box<dyn Logger>; 2] =
        [Box::new(CsvLogger::new(&csv).unwrap()), Box::new(JsonLinesLogger::new(&json).unwrap())];
    for log in &mut logs {
        log.scalars(3, &[("loss", 0.5)]).unwrap();
        log.scalars(4, &[("loss", 0.25)]).unwrap();
        log.scalars(4, epoch).unwrap();
    }
    let before = [&csv, &json].map(|path| std::fs::read_to_string(path).unwrap());
    let mut logs: [Box<dyn Logger>; 2] =
        [Box::new(CsvLogger::resume(&csv, 4).unwrap()), Box::new(JsonLinesLogger::resume(&json, 4).unwrap())];
    logs.iter_mut().for_each(|log| log.scalars(4, again).unwrap());
    assert_eq!([&csv, &json].map(|path| std::fs::read_to_string(path).unwrap()), before);
    for log in &mut logs {
        log.scalars(4, &[("loss", 0.5), ("seconds", 1.0)]).unwrap();
        log.scalars(5, again).unwrap();
    }
    let lines = [&csv, &json].map(|path| std::fs::read_to_string(path).unwrap().lines().count());
    assert_eq!(lines, [6, 5]);
}
