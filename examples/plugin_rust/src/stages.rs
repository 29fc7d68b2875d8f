//! From the arguments of a slot to slices, and to the functions of example-core.
use crate::report;
use crate::seam::*;
use std::os::raw::c_void;
use core::slice::{from_raw_parts, from_raw_parts_mut};
use example_core as core_of;
use example_core::{Record, Rotation, MAX_DIM};

fn refuse(device: *mut Device, what: &str, value: i32, accepted: &str) -> i32 {
    let text = format!("example_rust: {what}={value}, accepted: {accepted}");
    report(unsafe { (*device).host }, UNIMPLEMENTED, &text)
}

fn check_geometry(device: *mut Device, geometry: &Geometry) -> i32 {
    if geometry.codec != CODEC_SCALAR4 {
        return refuse(device, "codec", geometry.codec, "scalar4");
    }
    if geometry.vote != VOTE_GRADED {
        return refuse(device, "vote", geometry.vote, "graded");
    }
    if geometry.sketch_bits != 0 {
        return refuse(device, "sketch_bits", geometry.sketch_bits, "0");
    }
    if geometry.value_norm != 0 {
        return refuse(device, "value_norm", geometry.value_norm, "0");
    }
    OK
}

fn check_dtype(device: *mut Device, what: &str, tensor: &Tensor) -> i32 {
    match tensor.dtype {
        F32 | F16 | BF16 => OK,
        other => refuse(device, what, other, "f32, f16, bf16"),
    }
}

impl Geometry {
    fn dim(&self) -> usize {
        self.head_dim as usize
    }
    fn plane(&self) -> usize {
        self.dim() / 8
    }
}

impl CodecParams {
    /// The numbers of one KV head for entry i of the batch; `array` is [sets, h, d].
    unsafe fn row(&self, array: *const f32, i: usize, head: usize) -> &[f32] {
        let geometry = &*self.geometry;
        let set = if self.set_of.is_null() { 0 } else { *self.set_of.add(i) as usize };
        let row = set * geometry.kv_heads as usize + head;
        from_raw_parts(array.add(row * geometry.dim()), geometry.dim())
    }
    unsafe fn rotation(&self) -> Rotation<'_> {
        let geometry = &*self.geometry;
        Rotation {
            signs_1: from_raw_parts(self.signs_1, geometry.dim()),
            signs_2: from_raw_parts(self.signs_2, geometry.dim()),
            rounds: geometry.rounds,
        }
    }
}

impl Tensor {
    /// The vector at the leading indices given, as f32.
    unsafe fn load(&self, index: &[usize], out: &mut [f32]) {
        let mut at = 0;
        for (axis, i) in index.iter().enumerate() {
            at += *self.strides.add(axis) as isize * *i as isize;
        }
        let base = self.data.wrapping_add(self.byte_offset as usize);
        for (j, value) in out.iter_mut().enumerate() {
            let element = at + j as isize;
            *value = match self.dtype {
                F32 => (base.wrapping_offset(4 * element) as *const f32).read_unaligned(),
                dtype => {
                    let bits = (base.wrapping_offset(2 * element) as *const u16).read_unaligned();
                    if dtype == F16 { core_of::f16_to_f32(bits) } else { core_of::bf16_to_f32(bits) }
                }
            };
        }
    }
}

// ---- Records: signs, codes, vote factors, factors of `capacity` tokens, plane after plane.

unsafe fn record_at(
    geometry: &Geometry,
    store: &Store,
    sequence: usize,
    head: usize,
    position: usize,
) -> Record<'static> {
    let (plane, capacity) = (geometry.plane(), store.capacity as usize);
    let (row_bytes, heads) = (store.row_bytes as usize, geometry.kv_heads as usize);
    let (row, at) = if store.pages.is_null() {
        (store.base.add((sequence * heads + head) * row_bytes), position)
    } else {
        let page = sequence * store.pages_stride as usize + position / capacity;
        ((*store.pages.add(page)).add(head * row_bytes), position % capacity)
    };
    let factors = row.add(capacity * 4 * plane) as *mut u16;
    Record {
        signs: from_raw_parts_mut(row.add(at * plane), plane),
        codes: from_raw_parts_mut(row.add(capacity * plane + at * 3 * plane), 3 * plane),
        vote_factor: &mut *factors.add(at),
        factor: &mut *factors.add(capacity + at),
    }
}

pub extern "C" fn store_row_bytes(
    device: *mut Device,
    geometry: *const Geometry,
    capacity: i64,
    out: *mut i64,
) -> i32 {
    let geometry = unsafe { &*geometry };
    let status = check_geometry(device, geometry);
    if status == OK {
        let bytes = capacity * (4 * geometry.plane() as i64 + 4);
        unsafe { *out = (bytes + 255) / 256 * 256 };
    }
    status
}

