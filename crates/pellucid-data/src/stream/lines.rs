//! [`TextLines`]: the lines of text files.

use super::{IterableDataset, RecordIter};
use crate::random::EpochSeed;
use crate::text::BYTE_ORDER_MARK;
use pellucid_tensor::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

const OP: &str = "text_lines";

/// The maximum number of bytes of a line. A longer line is an error, and the rest of it is not read into memory.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The lines of UTF-8 files in order, without line endings (`\n` or `\r\n`). A line is in memory only while it is used,
/// so the files can be larger than the memory.
///
/// ```
/// use pellucid::Tensor;
/// use pellucid::data::{IterableDataset, LoaderOptions, StreamLoader, TextLines};
///
/// let path = std::env::temp_dir().join(format!("pellucid-lines-{}.txt", std::process::id()));
/// std::fs::write(&path, "1 2\n3 4\n5 6\n")?;
/// let rows = TextLines::new([&path]).map(|line| {
///     let row: Vec<f32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
///     Ok(Tensor::from(row))
/// });
/// let mut loader = StreamLoader::new(rows, LoaderOptions { batch_size: 2, ..Default::default() });
/// let first = loader.epoch().next().unwrap()?;
/// assert_eq!(first.to_vec::<f32>(), [1.0, 2.0, 3.0, 4.0]);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An error ([`Error::File`]) names the file and the line. The epoch continues with the next line after a line that is
/// not UTF-8, and with the next file after other errors.
#[derive(Clone, Debug)]
pub struct TextLines {
    paths: Vec<PathBuf>,
}

impl TextLines {
    /// Creates a data set of the lines of these files. A file is opened when its lines are read.
    pub fn new<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> TextLines {
        TextLines { paths: paths.into_iter().map(|path| path.as_ref().to_path_buf()).collect() }
    }
}

impl IterableDataset for TextLines {
    type Record = String;
    type Item = String;

    fn records(&self, _seed: EpochSeed) -> Result<RecordIter<String>> {
        let files = self.paths.clone().into_iter();
        Ok(Box::new(files.flat_map(|path| {
            let mut lines = FileLines { path, state: LinesState::Unopened };
            std::iter::from_fn(move || lines.next_line().transpose())
        })))
    }

    fn sample(&self, line: String) -> Result<String> {
        Ok(line)
    }
}

/// The lines of a file.
struct FileLines {
    path: PathBuf,
    state: LinesState,
}

enum LinesState {
    Unopened,
    /// The reader, and the number of lines that were read.
    Open(BufReader<File>, u64),
    Ended,
}

impl FileLines {
    /// Reads a line. Returns `None` at the end of the file and after an error.
    fn next_line(&mut self) -> Result<Option<String>> {
        let (mut file, before) = match std::mem::replace(&mut self.state, LinesState::Ended) {
            LinesState::Unopened => {
                let file = File::open(&self.path).map_err(|error| Error::unreadable_file(OP, &self.path, &error))?;
                (BufReader::new(file), 0)
            }
            LinesState::Open(file, before) => (file, before),
            LinesState::Ended => return Ok(None),
        };
        let line_number = before + 1;
        let line_error = |reason: &str| Error::file(OP, &self.path, format!("line {line_number}: {reason}"));
        let mut line = Vec::new();
        // The line ending `\r\n` adds two bytes to the limit.
        let read = (&mut file).take(MAX_LINE_BYTES + 2).read_until(b'\n', &mut line);
        if read.map_err(|error| line_error(&format!("the file cannot be read ({error})")))? == 0 {
            return Ok(None);
        }
        if before == 0 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.pop_if(|byte| *byte == b'\n').is_some() {
            line.pop_if(|byte| *byte == b'\r');
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            return Err(line_error(&format!("the line has more than {MAX_LINE_BYTES} bytes; split it")));
        }
        self.state = LinesState::Open(file, line_number);
        match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(line_error("the text is not UTF-8; convert the file")),
        }
    }
}
