//! A small safe wrapper of pariskv for host memory: handles that destroy themselves, failures as
//! `Error`, tensors that borrow what they show. It covers what embed.rs needs, and is a beginning
//! for more.
pub mod ffi;
pub mod trace;

use ffi::*;
use std::ffi::{CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

/// What a call said that did not succeed.
#[derive(Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn check(status: i32) -> Result<()> {
    if status == OK {
        return Ok(());
    }
    let text = |pointer| unsafe { CStr::from_ptr(pointer) }.to_string_lossy();
    let (name, last) = unsafe { (pkv_status_name(status), pkv_last_error()) };
    Err(Error(format!("{}: {}", text(name), text(last))))
}

fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error(format!("{text:?} has a NUL in it")))
}

/// A handle that owns the object behind it.
macro_rules! handle {
    ($name:ident, $raw:ident, $destroy:ident) => {
        pub struct $name(*mut $raw);
        impl Drop for $name {
            fn drop(&mut self) {
                unsafe { $destroy(self.0) }
            }
        }
    };
}
handle!(Runtime, pkv_runtime, pkv_runtime_destroy);
handle!(Device, pkv_device, pkv_device_close);
handle!(Stream, pkv_stream, pkv_stream_destroy);
handle!(Config, pkv_config, pkv_config_destroy);
handle!(Codec, pkv_codec, pkv_codec_destroy);
handle!(Index, pkv_index, pkv_index_destroy);
handle!(Plan, pkv_plan, pkv_plan_destroy);

#[derive(Clone, Copy, PartialEq)]
pub enum Dtype {
    F32 = 1,
    F16 = 3,
    Bf16 = 4,
}

impl Dtype {
    fn bytes(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }
}

/// A view of elements in memory of the host, which it borrows, in up to four axes.
pub struct Tensor<'a> {
    data: *const u8,
    dtype: Dtype,
    shape: Vec<i64>,
    strides: Vec<i64>,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Tensor<'a> {
    /// Dense and row-major.
    pub fn dense(memory: &'a [u8], dtype: Dtype, shape: &[usize]) -> Result<Tensor<'a>> {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        Tensor::strided(memory, dtype, shape, &strides)
    }

    /// With strides in elements.
    pub fn strided(
        memory: &'a [u8],
        dtype: Dtype,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Tensor<'a>> {
        let last: usize = shape.iter().zip(strides).map(|(n, s)| n.saturating_sub(1) * s).sum();
        if shape.len() != strides.len() || (last + 1) * dtype.bytes() > memory.len() {
            return Err(Error(format!("{shape:?} is more than the {} bytes given", memory.len())));
        }
        let as_i64 = |numbers: &[usize]| numbers.iter().map(|n| *n as i64).collect();
        let (shape, strides) = (as_i64(shape), as_i64(strides));
        Ok(Tensor { data: memory.as_ptr(), dtype, shape, strides, memory: PhantomData })
    }

    fn raw(&self) -> pkv_tensor {
        pkv_tensor {
            data: self.data as *mut _,
            device_type: DEVICE_CPU,
            device_id: 0,
            ndim: self.shape.len() as i32,
            dtype: self.dtype as i32,
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ptr(),
            byte_offset: 0,
        }
    }
}

impl Runtime {
    pub fn new() -> Result<Runtime> {
        let mut raw = null_mut();
        check(unsafe { pkv_runtime_create(null(), &mut raw) })?;
        Ok(Runtime(raw))
    }

    /// Device 0 of a backend whose memory is the host's.
    pub fn open(&self, backend: &str) -> Result<Device> {
        let mut raw = null_mut();
        check(unsafe { pkv_device_open(self.0, c_text(backend)?.as_ptr(), 0, &mut raw) })?;
        Ok(Device(raw))
    }
}

impl Device {
    pub fn stream(&self) -> Result<Stream> {
        let mut raw = null_mut();
        check(unsafe { pkv_stream_create(self.0, &mut raw) })?;
        Ok(Stream(raw))
    }
}

impl Config {
    pub fn new(profile: &str) -> Result<Config> {
        let mut raw = null_mut();
        check(unsafe { pkv_config_create(c_text(profile)?.as_ptr(), &mut raw) })?;
        Ok(Config(raw))
    }

