//! Automatic differentiation, point by point.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `graph` | what is recorded: leaves, nodes, generations, modes |
//! | `pass` | one pass: seeds, accumulation, what is kept and what is freed |
//! | `order`, `high_order` | gradients of gradients |
//! | `transform` | `grad`, `vjp`, `jvp`, `hvp` |
//! | `in_place` | versions, and what cannot be written |
//! | `in_place_history` | the history that a write in place makes |
//! | `memory` | tensors that share memory: operands, gradients, views made under `no_grad` |
//! | `hook` | hooks |
//! | `operation` | users' own operations |
//! | `autocast` | mixed precision: dtypes by policy, gradients in the dtypes of what they are of |
//! | `checkpoint` | parts that are computed again; anomaly mode |
//! | `none` | what has no gradient |
//! | `linalg` | gradients of linear algebra that are known in closed form |

mod autocast;
mod checkpoint;
mod graph;
mod high_order;
mod hook;
mod in_place;
mod in_place_history;
mod linalg;
mod memory;
mod none;
mod operation;
mod order;
mod pass;
mod transform;
