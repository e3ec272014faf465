//! Random programs: what is recorded and launched, and what is run lazily, computes the bits that it computes eagerly.
//!
//! A program is a number. From it follow shapes and dtypes, inputs, state that lives from step to step, and a sequence of
//! operations on a pool of tensors. It looks at shapes and dtypes alone, never at values, so it goes the same way in
//! every mode. Values are used several times, before and after writes in place, through views of one another; what a
//! step returns may be a view of an input, of the state, or of another output.

mod dice;
mod moves;

use crate::support::bits;
pub use dice::Dice;
use moves::MOVES;
use pellucid_tensor::{DType, Generator, Tensor, capture, lazy, manual_seed, ops};
use std::cell::RefCell;

/// Inputs of every program.
const INPUTS: usize = 5;

/// Launches of every program.
const STEPS: usize = 3;

/// What lives from step to step.
pub struct World {
    /// Matrices `[m, n]`, of two dtypes, both written in place.
    states: [Tensor; 2],
    /// `i64 [n]`, an index into axes of length `n`.
    index: Tensor,
    /// A leaf `[n, 3]` that is trained.
    weight: Tensor,
    /// A gradient that every step adds to.
    total: Tensor,
    generator: Generator,
}

/// The numbers of a program before its first move.
struct Setting {
    m: usize,
    n: usize,
    dtypes: [DType; 4],
    moves: usize,
}

impl Setting {
    fn of(dice: &mut Dice) -> Setting {
        let sides = [(3, 4), (1, 5), (6, 1), (2, 3), (5, 7), (4, 2), (1, 1), (7, 16), (17, 33)];
        let (m, n) = match dice.below(40) {
            0 => (0, 3),
            1 => (70, 130),
            _ => dice.of(&sides),
        };
        let float = |dice: &mut Dice| dice.of(&[DType::F32, DType::F32, DType::F64, DType::BF16]);
        Setting { m, n, dtypes: [(); 4].map(|()| float(dice)), moves: 10 + dice.below(31) }
    }

    /// The inputs of a step: a matrix, a row, a column, numbers that index, truth values.
    fn inputs(&self, step: usize) -> Vec<Tensor> {
        let &Setting { m, n, dtypes, .. } = self;
        let wave = |shape: [usize; 2], pace: f64| {
            let numbers: Vec<f64> =
                (0..shape[0] * shape[1]).map(|i| (0.3 + step as f64 + pace * i as f64).sin()).collect();
            Tensor::new(numbers, shape)
        };
        let whole: Vec<i64> = (0..n).map(|i| ((i * 7 + step * 3) % n.max(1)) as i64).collect();
        vec![
            wave([m, n], 1.9).to_dtype(dtypes[0]),
            wave([1, n], 0.7).reshape([n]).to_dtype(dtypes[1]),
            wave([m, 1], 2.3).to_dtype(dtypes[2]),
            Tensor::new(whole, [n]),
            wave([m, n], 3.1).gt(0.2),
        ]
    }
}

impl World {
    fn new(setting: &Setting, seed: u64) -> World {
        let &Setting { m, n, dtypes, .. } = setting;
        let generator = Generator::new(seed);
        let draw =
            |shape: [usize; 2], dtype: DType| ops::randn_with(shape, DType::F64, &generator).unwrap().to_dtype(dtype);
        World {
            states: [draw([m, n], dtypes[0]), draw([m, n], dtypes[3])],
            index: (Tensor::arange(0i64, n as i64, 1) * 5 + 1) % (n as i64),
            weight: draw([n, 3], dtypes[0]).requires_grad_(true),
            total: {
                let total = Tensor::zeros([n], dtypes[1]).requires_grad_(true);
                total.set_grad(Some(Tensor::ones([n], dtypes[1])));
                total
            },
            generator,
        }
    }

