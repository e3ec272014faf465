//! Pooling of every kind in many configurations, compared with loops over windows.

use crate::support::assert_within;
use pellucid_tensor::ops::{self, AvgPoolDivisor, PoolOptions};
use pellucid_tensor::{DType, Error, GradOptions, Tensor, grad_one, lazy};

/// A linear congruential generator, so that every run tests the same configurations.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn values(&mut self, n: usize, range: usize) -> Vec<f64> {
        (0..n).map(|_| self.below(2 * range + 1) as f64 - range as f64).collect()
    }
}

/// A configuration of a pool over three spatial axes; the last `spatial` of them are used.
#[derive(Clone, Copy, Debug)]
struct PoolConfig {
    spatial: usize,
    dims: [usize; 3],
    size: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
    ceil: bool,
}

/// Iterates over the indices of three axes, the last axis fastest.
fn places(lengths: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [_, b, c] = lengths;
    (0..lengths.iter().product()).map(move |i| [i / (b * c), i / c % b, i % c])
}

impl PoolConfig {
    fn random(lcg: &mut Lcg, spatial: usize, dilated: bool, padded: bool) -> PoolConfig {
        let mut all = PoolConfig {
            spatial,
            dims: [1; 3],
            size: [1; 3],
            stride: [1; 3],
            padding: [0; 3],
            dilation: [1; 3],
            ceil: lcg.below(2) == 0,
        };
        let most = [13, 7, 4][spatial - 1];
        for a in 3 - spatial..3 {
            all.dims[a] = 1 + lcg.below(most);
            all.size[a] = 1 + lcg.below(most + 3);
            all.stride[a] = 1 + lcg.below(4);
            all.dilation[a] = if dilated { 1 + lcg.below(3) } else { 1 };
            all.padding[a] = if padded { lcg.below(all.window_extent(a).div_ceil(2) + 1) } else { 0 };
        }
        all
    }

    fn window_extent(&self, a: usize) -> usize {
        self.dilation[a] * (self.size[a] - 1)
    }

    /// Returns the number of windows along an axis as PyTorch counts them, or 0 if no window fits.
    fn count(&self, a: usize) -> usize {
        let [len, stride, padding] = [self.dims[a], self.stride[a], self.padding[a]].map(|n| n as isize);
        let slack = len + 2 * padding - self.window_extent(a) as isize - 1;
        let counts = |o: &isize| match self.ceil {
            true => o * stride < slack + stride && o * stride < len + padding,
            false => o * stride <= slack,
        };
        (0..len + 2 * padding + 1).take_while(counts).count()
    }

    fn outputs(&self) -> [usize; 3] {
        [0, 1, 2].map(|a| self.count(a))
    }

    /// Returns the taps of window `o` along axis `a` that are inside the image.
    fn taps(&self, a: usize, o: usize) -> Vec<usize> {
        let at = |t: usize| (o * self.stride[a] + t * self.dilation[a]).checked_sub(self.padding[a]);
        (0..self.size[a]).filter_map(at).filter(|&i| i < self.dims[a]).collect()
    }

    /// Returns the positions in a plane of the taps of a window that are inside, in row-major order.
    fn window(&self, o: [usize; 3]) -> Vec<usize> {
        let [z, y, x] = [0, 1, 2].map(|a| self.taps(a, o[a]));
        let rows = z.iter().flat_map(|z| y.iter().map(move |y| z * self.dims[1] + y));
        rows.flat_map(|row| x.iter().map(move |x| row * self.dims[2] + x)).collect()
    }

    fn pool(&self) -> PoolOptions {
        let of = |all: [usize; 3]| all[3 - self.spatial..].to_vec();
        PoolOptions {
            stride: Some(of(self.stride).into()),
            padding: of(self.padding).into(),
            dilation: of(self.dilation).into(),
            ceil: self.ceil,
            ..PoolOptions::new(of(self.size))
        }
    }

    /// Returns the shape of two images with two channels.
    fn shape(&self, lengths: [usize; 3]) -> Vec<usize> {
        [2, 2].into_iter().chain(lengths[3 - self.spatial..].iter().copied()).collect()
    }

