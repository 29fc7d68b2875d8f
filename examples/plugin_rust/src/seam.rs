//! pariskv_backend.h, version 1.0, as far as this backend reads it: the same fields in the same
//! order. Arguments of stages that it lacks stay opaque.
#![allow(non_camel_case_types, dead_code)]
use std::os::raw::{c_char, c_void};

pub const OK: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 3;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const OUT_OF_RANGE: i32 = 11;
pub const UNIMPLEMENTED: i32 = 12;
pub const F32: i32 = 1;
pub const F16: i32 = 3;
pub const BF16: i32 = 4;
pub const DEVICE_CPU: i32 = 1;
pub const CODEC_SCALAR4: i32 = 2;
pub const VOTE_GRADED: i32 = 2;
pub const VOTE_GROUP_HEADS: i32 = 2;
pub const ABI_MAJOR: u32 = 1;
pub const ABI_MINOR: u32 = 0;
pub const FORMAT_VERSION: u32 = 1;

#[repr(C)]
pub struct Host {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub build_flags: u32,
    pub user: *mut c_void,
    pub report: extern "C" fn(*const Host, *const c_char),
    pub log: extern "C" fn(*const Host, i32, *const c_char),
}

#[repr(C)]
pub struct DeviceInfo {
    pub struct_size: u32,
    pub device_type: i32,
    pub device_id: i32,
    pub lanes: i32,
    pub memory_bytes: i64,
    pub name: [u8; 128],
}

