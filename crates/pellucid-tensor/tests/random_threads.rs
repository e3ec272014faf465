//! Random numbers of several threads. They have their own binary, because `manual_seed` affects every thread.

use pellucid_tensor::{DType, Error, Generator, Tensor, capture, manual_seed, ops};
use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::thread;

/// Draws numbers from the generator of the thread and returns their bits.
fn draw() -> Vec<u64> {
    Tensor::rand([8], DType::F64).to_vec::<f64>().into_iter().map(f64::to_bits).collect()
}

fn on_thread<R: Send + 'static>(name: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    thread::Builder::new().name(name.into()).spawn(f).unwrap().join().unwrap()
}

/// The checks are one test, because they share the seed of the process.
#[test]
fn one_seed_serves_all_threads() {
    // Threads draw different numbers, with and without names, sequentially or concurrently.
    let mut seen = HashSet::new();
    let mut once =
        |numbers: Vec<u64>| assert!(numbers.into_iter().all(|n| seen.insert(n)), "a number must not be drawn twice");
    once(draw());
    for _ in 0..3 {
        once(thread::spawn(draw).join().unwrap());
        once(on_thread("worker", draw));
        once(on_thread("main", draw));
    }
    let at_once: Vec<_> = (0..8).map(|_| thread::spawn(|| (0..50).flat_map(|_| draw()).collect::<Vec<_>>())).collect();
    at_once.into_iter().for_each(|t| once(t.join().unwrap()));

    // A seed gives the calling thread the stream of this key, and threads with the same name the same stream in every
    // run.
    let run = |seed: u64| {
        manual_seed(seed);
        (
            draw(),
            on_thread("loader", draw),
            on_thread("worker", || (draw(), draw())),
            thread::spawn(draw).join().unwrap(),
        )
    };
    let (first, second) = (run(7), run(7));
    assert_eq!(first, second);
    assert_ne!(first.0, run(8).0);
    let key = ops::rand_with([8], DType::F64, &Generator::new(7)).unwrap().to_vec::<f64>();
    assert_eq!(first.0, key.into_iter().map(f64::to_bits).collect::<Vec<_>>());
    // Draws of other threads do not change the stream of this thread.
    manual_seed(7);
    thread::spawn(|| (draw(), draw())).join().unwrap();
    assert_eq!(draw(), first.0);

    // A seed also restarts the streams of threads that have drawn before, and of captured steps that draw from them.
    let (ask, asked) = channel::<()>();
    let (answer, answers) = channel();
    let worker = thread::Builder::new().name("drawer".into()).spawn(move || {
        let mut step = capture(|_| Tensor::rand([8], DType::F64), &[]).unwrap();
        for () in asked {
            let launched = step.launch(&[]).unwrap().to_vec::<f64>(0);
            answer.send((launched, draw())).unwrap();
        }
    });
    let next = || {
        ask.send(()).unwrap();
        answers.recv().unwrap()
    };
    manual_seed(3);
    let (first, other) = (next(), next());
    assert_ne!(first, other);
    manual_seed(3);
    assert_eq!(next(), first);
    drop((ask, answers));
    worker.unwrap().join().unwrap();

    // A seed that another thread sets also restarts this thread's stream, which differs from the other thread's.
    let theirs = on_thread("seeder", || {
        manual_seed(11);
        draw()
    });
    assert_ne!(draw(), theirs);
    manual_seed(11);
    assert_eq!(draw(), theirs);
}

