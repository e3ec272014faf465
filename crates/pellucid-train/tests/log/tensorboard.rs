//! Event files, decoded by an independent reader: records with checksums, and fields of Protocol Buffers.
//!
//! `read_back.py` reads a run with TensorBoard itself.

use crate::scratch::Scratch;
use pellucid::train::{Logger, TensorBoard};
use pellucid::{DType, Error, Tensor};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

fn assert_checksum(data: &[u8], stored: &[u8]) {
    let crc = crc32c(data);
    let masked = crc.rotate_right(15).wrapping_add(0xa282_ead8);
    assert_eq!(masked, u32::from_le_bytes(stored.try_into().unwrap()));
}

/// Returns the data of the records of a file.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        assert_checksum(&rest[..8], &rest[8..12]);
        assert_checksum(&rest[12..12 + len], &rest[12 + len..16 + len]);
        records.push(rest[12..12 + len].to_vec());
        rest = &rest[16 + len..];
    }
    records
}

/// The fields of a message: the bytes of each value, by field number.
#[derive(Debug)]
struct Message(BTreeMap<u64, Vec<Vec<u8>>>);

impl Message {
    fn parse(bytes: &[u8]) -> Message {
        let (mut fields, mut rest) = (BTreeMap::<u64, Vec<Vec<u8>>>::new(), bytes);
        while !rest.is_empty() {
            let (key, after) = varint(rest);
            let (value, after) = match key & 7 {
                0 => {
                    let (value, after) = varint(after);
                    (value.to_le_bytes().to_vec(), after)
                }
                1 => (after[..8].to_vec(), &after[8..]),
                2 => {
                    let (len, after) = varint(after);
                    (after[..len as usize].to_vec(), &after[len as usize..])
                }
                5 => (after[..4].to_vec(), &after[4..]),
                other => panic!("wire type {other}"),
            };
            fields.entry(key >> 3).or_default().push(value);
            rest = after;
        }
        Message(fields)
    }

    fn all(&self, field: u64) -> Vec<Message> {
        self.0.get(&field).into_iter().flatten().map(|bytes| Message::parse(bytes)).collect()
    }

    /// Returns the message at a path of nested fields, each of which occurs once.
    fn at(&self, path: &[u64]) -> Message {
        match path {
            [] => Message(self.0.clone()),
            [field, rest @ ..] => Message::parse(self.bytes(*field)).at(rest),
        }
    }

    fn bytes(&self, field: u64) -> &[u8] {
        match &self.0[&field][..] {
            [value] => value,
            values => panic!("{} values of field {field}", values.len()),
        }
    }

    fn text(&self, field: u64) -> &str {
        std::str::from_utf8(self.bytes(field)).unwrap()
    }

    fn int(&self, field: u64) -> i64 {
        i64::from_le_bytes(self.bytes(field).try_into().unwrap())
    }

    fn double(&self, field: u64) -> f64 {
        f64::from_le_bytes(self.bytes(field).try_into().unwrap())
    }

    fn float(&self, field: u64) -> f32 {
        f32::from_le_bytes(self.bytes(field).try_into().unwrap())
    }