#[repr(C)]
pub struct Tensor {
    pub data: *const u8,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype: i32,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct Geometry {
    pub struct_size: u32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub value_dim: i32,
    pub v_source: i32,
    pub codec: i32,
    pub vote: i32,
    pub rounds: i32,
    pub sketch_bits: i32,
    pub value_norm: i32,
    pub seed: u64,
    pub sketch_stride: i32,
    pub reserved: i32,
}

#[repr(C)]
pub struct Records {
    pub struct_size: u32,
    pub reserved: u32,
    pub row_tokens: i64,
    pub signs: *mut u8,
    pub vote_factors: *mut u16,
    pub codes: *mut u8,
    pub factors: *mut u16,
    pub value_planes: [*mut c_void; 4],
}

#[repr(C)]
pub struct CodecParams {
    pub geometry: *const Geometry,
    pub center: *const f32,
    pub balance: *const f32,
    pub inv_balance: *const f32,
    pub signs_1: *const f32,
    pub signs_2: *const f32,
    pub value_center: *const f32,
    pub value_signs_1: *const f32,
    pub value_signs_2: *const f32,
    pub set_of: *const i32,
}

#[repr(C)]
pub struct Store {
    pub base: *mut u8,
    pub row_bytes: i64,
    pub capacity: i64,
    pub pages: *const *mut u8,
    pub pages_stride: i64,
}

#[repr(C)]
pub struct Batch {
    pub batch: i32,
    pub reserved: i32,
    pub sequences: *const i32,
    pub lengths: *const i64,
    pub max_length: i64,
}

#[repr(C)]
pub struct EncodeArgs {
    pub struct_size: u32,
    pub batch: i32,
    pub codec: CodecParams,
    pub keys: Tensor,
    pub values: Tensor,
    pub sequences: *const i32,
    pub starts: *const i64,
    pub counts: *const i64,
    pub store: Store,
    pub occupancy: *mut i32,
    pub value_sums: *mut f64,
    pub good_counts: *mut i64,
    pub first_bad: *mut i64,
}

#[repr(C)]
pub struct VoteArgs {
    pub struct_size: u32,
    pub query_heads: i32,
    pub vote_group: i32,
    pub rho_of: i32,
    pub codec: CodecParams,
    pub batch: Batch,
    pub queries: Tensor,
    pub store: Store,
    pub occupancy: *const i32,
    pub votes: *mut f32,
    pub votes_stride: i64,
}

#[repr(C)]
pub struct CandidateRule {
    pub below: [i64; 4],
    pub ppm: [i64; 4],
    pub k: i32,
    pub steps: i32,
}

#[repr(C)]
pub struct SelectArgs {
    pub struct_size: u32,
    pub kv_heads: i32,
    pub batch: Batch,
    pub rule: CandidateRule,
    pub votes: *const f32,
    pub votes_stride: i64,
    pub candidates: *mut i32,
    pub candidates_stride: i64,
    pub candidate_counts: *mut i32,
}

/// A backend's own types behind the table.
pub struct Device {
    pub host: *const Host,
}
pub struct Handle {
    pub unused: u8,
}

#[repr(C)]
pub struct Slots<Args> {
    pub supports: extern "C" fn(*mut Device, *const Args) -> i32,
    pub scratch_bytes: extern "C" fn(*mut Device, *const Args, *mut i64) -> i32,
    pub run: extern "C" fn(*mut Device, *mut Handle, *const Args, *mut c_void) -> i32,
}

pub type Convert = extern "C" fn(
    *mut Device,
    *mut Handle,
    *const Geometry,
    *const Store,
    i64,
    i64,
    i64,
    *const Records,
) -> i32;

#[repr(C)]
pub struct Table {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub build_flags: u32,
    pub format_version: u32,
    pub score: i32,
    pub name: *const c_char,
    pub version: *const c_char,
    pub about: *const c_char,
    pub device_count: extern "C" fn(*const Host, *mut i32) -> i32,
    pub device_info: extern "C" fn(*const Host, i32, *mut DeviceInfo) -> i32,
    pub device_open: extern "C" fn(*const Host, i32, *mut *mut Device) -> i32,
    pub device_close: extern "C" fn(*mut Device),
    pub memory_alloc: extern "C" fn(*mut Device, i32, i64, *mut *mut u8) -> i32,
    pub memory_free: extern "C" fn(*mut Device, i32, *mut u8, i64),
    pub memory_copy: extern "C" fn(*mut Device, *mut Handle, *mut u8, *const u8, i64) -> i32,
    pub memory_fill: extern "C" fn(*mut Device, *mut Handle, *mut u8, i32, i64) -> i32,
    pub stream_create: extern "C" fn(*mut Device, *mut *mut Handle) -> i32,
    pub stream_wrap: extern "C" fn(*mut Device, usize, *mut *mut Handle) -> i32,
    pub stream_destroy: extern "C" fn(*mut Device, *mut Handle),
    pub stream_sync: extern "C" fn(*mut Device, *mut Handle) -> i32,
    pub event_create: extern "C" fn(*mut Device, *mut *mut Handle) -> i32,
    pub event_destroy: extern "C" fn(*mut Device, *mut Handle),
    pub event_record: extern "C" fn(*mut Device, *mut Handle, *mut Handle) -> i32,
    pub event_wait: extern "C" fn(*mut Device, *mut Handle, *mut Handle) -> i32,
    pub store_row_bytes: extern "C" fn(*mut Device, *const Geometry, i64, *mut i64) -> i32,
    pub store_import: Convert,
    pub store_export: Convert,
    pub fit: Slots<c_void>,
    pub encode: Slots<EncodeArgs>,
    pub vote: Slots<VoteArgs>,
    pub select: Slots<SelectArgs>,
    pub rerank: Slots<c_void>,
    pub fetch: Slots<c_void>,
    pub attend: Slots<c_void>,
    /// step (3), device_set, device_parallel: left out.
    pub optional: [*const c_void; 5],
    pub has_row_cache: i32,
    pub reserved: i32,
    /// merge, memory_words, stream_capturing, place, advance: left out.
    pub optional_2: [*const c_void; 5],
    pub has_recent_rows: i32,
    pub reserved_2: i32,
}
// Texts and functions that live as long as the library.
unsafe impl Sync for Table {}
