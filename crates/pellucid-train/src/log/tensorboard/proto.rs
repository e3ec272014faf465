//! Messages of Protocol Buffers. TensorBoard's events need few fields, so they are encoded without a code generator.

/// The encoded fields of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct ProtoMessage(Vec<u8>);

/// Wire types: the encodings of the values of fields.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

impl ProtoMessage {
    pub(super) fn new() -> ProtoMessage {
        ProtoMessage::default()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a field of type `int32`, `int64`, `bool` or an enumeration.
    pub(super) fn int(mut self, field: u64, value: i64) -> ProtoMessage {
        self.varint(field << 3 | VARINT);
        self.varint(value as u64);
        self
    }

    pub(super) fn double(mut self, field: u64, value: f64) -> ProtoMessage {
        self.varint(field << 3 | FIXED_64);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn float(mut self, field: u64, value: f32) -> ProtoMessage {
        self.varint(field << 3 | FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a field of type `string` or `bytes`.
    pub(super) fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> ProtoMessage {
        self.varint(field << 3 | LENGTH_DELIMITED);
        self.varint(value.as_ref().len() as u64);
        self.0.extend(value.as_ref());
        self
    }

    pub(super) fn message(self, field: u64, value: &ProtoMessage) -> ProtoMessage {
        self.bytes(field, value.as_bytes())
    }

    /// Adds a packed repeated field of type `double`.
    pub(super) fn doubles(self, field: u64, values: &[f64]) -> ProtoMessage {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, bytes)
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
