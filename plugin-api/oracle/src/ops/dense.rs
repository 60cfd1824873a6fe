//! Oracles of copies, norms, products, quantisation, rotation and hyper-connections.

use crate::bound::Bound;
use crate::call::Call;
use crate::rows::rows;
use crate::tensor::HostTensor;
use crate::want::{Element, Want, Wants};

pub(crate) fn gather(call: &Call, _: Bound) -> Wants {
    let (table, index, repeat) = (call.tensor("table"), call.tensor("index").ints(), call.size("repeat"));
    let out = call.tensor("out");
    let (rows, columns) = (table.shape[0], table.shape[1]);
    let mut wanted = HostTensor::filled(out.format, &out.shape, 0);
    let converts = table.format != out.format;
    let values = if converts { table.values() } else { Vec::new() };
    for (slot, &row) in index.iter().flat_map(|row| std::iter::repeat_n(row, repeat)).enumerate() {
        let Some(row) = usize::try_from(row).ok().filter(|&row| row < rows) else { continue };
        for column in 0..columns {
            let from = row * columns + column;
            let bytes = match converts {
                false => table.element(from).to_vec(),
                true => HostTensor::floats(out.format, &[1], &[values[from]]).codes,
            };
            wanted.set_element(slot * columns + column, &bytes);
        }
    }
    // Only a conversion may change the payload of a NaN.
    vec![("out", if converts { Want::ExactButNan(wanted) } else { Want::Exact(wanted) })]
}

/// Mean square of a row plus `eps`.
fn mean_square(row: &[f64], eps: f64) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps
}

pub(crate) fn rms_norm(call: &Call, bound: Bound) -> Wants {
    let (x, weight, eps) = (call.tensor("x").wide(), call.tensor("weight").wide(), call.real("eps"));
    let n = weight.len();
    // The inverse root halves the error of the mean square.
    let error = bound.sum_error(1.0) / 2.0 + bound.relative();
    let mut out = Vec::new();
    for row in x.chunks(n.max(1)) {
        let mean = mean_square(row, eps);
        for (x, w) in row.iter().zip(&weight) {
            let value = match () {
                () if !mean.is_finite() => f64::NAN,
                () if row.iter().all(|&x| x == 0.0) => 0.0,
                () => w * (x / mean.sqrt()),
            };
            out.push(Element::relative(value, error));
        }
    }
    vec![("out", Want::Elements(out))]
}

pub(crate) fn rstd(call: &Call, bound: Bound) -> Wants {
    let (x, eps, n) = (call.tensor("x").wide(), call.real("eps"), call.dim("x", 1));
    let error = bound.sum_error(1.0) / 2.0 + bound.relative();
    // By number: rows of no columns are rows, too.
    let rows = (0..call.dim("x", 0)).map(|t| &x[t * n..][..n]);
    let out = rows.map(|row| Element::relative(1.0 / mean_square(row, eps).sqrt(), error));
    vec![("out", Want::Elements(out.collect()))]
}

/// `sum x * w` and what an F32 accumulator may be off.
fn dot(bound: Bound, x: &[f64], w: &[f64]) -> Element {
    let products = x.iter().zip(w).map(|(x, w)| x * w);
    let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, magnitude), p| (sum + p, magnitude + p.abs()));
    bound.sum(sum, magnitude)
}

pub(crate) fn linear(call: &Call, bound: Bound) -> Wants {
    let (x, weight, groups) = (call.tensor("x").wide(), call.tensor("weight").wide(), call.size("groups"));
    let (k, outputs) = (call.dim("weight", 1), call.dim("weight", 0));
    let per_group = outputs / groups;
    let out = rows(call.dim("x", 0), outputs * k, |t| {
        let row = &x[t * groups * k..][..groups * k];
        (0..outputs).map(|o| dot(bound, &row[o / per_group * k..][..k], &weight[o * k..][..k])).collect()
    });
    vec![("out", Want::Elements(out))]
}

pub(crate) fn grouped_linear(call: &Call, bound: Bound) -> Wants {
    let (x, start) = (call.tensor("x").wide(), call.tensor("expert_start").ints());
    let (k, outputs) = (call.dim("x", 1), call.dim("out", 1));
    let mut out = vec![Element::Kept; call.tensor("out").len()];
    for (e, weight) in call.list("weight").iter().enumerate() {
        let weight = weight.wide();
        let (first, end) = (start[e] as usize, start[e + 1] as usize);
        let of_expert = rows(end - first, outputs * k, |m| {
            (0..outputs).map(|o| dot(bound, &x[(first + m) * k..][..k], &weight[o * k..][..k])).collect()
        });
        out[first * outputs..end * outputs].copy_from_slice(&of_expert);
    }
    vec![("out", Want::Elements(out))]
}

pub(crate) fn quantize(call: &Call, _: Bound) -> Wants {
    let out = call.tensor("out");
    vec![("out", Want::Exact(HostTensor::floats(out.format, &out.shape, &call.tensor("x").values())))]
}

