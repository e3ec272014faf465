//! The memory of this process, as reported by Linux.

/// Resets the peak to the memory in use. Has no effect on other systems.
pub fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the bytes of memory in use, and the peak since [`reset_peak`]; zeros on other systems.
pub fn resident() -> (u64, u64) {
    resident_of("self")
}

/// Returns [`resident`] of the process with this id.
pub fn resident_of(process: &str) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
    };
    (bytes("VmRSS:"), bytes("VmHWM:"))
}
