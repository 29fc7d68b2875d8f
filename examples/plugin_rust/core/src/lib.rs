//! Encode, vote and select of docs/algorithm.md on slices. No allocation, no operating system: of
//! the C library it takes two functions that round as IEEE 754 says. Rust neither contracts nor
//! reorders floating operations, which is what "exact" asks for.
#![no_std]

pub const MAX_DIM: usize = 576;
pub const BF16_NAN: u16 = 0x7fc0;
const MAX_FOLD: usize = 1024;

extern "C" {
    fn sqrtf(x: f32) -> f32;
    fn rintf(x: f32) -> f32;
}

fn sqrt(x: f32) -> f32 {
    unsafe { sqrtf(x) }
}

/// Of a type of core only since Rust 1.85.
fn abs(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7fff_ffff)
}

/// Section 3.4, table N4.
const THRESHOLDS: [f32; 7] = [
    0.258_221_66, 0.522_403_7, 0.799_549_8, 1.099_285_8, 1.437_138_8, 1.843_531_8, 2.400_803_4,
];
const LEVELS: [f32; 8] = [11.0, 37.0, 61.0, 87.0, 117.0, 151.0, 193.0, 255.0];

pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub fn f32_to_bf16(value: f32) -> u16 {
    if value.is_nan() {
        return BF16_NAN;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let mantissa = u32::from(bits) & 0x3ff;
    match exponent {
        0x1f => f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13)),
        0 => f32::from_bits(sign | (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits()),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13)),
    }
}

/// Section 0: the sum of every exact rule.
pub fn fold(numbers: impl Iterator<Item = f32>) -> f32 {
    let mut x = [0.0f32; MAX_FOLD];
    let mut count = 0;
    for number in numbers {
        x[count] = number;
        count += 1;
    }
    let mut half = count.next_power_of_two() / 2;
    while half >= 1 {
        for i in 0..half {
            x[i] += x[i + half];
        }
        half /= 2;
    }
    x[0]
}

pub fn fold_squares(x: &[f32]) -> f32 {
    fold(x.iter().map(|v| v * v))
}

fn fwht(x: &mut [f32]) {
    let mut step = 1;
    while step < x.len() {
        for i in 0..x.len() {
            if i & step == 0 {
                let (a, b) = (x[i], x[i + step]);
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
        step *= 2;
    }
}

/// The rotation of section 2.3.
pub struct Rotation<'a> {
    pub signs_1: &'a [f32],
    pub signs_2: &'a [f32],
    pub rounds: i32,
}

impl Rotation<'_> {
    pub fn apply(&self, x: &mut [f32]) {
        let dim = x.len();
        let log2 = usize::BITS - 1 - dim.leading_zeros();
        let size = 1usize << log2;
        let is_power = size == dim;
        multiply(x, self.signs_1);
        fwht(&mut x[..size]);
        if is_power && self.rounds == 1 {
            return;
        }
        let mut scale = if !is_power && log2 % 2 == 1 { sqrt(0.5) } else { 1.0 };
        for _ in 0..if is_power { log2 } else { log2 / 2 } {
            scale *= 0.5;
        }
        if !is_power {
            x[..size].iter_mut().for_each(|v| *v *= scale);
        }
        multiply(x, self.signs_2);
        fwht(&mut x[dim - size..]);
        x[dim - size..].iter_mut().for_each(|v| *v *= scale);
    }
}

fn multiply(x: &mut [f32], y: &[f32]) {
    for (a, b) in x.iter_mut().zip(y) {
        *a *= b;
    }
}

/// The planes of one key record.
pub struct Record<'a> {
    pub signs: &'a mut [u8],
    pub codes: &'a mut [u8],
    pub vote_factor: &'a mut u16,
    pub factor: &'a mut u16,
}

/// Section 3.6.
pub fn write_bad(record: &mut Record) {
    record.signs.fill(0);
    record.codes.fill(0);
    *record.vote_factor = BF16_NAN;
    *record.factor = BF16_NAN;
}

