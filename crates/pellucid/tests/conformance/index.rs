//! The index of the reference data: operations, their samples, and the arguments of every call, as typed values.

use serde_json::Value;
use std::collections::BTreeMap;

/// An argument of a call. Tuples are lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// The tensor that is stored under this path.
    Tensor(String),
    List(Vec<Argument>),
    DType(String),
    Slice([Option<i64>; 3]),
    Ellipsis,
}

/// The arguments of a call; the first positional one is the input of the operation.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Argument>,
    pub(crate) keywords: BTreeMap<String, Argument>,
}

/// The reference for the gradients of one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The test data contains gradients. An input without a stored gradient has gradient zero or no gradient.
    Known,
    /// All gradients are zero.
    Zero,
    /// The gradients are unknown.
    Absent,
}

/// A call with reference outputs and derivatives.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) key: String,
    pub(crate) arguments: Arguments,
    pub(crate) outputs: usize,
    /// The paths of the tensors that have gradients.
    pub(crate) tracked: Vec<String>,
    /// The outputs that have cotangents.
    pub(crate) cotangents: Vec<usize>,
    pub(crate) preparation: Option<String>,
    pub(crate) post: Option<String>,
    pub(crate) levels: [Level; 3],
    /// Whether derivatives are compared; false at kinks, where only outputs are compared.
    pub(crate) comparable: bool,
}

/// A call that must be an error.
#[derive(Debug)]
pub(crate) struct RejectedCall {
    pub(crate) key: String,
    pub(crate) arguments: Arguments,
    pub(crate) message: String,
}

/// An operation, with its variant: `div.floor_rounding`.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) samples: Vec<Sample>,
    pub(crate) rejections: Vec<RejectedCall>,
}

/// The operations of an `index.json`.
pub(crate) fn parse(json: &str) -> Vec<Operation> {
    let root: Value = serde_json::from_str(json).expect("the index must be JSON");
    list(&root["ops"]).iter().map(operation).collect()
}

fn operation(value: &Value) -> Operation {
    let (name, variant) = (text(&value["op"]), text(&value["variant"]));
    Operation {
        name: if variant.is_empty() { name } else { format!("{name}.{variant}") },
        file: text(&value["file"]),
        samples: list(&value["samples"]).iter().map(sample).collect(),
        rejections: list(&value["errors"]).iter().map(rejection).collect(),
    }
}

fn sample(value: &Value) -> Sample {
    let level = |name: &str| match text(&value[name]).as_str() {
        "zero" => Level::Zero,
        known if known.starts_with("ok") => Level::Known,
        _ => Level::Absent,
    };
    Sample {
        key: format!("s{}", value["k"]),
        arguments: arguments(value),
        outputs: value["n_out"].as_u64().expect("`n_out` must be a count") as usize,
        tracked: list(&value["diff_in"]).iter().map(text).collect(),
        cotangents: list(&value["diff_out"])
            .iter()
            .map(|j| j.as_u64().expect("`diff_out` must contain indices of outputs") as usize)
            .collect(),
        preparation: value["pre"].as_str().map(str::to_string),
        post: value["post"].as_str().map(str::to_string),
        levels: ["grad", "ggrad", "g3"].map(level),
        comparable: value["trust"].as_str().is_none_or(|trust| !trust.starts_with("no")),
    }
}

fn rejection(value: &Value) -> RejectedCall {
    RejectedCall { key: format!("e{}", value["k"]), arguments: arguments(value), message: text(&value["message"]) }
}

fn arguments(value: &Value) -> Arguments {
    let positional = std::iter::once(&value["input"]).chain(list(&value["args"])).map(argument).collect();
    let keywords = value["kwargs"].as_object().expect("`kwargs` must be an object");
    Arguments { positional, keywords: keywords.iter().map(|(name, value)| (name.clone(), argument(value))).collect() }
}

fn argument(value: &Value) -> Argument {
    match value {
        Value::Null => Argument::None,
        Value::Bool(b) => Argument::Bool(*b),
        Value::Number(n) => n
            .as_i64()
            .map_or_else(|| Argument::Float(n.as_f64().expect("a JSON number must fit i64 or f64")), Argument::Int),
        Value::String(s) => Argument::Text(s.clone()),
        Value::Array(items) => Argument::List(items.iter().map(argument).collect()),
        Value::Object(object) => {
            let (tag, value) = object.iter().next().expect("the object of an argument must have a tag");
            match tag.as_str() {
                "$t" => Argument::Tensor(text(value)),
                "$tuple" => Argument::List(list(value).iter().map(argument).collect()),
                "$dtype" => Argument::DType(text(value)),
                "$float" => Argument::Float(text(value).parse().expect("a $float must be inf, -inf or nan")),
                "$slice" => Argument::Slice([0, 1, 2].map(|i| value[i].as_i64())),
                "$ellipsis" => Argument::Ellipsis,
                other => panic!("the tag {other} of an argument is not known"),
            }
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_string()
}
