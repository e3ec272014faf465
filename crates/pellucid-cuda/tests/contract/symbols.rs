//! The symbols of the test device.

use std::ffi::{CString, c_char, c_int};

use cudarc::driver::sys;

/// The symbols that only the test device has.
pub(crate) struct DeviceSymbols {
    reports: unsafe extern "C" fn(*mut c_char, usize) -> usize,
    clear: unsafe extern "C" fn(),
    counter: unsafe extern "C" fn(*const c_char) -> u64,
    set: unsafe extern "C" fn(*const c_char, *const c_char) -> c_int,
}

impl DeviceSymbols {
    /// The symbols, or `None` if the libraries are not those of the test device. They must be loaded.
    pub(crate) fn load() -> Option<Self> {
        // SAFETY: the library is loaded, and the symbols have these types (`report_calls.rs` of the test device).
        unsafe {
            let library = sys::culib();
            Some(Self {
                reports: *library.get(b"pellucid_test_device_reports").ok()?,
                clear: *library.get(b"pellucid_test_device_clear").ok()?,
                counter: *library.get(b"pellucid_test_device_counter").ok()?,
                set: *library.get(b"pellucid_test_device_set").ok()?,
            })
        }
    }

    /// All reports, which are removed with the sticky error.
    pub(crate) fn take_reports(&self) -> String {
        // SAFETY: the first call writes nothing; the second one writes at most the length of the buffer.
        unsafe {
            let mut text = vec![0_u8; (self.reports)(std::ptr::null_mut(), 0)];
            (self.reports)(text.as_mut_ptr().cast(), text.len());
            (self.clear)();
            String::from_utf8(text).expect("reports are UTF-8")
        }
    }

    /// The value of a counter.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a name without zero bytes");
        // SAFETY: the name is a C string.
        unsafe { (self.counter)(name.as_ptr()) }
    }

    /// Changes a setting.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let [name_text, value_text] = [name, value].map(|text| CString::new(text).expect("no zero bytes"));
        // SAFETY: both are C strings.
        let is_known = unsafe { (self.set)(name_text.as_ptr(), value_text.as_ptr()) };
        assert_eq!(is_known, 1, "the test device has no setting {name} = {value}");
    }
}