    fn tensor(&self, values: &[f64]) -> Tensor {
        Tensor::new(values, self.shape(self.dims))
    }

    fn plane(&self) -> usize {
        self.dims.iter().product()
    }

    /// Computes `f` for every window of every plane.
    fn each<R>(&self, x: &[f64], outputs: [usize; 3], f: impl Fn(&[f64], [usize; 3]) -> R) -> Vec<R> {
        let f = &f;
        x.chunks(self.plane()).flat_map(|plane| places(outputs).map(move |o| f(plane, o))).collect()
    }
}

/// Returns the position of the first maximum; NaN is larger than all numbers.
fn largest(plane: &[f64], window: &[usize]) -> usize {
    let better = |a: f64, b: f64| a > b || a.is_nan() && !b.is_nan();
    window
        .iter()
        .copied()
        .reduce(|best, i| if better(plane[i], plane[best]) { i } else { best })
        .expect("every window must contain at least one element")
}

macro_rules! by_rank {
    ($spatial:expr; $one:ident, $two:ident, $three:ident; $($arg:expr),*) => {
        match $spatial {
            1 => ops::$one($($arg),*),
            2 => ops::$two($($arg),*),
            _ => ops::$three($($arg),*),
        }
    };
}

fn max_pool(setup: &PoolConfig, x: &Tensor) -> Result<(Tensor, Tensor), Error> {
    by_rank!(setup.spatial; max_pool1d, max_pool2d, max_pool3d; x, setup.pool())
}

#[test]
fn max_pools_with_positions_and_gradients() {
    let lcg = &mut Lcg(1);
    let mut seen = [0; 2];
    for i in 0..1500 {
        let setup = PoolConfig::random(lcg, 1 + i % 3, i % 2 == 0, true);
        let outputs = setup.outputs();
        let mut values = lcg.values(4 * setup.plane(), 3);
        let has_nan = i % 5 == 0;
        if has_nan {
            values.iter_mut().step_by(7).for_each(|x| *x = f64::NAN);
        }
        let x = setup.tensor(&values).requires_grad_(true);
        let found = max_pool(&setup, &x);
        let rejected = outputs.contains(&0) || places(outputs).any(|o| setup.window(o).is_empty());
        seen[usize::from(rejected)] += 1;
        if rejected {
            assert!(matches!(found, Err(Error::InvalidArgument { .. })), "{setup:?}");
            continue;
        }
        let (y, positions) = found.unwrap_or_else(|e| panic!("{setup:?}: {e}"));
        assert_eq!(y.shape()[..], setup.shape(outputs), "{setup:?}");
        let chosen = setup.each(&values, outputs, |plane, o| largest(plane, &setup.window(o)));
        let expected: Vec<i64> = chosen.iter().map(|&at| at as i64).collect();
        assert_eq!(positions.to_vec::<i64>(), expected, "{setup:?}");
        let count = outputs.iter().product::<usize>();
        let at = |i: usize| i / count * setup.plane() + chosen[i];
        let expected: Vec<f64> = (0..chosen.len()).map(|i| values[at(i)]).collect();
        assert_within(&y, &expected, 0.0);
        let weights = lcg.values(chosen.len(), 3);
        (&y * &Tensor::new(&weights[..], setup.shape(outputs))).sum(..).backward();
        if !has_nan {
            let mut expected = vec![0.0; values.len()];
            weights.iter().enumerate().for_each(|(i, w)| expected[at(i)] += w);
            assert_within(&x.grad().expect("the tensor must have a gradient"), &expected, 0.0);
        }
        // Unpooling writes the maxima to their positions; the last of several values for one position is stored.
        let dims = &setup.dims[3 - setup.spatial..];
        let y = y.detach();
        let back = by_rank!(setup.spatial; max_unpool1d, max_unpool2d, max_unpool3d; &y, &positions, dims).unwrap();
        let mut expected = vec![0.0; values.len()];
        (0..chosen.len()).for_each(|i| expected[at(i)] = values[at(i)]);
        assert_within(&back, &expected, 0.0);
    }
    assert!(seen[0] > 600 && seen[1] > 50, "{seen:?}");
}

