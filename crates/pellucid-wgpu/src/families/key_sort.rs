//! Stable sorting of integer keys, for the families `Sort` and `Scatter`.
//!
//! Every element has an unsigned key of 32 or 64 bits. The elements of a line are sorted by key and index; the pairs
//! are distinct, so the order is the stable one. A first dispatch sorts tiles of up to 256 elements in shared memory,
//! by a bitonic network (Batcher 1968); a workgroup sorts several short lines. Every further dispatch merges pairs of
//! sorted runs: an invocation finds the beginning of its outputs by binary search (Green, McColl & Bader 2012) and
//! merges them in order. A line of n elements costs O(n log n) operations in log₂(n / 256) + 1 dispatches. If only the
//! first k elements are kept, runs are truncated to k elements.

use crate::dispatch_list::DispatchList;
use crate::operand::Bindings;
use crate::operand::BufferRef;
use crate::shader::{BindingUse, ShaderBuilder, WORKGROUP};
use pellucid_ir::{Error, Result};

/// The number of elements that a workgroup sorts in shared memory.
const TILE: usize = 256;

/// The number of elements that an invocation merges.
const MERGED: usize = 8;

/// The first parameter of the function that computes keys.
pub(super) const KEY_PARAMETERS: usize = 8;

/// The type of a sort key in a shader.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum KeyType {
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

    fn text(self) -> &'static str {
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
pub(super) struct KeySort {
    /// The name of the kernel in errors.
    pub(super) op: &'static str,
    /// The number of lines.
    pub(super) lines: usize,
    /// The number of elements of a line.
    pub(super) length: usize,
    /// The number of elements to keep: at least 1 and at most `length`.
    pub(super) keep: usize,
    /// The type of the keys.
    pub(super) key: KeyType,
}

/// Sorted keys and indices in a scratch buffer. The first elements of line i start at i · length.
pub(super) struct SortedKeys {
    /// The buffer, which shaders bind as [`BindingUse::Read`].
    pub(super) buffer: BufferRef,
    /// The number of elements of all lines, which shaders need to address indices.
    pub(super) total: usize,
}

/// Returns the expression that reads the index of an element of [`SortedKeys`] with keys of type `key`. `total` is the
/// expression of the number of elements.
pub(super) fn index_text(key: KeyType, binding: usize, total: &str, at: &str) -> String {
    format!("b{binding}[{}u * {total} + {at}]", key.words())
}

/// Returns the expression that reads the key of an element of [`SortedKeys`].
pub(super) fn key_text(key: KeyType, binding: usize, total: &str, at: &str) -> String {
    match key {
        KeyType::Word => format!("b{binding}[{at}]"),
        KeyType::Pair => format!("vec2<u32>(b{binding}[{at}], b{binding}[{total} + {at}])"),
    }
}

/// Returns the statements that write an element of [`SortedKeys`].
fn store_text(key: KeyType, binding: usize, (total, at): (&str, &str), (value, index): (&str, &str)) -> String {
    let value = match key {
        KeyType::Word => format!("b{binding}[{at}] = {value};"),
        KeyType::Pair => format!("b{binding}[{at}] = {value}.x; b{binding}[{total} + {at}] = {value}.y;"),
    };
    format!("{value} {} = {index};", index_text(key, binding, total, at))
}

