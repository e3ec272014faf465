//! The peak of this process's memory, from Linux's account.

/// Sets the peak back to the memory in use now. Without effect where the system has no such account.
pub fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Bytes of memory in use and at the peak since [`reset_peak`]; zeros where the system does not tell.
pub fn resident() -> (u64, u64) {
    resident_of("self")
}

/// [`resident`] of the process with this number.
pub fn resident_of(process: &str) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
    };
    (bytes("VmRSS:"), bytes("VmHWM:"))
}