#[test]
fn max_pools_with_every_accepted_window() {
    // Windows longer than the padded image on one side, on small and on larger images.
    for len in [1, 2, 3, 4, 7, 16, 17] {
        for size in 1..=20 {
            for padding in 0..=size / 2 {
                for (stride, dilation) in [(1, 1), (2, 1), (1, 2), (3, 2)] {
                    let all = |n: usize, one: usize| [one, one, n];
                    let setup = PoolConfig {
                        spatial: 1,
                        dims: all(len, 1),
                        size: all(size, 1),
                        stride: all(stride, 1),
                        padding: all(padding, 0),
                        dilation: all(dilation, 1),
                        ceil: false,
                    };
                    let outputs = setup.outputs();
                    let values: Vec<f64> = (0..4 * len).map(|i| (i * 7 % 5) as f64).collect();
                    let found = max_pool(&setup, &setup.tensor(&values));
                    if outputs.contains(&0) || places(outputs).any(|o| setup.window(o).is_empty()) {
                        assert!(matches!(found, Err(Error::InvalidArgument { .. })), "{setup:?}");
                        continue;
                    }
                    let expected = setup.each(&values, outputs, |plane, o| plane[largest(plane, &setup.window(o))]);
                    assert_within(&found.unwrap_or_else(|e| panic!("{setup:?}: {e}")).0, &expected, 0.0);
                }
            }
        }
    }
    let values = Lcg(6).values(8 * 4 * 9, 50);
    let x = Tensor::new(&values[..], [8, 4, 3, 3]);
    let (y, _) =
        ops::max_pool2d(&x, PoolOptions { stride: Some(1.into()), padding: 6.into(), ..PoolOptions::new(13) }).unwrap();
    let most = values.chunks(9).map(|plane| plane.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    assert_within(&y, &most.flat_map(|most| [most; 9]).collect::<Vec<_>>(), 0.0);
}

#[test]
fn average_pools_with_every_divisor() {
    let lcg = &mut Lcg(2);
    for i in 0..900 {
        let setup = PoolConfig::random(lcg, 1 + i % 3, false, true);
        let outputs = setup.outputs();
        let divisor = [AvgPoolDivisor::Window, AvgPoolDivisor::Inside, AvgPoolDivisor::Number(3.0)][lcg.below(3)];
        let values = lcg.values(4 * setup.plane(), 9);
        let x = setup.tensor(&values);
        let found = by_rank!(setup.spatial; avg_pool1d, avg_pool2d, avg_pool3d; &x, setup.pool(), divisor);
        if outputs.contains(&0) {
            assert!(matches!(found, Err(Error::InvalidArgument { .. })), "{setup:?}");
            continue;
        }
        // The divisor includes padding, but not the part of the window beyond it.
        let padded = |a: usize, o: usize| {
            let start = o * setup.stride[a];
            (start + setup.size[a]).min(setup.dims[a] + 2 * setup.padding[a]) - start
        };
        let expected = setup.each(&values, outputs, |plane, o| {
            let window = setup.window(o);
            let sum: f64 = window.iter().map(|&i| plane[i]).sum();
            sum / match divisor {
                AvgPoolDivisor::Window => (0..3).map(|a| padded(a, o[a])).product::<usize>() as f64,
                AvgPoolDivisor::Inside => window.len() as f64,
                AvgPoolDivisor::Number(number) => number,
            }
        });
        assert_within(&found.unwrap_or_else(|e| panic!("{setup:?}: {e}")), &expected, 1e-14);
    }
}

#[test]
fn lp_pools() {
    let lcg = &mut Lcg(3);
    for i in 0..600 {
        let setup = PoolConfig::random(lcg, 1 + i % 3, false, false);
        let outputs = setup.outputs();
        let p = [1.0, 2.0, 3.0][lcg.below(3)];
        let values: Vec<f64> = lcg.values(4 * setup.plane(), 4).into_iter().map(|x| x.abs() + 1.0).collect();
        let x = setup.tensor(&values);
        let found = by_rank!(setup.spatial; lp_pool1d, lp_pool2d, lp_pool3d; &x, p, setup.pool());
        if outputs.contains(&0) {
            assert!(matches!(found, Err(Error::InvalidArgument { .. })), "{setup:?}");
            continue;
        }
        let window_size = setup.size.iter().product::<usize>() as f64;
        let expected = setup.each(&values, outputs, |plane, o| {
            let window = setup.window(o);
            let sum: f64 = window.iter().map(|&i| plane[i].powf(p)).sum();
            (sum * window_size / window.len() as f64).powf(1.0 / p)
        });
        assert_within(&found.unwrap_or_else(|e| panic!("{setup:?}: {e}")), &expected, 1e-12);
    }
}

/// The windows of large images are summed along one axis after the other.
#[test]
fn lp_pools_of_large_images() {
    let lcg = &mut Lcg(5);
    for (spatial, dims, size) in [(1, [1, 1, 301], [1, 1, 3]), (2, [1, 24, 17], [1, 3, 2]), (3, [9, 8, 11], [2, 2, 3])]
    {
        for p in [0.5, 2.0, 3.0] {
            let setup =
                PoolConfig { spatial, dims, size, stride: size, padding: [0; 3], dilation: [1; 3], ceil: false };
            // Squares of these values overflow in some of the windows.
            let values: Vec<f64> =
                lcg.values(4 * setup.plane(), 4).into_iter().map(|x| (x.abs() + 1.0) * 1e200).collect();
            let x = setup.tensor(&values).requires_grad_(true);
            let y = by_rank!(spatial; lp_pool1d, lp_pool2d, lp_pool3d; &x, p, setup.pool()).unwrap();
            let norm = |plane: &[f64], o: [usize; 3]| {
                let terms = setup.window(o).into_iter().map(|i| (plane[i] * 1e-200).powf(p));
                terms.sum::<f64>().powf(1.0 / p) * 1e200
            };
            let expected = setup.each(&values, setup.outputs(), norm);
            assert_within(&(&y * 1e-200), &expected.iter().map(|y| y * 1e-200).collect::<Vec<_>>(), 1e-12);
            y.sum(..).backward();
            let mut slopes = vec![0.0; values.len()];
            let (plane, windows) = (setup.plane(), expected.len() / 4);
            for (k, y) in expected.iter().enumerate() {
                let o = places(setup.outputs()).nth(k % windows).expect("the window must exist");
                for i in setup.window(o) {
                    let i = k / windows * plane + i;
                    slopes[i] = (values[i] / y).powf(p - 1.0);
                }
            }
            assert_within(&x.grad().expect("the tensor must have a gradient"), &slopes, 1e-12);
        }
    }
}

#[test]
fn adaptive_average_and_max_pools() {
    let lcg = &mut Lcg(4);
    for i in 0..600 {
        let spatial = 1 + i % 3;
        let mut setup = PoolConfig::random(lcg, spatial, false, false);
        let mut outputs = [1; 3];
        for a in 3 - spatial..3 {
            outputs[a] = 1 + lcg.below([14, 8, 5][spatial - 1]);
        }
        (setup.size, setup.stride) = ([1; 3], [1; 3]);
        let window = |o: [usize; 3]| -> Vec<usize> {
            let ends = |a: usize| {
                let (len, n) = (setup.dims[a], outputs[a]);
                o[a] * len / n..((o[a] + 1) * len).div_ceil(n)
            };
            let plane = setup.dims;
            let inside = |p: &[usize; 3]| (0..3).all(|a| ends(a).contains(&p[a]));
            places(plane).filter(inside).map(|[z, y, x]| (z * plane[1] + y) * plane[2] + x).collect()
        };
        let values = lcg.values(4 * setup.plane(), 3);
        let x = setup.tensor(&values);
        let lengths: Vec<Option<usize>> = outputs[3 - spatial..].iter().map(|&n| Some(n)).collect();
        let means =
            by_rank!(spatial; adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d; &x, &lengths).unwrap();
        let expected = setup.each(&values, outputs, |plane, o| {
            let window = window(o);
            window.iter().map(|&i| plane[i]).sum::<f64>() / window.len() as f64
        });
        assert_within(&means, &expected, 1e-12);
        let (most, positions) =
            by_rank!(spatial; adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d; &x, &lengths).unwrap();
        let expected = setup.each(&values, outputs, |plane, o| plane[largest(plane, &window(o))]);
        assert_within(&most, &expected, 0.0);
        let expected = setup.each(&values, outputs, |plane, o| largest(plane, &window(o)) as i64);
        assert_eq!(
            positions.to_vec::<i64>(),
            expected,
            "the result for {setup:?} with outputs {outputs:?} differs from the loops"
        );
    }
}

#[test]
fn fractional_windows_start_where_the_random_numbers_say() {
    let lcg = &mut Lcg(5);
    for i in 0..300 {
        let spatial = 2 + i % 2;
        let mut setup = PoolConfig::random(lcg, spatial, false, false);
        let mut outputs = [1; 3];
        for a in 3 - spatial..3 {
            setup.size[a] = 1 + lcg.below(setup.dims[a]);
            outputs[a] = 1 + lcg.below(setup.dims[a] + 1 - setup.size[a]);
        }
        let samples: Vec<f64> = (0..4 * spatial).map(|_| lcg.below(64) as f64 / 64.0).collect();
        let starts = |plane: usize, a: usize, o: usize| {
            let (slack, n) = (setup.dims[a] - setup.size[a], outputs[a]);
            if o + 1 == n {
                return slack;
            }
            // The random numbers of a plane start with the last axis, and the numbers of a volume with the first.
            let k = if spatial == 3 { a } else { 2 - a };
            let (u, alpha) = (samples[plane * spatial + k], slack as f64 / (n as f64 - 1.0));
            (((o as f64 + u) * alpha).floor() - (u * alpha).floor()) as usize
        };
        let values = lcg.values(4 * setup.plane(), 3);
        let x = setup.tensor(&values);
        let numbers = Tensor::new(&samples[..], [2, 2, spatial]);
        let (size, counts) = (setup.size[3 - spatial..].to_vec(), outputs[3 - spatial..].to_vec());
        let (y, positions) = match spatial {
            2 => ops::fractional_max_pool2d(&x, size, counts, Some(&numbers)),
            _ => ops::fractional_max_pool3d(&x, size, counts, Some(&numbers)),
        }
        .unwrap();
        let mut expected = (vec![], vec![]);
        for (n, plane) in values.chunks(setup.plane()).enumerate() {
            for o in places(outputs) {
                let first = [0, 1, 2].map(|a| starts(n, a, o[a]));
                let window: Vec<usize> = places(setup.size)
                    .map(|t| [0, 1, 2].map(|a| first[a] + t[a]))
                    .map(|[z, y, x]| (z * setup.dims[1] + y) * setup.dims[2] + x)
                    .collect();
                let at = largest(plane, &window);
                expected.0.push(plane[at]);
                expected.1.push(at as i64);
            }
        }
        assert_within(&y, &expected.0, 0.0);
        assert_eq!(
            positions.to_vec::<i64>(),
            expected.1,
            "the result for {setup:?} with outputs {outputs:?} differs from the loops"
        );
    }
}

/// Positions may have any integer dtype, in both directions and in every mode.
#[test]
fn positions_of_any_integer_dtype_have_gradients() {
    let x = Tensor::from([[[2.0f64, 3.0]]]).requires_grad_(true);
    for dtype in [DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
        let positions = Tensor::from([[[1i64, 3]]]).to_dtype(dtype);
        let unpooled = |x: &Tensor| ops::max_unpool1d(x, &positions, &[4]).unwrap();
        let gradient = |y: &Tensor| {
            let squares = (y * y).sum(..);
            let options = GradOptions { create_graph: true, ..Default::default() };
            let first = grad_one(&squares, &x, options).unwrap();
            let second = grad_one(&first.sum(..), &x, GradOptions::default()).unwrap();
            [first, second].map(|g| g.to_vec::<f64>())
        };
        assert_eq!(unpooled(&x).to_vec::<f64>(), [0.0, 2.0, 0.0, 3.0], "{dtype}");
        assert_eq!(gradient(&unpooled(&x)), [[4.0, 6.0], [2.0, 2.0]], "{dtype}");
        assert_eq!(lazy(|| gradient(&unpooled(&x))), [[4.0, 6.0], [2.0, 2.0]], "{dtype}");
    }
}
