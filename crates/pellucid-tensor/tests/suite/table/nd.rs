//! `Nd`: arrays of `f64` with plain loops, for the references of all rows.
//!
//! The code is elementary, without strides or views. Every element is accessed by its index.

/// Elements in row-major order, and their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Nd {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

/// Returns every index of a shape, in row-major order.
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &len in shape {
        all = all.iter().flat_map(|ix| (0..len).map(move |i| [&ix[..], &[i]].concat())).collect();
    }
    all
}

impl Nd {
    pub fn from_fn(shape: &[usize], f: impl FnMut(&[usize]) -> f64) -> Nd {
        let mut f = f;
        Nd { shape: shape.to_vec(), data: indices(shape).iter().map(|ix| f(ix)).collect() }
    }

    pub fn scalar(value: f64) -> Nd {
        Nd { shape: vec![], data: vec![value] }
    }

    fn flat(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.shape).fold(0, |flat, (&i, &len)| {
            assert!(i < len, "{index:?} in {:?}", self.shape);
            flat * len + i
        })
    }

    /// Returns the element at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        self.data[self.flat(index)]
    }

    /// Replaces the element at an index.
    pub fn set(&mut self, index: &[usize], value: f64) {
        let flat = self.flat(index);
        self.data[flat] = value;
    }

    /// Returns the element that broadcasting assigns to an index of a larger shape.
    pub fn stretched_at(&self, index: &[usize]) -> f64 {
        let lead = index.len() - self.shape.len();
        let own: Vec<usize> =
            index[lead..].iter().zip(&self.shape).map(|(&i, &len)| if len == 1 { 0 } else { i }).collect();
        self.at(&own)
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Nd {
        Nd { shape: self.shape.clone(), data: self.data.iter().map(|&x| f(x)).collect() }
    }

    /// Returns the same elements with another shape.
    pub fn reshape(&self, shape: &[usize]) -> Nd {
        assert_eq!(shape.iter().product::<usize>(), self.data.len());
        Nd { shape: shape.to_vec(), data: self.data.clone() }
    }

    /// Permutes the axes: axis k of the result is axis `order[k]`.
    pub fn permute(&self, order: &[usize]) -> Nd {
        let shape: Vec<usize> = order.iter().map(|&a| self.shape[a]).collect();
        Nd::from_fn(&shape, |ix| {
            let mut own = vec![0; ix.len()];
            order.iter().zip(ix).for_each(|(&axis, &i)| own[axis] = i);
            self.at(&own)
        })
    }

    /// Returns the indices `start..start + len` of an axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Nd {
        Nd::from_fn(&with(&self.shape, axis, len), |ix| self.at(&with(ix, axis, ix[axis] + start)))
    }

    /// Broadcasts to a larger shape.
    pub fn broadcast(&self, shape: &[usize]) -> Nd {
        Nd::from_fn(shape, |ix| self.stretched_at(ix))
    }

    /// Applies `f` to the elements along `axes` in row-major order; the axes remain with length 1.
    pub fn fold(&self, axes: &[usize], f: impl Fn(&[f64]) -> f64) -> Nd {
        let kept = keepdims(&self.shape, axes);
        Nd::from_fn(&kept, |ix| f(&self.row(axes, ix)))
    }

    /// Computes [`Nd::fold`] and removes the axes.
    pub fn reduce(&self, axes: &[usize], f: impl Fn(&[f64]) -> f64) -> Nd {
        let gone: Vec<usize> = (0..self.shape.len()).filter(|a| !axes.contains(a)).map(|a| self.shape[a]).collect();
        self.fold(axes, f).reshape(&gone)
    }

    /// Replaces every row along `axes` by `f` of the row, which has the same length.
    pub fn rows(&self, axes: &[usize], f: impl Fn(&[f64]) -> Vec<f64>) -> Nd {
        let mut out = self.clone();
        for start in indices(&keepdims(&self.shape, axes)) {
            let places = self.places(axes, &start);
            let row: Vec<f64> = places.iter().map(|ix| self.at(ix)).collect();
            places.iter().zip(f(&row)).for_each(|(ix, value)| out.set(ix, value));
        }
        out
    }

    /// Returns the elements along `axes` through the index `at`.
    fn row(&self, axes: &[usize], at: &[usize]) -> Vec<f64> {
        self.places(axes, at).iter().map(|ix| self.at(ix)).collect()
    }

    /// Returns every index that differs from `at` only in `axes`, in row-major order.
    fn places(&self, axes: &[usize], at: &[usize]) -> Vec<Vec<usize>> {
        let lengths: Vec<usize> = axes.iter().map(|&a| self.shape[a]).collect();
        let place = |inner: Vec<usize>| {
            let mut own = at.to_vec();
            axes.iter().zip(inner).for_each(|(&axis, i)| own[axis] = i);
            own
        };
        indices(&lengths).into_iter().map(place).collect()
    }
}

/// Returns the list with one entry replaced.
pub fn with(list: &[usize], at: usize, value: usize) -> Vec<usize> {
    let mut list = list.to_vec();
    list[at] = value;
    list
}

/// Returns the shape with `axes` of length 1.
pub fn keepdims(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(a, &len)| if axes.contains(&a) { 1 } else { len }).collect()
}

/// Returns the broadcast shape of operands by NumPy's rule.
pub fn broadcast_shape(shapes: &[&[usize]]) -> Vec<usize> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    (0..rank)
        .map(|k| {
            let lens: Vec<usize> =
                shapes.iter().filter(|s| s.len() + k >= rank).map(|s| s[s.len() + k - rank]).collect();
            lens.iter().copied().find(|&l| l != 1).unwrap_or(1)
        })
        .collect()
}

/// Applies `f` to the elements of broadcast operands.
pub fn zip(inputs: &[Nd], f: impl Fn(&[f64]) -> f64) -> Nd {
    let shapes: Vec<&[usize]> = inputs.iter().map(|x| &x.shape[..]).collect();
    Nd::from_fn(&broadcast_shape(&shapes), |ix| f(&inputs.iter().map(|x| x.stretched_at(ix)).collect::<Vec<_>>()))
}
