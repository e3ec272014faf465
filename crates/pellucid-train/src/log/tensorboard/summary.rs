//! Summaries: the values of an event. TensorBoard's `summary.proto`, `tensor.proto` and `plugin_data.proto` define the
//! field numbers.

use super::OP;
use super::proto::ProtoMessage;
use pellucid_tensor::{DType, Error, Result, Tensor, no_grad, ops};

/// The number of buckets of a histogram.
const BUCKETS: usize = 64;

/// Returns a `Summary` of values.
pub(super) fn summary(values: impl IntoIterator<Item = ProtoMessage>) -> ProtoMessage {
    values.into_iter().fold(ProtoMessage::new(), |summary, value| summary.message(1, &value))
}

fn tagged(tag: &str) -> ProtoMessage {
    ProtoMessage::new().bytes(1, tag)
}

pub(super) fn scalar(tag: &str, value: f64) -> ProtoMessage {
    tagged(tag).float(2, value as f32)
}

/// Returns the histogram of the finite elements, in buckets of equal width from the minimum to the maximum.
pub(super) fn histogram(tag: &str, tensor: &Tensor) -> Result<ProtoMessage> {
    let mut values = tensor.try_to_vec::<f64>()?;
    values.retain(|value| value.is_finite());
    let min = values.iter().copied().reduce(f64::min).unwrap_or(0.0);
    let max = values.iter().copied().reduce(f64::max).unwrap_or(0.0);
    // `max - min` may overflow.
    let width = max / BUCKETS as f64 - min / BUCKETS as f64;
    let buckets = if width > 0.0 { BUCKETS } else { 1 };
    let mut counts = vec![0.0; buckets];
    for value in &values {
        let bucket = if buckets == 1 { 0 } else { ((value - min) / width) as usize };
        counts[bucket.min(buckets - 1)] += 1.0;
    }
    let limit = |bucket: usize| {
        let part = bucket as f64 / buckets as f64;
        min * (1.0 - part) + max * part
    };
    let limits: Vec<f64> = (1..=buckets).map(limit).collect();
    let sum = values.iter().sum();
    let squares = values.iter().map(|value| value * value).sum();
    let histogram = ProtoMessage::new().double(1, min).double(2, max).double(3, values.len() as f64).double(4, sum);
    Ok(tagged(tag).message(5, &histogram.double(5, squares).doubles(6, &limits).doubles(7, &counts)))
}

/// Encodes a tensor `[C, H, W]` of `u8`, or of floats in [0, 1], as a PNG image.
pub(super) fn image(tag: &str, tensor: &Tensor) -> Result<ProtoMessage> {
    let color = match tensor.shape()[..] {
        [1, _, _] => png::ColorType::Grayscale,
        [2, _, _] => png::ColorType::GrayscaleAlpha,
        [3, _, _] => png::ColorType::Rgb,
        [4, _, _] => png::ColorType::Rgba,
        _ => {
            let help = "an image must be [C, H, W], of 1 (grayscale), 2 (grayscale, alpha), 3 (RGB) or 4 (RGB, alpha) \
                        channels";
            return Err(Error::shapes(OP, [tensor.shape()], help));
        }
    };
    let _guard = no_grad();
    let pixels = ops::permute(tensor, [1, 2, 0])?;
    let pixels: Vec<u8> = match tensor.dtype() {
        DType::U8 => pixels.try_to_vec()?,
        dtype if dtype.is_float() => {
            // The cast maps NaN to 0 (black).
            let byte = |value: f64| (value.clamp(0.0, 1.0) * 255.0).round() as u8;
            pixels.try_to_vec::<f64>()?.into_iter().map(byte).collect()
        }
        dtype => {
            return Err(Error::dtypes(
                OP,
                [dtype],
                "an image must have dtype u8, or a float dtype with values in [0, 1]",
            ));
        }
    };
    let [channels, height, width] = [0, 1, 2].map(|axis| tensor.shape()[axis]);
    let mut png = Vec::new();
    encode_png(&mut png, color, height, width, &pixels).map_err(|reason| Error::invalid(OP, reason))?;
    let image = ProtoMessage::new().int(1, height as i64).int(2, width as i64).int(3, channels as i64);
    Ok(tagged(tag).message(4, &image.bytes(4, png)))
}

fn encode_png(
    png: &mut Vec<u8>,
    color: png::ColorType,
    height: usize,
    width: usize,
    pixels: &[u8],
) -> Result<(), String> {
    let length = |length: usize| {
        u32::try_from(length).map_err(|_| format!("the image is too large: an axis has length {length}"))
    };
    let mut encoder = png::Encoder::new(png, length(width)?, length(height)?);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let writer = encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels));
    writer.map_err(|error| format!("an image of {height} by {width} pixels cannot be encoded: {error}"))
}

