// SPDX-License-Identifier: GPL-2.0

//! A QEMU plugin that counts the instructions that a guest executes, by the address of their
//! translated block. When the guest ends, it writes lines of `address count`, in hexadecimal and
//! decimal, to the file given as `out=`. All of user space is counted at address 0.
//!
//! C header: `qemu-plugin.h` of QEMU 9.0 and later.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::fmt::Write;
use std::sync::Mutex;

/// The version of the plugin interface (`QEMU_PLUGIN_VERSION`).
#[no_mangle]
pub static qemu_plugin_version: c_int = 2;

/// Maximum number of distinct blocks. A boot and a benchmark need a few hundred thousand.
const MAX_BLOCKS: usize = 1 << 20;

/// `QEMU_PLUGIN_INLINE_ADD_U64`
const ADD: c_int = 0;

/// The kernel's half of the address space.
const KERNEL: u64 = 1 << 63;

/// An opaque type, used through pointers only.
#[repr(C)]
pub struct Block {
    _private: [u8; 0],
}

/// An opaque type, used through pointers only.
#[repr(C)]
struct Scoreboard {
    _private: [u8; 0],
}

/// `qemu_plugin_u64`
#[repr(C)]
#[derive(Clone, Copy)]
struct Counter {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, f: extern "C" fn(u64, *mut Block));
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        block: *mut Block,
        operation: c_int,
        counter: Counter,
        operand: u64,
    );
    fn qemu_plugin_scoreboard_new(element_size: usize) -> *mut Scoreboard;
    fn qemu_plugin_u64_sum(counter: Counter) -> u64;
    fn qemu_plugin_register_atexit_cb(
        id: u64,
        f: extern "C" fn(u64, *mut c_void),
        data: *mut c_void,
    );
}

/// The state of the plugin.
struct State {
    scoreboard: *mut Scoreboard,
    /// The index of each address's counter.
    places: HashMap<u64, usize>,
    out: String,
}

// SAFETY: All QEMU threads may use scoreboards.
unsafe impl Send for State {}

static STATE: Mutex<Option<State>> = Mutex::new(None);

impl State {
    fn counter(&self, place: usize) -> Counter {
        Counter {
            scoreboard: self.scoreboard,
            offset: place * size_of::<u64>(),
        }
    }

    /// Returns the counter of an address. Addresses beyond the maximum share the last counter.
    fn counter_of(&mut self, address: u64) -> Counter {
        let next = self.places.len().min(MAX_BLOCKS - 1);
        let place = *self.places.entry(address).or_insert(next);
        self.counter(place)
    }
}

/// Counts the instructions of a block; called when QEMU translates it.
extern "C" fn translated(_: u64, block: *mut Block) {
    let Ok(mut state) = STATE.lock() else {
        return;
    };
    if let Some(state) = &mut *state {
        // SAFETY: QEMU passes a block that is valid during the call. The scoreboard has a counter
        // at each index that `counter_of` returns.
        unsafe {
            let address = match qemu_plugin_tb_vaddr(block) {
                address if address & KERNEL != 0 => address,
                _ => 0,
            };
            let count = qemu_plugin_tb_n_insns(block) as u64;
            let counter = state.counter_of(address);
            qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, ADD, counter, count);
        }
    }
}

/// Writes the counts to the file; called when the guest has ended.
extern "C" fn ended(_: u64, _: *mut c_void) {
    let Ok(state) = STATE.lock() else {
        return;
    };
    if let Some(state) = &*state {
        let mut text = String::new();
        for (address, place) in &state.places {
            // SAFETY: The scoreboard has a counter at each index.
            let count = unsafe { qemu_plugin_u64_sum(state.counter(*place)) };
            let _ = writeln!(text, "{address:x} {count}");
        }
        if let Err(error) = std::fs::write(&state.out, text) {
            eprintln!("profile: {}: {error}", state.out);
        }
    }
}

/// Installs the callbacks; called when QEMU has loaded the plugin.
///
/// # Safety
///
/// Only QEMU may call this. `arguments` must point to `count` zero-terminated strings.
#[no_mangle]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let mut out = None;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: The caller passes `count` valid strings.
        let argument = unsafe { CStr::from_ptr(*arguments.add(i)) }.to_string_lossy();
        out = argument.strip_prefix("out=").map(str::to_owned).or(out);
    }
    let Some(out) = out else {
        eprintln!("profile: the plugin needs out=FILE");
        return 1;
    };
    // SAFETY: QEMU is loading the plugin and calls functions of these types.
    unsafe {
        let scoreboard = qemu_plugin_scoreboard_new(MAX_BLOCKS * size_of::<u64>());
        if let Ok(mut state) = STATE.lock() {
            *state = Some(State {
                scoreboard,
                places: HashMap::new(),
                out,
            });
        }
        qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
        qemu_plugin_register_atexit_cb(id, ended, std::ptr::null_mut());
    }
    0
}
