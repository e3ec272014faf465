//! The equations of one element of a step, forward and backward, as WGSL source.

use super::step::StepArray;
use crate::shader::{ShaderBuilder, WgslFloat};
use pellucid_ir::kernel::RnnMode;

/// The arrays of a cell at one step. Blocks of the gates are `hidden` columns apart.
pub(super) struct CellArrays {
    pub(super) cell: RnnMode,
    /// H, the number of hidden units.
    pub(super) hidden: String,
    /// In the forward pass the input contribution, in the backward pass the gate activations.
    pub(super) gates: StepArray,
    /// In the forward pass the gate activations, in the backward pass the gradients of the gates.
    pub(super) results: StepArray,
    /// The previous state.
    pub(super) previous: StepArray,
    /// The cell states before and after the step, for [`RnnMode::Lstm`].
    pub(super) cells: Option<[StepArray; 2]>,
}

impl CellArrays {
    /// Adds the line that computes the column of the unit `column` in a block of the gates.
    fn gate_column(&self, shader: &mut ShaderBuilder, block: usize) -> String {
        shader.define(format!("column + {block}u * {}", self.hidden))
    }

    fn gate(&self, shader: &mut ShaderBuilder, block: usize) -> String {
        let column = self.gate_column(shader, block);
        self.gates.load_at(shader, "row", &column)
    }

    /// Adds the lines that store a result of every block.
    pub(super) fn store(&self, shader: &mut ShaderBuilder, values: &[&str]) {
        for (block, value) in values.iter().enumerate() {
            let column = self.gate_column(shader, block);
            self.results.store_at(shader, &column, value);
        }
    }

    /// Adds the lines of the forward step and returns the next state. `products` are the elements of W·h.
    pub(super) fn forward(
        &self,
        shader: &mut ShaderBuilder,
        float: WgslFloat,
        bias: &StepArray,
        products: &[String],
    ) -> String {
        let bias = |shader: &mut ShaderBuilder, block: usize| {
            let column = self.gate_column(shader, block);
            bias.load_at(shader, "0u", &column)
        };
        let sum = |shader: &mut ShaderBuilder, block: usize| {
            let (x, b) = (self.gate(shader, block), bias(shader, block));
            let sum = shader.define(float.add(&x, &products[block]));
            shader.define(float.add(&sum, &b))
        };
        let call = |shader: &mut ShaderBuilder, name: &str, x: &str| shader.define(float.call(name, &[x]));
        match self.cell {
            RnnMode::Tanh | RnnMode::Relu => {
                let x = sum(shader, 0);
                let y = match self.cell {
                    RnnMode::Tanh => call(shader, "tanh", &x),
                    _ => shader.define(float.call("max", &[&x, float.zero()])),
                };
                self.store(shader, &[&y]);
                y
            }
            RnnMode::Gru => {
                let [r, z] = [0, 1].map(|block| {
                    let x = sum(shader, block);
                    call(shader, "sigmoid", &x)
                });
                let (x, b, c) = (self.gate(shader, 2), bias(shader, 2), bias(shader, 3));
                let u = shader.define(float.add(&products[2], &c));
                let input_part = shader.define(float.add(&x, &b));
                let sum = shader.define(float.mul_add(&r, &u, &input_part));
                let n = call(shader, "tanh", &sum);
                let h = self.previous.load(shader);
                let difference = shader.define(float.sub(&h, &n));
                self.store(shader, &[&r, &z, &n, &u]);
                shader.define(float.mul_add(&z, &difference, &n))
            }
            RnnMode::Lstm => {
                let [i, f, g, o] = [0, 1, 2, 3].map(|block| {
                    let x = sum(shader, block);
                    call(shader, if block == 2 { "tanh" } else { "sigmoid" }, &x)
                });
                self.store(shader, &[&i, &f, &g, &o]);
                let [before, after] = self.cells.as_ref().expect("an LSTM must have cells");
                let c = before.load(shader);
                let added = shader.define(float.mul(&i, &g));
                let c = shader.define(float.mul_add(&f, &c, &added));
                after.store(shader, &c);
                let y = call(shader, "tanh", &c);
                shader.define(float.mul(&o, &y))
            }
        }
    }

