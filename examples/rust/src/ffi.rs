//! The part of pariskv.h that lib.rs uses: same names, same order of fields.
#![allow(non_camel_case_types)]
use std::os::raw::{c_char, c_void};

pub const OK: i32 = 0;
pub const DEVICE_CPU: i32 = 1;
pub const ATTENTION_PARTS: usize = 4;

/// The library's own objects, behind pointers.
macro_rules! opaque {
    ($($name:ident),*) => { $(#[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
opaque!(pkv_runtime, pkv_device, pkv_stream, pkv_config, pkv_codec, pkv_index, pkv_plan);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct pkv_tensor {
    pub data: *mut c_void,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype: i32,
    pub shape: *const i64,
    pub strides: *const i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub struct pkv_plan_desc {
    pub struct_size: u32,
    pub batch: i32,
    pub query_heads: i32,
    pub owns_scratch: i32,
    pub sequences: *const i32,
    pub max_tokens: i64,
}

#[repr(C)]
pub struct pkv_hits {
    pub struct_size: u32,
    pub flags: u32,
    pub positions: *mut i32,
    pub scores: *mut f32,
    pub counts: *mut i32,
    pub candidates: *mut i32,
    pub candidate_counts: *mut i32,
    pub estimates: *mut f32,
    pub rest_lse: *mut f32,
    pub sample_estimates: *mut f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct pkv_rows {
    pub struct_size: u32,
    pub reserved: i32,
    pub keys: pkv_tensor,
    pub values: pkv_tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct pkv_dense {
    pub rows: pkv_rows,
    pub lengths: *const i64,
}

#[repr(C)]
pub struct pkv_step {
    pub struct_size: u32,
    pub dense_count: i32,
    pub query: pkv_tensor,
    pub dense: [pkv_dense; ATTENTION_PARTS],
    pub source: pkv_rows,
    pub hits: *const pkv_hits,
    pub scratch: *mut c_void,
    pub output: pkv_tensor,
    pub lse: *mut f32,
    pub sink_logits: *const f32,
}

extern "C" {
    pub fn pkv_last_error() -> *const c_char;
    pub fn pkv_status_name(status: i32) -> *const c_char;
    pub fn pkv_runtime_create(options: *const c_void, out: *mut *mut pkv_runtime) -> i32;
    pub fn pkv_runtime_destroy(runtime: *mut pkv_runtime);
    pub fn pkv_device_open(
        runtime: *const pkv_runtime,
        backend: *const c_char,
        ordinal: i32,
        out: *mut *mut pkv_device,
    ) -> i32;
    pub fn pkv_device_close(device: *mut pkv_device);
    pub fn pkv_stream_create(device: *mut pkv_device, out: *mut *mut pkv_stream) -> i32;
    pub fn pkv_stream_destroy(stream: *mut pkv_stream);
    pub fn pkv_stream_sync(stream: *mut pkv_stream) -> i32;
    pub fn pkv_config_create(profile: *const c_char, out: *mut *mut pkv_config) -> i32;
    pub fn pkv_config_destroy(config: *mut pkv_config);
    pub fn pkv_config_set(c: *mut pkv_config, name: *const c_char, value: *const c_char) -> i32;
    pub fn pkv_codec_fit_sync(
        device: *mut pkv_device,
        stream: *mut pkv_stream,
        config: *const pkv_config,
        keys: *const pkv_tensor,
        queries: *const pkv_tensor,
        values: *const pkv_tensor,
        out: *mut *mut pkv_codec,
    ) -> i32;
    pub fn pkv_codec_destroy(codec: *mut pkv_codec);
    pub fn pkv_index_create(
        device: *mut pkv_device,
        codec: *const pkv_codec,
        sequences: i32,
        capacity: i64,
        out: *mut *mut pkv_index,
    ) -> i32;
    pub fn pkv_index_destroy(index: *mut pkv_index);
    pub fn pkv_index_append_sync(
        index: *mut pkv_index,
        stream: *mut pkv_stream,
        sequence: i32,
        keys: *const pkv_tensor,
        values: *const pkv_tensor,
    ) -> i32;
    pub fn pkv_index_save_sync(
        index: *const pkv_index,
        stream: *mut pkv_stream,
        path: *const c_char,
        flags: u32,
    ) -> i32;
    pub fn pkv_plan_desc_init(desc: *mut pkv_plan_desc, struct_size: usize) -> i32;
    pub fn pkv_plan_create(
        index: *const pkv_index,
        config: *const pkv_config,
        desc: *const pkv_plan_desc,
        out: *mut *mut pkv_plan,
    ) -> i32;
    pub fn pkv_plan_destroy(plan: *mut pkv_plan);
    pub fn pkv_hits_init(hits: *mut pkv_hits, struct_size: usize) -> i32;
    pub fn pkv_step_init(step: *mut pkv_step, struct_size: usize) -> i32;
    pub fn pkv_step_run(
        plan: *const pkv_plan,
        stream: *mut pkv_stream,
        step: *const pkv_step,
    ) -> i32;
}
