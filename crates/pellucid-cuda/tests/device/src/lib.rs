//! A CUDA device without a GPU: the C symbols of the CUDA driver, NVRTC and cuBLASLt that a backend on `cudarc` uses,
//! in one shared library that is found through the same dynamic loading as the real ones.
//!
//! Kernel texts are compiled by the host's C++ compiler with the header `device.h` and run on the CPU. The device
//! checks what a GPU does not: `docs/cuda.md` lists the faults.
//!
//! | module | content |
//! | --- | --- |
//! | `device` | the state of the device, its settings, the lock around every call |
//! | `reports`, `report_calls` | faults, the sticky error, counters, and the symbols by which tests read them |
//! | `handles` | tables of handles |
//! | `clocks` | vector clocks, the last accesses to an allocation |
//! | `memory`, `memory_calls` | allocations with poisoned margins or guard pages; their calls |
//! | `context_calls` | initialisation, properties of the device, contexts |
//! | `work` | a unit of work of a stream or a graph node, and its accesses |
//! | `streams`, `stream_calls` | queues of work that runs when it is waited for; streams and events |
//! | `capture` | stream capture |
//! | `graphs`, `graph_calls`, `graph_node_calls` | graphs and executable graphs; their calls |
//! | `modules`, `module_calls` | compiled modules and kernels |
//! | `launch`, `launch_calls` | limits, arguments, and the schedules of a launch |
//! | `fibers`, `warps`, `traps` | the threads of a block, operations of a warp, and signals of the processor |
//! | `compiler`, `nvrtc_calls` | the C++ compiler and its cache; NVRTC |
//! | `products`, `cublaslt_calls` | matrix products; cuBLASLt |
// The code uses the signals and the dynamic loader of Linux. On other systems the library is empty.
#![cfg(target_os = "linux")]
#![allow(non_snake_case)]

mod capture;
mod clocks;
mod compiler;
mod context_calls;
mod cublaslt_calls;
mod device;
mod fibers;
mod graph_calls;
mod graph_node_calls;
mod graphs;
mod handles;
mod launch;
mod launch_calls;
mod memory;
mod memory_calls;
mod module_calls;
mod modules;
mod nvrtc_calls;
mod products;
mod report_calls;
mod reports;
mod stream_calls;
mod streams;
mod traps;
mod warps;
mod work;