pub(crate) fn rope(call: &Call, bound: Bound) -> Wants {
    let x = call.tensor("x");
    let (positions, freqs) = (call.tensor("positions").ints(), call.tensor("freqs").values());
    let (heads, channels) = (x.shape[1], x.shape[2]);
    let (values, error) = (x.wide(), bound.relative());
    // Channels before the rotated ones keep their bits.
    let mut out = vec![Element::Kept; values.len()];
    for (t, &position) in positions.iter().enumerate() {
        for h in 0..heads {
            let tail = (t * heads + h) * channels + channels - 2 * freqs.len();
            for (i, &freq) in freqs.iter().enumerate() {
                let angle = f64::from(position as f32 * freq);
                let angle = if call.size("inverse") == 1 { -angle } else { angle };
                let (a, b) = (values[tail + 2 * i], values[tail + 2 * i + 1]);
                let pair = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()];
                let slack = error * pair[0].abs().max(pair[1].abs());
                for (half, value) in pair.into_iter().enumerate() {
                    out[tail + 2 * i + half] = Element::Near { value, slack };
                }
            }
        }
    }
    vec![("x", Want::Elements(out))]
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn hc_mix(call: &Call, bound: Bound) -> Wants {
    let (mix, rstd) = (call.tensor("mix").wide(), call.tensor("rstd").wide());
    let (base, scale) = (call.tensor("base").wide(), call.tensor("scale").wide());
    let (c, iters, eps) = (call.size("copies"), call.size("iters"), call.real("eps"));
    let (mut pre, mut post, mut comb) = (Vec::new(), Vec::new(), Vec::new());
    for (row, rstd) in mix.chunks(2 * c + c * c).zip(&rstd) {
        let z = |gain: usize, i: usize| row[i] * rstd * scale[gain] + base[i];
        // The error of the argument is the relative error of its exponential.
        let argument =
            |gain: usize, i: usize| bound.roundings(4) * ((row[i] * rstd * scale[gain]).abs() + base[i].abs());
        for i in 0..c {
            pre.push(Element::relative(sigmoid(z(0, i)) + eps, argument(0, i) + bound.relative()));
            post.push(Element::relative(2.0 * sigmoid(z(1, c + i)), argument(1, c + i) + bound.relative()));
        }
        let mut m: Vec<f64> = Vec::new();
        let mut worst = 0f64;
        for i in 0..c {
            let logits: Vec<f64> = (0..c).map(|j| z(2, 2 * c + i * c + j)).collect();
            worst = (0..c).fold(worst, |w, j| w.max(argument(2, 2 * c + i * c + j)));
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = logits.iter().map(|z| (z - largest).exp()).sum();
            m.extend(logits.iter().map(|z| (z - largest).exp() / sum + eps));
        }
        for half_step in 0..2 * iters - 1 {
            let by_rows = half_step % 2 == 1;
            let line = |k: usize| if by_rows { k / c } else { k % c };
            let sums: Vec<f64> = (0..c).map(|l| (0..c * c).filter(|&k| line(k) == l).map(|k| m[k]).sum()).collect();
            for k in 0..c * c {
                m[k] /= sums[line(k)] + eps;
            }
        }
        let error = 2.0 * worst + bound.relative() + bound.sum_error(1.0);
        comb.extend(m.into_iter().map(|value| Element::relative(value, error)));
    }
    vec![("pre", Want::Elements(pre)), ("post", Want::Elements(post)), ("comb", Want::Elements(comb))]
}

pub(crate) fn hc_collapse(call: &Call, bound: Bound) -> Wants {
    let (x, pre) = (call.tensor("x"), call.tensor("pre").wide());
    let (copies, channels, values) = (x.shape[1], x.shape[2], x.wide());
    let mut out = Vec::new();
    for t in 0..x.shape[0] {
        for d in 0..channels {
            let column: Vec<f64> = (0..copies).map(|c| values[(t * copies + c) * channels + d]).collect();
            out.push(dot(bound, &pre[t * copies..][..copies], &column));
        }
    }
    vec![("out", Want::Elements(out))]
}

pub(crate) fn hc_expand(call: &Call, bound: Bound) -> Wants {
    let x = call.tensor("x");
    let (copies, channels, values) = (x.shape[1], x.shape[2], x.wide());
    let (y, post, comb) = (call.tensor("y").wide(), call.tensor("post").wide(), call.tensor("comb").wide());
    let mut out = Vec::new();
    for t in 0..x.shape[0] {
        for j in 0..copies {
            for d in 0..channels {
                let mut factors = vec![post[t * copies + j]];
                factors.extend((0..copies).map(|i| comb[(t * copies + i) * copies + j]));
                let mut column = vec![y[t * channels + d]];
                column.extend((0..copies).map(|i| values[(t * copies + i) * channels + d]));
                out.push(dot(bound, &factors, &column));
            }
        }
    }
    vec![("x", Want::Elements(out))]
}
