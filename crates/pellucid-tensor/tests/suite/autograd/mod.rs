//! Tests of automatic differentiation.
//!
//! | module | contents |
//! | --- | --- |
//! | `graph` | the recorded graph: leaves, nodes, generations, modes |
//! | `node` | one node: input tensors, local backward computation, text |
//! | `backward_pass` | one pass: seeds, accumulation, retained and freed values |
//! | `second_order`, `high_order` | gradients of gradients |
//! | `transform` | `grad`, `vjp`, `jvp`, `hvp` |
//! | `in_place` | version counters, protected tensors |
//! | `in_place_history` | the history of writes in place |
//! | `shared_memory` | tensors that share memory: operands, gradients, views created under `no_grad` |
//! | `hook` | hooks |
//! | `custom_operation` | user-defined operations |
//! | `autocast` | mixed precision: dtypes by policy, gradients in the dtype of their tensor |
//! | `checkpoint` | recomputation; anomaly mode |
//! | `untracked` | operations without a gradient |
//! | `linalg` | gradients of linear algebra in closed form |
//! | `row_sums` | weighted sums of rows |

mod autocast;
mod backward_pass;
mod checkpoint;
mod custom_operation;
mod graph;
mod high_order;
mod hook;
mod in_place;
mod in_place_history;
mod linalg;
mod node;
mod row_sums;
mod second_order;
mod shared_memory;
mod transform;
mod untracked;
