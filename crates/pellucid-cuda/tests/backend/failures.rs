//! Failures of the driver that leave the device usable, and devices without graphs or with a new architecture.

use crate::harness::{TestedDevice, device, device_with};
use pellucid_cuda::CudaDriver;
use pellucid_ir::backend::{Backend, CompiledPlan, Storage};
use pellucid_ir::kernel::{Gather, Index, Kernel};
use pellucid_ir::plan::{Launch, Plan, SlotView};
use pellucid_ir::{DType, Error, Layout};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// Lets the next launches or instantiations fail for lack of memory. The backend tries every one twice.
fn exhaust(device: &TestedDevice, calls: u32) {
    device.symbols().expect("a test device").set("exhausted", &calls.to_string());
}

#[test]
fn kernels_run_again_after_memory_is_exhausted() {
    let Some(device) = device() else { return };
    if device.symbols().is_none() {
        return;
    }
    let [x, y, z] = [[5; 16], [0; 16], [0; 16]].map(|values| device.storage(&values));
    device.copy(16, &x, &y).unwrap();
    exhaust(&device, 1);
    device.gpu().synchronize().unwrap();
    assert_eq!(device.values(&y), [5; 16], "the second try must find the memory that the first one has freed");
    device.copy(16, &y, &z).unwrap();
    exhaust(&device, 2);
    assert!(matches!(device.gpu().synchronize(), Err(Error::OutOfMemory { .. })));
    assert_eq!(device.values(&z), [5; 16], "the kernel must run when there is memory");
}

/// Returns a plan that gathers slot 0 at the indices of slot 1 to slot 2, and copies slot 2 to slot 3.
fn plan() -> Plan {
    let view = |slot, dtype| SlotView { slot, layout: Layout::contiguous([4].into()), dtype };
    let gather = Kernel::Gather(Gather { op: "gather", from_end: true, index: Index::Axes([0].into_iter().collect()) });
    let launches = vec![
        Launch::new(gather, vec![view(0, DType::I32), view(1, DType::I64)], vec![view(2, DType::I32)]),
        Launch::new(Kernel::Copy, vec![view(2, DType::I32)], vec![view(3, DType::F32)]),
    ];
    Plan { slots: vec![16, 32, 16, 16], launches, ..Plan::default() }
}

fn slots(device: &TestedDevice) -> Vec<Arc<Storage>> {
    let values: [&[u32]; 4] = [&[10, 20, 30, 40], &[3, 0, 1, 0, 0, 0, 2, 0], &[0; 4], &[0; 4]];
    values.map(|values| device.storage(values)).into()
}

fn prepare(device: &TestedDevice) -> Box<dyn CompiledPlan> {
    device.gpu().prepare(&plan()).unwrap().expect("the plan must be compiled")
}

/// Runs the plan with valid indices, with other memory, and with an invalid index.
fn run_plan(device: &TestedDevice, compiled: &dyn CompiledPlan) {
    let mut slots = slots(device);
    let expected = [40.0_f32, 20.0, 10.0, 30.0].map(f32::to_bits);
    for _ in 0..3 {
        compiled.run(&slots).unwrap();
        assert_eq!(device.values(&slots[3]), expected);
        slots[3] = device.gpu().storage(16).unwrap();
    }
    device.upload(&[9, 0, 1, 0, 0, 0, 2, 0], &slots[1]);
    let failed = compiled.run(&slots).unwrap_err();
    assert!(matches!(failed.error, Error::IndexOutOfBounds { index: 9, .. }), "{}", failed.error);
    device.upload(&[3, 0, 1, 0, 0, 0, 2, 0], &slots[1]);
    compiled.run(&slots).unwrap();
    assert_eq!(device.values(&slots[3]), expected);
}

#[test]
fn a_plan_runs_after_memory_is_exhausted() {
    let Some(device) = device() else { return };
    if device.symbols().is_none() {
        return;
    }
    // The first launch instantiates the graph.
    let (compiled, slots) = (prepare(&device), slots(&device));
    for _ in 0..2 {
        exhaust(&device, 2);
        let failed = compiled.run(&slots).unwrap_err();
        assert!(matches!(failed.error, Error::OutOfMemory { .. }), "{}", failed.error);
        compiled.run(&slots).unwrap();
        exhaust(&device, 1);
        compiled.run(&slots).unwrap();
    }
    run_plan(&device, &*compiled);
}

/// Asserts that a plan runs without graphs, and that the notice contains `reason`.
fn assert_runs_without_graphs(device: &TestedDevice, reason: &str) {
    let compiled = prepare(device);
    let notice = device.gpu().take_notice().expect("the user must learn that there are no graphs");
    assert!(notice.contains("without graphs") && notice.contains(reason), "{notice}");
    let graphs = || device.symbols().map(|symbols| symbols.counter("graph launches"));
    let before = graphs();
    run_plan(device, &*compiled);
    assert_eq!(graphs(), before, "a launch must not use a graph");
    drop(prepare(device));
    assert_eq!(device.gpu().take_notice(), None, "the reason is stated once");
}

#[test]
fn a_plan_runs_without_graphs_if_the_driver_has_none() {
    let Some(device) = device_with(&[("graphs", "missing")]) else { return };
    if device.symbols().is_some() {
        assert_runs_without_graphs(&device, "operation not supported");
    }
}

