//! Linking: the loops of a prepared program, chosen and ordered for the way its inputs lie.
//!
//! A value is one of three classes: the same for the whole run (or segment), one a row, one an
//! element. A step whose operands are all of a lower class runs once for all, and a step of mixed
//! classes takes the form of its loop that reads a single value beside a tile.
//!
//! Row reductions cut a program into phases: what needs a reduction's result runs in a later phase
//! than the reduction. Products that are summed and read by nobody else are made by the sum itself, except
//! in short rows, which are summed side by side.
//!
//! Links are found by what they depend on, the classes of the inputs and how long rows are, in a list that
//! only grows: no lock, and after the first run of a kind no allocation.

use crate::program::fold::{Fold, SHORT, Values};
use crate::program::fuse::{self, FusedOp};
use crate::program::loops::{self, BinaryLoop, FillLoop, TernaryLoop, UnaryLoop};
use crate::program::lower::{KernelFn, Prepared, Slot};
use pellucid_ir::Compute;
use pellucid_simd::Isa;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of at least so many elements are worth calls of their own.
const LONG: usize = 128;

/// How often a value is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Granularity {
    /// Once for the whole run or segment.
    Uniform,
    /// Once a row.
    PerRow,
    /// Once an element.
    PerElement,
}

/// How long rows are, as far as links differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rows {
    /// So short that they are reduced side by side.
    Short,
    Medium,
    /// Worth calls of their own.
    Long,
}

impl Rows {
    /// Rows of `length` elements.
    pub(crate) fn of(length: usize) -> Rows {
        match length {
            ..=SHORT => Rows::Short,
            _ if length < LONG => Rows::Medium,
            _ => Rows::Long,
        }
    }
}

/// An instruction, down to its loop.
#[derive(Clone, Copy)]
pub(crate) enum LoopKind {
    Unary(UnaryLoop),
    /// The loop for the operands as they are, and the one for tiles alone.
    Binary(BinaryLoop, BinaryLoop),
    Ternary(TernaryLoop),
    /// A value of a lower class, repeated for every element of its row.
    Spread(FillLoop),
    RowIndex,
}

/// A linked instruction.
#[derive(Clone, Copy)]
pub(crate) struct ScheduledInstr {
    pub(crate) run: LoopKind,
    /// How many results there are.
    pub(crate) class: Granularity,
    /// True if it reads values a row and values an element: with several rows it runs row by row.
    pub(crate) mixed: bool,
    pub(crate) into: Slot,
    pub(crate) args: [Slot; 3],
    /// Bytes from one row's operands to the next, as bytes of one value, for the result and the
    /// operands, and whether that is a row's length of values or one.
    advance: [(u8, Granularity); 4],
    /// Its part in a chain.
    pub(crate) member: Option<FusedOp>,
}

/// A row reduction at the end of a phase.
pub(crate) struct RowReduction {
    pub(crate) fold: Fold,
    pub(crate) into: Slot,
    /// What is reduced: these values or, with `times`, their products with those.
    pub(crate) from: Slot,
    pub(crate) times: Option<Slot>,
    /// True if a chain can take it: see [`Extent::folds`].
    pub(crate) chained: bool,
}

impl RowReduction {
    /// The slots that it reads.
    pub(crate) fn operands(&self) -> impl Iterator<Item = Slot> {
        std::iter::once(self.from).chain(self.times)
    }

    /// Where the values to reduce lie.
    #[inline]
    pub(crate) fn values(&self, at: &[*mut u8]) -> Values {
        Values { of: at[self.from as usize], times: self.times.map(|t| at[t as usize].cast_const()) }
    }
}

/// What runs between two row reductions.
pub(crate) struct Phase {
    /// ScheduledInstr on values once or once a row.
    pub(crate) head: Range<usize>,
    /// ScheduledInstr on tiles.
    pub(crate) tiles: Range<usize>,
    /// Which reductions end the phase.
    pub(crate) folds: Range<usize>,
    /// Full inputs that its tiles read.
    pub(crate) reads: Vec<Slot>,
}

