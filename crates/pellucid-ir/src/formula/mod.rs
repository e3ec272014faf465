//! Formulas: the mathematics of an operation as a graph.
//!
//! A formula is an immutable graph of scalar (and row) primitives. The program that a backend runs, the derivatives of
//! every order, and the list of values to save for backward are derived from it.
//!
//! ```
//! use pellucid_ir::DType;
//! use pellucid_ir::formula;
//! use pellucid_ir::formula::{Read, Wanted};
//!
//! let tanh = formula! { tanh(x) = x.tanh() };
//! let gradient = tanh.gradient(Wanted::only(0));
//! assert_eq!(gradient.to_string(), "tanh'(y, g) = g * (1 - y * y)");
//! assert_eq!(gradient.reads, [Read::Output(0), Read::Gradient(0)]);
//! assert_eq!(gradient.formula.uniform_program(DType::F32).unwrap().steps.len(), 3);
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `primitive` | the primitives |
//! | `graph`, `builder`, `expr`, `macros`, `real` | building a formula |
//! | `simplify` | rewrites during construction |
//! | `differentiate`, `save`, `gradient` | gradients, the values that they read, their cache |
//! | `partials` | partial derivatives of every order |
//! | `unroll` | splitting a row formula into elementwise formulas and reductions |
//! | `program`, `compile`, `registers` | compilation to programs |
//! | `splice` | joining several programs into one |
//! | `evaluate`, `special` | evaluation in `f64`, the reference for tests |
//! | `print` | formulas as text |

#[macro_use]
mod macros;
mod memo;

mod builder;
mod compile;
mod definition;
mod differentiate;
mod evaluate;
mod expr;
mod gradient;
mod graph;
mod partials;
mod primitive;
mod print;
mod program;
mod real;
mod registers;
mod save;
mod simplify;
mod special;
mod splice;
mod unroll;

pub use compile::Signature;
pub use definition::{Formula, LazyFormula};
pub use expr::{Expr, IntoExpr, IntoOutputs, row_index, row_len};
pub use gradient::{Gradient, Read, Wanted};
pub use graph::{Fact, Graph, Id, Input, Kind, Literal, Node, Output};
#[doc(hidden)]
pub use macros::names;
pub use partials::{Contraction, Partial, Partials, Term, Variables};
pub use primitive::{Binary, RowOp, Unary};
pub use program::{Load, Op, Operand, Program, Step, Store, Uniform, UniformSource};
pub use real::{Argument, Literals, Real, Single, Truth};
pub use special::{binary as evaluate_binary, unary as evaluate_unary};
pub use splice::{Made, Source, Splice, Spliced};
pub use unroll::{Leaf, Unrolled, UnrolledReduction, UnrolledValue};

#[cfg(test)]
mod tests;
