//! Stable sorting of integer keys, for the families `Sort` and `Scatter`.
//!
//! Every element has an unsigned key of 32 or 64 bits. The elements of a line are sorted by key and index; the pairs
//! are distinct, so the order is the stable one. A first dispatch sorts tiles of up to 256 elements in shared memory,
//! by a bitonic network (Batcher 1968); a workgroup sorts several short lines. Every further dispatch merges pairs of
//! sorted runs: an invocation finds the beginning of its outputs by binary search (Green, McColl & Bader 2012) and
//! merges them in order. A line of n elements costs O(n log n) operations in log₂(n / 256) + 1 dispatches. If only the
//! first k elements are kept, runs are truncated to k elements.

use crate::dispatch_list::DispatchList;
use crate::operand::{Bindings, DeviceArray};
use crate::shader::{BindingUse, BufferRef, CollectLines, ShaderBuilder, WORKGROUP, values};

/// The number of elements that a workgroup sorts in shared memory.
const TILE_ELEMENTS: usize = 256;

/// The maximum number of keys of all lines. Shaders compute the offsets of the words of keys and indices in 32 bits.
pub(in crate::families) const MAX_KEYS: usize = 1 << 30;

/// The number of elements that an invocation merges.
const OUTPUTS_PER_INVOCATION: usize = 8;

/// Sorts tiles of keys in shared memory. The size of a tile is a power of two.
const SORT_TILES: &str = "
    let first_tile = group * ($slots / $tile);
    for (var slot = local; slot < $slots; slot = slot + $workgroup) {
        let tile = first_tile + slot / $tile;
        let line = tile / $tiles;
        let i = (tile % $tiles) * $tile + slot % $tile;
        // The empty slots of a tile follow all elements.
        var key = $largest;
        var index = 0xffffffffu;
        if (tile < $item_count && i < $length) {
            $compute_key
            key = $key;
            index = i;
        }
        tile_keys[slot] = key;
        tile_indices[slot] = index;
    }
    for (var size = 2u; size <= $tile; size = size << 1u) {
        for (var distance = size >> 1u; distance > 0u; distance = distance >> 1u) {
            workgroupBarrier();
            for (var pair = local; pair < $pairs; pair = pair + $workgroup) {
                let low = 2u * pair - (pair & (distance - 1u));
                let high = low + distance;
                // In the last phase, all sequences are sorted in ascending order.
                let ascends = ((low & ($tile - 1u)) & size) == 0u;
                let a = tile_keys[low];
                let b = tile_keys[high];
                let a_index = tile_indices[low];
                let b_index = tile_indices[high];
                let swaps = $b_less || (!$a_less && b_index < a_index);
                if (swaps == ascends) {
                    tile_keys[low] = b;
                    tile_keys[high] = a;
                    tile_indices[low] = b_index;
                    tile_indices[high] = a_index;
                }
            }
        }
    }
    workgroupBarrier();
    for (var slot = local; slot < $slots; slot = slot + $workgroup) {
        let tile = first_tile + slot / $tile;
        let offset = slot % $tile;
        let i = (tile % $tiles) * $tile + offset;
        if (tile < $item_count && i < $length && offset < $keep) {
            let at = tile / $tiles * $length + i;
            $store
        }
    }
";

/// Merges pairs of runs, whose length is a power of two. An invocation computes `$merged` elements.
const MERGE_RUNS: &str = "
    let line_at = thread / $blocks * $length;
    let i = thread % $blocks * $merged;
    let start = i & ~(2u * $run - 1u);
    let at = line_at + start;
    let rest = $length - start;
    let kept = min($run, $keep);
    let a_count = min(kept, rest);
    let b_count = min(kept, max(rest, $run) - $run);
    let count = min(a_count + b_count, $keep);
    let first = i - start;
    if (first >= count) { return; }
    let b_at = at + $run;
    // The number of outputs before `first` that are from the first run. An element of the second run precedes an
    // element of the first run only if its key is smaller.
    var low = max(first, b_count) - b_count;
    var high = min(first, a_count);
    while (low < high) {
        let middle = (low + high) / 2u;
        let a = $middle_of_a;
        let b = $middle_of_b;
        if ($b_less) { high = middle; } else { low = middle + 1u; }
    }
    var a_next = low;
    var b_next = first - low;
    for (var k = first; k < min(first + $merged, count); k = k + 1u) {
        // An exhausted run is not compared. Its position is still valid memory of the line.
        let a = $next_of_a;
        var value = a;
        var source = at + a_next;
        if (b_next < b_count) {
            let b = $next_of_b;
            if (a_next >= a_count || $b_less) {
                value = b;
                source = b_at + b_next;
            }
        }
        let index = $index;
        $store
        if (source >= b_at) { b_next = b_next + 1u; } else { a_next = a_next + 1u; }
    }