/// The `DataClass` of values that are tensors.
const DATA_CLASS_TENSOR: i64 = 2;
/// The `DataType` of strings.
const DT_STRING: i64 = 7;

pub(super) fn text(tag: &str, text: &str) -> ProtoMessage {
    // A 0-d tensor: its shape has no dimensions.
    let tensor = ProtoMessage::new().int(1, DT_STRING).message(2, &ProtoMessage::new()).bytes(8, text);
    let metadata = metadata("text", &ProtoMessage::new()).int(4, DATA_CLASS_TENSOR);
    tagged(tag).message(9, &metadata).message(8, &tensor)
}

/// Returns a `SummaryMetadata` for a plugin, with its data.
fn metadata(plugin: &str, content: &ProtoMessage) -> ProtoMessage {
    ProtoMessage::new().message(1, &ProtoMessage::new().bytes(1, plugin).message(2, content))
}

/// The value of a hyperparameter: `0.1.into()`, `"adam".into()` or `true.into()`.
#[derive(Clone, Debug, PartialEq)]
pub enum HyperparameterValue {
    /// A number.
    Number(f64),
    /// A string, such as the name of an optimizer.
    Text(String),
    /// A boolean.
    Bool(bool),
}

macro_rules! from_values {
    ($($from:ty => |$value:ident| $converted:expr;)*) => {$(
        impl From<$from> for HyperparameterValue {
            fn from($value: $from) -> HyperparameterValue {
                $converted
            }
        }
    )*};
}

from_values! {
    f64 => |value| HyperparameterValue::Number(value);
    f32 => |value| HyperparameterValue::Number(value.into());
    i32 => |value| HyperparameterValue::Number(value.into());
    i64 => |value| HyperparameterValue::Number(value as f64);
    u64 => |value| HyperparameterValue::Number(value as f64);
    usize => |value| HyperparameterValue::Number(value as f64);
    &str => |value| HyperparameterValue::Text(value.to_string());
    String => |value| HyperparameterValue::Text(value);
    bool => |value| HyperparameterValue::Bool(value);
}

impl HyperparameterValue {
    /// Returns the `DataType` of the value, which `HParamInfo` stores.
    fn data_type(&self) -> i64 {
        match self {
            HyperparameterValue::Text(_) => 1,
            HyperparameterValue::Bool(_) => 2,
            HyperparameterValue::Number(_) => 3,
        }
    }

    /// Returns a `google.protobuf.Value`.
    fn message(&self) -> ProtoMessage {
        match self {
            HyperparameterValue::Number(value) => ProtoMessage::new().double(2, *value),
            HyperparameterValue::Text(value) => ProtoMessage::new().bytes(3, value),
            HyperparameterValue::Bool(value) => ProtoMessage::new().int(4, i64::from(*value)),
        }
    }
}

/// The status of a session that has ended without an error.
const STATUS_SUCCESS: i64 = 1;

/// Returns the three summary values of the hyperparameter plugin: the experiment (names of hyperparameters and
/// metrics), the start of the session, and its end.
pub(super) fn hyperparameters(
    time: f64,
    parameters: &[(&str, HyperparameterValue)],
    metrics: &[(&str, f64)],
) -> [ProtoMessage; 3] {
    let mut experiment = ProtoMessage::new().double(3, time);
    let mut session = ProtoMessage::new();
    for (name, value) in parameters {
        experiment = experiment.message(4, &ProtoMessage::new().bytes(1, name).int(4, value.data_type()));
        // The encoding of a map is a repeated field of (key, value) messages.
        session = session.message(1, &ProtoMessage::new().bytes(1, name).message(2, &value.message()));
    }
    for (tag, _) in metrics {
        let name = ProtoMessage::new().bytes(2, tag);
        experiment = experiment.message(5, &ProtoMessage::new().message(1, &name));
    }
    let end = ProtoMessage::new().int(1, STATUS_SUCCESS).double(2, time);
    let data = [
        ("_hparams_/experiment", 2, experiment),
        ("_hparams_/session_start_info", 3, session.double(5, time)),
        ("_hparams_/session_end_info", 4, end),
    ];
    data.map(|(tag, field, data)| {
        tagged(tag).message(9, &metadata("hparams", &ProtoMessage::new().int(1, 0).message(field, &data)))
    })
}
