//! Feature transforms that are fitted on the training data: scalers, imputers and encoders.

mod imputer;
mod label_encoder;
mod one_hot;
mod scaler;
mod strings;

pub use imputer::Imputer;
pub use label_encoder::LabelEncoder;
pub use one_hot::{OneHotEncoder, UnknownCategory};
pub use scaler::{MinMaxScaler, StandardScaler};