/// A program in its final order, with a place for every value.
pub(crate) struct KernelSchedule {
    pub(crate) code: Vec<ScheduledInstr>,
    pub(crate) folds: Vec<RowReduction>,
    pub(crate) phases: Vec<Phase>,
    /// The class of every slot; spread values have slots beyond the program's.
    pub(crate) class: Vec<Granularity>,
    /// The phase in which a slot is computed.
    pub(crate) phase: Vec<usize>,
    /// Where the buffer of a slot of class `Tile` begins, in bytes times values a tile.
    pub(crate) place: Vec<usize>,
    /// All buffers together, in bytes a value.
    pub(crate) width: usize,
    /// True for values that are read in a later phase: their buffers must hold a whole row.
    pub(crate) crosses: Vec<bool>,
    /// True for outputs that the end of a chain makes and nobody reads: it can let them pass the caches by.
    pub(crate) streams: Vec<bool>,
    /// True if a value of class `Tile` is neither an input nor a direct output, nor handed on in registers: it
    /// needs a buffer.
    pub(crate) has_inner: bool,
}

/// Links made so far, one a combination of input classes.
#[derive(Default)]
pub(crate) struct KernelScheduleCache {
    first: OnceLock<Box<Node>>,
}

struct Node {
    /// The rows, and two bits an input.
    key: (Rows, u128),
    linked: KernelSchedule,
    next: KernelScheduleCache,
}

impl KernelScheduleCache {
    /// The link of `program` for such rows and inputs of these classes (those beyond the 64th are of class
    /// `Tile`).
    pub(crate) fn get(&self, program: &Prepared, rows: Rows, class: impl Fn(usize) -> Granularity) -> &KernelSchedule {
        let class = |i: usize| if i < 64 { class(i) } else { Granularity::PerElement };
        let count = program.inputs.len().min(64);
        let key = (rows, (0..count).fold(0u128, |key, i| key << 2 | class(i) as u128));
        let mut list = self;
        loop {
            let node = list.first.get_or_init(|| {
                Box::new(Node {
                    key,
                    linked: KernelSchedule::new(program, rows, class),
                    next: KernelScheduleCache::default(),
                })
            });
            if node.key == key {
                return &node.linked;
            }
            list = &node.next;
        }
    }
}

