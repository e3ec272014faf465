//! Formulas: the mathematics of an operation, written once.
//!
//! A formula is an immutable graph of scalar (and row) primitives. From it follow the program that
//! a backend runs, the derivative of every order, and what must be saved for it.
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
//! | file | what it does |
//! | --- | --- |
//! | `primitive` | the alphabet |
//! | `graph`, `builder`, `expr`, `macros`, `real` | writing a formula |
//! | `simplify` | rewrites while it is written |
//! | `differentiate`, `save`, `gradient` | its derivative, what that reads, where it is kept |
//! | `partials` | partial derivatives of every order |
//! | `unroll` | a row formula as elementwise formulas and reductions |
//! | `program`, `compile`, `registers` | what a backend runs |
//! | `splice` | several programs as one |
//! | `evaluate`, `special` | its value at plain numbers, the reference |
//! | `print` | its text |

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
pub use definition::Formula;
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