    /// Adds the lines that store the gradients of the gates, from the gradient `g` of the next state, and returns the
    /// part of the gradient of the previous state that does not pass through the gates. `cell_grads` is the gradient of
    /// the cell state.
    pub(super) fn backward(
        &self,
        shader: &mut ShaderBuilder,
        float: WgslFloat,
        cell_grads: Option<&StepArray>,
        g: &str,
    ) -> String {
        let mul = |shader: &mut ShaderBuilder, a: &str, b: &str| shader.define(float.mul(a, b));
        // 1 − y².
        let tanh_slope = |shader: &mut ShaderBuilder, y: &str| {
            let negative = float.call("neg", &[y]);
            shader.define(float.mul_add(&negative, y, float.one()))
        };
        // g·y·(1 − y).
        let sigmoid_gradient = |shader: &mut ShaderBuilder, g: &str, y: &str| {
            let product = mul(shader, g, y);
            shader.define(float.mul(&product, &float.sub(float.one(), y)))
        };
        let y = self.gate(shader, 0);
        match self.cell {
            RnnMode::Tanh => {
                let slope = tanh_slope(shader, &y);
                let result = mul(shader, g, &slope);
                self.store(shader, &[&result]);
            }
            RnnMode::Relu => {
                // The gradient passes where y is NaN, as in the derivative of `relu`.
                let is_zero = float.call("le", &[&y, float.zero()]);
                let result = shader.define(format!("select({g}, {}, {is_zero})", float.zero()));
                self.store(shader, &[&result]);
            }
            RnnMode::Gru => {
                let [z, n, u] = [1, 2, 3].map(|block| self.gate(shader, block));
                let h = self.previous.load(shader);
                let kept = shader.define(float.sub(float.one(), &z));
                let (scaled, slope) = (mul(shader, g, &kept), tanh_slope(shader, &n));
                let dn = mul(shader, &scaled, &slope);
                let difference = shader.define(float.sub(&h, &n));
                let (dz, dr, du) = (mul(shader, g, &difference), mul(shader, &dn, &u), mul(shader, &dn, &y));
                let (dr, dz) = (sigmoid_gradient(shader, &dr, &y), sigmoid_gradient(shader, &dz, &z));
                self.store(shader, &[&dr, &dz, &dn, &du]);
                return mul(shader, g, &z);
            }
            RnnMode::Lstm => {
                let [before, after] = self.cells.as_ref().expect("an LSTM must have cells");
                let cell_grads = cell_grads.expect("an LSTM must have gradients of cells");
                let [f, new, o] = [1, 2, 3].map(|block| self.gate(shader, block));
                let (c, next) = (before.load(shader), after.load(shader));
                let t = shader.define(float.call("tanh", &[&next]));
                let (slope, through) = (tanh_slope(shader, &t), mul(shader, g, &o));
                let carried = cell_grads.load(shader);
                let dc = shader.define(float.mul_add(&through, &slope, &carried));
                let kept = mul(shader, &dc, &f);
                cell_grads.store(shader, &kept);
                let [di, df, dn, d_o] = [(&*dc, &*new), (&dc, &c), (&dc, &y), (g, &t)].map(|(a, b)| mul(shader, a, b));
                let new_slope = tanh_slope(shader, &new);
                let dn = mul(shader, &dn, &new_slope);
                let [di, df, d_o] = [(&di, &y), (&df, &f), (&d_o, &o)].map(|(d, y)| sigmoid_gradient(shader, d, y));
                self.store(shader, &[&di, &df, &dn, &d_o]);
            }
        }
        float.zero().into()
    }
}
