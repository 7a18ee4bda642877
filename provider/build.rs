// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Builds a stub `libibverbs.so.1` to link librrxe with. Its functions do nothing.
//!
//! The linker takes two things from it: the name of the library and the version of each symbol. An
//! installed libibverbs has only one private ABI; with the stub, every machine can build librrxe
//! for each. The unit tests run with the stub, too: they call none of its functions.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

/// Functions whose symbol version carries the number of the private ABI. If librrxe calls another
/// function, linking fails.
const PRIVATE: &str = "
    _verbs_init_and_alloc_context execute_ioctl ibv_cmd_advise_mr ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah
    ibv_cmd_create_cq ibv_cmd_create_qp_ex ibv_cmd_create_srq_ex ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_cq ibv_cmd_destroy_qp
    ibv_cmd_destroy_srq ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context
    ibv_cmd_modify_cq ibv_cmd_modify_qp ibv_cmd_modify_srq ibv_cmd_open_qp ibv_cmd_open_xrcd
    ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_query_context ibv_cmd_query_device_any
    ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_reg_dm_mr
    ibv_cmd_reg_mr ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq verbs_set_ops
    verbs_uninit_context
";

fn main() -> Result<(), Box<dyn Error>> {
    // provider/layouts writes a table for each number that there is.
    let pabi = env::var("RRXE_PABI").unwrap_or("34".into());
    let register = format!("verbs_register_driver_{pabi}");
    let private: Vec<_> = PRIVATE.split_whitespace().chain([&*register]).collect();

    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let stub = |name: &&str| format!("int {name}(void) {{ return 0; }}\n");
    let stubs: String = private.iter().map(stub).collect();
    fs::write(out.join("libibverbs.c"), stubs)?;
    let versions = format!("IBVERBS_PRIVATE_{pabi} {{ {}; }};\n", private.join("; "));
    fs::write(out.join("libibverbs.map"), versions)?;
    let done = Command::new(env::var_os("RUSTC_LINKER").unwrap_or("cc".into()))
        .current_dir(&out)
        .args(["-shared", "-nostdlib", "-o", "libibverbs.so.1"])
        .arg("libibverbs.c")
        .arg("-Wl,-soname,libibverbs.so.1,--version-script,libibverbs.map")
        .status()?;
    if !done.success() {
        return Err(format!("the compiler ended with {done}").into());
    }

    let declarations = format!(
        "/// Number of the private ABI of this build.\n\
         pub(crate) const PABI: u32 = {pabi};\n\
         extern \"C\" {{\n\
         #[link_name = \"{register}\"]\n\
         pub(crate) fn verbs_register_driver(ops: *const VerbsDeviceOps);\n\
         }}\n"
    );
    fs::write(out.join("pabi.rs"), declarations)?;

    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RRXE_PABI");
    println!("cargo:rustc-check-cfg=cfg(pabi, values(any()))");
    println!("cargo:rustc-cfg=pabi=\"{pabi}\"");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib:+verbatim=libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    Ok(())
}
