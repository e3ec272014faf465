//! A picture of a plan: launches along the x axis, arena memory along the y axis, one rectangle for each buffer.

use super::print::bytes;
use super::{BufferAllocation, Plan};
use std::fmt::Write;

/// The height of the picture of the arena in pixels.
const HEIGHT: f64 = 480.0;
/// The maximum width of one launch in pixels.
const COLUMN: f64 = 18.0;
const WIDTH: f64 = 1600.0;
const MARGIN: f64 = 40.0;

impl Plan {
    /// Returns the arena over time as SVG.
    ///
    /// Each buffer is a rectangle. Its width spans the first to the last launch that uses the buffer, and its height is
    /// the size of the buffer. The rectangles and the launches show tooltips. Without an arena, every buffer is drawn
    /// at an offset of its own.
    pub fn to_svg(&self) -> String {
        let (allocations, total) = self.allocations();
        let launches = self.launches.len().max(1);
        let column = (WIDTH / launches as f64).min(COLUMN);
        let width = column * launches as f64;
        let y = |at: usize| MARGIN + HEIGHT * (1.0 - at as f64 / total.max(1) as f64);
        let mut svg = String::new();
        let (w, h) = (width + 2.0 * MARGIN, HEIGHT + 2.0 * MARGIN);
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{w:.0}" height="{h:.0}" font-family="sans-serif" font-size="11">"#
        );
        let _ = writeln!(svg, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##);
        let heading = format!("{launches} launches, {} of memory", bytes(total));
        let _ = writeln!(svg, r#"<text x="{MARGIN}" y="20">{heading}</text>"#);
        for allocation in &allocations {
            let last = allocation.last.min(launches - 1);
            let (x, top) = (MARGIN + column * allocation.first as f64, y(allocation.offset + allocation.bytes));
            let (w, h) = (column * (last + 1 - allocation.first.min(last)) as f64, y(allocation.offset) - top);
            let hue = allocation.slot * 47 % 360;
            let title = format!(
                "buffer {}: {} at byte {}, launches {} to {last}",
                allocation.slot,
                bytes(allocation.bytes),
                allocation.offset,
                allocation.first
            );
            let _ = writeln!(
                svg,
                r##"<rect x="{x:.1}" y="{top:.1}" width="{w:.1}" height="{h:.1}" fill="hsl({hue},60%,70%)" stroke="#333333" stroke-width="0.4"><title>{title}</title></rect>"##
            );
        }
        for (k, launch) in self.launches.iter().enumerate() {
            let x = MARGIN + column * k as f64;
            let title = format!("{k}: {} {}", launch.kernel.family(), escaped(&launch.parts().join(" + ")));
            let foot = MARGIN + HEIGHT;
            let _ = writeln!(
                svg,
                r##"<rect x="{x:.1}" y="{foot}" width="{column:.1}" height="14" fill="#dddddd" stroke="#ffffff"><title>{title}</title></rect>"##
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Returns the offsets and lifetimes of the buffers, and the total size in bytes.
    fn allocations(&self) -> (Vec<BufferAllocation>, usize) {
        match &self.arena {
            Some(arena) => (arena.allocations.clone(), arena.bytes),
            None => {
                let mut allocations = super::arena::lifetimes(self);
                let mut total = 0;
                for allocation in &mut allocations {
                    allocation.offset = total;
                    total += allocation.bytes;
                }
                (allocations, total)
            }
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
