//! The TFRecord format: records with their lengths and checksums.

/// Encodes a record: the length in 8 bytes, its checksum, the data, and their checksum, in little-endian order.
pub(super) fn encode_record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(data.len() + 16);
    record.extend(length);
    record.extend(masked_crc(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_crc(data).to_le_bytes());
    record
}

/// Returns the masked CRC-32C of bytes: the CRC rotated by 15 bits, plus a constant. An unmasked CRC is weak for data
/// that contain CRCs themselves.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
