# Debian packages: `cpack -G DEB` in a build folder, or tools/package, which builds one for them.
# libpariskv0, libpariskv-dev, pariskv-tools, and libpariskv-cuda where the CUDA backend is built.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR pariskv)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL library development)
if(PARISKV_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
if(PARISKV_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "pariskv maintainers <maintainers@pariskv.invalid>")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)
set(CPACK_PKV_STRIP ${CMAKE_STRIP})

set(this_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(about "pariskv finds, for each decoding step of a long-context language model,
the few cached keys that matter, fetches their rows from wherever they live,
and attends to them.
")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libpariskv0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/debian/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "${about}
This package has the shared library with its backends for the CPU.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libpariskv-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libpariskv0 ${this_version}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libabsl-dev, libhwy-dev, libtbb-dev")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "${about}
This package has the headers, the files for CMake and pkg-config, the static
library, and a skeleton, a reference and a guide for writing backends.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME pariskv-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libpariskv0 ${this_version}")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "${about}
This package has the command line and pkv-conformance, which holds a backend
against the reference.")

set(CPACK_DEBIAN_CUDA_PACKAGE_NAME libpariskv-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "libpariskv0 ${this_version}")
set(CPACK_DEBIAN_CUDA_DESCRIPTION "${about}
This package has the backend for NVIDIA GPUs.")

# What a Debian package has beside the files of `cmake --install`.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian_files.cmake)
set(CPACK_PKV_SOURCES ${PROJECT_SOURCE_DIR})
include(CPack)