/// The record at begin + i of `row`, and record i of the canonical planes, for each i.
unsafe fn each_pair(
    geometry: &Geometry,
    store: &Store,
    row: i64,
    begin: i64,
    count: i64,
    records: &Records,
    mut body: impl FnMut(Record, Record),
) {
    let (row, heads, plane) = (row as usize, geometry.kv_heads as usize, geometry.plane());
    for i in 0..count as usize {
        let here = record_at(geometry, store, row / heads, row % heads, begin as usize + i);
        let there = Record {
            signs: from_raw_parts_mut(records.signs.add(i * plane), plane),
            codes: from_raw_parts_mut(records.codes.add(i * 3 * plane), 3 * plane),
            vote_factor: &mut *records.vote_factors.add(i),
            factor: &mut *records.factors.add(i),
        };
        body(here, there);
    }
}

fn copy(to: Record, from: Record) {
    to.signs.copy_from_slice(from.signs);
    to.codes.copy_from_slice(from.codes);
    *to.vote_factor = *from.vote_factor;
    *to.factor = *from.factor;
}

pub extern "C" fn store_import(
    _: *mut Device,
    _: *mut Handle,
    geometry: *const Geometry,
    store: *const Store,
    row: i64,
    begin: i64,
    count: i64,
    source: *const Records,
) -> i32 {
    unsafe {
        each_pair(&*geometry, &*store, row, begin, count, &*source, copy);
    }
    OK
}

pub extern "C" fn store_export(
    _: *mut Device,
    _: *mut Handle,
    geometry: *const Geometry,
    store: *const Store,
    row: i64,
    begin: i64,
    count: i64,
    target: *const Records,
) -> i32 {
    unsafe {
        each_pair(&*geometry, &*store, row, begin, count, &*target, |here, there| copy(there, here));
    }
    OK
}

// ---- Encode.

extern "C" fn encode_supports(device: *mut Device, args: *const EncodeArgs) -> i32 {
    let args = unsafe { &*args };
    let mut status = check_geometry(device, unsafe { &*args.codec.geometry });
    if status == OK {
        status = check_dtype(device, "dtype of keys", &args.keys);
    }
    if status == OK && args.values.ndim != 0 {
        status = check_dtype(device, "dtype of values", &args.values);
    }
    status
}

extern "C" fn encode_scratch(_: *mut Device, _: *const EncodeArgs, out: *mut i64) -> i32 {
    unsafe { *out = 0 };
    OK
}

/// Tokens of one KV head of entry i; the first bad position, or -1.
unsafe fn encode_row(a: &EncodeArgs, i: usize, head: usize) -> i64 {
    let geometry = &*a.codec.geometry;
    let (dim, value_dim) = (geometry.dim(), geometry.value_dim as usize);
    let sequence = *a.sequences.add(i) as usize;
    let row = sequence * geometry.kv_heads as usize + head;
    let center = a.codec.row(a.codec.center, i, head);
    let balance = a.codec.row(a.codec.balance, i, head);
    let mut first_bad = -1;
    for t in 0..*a.counts.add(i) as usize {
        let position = *a.starts.add(i) as usize + t;
        let mut record = record_at(geometry, &a.store, sequence, head, position);
        let (mut key, mut value) = ([0.0; MAX_DIM], [0.0; MAX_DIM]);
        let (y, v) = (&mut key[..dim], &mut value[..value_dim]);
        a.keys.load(&[i, head, t], y);
        for j in 0..dim {
            y[j] = balance[j] * (y[j] - center[j]);
        }
        a.codec.rotation().apply(y);
        let n2 = core_of::fold_squares(y);
        let mut v2 = 0.0;
        if a.values.ndim != 0 {
            a.values.load(&[i, head, t], v);
            v2 = core_of::fold_squares(v);
        }
        if !n2.is_finite() || !v2.is_finite() {
            core_of::write_bad(&mut record);
            if first_bad < 0 {
                first_bad = position as i64;
            }
            continue;
        }
        core_of::write_good(&mut record, y, n2);
        *a.good_counts.add(row) += 1;
        if a.values.ndim != 0 && !a.value_sums.is_null() {
            for (j, x) in v.iter().enumerate() {
                *a.value_sums.add(row * value_dim + j) += f64::from(*x);
            }
        }
    }
    first_bad
}

extern "C" fn encode_run(
    _: *mut Device,
    _: *mut Handle,
    args: *const EncodeArgs,
    _: *mut c_void,
) -> i32 {
    let args = unsafe { &*args };
    let heads = unsafe { (*args.codec.geometry).kv_heads } as usize;
    for i in 0..args.batch as usize {
        for head in 0..heads {
            unsafe {
                let first_bad = encode_row(args, i, head);
                if !args.first_bad.is_null() {
                    *args.first_bad.add(i * heads + head) = first_bad;
                }
            }
        }
    }
    OK
}

pub const ENCODE: Slots<EncodeArgs> =
    Slots { supports: encode_supports, scratch_bytes: encode_scratch, run: encode_run };

// ---- Vote.

