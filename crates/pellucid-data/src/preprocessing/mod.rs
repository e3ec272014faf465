//! Transforms of features that are fitted on the training data: scalers and one-hot codes.

mod one_hot;
mod scaler;

pub use one_hot::{OneHotEncoder, UnknownCategory};
pub use scaler::{MinMaxScaler, StandardScaler};
