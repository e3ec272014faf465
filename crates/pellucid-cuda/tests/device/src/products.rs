//! Matrix products with epilogues, in the order of the inner index.

use half::{bf16, f16};

use crate::memory::MemoryAccess;

/// The types of matrix elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ElementType {
    F16,
    BF16,
    F32,
    F64,
}

impl ElementType {
    /// Returns the type of a number of `cudaDataType`.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::F32),
            1 => Some(Self::F64),
            2 => Some(Self::F16),
            14 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Returns the bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// A matrix in memory. `cublasLtMatmul` checks that all elements are in allocations (`MatrixOperand::access`).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MatrixOperand {
    pub(crate) address: usize,
    pub(crate) element: ElementType,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The elements from row to row, and from column to column.
    pub(crate) row_stride: usize,
    pub(crate) column_stride: usize,
    pub(crate) batch_stride: usize,
    pub(crate) batches: usize,
}

impl MatrixOperand {
    /// Returns the matrix with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn element_address(&self, batch: usize, row: usize, column: usize) -> usize {
        let index = batch * self.batch_stride + row * self.row_stride + column * self.column_stride;
        self.address + index * self.element.bytes()
    }

    fn read(&self, batch: usize, row: usize, column: usize) -> f64 {
        read_element(self.element_address(batch, row, column), self.element)
    }

    fn write(&self, batch: usize, row: usize, column: usize, value: f64) {
        let address = self.element_address(batch, row, column);
        // SAFETY: the address is inside the range of `access`, which is checked before the product runs
        // (`TestDevice::run_work`), and aligned to the element (`cublasLtMatmul`).
        unsafe {
            match self.element {
                ElementType::F16 => (address as *mut f16).write(f16::from_f64(value)),
                ElementType::BF16 => (address as *mut bf16).write(bf16::from_f64(value)),
                ElementType::F32 => (address as *mut f32).write(value as f32),
                ElementType::F64 => (address as *mut f64).write(value),
            }
        }
    }

    /// Returns the bytes from the first to the last element.
    fn access(&self, is_write: bool) -> MemoryAccess {
        let last = self.element_address(self.batches - 1, self.rows - 1, self.columns - 1);
        let bytes = last + self.element.bytes() - self.address;
        MemoryAccess { address: self.address, bytes, is_write }
    }
}

fn read_element(address: usize, element: ElementType) -> f64 {
    // SAFETY: as for `MatrixOperand::write`; a bias is checked in the same places.
    unsafe {
        match element {
            ElementType::F16 => (address as *const f16).read().to_f64(),
            ElementType::BF16 => (address as *const bf16).read().to_f64(),
            ElementType::F32 => f64::from((address as *const f32).read()),
            ElementType::F64 => (address as *const f64).read(),
        }
    }
}

/// The function after the bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activation {
    Identity,
    Relu,
    Gelu,
}

impl Activation {
    fn apply(self, x: f64) -> f64 {
        match self {
            Self::Identity => x,
            Self::Relu => x.max(0.0),
            // cuBLASLt's GELU is the approximation with tanh.
            Self::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// D = activation(α·A·B + β·C + bias), for each matrix of a batch. The bias has one element for each row of D.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ProductCall {
    pub(crate) a: MatrixOperand,
    pub(crate) b: MatrixOperand,
    pub(crate) c: MatrixOperand,
    pub(crate) d: MatrixOperand,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) bias: Option<(usize, ElementType)>,
    /// The elements from the bias of one batch to the next one's.
    pub(crate) bias_stride: usize,
    pub(crate) activation: Activation,
    /// Products and sums are in `f64`, not in `f32`.
    pub(crate) is_double: bool,
    /// Factors are rounded to the 10 bits of TF32.
    pub(crate) is_tf32: bool,
    /// The memory that the algorithm overwrites.
    pub(crate) workspace: Option<(usize, usize)>,
}

/// Rounds to the 10 stored bits of TF32, to nearest, halves away from zero.
fn round_tf32(value: f32) -> f32 {
    if value.is_finite() { f32::from_bits((value.to_bits() + 0x1000) & !0x1fff) } else { value }
}

impl ProductCall {
    /// Returns the accesses to memory.
    pub(crate) fn accesses(&self) -> Vec<MemoryAccess> {
        let mut found = vec![self.a.access(false), self.b.access(false)];
        if self.beta != 0.0 && self.c != self.d {
            found.push(self.c.access(false));
        }
        if let Some((address, element)) = self.bias {
            let length = self.d.rows + (self.d.batches - 1) * self.bias_stride;
            found.push(MemoryAccess { address, bytes: length * element.bytes(), is_write: false });
        }
        if let Some((address, bytes)) = self.workspace {
            found.push(MemoryAccess { address, bytes, is_write: true });
        }
        found.push(self.d.access(true));
        found
    }

    fn dot(&self, left: &[f64], right: &[f64]) -> f64 {
        if self.is_double {
            return left.iter().zip(right).fold(0.0, |sum, (x, y)| x * y + sum);
        }
        let factor = |x: f64| if self.is_tf32 { round_tf32(x as f32) } else { x as f32 };
        let sum = left.iter().zip(right).fold(0.0_f32, |sum, (&x, &y)| factor(x) * factor(y) + sum);
        f64::from(sum)
    }

    /// Computes the product. The workspace is overwritten, so that its other users are found.
    pub(crate) fn compute(&self) {
        if let Some((address, bytes)) = self.workspace {
            // SAFETY: the range is checked before the product runs, as those of the matrices.
            unsafe { (address as *mut u8).write_bytes(0xab, bytes) };
        }
        for batch in 0..self.d.batches {
            let row_of_a = |row| (0..self.a.columns).map(|k| self.a.read(batch, row, k)).collect::<Vec<f64>>();
            let rows: Vec<Vec<f64>> = (0..self.a.rows).map(row_of_a).collect();
            for column in 0..self.d.columns {
                let right: Vec<f64> = (0..self.b.rows).map(|k| self.b.read(batch, k, column)).collect();
                for (row, left) in rows.iter().enumerate() {
                    let mut value = self.alpha * self.dot(left, &right);
                    if self.beta != 0.0 {
                        value += self.beta * self.c.read(batch, row, column);
                    }
                    if let Some((address, element)) = self.bias {
                        let index = batch * self.bias_stride + row;
                        value += read_element(address + index * element.bytes(), element);
                    }
                    self.d.write(batch, row, column, self.activation.apply(value));
                }
            }
        }
    }
}