impl KernelSchedule {
    fn new(program: &Prepared, rows: Rows, class_of: impl Fn(usize) -> Granularity) -> KernelSchedule {
        let inputs = program.inputs.len();
        let first_step = program.first_step();
        let mut class: Vec<Granularity> =
            (0..first_step).map(|s| if s < inputs { class_of(s) } else { Granularity::Uniform }).collect();
        // The phase in which a step runs, and the one from which on its result is there.
        let mut phase = vec![0; first_step];
        let mut ready = vec![0; first_step];
        for step in &program.steps {
            let at = step.args.iter().map(|&a| ready[a as usize]).max().unwrap_or(0);
            let reduces = matches!(step.call, KernelFn::Reduce(..));
            class.push(match step.call {
                KernelFn::Reduce(..) => Granularity::PerRow,
                KernelFn::RowIndex => Granularity::PerElement,
                _ => step.args.iter().map(|&a| class[a as usize]).max().unwrap_or(Granularity::Uniform),
            });
            phase.push(at);
            ready.push(at + reduces as usize);
        }
        let mut linked = KernelSchedule {
            code: Vec::new(),
            folds: Vec::new(),
            phases: Vec::new(),
            class,
            phase,
            place: Vec::new(),
            width: 0,
            crosses: Vec::new(),
            streams: Vec::new(),
            has_inner: false,
        };
        let mut sizes: Vec<u8> = program.sizes.clone();
        // A value is spread once, wherever it is read.
        let mut spread: Vec<Option<Slot>> = vec![None; sizes.len()];
        for at in 0..=ready.iter().copied().max().unwrap_or(0) {
            let steps = (0..program.steps.len()).filter(|s| linked.phase[first_step + s] == at);
            let is_fold = |s: &usize| matches!(program.steps[*s].call, KernelFn::Reduce(..));
            let (folds, plain): (Vec<usize>, Vec<usize>) = steps.partition(is_fold);
            let (mut tile, row): (Vec<usize>, Vec<usize>) =
                plain.into_iter().partition(|s| linked.class[first_step + s] == Granularity::PerElement);
            let products = |s: usize| linked.products(program, s).filter(|_| rows > Rows::Short);
            let factors: Vec<Option<[Slot; 2]>> = folds.iter().map(|&s| products(s)).collect();
            for (&s, _) in folds.iter().zip(&factors).filter(|(_, f)| f.is_some()) {
                tile.retain(|&t| first_step + t != program.steps[s].args[0] as usize);
            }
            let head = linked.code.len();
            for s in row {
                let code = linked.resolve(program, s, &sizes);
                linked.code.push(code.expect("operands of one class have a form"));
            }
            let mut tiles: Vec<ScheduledInstr> = Vec::new();
            for s in tile {
                loop {
                    match linked.resolve_with(program, s, &sizes, &spread) {
                        Ok(code) => break tiles.push(code),
                        Err(slot) => linked.spread(slot, at, &mut sizes, &mut spread),
                    }
                }
            }
            let mut endings: Vec<RowReduction> = Vec::new();
            for (s, factors) in folds.into_iter().zip(factors) {
                let KernelFn::Reduce(fold, _) = program.steps[s].call else { continue };
                let into = (first_step + s) as Slot;
                if let Some([from, times]) = factors {
                    endings.push(RowReduction { fold, into, from, times: Some(times), chained: false });
                    continue;
                }
                let arg = program.steps[s].args[0];
                if linked.class[arg as usize] != Granularity::PerElement && spread[arg as usize].is_none() {
                    linked.spread(arg, at, &mut sizes, &mut spread);
                }
                let from = spread[arg as usize].unwrap_or(arg);
                endings.push(RowReduction { fold, into, from, times: None, chained: false });
            }
            let middle = linked.code.len();
            let mut reads: Vec<Slot> = tiles.iter().flat_map(|c| c.operands().to_vec()).collect();
            reads.extend(endings.iter().flat_map(RowReduction::operands));
            reads.extend(program.outputs.iter().map(|o| o.slot).filter(|_| at == 0));
            reads.retain(|&s| (s as usize) < inputs && linked.class[s as usize] == Granularity::PerElement);
            reads.sort_unstable();
            reads.dedup();
            linked.code.append(&mut tiles);
            let folds = linked.folds.len();
            linked.folds.append(&mut endings);
            linked.phases.push(Phase {
                head: head..middle,
                tiles: middle..linked.code.len(),
                folds: folds..linked.folds.len(),
                reads,
            });
        }
        linked.place_buffers(program, &sizes);
        fuse::form(&mut linked, program, rows);
        let direct = |slot: Slot| program.outputs.iter().any(|o| o.slot == slot && o.direct.is_some());
        let buffered = |c: &ScheduledInstr| {
            c.class == Granularity::PerElement && !direct(c.into) && c.member.is_none_or(|m| m.kept)
        };
        linked.has_inner = linked.code.iter().any(buffered);
        linked
    }

    /// The factors of the products that reduction `s` sums, if nobody else reads the products and there is one
    /// an element of both factors.
    fn products(&self, program: &Prepared, s: usize) -> Option<[Slot; 2]> {
        let KernelFn::Reduce(_, Some(factors)) = program.steps[s].call else { return None };
        let product = program.steps[s].args[0];
        let reads = program.steps.iter().flat_map(|s| &s.args).filter(|&&a| a == product).count();
        let stored = program.outputs.iter().any(|o| o.slot == product);
        let full = factors.iter().all(|&f| self.class[f as usize] == Granularity::PerElement);
        (full && reads == 1 && !stored).then_some(factors)
    }

    /// Step `s` with its operands as they are, if its loop has that form.
    fn resolve(&self, program: &Prepared, s: usize, sizes: &[u8]) -> Option<ScheduledInstr> {
        self.resolve_with(program, s, sizes, &vec![None; sizes.len()]).ok()
    }

