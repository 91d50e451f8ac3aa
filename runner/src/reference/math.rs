//! The arithmetic, and the one order it is done in.
//!
//! Every product of a row with a matrix goes through [`panel_product`]. A matrix is stored
//! in panels of [`WIDTH`] outputs; inside a panel the weights of one input lie side by side:
//!
//! ```text
//! panel p, input k:  [ W[16p][k], W[16p+1][k], ..., W[16p+15][k] ]
//! ```
//!
//! The kernel walks the inputs in ascending order and adds `x[k] * w` to 16 accumulators,
//! one per output. The 16 sums are independent, so the compiler may do them in vector
//! registers of any width; each sum by itself is strictly sequential, so the result is the
//! same whatever it chooses. Two rows at a time share the loaded weights; they do not share
//! sums, so a row's result does not depend on which rows it was computed with.

/// Outputs per panel.
pub const WIDTH: usize = 16;

/// The weights of all of a panel's outputs for one input.
pub type Lane = [f32; WIDTH];

/// A matrix of `outputs` x `inputs`, stored in panels.
#[derive(Debug, Clone)]
pub struct Matrix {
    outputs: usize,
    inputs: usize,
    panels: Vec<Lane>,
}

impl Matrix {
    /// Packs a row-major matrix; outputs that fill up the last panel have zero weights.
    ///
    /// # Panics
    ///
    /// If `rows` is not `outputs * inputs` long.
    pub fn pack(rows: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(
            rows.len(),
            outputs * inputs,
            "a matrix of {outputs} x {inputs}"
        );
        let mut panels = vec![[0.0; WIDTH]; outputs.div_ceil(WIDTH) * inputs];
        for (output, row) in rows.chunks_exact(inputs).enumerate() {
            let panel = &mut panels[output / WIDTH * inputs..][..inputs];
            for (lane, weight) in panel.iter_mut().zip(row) {
                lane[output % WIDTH] = *weight;
            }
        }
        Self {
            outputs,
            inputs,
            panels,
        }
    }

    /// Multiplies each row of `x` (rows of `inputs`) and writes rows of `outputs` to `y`.
    ///
    /// # Panics
    ///
    /// If `x` and `y` do not hold the same number of whole rows.
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs, "whole input rows");
        assert_eq!(y.len(), rows * self.outputs, "as many output rows");
        let input = |row: usize| &x[row * self.inputs..][..self.inputs];
        for (number, panel) in self.panels.chunks_exact(self.inputs).enumerate() {
            let first = number * WIDTH;
            let width = WIDTH.min(self.outputs - first);
            let mut store = |row: usize, sums: &Lane| {
                y[row * self.outputs + first..][..width].copy_from_slice(&sums[..width]);
            };
            let mut row = 0;
            while row + 1 < rows {
                let [a, b] = panel_product([input(row), input(row + 1)], panel);
                store(row, &a);
                store(row + 1, &b);
                row += 2;
            }
            if row < rows {
                let [a] = panel_product([input(row)], panel);
                store(row, &a);
            }
        }
    }
}

/// Multiplies rows with one panel: the only inner loop of the engine.
///
/// # Panics
///
/// If a row is shorter than the panel.
#[inline]
pub fn panel_product<const ROWS: usize>(rows: [&[f32]; ROWS], panel: &[Lane]) -> [Lane; ROWS] {
    let rows = rows.map(|row| &row[..panel.len()]);
    let mut sums = [[0.0f32; WIDTH]; ROWS];
    for (k, lane) in panel.iter().enumerate() {
        for (sum, row) in sums.iter_mut().zip(&rows) {
            let x = row[k];
            for (total, weight) in sum.iter_mut().zip(lane) {
                *total += x * weight;
            }
        }
    }
    sums
}

/// Root-mean-square norm of each row of `x`, scaled by `weight`, into `y`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    for (x, y) in x
        .chunks_exact(weight.len())
        .zip(y.chunks_exact_mut(weight.len()))
    {
        let mut squares = 0.0f32;
        for value in x {
            squares += value * value;
        }
        let scale = 1.0 / libm::sqrtf(squares / weight.len() as f32 + eps);
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * weight;
        }
    }
}

/// Turns scores into weights that sum to one, in place.
pub fn softmax(scores: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for score in scores.iter() {
        if *score > largest {
            largest = *score;
        }
    }
    let mut total = 0.0f32;
    for score in scores.iter_mut() {
        *score = libm::expf(*score - largest);
        total += *score;
    }
    for score in scores.iter_mut() {
        *score /= total;
    }
}