extern "C" fn vote_supports(device: *mut Device, args: *const VoteArgs) -> i32 {
    let args = unsafe { &*args };
    match check_geometry(device, unsafe { &*args.codec.geometry }) {
        OK => check_dtype(device, "dtype of queries", &args.queries),
        status => status,
    }
}

/// Elements of all heads of a group, rotated, and their sum behind them.
fn vectors_of(args: &VoteArgs) -> usize {
    let geometry = unsafe { &*args.codec.geometry };
    (args.query_heads / geometry.kv_heads + 1) as usize * geometry.dim()
}

extern "C" fn vote_scratch(_: *mut Device, args: *const VoteArgs, out: *mut i64) -> i32 {
    unsafe { *out = (vectors_of(&*args) * core::mem::size_of::<f32>()) as i64 };
    OK
}

/// Sections 4.1 and 4.4: the rotated queries of a group and of their sum; false if one is bad.
unsafe fn prepare(a: &VoteArgs, i: usize, head: usize, vectors: &mut [f32]) -> bool {
    let dim = (*a.codec.geometry).dim();
    let group = vectors.len() / dim - 1;
    let reciprocal = a.codec.row(a.codec.inv_balance, i, head);
    let (heads, sum) = vectors.split_at_mut(group * dim);
    for (g, query) in heads.chunks_exact_mut(dim).enumerate() {
        a.queries.load(&[i, head * group + g], query);
        for j in 0..dim {
            sum[j] = if g == 0 { query[j] } else { sum[j] + query[j] };
        }
    }
    let mut is_good = true;
    for y in vectors.chunks_exact_mut(dim) {
        for j in 0..dim {
            y[j] *= reciprocal[j];
        }
        a.codec.rotation().apply(y);
        is_good &= core_of::fold_squares(y).is_finite();
    }
    is_good
}

unsafe fn vote_row(a: &VoteArgs, i: usize, head: usize, vectors: &mut [f32]) {
    let geometry = &*a.codec.geometry;
    let row = i * geometry.kv_heads as usize + head;
    let votes = a.votes.add(row * a.votes_stride as usize);
    let is_good = prepare(a, i, head, vectors);
    let group = vectors.len() - geometry.dim();
    let integers = match a.vote_group {
        VOTE_GROUP_HEADS => &mut vectors[..group],
        _ => &mut vectors[group..],
    };
    core_of::make_integers(integers);
    let sequence = *a.batch.sequences.add(i) as usize;
    for position in 0..*a.batch.lengths.add(i) as usize {
        let record = record_at(geometry, &a.store, sequence, head, position);
        *votes.add(position) = if !is_good || core_of::bf16_to_f32(*record.factor).is_nan() {
            f32::NAN
        } else {
            core_of::vote(integers, record.signs, *record.vote_factor)
        };
    }
}

extern "C" fn vote_run(
    _: *mut Device,
    _: *mut Handle,
    args: *const VoteArgs,
    scratch: *mut c_void,
) -> i32 {
    let args = unsafe { &*args };
    let vectors = unsafe { from_raw_parts_mut(scratch as *mut f32, vectors_of(args)) };
    for i in 0..args.batch.batch as usize {
        for head in 0..unsafe { (*args.codec.geometry).kv_heads } as usize {
            unsafe { vote_row(args, i, head, vectors) };
        }
    }
    OK
}

pub const VOTE: Slots<VoteArgs> =
    Slots { supports: vote_supports, scratch_bytes: vote_scratch, run: vote_run };

// ---- Select.

extern "C" fn select_supports(_: *mut Device, _: *const SelectArgs) -> i32 {
    OK
}

extern "C" fn select_scratch(_: *mut Device, _: *const SelectArgs, out: *mut i64) -> i32 {
    unsafe { *out = 0 };
    OK
}

unsafe fn select_row(a: &SelectArgs, row: usize, n: i64) {
    let steps = a.rule.steps as usize;
    let (below, ppm) = (&a.rule.below[..steps], &a.rule.ppm[..steps]);
    let wanted = core_of::candidate_count(below, ppm, i64::from(a.rule.k), n);
    let stride = a.candidates_stride as usize;
    let votes: &[f32] = match n {
        0 => &[],
        _ => from_raw_parts(a.votes.add(row * a.votes_stride as usize), n as usize),
    };
    let candidates: &mut [i32] = match stride {
        0 => &mut [],
        _ => from_raw_parts_mut(a.candidates.add(row * stride), stride),
    };
    *a.candidate_counts.add(row) = core_of::select(votes, wanted, candidates);
}

extern "C" fn select_run(
    _: *mut Device,
    _: *mut Handle,
    args: *const SelectArgs,
    _: *mut c_void,
) -> i32 {
    let args = unsafe { &*args };
    let heads = args.kv_heads as usize;
    for row in 0..args.batch.batch as usize * heads {
        unsafe { select_row(args, row, *args.batch.lengths.add(row / heads)) };
    }
    OK
}

pub const SELECT: Slots<SelectArgs> =
    Slots { supports: select_supports, scratch_bytes: select_scratch, run: select_run };