    /// Step `s`, or the operand that must be spread for its loop to have a form.
    fn resolve_with(
        &self,
        program: &Prepared,
        s: usize,
        sizes: &[u8],
        spread: &[Option<Slot>],
    ) -> Result<ScheduledInstr, Slot> {
        let step = &program.steps[s];
        let into = (program.first_step() + s) as Slot;
        let class = self.class[into as usize];
        let mut args = [0; 3];
        for (to, &arg) in args.iter_mut().zip(&step.args) {
            *to =
                spread.get(arg as usize).copied().flatten().filter(|_| class == Granularity::PerElement).unwrap_or(arg);
        }
        let full = |arg: Slot| self.class[arg as usize] == class;
        let run = match step.call {
            KernelFn::Unary(f) if full(args[0]) => LoopKind::Unary(f),
            KernelFn::Unary(_) => return Err(args[0]),
            KernelFn::Binary(forms) => match (full(args[0]), full(args[1])) {
                (true, true) => LoopKind::Binary(forms[0], forms[0]),
                (true, false) => LoopKind::Binary(forms[1], forms[0]),
                (false, true) => LoopKind::Binary(forms[2], forms[0]),
                (false, false) => return Err(args[0]),
            },
            KernelFn::Ternary(forms) => {
                let form = |args: &[Slot; 3]| forms[(0..3).map(|k| (full(args[k]) as usize) << k).sum::<usize>()];
                // Only a·b + c lacks forms, and its factors commute.
                if form(&args).is_none() && full(args[1]) && !full(args[0]) {
                    args.swap(0, 1);
                }
                let lower = args.iter().copied().find(|&a| !full(a));
                LoopKind::Ternary(form(&args).ok_or_else(|| lower.unwrap_or(args[0]))?)
            }
            KernelFn::RowIndex => LoopKind::RowIndex,
            KernelFn::Reduce(..) => return Err(args[0]),
        };
        Ok(self.code(run, into, args, step.args.len(), sizes))
    }

    fn code(&self, run: LoopKind, into: Slot, args: [Slot; 3], count: usize, sizes: &[u8]) -> ScheduledInstr {
        let side = |slot: Slot| (sizes[slot as usize], self.class[slot as usize]);
        let mut advance = [side(into), (0, Granularity::Uniform), (0, Granularity::Uniform), (0, Granularity::Uniform)];
        for k in 0..count {
            advance[k + 1] = side(args[k]);
        }
        let class = self.class[into as usize];
        let mixed = class == Granularity::PerElement && advance[1..].iter().any(|a| a.1 == Granularity::PerRow);
        ScheduledInstr { run, class, mixed, into, args, advance, member: None }
    }

    /// Emits code that repeats the value of `slot` for every element, at the head of phase `at`.
    fn spread(&mut self, slot: Slot, at: usize, sizes: &mut Vec<u8>, spread: &mut [Option<Slot>]) {
        let into = self.class.len() as Slot;
        let size = sizes[slot as usize];
        sizes.push(size);
        self.class.push(Granularity::PerElement);
        self.phase.push(at);
        spread[slot as usize] = Some(into);
        let compute = match size {
            1 => Compute::Mask,
            4 => Compute::F32,
            _ => Compute::F64,
        };
        let run = LoopKind::Spread(loops::splat(compute, Isa::best()));
        let code = self.code(run, into, [slot, 0, 0], 1, sizes);
        self.code.push(code);
    }

