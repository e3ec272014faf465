//! Counts of instructions in the loops of compiled kernels, from the text of NVIDIA's disassembler.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The instructions of a loop, with those of the loops in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoopCounts {
    /// The index of the first instruction and of the branch back to it.
    bounds: [usize; 2],
    /// The number of instructions.
    pub(crate) all: usize,
    /// The number of fused multiply-adds of `f32`.
    pub(crate) multiply_adds: usize,
    /// The number of loads from shared memory.
    pub(crate) shared_loads: usize,
}

/// Returns the text of a compiled kernel, or `None` if `nvdisasm` is not the disassembler.
///
/// # Panics
/// If the disassembler rejects the code.
pub(crate) fn disassemble(nvdisasm: &Path, code: &[u8]) -> Option<String> {
    let path = std::env::temp_dir().join(format!("pellucid-assembly-{}.cubin", std::process::id()));
    std::fs::File::create(&path).and_then(|mut file| file.write_all(code)).expect("the code must be written");
    let output = Command::new(nvdisasm).arg("-c").arg(&path).stderr(Stdio::inherit()).output().ok()?;
    std::fs::remove_file(&path).expect("the file exists");
    assert!(output.status.success(), "the disassembler must accept the code");
    Some(String::from_utf8(output.stdout).expect("the text of the disassembler is ASCII"))
}

/// Returns the name of the instruction in a line, without its predicate, and the rest of the line.
fn instruction(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start().strip_prefix("/*")?;
    let (address, rest) = rest.split_once("*/")?;
    usize::from_str_radix(address, 16).ok()?;
    let rest = rest.trim_start();
    let rest = if rest.starts_with('@') { rest.split_once(' ')?.1.trim_start() } else { rest };
    let end = rest.find([' ', ';'])?;
    Some((&rest[..end], &rest[end..]))
}

/// Returns the loops of a kernel, inner loops first.
pub(crate) fn loops(text: &str) -> Vec<LoopCounts> {
    let (mut instructions, mut labels, mut result) = (Vec::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        if let Some(label) = line.trim().strip_suffix(':') {
            labels.push((label, instructions.len()));
        } else if let Some((name, rest)) = instruction(line) {
            instructions.push(name);
            let target = |label: &str| rest.contains(&format!("({label})"));
            let back = labels.iter().find(|(label, _)| name.starts_with("BRA") && target(label));
            if let Some(&(_, first)) = back {
                let body = &instructions[first..];
                let count = |prefix: &str| body.iter().filter(|name| name.starts_with(prefix)).count();
                result.push(LoopCounts {
                    bounds: [first, instructions.len() - 1],
                    all: body.len(),
                    multiply_adds: count("FFMA"),
                    shared_loads: count("LDS"),
                });
            }
        }
    }
    result
}

/// Returns the share of fused multiply-adds in the instructions that a warp issues in the loop over k of a product: the
/// outermost loop that contains them. An inner loop runs `iterations` times.
pub(crate) fn multiply_add_share(loops: &[LoopCounts], iterations: usize) -> f64 {
    let with_products = || loops.iter().filter(|counts| counts.multiply_adds >= 64);
    let outer = with_products().max_by_key(|counts| counts.all).expect("a product has a loop over k");
    let inner = with_products()
        .find(|counts| *counts != outer && counts.bounds[0] >= outer.bounds[0] && counts.bounds[1] <= outer.bounds[1]);
    let repeated = |of: fn(&LoopCounts) -> usize| of(outer) + inner.map_or(0, |counts| of(counts) * (iterations - 1));
    repeated(|counts| counts.multiply_adds) as f64 / repeated(|counts| counts.all) as f64
}

#[test]
fn loops_are_counted_with_the_loops_in_them() {
    let text = "
.L_x_1:
        /*0000*/                   S2R R3, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDS.128 R4, [R3] ;
        /*0020*/              @!P1 FFMA R4, R4, R5, R6 ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
        /*0040*/              @!P2 BRA `(.L_x_1) ;
        /*0050*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0060*/                   EXIT ;
";
    let counts = |bounds, all| LoopCounts { bounds, all, multiply_adds: 1, shared_loads: 1 };
    assert_eq!(loops(text), [counts([1, 3], 3), counts([0, 4], 5)]);
}
