//! The bind groups of plans.

use crate::backend::open;
use crate::kernels::harness::device;
use crate::kernels::plans::{TestStep, plan};
use pellucid_ir::backend::{Backend, Storage};
use pellucid_ir::plan::Passes;
use std::sync::Arc;

#[test]
fn bind_groups_of_the_last_inputs_are_kept() {
    if device().is_none() {
        return;
    }
    let gpu = open(6).unwrap();
    let mut step = TestStep::new(&gpu, &plan(Passes::all()));
    let others: Vec<Arc<Storage>> = (0..9).map(|_| gpu.storage(96).unwrap()).collect();
    others.iter().for_each(|other| gpu.upload(&[0; 96], other).unwrap());
    let mut created = |k: usize| {
        step.storages[0] = others[k].clone();
        let before = gpu.counters().bind_groups;
        step.launch().unwrap();
        assert!(step.output(&gpu).unwrap().is_finite());
        gpu.counters().bind_groups - before
    };
    assert!(created(0) > 1);
    assert_eq!([0, 1, 0, 1].map(&mut created), [0, 1, 0, 0], "only the bind group of a new input must be created");
    assert_eq!(
        [2, 3, 4, 5, 6, 7, 0].map(&mut created),
        [1, 1, 1, 1, 1, 1, 0],
        "the bind groups of eight inputs must be kept"
    );
    assert_eq!([8, 1, 0].map(&mut created), [1, 0, 1], "the bind group of the oldest input must be dropped");
}
