//! The table of a backend on the host, and the one symbol that pariskv looks for.
mod seam;
mod stages;

use std::os::raw::{c_char, c_void};
use seam::*;
use std::alloc::{alloc, dealloc, Layout};

/// Leaves a sentence with the host.
pub fn report(host: *const Host, status: i32, text: &str) -> i32 {
    let text = std::ffi::CString::new(text).unwrap_or_default();
    unsafe { ((*host).report)(host, text.as_ptr()) };
    status
}

extern "C" fn device_count(_: *const Host, out: *mut i32) -> i32 {
    unsafe { *out = 1 };
    OK
}
extern "C" fn device_info(host: *const Host, ordinal: i32, out: *mut DeviceInfo) -> i32 {
    if ordinal != 0 {
        return report(host, OUT_OF_RANGE, "example_rust has device 0 only");
    }
    let out = unsafe { &mut *out };
    out.device_type = DEVICE_CPU;
    out.device_id = 0;
    out.lanes = 1;
    out.memory_bytes = 0;
    out.name[..14].copy_from_slice(b"host, in Rust\0");
    OK
}
extern "C" fn device_open(host: *const Host, ordinal: i32, out: *mut *mut Device) -> i32 {
    if ordinal != 0 {
        return report(host, OUT_OF_RANGE, "example_rust has device 0 only");
    }
    unsafe { *out = Box::into_raw(Box::new(Device { host })) };
    OK
}
extern "C" fn device_close(device: *mut Device) {
    drop(unsafe { Box::from_raw(device) });
}

fn layout_of(bytes: i64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(bytes).ok()?, 256).ok()
}
extern "C" fn memory_alloc(device: *mut Device, _: i32, bytes: i64, out: *mut *mut u8) -> i32 {
    let data = layout_of(bytes).map_or(core::ptr::null_mut(), |layout| unsafe { alloc(layout) });
    if data.is_null() {
        let text = format!("out of memory on the host: bytes={bytes}");
        return report(unsafe { (*device).host }, RESOURCE_EXHAUSTED, &text);
    }
    unsafe { *out = data };
    OK
}
extern "C" fn memory_free(_: *mut Device, _: i32, data: *mut u8, bytes: i64) {
    if let (false, Some(layout)) = (data.is_null(), layout_of(bytes)) {
        unsafe { dealloc(data, layout) };
    }
}
extern "C" fn memory_copy(
    _: *mut Device,
    _: *mut Handle,
    target: *mut u8,
    source: *const u8,
    bytes: i64,
) -> i32 {
    if bytes > 0 {
        unsafe { core::ptr::copy(source, target, bytes as usize) };
    }
    OK
}
extern "C" fn memory_fill(_: *mut Device, _: *mut Handle, data: *mut u8, byte: i32, n: i64) -> i32 {
    if n > 0 {
        unsafe { core::ptr::write_bytes(data, byte as u8, n as usize) };
    }
    OK
}

// Work is done when a slot returns, so there is nothing in streams and events.
extern "C" fn handle_create(_: *mut Device, out: *mut *mut Handle) -> i32 {
    unsafe { *out = Box::into_raw(Box::new(Handle { unused: 0 })) };
    OK
}
extern "C" fn stream_wrap(device: *mut Device, native: usize, out: *mut *mut Handle) -> i32 {
    if native != 0 {
        let host = unsafe { (*device).host };
        return report(host, INVALID_ARGUMENT, "native stream: accepted: 0");
    }
    handle_create(device, out)
}
extern "C" fn handle_destroy(_: *mut Device, handle: *mut Handle) {
    drop(unsafe { Box::from_raw(handle) });
}
extern "C" fn stream_sync(_: *mut Device, _: *mut Handle) -> i32 {
    OK
}
extern "C" fn event_any(_: *mut Device, _: *mut Handle, _: *mut Handle) -> i32 {
    OK
}

// Stages that this backend lacks. `run` is not called where `supports` has refused.
extern "C" fn lacking(device: *mut Device, _: *const c_void) -> i32 {
    let host = unsafe { (*device).host };
    report(host, UNIMPLEMENTED, "example_rust has encode, vote and select only")
}
extern "C" fn no_scratch(_: *mut Device, _: *const c_void, out: *mut i64) -> i32 {
    unsafe { *out = 0 };
    OK
}
extern "C" fn no_run(device: *mut Device, _: *mut Handle, args: *const c_void, _: *mut c_void) -> i32 {
    lacking(device, args)
}
const LACKING: Slots<c_void> = Slots { supports: lacking, scratch_bytes: no_scratch, run: no_run };

static TABLE: Table = Table {
    struct_size: core::mem::size_of::<Table>() as u32,
    abi_major: ABI_MAJOR,
    abi_minor: ABI_MINOR,
    build_flags: 0,
    format_version: FORMAT_VERSION,
    score: 0,
    name: b"example_rust\0".as_ptr() as *const c_char,
    version: b"1\0".as_ptr() as *const c_char,
    about: b"an example: encode, vote and select in Rust\0".as_ptr() as *const c_char,
    device_count,
    device_info,
    device_open,
    device_close,
    memory_alloc,
    memory_free,
    memory_copy,
    memory_fill,
    stream_create: handle_create,
    stream_wrap,
    stream_destroy: handle_destroy,
    stream_sync,
    event_create: handle_create,
    event_destroy: handle_destroy,
    event_record: event_any,
    event_wait: event_any,
    store_row_bytes: stages::store_row_bytes,
    store_import: stages::store_import,
    store_export: stages::store_export,
    fit: LACKING,
    encode: stages::ENCODE,
    vote: stages::VOTE,
    select: stages::SELECT,
    rerank: LACKING,
    fetch: LACKING,
    attend: LACKING,
    optional: [core::ptr::null(); 5],
    has_row_cache: 0,
    reserved: 0,
    optional_2: [core::ptr::null(); 5],
    has_recent_rows: 0,
    reserved_2: 0,
};

#[no_mangle]
pub extern "C" fn pkv_backend_query(host_max_abi: u32, host: *const Host) -> *const Table {
    if host_max_abi >> 16 != ABI_MAJOR || host_max_abi < (ABI_MAJOR << 16 | ABI_MINOR) {
        report(host, 0, "example_rust needs another version of the backend interface");
        return core::ptr::null();
    }
    &TABLE
}