    /// Gives every value of class `Tile` a buffer; buffers are used again when their value is dead.
    fn place_buffers(&mut self, program: &Prepared, sizes: &[u8]) {
        let slots = sizes.len();
        let own = program.sizes.len();
        let mut last_use = vec![0; slots];
        let mut last_phase = vec![0; slots];
        for (p, phase) in self.phases.iter().enumerate() {
            for (i, code) in self.code.iter().enumerate().take(phase.tiles.end).skip(phase.head.start) {
                for &arg in code.operands() {
                    last_use[arg as usize] = i;
                    last_phase[arg as usize] = p;
                }
            }
            for arg in self.folds[phase.folds.clone()].iter().flat_map(RowReduction::operands) {
                // The first code of the next phase finds it dead.
                last_use[arg as usize] = phase.tiles.end;
                last_phase[arg as usize] = p;
            }
        }
        for output in &program.outputs {
            last_use[output.slot as usize] = usize::MAX;
        }
        // A spread value is the same at every place of the row: one tile of it is enough.
        let crosses = |s: usize| s < own && self.class[s] == Granularity::PerElement && last_phase[s] > self.phase[s];
        self.crosses = (0..slots).map(crosses).collect();
        self.place = vec![0; slots];
        // Inputs, and spread values, live for the whole run.
        for s in (0..program.inputs.len()).chain(own..slots).filter(|&s| self.class[s] == Granularity::PerElement) {
            self.place[s] = self.width;
            self.width += sizes[s] as usize;
        }
        let mut free: Vec<(u8, usize)> = Vec::new();
        for phase in &self.phases {
            for i in phase.head.start..phase.tiles.end {
                let code = &self.code[i];
                let into = code.into as usize;
                if code.class != Granularity::PerElement || into >= own {
                    continue;
                }
                let reused = free.iter().position(|f| f.0 == sizes[into]).filter(|_| !self.crosses[into]);
                self.place[into] = match reused {
                    Some(k) => free.swap_remove(k).1,
                    None => {
                        self.width += sizes[into] as usize;
                        self.width - sizes[into] as usize
                    }
                };
                self.release(program, sizes, &mut free, code.operands().iter().filter(|&&a| last_use[a as usize] == i));
            }
            let folded = self.folds[phase.folds.clone()].iter().flat_map(RowReduction::operands);
            let dead: Vec<Slot> = folded.filter(|&a| last_use[a as usize] == phase.tiles.end).collect();
            self.release(program, sizes, &mut free, dead.iter());
        }
    }

    /// Frees the buffers of values that nobody reads any more. What is an input, crosses a phase, or is stored,
    /// keeps its buffer; a value nobody ever reads too.
    fn release<'a>(
        &self,
        program: &Prepared,
        sizes: &[u8],
        free: &mut Vec<(u8, usize)>,
        dead: impl Iterator<Item = &'a Slot>,
    ) {
        let steps = program.first_step()..program.sizes.len();
        for a in dead.map(|&a| a as usize) {
            let place = (sizes[a], self.place[a]);
            let own = steps.contains(&a) && self.class[a] == Granularity::PerElement && !self.crosses[a];
            if own && !free.contains(&place) {
                free.push(place);
            }
        }
    }
}

impl ScheduledInstr {
    /// The slots that it reads.
    pub(crate) fn operands(&self) -> &[Slot] {
        let count = match self.run {
            LoopKind::Unary(_) | LoopKind::Spread(_) => 1,
            LoopKind::Binary(..) => 2,
            LoopKind::Ternary(_) => 3,
            LoopKind::RowIndex => 0,
        };
        &self.args[..count]
    }

    /// Makes `n` results at `into`, of which the first is number `first` of its row.
    ///
    /// # Safety
    /// As the loop that it calls.
    #[inline]
    unsafe fn call(&self, into: *mut u8, [a, b, d]: [*mut u8; 3], n: usize, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.run {
                LoopKind::Unary(f) => f.run(into, a, n),
                LoopKind::Spread(f) => f(into, a, n),
                LoopKind::Binary(f, _) => f(into, a, b, n),
                LoopKind::Ternary(f) => f(into, a, b, d, n),
                LoopKind::RowIndex => {
                    let index = into.cast::<i64>();
                    (0..n).for_each(|i| *index.add(i) = (first + i) as i64);
                }
            }
        }
    }

    /// Bytes of a result.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.advance[0].0 as usize
    }

    /// Bytes from one row's operand to the next's, for rows of `len` elements; 0 is the result.
    #[inline]
    fn stride(&self, k: usize, len: usize) -> usize {
        let (size, class) = self.advance[k];
        match class {
            Granularity::Uniform => 0,
            Granularity::PerRow => size as usize,
            Granularity::PerElement => size as usize * len,
        }
    }
}