#[test]
fn a_plan_runs_without_graphs_if_the_variable_is_0() {
    const VARIABLE: &str = "PELLUCID_CUDA_GRAPHS";
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "0") {
        let Some(device) = device() else { return };
        return assert_runs_without_graphs(&device, "PELLUCID_CUDA_GRAPHS is 0");
    }
    // The variable belongs to the process, so another process runs the test.
    let name = "failures::a_plan_runs_without_graphs_if_the_variable_is_0";
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program).args(["--exact", name]).env(VARIABLE, "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the process must run the test");
}

#[test]
fn a_plan_whose_graph_is_refused_runs_without_it() {
    let Some(device) = device() else { return };
    let Some(symbols) = device.symbols().filter(|_| std::env::var_os("PELLUCID_CUDA_GRAPHS").is_none()) else { return };
    let compiled = prepare(&device);
    assert_eq!(device.gpu().take_notice(), None);
    symbols.set("graphs", "missing");
    let before = symbols.counter("graph launches");
    run_plan(&device, &*compiled);
    let notice = device.gpu().take_notice().expect("the user must learn that there are no graphs");
    assert!(notice.contains("without graphs") && notice.contains("operation not supported"), "{notice}");
    run_plan(&device, &*compiled);
    assert_eq!(symbols.counter("graph launches"), before, "a launch must not use a graph");
    assert_eq!(device.gpu().take_notice(), None, "the reason is stated once");
}

/// Replaces the code in all files of a folder of compiled kernels, with a checksum that fits.
fn replace_code(folder: &Path, code: &[u8]) {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let contents = fs::read(&path).unwrap();
        let key = 8 + u64::from_le_bytes(contents[..8].try_into().unwrap()) as usize;
        fs::write(&path, [&contents[..key], &hasher.finish().to_le_bytes(), code].concat()).unwrap();
    }
}

/// Runs `check` with an empty folder of compiled kernels, in another process, because the variable of the folder is one
/// of the process. `name` is the name of the test.
fn with_kernel_folder(name: &str, check: impl FnOnce(&Path)) {
    const FOLDER: &str = "PELLUCID_TESTED_KERNELS";
    if let Some(folder) = std::env::var_os(FOLDER) {
        return check(Path::new(&folder));
    }
    let folder = std::env::temp_dir().join(format!("pellucid-cuda-kernels-{name}-{}", std::process::id()));
    let name = format!("failures::{name}");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name]).env("PELLUCID_CUDA_CACHE", &folder).env(FOLDER, &folder);
    let output = command.output().unwrap();
    let _ = fs::remove_dir_all(&folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the process must run the test");
}

/// Checks a kernel of a device.
fn check_copy(device: &TestedDevice) {
    let [x, y] = [[5; 16], [0; 16]].map(|values| device.storage(&values));
    device.copy(16, &x, &y).unwrap();
    assert_eq!(device.values(&y), [5; 16]);
}

#[test]
fn a_kernel_is_compiled_again_if_the_driver_rejects_its_file() {
    with_kernel_folder("a_kernel_is_compiled_again_if_the_driver_rejects_its_file", |folder| {
        for _ in 0..2 {
            let Some(device) = device() else { return };
            check_copy(&device);
            drop(device);
            replace_code(folder, b"not a kernel");
        }
    });
}

/// GPUs of two generations in one machine share the folder.
#[test]
fn the_folder_of_kernels_has_the_code_of_each_architecture() {
    with_kernel_folder("the_folder_of_kernels_has_the_code_of_each_architecture", |folder| {
        let mut files = Vec::new();
        for architecture in ["90", "80", "90"] {
            let Some(device) = device_with(&[("architecture", architecture)]) else { return };
            if device.symbols().is_none() {
                return;
            }
            check_copy(&device);
            files.push(fs::read_dir(folder).unwrap().count());
        }
        assert!(files[0] > 0);
        assert_eq!(files, [files[0], 2 * files[0], 2 * files[0]]);
    });
}

#[test]
fn a_plan_with_graphs_has_no_notice() {
    let Some(device) = device() else { return };
    if std::env::var_os("PELLUCID_CUDA_GRAPHS").is_none() {
        let compiled = prepare(&device);
        assert_eq!(device.gpu().take_notice(), None);
        run_plan(&device, &*compiled);
    }
}

#[test]
fn a_driver_that_is_too_old_is_an_error() {
    let Some(device) = device() else { return };
    let Some(symbols) = device.symbols() else { return };
    symbols.set("driver", "12020");
    let Err(error) = CudaDriver.open_device(0) else { panic!("the driver must be rejected") };
    assert!(matches!(error, Error::DeviceUnavailable { .. }), "{error}");
    assert!(error.to_string().contains("older than CUDA 12.3"), "{error}");
    symbols.set("driver", "12030");
    CudaDriver.open_device(0).unwrap();
}

/// Memory that is exhausted in a launch is not the memory of a buffer, whose size an error would contain.
#[test]
fn the_error_of_exhausted_memory_names_what_is_known() {
    let Some(device) = device() else { return };
    if device.symbols().is_none() {
        return;
    }
    let [x, y] = [[5; 16], [0; 16]].map(|values| device.storage(&values));
    device.copy(16, &x, &y).unwrap();
    exhaust(&device, 2);
    let error = device.gpu().synchronize().unwrap_err().to_string();
    assert_eq!(error, "out of memory: the device has none left to run a command; use a smaller shape or batch");
    device.gpu().synchronize().unwrap();
}

#[test]
fn a_gpu_that_is_newer_than_the_compiler_runs_kernels() {
    let Some(device) = device_with(&[("architecture", "130")]) else { return };
    check_copy(&device);
}
