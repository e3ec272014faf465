//! The time of the device.

use crate::harness::device;
use pellucid_ir::backend::Backend;
use pellucid_ir::{Error, Result};
use std::time::{Duration, Instant};

#[test]
fn the_time_of_the_device_is_within_the_time_of_the_host() {
    let Some(device) = device() else { return };
    let length = 1 << 16;
    let [x, y] = [0; 2].map(|value| device.storage(&vec![value; length]));
    device.copy(length, &x, &y).unwrap();
    let measured = |work: &mut dyn FnMut() -> Result<()>| {
        let start = Instant::now();
        let time = device.gpu().device_time(work).unwrap().expect("events measure time");
        (time, start.elapsed())
    };
    let (time, host) = measured(&mut || (0..40).try_for_each(|_| device.copy(length, &x, &y)));
    assert!(time > Duration::ZERO && time <= host, "{time:?} of {host:?}");
    // Work before the measurement and after it does not count.
    (0..40).for_each(|_| device.copy(length, &x, &y).unwrap());
    let (short, _) = measured(&mut || device.copy(length, &x, &y));
    assert!(short < time, "one kernel takes {short:?}, and 40 take {time:?}");
    let failed = device.gpu().device_time(&mut || Err(Error::out_of_memory(8)));
    assert!(matches!(failed, Err(Error::OutOfMemory { .. })), "the error of the work must be returned");
    device.gpu().synchronize().unwrap();
}
