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

impl LoopCounts {
    /// Returns true if `inner` is another loop that is in this one.
    fn contains(&self, inner: &LoopCounts) -> bool {
        self != inner && self.bounds[0] <= inner.bounds[0] && inner.bounds[1] <= self.bounds[1]
    }

    /// Returns the counts of an iteration that runs the loop `inner` with the counts `one` for `times` iterations.
    fn with_repeated(&self, inner: &LoopCounts, one: LoopCounts, times: usize) -> LoopCounts {
        let total = |of: fn(&LoopCounts) -> usize| of(self) - of(inner) + of(&one) * times;
        LoopCounts {
            bounds: self.bounds,
            all: total(|counts| counts.all),
            multiply_adds: total(|counts| counts.multiply_adds),
            shared_loads: total(|counts| counts.shared_loads),
        }
    }
}

/// Returns the counts of an iteration of each loop over the shared tiles of a product, with all iterations of the loop
/// in it. An invocation adds `products` products for a tile.
///
/// If a kernel has one product, with a table for every `group_tiles` tiles, the counts include all tiles of a table.
pub(crate) fn tile_loops(loops: &[LoopCounts], products: usize, group_tiles: usize) -> Vec<LoopCounts> {
    // A loop with exponentials has up to 72 multiply-adds.
    let with_products: Vec<&LoopCounts> = loops.iter().filter(|counts| counts.multiply_adds >= 128).collect();
    let parent = |inner: &LoopCounts| {
        let outer = with_products.iter().filter(|counts| counts.contains(inner));
        outer.min_by_key(|counts| counts.all).copied()
    };
    let is_innermost = |counts: &&&LoopCounts| !with_products.iter().any(|inner| counts.contains(inner));
    let tile = |inner: &LoopCounts| match products / inner.multiply_adds {
        0 | 1 => (*inner, *inner),
        times => {
            let outer = *parent(inner).expect("a tile takes several iterations of a loop");
            (outer, outer.with_repeated(inner, *inner, times))
        }
    };
    let tiles: Vec<(LoopCounts, LoopCounts)> = with_products.iter().filter(is_innermost).map(|l| tile(l)).collect();
    match (&tiles[..], tiles.first().and_then(|(own, _)| parent(own))) {
        ([(own, counts)], Some(group)) => vec![group.with_repeated(own, *counts, group_tiles)],
        _ => tiles.into_iter().map(|(_, counts)| counts).collect(),
    }
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

#[test]
fn iterations_of_the_loops_of_a_tile_are_counted() {
    let counts = |bounds, all, multiply_adds| LoopCounts { bounds, all, multiply_adds, shared_loads: 0 };
    let [inner, tile, group] = [counts([20, 50], 280, 256), counts([10, 60], 400, 256), counts([0, 70], 450, 256)];
    let shape = |loops: &[LoopCounts]| {
        let tiles = tile_loops(loops, 1024, 4);
        tiles.iter().map(|counts| (counts.all, counts.multiply_adds)).collect::<Vec<_>>()
    };
    assert_eq!(shape(&[inner, tile]), [(400 + 3 * 280, 1024)]);
    assert_eq!(shape(&[inner, tile, group]), [(50 + 4 * (400 + 3 * 280), 4096)]);
    // Two products in one loop.
    let unrolled = counts([61, 65], 1200, 1024);
    let both = counts([0, 70], 1700, 1280);
    assert_eq!(shape(&[inner, tile, unrolled, both]), [(400 + 3 * 280, 1024), (1200, 1024)]);
}