#[test]
fn forks_depend_on_their_keys_alone() {
    let generator = Generator::new(7);
    let numbers = |g: &Generator| ops::rand_with([16], DType::F64, g).unwrap().to_vec::<f64>();
    let first = numbers(&generator.fork(1));
    // A fork does not depend on earlier draws or on the thread.
    assert_eq!(numbers(&generator.fork(1)), first);
    let (shared, key) = (generator.clone(), generator.state().to_vec::<i64>()[0]);
    assert_eq!(thread::spawn(move || numbers(&shared.fork(1))).join().unwrap(), first);
    numbers(&generator);
    assert_eq!(numbers(&generator.fork(1)), first);
    assert_eq!(generator.state().to_vec::<i64>(), [key, 4 + 4], "a fork must not draw from its parent");
    // No two of these streams are equal.
    let chains = [vec![1, 2], vec![2, 1], vec![1, 1], vec![0, 0], vec![u64::MAX]];
    let chained = chains.iter().map(|keys| keys.iter().fold(generator.clone(), |g, &k| g.fork(k)));
    let forks =
        (0..1000).map(|k| generator.fork(k)).chain(chained).chain([generator.clone(), Generator::new(8).fork(1)]);
    let keys: Vec<i64> = forks.map(|g| g.state().to_vec::<i64>()[0]).collect();
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    // A fork works inside a captured step, where no value can be read.
    let mut step = capture(|_| ops::rand_with([16], DType::F64, &generator.fork(1)).unwrap(), &[]).unwrap();
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), first);
    assert_eq!(step.launch(&[]).unwrap().to_vec::<f64>(0), first);
}

#[test]
fn a_scope_draws_from_its_generator() {
    let outer = Generator::new(1);
    let _outer = outer.scope();
    let first = draw();
    {
        let _inner = Generator::new(2).scope();
        let inner = draw();
        assert_ne!(inner, first);
        // A seed inside the scope sets the generator of the scope.
        manual_seed(2);
        assert_eq!(draw(), inner);
    }
    let second = draw();
    outer.reseed(1);
    assert_eq!((draw(), draw()), (first.clone(), second));
    manual_seed(1);
    assert_eq!(draw(), first);
    // Other threads are outside the scope, but can use the generator.
    assert_ne!(on_thread("outside", draw), first);
    let taken = Generator::new(1);
    let there = thread::spawn(move || {
        let _scope = taken.scope();
        draw()
    });
    assert_eq!(there.join().unwrap(), first);
}

#[test]
fn a_state_that_is_set_continues_the_stream() {
    let _scope = Generator::new(3).scope();
    let generator = Generator::default();
    let mut step = capture(|_| ops::rand([8], DType::F64).unwrap(), &[]).unwrap();
    let mut launch = || step.launch(&[]).unwrap().to_vec::<f64>(0).into_iter().map(f64::to_bits).collect::<Vec<_>>();
    draw();
    let saved = generator.state().copy();
    let next = (draw(), launch(), draw());
    assert_ne!(next.0, next.2);
    // The generator, a recorded step, and another generator continue at the state.
    generator.set_state(&saved).unwrap();
    assert_eq!((draw(), launch(), draw()), next);
    let other = Generator::new(9);
    other.set_state(&saved).unwrap();
    {
        let _other = other.scope();
        assert_eq!(draw(), next.0);
    }
    // The state of the generator itself, which changes nothing, and a view of a larger tensor.
    let at = generator.state().to_vec::<i64>();
    generator.set_state(generator.state()).unwrap();
    assert_eq!(generator.state().to_vec::<i64>(), at);
    generator.set_state(&Tensor::from([[1i64, 2], [3, 4]]).i(1)).unwrap();
    assert_eq!(generator.state().to_vec::<i64>(), [3, 4]);
    // An invalid shape or dtype, and a state that a step would set in every launch, are errors that change nothing.
    for wrong in [Tensor::from([1i64]), Tensor::from([1i64, 2, 3]), Tensor::from(1i64), Tensor::from([[1i64, 2]])] {
        assert!(matches!(generator.set_state(&wrong), Err(Error::ShapeMismatch { .. })));
    }
    for wrong in [Tensor::from([1.0f32, 2.0]), Tensor::from([1i32, 2])] {
        assert!(matches!(generator.set_state(&wrong), Err(Error::DTypeMismatch { .. })));
    }
    let in_step = |_: &[Tensor]| {
        assert!(matches!(generator.set_state(&saved), Err(Error::InvalidArgument { .. })));
        ops::rand([8], DType::F64).unwrap()
    };
    capture(in_step, &[]).unwrap();
    assert_eq!(generator.state().to_vec::<i64>(), [3, 4]);
}
