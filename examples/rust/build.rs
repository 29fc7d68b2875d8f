//! Where libpariskv is: pkg-config says it, in PARISKV_PREFIX if that is set.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=PARISKV_PREFIX");
    let mut command = Command::new("pkg-config");
    command.args(["--variable=libdir", "pariskv"]);
    if let Ok(prefix) = std::env::var("PARISKV_PREFIX") {
        let folders = ["lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];
        let paths = folders.map(|folder| format!("{prefix}/{folder}/pkgconfig"));
        command.env("PKG_CONFIG_PATH", paths.join(":"));
    }
    let output = command.output().expect("pkg-config is needed to find pariskv");
    let folder = String::from_utf8(output.stdout).expect("a path in UTF-8");
    let folder = folder.trim();
    assert!(!folder.is_empty(), "pkg-config does not know pariskv; set PARISKV_PREFIX");
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=pariskv");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
}
