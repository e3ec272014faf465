//! Small data sets that are compiled into the program. `data/README.md` lists their sources and licences.

use crate::digits::Digits;
use crate::table::{CsvOptions, Table};
use flate2::read::GzDecoder;
use pellucid_tensor::{DType, Error, Result, Tensor, ops};
use std::io::Read;

/// Returns the iris flowers of Fisher (1936): 150 rows with `sepal_length`, `sepal_width`, `petal_length` and
/// `petal_width` in centimetres, and `species`, which has three values.
///
/// ```
/// use pellucid::data::iris;
/// let table = iris()?;
/// assert_eq!(table.categories("species")?, ["setosa", "versicolor", "virginica"]);
/// let [train, test] = table.split([0.8, 0.2], 0)?;
/// let (x, y) = (train.tensor(&["petal_length", "petal_width"])?, train.labels("species")?);
/// assert_eq!((x.shape().dims(), y.shape().dims(), test.len()), (&[120, 2][..], &[120][..], 30));
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias = "load_iris")]
pub fn iris() -> Result<Table> {
    Table::from_csv(include_str!("../data/iris.csv"), CsvOptions::default())
}

/// Returns chemical properties of 178 Italian wines (Aeberhard & Forina 1992): 13 numeric columns, such as `alcohol`,
/// and `class`, which has three values.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias = "load_wine")]
pub fn wine() -> Result<Table> {
    Table::from_csv(include_str!("../data/wine.csv"), CsvOptions::default())
}

/// Returns 1,797 handwritten digits of 8 × 8 pixels (Alpaydin & Kaynak 1998). The pixels have 17 gray levels in [0, 1].
///
/// ```
/// use pellucid::data::digits;
/// let digits = digits()?;
/// assert_eq!(digits.images.shape().dims(), [1797, 8, 8]);
/// assert_eq!(digits.labels.i(..3).to_vec::<i64>(), [0, 1, 2]);
/// # Ok::<(), pellucid::Error>(())
/// ```
///
/// # Errors
/// [`Error::OutOfMemory`].
#[doc(alias = "load_digits")]
pub fn digits() -> Result<Digits> {
    const PIXELS: usize = 64;
    let mut records = Vec::new();
    let read = GzDecoder::new(&include_bytes!("../data/digits.gz")[..]).read_to_end(&mut records);
    read.map_err(|error| Error::invalid("digits", error.to_string()))?;
    let n = records.len() / (PIXELS + 1);
    let records = Tensor::try_from_bytes(&records, DType::U8, [n, PIXELS + 1])?;
    let pixels = ops::reshape(&ops::narrow(&records, 1, 0, PIXELS)?, [n, 8, 8])?;
    let labels = ops::reshape(&ops::narrow(&records, 1, PIXELS as isize, 1)?, [n])?;
    let images = ops::div(&ops::to_dtype(&pixels, DType::F32)?, 16.0)?;
    Ok(Digits { images, labels: ops::to_dtype(&labels, DType::I64)? })
}