    pub fn set(&mut self, name: &str, value: impl fmt::Display) -> Result<()> {
        let (name, value) = (c_text(name)?, c_text(&value.to_string())?);
        check(unsafe { pkv_config_set(self.0, name.as_ptr(), value.as_ptr()) })
    }
}

impl Codec {
    pub fn fit(
        device: &Device,
        stream: &Stream,
        config: &Config,
        keys: &Tensor,
        queries: &Tensor,
        values: &Tensor,
    ) -> Result<Codec> {
        let (keys, queries, values) = (keys.raw(), queries.raw(), values.raw());
        let mut raw = null_mut();
        check(unsafe {
            pkv_codec_fit_sync(device.0, stream.0, config.0, &keys, &queries, &values, &mut raw)
        })?;
        Ok(Codec(raw))
    }
}

impl Index {
    pub fn new(device: &Device, codec: &Codec, sequences: i32, capacity: usize) -> Result<Index> {
        let mut raw = null_mut();
        check(unsafe { pkv_index_create(device.0, codec.0, sequences, capacity as i64, &mut raw) })?;
        Ok(Index(raw))
    }

    pub fn append(&mut self, stream: &Stream, sequence: i32, k: &Tensor, v: &Tensor) -> Result<()> {
        check(unsafe { pkv_index_append_sync(self.0, stream.0, sequence, &k.raw(), &v.raw()) })
    }

    pub fn save(&self, stream: &Stream, path: &str) -> Result<()> {
        check(unsafe { pkv_index_save_sync(self.0, stream.0, c_text(path)?.as_ptr(), 0) })
    }
}

/// What a step found: per KV head up to `k` positions, best first, and the attention's output.
pub struct Found {
    pub hits: Vec<Vec<(i32, f32)>>,
    pub output: Vec<f32>,
}

/// The shape of a step.
#[derive(Clone, Copy)]
pub struct Shape {
    pub kv_heads: usize,
    pub query_heads: usize,
    pub value_dim: usize,
    pub k: usize,
}

impl Plan {
    pub fn new(index: &Index, config: &Config, query_heads: usize) -> Result<Plan> {
        let mut raw = null_mut();
        unsafe {
            let mut desc = std::mem::zeroed();
            check(pkv_plan_desc_init(&mut desc, std::mem::size_of::<pkv_plan_desc>()))?;
            desc.query_heads = query_heads as i32;
            desc.owns_scratch = 1;
            check(pkv_plan_create(index.0, config.0, &desc, &mut raw))?;
        }
        Ok(Plan(raw))
    }

    /// Retrieves among `keys`, fetches and attends. `&mut`: the plan owns its scratch.
    pub fn step(
        &mut self,
        stream: &Stream,
        query: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        shape: Shape,
    ) -> Result<Found> {
        let Shape { kv_heads, query_heads, value_dim, k } = shape;
        let mut positions = vec![0i32; kv_heads * k];
        let mut scores = vec![0f32; kv_heads * k];
        let mut counts = vec![0i32; kv_heads];
        let mut output = vec![0f32; query_heads * value_dim];
        let output_shape = [1, query_heads as i64, value_dim as i64];
        unsafe {
            let mut hits: pkv_hits = std::mem::zeroed();
            check(pkv_hits_init(&mut hits, std::mem::size_of::<pkv_hits>()))?;
            hits.positions = positions.as_mut_ptr();
            hits.scores = scores.as_mut_ptr();
            hits.counts = counts.as_mut_ptr();
            let mut step: pkv_step = std::mem::zeroed();
            check(pkv_step_init(&mut step, std::mem::size_of::<pkv_step>()))?;
            step.query = query.raw();
            step.source.keys = keys.raw();
            step.source.values = values.raw();
            step.hits = &hits;
            step.output = pkv_tensor {
                data: output.as_mut_ptr() as *mut _,
                dtype: Dtype::F32 as i32,
                ndim: 3,
                shape: output_shape.as_ptr(),
                strides: null(),
                ..query.raw()
            };
            check(pkv_step_run(self.0, stream.0, &step))?;
            check(pkv_stream_sync(stream.0))?;
        }
        let hits = (0..kv_heads).map(|head| {
            let row = head * k..head * k + counts[head] as usize;
            row.map(|j| (positions[j], scores[j])).collect()
        });
        Ok(Found { hits: hits.collect(), output })
    }
}