/// Sections 3.1 to 3.4 of a rotated key whose squares sum to `n2`.
pub fn write_good(record: &mut Record, y: &[f32], n2: f32) {
    let plane = y.len() / 8;
    let unit = sqrt(n2) * inv_sqrt(y.len());
    let mut products = [0.0f32; MAX_DIM];
    record.signs.fill(0);
    record.codes.fill(0);
    for (j, value) in y.iter().enumerate() {
        let magnitude = abs(*value);
        let code = if n2 == 0.0 {
            0
        } else {
            THRESHOLDS.iter().filter(|t| *t * unit < magnitude).count()
        };
        products[j] = LEVELS[code] * magnitude;
        record.signs[j / 8] |= u8::from(*value >= 0.0) << (j % 8);
        for p in 0..3 {
            record.codes[p * plane + j / 8] |= (((code >> p) & 1) as u8) << (j % 8);
        }
    }
    let factor = |sum: f32| if n2 == 0.0 { 0 } else { f32_to_bf16(n2 / sum) };
    *record.vote_factor = factor(fold(y.iter().map(|v| abs(*v))));
    *record.factor = factor(fold(products[..y.len()].iter().copied()));
}

/// fp32(1/sqrt(dim)): the float whose square times `dim` lies nearest to 1, in double.
fn inv_sqrt(dim: usize) -> f32 {
    let guess = 1.0 / sqrt(dim as f32);
    let x = f64::from(guess);
    // One step of Newton's in double leaves an error far below half a unit of fp32.
    (x * (1.5 - 0.5 * dim as f64 * x * x)) as f32
}

/// Section 4.2: the coordinates of `vectors` become integers, in place.
pub fn make_integers(vectors: &mut [f32]) {
    let largest = vectors
        .chunks_exact(8)
        .map(|block| fold(block.iter().map(|v| abs(*v))))
        .fold(0.0f32, |a, b| if b > a { b } else { a });
    for v in vectors {
        *v = if largest == 0.0 { 0.0 } else { unsafe { rintf((123.0 * *v) / largest) } };
    }
}

/// Section 4.2: the vote of a key for the largest of the vectors' sums.
pub fn vote(integers: &[f32], signs: &[u8], factor: u16) -> f32 {
    let sum = |z: &[f32]| -> i32 {
        let term = |(j, v): (usize, &f32)| match (signs[j / 8] >> (j % 8)) & 1 {
            1 => *v as i32,
            _ => -(*v as i32),
        };
        z.iter().enumerate().map(term).sum()
    };
    let largest = integers.chunks_exact(8 * signs.len()).map(sum).max().unwrap_or(0);
    largest as f32 * bf16_to_f32(factor)
}

/// Section 5: how many of `n` keys are wanted.
pub fn candidate_count(below: &[i64], ppm: &[i64], k: i64, n: i64) -> i64 {
    let last = below.len() - 1;
    let step = below[..last].iter().take_while(|b| n >= **b).count();
    let share = (n * ppm[step] + 999_999) / 1_000_000;
    share.max(k).min(n)
}

/// Larger for a larger vote, equal for both zeros; 0 for a NaN, which is never chosen.
fn order_of(vote: f32) -> u32 {
    if vote.is_nan() {
        return 0;
    }
    let bits = (vote + 0.0).to_bits(); // -0 + 0 is +0
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// Section 5: the `wanted` best votes in ascending position; -1 behind them. Returns their number.
pub fn select(votes: &[f32], wanted: i64, candidates: &mut [i32]) -> i32 {
    let from = |least: u32| votes.iter().filter(|v| order_of(**v) >= least).count() as i64;
    let wanted = wanted.min(from(1));
    let mut cut = 0u32; // the wanted-th largest
    for bit in (0..32).rev() {
        if from(cut | 1 << bit) >= wanted {
            cut |= 1 << bit;
        }
    }
    let mut equals = wanted - cut.checked_add(1).map_or(0, from);
    let mut count = 0usize;
    for (i, vote) in votes.iter().enumerate() {
        let order = order_of(*vote);
        if count as i64 == wanted {
            break;
        }
        if order < cut || order == 0 {
            continue;
        }
        if order == cut {
            equals -= 1;
            if equals < 0 {
                continue;
            }
        }
        candidates[count] = i as i32;
        count += 1;
    }
    candidates[count..].fill(-1);
    count as i32
}
