//! Automatic differentiation, point by point.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `graph` | what is recorded: leaves, nodes, generations, modes |
//! | `pass` | one pass: seeds, accumulation, what is kept and what is freed |
//! | `order` | gradients of gradients |
//! | `transform` | `grad`, `vjp`, `jvp`, `hvp` |
//! | `in_place` | versions |
//! | `hook` | hooks |
//! | `operation` | users' own operations |
//! | `autocast` | mixed precision: dtypes by policy, gradients in the dtypes of what they are of |
//! | `checkpoint` | parts that are computed again; anomaly mode |
//! | `none` | what has no gradient |
//! | `linalg` | gradients of linear algebra that are known in closed form |

mod autocast;
mod checkpoint;
mod graph;
mod hook;
mod in_place;
mod linalg;
mod none;
mod operation;
mod order;
mod pass;
mod transform;