";

/// The type of a sort key in a shader.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::families) enum KeyType {
    /// One word, a `u32`.
    Word,
    /// Two words, a `vec2<u32>` whose x is the lower word.
    Pair,
}

impl KeyType {
    /// Returns the number of words.
    fn words(self) -> usize {
        if self == KeyType::Word { 1 } else { 2 }
    }

    fn wgsl_type(self) -> &'static str {
        if self == KeyType::Word { "u32" } else { "vec2<u32>" }
    }

    /// Returns the largest key.
    fn largest(self) -> &'static str {
        if self == KeyType::Word { "0xffffffffu" } else { "vec2<u32>(0xffffffffu, 0xffffffffu)" }
    }

    /// Returns the condition a < b.
    fn less(self, a: &str, b: &str) -> String {
        if self == KeyType::Word { format!("({a} < {b})") } else { format!("l_lt_unsigned({a}, {b})") }
    }
}

/// Lines of keys that are sorted independently.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) struct KeySort {
    /// The name of the kernel in errors.
    pub(in crate::families) op: &'static str,
    pub(in crate::families) lines: usize,
    /// The number of elements of a line.
    pub(in crate::families) length: usize,
    /// The number of elements to keep: at least 1 and at most `length`.
    pub(in crate::families) keep: usize,
    pub(in crate::families) key: KeyType,
}

/// Sorted keys and indices in a scratch buffer. The first elements of line i start at i · length.
pub(in crate::families) struct SortedKeys {
    buffer: BufferRef,
    key: KeyType,
    /// The number of elements of all lines.
    total: usize,
}

/// The expressions of [`SortedKeys`] in a shader.
pub(in crate::families) struct SortedKeysExprs {
    key: KeyType,
    binding: usize,
    total: String,
}

impl SortedKeys {
    /// Binds the buffer for reads, adds the number of elements to the parameters and returns the expressions.
    pub(in crate::families) fn declare(&self, shader: &mut ShaderBuilder) -> SortedKeysExprs {
        let binding = shader.binding(self.buffer, BindingUse::Read);
        SortedKeysExprs { key: self.key, binding, total: shader.declare_word(self.total) }
    }
}

impl SortedKeysExprs {
    /// Returns the expression that reads the index of an element.
    pub(in crate::families) fn index(&self, element: &str) -> String {
        format!("b{}[{}u * {} + {element}]", self.binding, self.key.words(), self.total)
    }

    /// Returns the expression that reads the key of an element.
    pub(in crate::families) fn key(&self, element: &str) -> String {
        let SortedKeysExprs { binding, total, .. } = self;
        match self.key {
            KeyType::Word => format!("b{binding}[{element}]"),
            KeyType::Pair => format!("vec2<u32>(b{binding}[{element}], b{binding}[{total} + {element}])"),
        }
    }

    /// Returns the statements that write an element.
    fn store(&self, element: &str, key: &str, index: &str) -> String {
        let SortedKeysExprs { binding, total, .. } = self;
        let key = match self.key {
            KeyType::Word => format!("b{binding}[{element}] = {key};"),
            KeyType::Pair => format!("b{binding}[{element}] = {key}.x; b{binding}[{total} + {element}] = {key}.y;"),
        };
        format!("{key} {} = {index};", self.index(element))
    }
}