    /// Everything that a step may have changed.
    fn all(&self) -> Vec<Tensor> {
        let mut all = self.states.to_vec();
        let (weight, gradient) = (self.weight.detach(), self.total.grad().expect("it was given one"));
        all.extend([
            self.index.clone(),
            weight,
            gradient,
            self.generator.state().clone(),
            Generator::default().state().clone(),
        ]);
        all
    }
}

/// A program on its way: what there is, and what happened.
pub struct Run<'w> {
    dice: Dice,
    world: &'w World,
    pool: Vec<Tensor>,
    /// The largest number of elements that a move makes.
    most: usize,
    /// The positions that the present move has taken from the pool.
    taken: Vec<usize>,
    log: Vec<String>,
    /// How often each move was made.
    made: Vec<usize>,
}

impl<'w> Run<'w> {
    fn new(dice: Dice, setting: &Setting, world: &'w World, inputs: &[Tensor]) -> Run<'w> {
        let mut pool = inputs.to_vec();
        pool.extend(world.states.iter().chain([&world.index]).cloned());
        let names = ["matrix", "row", "column", "whole", "mask", "state 0", "state 1", "index"];
        let log = pool.iter().zip(names).enumerate();
        let log = log.map(|(i, (t, name))| format!("%{i} {}{} = {name}", t.dtype(), t.shape())).collect();
        let most = 4 * setting.m.max(1) * setting.n + 64;
        Run { dice, world, pool, most, taken: vec![], log, made: vec![0; MOVES.len()] }
    }

    /// A tensor of the pool that is as wanted; the youngest come as often as all others.
    fn take(&mut self, wanted: impl Fn(&Tensor) -> bool) -> Option<Tensor> {
        for _ in 0..24 {
            let len = self.pool.len();
            let at = if self.dice.below(2) == 0 { len - 1 - self.dice.below(len.min(4)) } else { self.dice.below(len) };
            if wanted(&self.pool[at]) {
                self.taken.push(at);
                return Some(self.pool[at].clone());
            }
        }
        None
    }

    /// Whether a tensor has the memory of an input, which come first in the pool.
    fn is_of_an_input(&self, x: &Tensor) -> bool {
        self.pool[..INPUTS].iter().any(|input| input.array().shares_storage(x.array()))
    }

    /// Makes one move, if one is found that fits.
    fn go(&mut self) {
        for _ in 0..8 {
            let which = self.dice.below(MOVES.len());
            let (name, play) = MOVES[which];
            self.taken.clear();
            let Some(mut results) = play(self) else { continue };
            results.retain(|t| t.size() <= self.most);
            self.made[which] += 1;
            let first = self.pool.len();
            let what = results.iter().enumerate().map(|(k, t)| format!("%{} {}{}", first + k, t.dtype(), t.shape()));
            let what = what.collect::<Vec<_>>().join(", ");
            self.log.push(format!("{what} = {name} of {:?}", self.taken));
            self.pool.extend(results.into_iter().map(|t| t.detach()));
            return;
        }
    }
}

/// One step of a program: its results, and the run that made them.
fn step<'w>(seed: u64, world: &'w World, inputs: &[Tensor]) -> (Vec<Tensor>, Run<'w>) {
    let mut dice = Dice::new(seed);
    let setting = Setting::of(&mut dice);
    let mut run = Run::new(dice, &setting, world, inputs);
    for _ in 0..setting.moves {
        run.go();
    }
    let count = 1 + run.dice.below(6);
    run.taken.clear();
    let outputs: Vec<Tensor> = (0..count).filter_map(|_| run.take(|_| true)).collect();
    run.log.push(format!("returns {:?}", run.taken));
    (outputs, run)
}

/// What is seen of a step: the bits of its results, and of all state after it.
type Seen = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// The bits, in which every NaN is the same one.
fn seen(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    let plain =
        |t: &Tensor| if t.dtype().is_float() { ops::where_(&t.isnan(), f64::NAN, t).unwrap() } else { t.clone() };
    bits(&tensors.iter().map(plain).collect::<Vec<_>>())
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Eager,
    Lazy,
    Captured,
}

