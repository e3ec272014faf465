//! The AMX instructions, and the request to the operating system for permission to use them.
//!
//! A tile register keeps its value between two `asm!` blocks: a compiler uses tile registers only for values of a tile
//! type, which Rust does not have.

use super::TileUnit;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

/// The tile registers of AMX.
#[derive(Debug)]
pub struct AmxTiles(());

/// The operand of `ldtilecfg`: all eight registers of palette 1 with their full size of 16 rows × 64 bytes.
static FULL_SIZE: [u8; 64] = {
    let mut config = [0; 64];
    config[0] = 1; // The palette.
    let mut register = 0;
    while register < 8 {
        config[16 + 2 * register] = 64; // The bytes of a row, as `u16`.
        config[48 + register] = 16; // The rows.
        register += 1;
    }
    config
};

impl TileUnit for AmxTiles {
    #[inline(always)]
    unsafe fn configure() {
        // SAFETY: *processor* covers the instruction. It reads the 64 bytes of the configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &FULL_SIZE, options(nostack, preserves_flags, readonly)) }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: *processor* covers the instruction. It accesses no memory.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) }
    }

    #[inline(always)]
    fn new() -> AmxTiles {
        AmxTiles(())
    }

    #[inline(always)]
    unsafe fn zero<const R: usize>(&mut self) {
        // SAFETY: *processor* and *configured* cover the instruction. It accesses no memory.
        unsafe { asm!("tilezero tmm{}", const R, options(nostack, preserves_flags, nomem)) }
    }

    #[inline(always)]
    unsafe fn load<const R: usize>(&mut self, from: *const u8, row_bytes: isize) {
        // SAFETY: *processor* and *configured* cover the instruction, and *tile validity* its reads.
        unsafe {
            asm!(
                "tileloadd tmm{register}, [{from} + {row_bytes}*1]",
                register = const R,
                from = in(reg) from,
                row_bytes = in(reg) row_bytes,
                options(nostack, preserves_flags, readonly),
            )
        }
    }

    #[inline(always)]
    unsafe fn store<const R: usize>(&mut self, to: *mut u8, row_bytes: isize) {
        // SAFETY: *processor* and *configured* cover the instruction, and *tile validity* its writes.
        unsafe {
            asm!(
                "tilestored [{to} + {row_bytes}*1], tmm{register}",
                register = const R,
                to = in(reg) to,
                row_bytes = in(reg) row_bytes,
                options(nostack, preserves_flags),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: *processor* and *configured* cover the instruction. It accesses no memory.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags, nomem),
            )
        }
    }

    #[inline(always)]
    unsafe fn multiply_add_i8<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: *processor* and *configured* cover the instruction. It accesses no memory.
        unsafe {
            asm!(
                "tdpbssd tmm{c}, tmm{a}, tmm{b}",
                c = const C,
                a = const A,
                b = const B,
                options(nostack, preserves_flags, nomem),
            )
        }
    }
}

/// Returns true if the processor has AMX-BF16 and AMX-INT8, and the operating system saves the tile registers and
/// permits this process to use them. The processor must have AVX-512, and therefore has `cpuid` leaf 7 and `xgetbv`.
pub(super) fn is_permitted() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_INT8: u32 = 1 << 25;
    const AMX_TILE: u32 = 1 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    let has = |value: u64, bits: u64| value & bits == bits;
    __cpuid(0).eax >= 7
        && has(__cpuid_count(7, 0).edx.into(), (AMX_BF16 | AMX_INT8 | AMX_TILE).into())
        // SAFETY: processors with AVX-512 have `xgetbv`, which the operating system has enabled to save their vectors.
        && has(unsafe { _xgetbv(0) }, TILE_STATE)
        && request_permission()
}

/// Requests permission from Linux to use the tile registers on all threads of this process (Linux 5.16). Linux
/// allocates the memory to which it saves the registers of a thread when the thread first uses them.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const SYS_ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: this is the calling convention of system calls. The call changes no memory of the process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        )
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}