impl KeySort {
    /// Adds the dispatches that sort all lines by keys that are computed from `inputs`.
    ///
    /// `key` declares its parameters, adds the lines that compute the key of element `i` of line `line`, and returns
    /// the key. There must be at most [`MAX_KEYS`] elements.
    pub(in crate::families) fn sort(
        self,
        list: &mut DispatchList<'_>,
        inputs: &[DeviceArray<'_>],
        key: impl FnOnce(&mut ShaderBuilder, &Bindings) -> String,
    ) -> SortedKeys {
        let total = self.lines * self.length;
        let bytes = total * (self.key.words() + 1) * 4;
        let mut sorted = SortedKeys { buffer: list.scratch(bytes), key: self.key, total };
        let tile = self.length.next_power_of_two().min(TILE_ELEMENTS);
        list.dispatch(self.op, self.sort_tiles(tile, &sorted, inputs, key));
        let mut other = if tile < self.length { list.scratch(bytes) } else { sorted.buffer };
        let mut run = tile;
        while run < self.length {
            list.dispatch(self.op, self.merge_runs(run, &sorted, other));
            std::mem::swap(&mut sorted.buffer, &mut other);
            run *= 2;
        }
        sorted
    }

    /// Returns the dispatch that sorts tiles of `tile` elements.
    fn sort_tiles(
        self,
        tile: usize,
        sorted: &SortedKeys,
        inputs: &[DeviceArray<'_>],
        key: impl FnOnce(&mut ShaderBuilder, &Bindings) -> String,
    ) -> ShaderBuilder {
        let tiles = self.length.div_ceil(tile);
        let count = self.lines * tiles;
        let mut shader = ShaderBuilder::with_groups(count, count.div_ceil(TILE_ELEMENTS / tile));
        let bindings = Bindings::new(&mut shader, inputs, &[]);
        let binding = shader.binding(sorted.buffer, BindingUse::Write);
        for (name, ty) in [("tile_keys", self.key.wgsl_type()), ("tile_indices", "u32")] {
            shader.workgroup_array(name, ty, TILE_ELEMENTS);
        }
        let [tile, tiles, length, keep, total] =
            shader.declare_words([tile, tiles, self.length, self.keep, sorted.total]);
        let to = SortedKeysExprs { key: self.key, binding, total };
        let store = to.store("at", "tile_keys[slot]", "tile_indices[slot]");
        let (compute_key, key) = shader.collect_result(|shader| key(shader, &bindings));
        let (largest, a_less, b_less) = (self.key.largest(), self.key.less("a", "b"), self.key.less("b", "a"));
        let [slots, pairs, workgroup] =
            [TILE_ELEMENTS, TILE_ELEMENTS / 2, WORKGROUP as usize].map(|size| format!("{size}u"));
        let sizes = values![tile, tiles, length, keep, slots, pairs, workgroup];
        let keys = values![compute_key, key, largest, a_less, b_less, store];
        shader.template(SORT_TILES, &[&sizes[..], keys].concat());
        shader
    }

    /// Returns the dispatch that merges pairs of runs of `run` elements into another buffer.
    fn merge_runs(self, run: usize, sorted: &SortedKeys, to: BufferRef) -> ShaderBuilder {
        let blocks = self.length.div_ceil(OUTPUTS_PER_INVOCATION);
        let mut shader = ShaderBuilder::for_threads(self.lines * blocks);
        let [binding, to] = [(sorted.buffer, BindingUse::Read), (to, BindingUse::Write)]
            .map(|(buffer, usage)| shader.binding(buffer, usage));
        let [run, blocks, length, keep, total] =
            shader.declare_words([run, blocks, self.length, self.keep, sorted.total]);
        let from = SortedKeysExprs { key: self.key, binding, total: total.clone() };
        let to = SortedKeysExprs { key: self.key, binding: to, total };
        let elements =
            ["(at + middle)", "(b_at + first - 1u - middle)", "(at + min(a_next, a_count - 1u))", "(b_at + b_next)"];
        let [middle_of_a, middle_of_b, next_of_a, next_of_b] = elements.map(|element| from.key(element));
        let (index, store) = (from.index("source"), to.store("(at + k)", "value", "index"));
        let (b_less, merged) = (self.key.less("b", "a"), format!("{OUTPUTS_PER_INVOCATION}u"));
        let sizes = values![run, blocks, length, keep, merged];
        let keys = values![middle_of_a, middle_of_b, next_of_a, next_of_b, b_less, index, store];
        shader.template(MERGE_RUNS, &[&sizes[..], keys].concat());
        shader
    }
}
