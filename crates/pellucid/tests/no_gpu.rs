//! Devices of a build without a GPU backend. The other tests register one, so this is a separate binary.
#![cfg(not(any(feature = "cuda", feature = "wgpu")))]

use pellucid::{Device, Error};

#[test]
fn there_is_one_device() {
    assert_eq!(Device::best(), Device::cpu());
    assert_eq!(Device::cpu().name(), "cpu");
    assert!(matches!(Device::gpu(), Err(Error::DeviceUnavailable { .. })));
    assert!(!Device::is_available("gpu") && Device::is_available("cpu"));
    let error = "wgpu:0".parse::<Device>().unwrap_err();
    let expected = "device \"wgpu\" is not available: this build has the backends `cpu`; GPUs are named \"gpu\" and \
                    need the feature `cuda` or `wgpu`";
    assert_eq!(error.to_string(), expected);
}