fn run(seed: u64, way: Way, made: &mut Vec<usize>) -> (Vec<Seen>, String) {
    let setting = Setting::of(&mut Dice::new(seed));
    manual_seed(seed);
    let world = World::new(&setting, seed);
    let log = RefCell::new(String::new());
    let note = |run: Run<'_>| {
        log.replace(run.log.join("\n"));
        run.made
    };
    let mut all = Vec::new();
    match way {
        Way::Eager | Way::Lazy => {
            for i in 0..STEPS {
                let inputs = setting.inputs(i);
                let work = || step(seed, &world, &inputs);
                let (outputs, run) = if let Way::Lazy = way { lazy(work) } else { work() };
                *made = note(run);
                all.push((seen(&outputs), seen(&world.all())));
            }
        }
        Way::Captured => {
            let before = bits(&world.all());
            let inputs = setting.inputs(0);
            let work = |inputs: &[Tensor]| {
                let (outputs, run) = step(seed, &world, inputs);
                note(run);
                outputs
            };
            let mut captured = capture(work, &inputs.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(bits(&world.all()), before, "program {seed}: recording changed the state");
            for i in 0..STEPS {
                let inputs = setting.inputs(i);
                let outputs = captured.launch(&inputs.iter().collect::<Vec<_>>()).unwrap();
                let outputs: Vec<Tensor> = (0..outputs.len()).map(|k| outputs.to_tensor(k).unwrap()).collect();
                all.push((seen(&outputs), seen(&world.all())));
                assert_eq!(
                    bits(&inputs),
                    bits(&setting.inputs(i)),
                    "program {seed}: a launch wrote to the caller's inputs"
                );
            }
        }
    }
    (all, log.into_inner())
}

/// Runs programs in every way.
fn compare(seeds: std::ops::Range<u64>) -> Vec<usize> {
    let mut totals = vec![0; MOVES.len()];
    for seed in seeds {
        let mut made = Vec::new();
        let (eager, log) = run(seed, Way::Eager, &mut made);
        totals.iter_mut().zip(&made).for_each(|(total, made)| *total += made);
        for way in [Way::Captured, Way::Lazy] {
            let (other, its_log) = run(seed, way, &mut made);
            assert_eq!(its_log, log, "program {seed} goes another way: {way:?}");
            for (i, (found, expected)) in other.iter().zip(&eager).enumerate() {
                let differs = |a: &[Vec<u8>], b: &[Vec<u8>]| (0..a.len()).filter(|&k| a[k] != b[k]).collect::<Vec<_>>();
                let (results, state) = (differs(&found.0, &expected.0), differs(&found.1, &expected.1));
                assert!(
                    results.is_empty() && state.is_empty(),
                    "program {seed}, {way:?}, step {i}: results {results:?} and state {state:?} differ\n{log}"
                );
            }
        }
    }
    totals
}

#[test]
fn random_programs_compute_the_same_bits_in_every_mode() {
    let _random = pellucid_tensor::Generator::new(0).scope();
    let made = compare(0..250);
    for ((name, _), made) in MOVES.iter().zip(made) {
        assert!(made >= 8, "`{name}` was made {made} times only");
    }
}

/// A guard ends its own scope, whatever the order in which guards are dropped.
#[test]
fn scopes_that_end_out_of_order() {
    let draw = || Tensor::rand([3], DType::F64).to_vec::<f64>();
    let expected = {
        let _scope = Generator::new(8).scope();
        draw()
    };
    let outer = Generator::new(7).scope();
    let inner = Generator::new(8).scope();
    drop(outer);
    assert_eq!(draw(), expected);
    let last = Generator::new(9).scope();
    drop(inner);
    let _scope = Generator::new(8).scope();
    drop(last);
    assert_eq!(draw(), expected);
}
