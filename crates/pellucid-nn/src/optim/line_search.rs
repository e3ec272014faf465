//! A line search: cubic interpolation until the step length satisfies the strong Wolfe conditions
//! (Nocedal & Wright 2006, algorithms 3.5 and 3.6), in the order of PyTorch's search.

use pellucid_tensor::{Result, Tensor, ops};

/// The constants of the Wolfe conditions.
const SUFFICIENT: f64 = 1e-4;
const CURVATURE: f64 = 0.9;

/// Loss, gradient and slope at one step length.
#[derive(Clone)]
pub(super) struct SearchPoint {
    pub(super) t: f64,
    pub(super) loss: f64,
    pub(super) gradient: Tensor,
    /// The slope along the direction.
    pub(super) slope: f64,
}

/// The result of a search.
pub(super) struct SearchResult {
    pub(super) point: SearchPoint,
    /// The number of evaluations of the loss.
    pub(super) evaluations: usize,
}

/// Returns the minimum of the cubic through two points with their slopes, within bounds.
fn cubic(a: &SearchPoint, b: &SearchPoint, bounds: Option<(f64, f64)>) -> f64 {
    let (low, high) = bounds.unwrap_or(if a.t <= b.t { (a.t, b.t) } else { (b.t, a.t) });
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square.is_nan() || square < 0.0 {
        return (low + high) / 2.0;
    }
    let d2 = square.sqrt();
    let minimizer = if a.t <= b.t {
        b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2))
    } else {
        a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2.0 * d2))
    };
    minimizer.max(low).min(high)
}

/// Searches from `start` (t = 0) with the initial length `t`, by at most `max_evaluations` interpolations; `evaluate`
/// returns loss and gradient at a length.
pub(super) fn strong_wolfe(
    mut evaluate: impl FnMut(f64) -> Result<(f64, Tensor)>,
    start: &SearchPoint,
    direction: &Tensor,
    t: f64,
    tolerance: f64,
    max_evaluations: usize,
) -> Result<SearchResult> {
    let reach: f64 = ops::max(&ops::abs(direction)?, ..)?.try_item()?;
    let mut evaluations = 0;
    let mut point_at = |t: f64| -> Result<SearchPoint> {
        let (loss, gradient) = evaluate(t)?;
        evaluations += 1;
        let slope = ops::dot(&gradient, direction)?.try_item()?;
        Ok(SearchPoint { t, loss, gradient, slope })
    };
    let is_too_high = |p: &SearchPoint| p.loss > start.loss + SUFFICIENT * p.t * start.slope;
    let is_flat = |p: &SearchPoint| p.slope.abs() <= -CURVATURE * start.slope;

    // Bracketing phase: find two lengths between which a valid length exists.
    let (mut before, mut now) = (start.clone(), point_at(t)?);
    let (mut steps, mut done) = (0, false);
    let mut bracket = loop {
        if steps == max_evaluations {
            break [start.clone(), now];
        }
        if is_too_high(&now) || (steps > 1 && now.loss >= before.loss) {
            break [before, now];
        }
        if is_flat(&now) {
            done = true;
            break [now.clone(), now];
        }
        if now.slope >= 0.0 {
            break [before, now];
        }
        let bounds = (now.t + 0.01 * (now.t - before.t), now.t * 10.0);
        let t = cubic(&before, &now, Some(bounds));
        before = std::mem::replace(&mut now, point_at(t)?);
        steps += 1;
    };

    // Zoom phase: shrink the bracket around a valid length.
    let order = |bracket: &[SearchPoint; 2]| if bracket[0].loss <= bracket[1].loss { (0, 1) } else { (1, 0) };
    let (mut low, mut high) = order(&bracket);
    let mut stalled = false;
    while !done && steps < max_evaluations {
        let (first, last) = (bracket[0].t.min(bracket[1].t), bracket[0].t.max(bracket[1].t));
        if (last - first) * reach < tolerance {
            break;
        }
        let mut t = cubic(&bracket[0], &bracket[1], None);
        // A length at an end of the bracket, and the second of two successive lengths near an end, is moved inwards.
        let margin = 0.1 * (last - first);
        if (last - t).min(t - first) < margin {
            if stalled || t >= last || t <= first {
                t = if (t - last).abs() < (t - first).abs() { last - margin } else { first + margin };
                stalled = false;
            } else {
                stalled = true;
            }
        } else {
            stalled = false;
        }
        let new = point_at(t)?;
        steps += 1;
        if is_too_high(&new) || new.loss >= bracket[low].loss {
            bracket[high] = new;
            (low, high) = order(&bracket);
        } else {
            if is_flat(&new) {
                done = true;
            } else if new.slope * (bracket[high].t - bracket[low].t) >= 0.0 {
                bracket[high] = bracket[low].clone();
            }
            bracket[low] = new;
        }
    }
    Ok(SearchResult { point: bracket[low].clone(), evaluations })
}
