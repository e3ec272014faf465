//! The history of epochs: columns, the best epoch, files and checkpoints.

use crate::scratch::Scratch;
use pellucid::nn::{Checkpoint, StateDict, Stateful};
use pellucid::train::History;
use pellucid::train::metrics::Goal;
use pellucid::{Error, Tensor, io};
use std::fs;

fn bits(values: Option<Vec<f64>>) -> Vec<u64> {
    values.unwrap().into_iter().map(f64::to_bits).collect()
}

/// A history of three epochs with special values and a column that appears later.
fn example() -> History {
    let history = History::new();
    history.push(&[("train_loss", 0.75), ("b.c", f64::INFINITY)]);
    history.push(&[("train_loss", f64::NAN), ("accuracy", 0.1)]);
    history.push(&[("b.c", 1e-300), ("accuracy", 0.1), ("train_loss", 0.5)]);
    history
}

/// Asserts that two histories have the same columns, bit for bit.
fn assert_same(a: &History, b: &History) {
    assert_eq!((a.names(), a.epochs()), (b.names(), b.epochs()));
    for name in a.names() {
        assert_eq!(bits(a.column(&name)), bits(b.column(&name)), "{name}");
    }
}

#[test]
fn columns_have_one_value_for_each_epoch() {
    let history = example();
    assert_eq!(history.names(), ["train_loss", "b.c", "accuracy"]);
    assert_eq!((history.len(), history.is_empty(), History::new().is_empty()), (3, false, true));
    let accuracy = history.column("accuracy").unwrap();
    assert!(accuracy[0].is_nan() && accuracy[1..] == [0.1, 0.1]);
    assert_eq!((history.column("loss"), history.last("loss")), (None, None));
    assert_eq!(history.last("train_loss"), Some(0.5));
    assert!(format!("{history:?}").contains("accuracy"));
    let copy = history.clone();
    copy.push(&[]);
    assert_eq!((history.len(), copy.len()), (3, 4));
}

#[test]
fn the_best_epoch_is_the_first_of_equal_ones() {
    let history = example();
    assert_eq!(history.best("accuracy", Goal::Maximize), Some((1, 0.1)));
    assert_eq!(history.best("train_loss", Goal::Minimize), Some((2, 0.5)));
    assert_eq!(history.best("b.c", Goal::Maximize), Some((0, f64::INFINITY)));
    assert_eq!(history.best("loss", Goal::Minimize), None);
    history.push(&[("lr", f64::NAN)]);
    assert_eq!(history.best("lr", Goal::Minimize), None);
}

#[test]
fn names_are_checked() {
    let history = example();
    assert!(history.try_push(&[("epoch", 1.0)]).unwrap_err().to_string().contains("`epoch` is reserved"));
    assert!(history.try_push(&[("a", 1.0), ("a", 1.0)]).unwrap_err().to_string().contains("`a` occurs twice"));
    assert_same(&history, &example());
}

#[test]
fn the_table_is_aligned() {
    let table = "\
epoch  train_loss         b.c  accuracy
1          0.7500         inf       NaN
2             NaN         NaN    0.1000
3          0.5000  1.000e-300    0.1000
";
    assert_eq!(example().to_string(), table);
    assert_eq!(History::new().to_string(), "epoch\n");
}