impl KeySort {
    /// Adds the dispatches that sort all lines. `shader` and `bindings` have the buffers that `key` reads.
    ///
    /// `key` adds the lines that compute the key of element `i` of line `line`, and returns the key. Its parameters
    /// `key_parameters` start at [`KEY_PARAMETERS`].
    ///
    /// # Errors
    /// If there are too many elements, or the device fails.
    pub(super) fn sort(
        self,
        list: &mut DispatchList<'_>,
        mut shader: ShaderBuilder,
        bindings: &Bindings,
        key_parameters: &[u32],
        key: impl FnOnce(&mut ShaderBuilder, &str, &str) -> String,
    ) -> Result<SortedKeys> {
        let total = self.lines.checked_mul(self.length).filter(|&total| total <= u32::MAX as usize / 4);
        let Some(total) = total else {
            return Err(Error::invalid(self.op, "the keys have more than 2^30 elements"));
        };
        let bytes = total * (self.key.words() + 1) * 4;
        let mut sorted = list.scratch(bytes);

        let tile = self.length.next_power_of_two().min(TILE);
        let tiles = self.length.div_ceil(tile);
        let count = self.lines * tiles;
        let to = shader.binding(BindingUse::Write);
        self.tile_lines(&mut shader, to, key);
        let own = [count, 0, tile, tiles, self.length, self.keep, total, 0].map(|word| word as u32);
        let parameters = [&own[..], key_parameters].concat();
        let buffers = [&bindings.buffers[..], &[sorted]].concat();
        list.dispatch(self.op, shader, parameters, &buffers, count.div_ceil(TILE / tile))?;

        let mut other = if tile < self.length { list.scratch(bytes) } else { sorted };
        let mut run = tile;
        while run < self.length {
            let blocks = self.length.div_ceil(MERGED);
            let work = self.lines * blocks;
            let mut shader = ShaderBuilder::default();
            let (from, to) = (shader.binding(BindingUse::Read), shader.binding(BindingUse::Write));
            self.merge_lines(&mut shader, from, to);
            let parameters = [work, 0, run, blocks, self.length, self.keep, total].map(|word| word as u32);
            list.dispatch(self.op, shader, parameters, &[sorted, other], work.div_ceil(WORKGROUP as usize))?;
            (sorted, other) = (other, sorted);
            run *= 2;
        }
        Ok(SortedKeys { buffer: sorted, total })
    }

    /// Adds the lines of the dispatch that sorts tiles.
    ///
    /// The parameters are: 0 the number of tiles, 2 the elements of a tile (a power of two), 3 the tiles of a line,
    /// 4 the elements of a line, 5 the elements to keep, 6 the elements of all lines.
    fn tile_lines(
        self,
        shader: &mut ShaderBuilder,
        to: usize,
        key: impl FnOnce(&mut ShaderBuilder, &str, &str) -> String,
    ) {
        let ty = self.key.text();
        shader.globals.push_str(&format!("var<workgroup> tile_keys: array<{ty}, {TILE}>;\n"));
        shader.globals.push_str(&format!("var<workgroup> tile_indices: array<u32, {TILE}>;\n"));
        shader.line(format!("let first_tile = group * ({TILE}u / params[2]);"));
        shader.line(format!("for (var slot = local; slot < {TILE}u; slot = slot + {WORKGROUP}u) {{"));
        shader.line("let tile = first_tile + slot / params[2];");
        shader.line("let line = tile / params[3];");
        shader.line("let i = (tile % params[3]) * params[2] + slot % params[2];");
        // The empty slots of a tile follow all elements.
        shader.line(format!("var key = {};", self.key.largest()));
        shader.line("var index = 0xffffffffu;");
        shader.line("if (tile < params[0] && i < params[4]) {");
        let value = key(shader, "line", "i");
        shader.line(format!("key = {value};"));
        shader.line("index = i;");
        shader.line("}");
        shader.line("tile_keys[slot] = key;");
        shader.line("tile_indices[slot] = index;");
        shader.line("}");
        shader.line("for (var size = 2u; size <= params[2]; size = size << 1u) {");
        shader.line("for (var distance = size >> 1u; distance > 0u; distance = distance >> 1u) {");
        shader.line("workgroupBarrier();");
        shader.line(format!("for (var pair = local; pair < {}u; pair = pair + {WORKGROUP}u) {{", TILE / 2));
        shader.line("let low = 2u * pair - (pair & (distance - 1u));");
        shader.line("let high = low + distance;");
        // In the last phase all sequences ascend.
        shader.line("let ascends = ((low & (params[2] - 1u)) & size) == 0u;");
        shader.line("let a = tile_keys[low];");
        shader.line("let b = tile_keys[high];");
        shader.line("let a_index = tile_indices[low];");
        shader.line("let b_index = tile_indices[high];");
        let (b_less, a_less) = (self.key.less("b", "a"), self.key.less("a", "b"));
        shader.line(format!("let swaps = {b_less} || (!{a_less} && b_index < a_index);"));
        shader.line("if (swaps == ascends) {");
        shader.line("    tile_keys[low] = b;");
        shader.line("    tile_keys[high] = a;");
        shader.line("    tile_indices[low] = b_index;");
        shader.line("    tile_indices[high] = a_index;");
        shader.line("}");
        shader.line("}");
        shader.line("}");
        shader.line("}");
        shader.line("workgroupBarrier();");
        shader.line(format!("for (var slot = local; slot < {TILE}u; slot = slot + {WORKGROUP}u) {{"));
        shader.line("let tile = first_tile + slot / params[2];");
        shader.line("let offset = slot % params[2];");
        shader.line("let i = (tile % params[3]) * params[2] + offset;");
        shader.line("if (tile < params[0] && i < params[4] && offset < params[5]) {");
        shader.line("let at = tile / params[3] * params[4] + i;");
        let value = ("tile_keys[slot]", "tile_indices[slot]");
        shader.line(store_text(self.key, to, ("params[6]", "at"), value));
        shader.line("}");
        shader.line("}");
    }