/// A tile: whole rows, or a piece of one.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'a> {
    pub(crate) rows: usize,
    /// Elements of each row that are in the tile.
    pub(crate) len: usize,
    /// The position in its row of the first one.
    pub(crate) first: usize,
    /// Where there are several rows: room for the tile's values of any type.
    pub(crate) aside: *mut u8,
    /// True if results for which [`KernelSchedule::streams`] is true pass the caches by.
    pub(crate) stream: bool,
    /// All reductions, if chains are to take theirs: where rows are whole, and no longer than a chunk.
    pub(crate) folds: &'a [RowReduction],
}

impl Extent<'_> {
    /// `n` elements of one row, from the first on.
    pub(crate) fn one(n: usize) -> Self {
        Extent { rows: 1, len: n, first: 0, aside: std::ptr::null_mut(), stream: false, folds: &[] }
    }
}

/// Runs `code` on one tile.
///
/// # Safety
/// `at` holds, for every slot that the code names, memory for as many values as its class says.
pub(crate) unsafe fn execute(code: &[ScheduledInstr], at: &[*mut u8], tile: &Extent<'_>) {
    debug_assert!(code.iter().all(|c| c.operands().iter().chain([&c.into]).all(|&s| (s as usize) < at.len())));
    // SAFETY: slots are below `at.len()` by construction of the link; the rest is the caller's promise.
    unsafe {
        let ptr = |slot: Slot| *at.get_unchecked(slot as usize);
        let mut rest = code;
        while let Some((c, others)) = rest.split_first() {
            if let Some(first) = c.member.as_ref().filter(|m| m.serves(tile)) {
                let (members, others) = rest.split_at_unchecked(first.count as usize);
                fuse::run(members, at, tile);
                rest = others;
                continue;
            }
            rest = others;
            let (into, [a, b, d]) = (ptr(c.into), c.args.map(ptr));
            if tile.rows == 1 {
                c.call(into, [a, b, d], if c.class == Granularity::PerElement { tile.len } else { 1 }, tile.first);
                continue;
            }
            let by_row = c.mixed;
            if let (true, LoopKind::Binary(_, tiles)) = (by_row && tile.len < LONG, c.run) {
                // The value of each short row is repeated for its elements.
                let spread = |from: *mut u8, k: usize| match c.advance[k] {
                    (size, Granularity::PerRow) => {
                        repeat(tile.aside, from, size, tile);
                        tile.aside
                    }
                    _ => from,
                };
                tiles(into, spread(a, 1), spread(b, 2), tile.rows * tile.len);
                continue;
            }
            let (calls, n) = match c.class {
                Granularity::Uniform => (1, 1),
                Granularity::PerRow => (1, tile.rows),
                Granularity::PerElement
                    if by_row || !matches!(c.run, LoopKind::Unary(_) | LoopKind::Binary(..) | LoopKind::Ternary(_)) =>
                {
                    (tile.rows, tile.len)
                }
                Granularity::PerElement => (1, tile.rows * tile.len),
            };
            for row in 0..calls {
                let on = |p: *mut u8, k: usize| if row == 0 { p } else { p.add(row * c.stride(k, tile.len)) };
                c.call(on(into, 0), [on(a, 1), on(b, 2), on(d, 3)], n, tile.first);
            }
        }
    }
}

/// Writes every row's value to the places of its elements.
unsafe fn repeat(to: *mut u8, from: *const u8, size: u8, tile: &Extent<'_>) {
    unsafe fn of<T: Copy>(to: *mut T, from: *const T, tile: &Extent<'_>) {
        for row in 0..tile.rows {
            // SAFETY: the caller's promise.
            unsafe {
                let value = *from.add(row);
                let to = to.add(row * tile.len);
                for i in 0..tile.len {
                    to.add(i).write(value);
                }
            }
        }
    }
    // SAFETY: the caller's promise; the widths agree.
    unsafe {
        match size {
            1 => of::<u8>(to, from, tile),
            4 => of::<u32>(to.cast(), from.cast(), tile),
            _ => of::<u64>(to.cast(), from.cast(), tile),
        }
    }
}