#[test]
fn csv_files_are_read_as_written() {
    let scratch = Scratch::new();
    let path = scratch.join("history.csv");
    example().save_csv(&path).unwrap();
    let text = "epoch,train_loss,b.c,accuracy\n1,0.75,inf,NaN\n2,NaN,NaN,0.1\n3,0.5,1e-300,0.1\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    assert_same(&History::load_csv(&path).unwrap(), &example());
    History::new().save_csv(&path).unwrap();
    assert!(History::load_csv(&path).unwrap().is_empty());
    // A row of a validation within an epoch precedes that of the epoch.
    let text = "epoch,loss\n1,0.5\n1,0.25\n2,0.125\n";
    fs::write(&path, text).unwrap();
    let validations = History::load_csv(&path).unwrap();
    assert_eq!((validations.epochs(), validations.len()), (vec![1, 1, 2], 3));
    assert!(validations.to_string().ends_with("1      0.2500\n2      0.1250\n"), "{validations}");
    validations.push(&[("loss", 0.0)]);
    assert_eq!(validations.epochs(), [1, 1, 2, 3]);
    History::load_csv(&path).unwrap().save_csv(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    fs::write(&path, "epoch,loss\r\n1,\r\n").unwrap();
    assert!(History::load_csv(&path).unwrap().last("loss").unwrap().is_nan());
}

#[test]
fn other_files_are_rejected() {
    let scratch = Scratch::new();
    let path = scratch.join("history.csv");
    let reason = |text: &str| {
        fs::write(&path, text).unwrap();
        History::load_csv(&path).unwrap_err().to_string()
    };
    assert!(reason("").ends_with("the first column must be `epoch`"));
    assert!(reason("step,loss\n1,2\n").ends_with("the first column must be `epoch`"));
    assert!(reason("epoch,loss\n2,0.5\n").ends_with("row 2 has epoch `2`, but it must be 1"));
    assert!(reason("epoch,loss\n0,0.5\n").ends_with("row 2 has epoch `0`, but it must be 1"));
    assert!(reason("epoch,loss\n1,0.5\n2,1\n1,1\n").ends_with("row 4 has epoch `1`, but it must be 2 or 3"));
    assert!(reason("epoch,loss\n1,x\n").ends_with("`loss` of epoch 1 is not a number: `x`"));
    assert!(reason("epoch,loss\n1\n").ends_with("row 2 has 1 cells, but the header has 2"));
    assert!(reason("epoch,a,a\n1,1,1\n").contains("`a` occurs twice"));
    let missing = History::load_csv(scratch.join("missing.csv")).unwrap_err().to_string();
    assert!(missing.contains("the file does not exist"), "{missing}");
    let unwritable = example().save_csv(scratch.join("missing/history.csv")).unwrap_err().to_string();
    assert!(unwritable.contains("the directory does not exist"), "{unwritable}");
}

#[test]
fn a_checkpoint_restores_the_history() {
    let scratch = Scratch::new();
    let path = scratch.join("checkpoint.safetensors");
    let saved = example();
    for _ in 0..9 {
        saved.push(&[("n", 1.0)]);
    }
    io::save_checkpoint(&path, Checkpoint::new().part("history", &saved).step(3)).unwrap();
    assert!(io::load(&path).unwrap().contains_key("history.columns.1.b.c"));
    for resumed in [History::new(), example()] {
        assert_eq!(io::load_checkpoint(&path, Checkpoint::new().part("history", &resumed)).unwrap(), 3);
        assert_same(&resumed, &saved);
    }
    // A state of an earlier version has no epochs of rows.
    let mut state: StateDict = saved.state().unwrap().into_iter().collect();
    state.remove("epochs").unwrap();
    let resumed = History::new();
    resumed.prepare_load(&state).unwrap().commit().unwrap();
    assert_eq!(resumed.epochs(), (1..=12).collect::<Vec<_>>());
    // The order of more than ten columns differs from the order of their names.
    let many = History::new();
    let names: Vec<String> = (0..12).map(|index| format!("column {index}")).collect();
    many.push(&names.iter().map(|name| (name.as_str(), 1.0)).collect::<Vec<_>>());
    let state: StateDict = many.state().unwrap().into_iter().collect();
    let resumed = History::new();
    resumed.prepare_load(&state).unwrap().commit().unwrap();
    assert_same(&resumed, &many);
}

#[test]
fn states_that_do_not_fit_change_nothing() {
    let history = example();
    let state: StateDict = history.state().unwrap().into_iter().collect();
    let rejected = |change: fn(&mut StateDict)| {
        let mut state = state.clone();
        change(&mut state);
        let error = history.prepare_load(&state).map(drop).unwrap_err();
        assert_same(&history, &example());
        error
    };
    let error = rejected(|state| drop(state.remove("rows")));
    assert!(matches!(&error, Error::StateDict { missing, .. } if missing == &["rows"]), "{error}");
    let error = rejected(|state| drop(state.remove("columns.1.b.c")));
    assert!(matches!(&error, Error::StateDict { unexpected, .. } if unexpected == &["columns.2.accuracy"]), "{error}");
    let error = rejected(|state| drop(state.insert("weight".into(), Tensor::from([1.0, 2.0, 3.0]))));
    assert!(matches!(&error, Error::StateDict { unexpected, .. } if unexpected == &["weight"]), "{error}");
    let error = rejected(|state| drop(state.insert("columns.2.accuracy".into(), Tensor::from([1.0]))));
    assert!(matches!(&error, Error::StateDict { wrong_shapes, .. } if wrong_shapes.len() == 1), "{error}");
    let error = rejected(|state| drop(state.insert("rows".into(), Tensor::from(-1i64))));
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
    let error = rejected(|state| drop(state.insert("epochs".into(), Tensor::from([1i64, 0, 2]))));
    assert!(matches!(&error, Error::InvalidArgument { .. }), "{error}");
    let error = rejected(|state| drop(state.insert("epochs".into(), Tensor::from([1i64, 2]))));
    assert!(matches!(&error, Error::StateDict { wrong_shapes, .. } if wrong_shapes.len() == 1), "{error}");
}
