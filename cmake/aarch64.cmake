# Cross-compiling to aarch64 on Debian, its libraries from the folder that tools/check_aarch64 fills,
# its programs run by qemu. The compiler brings the C library; the folder holds none of its headers.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(PKV_AARCH64_LIBRARIES ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-libraries
                       ABSOLUTE)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${PKV_AARCH64_LIBRARIES})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_LIBDIR} ${PKV_AARCH64_LIBRARIES}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${PKV_AARCH64_LIBRARIES})

# Of the libraries that libraries need, which are on no link line.
add_link_options(LINKER:-rpath-link,${PKV_AARCH64_LIBRARIES}/usr/lib/aarch64-linux-gnu)
# SVE vectors of 256 bits, as the kernels want them.
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -cpu max,sve-default-vector-length=32 -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=${PKV_AARCH64_LIBRARIES}/usr/lib/aarch64-linux-gnu)