    /// Adds the lines of a dispatch that merges pairs of runs.
    ///
    /// The parameters are: 0 the number of invocations, 2 the elements of a run (a power of two), 3 the invocations of
    /// a line; 4 to 6 as for tiles.
    fn merge_lines(self, shader: &mut ShaderBuilder, from: usize, to: usize) {
        let (key, total) = (self.key, "params[6]");
        shader.line("if (thread >= params[0]) { return; }");
        shader.line("let line_at = thread / params[3] * params[4];");
        shader.line(format!("let i = thread % params[3] * {MERGED}u;"));
        shader.line("let start = i & ~(2u * params[2] - 1u);");
        shader.line("let at = line_at + start;");
        shader.line("let rest = params[4] - start;");
        shader.line("let kept = min(params[2], params[5]);");
        shader.line("let a_count = min(kept, rest);");
        shader.line("let b_count = min(kept, max(rest, params[2]) - params[2]);");
        shader.line("let count = min(a_count + b_count, params[5]);");
        shader.line("let first = i - start;");
        shader.line("if (first >= count) { return; }");
        shader.line("let b_at = at + params[2];");
        // The number of outputs before `first` that are from the first run. An element of the second run precedes an
        // element of the first run only if its key is smaller.
        shader.line("var low = max(first, b_count) - b_count;");
        shader.line("var high = min(first, a_count);");
        shader.line("while (low < high) {");
        shader.line("let middle = (low + high) / 2u;");
        let a = shader.define(key_text(key, from, total, "(at + middle)"));
        let b = shader.define(key_text(key, from, total, "(b_at + first - 1u - middle)"));
        shader.line(format!("if ({}) {{ high = middle; }} else {{ low = middle + 1u; }}", key.less(&b, &a)));
        shader.line("}");
        shader.line("var a_next = low;");
        shader.line("var b_next = first - low;");
        shader.line(format!("for (var k = first; k < min(first + {MERGED}u, count); k = k + 1u) {{"));
        // A run that is exhausted is not compared; its position is valid memory of the line.
        let a = shader.define(key_text(key, from, total, "(at + min(a_next, a_count - 1u))"));
        shader.line(format!("var value = {a};"));
        shader.line("var source = at + a_next;");
        shader.line("if (b_next < b_count) {");
        let b = shader.define(key_text(key, from, total, "(b_at + b_next)"));
        shader.line(format!("if (a_next >= a_count || {}) {{", key.less(&b, &a)));
        shader.line(format!("value = {b};"));
        shader.line("source = b_at + b_next;");
        shader.line("}");
        shader.line("}");
        let index = shader.define(index_text(key, from, total, "source"));
        shader.line(store_text(key, to, (total, "(at + k)"), ("value", &index)));
        shader.line("if (source >= b_at) { b_next = b_next + 1u; } else { a_next = a_next + 1u; }");
        shader.line("}");
    }
}
