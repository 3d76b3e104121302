//! Attends over a KV cache with a bundle of `ptxgen export --config`, on the GPU, with the CUDA driver alone.
//!     cp examples/rust_bundle/attend.rs . && ptxgen export --config examples/train/config.json --target sm_80 \
//!         --no-cubin -o bundle && rustc --edition=2021 -O attend.rs && ./attend
//!
//! Every position is appended, and its query sees all so far; position and length lie in device memory.
use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::{mem::transmute, process::exit, ptr::null_mut};

#[path = "bundle/sm_80/append.rs"]
mod append;
#[path = "bundle/sm_80/decode.rs"]
mod decode;

type Handle = *mut c_void;
extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> Handle;
    fn dlsym(library: Handle, name: *const c_char) -> Handle;
}

/// Call a function of the driver by name, with these types; end the program where it fails.
macro_rules! call {
    ($driver:expr, $name:literal, ($($type:ty),*), $($value:expr),*) => {{
        let found = dlsym($driver, concat!($name, "\0").as_ptr().cast());
        let code = if found.is_null() { -1 } else {
            transmute::<Handle, unsafe extern "C" fn($($type),*) -> c_int>(found)($($value),*)
        };
        if code != 0 {
            eprintln!("attend: {}: error {code}", $name);
            exit(1);
        }
    }};
}

unsafe fn zeros(driver: Handle, bytes: usize) -> u64 {
    let mut at = 0u64;
    call!(driver, "cuMemAlloc_v2", (*mut u64, usize), &mut at, bytes);
    call!(driver, "cuMemsetD8_v2", (u64, u8, usize), at, 0, bytes);
    at
}
unsafe fn put<T>(driver: Handle, at: u64, from: &[T]) {
    call!(driver, "cuMemcpyHtoD_v2", (u64, *const T, usize), at, from.as_ptr(), std::mem::size_of_val(from));
}
unsafe fn entry(driver: Handle, ptx: &str, name: &str) -> Handle {
    let (text, name) = (CString::new(ptx).unwrap(), CString::new(name).unwrap());
    let (mut module, mut function): (Handle, Handle) = (null_mut(), null_mut());
    call!(driver, "cuModuleLoadData", (*mut Handle, *const c_char), &mut module, text.as_ptr());
    call!(driver, "cuModuleGetFunction", (*mut Handle, Handle, *const c_char), &mut function, module, name.as_ptr());
    function
}
unsafe fn launch(driver: Handle, function: Handle, g: [u32; 3], b: [u32; 3], shared: u32, pointers: &mut [Handle]) {
    call!(driver, "cuLaunchKernel",
        (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle),
        function, g[0], g[1], g[2], b[0], b[1], b[2], shared, null_mut(), pointers.as_mut_ptr(), null_mut());
}

fn main() { unsafe {
    let driver = dlopen("libcuda.so.1\0".as_ptr().cast(), 2);
    if driver.is_null() { eprintln!("attend: no libcuda.so.1"); exit(1); }
    let (mut device, mut context): (c_int, Handle) = (0, null_mut());
    call!(driver, "cuInit", (c_uint), 0);
    call!(driver, "cuDeviceGet", (*mut c_int, c_int), &mut device, 0);
    call!(driver, "cuDevicePrimaryCtxRetain", (*mut Handle, c_int), &mut context, device);
    call!(driver, "cuCtxSetCurrent", (Handle), context);
    let (appends, attends) = (entry(driver, append::PTX, append::ENTRY), entry(driver, decode::PTX, decode::ENTRY));
    let (kv, row) = (append::k_bytes(1), decode::q_bytes());
    let z = |bytes| zeros(driver, bytes);
    let [k_cache, v_cache] = [decode::k_cache_bytes(), decode::v_cache_bytes()].map(z);
    let mut a = append::Params { k: z(kv), v: z(kv), k_cache, v_cache, position: z(4) };
    let mut d = decode::Params { q: z(row), k_cache, v_cache, out: z(row), seq_len: z(4),
        records: z(decode::records_bytes()), tickets: z(decode::tickets_bytes()) };
    for position in 0..8i32 {
        let mut values: Vec<f32> = (0..row / 4).map(|i| (0.1 * i as f32 + position as f32).sin()).collect();
        put(driver, d.q, &values); put(driver, a.k, &values[..kv / 4]); put(driver, a.v, &values[..kv / 4]);
        put(driver, a.position, &[position]); put(driver, d.seq_len, &[position + 1]);
        launch(driver, appends, append::grid(1), append::BLOCK, append::SHARED_BYTES, &mut a.pointers());
        launch(driver, attends, decode::grid(), decode::BLOCK, decode::SHARED_BYTES, &mut d.pointers());
        call!(driver, "cuMemcpyDtoH_v2", (*mut f32, u64, usize), values.as_mut_ptr(), d.out, row);
        println!("{:.5} {:.5}", values[0], values[row / 4 - 1]);
    }
} }