    fn doubles(&self, field: u64) -> Vec<f64> {
        self.bytes(field).chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

fn varint(bytes: &[u8]) -> (u64, &[u8]) {
    let len = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value = bytes[..len].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
    (value, &bytes[len..])
}

/// Returns the event files of a directory, sorted by name.
fn event_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Returns the events of the only file of a directory, without the first event, which contains the version.
fn events(directory: &Path) -> Vec<Message> {
    let files = event_files(directory);
    assert_eq!(files.len(), 1);
    assert!(files[0].file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let events: Vec<Message> = records(&fs::read(&files[0]).unwrap()).iter().map(|data| Message::parse(data)).collect();
    assert_eq!(events[0].text(3), "brain.Event:2");
    assert!(events.iter().all(|event| event.double(1) > 1.7e9), "each event has the time");
    events.into_iter().skip(1).collect()
}

/// Writes one event with `write` and returns it.
fn written(write: impl FnOnce(&mut TensorBoard)) -> Message {
    let scratch = Scratch::new();
    write(&mut TensorBoard::new(scratch.path()).unwrap());
    events(scratch.path()).remove(0)
}

#[test]
fn a_log_in_a_file_is_an_error_with_a_remedy() {
    let scratch = Scratch::new();
    let file = scratch.join("log");
    fs::write(&file, "text").unwrap();
    let error = TensorBoard::new(&file).unwrap_err().to_string();
    assert!(error.contains("the path is a file") && error.contains("choose another path"), "{error}");
}

#[test]
fn the_checksum_uses_the_castagnoli_polynomial() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn scalars_have_tags_and_steps() {
    let event = written(|log| log.scalars(1 << 40, &[("train/loss", 0.1), ("größe", f64::NAN)]).unwrap());
    assert_eq!(event.int(2), 1 << 40);
    let values = event.at(&[5]).all(1);
    assert_eq!((values[0].text(1), values[0].float(2)), ("train/loss", 0.1f32));
    assert!(values[1].text(1) == "größe" && values[1].float(2).is_nan());
    let value = written(|log| log.scalar("lr", 1e-9, 3).unwrap()).at(&[5, 1]);
    assert_eq!((value.text(1), value.float(2)), ("lr", 1e-9f32));
}

#[test]
fn histograms_count_finite_elements() {
    let tensor = Tensor::from([[0.0f32, 64.0, 63.5], [1.0, f32::NAN, f32::INFINITY], [0.5, 32.0, 32.5]]);
    let value = written(|log| log.histogram("w", &tensor, 2).unwrap()).at(&[5, 1]);
    let histogram = value.at(&[5]);
    assert_eq!([1, 2, 3, 4].map(|field| histogram.double(field)), [0.0, 64.0, 7.0, 193.5]);
    assert_eq!(histogram.double(5), 64.0 * 64.0 + 63.5 * 63.5 + 1.0 + 0.25 + 32.0 * 32.0 + 32.5 * 32.5);
    let (limits, counts) = (histogram.doubles(6), histogram.doubles(7));
    assert_eq!(limits, (1..=64).map(f64::from).collect::<Vec<_>>());
    let mut expected = vec![0.0; 64];
    (expected[0], expected[1], expected[32], expected[63]) = (2.0, 1.0, 2.0, 2.0);
    assert_eq!(counts, expected);
}

#[test]
fn histograms_of_special_tensors() {
    let histogram = |tensor: &Tensor| written(|log| log.histogram("w", tensor, 2).unwrap()).at(&[5, 1, 5]);
    let constant = histogram(&Tensor::from([2i64, 2, 2]));
    assert_eq!((constant.doubles(6), constant.doubles(7)), (vec![2.0], vec![3.0]));
    for tensor in [Tensor::from([f64::NAN]), Tensor::zeros([0], DType::F32)] {
        let empty = histogram(&tensor);
        assert_eq!((empty.double(3), empty.doubles(6), empty.doubles(7)), (0.0, vec![0.0], vec![0.0]));
    }
    let wide = histogram(&Tensor::from([f64::MIN, 0.0, f64::MAX]));
    assert!(wide.doubles(6).is_sorted() && wide.doubles(7).iter().sum::<f64>() == 3.0);
}

#[test]
fn images_are_png() {
    let tensor = Tensor::from([[[0.0f32, 1.0], [0.5, 2.0]], [[1.0, -1.0], [0.25, f32::NAN]], [[0.2, 0.2], [0.2, 0.2]]]);
    let bytes = [0u8, 255, 51, 255, 0, 51, 128, 64, 51, 255, 0, 51];
    let as_bytes = Tensor::new(bytes.to_vec(), [2, 2, 3]).permute([2, 0, 1]);
    for tensor in [tensor.clone(), tensor.permute([0, 2, 1]).copy().permute([0, 2, 1]), as_bytes] {
        let image = written(|log| log.image("digit", &tensor, 1).unwrap()).at(&[5, 1, 4]);
        assert_eq!([1, 2, 3].map(|field| image.int(field)), [2, 2, 3]);
        let mut reader = png::Decoder::new(std::io::Cursor::new(image.bytes(4))).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        assert_eq!(reader.next_frame(&mut pixels).unwrap().color_type, png::ColorType::Rgb);
        assert_eq!(pixels, bytes);
    }
    for channels in [1, 2, 4] {
        let image = written(|log| log.image("x", &Tensor::zeros([channels, 3, 5], DType::F16), 1).unwrap());
        assert_eq!([1, 2, 3].map(|field| image.at(&[5, 1, 4]).int(field)), [3, 5, channels as i64]);
    }
}

#[test]
fn images_of_other_forms_are_rejected() {
    let scratch = Scratch::new();
    let mut log = TensorBoard::new(scratch.path()).unwrap();
    for shape in [vec![5, 2, 2], vec![2, 2], vec![1, 1, 2, 2]] {
        let error = log.image("x", &Tensor::zeros(shape, DType::F32), 1).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { op: "tensorboard", .. }), "{error}");
    }
    let error = log.image("x", &Tensor::zeros([1, 2, 2], DType::I64), 1).unwrap_err();
    assert!(matches!(error, Error::DTypeMismatch { op: "tensorboard", .. }), "{error}");
    let error = log.image("x", &Tensor::zeros([1, 0, 2], DType::F32), 1).unwrap_err();
    assert!(error.to_string().contains("an image of 0 by 2 pixels cannot be encoded"), "{error}");
    assert!(events(scratch.path()).is_empty());
}

#[test]
fn texts_are_string_tensors() {
    let value = written(|log| log.text("note", "# Größe", 1).unwrap()).at(&[5, 1]);
    assert_eq!((value.text(1), value.at(&[8]).text(8), value.at(&[8]).int(1)), ("note", "# Größe", 7));
    assert_eq!(value.at(&[9, 1]).text(1), "text");
}

#[test]
fn hyperparameters_describe_the_session() {
    let scratch = Scratch::new();
    let mut log = TensorBoard::new(scratch.path()).unwrap();
    let parameters = [("lr", 0.1.into()), ("optimizer", "adam".into()), ("nesterov", true.into())];
    log.hyperparameters(&parameters, &[("accuracy", 0.75)]).unwrap();
    let events = events(scratch.path());
    let values = events[0].at(&[5]).all(1);
    let tags: Vec<&str> = values.iter().map(|value| value.text(1)).collect();
    assert_eq!(tags, ["_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info"]);
    assert!(values.iter().all(|value| value.at(&[9, 1]).text(1) == "hparams"));
    let pairs = values[1].at(&[9, 1, 2, 3]).all(1);
    assert_eq!((pairs[0].text(1), pairs[0].at(&[2]).double(2)), ("lr", 0.1));
    assert_eq!((pairs[1].text(1), pairs[1].at(&[2]).text(3)), ("optimizer", "adam"));
    assert_eq!((pairs[2].text(1), pairs[2].at(&[2]).int(4)), ("nesterov", 1));
    assert_eq!(events[1].at(&[5, 1]).float(2), 0.75);
}

#[test]
fn runs_are_resumed_in_a_new_file() {
    let scratch = Scratch::new();
    let directory = scratch.join("runs/first");
    TensorBoard::new(&directory).unwrap().scalar("loss", 1.0, 5).unwrap();
    let mut log = TensorBoard::resume(&directory, 3).unwrap();
    log.scalar("loss", 0.5, 4).unwrap();
    log.flush().unwrap();
    let files = event_files(&directory);
    assert_eq!(files.len(), 2);
    let events: Vec<Message> = records(&fs::read(&files[1]).unwrap()).iter().map(|data| Message::parse(data)).collect();
    assert_eq!((events[1].int(2), events[1].at(&[7]).int(1), events[2].int(2)), (4, 1, 4));
}

#[test]
fn directories_that_cannot_be_written_are_errors() {
    let scratch = Scratch::new();
    fs::write(scratch.join("file"), "").unwrap();
    let error = TensorBoard::new(scratch.join("file")).unwrap_err();
    assert!(matches!(error, Error::File { op: "tensorboard", .. }), "{error}");
}

/// Writes the run that `read_back.py` reads, in the directory `PELLUCID_RUN`.
#[test]
#[ignore = "read_back.py runs it"]
fn a_run_for_read_back() {
    let directory = PathBuf::from(std::env::var("PELLUCID_RUN").unwrap());
    let mut log = TensorBoard::new(&directory).unwrap();
    for step in 0..10 {
        log.scalars(step, &[("loss", 1.0 / (step + 1) as f64), ("train/accuracy", step as f64 / 10.0)]).unwrap();
    }
    drop(log);
    let mut log = TensorBoard::resume(&directory, 4).unwrap();
    for step in 5..8 {
        log.scalars(step, &[("loss", -1.0)]).unwrap();
    }
    let values: Vec<f32> = (0..1000).map(|index| (index as f32 / 100.0).sin()).collect();
    log.histogram("weight", &Tensor::new(values, [10, 100]), 7).unwrap();
    let image: Vec<f32> = (0..3 * 4 * 5).map(|index| index as f32 / 60.0).collect();
    log.image("image", &Tensor::new(image, [3, 4, 5]), 7).unwrap();
    log.text("note", "The **first** run.", 7).unwrap();
    let parameters = [("lr", 0.1.into()), ("optimizer", "adam".into()), ("nesterov", true.into())];
    log.hyperparameters(&parameters, &[("final/accuracy", 0.75)]).unwrap();
}