/// The gate of the feed-forward layer: `gate = silu(gate) * up`.
pub fn gate_with(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + libm::expf(-*gate)) * up;
    }
}

/// `x += y`, element by element.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Cosines and sines of the rotary embedding for all positions.
#[derive(Debug, Clone)]
pub struct Rotary {
    half: usize,
    /// Per position: `half` cosines, then `half` sines.
    table: Vec<f32>,
}

impl Rotary {
    /// Computes the table for positions `0..context`.
    pub fn new(head_dim: usize, theta: f32, context: usize) -> Self {
        let half = head_dim / 2;
        let speeds: Vec<f32> = (0..half)
            .map(|i| 1.0 / libm::powf(theta, (2 * i) as f32 / head_dim as f32))
            .collect();
        let mut table = Vec::with_capacity(context * head_dim);
        for position in 0..context {
            table.extend(
                speeds
                    .iter()
                    .map(|speed| libm::cosf(position as f32 * speed)),
            );
            table.extend(
                speeds
                    .iter()
                    .map(|speed| libm::sinf(position as f32 * speed)),
            );
        }
        Self { half, table }
    }

    /// Rotates all heads of one row; element `i` of a head pairs with `i + half`, as in the
    /// Hugging Face layout (not with its neighbour, as in Meta's).
    pub fn rotate(&self, row: &mut [f32], position: usize) {
        let (cos, sin) =
            self.table[position * 2 * self.half..][..2 * self.half].split_at(self.half);
        for head in row.chunks_exact_mut(2 * self.half) {
            let (low, high) = head.split_at_mut(self.half);
            for i in 0..self.half {
                let (a, b) = (low[i], high[i]);
                low[i] = a * cos[i] - b * sin[i];
                high[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values whose sums depend on the order of addition.
    fn noise(count: usize, mut state: u32) -> Vec<f32> {
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    #[test]
    fn a_product_is_the_plain_sequential_sum_whatever_the_batch() {
        let (outputs, inputs, rows) = (37, 29, 5);
        let weights = noise(outputs * inputs, 1);
        let x = noise(rows * inputs, 2);
        let matrix = Matrix::pack(&weights, outputs, inputs);
        let mut batch = vec![0.0; rows * outputs];
        matrix.apply(&x, &mut batch);
        for row in 0..rows {
            let mut single = vec![0.0; outputs];
            matrix.apply(&x[row * inputs..][..inputs], &mut single);
            for output in 0..outputs {
                let mut sum = 0.0f32;
                for k in 0..inputs {
                    sum += x[row * inputs + k] * weights[output * inputs + k];
                }
                assert_eq!(sum.to_bits(), single[output].to_bits());
                assert_eq!(sum.to_bits(), batch[row * outputs + output].to_bits());
            }
        }
    }

    #[test]
    fn softmax_sums_to_one_and_survives_large_scores() {
        let mut scores = [1000.0, 1000.0, -1000.0];
        softmax(&mut scores);
        assert_eq!(scores, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn rotation_pairs_an_element_with_the_one_half_a_head_away() {
        let rotary = Rotary::new(4, 10_000.0, 2);
        let mut row = [1.0, 0.0, 0.0, 0.0];
        rotary.rotate(&mut row, 1);
        assert_eq!(row, [libm::cosf(1.0), 0.0, libm::sinf(1.0), 0.0]);
        let mut still = [1.0, 2.0, 3.0, 4.0];
        rotary.rotate(&mut still, 0);
        assert_eq!(still, [1.0, 2.0, 3.0, 4.0]);
    }

    /// The promise rests on these functions; other bits here mean other answers everywhere.
    #[test]
    fn the_transcendental_functions_have_their_known_bits() {
        let bits = [
            libm::expf(-1.0).to_bits(),
            libm::expf(0.1).to_bits(),
            libm::sinf(1000.0).to_bits(),
            libm::cosf(1000.0).to_bits(),
            libm::powf(10_000.0, 0.1875).to_bits(),
            libm::sqrtf(2.0).to_bits(),
        ];
        assert_eq!(bits, KNOWN, "{bits:#010x?}");
    }

    const KNOWN: [u32; 6] = [
        0x3ebc_5ab2,
        0x3f8d_763e,
        0x3f53_ae61,
        0x3f0f_f813,
        0x40b3_f300,
        0x3fb5_04f3,
    ];
}
