//! Tells the crate that it is compiled without optimization, which no other configuration tells: debug assertions and
//! the optimization level are set independently.

fn main() {
    let is_unoptimized = std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0");
    let flag = if is_unoptimized { "cargo::rustc-cfg=pellucid_unoptimized\n" } else { "" };
    let output = format!("cargo::rerun-if-changed=build.rs\ncargo::rustc-check-cfg=cfg(pellucid_unoptimized)\n{flag}");
    std::io::Write::write_all(&mut std::io::stdout(), output.as_bytes()).expect("Cargo must read the output");
}
